"""When the requests of an open loop are sent."""

from dataclasses import replace
from pathlib import Path
from typing import Protocol

import numpy as np

from fuseboard.core.errors import UserError
from fuseboard.measure.workload import Cell


class LoadOptions(Protocol):
    """The options that say which requests there are, and when they are sent."""

    @property
    def trace(self) -> Path | None: ...
    @property
    def input_len(self) -> int | None: ...
    @property
    def output_len(self) -> int | None: ...
    @property
    def shared_prefix(self) -> int: ...
    @property
    def time_scale(self) -> float: ...
    @property
    def request_rate(self) -> float: ...
    @property
    def burstiness(self) -> float: ...


def check_use(options: LoadOptions) -> None:
    """UserError for options that would go unused beside the others."""
    shape = {
        "--input-len": options.input_len is not None,
        "--output-len": options.output_len is not None,
        "--shared-prefix": options.shared_prefix != 0,
    }
    if options.trace is not None and (given := [name for name, is_given in shape.items() if is_given]):
        raise UserError(f"--trace brings its own lengths; leave out {' and '.join(given)}.")
    if options.trace is None and options.time_scale != 1:
        raise UserError("--time-scale scales the times of a --trace; give one, or leave it out.")
    if options.request_rate == float("inf") and options.burstiness != 1:
        raise UserError("--burstiness shapes the gaps of a --request-rate; give one, or leave it out.")


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
