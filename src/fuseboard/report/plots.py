"""The plots of a report as inline SVG, drawn in stand-in colours that become CSS variables of the page."""

import functools
import io
import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ParamSpec

import numpy as np

from fuseboard.measure import stats
from fuseboard.measure.analysis import Analysis, Finding, Gain
from fuseboard.measure.design import BASELINE, FULL
from fuseboard.measure.metrics import BY_KEY, PRIMARY, tpot_ms, ttft_ms
from fuseboard.report import view

INK, MUTED, LINE, BAR, GOOD, BAD, FLAT, BAND = (f"#0{i}0{i}0{i}" for i in range(1, 9))
SERIES = tuple(f"#0{i}0{i}0a" for i in range(1, 7))
VARIABLES = {
    INK: "ink", MUTED: "muted", LINE: "line", BAR: "bar", GOOD: "good", BAD: "bad", FLAT: "flat", BAND: "band",
} | {color: f"s{i}" for i, color in enumerate(SERIES, start=1)}  # fmt: skip
TONES = {"good": GOOD, "bad": BAD, "flat": FLAT, "none": MUTED}
WIDTH = 7.0
P = ParamSpec("P")
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "fuseboard",
    "font.size": 10,
    "font.family": "DejaVu Sans",
    "text.color": INK,
    "axes.edgecolor": LINE,
    "axes.labelcolor": MUTED,
    "axes.labelsize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "xtick.color": MUTED,
    "ytick.color": INK,
    "xtick.labelsize": 9,
    "ytick.left": False,
    "grid.color": LINE,
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
}


def styled(plot: Callable[P, str]) -> Callable[P, str]:
    """The plot drawn under the page's style."""

    @functools.wraps(plot)
    def drawn(*args: P.args, **kwargs: P.kwargs) -> str:
        from matplotlib import rc_context

        with rc_context(STYLE):
            return plot(*args, **kwargs)

    return drawn


def canvas(height: float, panels: int = 1) -> tuple[Any, list[Any]]:
    """A figure and its panels."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    axes: list[Any] = list(np.atleast_1d(np.asarray(figure.subplots(1, panels))))
    for axis in axes:
        axis.grid(axis="x")
        axis.patch.set_alpha(0)
    return figure, axes


def svg(figure: Any, title: str, name: str) -> str:
    """Inline SVG with `title` for screen readers."""
    out = io.StringIO()
    figure.savefig(out, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return themed(out.getvalue(), title, name)


def themed(text: str, title: str, name: str) -> str:
    """Stand-in colours to CSS variables, fixed sizes and fonts out, ids made unique to the plot, a title in."""
    text = text[text.index("<svg") :]
    for color, variable in VARIABLES.items():
        text = text.replace(color, f"var(--{variable})")
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r"font: (?:[a-z]+ )*([\d.]+)px [^;\"]*", r"font-size: \1px; font-family: inherit", text)
    text = re.sub(r'(<svg [^>]*?) width="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'(<svg [^>]*?) height="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'\bid="', f'id="{name}-', text)
    text = re.sub(r'((?:xlink:)?href="#|url\(#)', rf"\1{name}-", text)
    return text.replace(">", f' role="img"><title>{title}</title>', 1)


@styled
def ladder(analysis: Analysis, cell: str, name: str) -> str:
    """Waterfall: the time left after every step, and what the step took away or added."""
    steps = [f for f in analysis.of_kind("ladder") if f.gain(cell)]
    metric = BY_KEY[PRIMARY]
    arms = [BASELINE, *(f.comparison.treatment for f in steps)]
    values = [analysis.median(arm, cell, metric) for arm in arms]
    if len(arms) < 2 or None in values:
        return ""
    seconds = [v for v in values if v is not None]
    figure, (axis,) = canvas(0.42 * len(arms) + 0.7)
    axis.barh(range(len(arms)), seconds, color=BAR, height=0.56)
    for i, finding in enumerate(steps, start=1):
        before, after = seconds[i - 1], seconds[i]
        verdict = finding.verdict(cell)
        axis.barh(
            i, abs(before - after), left=min(before, after), height=0.56,
            color=TONES[view.tone(verdict)], alpha=0.35 if after < before else 0.9,
        )  # fmt: skip
        beside(axis, _step_label(finding, cell), max(before, after), i)
    beside(axis, f"{seconds[0]:.2f} s", seconds[0], 0)
    axis.set_yticks(range(len(arms)), [BASELINE, *(f.comparison.name for f in steps)])
    axis.invert_yaxis()
    axis.set_xlim(0, max(seconds) * 1.22)
    axis.set_xlabel("seconds for the same work (median of launches)")
    return svg(figure, f"Time after every step of the ladder, {cell}", name)


def beside(axis: Any, text: str, x: float, y: float) -> None:
    """Text just right of the end of a bar."""
    axis.annotate(text, (x, y), (6, 0), textcoords="offset points", va="center")


def _step_label(finding: Finding, cell: str) -> str:
    gain = finding.gain(cell)
    assert gain is not None
    ratio = view.times(gain.estimate.ratio)
    return ratio if finding.verdict(cell) in (stats.FASTER, stats.SLOWER) else f"{ratio}  {finding.verdict(cell)}"


@styled
def forest(analysis: Analysis, cell: str, name: str) -> str:
    """Gains with intervals: alone and in full where both were measured, else on the ladder; the A/A interval behind."""
    kinds = [k for k in ("alone", "without") if analysis.of_kind(k)]
    kinds = kinds or ["ladder" if analysis.of_kind("ladder") else "shapley"]
    series = {k: {_label(f, k): g for f in analysis.of_kind(k) if (g := f.gain(cell))} for k in kinds}
    labels = list(dict.fromkeys(label for gains in series.values() for label in gains))
    if not labels:
        return ""
    figure, (axis,) = canvas(0.36 * len(labels) + 1.1)
    _noise_band(analysis, cell, axis)
    axis.axvline(1, color=MUTED, linewidth=1)
    shift = {k: 0.17 * (2 * i - len(kinds) + 1) for i, k in enumerate(kinds)}
    titles = {"alone": "alone", "without": "in full", "ladder": "on the ladder", "shapley": "mean over orders"}
    for (kind, gains), marker, color in zip(series.items(), "os", (SERIES[0], SERIES[1]), strict=False):
        places = [labels.index(label) + shift[kind] for label in gains]
        _points(axis, list(gains.values()), places, marker, color, titles[kind])
    _ratio_axis(axis)
    axis.set_yticks(range(len(labels)), labels)
    axis.set_ylim(len(labels) - 0.4, -0.6)
    axis.set_xlabel("speed ratio with 95 % interval; band: two identical arms")
    axis.legend(frameon=False, loc="lower right", bbox_to_anchor=(1, 1), ncols=len(kinds), fontsize=9)
    return svg(figure, f"Gain of every switch, {cell}", name)


def _label(finding: Finding, kind: str) -> str:
    return finding.comparison.name if kind in ("ladder", "shapley") else finding.comparison.switches[0]


def _points(axis: Any, gains: Sequence[Gain], places: Sequence[float], marker: str, color: str, label: str) -> None:
    middle = np.array([g.estimate.ratio for g in gains])
    low = np.array([view.ratio_of(g.estimate.low) for g in gains])
    high = np.array([view.ratio_of(g.estimate.high) for g in gains])
    axis.errorbar(
        middle, places, xerr=(middle - low, high - middle), fmt=marker, color=color, ecolor=color,
        elinewidth=1.6, capsize=2.5, markersize=5, label=label,
    )  # fmt: skip


def _noise_band(analysis: Analysis, cell: str, axis: Any) -> None:
    noise = analysis.noise and analysis.noise.gain(cell)
    if noise:
        axis.axvspan(view.ratio_of(noise.estimate.low), view.ratio_of(noise.estimate.high), color=BAND, linewidth=0)


def _ratio_axis(axis: Any) -> None:
    from matplotlib.ticker import FixedLocator, NullLocator

    axis.set_xscale("log")
    low, high = axis.get_xlim()
    wide = high / low > 1.6
    choices = (0.25, 0.5, 0.7, 1, 1.5, 2, 3, 4, 6, 8, 12, 16) if wide else np.round(np.arange(0.6, 1.7, 0.05), 2)
    ticks = [float(t) for t in choices if low <= t <= high]
    axis.xaxis.set_major_locator(FixedLocator(ticks))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.set_xticklabels([f"{t:g}{view.TIMES}" for t in ticks])


@styled
def latency(analysis: Analysis, cell: str, name: str) -> str:
    """Distribution of TTFT and TPOT over all requests, all off and all on."""
    figure, axes = canvas(2.7, panels=2)
    drawn = 0
    for axis, (label, of) in zip(axes, (("TTFT, ms", ttft_ms), ("TPOT, ms", tpot_ms)), strict=True):
        for arm, color in ((BASELINE, SERIES[1]), (FULL, SERIES[0])):
            found = (of(r) for c in analysis.cells_of(arm, cell) for r in c.requests)
            values = sorted(v for v in found if v is not None)
            if values:
                axis.ecdf(values, color=color, linewidth=2, label=arm)
                drawn += 1
        axis.set_xlabel(label)
        axis.set_xlim(left=0)
        axis.set_yticks([0, 0.5, 0.9, 1], ["0", "50 %", "90 %", ""])
        axis.grid(axis="y")
    if not drawn:
        return ""
    axes[0].set_ylabel("share of requests")
    axes[1].legend(frameon=False, loc="lower right", bbox_to_anchor=(1, 1), ncols=2, fontsize=9)
    return svg(figure, f"Distribution of TTFT and TPOT, {cell}", name)


@styled
def memory(analysis: Analysis, name: str) -> str:
    """Bytes by component, as planned and as measured."""
    bars: list[tuple[str, dict[str, int]]] = []
    for arm in (BASELINE, FULL):
        for launch in analysis.launches_of(arm)[:1]:
            bars += [(f"{arm}, planned", launch.memory_planned), (f"{arm}, measured", launch.memory_measured)]
    names = list(dict.fromkeys(n for _, sizes in bars for n, size in sizes.items() if size > 0))
    if not names:
        return ""
    most = sorted(names, key=lambda n: -max(sizes.get(n, 0) for _, sizes in bars))
    shown = most[: len(SERIES) - 1] if len(most) > len(SERIES) else most
    figure, (axis,) = canvas(0.45 * len(bars) + 1.1)
    left = np.zeros(len(bars))
    for component, color in zip([*shown, *(["others"] if len(most) > len(shown) else [])], SERIES, strict=False):
        parts = [component] if component != "others" else most[len(shown) :]
        width = np.array([sum(sizes.get(p, 0) for p in parts) / 1e6 for _, sizes in bars])
        axis.barh(range(len(bars)), width, left=left, color=color, height=0.6, label=component)
        left += width
    for i, total in enumerate(left):
        beside(axis, f"{total:,.0f} MB", float(total), i)
    axis.set_yticks(range(len(bars)), [label for label, _ in bars])
    axis.invert_yaxis()
    axis.set_xlim(0, left.max() * 1.18)
    axis.set_xlabel("MB")
    axis.legend(frameon=False, loc="lower left", bbox_to_anchor=(0, 1), ncols=3, fontsize=9)
    return svg(figure, "Memory by component", name)


@styled
def quality(analysis: Analysis, cell: str, name: str) -> str:
    """Distance of the answers (mean KL) against the speed of the same arm."""
    metric = BY_KEY[PRIMARY]
    base = analysis.median(BASELINE, cell, metric)
    points = [
        (record.arm, base / value, max(record.values["kl_mean"], 1e-12), record.errors["kl_mean"])
        for record in analysis.quality
        if record.error is None and base and (value := analysis.median(record.arm, cell, metric))
    ]
    if not points:
        return ""
    figure, (axis,) = canvas(3.2)
    for (label, speed, kl, error), place in zip(points, _label_places(points), strict=True):
        axis.errorbar(speed, kl, yerr=min(error, kl * 0.9), fmt="o", color=SERIES[0], ecolor=SERIES[0], markersize=6)
        axis.annotate(label, (speed, kl), place, textcoords="offset points", va="center", fontsize=9)
    axis.set_yscale("log")
    speeds = [speed for _, speed, _, _ in points]
    axis.set_xlim(min(1.0, *speeds, 1.0) * 0.95, max(speeds) * 1.25)
    axis.set_ylim(min(kl for _, _, kl, _ in points) / 4, max(kl for _, _, kl, _ in points) * 4)
    axis.grid(axis="y")
    axis.set_xlabel("speed against all off")
    axis.set_ylabel("KL to all off, nats")
    return svg(figure, "Distance of the answers against speed", name)


def _label_places(points: Iterable[tuple[str, float, float, float]]) -> list[tuple[int, int]]:
    """Offsets of the labels: those of points near one another go up and down in turn."""
    places: list[tuple[int, int]] = []
    known: list[tuple[float, float]] = []
    for _, speed, kl, _ in points:
        near = sum(abs(math.log(kl / k)) < 1.0 and abs(math.log(speed / s)) < 0.35 for s, k in known)
        places.append((8, (1 if near % 2 else -1) * 11 * ((near + 1) // 2)))
        known.append((speed, kl))
    return places
