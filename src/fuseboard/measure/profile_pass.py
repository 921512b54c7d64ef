"""One profiling pass: a fresh process that runs the workload with its nodes timed and prints one record.

`python -m fuseboard.measure.profile_pass` reads a `ProfileSpec` as JSON from stdin. Nothing it measures is used as the
speed of an arm: timing nodes costs time.
"""

import dataclasses
import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fuseboard.backends.base import Executable
from fuseboard.core.errors import UserError
from fuseboard.execute.records import StepRecord
from fuseboard.load.atomic import write_atomic
from fuseboard.measure import machine
from fuseboard.measure.drive import run_cell, step_sums
from fuseboard.measure.launch import LaunchSpec, answer, failure, private_stdout, run_child, submitter, warm_up
from fuseboard.measure.operators import CLASSES, OperatorCosts, class_of_labels, label_class
from fuseboard.measure.record import (
    CellProfile,
    CellRecord,
    OperatorRecord,
    ProfileRecord,
    StepsProfile,
    decode,
    from_line,
    to_line,
)
from fuseboard.measure.subject import Opened, load_subject
from fuseboard.measure.timeline import TimedStep, timeline
from fuseboard.measure.workload import Cell

NODES_OF_FIRST, NODES_OF_EVERY, NODES_OF_MOST = 12, 16, 48
"""A timeline shows the nodes of the first steps and of every so many after them, up to a number of steps."""


@dataclass(frozen=True, kw_only=True)
class ProfileSpec:
    """What a pass has to do. `plain` also runs the cells without node timing; `trace` names a file for the timeline."""

    launch: LaunchSpec
    plain: bool = False
    trace: str = ""


class NodeTimer:
    """Steps an engine, reads the node times after every step, and keeps apart what happens between steps.

    The engine's step log must be on. `idle_ns` grows between steps, `instrument_ns` while node times are read.
    """

    def __init__(self, engine: Any, executable: Executable, classes: dict[str, str]) -> None:
        self._engine, self._executable, self._classes = engine, executable, classes
        self.steps: list[TimedStep] = []
        self.idle_ns = self.instrument_ns = 0
        executable.profile(True)
        self._left_ns = time.monotonic_ns()

    @property
    def has_work(self) -> bool:
        return bool(self._engine.has_work)

    def abort(self, request_id: str) -> object:
        return self._engine.abort(request_id)

    def step(self) -> Sequence[Any]:
        self._enter()
        log = self._engine.step_log
        known = len(log)
        events: Sequence[Any] = self._engine.step()
        stepped_ns = time.monotonic_ns()
        if len(log) > known:
            self._read(log[-1])
        self._left_ns = time.monotonic_ns()
        self.instrument_ns += self._left_ns - stepped_ns
        return events

    def close(self) -> None:
        """Ends the last gap and switches node timing off."""
        self._enter()
        self._executable.profile(False)

    def _enter(self) -> None:
        self.idle_ns += time.monotonic_ns() - self._left_ns

    def _read(self, record: StepRecord) -> None:
        times = [(label, calls, ns) for label, calls, ns in self._executable.node_times() if calls]
        self._executable.profile(True)
        calls, ns = Counter[str](), Counter[str]()
        for label, count, spent in times:
            name = label_class(self._classes, label)
            calls[name] += count
            ns[name] += spent
        nodes = tuple((label, spent) for label, _, spent in times) if self._shown() else ()
        self.steps.append(TimedStep(record=record, calls=dict(calls), ns=dict(ns), nodes=nodes))

    def _shown(self) -> bool:
        n = len(self.steps)
        return n < NODES_OF_FIRST or (n % NODES_OF_EVERY == 0 and n < NODES_OF_EVERY * NODES_OF_MOST)


def run(spec: ProfileSpec) -> ProfileRecord:
    """Do the pass in this process."""
    engine_args, work = spec.launch.engine, spec.launch.workload
    subject = load_subject(engine_args)
    opened = subject.open(engine_args)
    submit = submitter(opened.engine)
    warm_up(opened.engine, submit, work)
    costs = OperatorCosts(opened.plan, subject.caps)
    plain = [_plain_ns(opened, cell) if spec.plain else 0 for cell in work.cells]
    done = [profile_cell(opened, cell, costs) for cell in work.cells]
    if spec.trace:
        path = Path(spec.trace)
        write_atomic(path, json.dumps(timeline([(cell, steps) for _, cell, steps in done])).encode())
    return replace(
        blank(spec),
        machine=machine.current(subject.caps),
        plan_digest=opened.plan.digest,
        model_digest=opened.plan.model_digest,
        cells=tuple(replace(found, plain_ns=ns) for (found, _, _), ns in zip(done, plain, strict=True)),
    )


def _plain_ns(opened: Opened, cell: Cell) -> int:
    opened.engine.reset_prefix_cache()
    opened.engine.step_log = None
    done = run_cell(opened.engine, submitter(opened.engine), cell)
    return done.end_ns - done.start_ns


def profile_cell(
    opened: Opened, cell: Cell, costs: OperatorCosts
) -> tuple[CellProfile, CellRecord, Sequence[TimedStep]]:
    """Run the cell with its nodes timed: where the time went, the cell's own record, and the timed steps."""
    engine = opened.engine
    engine.reset_prefix_cache()
    engine.step_log = []
    timer = NodeTimer(engine, opened.executable, dict(class_of_labels(opened.plan)))
    done = run_cell(timer, submitter(engine), cell)
    timer.close()
    if failed := [r for r in done.requests if r.error]:
        raise UserError(f"Request {failed[0].request_id} failed while profiling ({failed[0].error}).")
    kinds = [[step for step in timer.steps if step.record.is_decode is kind] for kind in (True, False)]
    decode_steps, prefill_steps = (steps_profile(steps, costs) for steps in kinds)
    found = CellProfile(
        name=cell.name,
        wall_ns=done.end_ns - done.start_ns,
        idle_ns=timer.idle_ns,
        instrument_ns=timer.instrument_ns,
        decode=decode_steps,
        prefill=prefill_steps,
    )
    return found, done, timer.steps


def steps_profile(steps: Sequence[TimedStep], costs: OperatorCosts) -> StepsProfile:
    """Phases and operators of steps of one kind, with the cost model's account of them."""
    records = [step.record for step in steps]
    expected = costs.total(records)
    names = {name for step in steps for name in step.ns} | set(expected)
    operators = [
        replace(
            expected.get(name, OperatorRecord(name=name)),
            calls=sum(step.calls.get(name, 0) for step in steps),
            ns=sum(step.ns.get(name, 0) for step in steps),
        )
        for name in CLASSES
        if name in names
    ]
    decode_sums, prefill_sums = step_sums(records)
    return StepsProfile(sums=decode_sums if decode_sums.steps else prefill_sums, operators=tuple(operators))


def blank(spec: ProfileSpec) -> ProfileRecord:
    """The record of a pass that has not done anything yet."""
    launch = spec.launch
    return ProfileRecord(
        arm=launch.arm,
        switches=launch.engine.settings,
        model=launch.engine.model,
        workload_digest=launch.workload.digest,
        code_digest=launch.code_digest,
        machine=machine.current(),
    )


def profile(spec: ProfileSpec, *, timeout_s: float) -> ProfileRecord:
    """Do the pass in a fresh process; every way it can end gives a record."""
    line, problem = run_child("fuseboard.measure.profile_pass", dataclasses.asdict(spec), timeout_s=timeout_s)
    if problem is not None:
        return replace(blank(spec), error=problem)
    record = from_line(line)
    assert isinstance(record, ProfileRecord)
    return record


def main() -> None:
    """Entry of the child process."""
    out = private_stdout()
    spec = decode(ProfileSpec, json.load(sys.stdin))
    try:
        record = run(spec)
    except (UserError, MemoryError) as error:
        record = replace(blank(spec), error=failure(error))
    answer(to_line(record), out)


if __name__ == "__main__":
    main()
