"""What a load on a server amounts to: vLLM's key names for programs, a table and plain warnings for people."""

import datetime
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import numpy as np

from fuseboard.core.errors import UserError
from fuseboard.measure import metrics
from fuseboard.measure.client import HttpRecord, Load
from fuseboard.measure.http_options import HttpBenchOptions

LATE_MS, LATE_SHARE = 2.0, 0.1
"""The client's lag matters when its P95 is above both: milliseconds, and a share of the median TTFT."""
BUSY_SHARE = 0.8
"""Above this share of a core the client may well be what limits the load."""
ERRORS_SHOWN = 5


def one(value: float | None) -> tuple[float, ...]:
    return () if value is None else (value,)


def itl_ms(request: HttpRecord) -> tuple[float, ...]:
    return metrics.itl_ms(request) if request.knows_tokens else ()


@dataclass(frozen=True, kw_only=True)
class Latency:
    """A latency in milliseconds, of which a request has none, one or many values."""

    label: str
    of: Callable[[HttpRecord], tuple[float, ...]]


LATENCIES: Mapping[str, Latency] = {
    "ttft": Latency(label="time to first token", of=lambda r: one(metrics.ttft_ms(r))),
    "tpot": Latency(label="time per output token", of=lambda r: one(metrics.tpot_ms(r))),
    "itl": Latency(label="gap between tokens", of=itl_ms),
    "icl": Latency(label="gap between chunks", of=metrics.chunk_gaps_ms),
    "e2el": Latency(label="end to end", of=lambda r: one(metrics.e2e_ms(r))),
}
LIMITS = {"ttft": "ttft", "tpot": "tpot", "e2el": "e2e"}
"""Names in `--goodput` and in `metrics.goodput`."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What is to be reported: latencies, percentiles, and the limits of a good request in milliseconds."""

    latencies: tuple[str, ...]
    percentiles: tuple[float, ...]
    limits: dict[str, float]

    @staticmethod
    def from_options(options: HttpBenchOptions) -> "Wanted":
        """UserError for a latency, percentile or limit that does not exist."""
        latencies = tuple(part.strip() for part in options.percentile_metrics.split(",") if part.strip())
        if unknown := [name for name in latencies if name not in LATENCIES]:
            raise UserError(f"--percentile-metrics knows {', '.join(LATENCIES)}, not {unknown[0]!r}.")
        percentiles = tuple(number(part, "--metric-percentiles") for part in options.metric_percentiles.split(","))
        if bad := [p for p in percentiles if not 0 <= p <= 100]:
            raise UserError(f"--metric-percentiles are numbers from 0 to 100, not {bad[0]:g}.")
        return Wanted(latencies=latencies, percentiles=percentiles, limits=dict(map(limit, options.goodput)))


def number(text: str, flag: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UserError(f"{flag} takes numbers, not {text!r}.") from None


def limit(pair: str) -> tuple[str, float]:
    name, _, value = pair.partition(":")
    if name not in LIMITS:
        raise UserError(f"--goodput takes {', '.join(LIMITS)} with milliseconds, for example ttft:500, not {pair!r}.")
    return name, number(value, "--goodput")


def key_of(percentile: float) -> str:
    return f"p{percentile:g}"


def as_json(options: HttpBenchOptions, wanted: Wanted, model: str, load: Load, started_unix: float) -> dict[str, Any]:
    """The result under the names of vLLM's `bench serve`; what that does not have is under `fuseboard`.

    Rates are per second, latencies milliseconds. Headers, which may hold a key, are left out.
    """
    cell, good = load.cell, [r for r in load.requests if r.ok]
    limits = {LIMITS[name]: value for name, value in wanted.limits.items()}
    chat = options.endpoint.endswith("chat/completions")
    return {
        "date": datetime.datetime.fromtimestamp(started_unix, datetime.UTC).strftime("%Y%m%d-%H%M%S"),
        "endpoint_type": "openai-chat" if chat else "openai",
        "backend": "openai-chat" if chat else "openai",
        "model_id": model,
        "tokenizer_id": options.tokenizer or options.model,
        "num_prompts": len(load.requests),
        "request_rate": "inf" if options.request_rate == float("inf") else options.request_rate,
        "burstiness": options.burstiness,
        "max_concurrency": options.max_concurrency,
        "duration": metrics.duration_s(cell),
        "completed": len(good),
        "failed": len(load.requests) - len(good),
        "total_input_tokens": sum(r.n_in for r in good),
        "total_output_tokens": sum(r.n_out for r in good),
        "request_throughput": metrics.request_throughput(cell),
        "request_goodput": metrics.goodput(cell, **limits) if limits else None,
        "output_throughput": metrics.output_throughput(cell),
        "total_token_throughput": metrics.total_throughput(cell),
        "max_concurrent_requests": metrics.max_in_flight(cell),
        **latencies(good, wanted),
        **(detailed(load) if options.save_detailed else {}),
        "fuseboard": extra(options, wanted, load, good),
    }


def values(name: str, requests: Iterable[HttpRecord]) -> list[float]:
    return [value for request in requests for value in LATENCIES[name].of(request)]


def latencies(good: list[HttpRecord], wanted: Wanted) -> dict[str, float | None]:
    found: dict[str, float | None] = {}
    for name in wanted.latencies:
        found |= {f"{part}_{name}_ms": value for part, value in spread(values(name, good), wanted.percentiles).items()}
    return found


def spread(numbers: list[float], percentiles: Iterable[float]) -> dict[str, float | None]:
    """Mean, median, standard deviation and percentiles (linear), each None when there are no numbers."""
    found = metrics.distribution(numbers)
    return {
        "mean": found.mean if found else None,
        "median": found.p50 if found else None,
        "std": found.std if found else None,
        **{key_of(p): float(np.percentile(numbers, p, method="linear")) if numbers else None for p in percentiles},
    }


def extra(options: HttpBenchOptions, wanted: Wanted, load: Load, good: list[HttpRecord]) -> dict[str, Any]:
    lags = [r.lag_ms for r in load.requests if r.lag_ms is not None]
    n = {name: len(values(name, good)) for name in wanted.latencies}
    thin = [p for p in wanted.percentiles if p < 100 and len(good) * (100 - p) < 100]
    return {
        "base_url": options.base_url,
        "endpoint": options.endpoint,
        "extra_body": options.extra_body,
        "seed": options.seed,
        "n": n,
        "flagged": [f"{key_of(p)}_{name}_ms" for name in wanted.latencies for p in thin],
        "goodput_limits_ms": wanted.limits,
        "decode_throughput": metrics.decode_throughput(load.cell),
        "client_lag_ms": {"n": len(lags), **spread(lags, (95, 99, 100))},
        "client_busy": load.busy,
        "errors": dict(Counter(r.error or "no token" for r in load.requests if not r.ok).most_common()),
        "notes": list(notes(load, good, lags)),
    }


def notes(load: Load, good: list[HttpRecord], lags: list[float]) -> Iterable[str]:
    """What a reader must know before believing the numbers."""
    if lags and good:
        late = float(np.percentile(lags, 95))
        typical = median(values("ttft", good))
        if late > LATE_MS and late > LATE_SHARE * typical:
            yield f"The client itself sent late (P95 {late:.1f} ms), and every latency counts from the schedule."
    if waits := [r.queued_ns / 1e6 for r in good if r.due_ns is not None and r.queued_ns > LATE_MS * 1e6]:
        yield (
            f"{len(waits)} requests waited for --max-concurrency, a median of {median(waits):.1f} ms, which their "
            f"latencies hold."
        )
    if load.busy > BUSY_SHARE:
        yield f"The client itself was busy {load.busy:.0%} of a core, so part of the delays may be its own."
    if uncounted := sum(r.usage_out is None for r in good):
        yield f"The server gave no usage for {uncounted} requests; their chunks are counted as tokens."
    if added := [r.usage_in - r.n_in_sent for r in good if r.usage_in not in (None, r.n_in_sent)]:
        yield (
            f"The server counted {median(added):+g} prompt tokens (median of {len(added)} requests) beside those that "
            f"were sent: a chat template, or another tokenizer."
        )
    if vague := sum(r.usage_out is not None and not r.knows_tokens for r in good):
        yield f"{vague} requests have chunks of several or hidden tokens, so gaps between tokens (itl) leave them out."
    if other := [r for r in good if r.n_out != r.n_out_wanted]:
        yield f"{len(other)} answers have another length than was asked for; --ignore-eos asks for all of it."


def detailed(load: Load) -> dict[str, Any]:
    """vLLM's lists by request, seconds, and the raw nanoseconds behind every number."""
    records = load.requests
    return {
        "input_lens": [r.n_in for r in records],
        "output_lens": [r.n_out for r in records],
        "ttfts": [None if (t := metrics.ttft_ms(r)) is None else t / 1e3 for r in records],
        "itls": [[gap / 1e3 for gap in metrics.chunk_gaps_ms(r)] for r in records],
        "errors": [r.error or "" for r in records],
        "start_times": [r.start_ns / 1e9 for r in records],
        "records": [asdict(r) for r in records],
    }


def print_table(result: Mapping[str, Any], wanted: Wanted) -> None:
    """The numbers of a result, for a reader."""
    from rich.console import Console
    from rich.table import Table

    own = result["fuseboard"]
    title = f"{result['model_id']}: {result['completed']} requests done, {result['failed']} failed"
    rates = Table("rate", title=title, title_justify="left")
    rates.add_column("value", justify="right")
    rates.add_row("duration, s", shown(result["duration"]))
    for key in ("request_throughput", "request_goodput", "output_throughput", "total_token_throughput"):
        if key != "request_goodput" or wanted.limits:
            rates.add_row(key.replace("_", " ") + ", 1/s", shown(result[key]))
    rates.add_row("decode throughput, tokens/s", shown(own["decode_throughput"]))
    rates.add_row("most requests at once", str(result["max_concurrent_requests"]))
    times = Table("latency, ms")
    parts = ("mean", "median", *map(key_of, wanted.percentiles))
    for column in ("n", *parts):
        times.add_column(column.replace("p", "P"), justify="right")
    for name in wanted.latencies:
        keys = [f"{part}_{name}_ms" for part in parts]
        cells = [shown(result[key]) + ("*" if key in own["flagged"] else "") for key in keys]
        times.add_row(f"{name}, {LATENCIES[name].label}", str(own["n"][name]), *cells)
    lag = own["client_lag_ms"]
    if lag["n"]:
        cells = [shown(lag[part]) if part in lag else "" for part in parts]
        times.add_row("client's own lag", str(lag["n"]), *cells)
    console = Console()
    console.print(rates, times)
    if own["flagged"]:
        console.print(f"* {result['completed']} requests are too few for this percentile; it is mostly the maximum.")
    for message, count in list(own["errors"].items())[:ERRORS_SHOWN]:
        console.print(f"{count} failed: {message}", markup=False)
    for note in own["notes"]:
        console.print(note, markup=False)


def shown(value: float | None) -> str:
    return "n/a" if value is None else f"{value:,.2f}"
