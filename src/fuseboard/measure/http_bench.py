"""`bench --base-url`: a load on a running OpenAI-compatible server, as its clients see it."""

import asyncio
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from fuseboard.core.errors import LoadError, UserError
from fuseboard.load.catalogue import CATALOGUE
from fuseboard.load.model import load_model, optional_json
from fuseboard.load.tokenizer import Tokenizer, folder_tokenizer
from fuseboard.measure import client, http_report, traces, workload
from fuseboard.measure.arrivals import check_use, paced
from fuseboard.measure.bench import INPUT_LEN, OUTPUT_LEN
from fuseboard.measure.experiment import measuring_lock
from fuseboard.measure.http_options import HttpBenchOptions
from fuseboard.measure.openai_stream import message_of

CHAT = "chat/completions"
COMPLETIONS = "completions"
PAUSE_S = 0.5
ANSWER_S = 10.0
"""How long the list of models may take."""
NO_LIMIT = 1 << 40


@dataclass(frozen=True, kw_only=True)
class Server:
    """Where requests go and what the server says of itself; `max_len` in tokens where it says it."""

    url: str
    model: str
    max_len: int | None


def run(options: HttpBenchOptions) -> dict[str, Any]:
    """Send the load, print the table, write the JSON file; the result. UserError when no request succeeded."""
    report = http_report.Wanted.from_options(options)
    headers = parse_headers(options.header)
    extra = parse_extra(options.extra_body)
    check(options)
    tokenizer = find_tokenizer(options)
    server = asyncio.run(find_server(options, headers))
    warmup, cell = make_cells(options, tokenizer, server.max_len)
    target = client.Target(url=server.url, headers=headers, timeout_s=options.timeout)

    def requests(part: workload.Cell) -> list[client.HttpRequest]:
        return [make_request(options, server.model, tokenizer, extra, part, i) for i in range(len(part.requests))]

    with measuring_lock():
        started = time.time()
        load = asyncio.run(measure(target, requests(warmup), requests(cell), cell))
    result = http_report.as_json(options, report, server.model, load, started)
    if len(load.requests) < len(cell.requests):
        result["fuseboard"]["notes"].append(f"Interrupted: {len(load.requests)} of {len(cell.requests)} were sent.")
    http_report.print_table(result, report)
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    if not result["completed"]:
        raise UserError(
            f"None of the {len(load.requests)} requests succeeded; the first failed with: {load.requests[0].error}."
        )
    return result


async def measure(
    target: client.Target,
    warmup: Sequence[client.HttpRequest],
    requests: Sequence[client.HttpRequest],
    cell: workload.Cell,
) -> client.Load:
    """The warm-up, whose failure ends the run, then the load, over the same connections."""
    async with client.session() as http:
        if warmup:
            before = await client.run_load(http, target, warmup, name="warm-up", concurrency=cell.concurrency)
            failed = [r.error for r in before.requests if r.error]
            if len(failed) == len(warmup):
                raise UserError(f"The server failed every warm-up request; the first with: {failed[0]}.")
        return await client.run_load(
            http, target, requests, name=cell.name, concurrency=cell.concurrency, progress=progress(len(requests))
        )


def progress(total: int) -> client.Progress | None:
    """Counts requests on one line of a terminal; cheaper than a progress bar, whose drawing would cost the clock."""
    if not sys.stderr.isatty():
        return None
    done = failed = 0

    def show(record: client.HttpRecord) -> None:
        nonlocal done, failed
        done, failed = done + 1, failed + (record.error is not None)
        end = "\n" if done == total else ""
        print(f"\r{done} of {total} requests, {failed} failed", end=end, file=sys.stderr, flush=True)

    return show


def check(options: HttpBenchOptions) -> None:
    """UserError for numbers that make no load."""
    if any(size is not None and size < 1 for size in (options.input_len, options.output_len, options.num_prompts)):
        raise UserError("--input-len, --output-len and --num-prompts must be at least 1.")
    if options.max_concurrency is not None and options.max_concurrency < 1:
        raise UserError(
            f"--max-concurrency must be at least 1, not {options.max_concurrency}; leave it out for no limit."
        )
    if min(options.num_warmups, options.time_scale, options.shared_prefix, options.ready_check_timeout_sec) < 0:
        raise UserError(
            "--num-warmups, --time-scale, --shared-prefix and --ready-check-timeout-sec cannot be negative."
        )
    check_use(options)
    if not 0 < options.timeout < float("inf"):
        raise UserError(f"--timeout must be a number of seconds above 0, not {options.timeout}.")
    if options.token_ids and is_chat(options):
        raise UserError("--token-ids needs an endpoint for completions: chat messages are text.")
    if options.save_detailed and options.json is None:
        raise UserError("--save-detailed writes into the result; say with --json FILE where that goes.")
    if not is_chat(options) and not options.endpoint.endswith(COMPLETIONS):
        raise UserError(f"--endpoint must end with {COMPLETIONS} or {CHAT}, not {options.endpoint!r}.")


def is_chat(options: HttpBenchOptions) -> bool:
    return options.endpoint.endswith(CHAT)


def url_of(base: str, endpoint: str) -> str:
    """The endpoint's address; a base that already ends with the endpoint's first part is understood too."""
    try:
        parts = urlsplit(base)
        good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        good = False
    if not good or parts.query or parts.fragment:
        raise UserError(f"--base-url {base!r} is not the address of a server; write for example http://127.0.0.1:8000.")
    base, path = base.rstrip("/"), "/" + endpoint.lstrip("/")
    first = "/" + path.split("/")[1]
    return base + (path.removeprefix(first) if base.endswith(first) and path != first else path)


def parse_headers(pairs: Sequence[str]) -> dict[str, str]:
    """`KEY=VALUE` pairs; UserError for anything else."""
    headers = {"Content-Type": "application/json"}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not (equals and name.strip().isascii() and name.strip()) or any(c in pair for c in "\r\n\0"):
            raise UserError("--header takes KEY=VALUE, for example Authorization='Bearer ...'.")
        headers[name.strip()] = value
    return headers


def parse_extra(text: str | None) -> dict[str, Any]:
    """The object of `--extra-body`; UserError when it is none or takes the stream away."""
    try:
        extra = json.loads(text or "{}")
    except ValueError as error:
        raise UserError(f"--extra-body is not JSON: {error}.") from None
    if not isinstance(extra, dict):
        raise UserError("--extra-body must be a JSON object, for example '{\"top_k\": 1}'.")
    if extra.get("stream", True) is not True:
        raise UserError("--extra-body cannot turn the stream off: without it tokens have no times.")
    return extra


def find_tokenizer(options: HttpBenchOptions) -> Tokenizer:
    """The tokenizer that sizes the prompts: of `--tokenizer`, else of `--model` where that is at hand."""
    name = options.tokenizer or options.model
    at_hand = name is not None and (options.tokenizer or name in CATALOGUE or Path(name).expanduser().exists())
    if name is None or not at_hand:
        raise UserError(
            "Prompts of an exact length need the tokenizer of the served model; give --tokenizer with a path, a hub "
            "id or a name of the catalogue."
        )
    path = Path(name).expanduser()
    folder = path.parent if path.name == "tokenizer.json" else path
    if (folder / "tokenizer.json").is_file():
        return folder_tokenizer(folder, optional_json(folder / "tokenizer_config.json"), [])
    try:
        return load_model(name).tokenizer
    except LoadError as error:
        raise UserError(f"There is no tokenizer for the prompts: {error}") from None


async def find_server(options: HttpBenchOptions, headers: Mapping[str, str]) -> Server:
    """Wait until the server answers, and learn its model; UserError when it does not or offers no single one."""
    url = url_of(options.base_url, options.endpoint)
    listing = url.removesuffix(CHAT).removesuffix(COMPLETIONS) + "models"
    deadline = time.monotonic() + options.ready_check_timeout_sec
    async with client.session() as http:
        while True:
            try:
                models, problem = await list_models(http, listing, headers)
                break
            except (aiohttp.ClientError, OSError) as error:
                if time.monotonic() >= deadline:
                    raise UserError(
                        f"No server answers at {options.base_url}: {error or type(error).__name__}."
                    ) from None
            await asyncio.sleep(PAUSE_S)
    names = [str(model.get("id")) for model in models]
    if options.model is None and len(names) != 1:
        what = f"offers {', '.join(names)}" if names else f"does not list its models ({problem or 'none there'})"
        raise UserError(f"The server {what}; choose one with --model.")
    name = options.model or names[0]
    lengths = [m.get("max_model_len") for m in models if m.get("id") == name]
    return Server(url=url, model=name, max_len=next((n for n in lengths if isinstance(n, int)), None))


class NotReadyError(aiohttp.ClientError):
    """The server answers, but only to say that it is not ready."""


async def list_models(
    http: aiohttp.ClientSession, url: str, headers: Mapping[str, str]
) -> tuple[list[dict[str, Any]], str]:
    """The server's models, and why there are none when it does not list them."""
    async with http.get(url, headers=headers, timeout=aiohttp.ClientTimeout(total=ANSWER_S)) as response:
        text = (await response.read()).decode("utf-8", errors="replace")
        if response.status == 503:
            raise NotReadyError(f"HTTP 503: {message_of(text)}")
        if response.status != 200:
            return [], f"HTTP {response.status}: {message_of(text)}"
    try:
        listed = json.loads(text)["data"]
        return [model for model in listed if isinstance(model, dict)], ""
    except (ValueError, KeyError, TypeError):
        return [], "its list is not understood"


def make_cells(
    options: HttpBenchOptions, tokenizer: Tokenizer, max_len: int | None
) -> tuple[workload.Cell, workload.Cell]:
    """Warm-up and measured requests, the latter with their times."""
    prompts = workload.Prompts(tokenizer, seed=options.seed)
    if options.trace is not None:
        loaded = traces.load(options.trace, max_len=max_len or NO_LIMIT)
        for note in loaded.notes:
            print(note, file=sys.stderr)
        closed = 1 if options.time_scale == 0 else None
        cell = traces.workload(
            loaded, prompts, count=options.num_prompts, seed=options.seed, time_scale=options.time_scale, closed=closed
        ).cells[0]
    else:
        cell = workload.grid_cell(
            prompts,
            input_len=INPUT_LEN if options.input_len is None else options.input_len,
            output_len=OUTPUT_LEN if options.output_len is None else options.output_len,
            concurrency=options.max_concurrency,
            count=options.num_prompts,
            shared_prefix=options.shared_prefix,
        )
    cell = replace(cell, concurrency=options.max_concurrency)
    shapes = [(len(r.token_ids), r.n_out) for r in cell.requests]
    lengths = [shapes[i % len(shapes)] for i in range(options.num_warmups)]
    warmup = workload.mixed_cell(prompts, name="warm-up", lengths=lengths, concurrency=options.max_concurrency)
    return warmup, paced(cell, options.request_rate, burstiness=options.burstiness, seed=options.seed)


def make_request(
    options: HttpBenchOptions,
    model: str,
    tokenizer: Tokenizer,
    extra: Mapping[str, Any],
    cell: workload.Cell,
    index: int,
) -> client.HttpRequest:
    """The request as bytes, so that nothing is left to do when it is due."""
    request = cell.requests[index]
    prompt = list(request.token_ids) if options.token_ids else tokenizer.decode(request.token_ids)
    body: dict[str, Any] = {
        "model": model,
        **({"messages": [{"role": "user", "content": prompt}]} if is_chat(options) else {"prompt": prompt}),
        "max_tokens": request.n_out,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        **({"ignore_eos": True} if options.ignore_eos else {}),
        **extra,
    }
    return client.HttpRequest(
        request_id=f"{cell.name}/{index}",
        body=json.dumps({key: value for key, value in body.items() if value is not None}).encode(),
        n_in=len(request.token_ids),
        n_out=request.n_out,
        arrival_s=request.arrival_s,
    )
