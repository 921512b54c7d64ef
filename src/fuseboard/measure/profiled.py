"""Which profiling passes count: those of the design's own conditions that nothing disturbed."""

import contextlib
import statistics
from collections.abc import Iterable, Sequence

from fuseboard.measure.record import DesignRecord, LaunchRecord, ProfileRecord

DISTURBED = 2.0
"""A pass that takes so many times as long as the launches of its plan says nothing of where their time goes."""


def left_out(passes: Sequence[ProfileRecord], kept: Sequence[ProfileRecord]) -> Iterable[str]:
    """What to say of plans that were profiled in vain."""
    have = {p.plan_digest for p in kept}
    for name in dict.fromkeys(p.arm for p in passes if p.plan_digest not in have):
        yield f"The profile of {name} is left out: something else ran meanwhile; the same command profiles it again."


def disturbed(profile: ProfileRecord, launches: Sequence[LaunchRecord]) -> bool:
    """Something else ran during the pass: it took far longer than the launches of its plan did."""

    def usual_ns(cell: str) -> float:
        return statistics.median(
            c.end_ns - c.start_ns
            for r in launches
            if r.plan_digest == profile.plan_digest and r.switches == profile.switches
            for c in r.cells
            if c.name == cell
        )

    with contextlib.suppress(statistics.StatisticsError):
        return any(c.wall_ns - c.instrument_ns > DISTURBED * usual_ns(c.name) for c in profile.cells)
    return False


def belongs(line: ProfileRecord, design: DesignRecord) -> bool:
    """The profiling pass succeeded under the design's model, workload, code and machine."""
    return (
        line.error is None
        and line.model == design.model
        and line.workload_digest == design.workload_digest
        and line.code_digest == design.code_digest
        and line.machine.kind == design.machine.kind
    )
