"""Layouts of other tools' result files: which fields are read, in which unit, and how a row becomes a run.

| tool | file | times in | runs |
|---|---|---|---|
| vLLM | `bench serve --save-result` (one object), `--append-result` (one a line), `bench sweep` (folder of `run=N.json`) | ms, s | an object |
| SGLang | `bench_serving --output-file` (one object a line) | ms, s | a line |
| AIPerf | `profile_export_aiperf.json` | what its `unit` fields say | the file |
| GuideLLM | `benchmarks.json` | `_ms` fields in ms, `request_latency` in s | an entry of `benchmarks` |
| llama-bench | `-o json`, `-o jsonl` | `avg_ts` in tokens/s, `avg_ns` in ns | an entry; its repetitions are one process |

`FIELDS` holds every field that is read, its key here, and the factor to our unit (ms, s, tokens/s, requests/s).
"""  # noqa: E501

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fuseboard.measure.runs import Arm, Run, Work

Row = Mapping[str, Any]
MS_PER_S = 1e3


class MissingKeyError(Exception):
    """A key that a layout must have and a file has not."""


@dataclass(frozen=True, kw_only=True)
class Field:
    """`path` in the file, `/` between levels, to the value `key`, times `factor`."""

    path: str
    key: str
    factor: float = 1.0


def _serving(names: Mapping[str, str]) -> tuple[Field, ...]:
    parts = (("mean", ""), ("median", "_p50"), ("p50", "_p50"), ("p95", "_p95"), ("p99", "_p99"))
    return tuple(
        Field(path=f"{part}_{theirs}_ms", key=key + end) for theirs, key in names.items() for part, end in parts
    )


def _nested(names: Mapping[str, tuple[str, float]], parts: Sequence[tuple[str, str]]) -> tuple[Field, ...]:
    return tuple(
        Field(path=f"{theirs}/{part}", key=key + end, factor=factor)
        for theirs, (key, factor) in names.items()
        for part, end in parts
    )


_COMMON = (
    Field(path="duration", key="duration"),
    Field(path="output_throughput", key="throughput"),
    Field(path="request_throughput", key="request_throughput"),
)
_GUIDELLM_PARTS = (
    ("successful/mean", ""),
    ("successful/median", "_p50"),
    ("successful/percentiles/p95", "_p95"),
    ("successful/percentiles/p99", "_p99"),
)
FIELDS: Mapping[str, tuple[Field, ...]] = {
    "vLLM": (
        *_COMMON,
        Field(path="total_token_throughput", key="total_throughput"),
        *_serving({"ttft": "ttft", "tpot": "tpot", "itl": "itl", "e2el": "e2e"}),
        Field(path="fuseboard/decode_throughput", key="decode"),
        Field(path="fuseboard/prefill_throughput", key="prefill"),
    ),
    "SGLang": (
        *_COMMON,
        Field(path="total_throughput", key="total_throughput"),
        *_serving({"ttft": "ttft", "tpot": "tpot", "itl": "itl", "e2e_latency": "e2e"}),
    ),
    "AIPerf": (
        Field(path="benchmark_duration/avg", key="duration"),
        Field(path="output_token_throughput/avg", key="throughput"),
        Field(path="total_token_throughput/avg", key="total_throughput"),
        Field(path="request_throughput/avg", key="request_throughput"),
        *_nested(
            {
                "time_to_first_token": ("ttft", 1.0),
                "inter_token_latency": ("tpot", 1.0),
                "request_latency": ("e2e", 1.0),
            },
            (("avg", ""), ("p50", "_p50"), ("p95", "_p95"), ("p99", "_p99")),
        ),
    ),
    "GuideLLM": (
        Field(path="duration", key="duration"),
        Field(path="metrics/output_tokens_per_second/successful/mean", key="throughput"),
        Field(path="metrics/tokens_per_second/successful/mean", key="total_throughput"),
        Field(path="metrics/requests_per_second/successful/mean", key="request_throughput"),
        *_nested(
            {
                "metrics/time_to_first_token_ms": ("ttft", 1.0),
                # Its time_per_output_token counts the first token in; ours, as everybody else's, does not.
                "metrics/inter_token_latency_ms": ("tpot", 1.0),
                "metrics/request_latency": ("e2e", MS_PER_S),
            },
            _GUIDELLM_PARTS,
        ),
    ),
    "llama-bench": (Field(path="avg_ns", key="duration", factor=1e-9),),
}
"""`duration` of llama-bench is that of one repetition. AIPerf's and GuideLLM's inter-token latency is a mean over the
tokens of a request after the first: what is called TPOT here."""

AIPERF_UNITS = {"ms": 1.0, "sec": MS_PER_S, "s": MS_PER_S, "ns": 1e-6, "us": 1e-3}
"""Milliseconds in the units that AIPerf names."""


MARKS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("llama-bench", ("avg_ts", "n_prompt")),
    ("SGLang", ("mean_e2e_latency_ms", "output_throughput")),
    ("vLLM", ("mean_ttft_ms", "output_throughput")),
    ("GuideLLM", ("benchmarks",)),
    ("AIPerf", ("request_throughput", "request_latency")),
)


def _at(row: Any, path: str) -> Any:
    for part in path.split("/"):
        if not isinstance(row, dict) or part not in row:
            return None
        row = row[part]
    return row


def _need(row: Row, path: str) -> Any:
    value = _at(row, path)
    if value is None:
        raise MissingKeyError(path)
    return value


def _values(tool: str, row: Row) -> dict[str, float]:
    found = {f.key: float(value) * f.factor for f in FIELDS[tool] if (value := _at(row, f.path)) is not None}
    return {key: value for key, value in found.items() if value > 0}


def _text(value: Any) -> str:
    return json.dumps(value) if isinstance(value, dict | list) else str(value)


def _facts(row: Row, names: Mapping[str, str]) -> dict[str, str]:
    """Named facts by their path in the row; what is not there is left out."""
    return {name: _text(value) for path, name in names.items() if (value := _at(row, path)) is not None}


def _grouped(name: str, found: Iterable[tuple[dict[str, str], Run]]) -> list[Arm]:
    """Runs with the same facts are repetitions of one arm."""
    arms: dict[str, tuple[dict[str, str], list[Run]]] = {}
    for facts, run in found:
        arms.setdefault(json.dumps(facts), (facts, []))[1].append(run)
    single = len(arms) == 1
    return [
        Arm(name=name if single else f"{name} {i + 1}", facts=facts, runs=tuple(runs))
        for i, (facts, runs) in enumerate(arms.values())
    ]


_BENCH_FACTS = {
    "model_id": "model",
    "tokenizer_id": "tokenizer",
    "backend": "backend",
    "dataset_name": "dataset",
    "burstiness": "burstiness",
    "fuseboard/plan_digest": "plan digest",
    "server_info/model_path": "model",
    "server_info/version": "version of the server",
}


def _serve_cell(row: Row) -> str:
    lengths = [_at(row, key) for key in ("random_input_len", "random_output_len")]
    parts = [f"{lengths[0]} in, {lengths[1]} out"] if all(lengths) else []
    parts.append(f"rate {_need(row, 'request_rate')}")
    return ", ".join([*parts, *([f"concurrency {limit}"] if (limit := _at(row, "max_concurrency")) else [])])


def _from_serving(tool: str) -> Callable[[str, Sequence[Row]], list[Arm]]:
    def read(name: str, rows: Sequence[Row]) -> list[Arm]:
        return _grouped(name, (_served(tool, row) for row in rows if _need(row, "completed") > 0))

    return read


def _served(tool: str, row: Row) -> tuple[dict[str, str], Run]:
    own = _at(row, "fuseboard")
    ours = _at(row, "fuseboard/switches") or {}
    switches = {f"switch {name}": str(value) for name, value in ours.items()}
    work = Work(
        requests=float(_need(row, "completed")),
        tokens_in=float(_need(row, "total_input_tokens")),
        tokens_out=float(_need(row, "total_output_tokens")),
        failed=_failed(row),
        exact=bool(ours),
    )
    _need(row, "duration")
    facts = {"tool": "fuseboard" if own else tool} | _facts(row, _BENCH_FACTS) | switches
    return facts, Run(cell=_serve_cell(row), values=_values(tool, row), work=work)


def _failed(row: Row) -> int:
    if (count := _at(row, "failed")) is not None:
        return int(count)
    wanted = _at(row, "num_prompts")
    return max(0, int(wanted) - int(row["completed"])) if wanted is not None else sum(bool(e) for e in _errors(row))


def _errors(row: Row) -> Sequence[Any]:
    found = _at(row, "errors")
    return found if isinstance(found, list) else ()


def aiperf_metrics(row: Row) -> Row:
    """Metrics stand at the top, in early versions under `records`."""
    inner = row.get("records")
    return inner if isinstance(inner, dict) else row


def _from_aiperf(name: str, rows: Sequence[Row]) -> list[Arm]:
    return _grouped(name, (_aiperf(row) for row in rows))


def _aiperf(whole: Row) -> tuple[dict[str, str], Run]:
    row = {key: _in_our_unit(key, m) for key, m in aiperf_metrics(whole).items() if isinstance(m, dict)}
    requests = float(_need(row, "request_count/avg"))
    work = Work(
        requests=requests,
        tokens_in=_total(row, "total_isl/avg", "input_sequence_length/avg", requests),
        tokens_out=_total(row, "total_osl/avg", "output_sequence_length/avg", requests),
        failed=int(_at(row, "error_request_count/avg") or 0),
    )
    load = _at(whole, "input_config/loadgen") or {}
    limits = [f"{key.replace('_', ' ')} {load[key]}" for key in ("concurrency", "request_rate") if load.get(key)]
    facts = {"tool": "AIPerf"} | _facts(
        whole,
        {
            "input_config/endpoint/model_names": "model",
            "input_config/endpoint/type": "endpoint",
            "aiperf_version": "version of AIPerf",
        },
    )
    return facts, Run(cell=", ".join(limits) or "all requests", values=_values("AIPerf", row), work=work)


def _in_our_unit(key: str, metric: Row) -> Row:
    """The metric in milliseconds when it is a latency, in seconds when it is the duration."""
    unit = metric.get("unit")
    if key not in ("time_to_first_token", "inter_token_latency", "request_latency", "benchmark_duration"):
        return metric
    if unit not in AIPERF_UNITS:
        raise MissingKeyError(f"{key}/unit in {', '.join(AIPERF_UNITS)}")
    factor = AIPERF_UNITS[unit] / (MS_PER_S if key == "benchmark_duration" else 1.0)
    return {part: value * factor for part, value in metric.items() if isinstance(value, int | float)}


def _total(row: Row, total: str, mean: str, requests: float) -> float:
    whole = _at(row, total)
    return float(whole) if whole is not None else float(_need(row, mean)) * requests


def _from_guidellm(name: str, rows: Sequence[Row]) -> list[Arm]:
    entries = [(whole, entry) for whole in rows for entry in _need(whole, "benchmarks")]
    if not entries:
        raise MissingKeyError("benchmarks/0")
    return _grouped(name, (_guidellm(whole, entry) for whole, entry in entries if _succeeded(entry)))


def _succeeded(entry: Row) -> bool:
    return float(_need(entry, "metrics/request_totals/successful")) > 0


def _guidellm(whole: Row, entry: Row) -> tuple[dict[str, str], Run]:
    requests = float(_need(entry, "metrics/request_totals/successful"))
    totals = _at(entry, "metrics/request_totals")
    work = Work(
        requests=requests,
        tokens_in=float(_need(entry, "metrics/prompt_token_count/successful/mean")) * requests,
        tokens_out=float(_need(entry, "metrics/output_token_count/successful/mean")) * requests,
        failed=int(totals.get("errored") or 0) + int(totals.get("incomplete") or 0),
    )
    strategy = _at(entry, "config/strategy") or _at(entry, "args/strategy") or {}
    shown = [str(strategy[k]) for k in ("type_", "rate", "streams", "max_concurrency") if strategy.get(k) is not None]
    facts = {"tool": "GuideLLM"} | _facts(
        whole,
        {"args/model": "model", "args/backend": "backend", "metadata/guidellm_version": "version of GuideLLM"},
    )
    return facts, Run(cell=" ".join(shown) or "all requests", values=_values("GuideLLM", entry), work=work)


_LLAMA_FACTS = {
    "model_filename": "model",
    "model_type": "model type",
    "build_commit": "version of llama.cpp",
    "backends": "backend",
    "cpu_info": "processor",
    "gpu_info": "accelerator",
    "n_threads": "threads",
    "n_batch": "batch tokens",
    "n_ubatch": "micro-batch tokens",
    "type_k": "type of keys",
    "type_v": "type of values",
    "n_gpu_layers": "offloaded layers",
    "flash_attn": "flash attention",
}


def _from_llama_bench(name: str, rows: Sequence[Row]) -> list[Arm]:
    return _grouped(name, (_llama(row) for row in rows))


def _llama(row: Row) -> tuple[dict[str, str], Run]:
    prompt, output, depth = (int(_need(row, "n_prompt")), int(_need(row, "n_gen")), int(row.get("n_depth") or 0))
    name = "+".join(part for part in (f"pp{prompt}" * (prompt > 0), f"tg{output}" * (output > 0)) if part)
    rate = float(_need(row, "avg_ts"))
    key = "decode" if not prompt else "prefill" if not output else "total_throughput"
    values = _values("llama-bench", row) | {key: rate}
    work = Work(requests=1, tokens_in=prompt, tokens_out=output)
    cell = f"{name} at depth {depth}" if depth else name
    return {"tool": "llama-bench"} | _facts(row, _LLAMA_FACTS), Run(cell=cell, values=values, work=work)


READERS: Mapping[str, Callable[[str, Sequence[Row]], list[Arm]]] = {
    "vLLM": _from_serving("vLLM"),
    "SGLang": _from_serving("SGLang"),
    "AIPerf": _from_aiperf,
    "GuideLLM": _from_guidellm,
    "llama-bench": _from_llama_bench,
}
