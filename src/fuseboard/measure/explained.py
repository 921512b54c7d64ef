"""What a comparison gained, as the difference of two operator tables beside what the cost model predicted."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fuseboard.measure.analysis import Analysis, Finding
from fuseboard.measure.operators import CLASSES, add
from fuseboard.measure.record import CellProfile, OperatorRecord, StepSums

DISPATCH, HOST, IDLE = "dispatch", "host", "between steps"
CHANGED = math.log(1.02)


@dataclass(frozen=True, kw_only=True)
class Change:
    """Time of one operator class, or of another part of the wall time, for the same work before and after.

    Limits are what the ceilings allow at least; zero for parts that are not operators.
    """

    name: str
    before_ns: int = 0
    after_ns: int = 0
    before_limit_ns: int = 0
    after_limit_ns: int = 0

    @property
    def change_ns(self) -> int:
        return self.after_ns - self.before_ns

    @property
    def predicted_ns(self) -> int:
        return self.after_limit_ns - self.before_limit_ns


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """A comparison in one cell, part by part. Times and ratios (before over after) are of the operators alone."""

    cell: str
    changes: tuple[Change, ...]
    before_ns: int
    after_ns: int
    predicted: float | None

    @property
    def measured(self) -> float:
        return self.before_ns / self.after_ns

    @property
    def error(self) -> float | None:
        """Logarithm of the predicted over the measured ratio; positive when the cost model promised too much."""
        return None if self.predicted is None else math.log(self.predicted / self.measured)

    @property
    def moved(self) -> Change:
        """The part whose time changed most."""
        return max(self.changes, key=lambda change: abs(change.change_ns))


def by_class(cell: CellProfile) -> dict[str, OperatorRecord]:
    """The operators of all steps, decode and prefill together."""
    found: dict[str, OperatorRecord] = {}
    for operator in (*cell.decode.operators, *cell.prefill.operators):
        found[operator.name] = add(found[operator.name], operator) if operator.name in found else operator
    return found


def parts(cell: CellProfile) -> dict[str, int]:
    """Nanoseconds of every operator class and of the rest of the wall time, without what the profiling itself took."""
    times = {name: operator.ns for name, operator in by_class(cell).items()}
    times[DISPATCH] = cell.decode.dispatch_ns + cell.prefill.dispatch_ns
    times[HOST] = sum(_host(sums) for sums in (cell.decode.sums, cell.prefill.sums))
    times[IDLE] = cell.idle_ns + cell.residual_ns
    return times


def _host(sums: StepSums) -> int:
    return sums.total_ns - sums.execute_ns


def explain(before: CellProfile, after: CellProfile) -> Explanation | None:
    """The difference of two profiles of the same work; None where one of them timed no operators."""
    old, new = by_class(before), by_class(after)
    old_parts, new_parts = parts(before), parts(after)
    names = [name for name in (*CLASSES, DISPATCH, HOST, IDLE) if name in old_parts or name in new_parts]
    none = OperatorRecord(name="")
    changes = tuple(
        Change(
            name=name,
            before_ns=old_parts.get(name, 0),
            after_ns=new_parts.get(name, 0),
            before_limit_ns=old.get(name, none).limit_ns,
            after_limit_ns=new.get(name, none).limit_ns,
        )
        for name in names
    )
    times = [sum(o.ns for o in table.values()) for table in (old, new)]
    limits = [sum(o.limit_ns for o in table.values()) for table in (old, new)]
    if not all(times):
        return None
    return Explanation(
        cell=before.name,
        changes=changes,
        before_ns=times[0],
        after_ns=times[1],
        predicted=limits[0] / limits[1] if all(limits) else None,
    )


def explained(analysis: Analysis, finding: Finding, cell: str) -> Explanation | None:
    """The explanation of a finding of two arms, where both of them were profiled."""
    compared = finding.comparison
    if compared.terms or compared.unavailable:
        return None
    before, after = (analysis.profile_of(arm, cell) for arm in (compared.reference, compared.treatment))
    return explain(before, after) if before and after else None


def predictor_errors(explanations: Sequence[Explanation]) -> list[float]:
    """Sizes of the predictor's error, as log ratios, where operators changed or were said to: elsewhere it is easy."""
    changed = (e for e in explanations if max(abs(math.log(e.measured)), abs(math.log(e.predicted or 1.0))) > CHANGED)
    return [abs(e.error) for e in changed if e.error is not None]
