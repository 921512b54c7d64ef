"""`ablate`: runs a design launch by launch under the measuring lock, and can be stopped and resumed."""

import contextlib
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from fuseboard.backends.registry import get_backend
from fuseboard.core.env import cache_dir
from fuseboard.core.errors import UserError
from fuseboard.load.atomic import process_lock
from fuseboard.measure import budget as budgets
from fuseboard.measure import design as designs
from fuseboard.measure import machine, record, setup, workload
from fuseboard.measure.analysis import matching
from fuseboard.measure.ceilings import ensure_ceilings
from fuseboard.measure.launch import LaunchSpec, launch
from fuseboard.measure.options import AblateOptions
from fuseboard.measure.record import ArmRecord, DesignRecord, Line, QualityRecord
from fuseboard.measure.subject import EngineArgs, load_subject
from fuseboard.plan.switches import parse_settings, switch

if TYPE_CHECKING:
    from rich.progress import Progress

GUESS_S = {"quick": 6.0, "full": 60.0}
"""Seconds a launch is expected to take before one was timed."""

Report = Callable[[Path], object]
"""Called with the record file after every block and at the end."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """One launch to be made."""

    block: int
    position: int
    arm: str


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """All that is decided before the first launch."""

    options: AblateOptions
    design: DesignRecord
    workload: workload.Workload
    engine: EngineArgs
    places: tuple[Place, ...]

    @property
    def records(self) -> Path:
        return self.options.out / "records.jsonl"

    def settings(self, arm: str) -> dict[str, str]:
        return next(a.switches for a in self.design.arms if a.name == arm)

    def spec(self, place: Place) -> LaunchSpec:
        return LaunchSpec(
            arm=place.arm,
            block=place.block,
            position=place.position,
            engine=replace(self.engine, preset=self.settings(place.arm)),
            workload=self.workload,
            code_digest=self.design.code_digest,
        )


def run(options: AblateOptions, *, report: Report | None = None) -> Path:
    """Run the experiment and return its record file. Ctrl-C ends it early; what was measured is kept and reported."""
    experiment = prepare(options)
    if options.dry_run:
        print_launches(experiment)
        return experiment.records
    with measuring_lock():
        experiment = _with_ceilings(experiment)
        known = record.read(experiment.records)
        record.append(experiment.records, experiment.design)
        with contextlib.suppress(KeyboardInterrupt):
            _run_launches(experiment, remaining(experiment, known), report)
            if options.budget:
                experiment = _spend(experiment, report)
            _run_quality(experiment, known)
            _run_profiles(experiment, known)
    if report:
        report(experiment.records)
    return experiment.records


def prepare(options: AblateOptions) -> Experiment:
    """Design, workload and places in order; UserError for options that make no sense."""
    if options.budget:
        budgets.seconds(options.budget)
    bare = setup.bare_args(options)
    subject = load_subject(bare)
    study = setup.chosen_study(options)
    title = options.design if options.design != "auto" else study.name if study else "quick"
    made, notes = setup.make_design(options, subject, study, title)
    quick = title == "quick"
    work, more_notes = setup.make_workload(options, subject, quick)
    held = {name: value for name, value in parse_settings(list(options.set)).items() if value != switch(name).off}
    engine = setup.make_engine(replace(bare, switches=held), work, subject, options)
    blocks = options.blocks or (budgets.LEAST_BLOCKS if options.budget else 3 if quick else 5)
    if blocks < 2:
        raise UserError("--blocks must be at least 2: one block says nothing about its own noise.")
    design = DesignRecord(
        model=options.model,
        design=title,
        blocks=blocks,
        seed=options.seed,
        arms=setup.planned(made.arms, subject, engine),
        comparisons=made.comparisons,
        quality_arms=made.quality_arms if options.quality else (),
        workload=setup.describe(work),
        workload_digest=work.digest,
        code_digest=machine.code_digest(),
        machine=machine.current(),
        created_unix=time.time(),
        equivalence_margin=options.margin,
        max_kl=options.max_kl,
        source=study.name if study else "",
        notes=(*notes, *more_notes),
    )
    return with_places(Experiment(options=options, design=design, workload=work, engine=engine, places=()))


def _with_ceilings(experiment: Experiment) -> Experiment:
    """The experiment with this machine's measured ceilings in its design."""
    caps = ensure_ceilings(get_backend(), experiment.options.threads)
    return replace(experiment, design=replace(experiment.design, machine=machine.current(caps)))


def with_places(experiment: Experiment) -> Experiment:
    """The experiment with the launches of all its blocks in order. Under a budget the order of a block does not depend
    on how many follow, so that blocks can be added."""
    options, blocks = experiment.options, experiment.design.blocks
    of = max(blocks, budgets.MOST_BLOCKS) if options.budget else blocks
    order = designs.orders([arm.name for arm in experiment.design.arms], of, options.seed)[:blocks]
    places = tuple(Place(block=b, position=i, arm=arm) for b, arms in enumerate(order) for i, arm in enumerate(arms))
    return replace(experiment, places=places)


@contextlib.contextmanager
def measuring_lock() -> Iterator[None]:
    """Only one measurement at a time on a machine; others wait, and say for whom."""
    path = cache_dir() / "measure.lock"

    def say(holder: int | None) -> None:
        who = f"process {holder}" if holder else "another process"
        print(f"Waiting for {who}, which measures on this machine (it holds {path}).", file=sys.stderr, flush=True)

    with process_lock(path, waiting=say):
        yield


def remaining(experiment: Experiment, known: Sequence[Line]) -> list[Place]:
    """The places to be measured: all, or with `--resume` those that no reusable launch fills."""
    if not experiment.options.resume:
        return list(experiment.places)
    return unmeasured(experiment.design, experiment.places, known)


def unmeasured(design: DesignRecord, places: Sequence[Place], known: Sequence[Line]) -> list[Place]:
    """The places of a design that no reusable launch fills.

    A complete block counts when its launches ran under the same plans, workload, machine and code, an interrupted one
    only within the same boot.
    """
    done = {(r.block, r.position, r.arm): r for r in matching(known, design)}
    todo: list[Place] = []
    for block in range(design.blocks):
        in_block = [p for p in places if p.block == block]
        found = [done.get((p.block, p.position, p.arm)) for p in in_block]
        whole = all(r is not None for r in found)
        for place, launched in zip(in_block, found, strict=True):
            same_boot = launched is not None and launched.machine.boot == design.machine.boot
            if not whole and not same_boot:
                todo.append(place)
    return todo


def unanswered(design: DesignRecord, known: Sequence[Line]) -> list[ArmRecord]:
    """The arms, without the first, whose answers are to be compared and were not yet under the same code."""
    have = {
        (line.arm, tuple(sorted(line.switches.items())))
        for line in known
        if isinstance(line, QualityRecord) and line.code_digest == design.code_digest and line.error is None
    }
    arms = [arm for arm in design.arms[1:] if arm.name in design.quality_arms]
    return [arm for arm in arms if (arm.name, tuple(sorted(arm.switches.items()))) not in have]


def _run_launches(experiment: Experiment, todo: Sequence[Place], report: Report | None) -> None:
    with _progress() as progress:
        task = progress.add_task("", total=len(todo))
        for i, place in enumerate(todo):
            progress.update(task, description=f"block {place.block + 1}/{experiment.design.blocks}  {place.arm}")
            done = launch(experiment.spec(place), timeout_s=experiment.options.timeout)
            record.append(experiment.records, done)
            progress.advance(task)
            last_of_block = i + 1 == len(todo) or todo[i + 1].block != place.block
            if report and last_of_block and place.block + 1 < experiment.design.blocks:
                report(experiment.records)


def _spend(experiment: Experiment, report: Report | None) -> Experiment:
    """Add the blocks that the budget allows by the times of the launches made, and run them."""
    launches = matching(record.read(experiment.records), experiment.design)
    budget_s = budgets.seconds(experiment.options.budget or "")
    plan = budgets.plan(experiment.design, launches, budget_s, profiled=experiment.options.profile)
    print(plan.sentence, file=sys.stderr)
    if plan.blocks == experiment.design.blocks:
        return experiment
    experiment = with_places(replace(experiment, design=replace(experiment.design, blocks=plan.blocks)))
    record.append(experiment.records, experiment.design)
    _run_launches(experiment, remaining(experiment, record.read(experiment.records)), report)
    return experiment


def _run_quality(experiment: Experiment, known: Sequence[Line]) -> None:
    from fuseboard.measure import quality

    todo = unanswered(experiment.design, known if experiment.options.resume else ())
    if not todo:
        return
    with _progress() as progress:
        task = progress.add_task("", total=len(todo) + 1)
        baseline = experiment.design.arms[0]
        for done in quality.compare(experiment.engine, baseline, todo, experiment.design.code_digest):
            progress.update(task, description="answers against the baseline")
            if done is not None:
                record.append(experiment.records, done)
            progress.advance(task)


def _run_profiles(experiment: Experiment, known: Sequence[Line]) -> None:
    from fuseboard.measure import profile, profile_pass

    resume = experiment.options.resume
    todo = profile.missing(experiment.design, known, resume=resume) if experiment.options.profile else []
    if not todo:
        return
    with _progress() as progress:
        task = progress.add_task("where the time goes", total=len(todo))
        for arm in todo:
            launched = experiment.spec(Place(block=0, position=0, arm=arm.name))
            done = profile_pass.profile(profile_pass.ProfileSpec(launch=launched), timeout_s=experiment.options.timeout)
            record.append(experiment.records, done)
            progress.advance(task)


def _progress() -> "Progress":
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )


def print_launches(experiment: Experiment) -> None:
    """What would run, in order, and how long that is expected to take."""
    from fuseboard.measure import profile

    known = record.read(experiment.records)
    todo = remaining(experiment, known)
    timed = [budgets.launch_s(r) for r in matching(known, experiment.design) if r.error is None]
    each = statistics.median(timed) if timed else GUESS_S.get(experiment.workload.name, GUESS_S["full"])
    print(f"{experiment.design.model}, design {experiment.design.design}: {experiment.design.workload}")
    for arm in experiment.design.arms:
        settings = " ".join(f"{k}={v}" for k, v in arm.switches.items()) or "every switch off"
        print(f"arm {arm.name}: {settings}")
    for block in range(experiment.design.blocks):
        print(f"block {block + 1}: {', '.join(p.arm for p in todo if p.block == block) or 'done'}")
    if passes := len(profile.missing(experiment.design, known)) if experiment.options.profile else 0:
        print(f"{passes} more launches with timed operators, once a plan")
    source = "as measured so far" if timed else "a guess before the first launch"
    print(f"{len(todo)} launches of about {each:.1f} s, {source}: {len(todo) * each / 60:.0f} min")
