"""From records to findings: what each comparison gained, whether its switches engaged, and what it may be called."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fuseboard.core.errors import UserError
from fuseboard.measure import stats
from fuseboard.measure.metrics import METRICS, PRIMARY, Metric
from fuseboard.measure.record import (
    CellRecord,
    ComparisonRecord,
    DesignRecord,
    LaunchRecord,
    Line,
    QualityRecord,
)
from fuseboard.plan.switches import BY_NAME

NOT_ENGAGED, UNEQUAL, FAILED = "not engaged", "unequal work", "no result"
DRIFT_P = 0.01


@dataclass(frozen=True, kw_only=True)
class Gain:
    """One comparison on one metric of one cell. `adjusted_p` is Holm's over the table's switches."""

    cell: str
    metric: Metric
    estimate: stats.Estimate
    adjusted_p: float
    verdict: str
    detectable: float


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What is known of a comparison. `problem` says why there are no gains, or is empty.

    `engaged` holds, for every switch, the largest move of its counters against the reference.
    """

    comparison: ComparisonRecord
    gains: tuple[Gain, ...]
    engaged: dict[str, int]
    problem: str = ""
    reason: str = ""

    def gain(self, cell: str, metric: str = PRIMARY) -> Gain | None:
        return next((g for g in self.gains if g.cell == cell and g.metric.key == metric), None)

    def verdict(self, cell: str, metric: str = PRIMARY) -> str:
        found = self.gain(cell, metric)
        return self.problem or (found.verdict if found else FAILED)


@dataclass(frozen=True, kw_only=True)
class Analysis:
    """Everything a report says, computed from records alone."""

    design: DesignRecord
    launches: tuple[LaunchRecord, ...]
    quality: tuple[QualityRecord, ...]
    cells: tuple[str, ...]
    findings: tuple[Finding, ...]
    warnings: tuple[str, ...]

    def of_kind(self, kind: str) -> list[Finding]:
        return [f for f in self.findings if f.comparison.kind == kind]

    def launches_of(self, arm: str) -> list[LaunchRecord]:
        return [r for r in self.launches if r.arm == arm and r.error is None]

    def cells_of(self, arm: str, cell: str) -> list[CellRecord]:
        """The runs of a cell under an arm, one a launch."""
        return [c for r in self.launches_of(arm) for c in r.cells if c.name == cell]

    def median(self, arm: str, cell: str, metric: Metric) -> float | None:
        """Median over launches of a metric."""
        values = sorted(v for c in self.cells_of(arm, cell) if (v := metric.of(c)) is not None)
        middle = len(values) // 2
        return None if not values else (values[middle] + values[~middle]) / 2

    @property
    def noise(self) -> Finding | None:
        """The A/A comparison: two arms that are the same."""
        return next(iter(self.of_kind("aa")), None)

    @property
    def complete(self) -> bool:
        arms = {arm.name for arm in self.design.arms}
        done = {(r.arm, r.block) for r in self.launches}
        return all((arm, block) in done for arm in arms for block in range(self.design.blocks))


def analyse(lines: Sequence[Line]) -> Analysis:
    """The analysis of the last design in a record file; UserError when there is none.

    Only launches under the design's own workload, code, machine and settings count.
    """
    designs = [line for line in lines if isinstance(line, DesignRecord)]
    if not designs:
        raise UserError("These records hold no experiment; run fuseboard ablate first.")
    design = designs[-1]
    launches = matching(lines, design)
    cells = tuple(dict.fromkeys(c.name for r in launches for c in r.cells))
    models = _fits(launches, cells)
    findings = _findings(design, launches, cells, models)
    settings = {arm.name: arm.switches for arm in design.arms}
    latest = {
        line.arm: line
        for line in lines
        if isinstance(line, QualityRecord)
        and line.code_digest == design.code_digest
        and line.switches == settings.get(line.arm)
    }
    return Analysis(
        design=design,
        launches=tuple(launches),
        quality=tuple(latest.values()),
        cells=cells,
        findings=tuple(findings),
        warnings=tuple(_warnings(design, launches, findings, models)),
    )


def matching(lines: Iterable[Line], design: DesignRecord) -> list[LaunchRecord]:
    """The launches that belong to a design; of several for one place in a block the last one counts."""
    arms = {arm.name: arm for arm in design.arms}
    found: dict[tuple[int, int, str], LaunchRecord] = {}
    for line in lines:
        if (
            isinstance(line, LaunchRecord)
            and line.arm in arms
            and line.switches == arms[line.arm].switches
            and line.plan_digest in ("", arms[line.arm].plan_digest)
            and line.model == design.model
            and line.workload_digest == design.workload_digest
            and line.code_digest == design.code_digest
            and line.machine.kind == design.machine.kind
            and line.block < design.blocks
        ):
            found[line.block, line.position, line.arm] = line
    return sorted(found.values(), key=lambda r: (r.block, r.position))


Models = dict[tuple[str, str], stats.Fit]


def _fits(launches: Sequence[LaunchRecord], cells: Sequence[str]) -> Models:
    models = {}
    for cell in cells:
        for metric in METRICS:
            if model := stats.fit(observations(launches, cell, metric)):
                models[cell, metric.key] = model
    return models


def observations(launches: Sequence[LaunchRecord], cell: str, metric: Metric) -> list[stats.Observation]:
    """The metric's logarithm in every good launch that has it."""
    return [
        stats.Observation(arm=r.arm, block=r.block, order=r.position, log_value=math.log(value))
        for r in launches
        if r.error is None
        for c in r.cells
        if c.name == cell and (value := metric.of(c)) is not None and value > 0
    ]


def _findings(
    design: DesignRecord, launches: Sequence[LaunchRecord], cells: Sequence[str], models: Models
) -> list[Finding]:
    by_arm: dict[str, list[LaunchRecord]] = {}
    for launch in launches:
        by_arm.setdefault(launch.arm, []).append(launch)
    family = [c for c in design.comparisons if c.kind not in ("aa", "total")]
    gains = {c.name + c.kind: list[Gain]() for c in design.comparisons}
    for (cell, key), model in models.items():
        metric = next(m for m in METRICS if m.key == key)
        for group in (family, *([c] for c in design.comparisons if c not in family)):
            for comparison, gain in _gains(group, model, cell, metric, design.equivalence_margin):
                gains[comparison.name + comparison.kind].append(gain)
    return [_finding(c, gains[c.name + c.kind], by_arm) for c in design.comparisons]


def _gains(
    group: Sequence[ComparisonRecord], model: stats.Fit, cell: str, metric: Metric, margin: float
) -> Iterable[tuple[ComparisonRecord, Gain]]:
    found = [(c, stats.estimate(model, c.treatment, c.reference, lower_is_better=metric.lower)) for c in group]
    kept = [(c, e) for c, e in found if e is not None]
    adjusted = stats.holm([e.p for _, e in kept])
    scale = stats.smallest_detectable(1.0, model.dof, len(kept)) if kept and metric.key == PRIMARY else math.nan
    for (comparison, found_estimate), p in zip(kept, adjusted, strict=True):
        yield (
            comparison,
            Gain(
                cell=cell,
                metric=metric,
                estimate=found_estimate,
                adjusted_p=p,
                verdict=stats.verdict(found_estimate, p, margin),
                detectable=scale * found_estimate.error,
            ),
        )


def _finding(comparison: ComparisonRecord, gains: Sequence[Gain], by_arm: dict[str, list[LaunchRecord]]) -> Finding:
    treated, references = by_arm.get(comparison.treatment, []), by_arm.get(comparison.reference, [])
    engaged = {name: _moved(name, treated, references) for name in comparison.switches}
    problem, reason = _problem(comparison, treated, references, engaged)
    keep = problem in ("", NOT_ENGAGED)
    return Finding(
        comparison=comparison, gains=tuple(gains) if keep else (), engaged=engaged, problem=problem, reason=reason
    )


def _problem(
    comparison: ComparisonRecord,
    treated: Sequence[LaunchRecord],
    references: Sequence[LaunchRecord],
    engaged: dict[str, int],
) -> tuple[str, str]:
    for launch in (*treated, *references):
        if launch.error is not None:
            kind = launch.error.kind.replace("_", " ")
            return kind, f"{launch.arm}: {launch.error.message}"
    if not treated or not references:
        return FAILED, "this arm was not reached"
    if difference := unequal(references[0], (*treated, *references)):
        return UNEQUAL, difference
    idle = [name for name, moved in engaged.items() if moved <= 0]
    if comparison.kind == "total" or not idle:
        return "", ""
    counters = ", ".join(c for name in idle for c in BY_NAME[name].counters)
    reason = f"{', '.join(idle)} did not engage: no move of {counters}"
    return (NOT_ENGAGED, reason) if len(idle) == len(engaged) else ("", reason)


def unequal(first: LaunchRecord, others: Iterable[LaunchRecord]) -> str:
    """Why the launches did not do the same work, or an empty string."""
    wanted = _work(first)
    for launch in others:
        for cell in launch.cells:
            if failed := [r for r in cell.requests if r.error]:
                return f"{launch.arm}: request {failed[0].request_id} failed ({failed[0].error})"
        if _work(launch) != wanted:
            return f"{launch.arm} and {first.arm} did not take in and give out the same numbers of tokens"
    return ""


def _work(launch: LaunchRecord) -> list[tuple[str, str, int, int]]:
    return sorted((c.name, r.request_id, r.n_in, r.n_out) for c in launch.cells for r in c.requests)


def _moved(name: str, treated: Sequence[LaunchRecord], references: Sequence[LaunchRecord]) -> int:
    counters = BY_NAME[name].counters if name in BY_NAME else ()
    return max((_most(treated, c) - _most(references, c) for c in counters), default=0)


def _most(launches: Sequence[LaunchRecord], counter: str) -> int:
    at_start = [r.counters_at_start.get(counter, 0) for r in launches]
    in_cells = [c.counters.get(counter, 0) for r in launches for c in r.cells]
    return max((*at_start, *in_cells), default=0)


def _warnings(
    design: DesignRecord, launches: Sequence[LaunchRecord], findings: Sequence[Finding], models: Models
) -> Iterable[str]:
    yield from design.notes
    for (cell, key), model in models.items():
        if key == PRIMARY and stats.drift_p(model) < DRIFT_P:
            yield f"Late launches of a block differ from early ones in {cell!r}: the machine drifted during the run."
    for finding in findings:
        gain = finding.gains and finding.comparison.kind == "aa" and finding.gain(finding.gains[0].cell)
        if gain and gain.estimate.p < stats.ALPHA:
            yield f"Two identical arms were told apart in {gain.cell!r}: distrust gains near the A/A difference."
        if finding.reason and finding.problem in ("", NOT_ENGAGED):
            yield f"{finding.reason} ({finding.comparison.kind}, {finding.comparison.name})."
    errors = Counter((r.arm, r.error.message) for r in launches if r.error)
    for (name, message), n in errors.items():
        yield f"{name}: {n} of the launches gave no result ({message})."
