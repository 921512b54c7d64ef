"""Service-level objectives: limits on latencies, and how likely a configuration is to keep them."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fuseboard.core.errors import UserError
from fuseboard.measure import metrics
from fuseboard.measure.record import CellRecord, RequestRecord

DRAWS = 4000
MIN_LAUNCHES = 3
"""Fewer launches say too little of how they differ."""

LATENCIES: dict[str, Callable[[RequestRecord], tuple[float | None, ...]]] = {
    "ttft": lambda r: (metrics.ttft_ms(r),),
    "tpot": lambda r: (metrics.tpot_ms(r),),
    "itl": metrics.itl_ms,
    "e2e": lambda r: (metrics.e2e_ms(r),),
}
_UNITS = {"us": 1e-3, "ms": 1.0, "s": 1e3}
_FORM = re.compile(r"(?P<metric>[a-z0-9]+)_(?P<statistic>mean|p\d+(?:\.\d+)?)=(?P<value>[\d.]+)(?P<unit>[a-z]+)")


@dataclass(frozen=True, kw_only=True)
class Limit:
    """A latency whose `percentile` (None: mean) may be at most `most_ms` milliseconds."""

    metric: str
    percentile: float | None
    most_ms: float

    @property
    def name(self) -> str:
        return f"{self.metric}_{'mean' if self.percentile is None else f'p{self.percentile:g}'}"

    def __str__(self) -> str:
        return f"{self.name}={self.most_ms:g}ms"

    def of(self, cell: CellRecord) -> float | None:
        """The statistic in a cell, milliseconds; infinite when a request failed, None when none has the metric."""
        if any(not r.ok for r in cell.requests):
            return float("inf")
        values = [v for r in cell.requests for v in LATENCIES[self.metric](r) if v is not None]
        return float(self.statistic(np.array(values))) if values else None

    def statistic(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Over the last axis."""
        if self.percentile is None:
            return np.asarray(values.mean(axis=-1))
        return np.asarray(np.percentile(values, self.percentile, axis=-1, method="linear"))


def parse_slo(text: str) -> tuple[Limit, ...]:
    """`ttft_p95=500ms,tpot_p95=50ms` as limits; UserError for anything else."""
    limits = tuple(_limit(part.strip()) for part in text.split(",") if part.strip())
    if not limits:
        raise UserError("--slo is empty; write for example --slo ttft_p95=500ms,tpot_p95=50ms.")
    names = [limit.name for limit in limits]
    if twice := [name for name in names if names.count(name) > 1]:
        raise UserError(f"--slo limits {twice[0]} twice.")
    return limits


def _limit(part: str) -> Limit:
    found = _FORM.fullmatch(part)
    if found is None or found["metric"] not in LATENCIES or found["unit"] not in _UNITS:
        raise UserError(
            f"{part!r} is not a limit; write METRIC_STATISTIC=TIME with a metric of {', '.join(LATENCIES)}, mean or a "
            f"percentile, and a time in {', '.join(_UNITS)}, for example ttft_p95=500ms."
        )
    percentile = None if found["statistic"] == "mean" else float(found["statistic"][1:])
    try:
        most = float(found["value"]) * _UNITS[found["unit"]]
    except ValueError:
        most = 0.0
    if most <= 0 or not (percentile is None or 0 < percentile <= 100):
        raise UserError(f"{part!r} limits nothing; give a percentile of at most 100 and a time above 0.")
    return Limit(metric=found["metric"], percentile=percentile, most_ms=most)


def probability(limits: Sequence[Limit], launches: Sequence[Sequence[CellRecord]], seed: int = 0) -> float | None:
    """How likely the next launch of the same kind of load is to keep every limit in every cell.

    A draw takes requests of a random launch with replacement, which gives the noise of the traffic, and multiplies by
    the noise of a further launch: t-distributed around the launches' mean logarithm, with their spread (the predictive
    distribution of a normal sample). One t a draw serves all limits, as a slow launch is slow in everything. None below
    `MIN_LAUNCHES` launches.
    """
    if len(launches) < MIN_LAUNCHES:
        return None
    if any(not r.ok for cells in launches for cell in cells for r in cell.requests):
        return 0.0
    rng = np.random.default_rng(seed)
    t_D = rng.standard_t(len(launches) - 1, DRAWS)
    kept_D = np.ones(DRAWS, dtype=bool)
    for index in range(len(launches[0])):
        cells = [cells[index] for cells in launches]
        rows = [rng.integers(len(c.requests), size=(DRAWS, len(c.requests))) for c in cells]
        chosen_D = rng.integers(len(cells), size=DRAWS)
        for limit in limits:
            kept_D &= _kept(limit, cells, rows, chosen_D, t_D)
    return float(kept_D.mean())


def _kept(
    limit: Limit,
    cells: Sequence[CellRecord],
    rows: Sequence[NDArray[np.int64]],
    chosen_D: NDArray[np.int64],
    t_D: NDArray[np.float64],
) -> NDArray[np.bool_]:
    measured = [limit.of(cell) for cell in cells]
    logs_L = np.log([max(value, 1e-9) for value in measured if value is not None])
    if len(logs_L) < len(cells):
        return np.ones(DRAWS, dtype=bool)
    next_D = logs_L.mean() + t_D * logs_L.std(ddof=1) * (1 + 1 / len(logs_L)) ** 0.5
    for launch, (cell, rows_DR) in enumerate(zip(cells, rows, strict=True)):
        mine_D = chosen_D == launch
        drawn_D = np.log(np.maximum(_resampled(limit, cell, rows_DR[mine_D]), 1e-9))
        next_D[mine_D] += drawn_D - logs_L[launch]
    return np.asarray(next_D <= np.log(limit.most_ms))


def _resampled(limit: Limit, cell: CellRecord, rows_DR: NDArray[np.int64]) -> NDArray[np.float64]:
    """The statistic of each draw of requests. All values of a request (its gaps, for ITL) come along."""
    values = [np.array([v for v in LATENCIES[limit.metric](r) if v is not None]) for r in cell.requests]
    if all(len(v) == len(values[0]) for v in values):
        return limit.statistic(np.stack(values)[rows_DR].reshape(len(rows_DR), -1))
    joined = (np.concatenate([values[i] for i in rows_R]) for rows_R in rows_DR)
    return np.array([float(limit.statistic(v)) if v.size else 0.0 for v in joined])
