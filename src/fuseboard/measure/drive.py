"""Sends the requests of a cell to an engine in this process and takes the times."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Protocol

from fuseboard.core.errors import RequestError
from fuseboard.measure.record import CellRecord, RequestRecord, StepSums
from fuseboard.measure.workload import Cell, Request

PHASES = ("schedule_ns", "prepare_ns", "execute_ns", "sample_ns", "detokenise_ns")


class Event(Protocol):
    """A token of a request, with the monotonic time it became available."""

    @property
    def request_id(self) -> str: ...
    @property
    def token_id(self) -> int | None: ...
    @property
    def time_ns(self) -> int: ...
    @property
    def finish_reason(self) -> str | None: ...
    @property
    def error(self) -> Exception | None: ...


class Engine(Protocol):
    """The part of an engine that a measurement drives."""

    @property
    def has_work(self) -> bool: ...
    def step(self) -> Sequence[Event]: ...
    def abort(self, request_id: str) -> object: ...


Submit = Callable[[str, Request], None]
"""Gives a request to the engine; raises RequestError when the engine refuses it."""


class _Run:
    """State of one cell: what waits, what is in flight, what came back."""

    def __init__(self, engine: Engine, submit: Submit, cell: Cell, deadline_ns: int | None) -> None:
        self._engine, self._submit = engine, submit
        self._deadline_ns = deadline_ns
        self._waiting = deque((f"{cell.name}/{i}", request) for i, request in enumerate(cell.requests))
        self._concurrency = cell.concurrency
        self._in_flight: set[str] = set()
        self._start_ns = time.monotonic_ns()
        self.records: dict[str, RequestRecord] = {}
        self._tokens: dict[str, list[tuple[int, int]]] = {}

    def run(self) -> None:
        while self._waiting or self._in_flight:
            self._send_due()
            if self._in_flight:
                for event in self._engine.step():
                    self._take(event)
            elif self._waiting:
                time.sleep(max(0, self._due_ns(self._waiting[0][1]) - time.monotonic_ns()) / 1e9)
            if self._deadline_ns is not None and time.monotonic_ns() > self._deadline_ns:
                return self._stop()
        return None

    def _due_ns(self, request: Request) -> int:
        return self._start_ns + round((request.arrival_s or 0.0) * 1e9)

    def _send_due(self) -> None:
        now = time.monotonic_ns()
        while self._waiting and (self._concurrency is None or len(self._in_flight) < self._concurrency):
            request_id, request = self._waiting[0]
            if self._due_ns(request) > now:
                return
            self._waiting.popleft()
            self._send(request_id, request)

    def _send(self, request_id: str, request: Request) -> None:
        due_ns = None if request.arrival_s is None else self._due_ns(request)
        record = RequestRecord(
            request_id=request_id,
            n_in=len(request.token_ids),
            n_out_wanted=request.n_out,
            sent_ns=time.monotonic_ns(),
            due_ns=due_ns,
        )
        self._tokens[request_id] = []
        try:
            self._submit(request_id, request)
            self._in_flight.add(request_id)
        except RequestError as error:
            record = replace(record, error=str(error))
        self.records[request_id] = record

    def _take(self, event: Event) -> None:
        if event.token_id is not None:
            self._tokens[event.request_id].append((event.time_ns, event.token_id))
        if event.finish_reason is not None:
            self._in_flight.discard(event.request_id)
            self._close(event.request_id, event.finish_reason, event.error)

    def _close(self, request_id: str, reason: str, error: Exception | None = None) -> None:
        tokens = self._tokens[request_id]
        record = self.records[request_id]
        short = None if len(tokens) == record.n_out_wanted else f"{len(tokens)} of {record.n_out_wanted} tokens"
        self.records[request_id] = replace(
            record,
            token_ns=tuple(t for t, _ in tokens),
            token_ids=tuple(i for _, i in tokens),
            finish_reason=reason,
            error=str(error) if error else short,
        )

    def _stop(self) -> None:
        for request_id in sorted(self._in_flight):
            self._engine.abort(request_id)
            self._close(request_id, "deadline")
        self._in_flight.clear()
        self._waiting.clear()
        while self._engine.has_work:
            self._engine.step()


def run_cell(engine: Engine, submit: Submit, cell: Cell, *, deadline_ns: int | None = None) -> CellRecord:
    """Run every request of the cell; past the deadline (monotonic ns) what is left is aborted.

    A request that gives another number of tokens than was wanted is recorded with an error.
    """
    start_ns = time.monotonic_ns()
    run = _Run(engine, submit, cell, deadline_ns)
    run.run()
    return CellRecord(
        name=cell.name,
        concurrency=cell.concurrency,
        start_ns=start_ns,
        end_ns=time.monotonic_ns(),
        requests=tuple(run.records.values()),
    )


def step_sums(steps: Iterable[Any]) -> tuple[StepSums, StepSums]:
    """Sums over a step log: of the steps in which all sequences decode, and of the others."""
    totals = {kind: dict.fromkeys(("steps", "tokens", "seqs", "most_seqs", *PHASES), 0) for kind in (True, False)}
    for step in steps:
        into = totals[bool(step.is_decode)]
        into["steps"] += 1
        into["most_seqs"] = max(into["most_seqs"], step.seqs)
        for name in ("tokens", "seqs", *PHASES):
            into[name] += getattr(step, name)
    return StepSums(**totals[True]), StepSums(**totals[False])
