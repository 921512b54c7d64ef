"""From records to findings: what each comparison gained, whether its switches engaged, and what it may be called."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fuseboard.core.errors import UserError
from fuseboard.measure import gate, stats
from fuseboard.measure.metrics import METRICS, PRIMARY, Metric
from fuseboard.measure.profiled import belongs, disturbed, left_out
from fuseboard.measure.record import (
    ArmRecord,
    CellProfile,
    CellRecord,
    ComparisonRecord,
    DesignRecord,
    LaunchRecord,
    Line,
    ProfileRecord,
    QualityRecord,
)
from fuseboard.plan.switches import BY_NAME

NOT_ENGAGED, UNEQUAL, FAILED, UNAVAILABLE = "not engaged", "unequal work", "no result", "n/a"
WRONG = "wrong answers"
DRIFT_P = 0.01


@dataclass(frozen=True, kw_only=True)
class Gain:
    """One comparison on one metric of one cell. `adjusted_p` is Holm's over all switches of the experiment; `spread` is
    the smallest and the largest gain of the terms that the comparison is the mean of."""

    cell: str
    metric: Metric
    estimate: stats.Estimate
    adjusted_p: float
    verdict: str
    detectable: float
    spread: tuple[float, float] | None = None


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
    profiles: tuple[ProfileRecord, ...] = ()

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

    def profile_of(self, arm: str, cell: str) -> CellProfile | None:
        """Where the time of a cell went under the plan of an arm, if that was profiled."""
        settings = {a.name: (a.plan_digest, a.switches) for a in self.design.arms}
        digest, switches = settings.get(arm, ("", {}))
        found = (p for p in self.profiles if (p.plan_digest == digest if digest else p.switches == switches))
        return next((c for p in found for c in p.cells if c.name == cell), None)

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
    settings = {arm.name: arm.switches for arm in design.arms}
    latest = {
        line.arm: line
        for line in lines
        if isinstance(line, QualityRecord)
        and line.code_digest == design.code_digest
        and line.switches == settings.get(line.arm)
    }
    wrong = {
        arm.name: gate.fault(q, arm.switches, design.max_kl) for arm in design.arms if (q := _answers(arm, latest))
    }
    findings = _findings(design, launches, models, {name: why for name, why in wrong.items() if why})
    passes = [p for p in lines if isinstance(p, ProfileRecord) and belongs(p, design)]
    profiles = [p for p in passes if not disturbed(p, launches)]
    return Analysis(
        design=design,
        launches=tuple(launches),
        quality=tuple(latest.values()),
        cells=cells,
        findings=tuple(findings),
        warnings=(*_warnings(design, launches, findings, models), *left_out(passes, profiles)),
        profiles=tuple(profiles),
    )


def _answers(arm: ArmRecord, latest: Mapping[str, QualityRecord]) -> QualityRecord | None:
    """The quality record of the arm, or of one that differs from it only in rows that keep every answer."""
    key = gate.answer_key(arm.switches)
    return next((q for q in latest.values() if gate.answer_key(q.switches) == key), None)


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
    design: DesignRecord, launches: Sequence[LaunchRecord], models: Models, wrong: Mapping[str, str]
) -> list[Finding]:
    by_arm: dict[str, list[LaunchRecord]] = {}
    for launch in launches:
        by_arm.setdefault(launch.arm, []).append(launch)
    available = [c for c in design.comparisons if not c.unavailable]
    family = [c for c in available if c.kind not in ("aa", "total")]
    gains = {(c.name, c.kind): list[Gain]() for c in design.comparisons}
    for (cell, key), model in models.items():
        metric = next(m for m in METRICS if m.key == key)
        for group in (family, *([c] for c in available if c not in family)):
            for comparison, gain in _gains(group, model, cell, metric, design.equivalence_margin):
                gains[comparison.name, comparison.kind].append(gain)
    return [_finding(c, gains[c.name, c.kind], by_arm, wrong) for c in design.comparisons]


def _gains(
    group: Sequence[ComparisonRecord], model: stats.Fit, cell: str, metric: Metric, margin: float
) -> Iterable[tuple[ComparisonRecord, Gain]]:
    found = [(c, stats.estimate(model, c.weights, lower_is_better=metric.lower)) for c in group]
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
                spread=_spread(comparison, model, lower=metric.lower),
            ),
        )


def _spread(comparison: ComparisonRecord, model: stats.Fit, *, lower: bool) -> tuple[float, float] | None:
    if comparison.kind != "shapley":
        return None
    sign = -1.0 if lower else 1.0
    found = [sign * model.contrast({t.treatment: 1.0, t.reference: -1.0})[0] for t in comparison.terms]
    return min(found), max(found)


def _finding(
    comparison: ComparisonRecord,
    gains: Sequence[Gain],
    by_arm: Mapping[str, Sequence[LaunchRecord]],
    wrong: Mapping[str, str],
) -> Finding:
    if comparison.unavailable:
        return Finding(comparison=comparison, gains=(), engaged={}, problem=UNAVAILABLE, reason=comparison.unavailable)
    treated, references = _sides(comparison, by_arm)
    engaged = {name: _moved(name, treated, references) for name in comparison.switches}
    if comparison.terms:
        engaged = {name: _moved(name, *_with_and_without(name, (*treated, *references))) for name in engaged}
    reached = all(by_arm.get(name) for name in comparison.weights)
    problem, reason = _problem(comparison, treated, references, engaged, reached=reached)
    if not problem:
        problem, reason = _wrong_answers(comparison, treated, references, wrong) or ("", reason)
    keep = problem in ("", NOT_ENGAGED, WRONG)
    return Finding(
        comparison=comparison, gains=tuple(gains) if keep else (), engaged=engaged, problem=problem, reason=reason
    )


Launches = Sequence[LaunchRecord]


def _sides(comparison: ComparisonRecord, by_arm: Mapping[str, Launches]) -> tuple[Launches, Launches]:
    """The launches of the arms that a comparison counts for its switches, and of those that it counts against them."""
    weights = comparison.weights
    treated = [r for name, weight in weights.items() if weight > 0 for r in by_arm.get(name, ())]
    return treated, [r for name, weight in weights.items() if weight < 0 for r in by_arm.get(name, ())]


def _with_and_without(name: str, launches: Launches) -> tuple[Launches, Launches]:
    return [r for r in launches if name in r.switches], [r for r in launches if name not in r.switches]


def _wrong_answers(
    comparison: ComparisonRecord, treated: Launches, references: Launches, wrong: Mapping[str, str]
) -> tuple[str, str] | None:
    """A treatment that fails the quality gate and its reference does not, or other tokens from rows that are exact."""
    for arm in dict.fromkeys(r.arm for r in treated):
        if arm in wrong and not any(r.arm in wrong for r in references):
            return WRONG, f"{arm}: {wrong[arm]}"
    rows = [BY_NAME[name] for name in comparison.switches if name in BY_NAME]
    preempted = any(c.counters.get("preemptions", 0) for r in (*treated, *references) for c in r.cells)
    if comparison.terms or preempted or not rows or any(row.kind != "exact" for row in rows):
        return None
    if _tokens(treated[0]) != _tokens(references[0]):
        return WRONG, f"{treated[0].arm} gave other tokens than {references[0].arm}, which this must not change"
    return None


def _tokens(launch: LaunchRecord) -> list[tuple[str, str, tuple[int, ...]]]:
    return sorted((c.name, r.request_id, r.token_ids) for c in launch.cells for r in c.requests)


def _problem(
    comparison: ComparisonRecord, treated: Launches, references: Launches, engaged: dict[str, int], *, reached: bool
) -> tuple[str, str]:
    for launch in (*treated, *references):
        if launch.error is not None:
            kind = launch.error.kind.replace("_", " ")
            return kind, f"{launch.arm}: {launch.error.message}"
    if not reached:
        return FAILED, "this arm was not reached"
    if difference := unequal(references[0], (*treated, *references)):
        return UNEQUAL, difference
    idle = [name for name, moved in engaged.items() if moved <= 0]
    if comparison.kind in ("total", "choice") or not idle:
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
        if finding.reason and finding.problem in ("", NOT_ENGAGED, WRONG):
            yield f"{finding.reason} ({finding.comparison.kind}, {finding.comparison.name})."
    unavailable = {f.comparison.name: f.reason for f in findings if f.problem == UNAVAILABLE}
    yield from (f"{name} is n/a: {reason}" for name, reason in unavailable.items())
    errors = Counter((r.arm, r.error.message) for r in launches if r.error)
    for (name, message), n in errors.items():
        yield f"{name}: {n} of the launches gave no result ({message})."
