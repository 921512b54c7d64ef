"""The driver against an engine that gives every request in flight one token a step."""

import time
from dataclasses import dataclass

from fuseboard.core.errors import RequestError
from fuseboard.measure.drive import run_cell, step_sums
from fuseboard.measure.workload import Cell, Request


@dataclass(frozen=True)
class Event:
    request_id: str
    token_id: int | None
    time_ns: int
    finish_reason: str | None = None
    error: Exception | None = None


class OneTokenAStep:
    def __init__(self, fail_on: str | None = None) -> None:
        self.live: dict[str, int] = {}
        self.most = 0
        self.aborted: list[str] = []
        self.fail_on = fail_on

    @property
    def has_work(self) -> bool:
        return bool(self.live)

    def submit(self, request_id: str, request: Request) -> None:
        if len(request.token_ids) > 100:
            raise RequestError("The prompt is too long.")
        self.live[request_id] = request.n_out

    def step(self) -> list[Event]:
        self.most = max(self.most, len(self.live))
        time.sleep(0.001)
        events = []
        for request_id in list(self.live):
            if request_id == self.fail_on:
                del self.live[request_id]
                events.append(Event(request_id, None, time.monotonic_ns(), "error", ArithmeticError("not finite")))
                continue
            self.live[request_id] -= 1
            done = self.live[request_id] == 0
            if done:
                del self.live[request_id]
            events.append(Event(request_id, 7, time.monotonic_ns(), "length" if done else None))
        return events

    def abort(self, request_id: str) -> None:
        self.aborted.append(request_id)
        self.live.pop(request_id, None)


def cell(*lengths: tuple[int, int], concurrency: int | None, arrivals: tuple[float, ...] = ()) -> Cell:
    times = arrivals or (None,) * len(lengths)
    requests = tuple(
        Request(token_ids=tuple(range(n)), n_out=out, arrival_s=at) for (n, out), at in zip(lengths, times, strict=True)
    )
    return Cell(name="c", requests=requests, concurrency=concurrency)


def test_closed_loop_keeps_the_concurrency() -> None:
    engine = OneTokenAStep()
    done = run_cell(engine, engine.submit, cell((3, 4), (3, 2), (3, 5), (3, 1), concurrency=2))
    assert engine.most == 2
    assert [(r.n_in, r.n_out, r.error) for r in done.requests] == [(3, n, None) for n in (4, 2, 5, 1)]
    for request in done.requests:
        assert request.token_ids == (7,) * request.n_out
        assert done.start_ns <= request.sent_ns < request.token_ns[0] <= request.token_ns[-1] <= done.end_ns


def test_open_loop_sends_when_due() -> None:
    engine = OneTokenAStep()
    done = run_cell(engine, engine.submit, cell((3, 2), (3, 2), concurrency=None, arrivals=(0.0, 0.05)))
    first, second = done.requests
    assert second.due_ns is not None
    assert second.sent_ns >= second.due_ns
    assert second.sent_ns > first.token_ns[-1], "nothing is sent before its time"


def test_refused_and_failed_requests_are_errors_and_the_rest_goes_on() -> None:
    engine = OneTokenAStep(fail_on="c/1")
    done = run_cell(engine, engine.submit, cell((200, 2), (3, 2), (3, 2), concurrency=1))
    assert [r.error for r in done.requests] == ["The prompt is too long.", "not finite", None]
    assert [r.ok for r in done.requests] == [False, False, True]


def test_past_the_deadline_everything_is_aborted() -> None:
    engine = OneTokenAStep()
    deadline = time.monotonic_ns() + 10_000_000
    done = run_cell(engine, engine.submit, cell((3, 100_000), (3, 5), concurrency=1), deadline_ns=deadline)
    assert engine.aborted == ["c/0"]
    assert not engine.has_work
    assert done.requests[0].error is not None


def test_steps_are_summed_by_kind() -> None:
    @dataclass(frozen=True)
    class Step:
        is_decode: bool
        tokens: int
        seqs: int = 1
        schedule_ns: int = 1
        prepare_ns: int = 2
        execute_ns: int = 3
        sample_ns: int = 4
        detokenise_ns: int = 5

    decode, prefill = step_sums([Step(True, 1), Step(False, 40), Step(True, 1)])
    assert (decode.steps, decode.tokens, decode.execute_ns, decode.total_ns) == (2, 2, 6, 30)
    assert (prefill.steps, prefill.tokens, prefill.total_ns) == (1, 40, 15)
