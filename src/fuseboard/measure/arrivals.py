"""When the requests of an open loop are sent."""

from dataclasses import replace

import numpy as np

from fuseboard.core.errors import UserError
from fuseboard.measure.workload import Cell


def paced(cell: Cell, rate: float, *, burstiness: float = 1.0, seed: int) -> Cell:
    """The cell at `rate` requests a second on average, the first at once; unchanged at an infinite rate.

    Gaps are gamma-distributed with shape `burstiness`: 1 is Poisson, less is burstier, more is steadier, infinite is a
    fixed gap.
    """
    if not rate > 0:
        raise UserError(f"--request-rate must be above 0, not {rate}; inf sends at once.")
    if not burstiness > 0:
        raise UserError(f"--burstiness must be above 0, not {burstiness}.")
    if rate == float("inf"):
        return cell
    gaps = np.full(len(cell.requests), 1 / rate)
    if burstiness != float("inf"):
        gaps = np.random.default_rng(seed).gamma(burstiness, 1 / (rate * burstiness), len(cell.requests))
    arrivals = np.cumsum(gaps) - gaps[0]
    requests = tuple(replace(r, arrival_s=float(t)) for r, t in zip(cell.requests, arrivals, strict=True))
    return replace(cell, requests=requests)
