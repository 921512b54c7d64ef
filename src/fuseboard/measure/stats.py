"""Statistics of an experiment. The unit of evidence is the launch.

Model: log(metric of a launch) = block + arm + error, least squares, the error's variance pooled over all arms. With
complete blocks an arm's contrast is the mean of its paired log-ratios. Gains are logarithms of a speed ratio, so that
positive is faster and gains of a ladder add up.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

ALPHA = 0.05
POWER = 0.8
FASTER, SLOWER, EQUIVALENT, INCONCLUSIVE = "faster", "slower", "equivalent", "inconclusive"


@dataclass(frozen=True, kw_only=True)
class Observation:
    """`log_value` of one launch; `order` is its place within its block."""

    arm: str
    block: int
    order: int
    log_value: float


@dataclass(frozen=True, kw_only=True)
class Fit:
    """A fitted model. `covariance_AA` belongs to the arms' effects, without the factor `sigma`**2; `orders_N` is what
    arms and blocks leave unexplained of the launches' places."""

    arms: tuple[str, ...]
    effects_A: NDArray[np.float64]
    covariance_AA: NDArray[np.float64]
    sigma: float
    dof: int
    residuals_N: NDArray[np.float64]
    orders_N: NDArray[np.float64]

    def contrast(self, weights: Mapping[str, float]) -> tuple[float, float]:
        """Weighted sum of the arms' effects (the weights add up to 0) and its standard error."""
        weights_A = np.array([weights.get(arm, 0.0) for arm in self.arms])
        variance = float(weights_A @ self.covariance_AA @ weights_A)
        return float(weights_A @ self.effects_A), self.sigma * variance**0.5


def fit(observations: Sequence[Observation]) -> Fit | None:
    """Fit block + arm. None when nothing is left to estimate the error from."""
    arms = tuple(dict.fromkeys(o.arm for o in observations))
    blocks = tuple(dict.fromkeys(o.block for o in observations))
    dof = len(observations) - len(arms) - len(blocks) + 1
    if dof < 1 or len(arms) < 2:
        return None
    y_N = np.array([o.log_value for o in observations])
    design_NP = np.zeros((len(y_N), len(arms) + len(blocks) - 1))
    for row_P, o in zip(design_NP, observations, strict=True):
        row_P[arms.index(o.arm)] = 1.0
        if block := blocks.index(o.block):
            row_P[len(arms) + block - 1] = 1.0
    inverse_PP = np.linalg.pinv(design_NP.T @ design_NP).astype(np.float64)
    beta_P = inverse_PP @ design_NP.T @ y_N
    residuals_N = y_N - design_NP @ beta_P
    orders_N = np.array([o.order for o in observations], dtype=np.float64)
    return Fit(
        arms=arms,
        effects_A=beta_P[: len(arms)],
        covariance_AA=inverse_PP[: len(arms), : len(arms)],
        sigma=float((residuals_N @ residuals_N / dof) ** 0.5),
        dof=dof,
        residuals_N=residuals_N,
        orders_N=orders_N - design_NP @ (inverse_PP @ design_NP.T @ orders_N),
    )


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A gain (log of the speed ratio, positive is faster) with its 95 % interval and two-sided p-value."""

    gain: float
    error: float
    low: float
    high: float
    p: float
    dof: int

    @property
    def ratio(self) -> float:
        return float(np.exp(self.gain))


def estimate(model: Fit, weights: Mapping[str, float], *, lower_is_better: bool) -> Estimate | None:
    """The gain of a weighted sum of arms, such as {treatment: 1, reference: -1}; None when one has no launch."""
    from scipy import special

    if not set(weights) <= set(model.arms):
        return None
    difference, error = model.contrast(weights)
    gain = -difference if lower_is_better else difference
    error = max(error, 1e-12)
    half = float(special.stdtrit(model.dof, 1 - ALPHA / 2)) * error
    p = 2 * float(special.stdtr(model.dof, -abs(gain) / error))
    return Estimate(gain=gain, error=error, low=gain - half, high=gain + half, p=p, dof=model.dof)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values: rejecting those below alpha keeps the family-wise error at alpha."""
    adjusted = [1.0] * len(p_values)
    highest = 0.0
    for rank, i in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = highest
    return adjusted


def verdict(found: Estimate, adjusted_p: float, margin: float) -> str:
    """faster or slower when Holm allows it; equivalent when the 90 % interval lies within the margin (two one-sided
    tests at 5 %); otherwise inconclusive."""
    from scipy import special

    if adjusted_p < ALPHA:
        return FASTER if found.gain > 0 else SLOWER
    half = float(special.stdtrit(found.dof, 1 - ALPHA)) * found.error
    within = abs(found.gain) + half < float(np.log1p(margin))
    return EQUIVALENT if within else INCONCLUSIVE


def power(gain: float, error: float, dof: int, alpha: float) -> float:
    """Chance that a two-sided t test at `alpha` finds a true gain."""
    from scipy import special, stats

    critical = float(special.stdtrit(dof, 1 - alpha / 2))
    shifted = stats.nct(dof, gain / error)
    above, below = float(shifted.sf(critical)), float(shifted.cdf(-critical))
    # Far out the library gives nan: there the near side is certain and the far side impossible.
    return (1.0 if np.isnan(above) else above) + (0.0 if np.isnan(below) else below)


def smallest_detectable(error: float, dof: int, comparisons: int) -> float:
    """The true gain that is found with 80 % power even as the first step of Holm over `comparisons`."""
    from scipy import optimize

    alpha = ALPHA / max(1, comparisons)
    scale = float(optimize.brentq(lambda d: power(d, 1.0, dof, alpha) - POWER, 0.1, 200.0, xtol=1e-3))
    return scale * error


def drift_p(model: Fit) -> float:
    """p-value of a trend of the times with the place in the block, beside arms and blocks: small when late launches
    differ from early ones."""
    from scipy import special

    spread = float(model.orders_N @ model.orders_N)
    if model.dof < 2 or spread < 1e-9:
        return 1.0
    slope = float(model.orders_N @ model.residuals_N) / spread
    left = float(model.residuals_N @ model.residuals_N) - slope**2 * spread
    error = (max(left, 1e-30) / (model.dof - 1) / spread) ** 0.5
    return 2 * float(special.stdtr(model.dof - 1, -abs(slope) / error))


def paired(observations: Sequence[Observation], treatment: str, reference: str) -> list[float]:
    """log(treatment / reference) of every block that holds both; launches of one arm in a block are averaged."""
    by_block: dict[int, dict[str, list[float]]] = {}
    for o in observations:
        by_block.setdefault(o.block, {}).setdefault(o.arm, []).append(o.log_value)
    pairs: list[Mapping[str, list[float]]] = [b for b in by_block.values() if treatment in b and reference in b]
    return [float(np.mean(b[treatment]) - np.mean(b[reference])) for b in pairs]
