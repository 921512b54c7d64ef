"""Faults put into an engine on purpose, for the self-check to see whether the instrument notices them.

`wait:SHARE` makes every step longer by a share of itself, `swap` exchanges the two best tokens of every row, `short`
asks for one token less than was agreed. No switch, command or plan leads here.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from fuseboard.backends.base import Executable
from fuseboard.core.batch import StepBatch, StepOutput
from fuseboard.measure.workload import Request

Submit = Callable[[str, Request], None]


class Planted:
    """An executable with a fault in its steps; everything else is the executable's own."""

    def __init__(self, inner: Executable, change: Callable[[Executable, StepBatch], StepOutput]) -> None:
        self._inner, self._change = inner, change

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def run(self, batch: StepBatch) -> StepOutput:
        return self._change(self._inner, batch)

    def start(self, batch: StepBatch) -> None:
        self._started = batch

    def wait(self) -> StepOutput:
        return self.run(self._started)


def in_steps(executable: Executable, plant: str) -> Executable:
    """The executable with the plant's fault in its steps, if it has one there."""
    kind, _, share = plant.partition(":")
    if kind == "wait":
        return Planted(executable, lambda inner, batch: _wait(inner, batch, float(share)))
    if kind == "swap":
        return Planted(executable, _swap)
    assert kind in ("", "short"), plant
    return executable


def in_requests(submit: Submit, plant: str) -> Submit:
    """The submission of requests with the plant's fault, if it has one there."""
    if plant != "short":
        return submit
    return lambda request_id, request: submit(request_id, replace(request, n_out=max(1, request.n_out - 1)))


def _wait(inner: Executable, batch: StepBatch, share: float) -> StepOutput:
    begin = time.perf_counter_ns()
    output = inner.run(batch)
    end = time.perf_counter_ns()
    until = end + round(share * (end - begin))
    # A sleep would overshoot by more than the share of a short step.
    while time.perf_counter_ns() < until:
        pass
    return output


def _swap(inner: Executable, batch: StepBatch) -> StepOutput:
    output = inner.run(batch)
    ids_RK = output.top_ids_RK.copy()
    ids_RK[:, :2] = ids_RK[:, 1::-1]
    logits_RV = None
    if output.logits_RV is not None:
        logits_RV = output.logits_RV.copy()
        rows_R = np.arange(len(ids_RK))
        best_R, second_R = output.top_ids_RK[:, 0], output.top_ids_RK[:, 1]
        logits_RV[rows_R, best_R] = output.logits_RV[rows_R, second_R]
        logits_RV[rows_R, second_R] = output.logits_RV[rows_R, best_R]
    return replace(output, top_ids_RK=ids_RK, logits_RV=logits_RV)
