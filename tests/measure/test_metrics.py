"""Metrics against hand-made times."""

import dataclasses

import pytest

from fuseboard.measure import metrics
from fuseboard.measure.record import CellRecord, RequestRecord, StepSums

MS = 1_000_000


def request(name: str, sent: int, times: tuple[int, ...], n_in: int = 10, **fields: object) -> RequestRecord:
    return RequestRecord(
        request_id=name, n_in=n_in, n_out_wanted=len(times), sent_ns=sent * MS,
        token_ns=tuple(t * MS for t in times), token_ids=tuple(range(len(times))), **fields,  # type: ignore[arg-type]
    )  # fmt: skip


def cell(*requests: RequestRecord, **fields: object) -> CellRecord:
    return CellRecord(name="c", concurrency=2, start_ns=0, end_ns=0, requests=requests, **fields)  # type: ignore[arg-type]


def test_times_of_a_request() -> None:
    r = request("a", 5, (25, 35, 65))
    assert metrics.ttft_ms(r) == 20
    assert metrics.tpot_ms(r) == 20
    assert metrics.e2e_ms(r) == 60
    assert metrics.itl_ms(r) == (10, 30)


def test_tpot_of_one_token_is_nothing_and_not_zero() -> None:
    assert metrics.tpot_ms(request("a", 0, (10,))) is None
    assert metrics.ttft_ms(request("a", 0, ())) is None


def test_tokens_of_one_step_are_one_arrival() -> None:
    r = request("a", 0, (10, 10, 10, 20))
    assert metrics.itl_ms(r) == (0, 0, 10)
    assert metrics.chunk_gaps_ms(r) == (10,)


def test_open_loop_latency_counts_from_the_scheduled_send() -> None:
    late = dataclasses.replace(request("a", 50, (70, 80)), due_ns=10 * MS)
    assert metrics.ttft_ms(late) == 60
    assert metrics.duration_s(cell(late)) == pytest.approx(0.070)


def test_rates_of_a_cell() -> None:
    c = cell(
        request("a", 0, (100, 200, 300), n_in=30),
        request("b", 0, (250, 400), n_in=50),
        prefill=StepSums(steps=2, execute_ns=40 * MS),
    )
    assert metrics.duration_s(c) == pytest.approx(0.4)
    assert metrics.output_throughput(c) == pytest.approx(5 / 0.4)
    assert metrics.total_throughput(c) == pytest.approx(85 / 0.4)
    assert metrics.request_throughput(c) == pytest.approx(2 / 0.4)
    assert metrics.decode_throughput(c) == pytest.approx(3 / 0.3), "100 to 400 without a gap"
    assert metrics.prefill_throughput(c) == pytest.approx(80 / 0.04)
    assert metrics.max_in_flight(c) == 2


def test_decode_throughput_leaves_out_the_time_without_decode() -> None:
    c = cell(request("a", 0, (100, 200)), request("b", 200, (600, 700)))
    assert metrics.decode_throughput(c) == pytest.approx(2 / 0.2)
    assert metrics.max_in_flight(c) == 1


def test_goodput_counts_failures_as_misses() -> None:
    good, slow = request("a", 0, (50, 60)), request("b", 0, (900, 1000))
    failed = dataclasses.replace(request("c", 0, ()), error="refused")
    c = cell(good, slow, failed)
    assert metrics.goodput(c, ttft=100) == pytest.approx(1 / 1.0)
    assert metrics.goodput(c) == pytest.approx(2 / 1.0)


def test_percentiles_are_linear_and_say_their_n() -> None:
    d = metrics.distribution([4.0, 1.0, None, 2.0, 3.0])
    assert d is not None
    assert (d.n, d.mean, d.p50, d.p90) == (4, 2.5, 2.5, pytest.approx(3.7))
    assert d.p99_flagged
    assert metrics.distribution([]) is None
    large = metrics.distribution(range(100))
    assert large is not None
    assert not large.p99_flagged


def test_a_cell_without_an_answer_has_no_numbers() -> None:
    c = cell(dataclasses.replace(request("a", 0, ()), error="refused"))
    assert [m.of(c) for m in metrics.METRICS] == [None] * len(metrics.METRICS)
