"""One launch: a fresh process that loads, warms up, runs the workload under one arm, and prints one record.

`python -m fuseboard.measure.launch` reads a `LaunchSpec` as JSON from stdin and writes the record to stdout; `launch`
starts that process, bounds its time, and turns every way it can end into a record.
"""

import ctypes
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from typing import Any

from fuseboard.core.errors import DoesNotFitError, UserError
from fuseboard.measure import machine, memory, plants
from fuseboard.measure.drive import Submit, run_cell, step_sums
from fuseboard.measure.record import CellRecord, Failure, LaunchRecord, decode, from_line, to_line
from fuseboard.measure.subject import EngineArgs, load_subject
from fuseboard.measure.workload import Cell, Request, Workload

NS = 1_000_000_000
PR_SET_PDEATHSIG = 1
"""Of the operating system's prctl: the signal that a process gets when its parent ends."""


@dataclass(frozen=True, kw_only=True)
class LaunchSpec:
    """What a launch has to do. `spawned_ns` is the monotonic time at which the parent started it; `plant` is a fault of
    the self-check."""

    arm: str
    block: int
    position: int
    engine: EngineArgs
    workload: Workload
    code_digest: str
    spawned_ns: int = 0
    plant: str = ""


def blank_record(spec: LaunchSpec) -> LaunchRecord:
    """The record of a launch that has not done anything yet."""
    return LaunchRecord(
        arm=spec.arm,
        block=spec.block,
        position=spec.position,
        switches=spec.engine.settings,
        model=spec.engine.model,
        workload_digest=spec.workload.digest,
        code_digest=spec.code_digest,
        machine=machine.current(),
        versions=machine.versions(),
        seed=spec.workload.seed,
        started_unix=time.time(),
    )


def run(spec: LaunchSpec) -> LaunchRecord:
    """Do the launch in this process."""
    started_ns = time.monotonic_ns()
    subject = load_subject(spec.engine)
    opened = subject.open(spec.engine, spec.plant)
    loaded_ns = time.monotonic_ns()
    engine, plan = opened.engine, opened.plan
    submit = plants.in_requests(submitter(engine), spec.plant)
    at_start = dict(engine.counters())
    warmup_ns = warm_up(engine, submit, spec.workload)
    cells = tuple(_measure(engine, submit, cell) for cell in spec.workload.cells)
    return replace(
        blank_record(spec),
        plan_digest=plan.digest,
        plan_switches=dict(plan.switches),
        model_digest=plan.model_digest,
        backend=plan.caps.backend,
        machine=machine.current(subject.caps),
        startup_ns={"process": started_ns - (spec.spawned_ns or started_ns), "engine": loaded_ns - started_ns},
        warmup_ns=warmup_ns,
        cells=cells,
        counters_at_start=at_start,
        memory_planned=dict(plan.memory),
        memory_measured=memory.with_rest(opened.executable.memory(), memory.resident_bytes()),
        peak_bytes=memory.peak_bytes(),
    )


def submitter(engine: Any) -> Submit:
    """What gives the engine a request of a workload: greedy, of the wanted length."""
    from fuseboard.execute.sampling_params import SamplingParams

    def submit(request_id: str, request: Request) -> None:
        params = SamplingParams(max_tokens=request.n_out, temperature=0.0, ignore_eos=True)
        engine.add_request(request_id, list(request.token_ids), params)

    return submit


def warm_up(engine: Any, submit: Submit, workload: Workload) -> tuple[int, ...]:
    """Run the warm-up rounds until the time is up; the nanoseconds of each."""
    deadline_ns = time.monotonic_ns() + round(workload.warmup_s * NS)
    taken: list[int] = []
    for cell in workload.warmup:
        if time.monotonic_ns() >= deadline_ns:
            break
        done = run_cell(engine, submit, cell, deadline_ns=deadline_ns)
        taken.append(done.end_ns - done.start_ns)
    return tuple(taken)


def _measure(engine: Any, submit: Submit, cell: Cell) -> CellRecord:
    engine.reset_prefix_cache()
    engine.step_log = []
    before = dict(engine.counters())
    done = run_cell(engine, submit, cell)
    moved = {name: value - before.get(name, 0) for name, value in engine.counters().items()}
    decode_sums, prefill_sums = step_sums(engine.step_log)
    return replace(done, counters=moved, decode=decode_sums, prefill=prefill_sums)


def failure(error: BaseException) -> Failure:
    """The failure record of an exception."""
    if isinstance(error, DoesNotFitError | MemoryError):
        return Failure(kind="does_not_fit", message=str(error) or "The machine has not enough memory.")
    if isinstance(error, UserError):
        return Failure(kind="refused", message=str(error))
    return Failure(kind="crashed", message=f"{type(error).__name__}: {error}")


def launch(spec: LaunchSpec, *, timeout_s: float) -> LaunchRecord:
    """Run the launch in a fresh process. A crash, a kill or a timeout gives a record that says so."""
    spec = replace(spec, spawned_ns=time.monotonic_ns())
    line, problem = run_child("fuseboard.measure.launch", dataclasses.asdict(spec), timeout_s=timeout_s)
    if problem is None:
        record = from_line(line)
        assert isinstance(record, LaunchRecord)
        return record
    return replace(blank_record(spec), error=problem)


def run_child(module: str, spec: dict[str, Any], *, timeout_s: float) -> tuple[str, Failure | None]:
    """Run a Python module with JSON on stdin; its last line of stdout, and what went wrong.

    The process has a session of its own, so that Ctrl-C reaches the parent alone, and never outlives this call.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", module],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, errors = process.communicate(json.dumps(spec), timeout=timeout_s)
    except subprocess.TimeoutExpired:
        return "", Failure(kind="timeout", message=f"The launch took longer than {timeout_s:.0f} s.")
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    lines = out.strip().splitlines()
    return (lines[-1] if lines else ""), _exit_problem(process.returncode, bool(lines), errors)


def _exit_problem(code: int, answered: bool, errors: str) -> Failure | None:
    if code == 0 and answered:
        return None
    if code == -signal.SIGKILL:
        return Failure(kind="killed", message="The process was killed, most likely because memory ran out.")
    if code < 0:
        return Failure(kind="crashed", message=f"The process died of {signal.Signals(-code).name}.")
    last = (errors.strip().splitlines() or ["no message"])[-1]
    return Failure(kind="crashed", message=f"The process ended with code {code}: {last}")


def answer(line: str, out: int) -> None:
    """Write a child's one line of result."""
    with os.fdopen(out, "w", encoding="utf-8") as file:
        file.write(line + "\n")


def private_stdout() -> int:
    """Move stdout away, so that nothing a library prints can mix with the result; the descriptor for `answer`.

    From here on the process dies with its parent: one that nobody waits for would disturb the next measurement.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    out = os.dup(1)
    os.dup2(2, 1)
    return out


def main() -> None:
    """Entry of the child process."""
    out = private_stdout()
    spec = decode(LaunchSpec, json.load(sys.stdin))
    try:
        record = run(spec)
    except (UserError, MemoryError) as error:
        record = replace(blank_record(spec), error=failure(error))
    answer(to_line(record), out)


if __name__ == "__main__":
    main()
