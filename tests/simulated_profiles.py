"""Profiles of simulated experiments: what each switch does to the operators, and what the cost model says of it."""

from collections.abc import Iterable

from fuseboard.measure.record import (
    CellProfile,
    DesignRecord,
    Line,
    Machine,
    OperatorRecord,
    ProfileRecord,
    StepsProfile,
    StepSums,
)

MACHINE = Machine(
    processor="Simulated 2-core", features="f", cores=2, memory_bytes=8 << 30, kernel="6.1", boot="boot",
    read_bytes_per_s=20e9, flops_per_s=150e9, integer_ops_per_s=500e9,
)  # fmt: skip

WEIGHTS_MB = {"q, k, v": 40, "attention output": 25, "gate, up": 130, "down": 65, "head": 110}
SMALL = {"norms": 3.0, "rope": 1.0, "elementwise": 6.0, "top-k": 1.0}
"""Milliseconds of a step that fusion takes away."""
STEPS = 10


def profiles(lines: Iterable[Line], cells: tuple[str, ...] = ("4 at a time",)) -> list[Line]:
    """One profile for every arm of the last design."""
    design = [line for line in lines if isinstance(line, DesignRecord)][-1]
    return [
        ProfileRecord(
            arm=arm.name, switches=arm.switches, model=design.model, workload_digest=design.workload_digest,
            code_digest=design.code_digest, machine=MACHINE, cells=tuple(cell(name, arm.switches) for name in cells),
        )
        for arm in design.arms
    ]  # fmt: skip


def cell(name: str, switches: dict[str, str]) -> CellProfile:
    """Decode steps of 4 tokens and a prefill step of 280, projections at 60 % of their limit."""
    decode_steps, prefill_steps = steps(switches, STEPS - 1, 4), steps(switches, 1, 280)
    busy = decode_steps.sums.total_ns + prefill_steps.sums.total_ns
    return CellProfile(
        name=name,
        wall_ns=round(busy * 1.02),
        idle_ns=round(busy * 0.01),
        instrument_ns=round(busy * 0.005),
        decode=decode_steps,
        prefill=prefill_steps,
    )


def steps(switches: dict[str, str], count: int, tokens: int) -> StepsProfile:
    shrink = 4 if "weights" in switches else 1
    found = [operator(name, mb * 1e6 / shrink, count, tokens, shrink > 1) for name, mb in WEIGHTS_MB.items()]
    attention = OperatorRecord(
        name="attention", calls=30 * count, ns=round(4e6 * count), limit_ns=round(2e6 * count),
        kv_bytes=40_000_000 * count, operations=90_000_000 * count,
    )  # fmt: skip
    fused = "fuse.swiglu" in switches
    small = [
        OperatorRecord(
            name=name, calls=60 * count, ns=round(ms * 1e6 * count), limit_ns=round(ms * 2e5 * count),
            activation_bytes=round(ms * 4e6 * count), operations=round(ms * 1e6 * count),
        )
        for name, ms in SMALL.items()
    ]  # fmt: skip
    operators = (*found, attention, *([] if fused else small))
    dispatch = (1 if "graph" in switches else 8) * 1e6 * count
    sums = StepSums(
        steps=count, tokens=tokens * count, seqs=4 * count, schedule_ns=round(1e5 * count),
        prepare_ns=round(2e5 * count), execute_ns=sum(o.ns for o in operators) + round(dispatch),
        sample_ns=round(2e5 * count), detokenise_ns=round(5e4 * count),
    )  # fmt: skip
    return StepsProfile(sums=sums, operators=operators)


def operator(name: str, size: float, count: int, tokens: int, integer: bool) -> OperatorRecord:
    operations = size * (8 if integer else 2) / 4 * tokens
    limit_s = max(size / 20e9, operations / (500e9 if integer else 150e9))
    return OperatorRecord(
        name=name,
        calls=30 * count,
        ns=round(limit_s / 0.6 * 1e9 * count),
        limit_ns=round(limit_s * 1e9 * count),
        streamed_limit_ns=round(limit_s * 1e9 * count),
        weight_bytes=round(size * count),
        activation_bytes=round(1e5 * count),
        operations=round(operations * count),
        integer_operations=round(operations * count) if integer else 0,
    )
