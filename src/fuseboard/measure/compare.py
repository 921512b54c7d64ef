"""`compare`: two sets of runs, what differs between them, whether they may be compared, and what moved."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fuseboard.core.errors import UserError
from fuseboard.measure import imports, runs, stats
from fuseboard.measure.runs import QUANTITIES, Arm, Quantity, Run, RunSet, Work

MARGIN = 0.02
OTHERS_COUNT = 0.01
"""Counts that are rounded means, or come from another tokenizer, may differ by this share and still be equal work."""
NEED = 2
"""Runs a side for an interval."""
SEPARATOR = "#"


@dataclass(frozen=True, kw_only=True)
class Change:
    """A fact that is not the same on both sides."""

    name: str
    a: str
    b: str


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """A quantity on both sides: means of the runs' logarithms, and B's gain over A (positive is better).

    `estimate` is None where a side has too few runs; `verdict` is empty then, and when the two may not be compared.
    """

    quantity: Quantity
    a: float
    b: float
    estimate: stats.Estimate | None
    verdict: str = ""

    @property
    def gain(self) -> float:
        return math.log(self.a / self.b if self.quantity.lower else self.b / self.a)


@dataclass(frozen=True, kw_only=True)
class Phase:
    """Milliseconds that a part of the steps took, mean over the runs."""

    name: str
    a: float
    b: float

    @property
    def moved(self) -> float:
        return self.b - self.a


@dataclass(frozen=True, kw_only=True)
class CellComparison:
    """Two arms in one cell. `refusal` says why there is no verdict; it is empty when there may be one."""

    cell: str
    runs: tuple[int, int]
    refusal: str
    ratios: tuple[Ratio, ...]
    phases: tuple[Phase, ...]
    operators: tuple[Phase, ...]

    @property
    def headline(self) -> Ratio | None:
        return next(iter(self.ratios), None)


@dataclass(frozen=True, kw_only=True)
class ArmComparison:
    """Two arms. `changes` are the facts that differ."""

    a: str
    b: str
    changes: tuple[Change, ...]
    cells: tuple[CellComparison, ...]
    refusal: str = ""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """All of A against B; `unmatched` arms and `notes` are sentences."""

    a: str
    b: str
    arms: tuple[ArmComparison, ...]
    notes: tuple[str, ...]


def load(place: str) -> RunSet:
    """The runs at PATH, or at PATH#ARM of one arm: a folder with records.jsonl, a record file, or another tool's."""
    text, _, name = place.partition(SEPARATOR) if not Path(place).exists() else (place, "", "")
    path = Path(text)
    if not path.exists():
        raise UserError(f"There is no {text}; give the folder or the file of a measurement.")
    found = _load(path)
    if not name:
        return found
    if name not in (arm.name for arm in found.arms):
        raise UserError(f"{text} has no arm {name!r}; its arms are {_names(found.arms)}.")
    return RunSet(label=place, tool=found.tool, arms=(found.arm(name),))


def _load(path: Path) -> RunSet:
    records = path / "records.jsonl" if path.is_dir() else path
    if records.is_file() and _is_record(records):
        return runs.from_records(records)
    return imports.load(path)


def _is_record(path: Path) -> bool:
    with path.open("rb") as file:
        head = file.read(64)
    return path.name == "records.jsonl" or head.startswith((b'{"type":"design"', b'{"type":"launch"'))


def _names(arms: Iterable[Arm]) -> str:
    return ", ".join(repr(arm.name) for arm in arms)


def compare(a: RunSet, b: RunSet, *, margin: float = MARGIN) -> Comparison:
    """Arms of the same name, or the only arm of each side; UserError when there is no pair."""
    pairs = _pairs(a, b)
    arms = _judged([_sides(x, y) for x, y in pairs], margin)
    return Comparison(a=a.label, b=b.label, arms=tuple(arms), notes=tuple(_notes(a, b, pairs, arms)))


def _pairs(a: RunSet, b: RunSet) -> list[tuple[Arm, Arm]]:
    if len(a.arms) == len(b.arms) == 1:
        return [(a.arms[0], b.arms[0])]
    common = [(x, b.arm(x.name)) for x in a.arms if x.name in {y.name for y in b.arms}]
    if not common:
        raise UserError(
            f"{a.label} (arms {_names(a.arms)}) and {b.label} (arms {_names(b.arms)}) have no arm in common; "
            f"choose one of each with PATH{SEPARATOR}ARM."
        )
    return common


def _sides(a: Arm, b: Arm) -> ArmComparison:
    changes = tuple(
        Change(name=name, a=a.facts[name], b=b.facts[name])
        for name in a.facts
        if name in b.facts and a.facts[name] != b.facts[name]
    )
    cells = tuple(_cell(a, b, x, y) for x, y in _cell_pairs(a, b))
    return ArmComparison(a=a.name, b=b.name, changes=changes, cells=cells, refusal=_refusal(a, b, cells))


def _refusal(a: Arm, b: Arm, cells: Sequence[CellComparison]) -> str:
    for arm in (a, b):
        if arm.failure:
            return f"{arm.name}: launches failed ({arm.failure})"
    return "" if cells else "they have no load in common"


def _cell_pairs(a: Arm, b: Arm) -> list[tuple[str, str]]:
    """Cells of the same name; a single cell on each side is a pair whatever the tools call it."""
    ours, theirs = a.cells(), b.cells()
    return [(ours[0], theirs[0])] if len(ours) == len(theirs) == 1 else [(c, c) for c in ours if c in theirs]


def _cell(a: Arm, b: Arm, cell_a: str, cell_b: str) -> CellComparison:
    ours, theirs = a.of_cell(cell_a), b.of_cell(cell_b)
    paired = a.design != "" and a.design == b.design
    found = [(q, [r for r in ours if q.key in r.values], [r for r in theirs if q.key in r.values]) for q in QUANTITIES]
    return CellComparison(
        cell=cell_a if cell_a == cell_b else f"{cell_a} | {cell_b}",
        runs=(len(ours), len(theirs)),
        refusal=_unequal(a, b, ours, theirs),
        ratios=tuple(_ratio(q, x, y, paired=paired) for q, x, y in found if x and y),
        phases=_phases(ours, theirs),
        operators=_moves(a.operators.get(cell_a, {}), b.operators.get(cell_b, {})),
    )


def _unequal(a: Arm, b: Arm, ours: Sequence[Run], theirs: Sequence[Run]) -> str:
    """Why the two sides did not do the same work, or an empty string."""
    if failed := sum(run.work.failed for run in (*ours, *theirs)):
        return f"{failed} requests failed"
    digests = [arm.facts.get("workload digest", "") for arm in (a, b)]
    if all(digests) and digests[0] != digests[1]:
        return "the workloads are not the same"
    wanted = ours[0].work
    for run in (*ours[1:], *theirs):
        if difference := _difference(wanted, run.work):
            return f"unequal work: {difference}"
    return ""


def _difference(a: Work, b: Work) -> str:
    share = 0.0 if a.exact and b.exact else OTHERS_COUNT
    pairs = (
        ("requests", a.requests, b.requests),
        ("tokens in", a.tokens_in, b.tokens_in),
        ("tokens out", a.tokens_out, b.tokens_out),
    )
    unequal = [f"{x:,.0f} and {y:,.0f} {name}" for name, x, y in pairs if abs(x - y) > share * max(x, y)]
    return ", ".join(unequal)


def _ratio(quantity: Quantity, ours: Sequence[Run], theirs: Sequence[Run], *, paired: bool) -> Ratio:
    a, b = ([math.log(run.values[quantity.key]) for run in side] for side in (ours, theirs))
    estimate = _paired(quantity, ours, theirs) if paired else unpaired(a, b, lower_is_better=quantity.lower)
    return Ratio(quantity=quantity, a=math.exp(np.mean(a)), b=math.exp(np.mean(b)), estimate=estimate)


def _paired(quantity: Quantity, ours: Sequence[Run], theirs: Sequence[Run]) -> stats.Estimate | None:
    """Arms that ran in the same blocks: what the blocks have in common cancels."""
    observations = [
        stats.Observation(arm=arm, block=r.block, order=r.order, log_value=math.log(r.values[quantity.key]))
        for arm, side in (("a", ours), ("b", theirs))
        for r in side
    ]
    model = stats.fit(observations)
    return None if model is None else stats.estimate(model, {"b": 1.0, "a": -1.0}, lower_is_better=quantity.lower)


def unpaired(a: Sequence[float], b: Sequence[float], *, lower_is_better: bool) -> stats.Estimate | None:
    """B's gain over A from logarithms of independent runs, by Welch's test; None below two runs a side."""
    from scipy import special

    if min(len(a), len(b)) < NEED:
        return None
    parts = [max(float(np.var(side, ddof=1)) / len(side), 1e-24) for side in (a, b)]
    variance = sum(parts)
    dof = int(variance**2 / sum(part**2 / (len(side) - 1) for part, side in zip(parts, (a, b), strict=True)))
    difference = float(np.mean(b) - np.mean(a))
    gain, error = (-difference if lower_is_better else difference), math.sqrt(variance)
    half = float(special.stdtrit(dof, 1 - stats.ALPHA / 2)) * error
    p = 2 * float(special.stdtr(dof, -abs(gain) / error))
    return stats.Estimate(gain=gain, error=error, low=gain - half, high=gain + half, p=p, dof=dof)


def _phases(ours: Sequence[Run], theirs: Sequence[Run]) -> tuple[Phase, ...]:
    return _moves(_mean_phases(ours), _mean_phases(theirs))


def _mean_phases(side: Sequence[Run]) -> dict[str, float]:
    """Mean over the runs; empty when one of them does not have the times."""
    names = dict.fromkeys(name for run in side for name in run.phases)
    return {
        name: float(np.mean([r.phases.get(name, 0.0) for r in side])) for name in names if all(r.phases for r in side)
    }


def _moves(a: Mapping[str, float], b: Mapping[str, float]) -> tuple[Phase, ...]:
    """Parts of the time on both sides, those that moved most first; nothing when a side does not have them."""
    if not a or not b:
        return ()
    found = [Phase(name=name, a=a.get(name, 0.0), b=b.get(name, 0.0)) for name in dict.fromkeys((*a, *b))]
    return tuple(sorted(found, key=lambda phase: -abs(phase.moved)))


def _judged(arms: Sequence[ArmComparison], margin: float) -> list[ArmComparison]:
    """Verdicts, corrected (Holm) over the arms and cells that one quantity is compared in."""
    verdicts: dict[tuple[str, str, str], str] = {}
    for quantity in QUANTITIES:
        found = [
            ((arm.a, cell.cell, quantity.key), ratio.estimate)
            for arm in arms
            for cell in arm.cells
            for ratio in cell.ratios
            if not (arm.refusal or cell.refusal) and ratio.quantity is quantity and ratio.estimate is not None
        ]
        for (place, estimate), p in zip(found, stats.holm([e.p for _, e in found]), strict=True):
            verdicts[place] = stats.verdict(estimate, p, margin)

    def judged(arm: ArmComparison, cell: CellComparison) -> CellComparison:
        ratios = (replace(r, verdict=verdicts.get((arm.a, cell.cell, r.quantity.key), "")) for r in cell.ratios)
        return replace(cell, ratios=tuple(ratios))

    return [replace(arm, cells=tuple(judged(arm, cell) for cell in arm.cells)) for arm in arms]


def _notes(a: RunSet, b: RunSet, pairs: Sequence[tuple[Arm, Arm]], arms: Sequence[ArmComparison]) -> Iterable[str]:
    for side, others, index in ((a, b, 0), (b, a, 1)):
        used = {pair[index].name for pair in pairs}
        if alone := [arm for arm in side.arms if arm.name not in used]:
            yield f"Only in {side.label}, not in {others.label}: {_names(alone)}."
    if few := [arm for pair in pairs for arm in pair if any(len(arm.of_cell(c)) < NEED for c in arm.cells())]:
        yield f"No interval without {NEED} runs a side: {_names({arm.name: arm for arm in few}.values())} ran once."
    if not all(x.design and x.design == y.design for x, y in pairs):
        yield "The sides were measured at different times: an interval holds the noise within each, not between them."
    if any(not arm.launches and len(arm.runs) >= NEED for pair in pairs for arm in pair):
        yield "Repeated runs of an imported result may share one server: they vary less than launches would."
    causes = {change.name for arm in arms for change in arm.changes if change.name not in _FOLLOWS}
    if len(causes) > 1:
        yield f"{len(causes)} things changed at once, so a verdict says that the sides differ, not why."


_FOLLOWS = ("workload digest", "model digest", "processor features", "plan digest", "model type", "tokenizer")
"""Facts that change because another one did."""
