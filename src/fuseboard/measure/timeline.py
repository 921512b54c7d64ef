"""A run as a timeline in Chrome's trace event format, which Perfetto and chrome://tracing open.

Format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fuseboard.execute.records import StepRecord
from fuseboard.measure.record import CellRecord

STEPS, PHASES, NODES = 1, 2, 3
TRACKS = {STEPS: "steps", PHASES: "phases", NODES: "nodes of some steps"}
Event = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class TimedStep:
    """A step with calls and nanoseconds by operator class; `nodes` are (name, ns) in the order they ran, or empty."""

    record: StepRecord
    calls: Mapping[str, int]
    ns: Mapping[str, int]
    nodes: tuple[tuple[str, int], ...] = ()


def timeline(cells: Sequence[tuple[CellRecord, Sequence[TimedStep]]]) -> dict[str, Any]:
    """The whole trace: a process a cell; times in microseconds from the start of the first cell.

    A node's start is put together from the durations of those before it in its step.
    """
    origin = min((cell.start_ns for cell, _ in cells), default=0)
    events = [event for pid, (cell, steps) in enumerate(cells, 1) for event in _cell(pid, cell, steps, origin)]
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _cell(pid: int, cell: CellRecord, steps: Iterable[TimedStep], origin: int) -> Iterator[Event]:
    yield _name(pid, 0, "process_name", cell.name)
    for tid, track in TRACKS.items():
        yield _name(pid, tid, "thread_name", track)
    for request in cell.requests:
        shared = {"name": request.request_id, "cat": "request", "id": request.request_id, "pid": pid, "tid": 0}
        yield shared | {"ph": "b", "ts": _us(request.sent_ns - origin), "args": {"tokens in": request.n_in}}
        yield shared | {"ph": "n", "name": "first token", "ts": _us(request.token_ns[0] - origin)}
        yield shared | {"ph": "e", "ts": _us(request.token_ns[-1] - origin), "args": {"tokens out": request.n_out}}
    for step in steps:
        yield from _step(pid, step, origin)


def _step(pid: int, step: TimedStep, origin: int) -> Iterator[Event]:
    record = step.record
    phases = {
        "schedule": record.schedule_ns,
        "prepare": record.prepare_ns,
        "execute": record.execute_ns,
        "sample": record.sample_ns,
        "detokenise": record.detokenise_ns,
    }
    at = record.start_ns - origin
    kind = "decode" if record.is_decode else "prefill"
    sizes = {"tokens": record.tokens, "sequences": record.seqs, "context": record.cached_tokens}
    yield _span(pid, STEPS, kind, at, sum(phases.values()), sizes)
    for name, ns in phases.items():
        yield _span(pid, PHASES, name, at, ns, {})
        if name == "execute":
            yield from _nodes(pid, step, at)
        at += ns


def _nodes(pid: int, step: TimedStep, at: int) -> Iterator[Event]:
    for label, ns in step.nodes:
        yield _span(pid, NODES, label, at, ns, {})
        at += ns


def _span(pid: int, tid: int, name: str, at_ns: int, ns: int, args: Mapping[str, Any]) -> Event:
    span = {"name": name, "cat": TRACKS[tid], "ph": "X", "ts": _us(at_ns), "dur": _us(ns), "pid": pid, "tid": tid}
    return span | ({"args": args} if args else {})


def _name(pid: int, tid: int, what: str, name: str) -> Event:
    return {"name": what, "ph": "M", "pid": pid, "tid": tid, "args": {"name": name}}


def _us(ns: int) -> float:
    return ns / 1e3
