"""The instrument on simulated experiments whose truth is known; all seeds are fixed."""

import numpy as np
import pytest

from fuseboard.measure import design as designs
from fuseboard.measure import stats

SIGMA = 0.02
ARMS = ("base", "same", "a", "b", "c", "d", "e", "f")


def simulate(seed: int, effects: dict[str, float], blocks: int = 5, sigma: float = SIGMA) -> list[stats.Observation]:
    """Launches with block effects far above the launch noise; an effect is a log time difference."""
    rng = np.random.default_rng(seed)
    block_effects = rng.normal(0, 0.3, blocks)
    return [
        stats.Observation(
            arm=arm, block=b, order=i, log_value=block_effects[b] + effects.get(arm, 0.0) + rng.normal(0, sigma)
        )
        for b in range(blocks)
        for i, arm in enumerate(ARMS)
    ]


def estimates(seed: int, effects: dict[str, float], blocks: int = 5) -> dict[str, stats.Estimate]:
    model = stats.fit(simulate(seed, effects, blocks))
    assert model is not None
    found = {arm: stats.estimate(model, {arm: 1.0, "base": -1.0}, lower_is_better=True) for arm in ARMS[1:]}
    return {arm: e for arm, e in found.items() if e is not None}


def test_fit_equals_paired_differences_in_complete_blocks() -> None:
    observations = simulate(1, {"a": 0.1})
    model = stats.fit(observations)
    assert model is not None
    pairs = stats.paired(observations, "a", "base")
    assert model.contrast({"a": 1.0, "base": -1.0})[0] == pytest.approx(np.mean(pairs), abs=1e-12)
    assert model.dof == 5 * 8 - (5 + 8 - 1)


def test_a_missing_launch_leaves_an_unbiased_fit() -> None:
    observations = [o for o in simulate(2, {"a": -0.5}, sigma=0.0) if (o.arm, o.block) != ("a", 0)]
    model = stats.fit(observations)
    assert model is not None
    found = stats.estimate(model, {"a": 1.0, "base": -1.0}, lower_is_better=True)
    assert found is not None
    assert found.gain == pytest.approx(0.5)


def test_repeated_baseline_launches_sharpen_the_contrast() -> None:
    once = simulate(3, {})
    twice = once + [stats.Observation(arm="base", block=b, order=9, log_value=0.0) for b in range(5)]
    first, second = stats.fit(once), stats.fit(twice)
    assert first is not None
    assert second is not None
    contrast = {"a": 1.0, "base": -1.0}
    assert second.contrast(contrast)[1] / second.sigma < first.contrast(contrast)[1] / first.sigma


def test_nothing_can_be_said_from_one_block() -> None:
    assert stats.fit(simulate(4, {}, blocks=1)) is None


@pytest.mark.parametrize("blocks", [3, 5])
def test_family_wise_false_positives(blocks: int) -> None:
    """With no true effect, an experiment that calls anything faster or slower is wrong: at most 5 % of them."""
    n, wrong = 1000, 0
    for seed in range(n):
        found = list(estimates(seed, {}, blocks).values())
        adjusted = stats.holm([e.p for e in found])
        verdicts = [stats.verdict(e, p, 0.02) for e, p in zip(found, adjusted, strict=True)]
        wrong += stats.FASTER in verdicts or stats.SLOWER in verdicts
    assert wrong / n <= 0.05 + 2 * (0.05 * 0.95 / n) ** 0.5


def test_false_positives_stay_bounded_beside_true_effects() -> None:
    n, wrong = 1000, 0
    for seed in range(n):
        found = estimates(seed, {"a": -0.3, "b": 0.3})
        adjusted = dict(zip(found, stats.holm([e.p for e in found.values()]), strict=True))
        wrong += any(adjusted[arm] < stats.ALPHA for arm in found if arm not in ("a", "b"))
    assert wrong / n <= 0.05 + 2 * (0.05 * 0.95 / n) ** 0.5


def test_intervals_cover_the_truth() -> None:
    truth = {"a": -0.05, "b": 0.01, "c": -0.4}
    covered = total = 0
    for seed in range(1000):
        for arm, e in estimates(seed, truth, blocks=3).items():
            covered += e.low <= -truth.get(arm, 0.0) <= e.high
            total += 1
    assert covered / total >= 0.93


def test_the_promised_power_is_kept() -> None:
    """A planted effect of the size that the run promised to see is found in 80 % of the runs, Holm included."""
    error = SIGMA * (2 / 5) ** 0.5
    promised = stats.smallest_detectable(error, 28, len(ARMS) - 1)
    assert 0.03 < promised < 0.07
    n, hits = 1000, 0
    for seed in range(n):
        found = estimates(seed, {"c": -promised})
        adjusted = dict(zip(found, stats.holm([e.p for e in found.values()]), strict=True))
        hits += stats.verdict(found["c"], adjusted["c"], 0.02) == stats.FASTER
    assert hits / n >= 0.8 - 2 * (0.8 * 0.2 / n) ** 0.5


def test_five_percent_is_found_where_the_run_can_see_it() -> None:
    error = SIGMA * (2 / 5) ** 0.5
    planted = float(np.log(1.05))
    expected = stats.power(planted, error, 28, 0.05 / 7)
    assert expected > 0.8
    n, hits = 1000, 0
    for seed in range(n):
        found = estimates(seed, {"d": -planted})
        adjusted = dict(zip(found, stats.holm([e.p for e in found.values()]), strict=True))
        hits += adjusted["d"] < stats.ALPHA and found["d"].gain > 0
    assert hits / n >= expected - 2 * (expected * (1 - expected) / n) ** 0.5


def test_holm_against_a_worked_example() -> None:
    assert stats.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert stats.holm([]) == []
    assert stats.holm([0.7, 0.9]) == [1.0, 1.0]


def test_verdicts() -> None:
    sharp = stats.Estimate(gain=0.001, error=0.002, low=-0.003, high=0.005, p=0.6, dof=20)
    wide = stats.Estimate(gain=0.001, error=0.05, low=-0.1, high=0.1, p=0.9, dof=20)
    slow = stats.Estimate(gain=-0.3, error=0.01, low=-0.32, high=-0.28, p=1e-9, dof=20)
    assert stats.verdict(sharp, 1.0, 0.02) == stats.EQUIVALENT
    assert stats.verdict(wide, 1.0, 0.02) == stats.INCONCLUSIVE
    assert stats.verdict(slow, 1e-8, 0.02) == stats.SLOWER


def test_drift_is_noticed() -> None:
    steady = stats.fit(simulate(7, {}))
    drifting = stats.fit([
        stats.Observation(arm=ARMS[(i + 3 * b) % 8], block=b, order=i, log_value=0.02 * i + 0.001 * ((i * 7 + b) % 5))
        for b in range(5)
        for i in range(8)
    ])  # fmt: skip
    assert steady is not None
    assert drifting is not None
    assert stats.drift_p(steady) > 0.01
    assert stats.drift_p(drifting) < 0.01


def share(n: int, happens: object) -> float:
    return sum(bool(happens(seed)) for seed in range(n)) / n  # type: ignore[operator]


def at_most(rate: float, n: int) -> float:
    """The rate and two standard errors of its estimate."""
    return rate + 2 * (rate * (1 - rate) / n) ** 0.5


@pytest.mark.parametrize("blocks", [3, 5])
def test_identical_arms_are_told_apart_as_rarely_as_promised(blocks: int) -> None:
    assert share(1000, lambda seed: estimates(seed, {}, blocks)["same"].p < stats.ALPHA) <= at_most(0.05, 1000)


def with_orders(seed: int, blocks: int, slope: float) -> stats.Fit:
    """Launches in the orders that a design gives; each takes `slope` longer (log) than the one before it."""
    rng = np.random.default_rng(seed)
    observations = [
        stats.Observation(arm=arm, block=b, order=i, log_value=slope * i + rng.normal(0, SIGMA))
        for b, order in enumerate(designs.orders(list(ARMS), blocks, seed))
        for i, arm in enumerate(order)
    ]
    model = stats.fit(observations)
    assert model is not None
    return model


@pytest.mark.parametrize("blocks", [2, 3, 5])
def test_steady_machines_are_rarely_said_to_drift(blocks: int) -> None:
    assert share(1000, lambda seed: stats.drift_p(with_orders(seed, blocks, 0.0)) < 0.01) <= at_most(0.01, 1000)


def test_a_drift_of_the_size_of_the_noise_is_seen_and_cancels_in_pairs_of_blocks() -> None:
    assert share(200, lambda seed: stats.drift_p(with_orders(seed, 4, SIGMA / 2)) < 0.01) > 0.95
    gains = [with_orders(seed, 4, SIGMA / 2).contrast({"f": 1.0, "base": -1.0})[0] for seed in range(400)]
    assert abs(np.mean(gains)) < 3 * np.std(gains) / len(gains) ** 0.5


def test_intervals_of_interactions_and_means_over_orders_cover_the_truth() -> None:
    truth = {"a": -0.05, "b": 0.01, "c": -0.4}
    sums = (
        {"c": 1.0, "b": -1.0, "a": -1.0, "base": 1.0},
        {"a": 0.5, "base": -0.5, "c": 0.5, "b": -0.5},
        {"a": 1 / 3, "base": -2 / 3, "d": 1 / 3, "c": 1 / 3, "b": -1 / 3},
    )
    covered = total = 0
    for seed in range(1000):
        model = stats.fit(simulate(seed, truth, blocks=3))
        assert model is not None
        for weights in sums:
            found = stats.estimate(model, weights, lower_is_better=True)
            assert found is not None
            real = -sum(w * truth.get(arm, 0.0) for arm, w in weights.items())
            covered += found.low <= real <= found.high
            total += 1
    assert covered / total >= 0.93


def test_occasional_slow_launches_raise_no_false_alarms() -> None:
    """Noise with heavy tails (Student's t, 3 degrees of freedom): the family-wise error stays at its level."""

    def wrong(seed: int) -> bool:
        rng = np.random.default_rng(seed)
        noisy = [
            stats.Observation(arm=arm, block=b, order=i, log_value=SIGMA * float(rng.standard_t(3)))
            for b in range(5)
            for i, arm in enumerate(ARMS)
        ]
        model = stats.fit(noisy)
        assert model is not None
        found = [stats.estimate(model, {arm: 1.0, "base": -1.0}, lower_is_better=True) for arm in ARMS[1:]]
        return min(stats.holm([e.p for e in found if e])) < stats.ALPHA

    assert share(1000, wrong) <= at_most(0.05, 1000)


def test_equivalent_is_rarely_said_of_what_is_not() -> None:
    """An effect exactly at the margin is called equivalent in at most 5 % of the runs."""
    margin = 0.03

    def wrong(seed: int) -> bool:
        found = estimates(seed, {"a": float(np.log1p(margin))})["a"]
        return stats.verdict(found, 1.0, margin) == stats.EQUIVALENT

    assert share(1000, wrong) <= at_most(0.05, 1000)
