"""Limits in words, and probabilities of keeping them against a known truth."""

import math

import numpy as np
import pytest

from fuseboard.core.errors import UserError
from fuseboard.measure.record import CellRecord, RequestRecord
from fuseboard.measure.slo import Limit, parse_slo, probability


def cell(ttfts_ms: list[float], *, failed: bool = False, n_out: int = 3) -> CellRecord:
    requests = []
    for i, ttft in enumerate(ttfts_ms):
        first = round(ttft * 1e6)
        times = tuple(first + k * 10_000_000 for k in range(n_out))
        requests.append(
            RequestRecord(
                request_id=str(i), n_in=8, n_out_wanted=n_out, sent_ns=0, token_ns=times, error="no" if failed else None
            )
        )
    return CellRecord(name="cell", concurrency=1, start_ns=0, end_ns=1, requests=tuple(requests))


def test_limits_in_words() -> None:
    assert parse_slo("ttft_p95=500ms, tpot_mean=50us,e2e_p99.9=1.5s") == (
        Limit(metric="ttft", percentile=95.0, most_ms=500.0),
        Limit(metric="tpot", percentile=None, most_ms=0.05),
        Limit(metric="e2e", percentile=99.9, most_ms=1500.0),
    )
    assert str(parse_slo("e2e_p99.9=1.5s")[0]) == "e2e_p99.9=1500ms"


@pytest.mark.parametrize(
    "text",
    ["", "ttft", "ttft=5ms", "ttft_p95=5", "ttft_p95=5h", "speed_p95=5ms", "ttft_p101=5ms", "ttft_p0=5ms",
     "ttft_p95=0ms", "ttft_p95=1.2.3ms", "ttft_p95=5ms,ttft_p95=6ms", "ttft_p95=-5ms"],
)  # fmt: skip
def test_what_limits_nothing_is_refused(text: str) -> None:
    with pytest.raises(UserError):
        parse_slo(text)


def test_a_statistic_of_a_cell() -> None:
    values = [100.0, 200.0, 300.0, 400.0]
    assert Limit(metric="ttft", percentile=50.0, most_ms=1).of(cell(values)) == pytest.approx(250.0)
    assert Limit(metric="ttft", percentile=None, most_ms=1).of(cell(values)) == pytest.approx(250.0)
    assert Limit(metric="itl", percentile=95.0, most_ms=1).of(cell(values)) == pytest.approx(10.0)
    assert Limit(metric="tpot", percentile=95.0, most_ms=1).of(cell(values, n_out=1)) is None
    assert Limit(metric="ttft", percentile=50.0, most_ms=1).of(cell(values, failed=True)) == math.inf


def test_sure_and_hopeless_limits() -> None:
    launches = [[cell([100.0, 110.0, 120.0])], [cell([101.0, 109.0, 121.0])], [cell([99.0, 111.0, 119.0])]]
    assert (probability(parse_slo("ttft_p95=500ms"), launches) or 0) > 0.99
    assert probability(parse_slo("ttft_p95=50ms"), launches) == pytest.approx(0.0, abs=0.01)
    assert probability(parse_slo("ttft_p95=500ms,tpot_p95=1ms"), launches) == pytest.approx(0.0, abs=0.01)
    assert probability(parse_slo("ttft_p95=500ms"), launches[:2]) is None, "two launches say too little"
    broken = [*launches[:2], [cell([99.0], failed=True)]]
    assert probability(parse_slo("ttft_p95=500ms"), broken) == 0.0
    short = [[cell([100.0], n_out=1)]] * 3
    assert probability(parse_slo("tpot_p95=1ms"), short) == 1.0, "what no request has breaks no limit"


def test_the_worst_cell_decides() -> None:
    launches = [[cell([10.0 + i]), cell([300.0 + i])] for i in range(4)]
    assert probability(parse_slo("ttft_p95=200ms"), launches) == pytest.approx(0.0, abs=0.02)


@pytest.mark.parametrize(("z", "expected"), [(0.0, 0.5), (1.0, 0.84), (2.0, 0.977)])
def test_the_probability_is_right_on_average(z: float, expected: float) -> None:
    """Launches whose logarithms are normal: the chance that the next one keeps a limit z deviations up is known."""
    rng = np.random.default_rng(1)
    limit = (Limit(metric="ttft", percentile=95.0, most_ms=100.0 * math.exp(0.05 * z)),)
    found = []
    for _ in range(60):
        launches = [[cell([100.0 * math.exp(x)] * 4)] for x in rng.normal(0, 0.05, 5)]
        found.append(probability(limit, launches) or 0.0)
    assert np.mean(found) == pytest.approx(expected, abs=0.07)


def test_noise_of_the_traffic_counts_too() -> None:
    """The same launch three times: two of four draws must be the slow request to break the limit, 26 of 100 times."""
    launches = [[cell([100.0, 100.0, 100.0, 900.0])]] * 3
    assert probability(parse_slo("ttft_p50=400ms"), launches) == pytest.approx(0.738, abs=0.03)
