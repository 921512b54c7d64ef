"""Plots of where the time goes: bars of an arm's time by part, and operators under the roofline."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fuseboard.measure.analysis import Analysis
from fuseboard.measure.design import BASELINE, FULL
from fuseboard.measure.explained import DISPATCH, HOST, IDLE, parts
from fuseboard.measure.record import CellProfile, Machine, OperatorRecord
from fuseboard.report.plots import INK, LINE, MUTED, SERIES, beside, canvas, styled, svg
from fuseboard.report.profile import moved

SHOWN: Mapping[str, tuple[str, ...]] = {
    "projections": ("q, k, v", "attention output", "gate, up", "down"),
    "head": ("head", "top-k"),
    "attention": ("attention",),
    "other operators": (
        "embedding", "norms", "rope", "cache write", "elementwise", "rounding", "other",
    ),
    "dispatch": (DISPATCH,),
    "host and gaps": (HOST, IDLE),
}  # fmt: skip
"""Parts of the wall time as the bars show them, one colour each."""


def ladder_arms(analysis: Analysis) -> list[tuple[str, str]]:
    """Label and arm of every step of the ladder, the baseline first; without a ladder all off and all on."""
    steps = [(f.comparison.name, f.comparison.treatment) for f in analysis.of_kind("ladder")]
    return [(BASELINE, BASELINE), *(steps or [(FULL, FULL)])]


@styled
def bars(analysis: Analysis, cell: str, name: str) -> str:
    """The time of the cell's work by part, one bar a step of the ladder."""
    found = [(label, parts(p)) for label, arm in ladder_arms(analysis) if (p := analysis.profile_of(arm, cell))]
    if len(found) < 2:
        return ""
    figure, (axis,) = canvas(0.36 * len(found) + 1.1)
    left = np.zeros(len(found))
    for (label, members), color in zip(SHOWN.items(), SERIES, strict=True):
        width = np.array([sum(times.get(m, 0) for m in members) / 1e9 for _, times in found])
        axis.barh(range(len(found)), width, left=left, color=color, height=0.62, label=label)
        left += width
    for i, total in enumerate(left):
        beside(axis, f"{total:.2f} s", float(total), i)
    axis.set_yticks(range(len(found)), [label for label, _ in found])
    axis.invert_yaxis()
    axis.set_xlim(0, left.max() * 1.14)
    axis.set_xlabel("seconds for the same work, with operators timed")
    axis.legend(frameon=False, loc="lower left", bbox_to_anchor=(0, 1), ncols=3, fontsize=9)
    return svg(figure, f"Time by part, {cell}", name)


@styled
def roofline(profile: CellProfile, machine: Machine, name: str) -> str:
    """Rate of every operator class against its operations a byte, under the measured ceilings."""
    from matplotlib.ticker import NullFormatter

    kinds = (("decode step", "o", profile.decode.operators), ("prefill step", "s", profile.prefill.operators))
    points = [
        (label, marker, [o for o in found if o.ns and o.operations and moved(o)]) for label, marker, found in kinds
    ]
    shown = [o for _, _, operators in points for o in operators]
    if not shown or not machine.read_bytes_per_s:
        return ""
    figure, (axis,) = canvas(3.9)
    intensities = [o.operations / moved(o) for o in shown]
    low, high = min(0.1, *intensities) / 1.6, max(100.0, *intensities) * 1.6
    _roofs(axis, machine, low, high)
    axis.set_xscale("log")
    axis.set_yscale("log")
    for side in (axis.xaxis, axis.yaxis):
        side.set_major_formatter("{x:g}")
        side.set_minor_formatter(NullFormatter())
    axis.set_xlim(low, high)
    axis.set_ylim(
        min(5.0, *(_rate(o) / 2.5 for o in shown)), max(machine.integer_ops_per_s, machine.flops_per_s) / 1e9 * 1.9
    )
    for (label, marker, operators), color in zip(points, (SERIES[0], SERIES[1]), strict=True):
        x, y = ([f(o) for o in operators] for f in (_intensity, _rate))
        axis.plot(x, y, marker, color=color, markersize=6, label=label)
    axis.figure.canvas.draw()
    _labels(axis, shown)
    axis.grid(axis="y")
    axis.set_xlabel("operations a byte moved")
    axis.set_ylabel("GOP/s", color=MUTED)
    axis.legend(frameon=False, loc="upper left", fontsize=9)
    return svg(figure, f"Operators under the roofline, {profile.name}", name)


def _intensity(operator: OperatorRecord) -> float:
    return operator.operations / moved(operator)


def _rate(operator: OperatorRecord) -> float:
    return operator.operations / operator.ns


def _roofs(axis: Any, machine: Machine, low: float, high: float) -> None:
    """The sloped lines of the memory and of the last cache, and the flat ones of the arithmetic."""
    _slope(axis, machine, machine.read_bytes_per_s, "memory", low, high)
    if machine.cache_read_bytes_per_s:
        _slope(axis, machine, machine.cache_read_bytes_per_s, "last cache", low, high)
    slope = max(machine.read_bytes_per_s, machine.cache_read_bytes_per_s) / 1e9
    for rate, label in ((machine.flops_per_s, "float32"), (machine.integer_ops_per_s, "integers")):
        top = rate / 1e9
        if top:
            axis.plot([min(high, top / slope), high], [top, top], color=INK, linewidth=1.1)
            text = f"{label}, {top:.0f} GOP/s"
            axis.annotate(text, (high, top), (-2, 3), textcoords="offset points", ha="right", fontsize=8, color=MUTED)


def _slope(axis: Any, machine: Machine, rate: float, label: str, low: float, high: float) -> None:
    slope = rate / 1e9
    knee = max(machine.flops_per_s, machine.integer_ops_per_s) / rate
    end = min(high, knee)
    axis.plot([low, end], [low * slope, end * slope], color=INK, linewidth=1.1)
    text = f"{label}, {slope:.1f} GB/s"
    at = math.sqrt(low * end)
    axis.annotate(text, (at, at * slope), (-6, 6), textcoords="offset points", ha="right", fontsize=8, color=MUTED)


PLACES = [(7, 0, "left"), (-7, 0, "right")] + [
    (x, side * y, "left" if x > 0 else "right") for y in (11, 22, 33, 44, 55) for x in (9, -9) for side in (-1, 1)
]
"""Offsets of a label from its point in points, the nearest first, and which of its ends is there."""
FONT = 8


def _labels(axis: Any, operators: Sequence[OperatorRecord]) -> None:
    """A name beside every point where no other name or point is, with a thin line where that is further away."""
    at = [axis.transData.transform((_intensity(o), _rate(o))) * 72 / axis.figure.dpi for o in operators]
    taken = [(x - 4, y - 4, x + 4, y + 4) for x, y in at]
    for operator, (x, y) in zip(operators, at, strict=True):
        dx, dy, end = next((p for p in PLACES if _free(_box(operator.name, x, y, p), taken)), PLACES[0])
        taken.append(_box(operator.name, x, y, (dx, dy, end)))
        axis.annotate(
            operator.name, (_intensity(operator), _rate(operator)), (dx, dy), textcoords="offset points", ha=end,
            va="center", fontsize=FONT, arrowprops={"arrowstyle": "-", "color": LINE, "linewidth": 0.7} if dy else None,
        )  # fmt: skip


Box = tuple[float, float, float, float]


def _box(text: str, x: float, y: float, place: tuple[int, int, str]) -> Box:
    dx, dy, end = place
    width = 0.58 * FONT * len(text)
    left = x + dx - (width if end == "right" else 0)
    return left, y + dy - FONT * 0.6, left + width, y + dy + FONT * 0.6


def _free(box: Box, taken: Sequence[Box]) -> bool:
    return all(box[2] < t[0] or t[2] < box[0] or box[3] < t[1] or t[3] < box[1] for t in taken)
