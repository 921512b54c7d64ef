"""A time budget buys blocks by measured launch times."""

import pytest

import simulated
from fuseboard.core.errors import UserError
from fuseboard.measure import budget, stats
from fuseboard.measure.analysis import analyse
from fuseboard.measure.record import DesignRecord


def pilot() -> tuple[DesignRecord, list]:  # type: ignore[type-arg]
    analysis = analyse(simulated.experiment(["quick"], blocks=2))
    return analysis.design, list(analysis.launches)


def test_times_are_read() -> None:
    assert [budget.seconds(t) for t in ("20m", "90s", "2h", "45", "1.5 min")] == [1200, 90, 7200, 45, 90]
    for bad in ("", "m", "-3m", "20 years", "inf", "nan"):
        with pytest.raises(UserError, match="--budget"):
            budget.seconds(bad)


def test_blocks_fit_the_budget() -> None:
    design, launches = pilot()
    block_s = sum(budget.launch_s(r) for r in launches) / 2
    found = budget.plan(design, launches, 10 * block_s)
    assert found.blocks in (8, 9)
    assert "80 % power" in found.sentence
    assert budget.plan(design, launches, 1e9).blocks == budget.MOST_BLOCKS
    least = budget.plan(design, launches, 0.5 * block_s)
    assert least.blocks == budget.LEAST_BLOCKS
    assert "less than the two" in least.sentence


def test_answers_and_profiles_cost_blocks() -> None:
    design, launches = pilot()
    block_s = sum(budget.launch_s(r) for r in launches) / 2
    plain = budget.plan(design, launches, 10 * block_s).blocks
    assert budget.plan(design, launches, 10 * block_s, profiled=True).blocks <= plain


def test_the_promise_is_kept_by_the_run() -> None:
    """What the pilot says that n blocks will see is what n blocks do see, within the noise of its own estimate."""
    design, launches = pilot()
    text = budget.plan(design, launches, 1e9).sentence
    promised = float(text.rsplit("gains from ", 1)[1].split(" %")[0])
    whole = analyse(simulated.experiment(["quick"], blocks=budget.MOST_BLOCKS))
    seen = max(
        g.detectable
        for f in whole.findings
        if f.comparison.kind not in ("aa", "total") and (g := f.gain("4 at a time")) is not None
    )
    assert 0.5 < promised / (100 * seen) < 2
    assert stats.POWER == 0.8
