"""`bench`: one configuration under one load, reported with the key names of vLLM's `bench serve`."""

import datetime
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from fuseboard.core.errors import UserError
from fuseboard.execute.options import ServingOptions
from fuseboard.measure import arrivals, experiment, machine, metrics, setup, workload
from fuseboard.measure.launch import LaunchSpec, launch
from fuseboard.measure.options import BenchOptions
from fuseboard.measure.record import CellRecord, LaunchRecord, RequestRecord
from fuseboard.measure.subject import EngineArgs, Subject, load_subject

WARMUP_S = 60.0
INPUT_LEN, OUTPUT_LEN = 512, 128
LATENCIES: tuple[tuple[str, str, Callable[[RequestRecord], tuple[float, ...]]], ...] = (
    ("ttft", "Time to first token", lambda r: _some(metrics.ttft_ms(r))),
    ("tpot", "Time per output token (without the first)", lambda r: _some(metrics.tpot_ms(r))),
    ("itl", "Inter-token latency", metrics.itl_ms),
    ("e2el", "End to end latency", lambda r: _some(metrics.e2e_ms(r))),
)


def _some(value: float | None) -> tuple[float, ...]:
    return () if value is None else (value,)


def run(options: BenchOptions) -> dict[str, Any]:
    """Measure in a fresh process, print the table, write the JSON file; the result. UserError when nothing ran."""
    bare = replace(setup.bare_args(options), backend=options.backend, revision=options.revision)
    subject = load_subject(bare)
    work = make_workload(options, subject)
    engine = setup.fitted(with_preset(bare, options, subject), work, subject)
    spec = LaunchSpec(arm="bench", block=0, position=0, engine=engine, workload=work, code_digest=machine.code_digest())
    with experiment.measuring_lock():
        done = launch(spec, timeout_s=options.timeout)
    if done.error is not None:
        raise UserError(done.error.message)
    result = as_json(options, done)
    print_table(result)
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return result


def with_preset(bare: EngineArgs, options: ServingOptions, subject: Subject) -> EngineArgs:
    """The arguments with the preset's switches beneath the chosen ones; UserError for an unknown preset."""
    if options.preset not in ("on", "off"):
        raise UserError(f"--preset is on or off, not {options.preset!r}.")
    preset = dict(subject.profile) if options.preset == "on" else {}
    return replace(bare, preset=preset, switches=options.switches)


def make_workload(options: BenchOptions, subject: Subject) -> workload.Workload:
    """The load that the options describe."""
    _check(options)
    prompts = workload.Prompts(subject.model.tokenizer, seed=options.seed)
    if options.trace is not None:
        from fuseboard.measure import traces

        loaded = traces.load(options.trace, max_len=options.max_model_len or subject.model.spec.max_position)
        for note in loaded.notes:
            print(note)
        work = traces.workload(
            loaded,
            prompts,
            count=options.num_prompts,
            seed=options.seed,
            time_scale=options.time_scale,
            closed=(options.concurrency or 1) if options.time_scale == 0 else None,
            warmups=traces.WARMUPS if options.num_warmups is None else options.num_warmups,
        )
        limited = (replace(cell, concurrency=options.concurrency or cell.concurrency) for cell in work.cells)
        return replace(work, cells=tuple(_paced(options, cell) for cell in limited))
    cell = workload.grid_cell(
        prompts,
        input_len=INPUT_LEN if options.input_len is None else options.input_len,
        output_len=OUTPUT_LEN if options.output_len is None else options.output_len,
        concurrency=options.concurrency or 1,
        count=options.num_prompts,
        shared_prefix=options.shared_prefix,
    )
    rounds = 1 if options.num_warmups is None else options.num_warmups
    warmup = workload.warmup_rounds(prompts, [cell], rounds=rounds)
    return workload.Workload(
        name="bench", cells=(_paced(options, cell),), warmup=warmup, warmup_s=WARMUP_S, seed=options.seed
    )


def _check(options: BenchOptions) -> None:
    """UserError for numbers that make no load, and for options that it would leave unused."""
    sizes = (options.input_len, options.output_len, options.num_prompts, options.concurrency)
    if any(size is not None and size < 1 for size in sizes):
        raise UserError("--input-len, --output-len, --num-prompts and --concurrency must be at least 1.")
    if min(options.shared_prefix, options.num_warmups or 0) < 0 or not 0 <= options.time_scale < float("inf"):
        raise UserError("--shared-prefix, --num-warmups and --time-scale cannot be negative.")
    arrivals.check_use(options)


def _paced(options: BenchOptions, cell: workload.Cell) -> workload.Cell:
    """The cell at the rate that is asked for, whatever times it had; UserError for a scale of times that go unused."""
    if options.request_rate != float("inf") and options.time_scale not in (0, 1):
        raise UserError("--request-rate replaces the times that --time-scale scales; give one of them.")
    return arrivals.paced(cell, options.request_rate, burstiness=options.burstiness, seed=options.seed)


def as_json(options: BenchOptions, done: LaunchRecord) -> dict[str, Any]:
    """The result of a launch of one cell under vLLM's key names; what vLLM does not have is under `fuseboard`."""
    (cell,) = done.cells
    good = [r for r in cell.requests if r.ok and r.error is None]
    return {
        "date": datetime.datetime.fromtimestamp(done.started_unix, datetime.UTC).strftime("%Y%m%d-%H%M%S"),
        "backend": "fuseboard",
        "model_id": options.model,
        "tokenizer_id": options.model,
        "num_prompts": len(cell.requests),
        "request_rate": "inf" if options.request_rate == float("inf") else options.request_rate,
        "max_concurrency": cell.concurrency,
        "duration": metrics.duration_s(cell),
        "completed": len(good),
        "failed": len(cell.requests) - len(good),
        "total_input_tokens": sum(r.n_in for r in good),
        "total_output_tokens": sum(r.n_out for r in good),
        "request_throughput": metrics.request_throughput(cell),
        "output_throughput": metrics.output_throughput(cell),
        "total_token_throughput": metrics.total_throughput(cell),
        "max_concurrent_requests": metrics.max_in_flight(cell),
        **_latencies(good),
        "fuseboard": _extra(cell, done),
    }


def _latencies(requests: list[RequestRecord]) -> dict[str, float | None]:
    found: dict[str, float | None] = {}
    for key, _, of in LATENCIES:
        spread = metrics.distribution(v for r in requests for v in of(r))
        found |= {
            f"mean_{key}_ms": spread.mean if spread else None,
            f"median_{key}_ms": spread.p50 if spread else None,
            f"std_{key}_ms": spread.std if spread else None,
            f"p95_{key}_ms": spread.p95 if spread else None,
            f"p99_{key}_ms": spread.p99 if spread else None,
        }
    return found


def _extra(cell: CellRecord, done: LaunchRecord) -> dict[str, Any]:
    return {
        "decode_throughput": metrics.decode_throughput(cell),
        "prefill_throughput": metrics.prefill_throughput(cell),
        "switches": done.plan_switches,
        "counters": cell.counters,
        "memory_planned": done.memory_planned,
        "memory_measured": done.memory_measured,
        "peak_bytes": done.peak_bytes,
        "plan_digest": done.plan_digest,
        "startup_ns": done.startup_ns,
        "errors": [r.error for r in cell.requests if r.error],
    }


def print_table(result: dict[str, Any]) -> None:
    """The numbers of a result, for a reader."""
    from rich.console import Console
    from rich.table import Table

    n = result["completed"]
    rates = Table(title=f"{result['model_id']}: {n} requests done, {result['failed']} failed", title_justify="left")
    rates.add_column("rate")
    rates.add_column("value", justify="right")
    rates.add_row("duration, s", _number(result["duration"]))
    for key in ("request_throughput", "output_throughput", "total_token_throughput"):
        rates.add_row(key.replace("_", " ") + ", 1/s", _number(result[key]))
    for key in ("decode_throughput", "prefill_throughput"):
        rates.add_row(key.replace("_", " ") + ", tokens/s", _number(result["fuseboard"][key]))
    times = Table()
    for column in ("latency, ms", "mean", "median", "P95", "P99"):
        times.add_column(column, justify="left" if column.startswith("latency") else "right")
    for key, label, _ in LATENCIES:
        times.add_row(label, *(_number(result[f"{part}_{key}_ms"]) for part in ("mean", "median", "p95", "p99")))
    console = Console()
    console.print(rates, times)
    if n < metrics.P99_NEEDS:
        console.print(f"A P99 of {n} requests is little more than their maximum.")


def _number(value: float | None) -> str:
    return "n/a" if value is None else f"{value:,.2f}"
