"""The search of `tune` under way: its quality gate, its blocks of launches, and how each configuration is judged."""

import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from fuseboard.core.errors import UserError
from fuseboard.measure import analysis, budget, gate, machine, quality, record, setup, slo
from fuseboard.measure import design as designs
from fuseboard.measure.analysis import Analysis, Finding
from fuseboard.measure.candidates import Candidate, Rejection, Space
from fuseboard.measure.launch import LaunchSpec, launch
from fuseboard.measure.metrics import BY_KEY
from fuseboard.measure.record import (
    ArmRecord,
    CellRecord,
    ComparisonRecord,
    DesignRecord,
    LaunchRecord,
    Line,
    QualityRecord,
)
from fuseboard.measure.tune_options import TuneOptions

LEAST_BLOCKS, MOST_BLOCKS = slo.MIN_LAUNCHES, 8
QUALITY = "quality"


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A measured configuration. `seconds` is the objective (median over launches, sum over cells); `worst` holds, for
    each limit, the largest median over the cells, in ms; `probability` is that of keeping all limits; `problem` says
    why it is out of the question."""

    candidate: Candidate
    launches: int
    seconds: float | None = None
    worst: tuple[float | None, ...] = ()
    probability: float | None = None
    peak_bytes: int = 0
    kl: float | None = None
    problem: str = ""

    @property
    def name(self) -> str:
        return self.candidate.name


@dataclass(kw_only=True)
class Study:
    """The search under way."""

    options: TuneOptions
    space: Space
    extra: Mapping[str, Sequence[str]]
    notes: tuple[str, ...]
    seconds: float
    started: float = field(default_factory=time.monotonic)
    code_digest: str = field(default_factory=machine.code_digest)
    launches: dict[str, list[LaunchRecord]] = field(default_factory=dict)
    kl: dict[tuple[tuple[str, str], ...], float] = field(default_factory=dict)
    rejected: list[Rejection] = field(default_factory=list)

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.started

    @property
    def metric(self) -> str:
        """What less is better of: the time for the work, or the latency where the arrivals decide that time."""
        closed = all(cell.concurrency and cell.requests[0].arrival_s is None for cell in self.space.work.cells)
        return "duration" if closed else "e2e"


def gated(study: Study, ranked: Sequence[Candidate]) -> list[Candidate]:
    """The first candidates whose answers are close enough to those of float32, as many as there may be finalists."""
    chosen: list[Candidate] = []
    waiting = list(ranked)
    while waiting and len(chosen) < study.options.finalists and (not chosen or study.elapsed < study.seconds / 2):
        batch = waiting[: study.options.finalists - len(chosen)]
        del waiting[: len(batch)]
        failed = _answers(study, batch)
        if not chosen and len(failed) == len(batch):
            raise UserError(f"The answers cannot be compared with float32's: {next(iter(failed.values()))}")
        for candidate in batch:
            kl = study.kl.get(gate.answer_key(candidate.settings), 0.0)
            if reason := failed.get(candidate.name, ""):
                study.rejected.append(Rejection(name=candidate.name, reason=reason))
            elif kl > study.options.max_kl:
                reason = f"Its answers are {kl:.2g} nats (mean KL) from float32's, more than {study.options.max_kl:g}."
                study.rejected.append(Rejection(name=candidate.name, reason=reason))
            else:
                chosen.append(candidate)
    reason = NOT_REACHED if len(chosen) == study.options.finalists else NO_TIME
    study.rejected += [Rejection(name=c.name, reason=reason) for c in waiting]
    return chosen


NOT_REACHED = "Not measured: the cost model puts it behind the finalists."
NO_TIME = "Not measured: half of the budget was used up before its turn."


def _answers(study: Study, batch: Sequence[Candidate]) -> dict[str, str]:
    """Measure how far the lossy ones' answers are from all off's; why it could not be said, by name."""
    todo = [c for c in batch if c.lossy and gate.answer_key(c.settings) not in study.kl]
    failed: dict[str, str] = {}
    if not todo:
        return failed
    _recall_answers(study, todo)
    todo = [c for c in todo if gate.answer_key(c.settings) not in study.kl]
    if not todo:
        return failed
    _say(f"answers of {', '.join(c.name for c in todo)} against float32")
    arms = [ArmRecord(name=c.name, switches=c.settings) for c in todo]
    baseline = ArmRecord(name=designs.BASELINE, switches={})
    engine = replace(study.space.base, preset={}, switches={})
    for found in quality.compare(engine, baseline, arms, study.code_digest):
        if found is None:
            continue
        record.append(_records(study, QUALITY), found)
        if found.error is not None:
            failed[found.arm] = found.error.message
        else:
            study.kl[gate.answer_key(found.switches)] = found.values["kl_mean"]
    return failed


def _recall_answers(study: Study, arms: Sequence[Candidate]) -> None:
    """Take what was measured of the same model with the same code."""
    models = {arm.plan.model_digest for arm in arms}
    for line in record.read(_records(study, QUALITY)):
        if not isinstance(line, QualityRecord) or line.error is not None:
            continue
        if line.code_digest == study.code_digest and line.model_digest in models:
            study.kl[gate.answer_key(line.switches)] = line.values["kl_mean"]


def _records(study: Study, stage: str) -> Path:
    return study.options.out / stage / "records.jsonl"


def forget(study: Study) -> None:
    """Leave nothing of an earlier run to go on from."""
    for path in study.options.out.glob("*/records.jsonl"):
        path.unlink()


def measure(
    study: Study, stage: str, arms: Sequence[Candidate], comparisons: Sequence[ComparisonRecord], *, until: float
) -> Analysis:
    """Blocks of launches of all arms, at least three, no further one after the share `until` of the budget.

    Launches that the records hold already are not made again.
    """
    path = _records(study, stage)
    by_name = {arm.name: arm for arm in arms}
    design = _design(study, stage, arms, comparisons)
    orders = designs.orders(list(by_name), MOST_BLOCKS, study.options.seed)
    known = _reusable(record.read(path), replace(design, blocks=MOST_BLOCKS), orders)
    record.append(path, design)
    failed: set[str] = set()
    block, spent = 0, 0.0
    while block < LEAST_BLOCKS or (block < MOST_BLOCKS and _time_left(study, known, block, spent, until)):
        for position, name in enumerate(orders[block]):
            if name in failed:
                continue
            done = known.get((block, position))
            if done is None:
                _say(f"{stage}, block {block + 1}, {name}")
                done = _launch(study, by_name[name], block, position)
                record.append(path, done)
            spent += budget.launch_s(done) if done.error is None else 0.0
            _count(study, by_name[name], done)
            failed |= {name} if done.error else set()
        block += 1
    record.append(path, replace(design, blocks=block))
    return analysis.analyse(record.read(path))


def _reusable(
    lines: Sequence[Line], design: DesignRecord, orders: Sequence[Sequence[str]]
) -> dict[tuple[int, int], LaunchRecord]:
    """Launches by block and position that count again: of whole blocks, and of an interrupted one in the same boot."""
    done = {(r.block, r.position, r.arm): r for r in analysis.matching(lines, design) if r.error is None}
    kept: dict[tuple[int, int], LaunchRecord] = {}
    for block, order in enumerate(orders):
        places = [(block, position, name) for position, name in enumerate(order)]
        whole = all(place in done for place in places)
        found = [done[place] for place in places if place in done]
        kept |= {(r.block, r.position): r for r in found if whole or r.machine.boot == design.machine.boot}
    return kept


def _count(study: Study, arm: Candidate, done: LaunchRecord) -> None:
    """A launch counts once, though a stage that goes on comes by it again."""
    counted = study.launches.setdefault(arm.plan.digest, [])
    if all(r.started_unix != done.started_unix for r in counted):
        counted.append(done)


def _time_left(
    study: Study, known: Mapping[tuple[int, int], LaunchRecord], blocks: int, spent: float, until: float
) -> bool:
    """Time for one more block, which costs what those before it did unless it is known."""
    each = 0.0 if (blocks, 0) in known else spent / blocks
    return study.elapsed + each < until * study.seconds


def _design(
    study: Study, stage: str, arms: Sequence[Candidate], comparisons: Sequence[ComparisonRecord]
) -> DesignRecord:
    space = study.space
    return DesignRecord(
        model=study.options.model,
        design=f"tune: {stage}",
        blocks=LEAST_BLOCKS,
        seed=study.options.seed,
        arms=tuple(ArmRecord(name=a.name, switches=a.settings, plan_digest=a.plan.digest) for a in arms),
        comparisons=tuple(comparisons),
        quality_arms=(),
        workload=setup.describe(space.work),
        workload_digest=space.work.digest,
        code_digest=study.code_digest,
        machine=machine.current(space.subject.caps),
        created_unix=time.time(),
        notes=study.notes,
    )


def _launch(study: Study, arm: Candidate, block: int, position: int) -> LaunchRecord:
    engine = replace(arm.engine, preset=arm.settings, switches={})
    spec = LaunchSpec(
        arm=arm.name,
        block=block,
        position=position,
        engine=engine,
        workload=study.space.work,
        code_digest=study.code_digest,
    )
    return launch(spec, timeout_s=study.options.timeout)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def judge(study: Study, arms: Sequence[Candidate]) -> list[Judged]:
    """All launches of each configuration, whatever the stage, against its limits."""
    first = next((r for a in arms for r in study.launches.get(a.plan.digest, ()) if r.error is None), None)
    return [_judge_one(study, arm, first) for arm in arms]


def _judge_one(study: Study, arm: Candidate, first: LaunchRecord | None) -> Judged:
    launches = study.launches.get(arm.plan.digest, [])
    errors = [r.error.message for r in launches if r.error is not None]
    if errors or first is None or not launches:
        return Judged(candidate=arm, launches=len(launches), problem=errors[0] if errors else "It was not launched.")
    cells = [r.cells for r in launches]
    peak = round(statistics.median(r.peak_bytes for r in launches))
    limit = study.space.memory
    problem = analysis.unequal(first, launches)
    if not problem and limit is not None and peak > limit:
        problem = f"Its process took {peak / 1e6:,.1f} MB at its peak, of {limit / 1e6:,.1f}."
    return Judged(
        candidate=arm,
        launches=len(launches),
        seconds=_objective(study, cells),
        worst=tuple(_worst(limit_of, cells) for limit_of in study.space.limits),
        probability=slo.probability(study.space.limits, cells, study.options.seed),
        peak_bytes=peak,
        kl=study.kl.get(gate.answer_key(arm.settings)),
        problem=problem,
    )


def _objective(study: Study, launches: Sequence[Sequence[CellRecord]]) -> float | None:
    """Median over launches of the metric, summed over cells; None when it is missing somewhere."""
    of = BY_KEY[study.metric].of
    total = 0.0
    for runs in zip(*launches, strict=True):
        values = [value for cell in runs if (value := of(cell)) is not None]
        if len(values) < len(runs):
            return None
        total += statistics.median(values)
    return total


def _worst(limit: slo.Limit, launches: Sequence[Sequence[CellRecord]]) -> float | None:
    medians = []
    for runs in zip(*launches, strict=True):
        if values := [value for cell in runs if (value := limit.of(cell)) is not None]:
            medians.append(statistics.median(values))
    return max(medians, default=None)


def eligible(study: Study, judged: Judged) -> bool:
    likely = judged.probability is not None and judged.probability >= study.options.confidence
    return not judged.problem and likely and judged.seconds is not None


def best_of(study: Study, judged: Sequence[Judged]) -> Judged | None:
    able = [j for j in judged if eligible(study, j)]
    return min(able, key=lambda j: j.seconds or 0.0, default=None)


def is_faster(study: Study, finding: Finding, cells: Sequence[str]) -> bool:
    """Faster in some cell and slower in none."""
    verdicts = {finding.verdict(cell, study.metric) for cell in cells}
    return "faster" in verdicts and "slower" not in verdicts
