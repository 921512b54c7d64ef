"""The client against a server whose every write is recorded: what it reports is what the server did."""

import asyncio
import json
from collections.abc import Callable, Sequence
from statistics import quantiles

import pytest
import scripted_server as say
from scripted_server import Reply, ScriptedServer, Served

from fuseboard.measure import client, metrics
from fuseboard.measure.client import HttpRecord, HttpRequest, Load, Target

MS = 1e6


def requests(count: int, arrivals: Sequence[float] | None = None) -> list[HttpRequest]:
    return [
        HttpRequest(
            request_id=str(i),
            body=json.dumps({"i": i}).encode(),
            n_in=10,
            n_out=4,
            arrival_s=arrivals[i] if arrivals else None,
        )
        for i in range(count)
    ]


def load(
    server: ScriptedServer, sent: list[HttpRequest], *, concurrency: int | None = None, timeout_s: float = 20.0
) -> Load:
    async def run() -> Load:
        target = Target(url=server.url + "/v1/completions", headers={"X-Test": "yes"}, timeout_s=timeout_s)
        async with client.session() as http:
            return await client.run_load(http, target, sent, name="test", concurrency=concurrency)

    return asyncio.run(run())


def only(reply: Reply, *, timeout_s: float = 20.0) -> HttpRecord:
    """The record of one request that gets this reply."""
    with ScriptedServer(lambda served, n: reply) as server:
        (record,) = load(server, requests(1), timeout_s=timeout_s).requests
    return record


def always(reply: Reply) -> Callable[[Served, int], Reply]:
    return lambda served, n: reply


def close_to(found: Sequence[float], truth: Sequence[float]) -> None:
    """Within 1 ms and 1 % in the quarter that a busy machine disturbed least; wrong accounting would be in all."""
    assert len(found) == len(truth)
    errors = [abs(a - b) - 0.01 * b for a, b in zip(found, truth, strict=True)]
    assert quantiles(errors, n=4)[0] < 1.0


def test_reported_times_are_those_that_the_server_recorded() -> None:
    reply = say.completion(10, 6, first_s=0.03, gap_s=0.01)
    with ScriptedServer(always(reply)) as server:
        records = load(server, requests(24), concurrency=2).requests
        served = {s.body["i"]: s for s in server.served}
    pairs = [(r, served[int(r.request_id)]) for r in records]
    assert all(r.ok and r.n_out == 6 and r.knows_tokens for r in records)
    close_to([metrics.ttft_ms(r) or 0.0 for r, _ in pairs], [(s.written_ns[0] - s.received_ns) / MS for _, s in pairs])
    close_to(
        [metrics.tpot_ms(r) or 0.0 for r, _ in pairs],
        [(s.written_ns[5] - s.written_ns[0]) / 5 / MS for _, s in pairs],
    )
    close_to([metrics.e2e_ms(r) or 0.0 for r, _ in pairs], [(s.written_ns[5] - s.received_ns) / MS for _, s in pairs])
    close_to(
        [gap for r, _ in pairs for gap in metrics.itl_ms(r)],
        [(s.written_ns[i + 1] - s.written_ns[i]) / MS for _, s in pairs for i in range(5)],
    )


def test_times_are_in_order_on_the_servers_clock() -> None:
    with ScriptedServer(always(say.completion(10, 3, first_s=0.01, gap_s=0.005))) as server:
        (record,) = load(server, requests(1, [0.02])).requests
        (served,) = server.served
    assert record.due_ns is not None
    assert record.first_byte_ns is not None
    assert record.due_ns <= record.sent_ns <= served.received_ns <= served.written_ns[0] <= record.token_ns[0]
    assert served.received_ns <= record.first_byte_ns <= record.chunk_ns[0]
    assert record.chunk_ns[-1] <= record.end_ns
    assert served.headers["x-test"] == "yes"


def test_an_open_loop_sends_at_its_times_and_counts_from_them() -> None:
    arrivals = [0.0, 0.03, 0.05, 0.2]
    with ScriptedServer(always(say.completion(10, 4, first_s=0.06))) as server:
        done = load(server, requests(4, arrivals))
    start = done.cell.start_ns
    assert [(r.due_ns - start) / 1e9 for r in done.requests if r.due_ns] == pytest.approx(arrivals)
    assert metrics.max_in_flight(done.cell) >= 2, "nobody waits for an earlier answer"
    lags = [r.lag_ms for r in done.requests]
    for record, lag in zip(done.requests, lags, strict=True):
        ttft = metrics.ttft_ms(record)
        assert lag is not None
        assert ttft is not None
        assert lag >= 0
        assert ttft == pytest.approx((record.token_ns[0] - record.sent_ns + record.queued_ns) / MS + lag)


def test_waiting_for_a_place_is_part_of_an_open_loops_latency() -> None:
    with ScriptedServer(always(say.completion(10, 4, first_s=0.05))) as server:
        first, second = load(server, requests(2, [0.0, 0.0]), concurrency=1).requests
        last_write = server.served[0].written_ns[-1]
    assert second.sent_ns >= last_write, "one at a time"
    assert (metrics.ttft_ms(second) or 0.0) >= (metrics.ttft_ms(first) or 0.0) + 45
    assert second.queued_ns / MS >= 45
    assert second.due_ns is not None
    assert second.lag_ms == pytest.approx((second.sent_ns - second.due_ns - second.queued_ns) / MS)


def test_a_closed_loop_keeps_its_places_filled_and_its_connections_open() -> None:
    with ScriptedServer(always(say.completion(10, 4, first_s=0.01))) as server:
        done = load(server, requests(9), concurrency=3)
        assert server.connections == 3
    assert metrics.max_in_flight(done.cell) == 3
    assert [r.lag_ms for r in done.requests] == [None] * 9
    assert done.busy > 0


def test_an_answer_cut_into_single_bytes_is_the_same_answer() -> None:
    whole = b"".join([say.text(" ä"), say.text("漢"), say.finish(), say.usage(5, 2), say.DONE])
    record = only(Reply(steps=tuple(say.cut(whole, 3))))
    assert (record.n_in, record.n_out, record.finish_reason, record.error) == (5, 2, "length", None)
    assert record.token_ns[0] < record.token_ns[1]


def test_chunks_of_one_read_arrived_together() -> None:
    record = only(say.at_once(say.text("a"), say.text("b"), say.finish(), say.usage(5, 2), say.DONE))
    assert record.token_ns[0] == record.token_ns[1]
    assert metrics.chunk_gaps_ms(record) == ()
    assert metrics.itl_ms(record) == (0.0,)


def test_the_usage_counts_tokens_where_chunks_hold_several() -> None:
    first, last = say.text("a b c"), b"".join([say.text("d e f"), say.finish(), say.usage(50, 6), say.DONE])
    record = only(Reply(steps=((0.0, first), (0.02, last))))
    assert (record.n_in, record.n_in_sent, record.n_out) == (50, 10, 6)
    assert not record.knows_tokens
    assert metrics.tpot_ms(record) == pytest.approx((record.token_ns[1] - record.token_ns[0]) / 5 / MS)


def test_without_usage_chunks_are_counted() -> None:
    record = only(say.at_once(say.text("a"), say.text("b"), say.finish(), say.DONE))
    assert (record.usage_out, record.n_out, record.n_in, record.knows_tokens) == (None, 2, 10, False)


def test_one_token_has_no_time_per_token() -> None:
    record = only(say.completion(10, 1))
    assert record.ok
    assert metrics.tpot_ms(record) is None


def test_a_finished_answer_needs_no_done() -> None:
    assert only(say.at_once(say.text("a"), say.finish(), framing="close")).ok


def test_a_connection_that_closes_early_is_a_failure_that_keeps_its_times() -> None:
    for framing in ("close", "broken"):
        steps = ((0.0, say.text("a")), (0.03, say.text("b")), (0.03, b": ping\n\n"))
        record = only(Reply(steps=steps, framing=framing))
        assert record.error == "the connection was closed before the answer was finished"
        assert len(record.token_ns) == 2
        assert not record.ok


def test_a_server_that_hangs_after_done_costs_nothing() -> None:
    record = only(Reply(steps=((0.0, say.text("a") + say.finish() + say.DONE), (60.0, b"late"))))
    assert record.ok
    assert (record.end_ns - record.sent_ns) / 1e9 < 15


def test_an_error_after_200_is_a_failure() -> None:
    record = only(say.at_once(say.text("a"), say.event({"error": {"message": "out of blocks"}})))
    assert (record.status, record.error) == (200, "error in the stream: out of blocks")


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (say.failure("404 Not Found", b'{"error": {"message": "no model x"}}'), "HTTP 404: no model x"),
        (say.failure("500 Internal Server Error", b""), "HTTP 500: Internal Server Error"),
        (say.failure("200 OK", b'{"error": {"message": "busy"}}'), "HTTP 200: busy"),
        (say.failure("200 OK", b'{"choices": [{"text": "x"}]}'), "the server answered in one piece"),
        (Reply(status="307 Moved", headers=("Location: /v2",), framing="close"), "HTTP 307: moved to /v2"),
        (Reply(framing="close"), "the connection was closed before the answer was finished"),
        (Reply(status="nonsense", framing="close"), "the response is not HTTP: Bad status line"),
    ],
)
def test_a_refusal_is_a_failure_with_the_servers_words(reply: Reply, error: str) -> None:
    record = only(reply)
    assert record.error is not None
    assert record.error.startswith(error)
    assert not record.ok


def test_a_silent_server_is_given_up_after_the_timeout() -> None:
    record = only(Reply(steps=((0.0, say.text("a")), (60.0, b""))), timeout_s=0.3)
    assert record.error == "no complete answer within 0.3 s"
    assert len(record.token_ns) == 1


def test_a_server_that_is_not_there_fails_every_request() -> None:
    with ScriptedServer(always(say.completion(10, 4))) as server:
        pass
    records = load(server, requests(3)).requests
    assert all(r.error and "Cannot connect" in r.error for r in records)


def test_an_interrupted_load_keeps_what_was_sent() -> None:
    async def run(server: ScriptedServer) -> Load:
        target = Target(url=server.url + "/v1/completions")
        async with client.session() as http:
            work = asyncio.ensure_future(
                client.run_load(http, target, requests(3, [0.0, 0.0, 60.0]), name="test", concurrency=None)
            )
            while len(server.served) < 2 or len(server.served[0].written_ns) < 7:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.2)
            work.cancel()
            return await work

    hanging = Reply(steps=((0.0, say.text("a")), (60.0, b"")))
    with ScriptedServer(lambda served, n: say.completion(10, 4) if n == 0 else hanging) as server:
        done = asyncio.run(run(server))
    assert sorted(r.error or "" for r in done.requests) == ["", "interrupted"]
    assert [len(r.token_ns) for r in done.requests if r.error] == [1]


def test_failures_among_good_requests_are_counted_as_misses() -> None:
    bad = say.failure("503 Service Unavailable", b'{"message": "overloaded"}')
    good = say.completion(10, 4, first_s=0.01)
    with ScriptedServer(lambda served, n: bad if served.body["i"] % 4 == 3 else good) as server:
        done = load(server, requests(8), concurrency=4)
    assert sum(r.ok for r in done.requests) == 6
    rate, goodput = metrics.request_throughput(done.cell), metrics.goodput(done.cell, ttft=60_000)
    assert goodput == rate
    assert rate is not None
    assert rate > 0
    assert metrics.goodput(done.cell, ttft=1) == 0
