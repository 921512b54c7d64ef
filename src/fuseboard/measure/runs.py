"""What can be compared: runs of one arm under one load, whether from our own records or another tool's result file."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fuseboard.core.errors import UserError
from fuseboard.measure import metrics, record
from fuseboard.measure.analysis import matching
from fuseboard.measure.profiled import belongs
from fuseboard.measure.record import (
    CellProfile,
    CellRecord,
    DesignRecord,
    LaunchRecord,
    ProfileRecord,
    RequestRecord,
    StepSums,
)
from fuseboard.plan.switches import all_off


@dataclass(frozen=True, kw_only=True)
class Quantity:
    """A number of a run that two sides may be compared by; `lower` says that less is better."""

    key: str
    label: str
    unit: str
    lower: bool


def _latency(key: str, name: str) -> tuple[Quantity, ...]:
    parts = (("", "mean"), ("_p50", "P50"), ("_p95", "P95"), ("_p99", "P99"))
    return tuple(Quantity(key=key + end, label=f"{name}, {part}", unit="ms", lower=True) for end, part in parts)


QUANTITIES: tuple[Quantity, ...] = (
    Quantity(key="duration", label="time for the work", unit="s", lower=True),
    Quantity(key="throughput", label="output throughput", unit="tok/s", lower=False),
    Quantity(key="decode", label="decode throughput", unit="tok/s", lower=False),
    Quantity(key="prefill", label="prefill throughput", unit="tok/s", lower=False),
    *_latency("ttft", "TTFT"),
    *_latency("tpot", "TPOT"),
    *_latency("itl", "ITL"),
    *_latency("e2e", "E2E"),
    Quantity(key="total_throughput", label="throughput of all tokens", unit="tok/s", lower=False),
    Quantity(key="request_throughput", label="request throughput", unit="1/s", lower=False),
)
"""In the order of a reader's interest; the first that both sides have is the headline."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """What a run had to do and did: requests that succeeded and failed, tokens in and out. `exact` counts are our own;
    others are rounded means or counted with another tokenizer."""

    requests: float
    tokens_in: float
    tokens_out: float
    failed: int = 0
    exact: bool = False


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run of one load. `values` by the keys of `QUANTITIES`; `phases` are milliseconds by the part of a step."""

    cell: str
    values: Mapping[str, float]
    work: Work
    block: int = 0
    order: int = 0
    phases: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Arm:
    """Runs under one configuration. `facts` say what it was: model, machine, versions, switches, ... `design` names the
    experiment in which the runs were interleaved with those of other arms; `launches` says that each was a process.
    `operators` are milliseconds by operator in each cell, from a pass of its own that timed them."""

    name: str
    facts: Mapping[str, str]
    runs: tuple[Run, ...]
    design: str = ""
    launches: bool = False
    failure: str = ""
    operators: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def cells(self) -> list[str]:
        return list(dict.fromkeys(run.cell for run in self.runs))

    def of_cell(self, cell: str) -> list[Run]:
        return [run for run in self.runs if run.cell == cell]


@dataclass(frozen=True, kw_only=True)
class RunSet:
    """Everything found at a place."""

    label: str
    tool: str
    arms: tuple[Arm, ...]

    def arm(self, name: str) -> Arm:
        return next(arm for arm in self.arms if arm.name == name)


def from_records(path: Path) -> RunSet:
    """The arms of the last experiment in a record file; UserError when it holds none."""
    lines = record.read(path)
    designs = [line for line in lines if isinstance(line, DesignRecord)]
    if not designs:
        raise UserError(f"{path} holds no experiment of fuseboard; give the folder or the records.jsonl of one.")
    design = designs[-1]
    launches = matching(lines, design)
    profiles = [line for line in lines if isinstance(line, ProfileRecord) and belongs(line, design)]
    arms = [
        _arm(design, name, found, profiles)
        for name in dict.fromkeys(arm.name for arm in design.arms)
        if (found := [r for r in launches if r.arm == name])
    ]
    if not arms:
        raise UserError(f"{path} holds a design but no launch of it; run it first.")
    return RunSet(label=str(path), tool="fuseboard", arms=tuple(arms))


def _arm(design: DesignRecord, name: str, launches: Sequence[LaunchRecord], profiles: Sequence[ProfileRecord]) -> Arm:
    good = [r for r in launches if r.error is None]
    failed = next((r.error.message for r in launches if r.error is not None), "")
    runs = tuple(_run(r, cell) for r in good for cell in r.cells)
    facts = _facts(design, (good or launches)[-1])
    key = hashlib.sha256(json.dumps([design.created_unix, design.workload_digest]).encode()).hexdigest()
    profile = next((p for p in profiles if p.plan_digest == launches[-1].plan_digest), None)
    operators = {cell.name: _operators(cell) for cell in profile.cells} if profile else {}
    return Arm(name=name, facts=facts, runs=runs, design=key, launches=True, failure=failed, operators=operators)


def _operators(cell: CellProfile) -> dict[str, float]:
    """Milliseconds of the whole cell by operator and kind of step."""
    kinds = (("prefill steps", cell.prefill), ("decode steps", cell.decode))
    return {f"{kind}: {one.name}": one.ns / 1e6 for kind, steps in kinds for one in steps.operators}


def _facts(design: DesignRecord, launch: LaunchRecord) -> dict[str, str]:
    machine = launch.machine
    switches = all_off() | dict(launch.switches) | dict(launch.plan_switches)
    return {
        "tool": "fuseboard",
        "model": launch.model,
        "model digest": launch.model_digest[:16],
        "backend": launch.backend,
        "workload": design.workload,
        "workload digest": launch.workload_digest[:16],
        "code digest": launch.code_digest[:16],
        "seed": str(launch.seed),
        "processor": machine.processor,
        "processor features": machine.features,
        "cores": str(machine.cores),
        "memory": f"{machine.memory_bytes / 2**30:.1f} GiB",
        "kernel": machine.kernel,
        **{f"version of {name}": version for name, version in launch.versions.items()},
        **{f"switch {name}": value for name, value in switches.items()},
    }


def _run(launch: LaunchRecord, cell: CellRecord) -> Run:
    good = [r for r in cell.requests if r.ok]
    return Run(
        cell=cell.name,
        values=_values(cell),
        work=Work(
            requests=len(good),
            tokens_in=sum(r.n_in for r in good),
            tokens_out=sum(r.n_out for r in good),
            failed=len(cell.requests) - len(good),
            exact=True,
        ),
        block=launch.block,
        order=launch.position,
        phases=_phases(cell),
    )


_RATES: tuple[tuple[str, Callable[[CellRecord], float | None]], ...] = (
    ("duration", metrics.duration_s),
    ("throughput", metrics.output_throughput),
    ("decode", metrics.decode_throughput),
    ("prefill", metrics.prefill_throughput),
    ("total_throughput", metrics.total_throughput),
    ("request_throughput", metrics.request_throughput),
)
_LATENCIES: tuple[tuple[str, Callable[[RequestRecord], tuple[float | None, ...]]], ...] = (
    ("ttft", lambda r: (metrics.ttft_ms(r),)),
    ("tpot", lambda r: (metrics.tpot_ms(r),)),
    ("itl", metrics.itl_ms),
    ("e2e", lambda r: (metrics.e2e_ms(r),)),
)


def _values(cell: CellRecord) -> dict[str, float]:
    found = {key: value for key, of in _RATES if (value := of(cell)) is not None}
    for key, of_request in _LATENCIES:
        spread = metrics.distribution(v for r in cell.requests for v in of_request(r))
        if spread is not None:
            found |= {key: spread.mean, f"{key}_p50": spread.p50, f"{key}_p95": spread.p95, f"{key}_p99": spread.p99}
    return found


def _phases(cell: CellRecord) -> dict[str, float]:
    """Milliseconds of the whole cell by phase: equal work makes them comparable."""
    found: dict[str, float] = {}
    for kind, sums in (("prefill steps", cell.prefill), ("decode steps", cell.decode)):
        if sums.steps:
            found |= {f"{kind}: {name}": ns / 1e6 for name, ns in _parts(sums).items()}
    return found


def _parts(sums: StepSums) -> dict[str, int]:
    return {
        "schedule": sums.schedule_ns,
        "prepare": sums.prepare_ns,
        "execute": sums.execute_ns,
        "sample": sums.sample_ns,
        "detokenise": sums.detokenise_ns,
    }
