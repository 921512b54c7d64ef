"""What the report's pages have in common: rows of findings, and numbers as text."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fuseboard.measure.analysis import Analysis, Finding, Gain
from fuseboard.measure.design import BASELINE, FULL
from fuseboard.measure.metrics import BY_KEY, METRICS, PRIMARY, Metric, distribution, tpot_ms, ttft_ms
from fuseboard.measure.record import QualityRecord

KIND_TITLES = {
    "total": "All on against all off",
    "ladder": "Ladder: each step on top of those before it",
    "alone": "Each switch alone, against all off and what it needs",
    "without": "Each switch in full: all on against all on without it",
    "pair": "Pairs: what two switches bring together beyond the product of what each brings",
    "shapley": "Worth of every step: the mean over ladders in several orders, with the range over the orders",
    "choice": "Other values, in full",
    "aa": "A/A: two identical arms",
}
QUALITY_COLUMNS = (
    ("kl_mean", "KL mean"),
    ("kl_median", "KL median"),
    ("kl_p99", "KL 99 %"),
    ("kl_max", "KL max"),
    ("perplexity_ratio", "perplexity ratio"),
    ("same_top_1", "same top-1"),
    ("greedy_agreement", "greedy agreement"),
    ("first_divergence", "first difference at"),
    ("divergence_margin", "margin there"),
)
TIMES = "\u00d7"
TAKEN = ("duration", "ttft", "tpot", "decode", "prefill")
"""Metrics of the headline."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """A finding on one metric of one cell, as text. `tone` is good, bad, flat or none."""

    name: str
    verdict: str
    tone: str
    ratio: str
    interval: str
    p: str
    detectable: str
    engaged: str


def times(ratio: float) -> str:
    """A speed ratio with its sign, fewer digits the larger it is."""
    digits = 1 if ratio >= 10 else 2 if ratio >= 1.995 else 3
    return f"{ratio:.{digits}f}{TIMES}"


def number(value: float | None, digits: int = 3) -> str:
    """A number with so many significant digits, without an exponent where one can read it."""
    if value is None:
        return "n/a"
    if value != 0 and not 1e-3 <= abs(value) < 1e7:
        return f"{value:.{digits - 1}e}"
    if abs(value) < 1:
        return f"{value:.{digits}g}"
    whole = len(str(int(abs(value))))
    return f"{value:,.{max(0, digits - whole)}f}"


def size(count: float) -> str:
    """Bytes in the unit that suits them."""
    if count < 1e5:
        return f"{count / 1e3:,.1f} kB" if count else "0"
    return f"{count / 1e6:,.1f} MB" if count < 1e9 else f"{count / 1e9:,.2f} GB"


def ratio_of(gain: float) -> float:
    """The speed ratio of a logarithmic gain."""
    return math.exp(gain)


def percent(gain: float) -> str:
    """The size of a logarithmic gain as a percentage."""
    return f"{100 * abs(math.expm1(gain)):.1f} %"


def tone(verdict: str) -> str:
    return {"faster": "good", "slower": "bad", "equivalent": "flat"}.get(verdict, "none")


def rows(analysis: Analysis, kind: str, cell: str, metric: str = PRIMARY) -> list[Row]:
    """The findings of a kind as table rows."""
    return [row(finding, cell, metric) for finding in analysis.of_kind(kind)]


def row(finding: Finding, cell: str, metric: str = PRIMARY) -> Row:
    gain = finding.gain(cell, metric)
    verdict = finding.verdict(cell, metric)
    counted = gain is not None and not finding.problem
    return Row(
        name=finding.comparison.name,
        verdict=verdict,
        tone=tone(verdict),
        ratio=times(gain.estimate.ratio) if gain and counted else "",
        interval=_intervals(gain) if gain and counted else "",
        p=f"{gain.adjusted_p:.3f}" if gain and counted and gain.adjusted_p >= 0.001 else "<0.001" if counted else "",
        detectable=percent(gain.detectable) if gain and counted and metric == PRIMARY else "",
        engaged=engaged(finding),
    )


def _intervals(gain: Gain) -> str:
    found = interval(gain.estimate.low, gain.estimate.high)
    return f"{found}; orders {interval(*gain.spread)}" if gain.spread else found


def interval(low: float, high: float) -> str:
    """A 95 % interval of log ratios as ratios."""
    a, b = ratio_of(low), ratio_of(high)
    return f"{a:.3f} to {b:.3f}" if b < 10 else f"{a:.1f} to {b:.1f}"


def engaged(finding: Finding) -> str:
    """Which of the comparison's switches moved their counters."""
    if not finding.engaged:
        return ""
    idle = [name for name, moved in finding.engaged.items() if moved <= 0]
    return "yes" if not idle else "no" if len(idle) == len(finding.engaged) else f"all but {', '.join(idle)}"


@dataclass(frozen=True, kw_only=True)
class Change:
    """A metric before and after, as text; `ratio` above 1 is better."""

    label: str
    unit: str
    off: str
    on: str
    ratio: str


def headline(analysis: Analysis, cell: str) -> list[Change]:
    """All off against all on: the metrics worth a glance."""
    found = [_change(analysis, cell, BY_KEY[key]) for key in TAKEN]
    return [change for change in found if change is not None]


def _change(analysis: Analysis, cell: str, metric: Metric) -> Change | None:
    off, on = analysis.median(BASELINE, cell, metric), analysis.median(FULL, cell, metric)
    if off is None or on is None:
        return None
    better = off / on if metric.lower else on / off
    return Change(label=metric.label, unit=metric.unit, off=number(off), on=number(on), ratio=times(better))


def total(analysis: Analysis) -> Finding | None:
    return next(iter(analysis.of_kind("total")), None)


def latency_rows(analysis: Analysis, cell: str) -> list[tuple[str, ...]]:
    """Arm, metric, n, mean and percentiles of the requests of all launches, pooled; * marks a P99 of too few."""
    found: list[tuple[str, ...]] = []
    for arm in (BASELINE, FULL):
        requests = [r for c in analysis.cells_of(arm, cell) for r in c.requests]
        for label, of in (("TTFT, ms", ttft_ms), ("TPOT, ms", tpot_ms)):
            if d := distribution(of(r) for r in requests):
                p99 = number(d.p99) + ("*" if d.p99_flagged else "")
                found.append((arm, label, str(d.n), *map(number, (d.mean, d.p50, d.p95)), p99))
    return found


def step_rows(analysis: Analysis, cell: str) -> list[tuple[str, ...]]:
    """Arm, milliseconds of a decode step and of a prompt token, and the host's share of decode, medians of launches."""
    found: list[tuple[str, ...]] = []
    for arm in analysis.design.arms:
        cells = analysis.cells_of(arm.name, cell)
        decode = [c.decode for c in cells if c.decode.steps]
        prefill = [c.prefill for c in cells if c.prefill.tokens]
        if decode and prefill:
            step = _median(d.total_ns / d.steps / 1e6 for d in decode)
            token = _median(p.total_ns / p.tokens / 1e6 for p in prefill)
            host = _median(1 - d.execute_ns / d.total_ns for d in decode)
            found.append((arm.name, number(step), number(token), f"{100 * host:.1f} %"))
    return found


def _median(values: Iterable[float]) -> float:
    ordered = sorted(values)
    return (ordered[len(ordered) // 2] + ordered[~(len(ordered) // 2)]) / 2


def memory_rows(analysis: Analysis) -> list[tuple[str, ...]]:
    """Component, then planned and measured bytes of all off and of all on; the sums last."""
    first = {arm: next(iter(analysis.launches_of(arm)), None) for arm in (BASELINE, FULL)}
    tables = [t for r in first.values() if r for t in (r.memory_planned, r.memory_measured)]
    if len(tables) != 4:
        return []
    names = list(dict.fromkeys(name for table in tables for name in table))
    kept = [name for name in names if any(table.get(name, 0) for table in tables)]
    found = [(name, *(size(table[name]) if name in table else "" for table in tables)) for name in kept]
    return [*found, ("together", *(size(sum(table.values())) for table in tables))]


def quality_rows(analysis: Analysis) -> list[tuple[str, ...]]:
    """Arm and its distance from the baseline's answers, each value with its standard error."""
    return [(record.arm, *(_quality_value(record, key) for key, _ in QUALITY_COLUMNS)) for record in analysis.quality]


def _quality_value(record: QualityRecord, key: str) -> str:
    if record.error is not None:
        return record.error.kind.replace("_", " ")
    if key not in record.values:
        return "n/a"
    return f"{number(record.values[key])} ± {number(record.errors.get(key, 0.0), 2)}"


def counter_rows(analysis: Analysis) -> list[tuple[str, str, str]]:
    """Switch, comparison, and how far its counters moved there."""
    return [
        (name, f"{f.comparison.kind}: {f.comparison.name}", f"{moved:,}" if moved > 0 else "did not move")
        for kind in ("ladder", "alone", "without", "pair", "shapley")
        for f in analysis.of_kind(kind)
        for name, moved in f.engaged.items()
    ]


def method(analysis: Analysis) -> list[str]:
    """How the numbers came about, in sentences."""
    design = analysis.design
    good = sum(r.error is None for r in analysis.launches)
    sentences = [
        f"{good} launches in {design.blocks} blocks; every launch is a fresh process, every block holds every arm once "
        "in counterbalanced order. The launch is the unit of evidence.",
        "A gain is a ratio of speeds, fitted as log(time) = block + arm with the error pooled over the arms; intervals "
        "are 95 %, verdicts hold for all switches together (Holm).",
        f"Equivalent means within {100 * design.equivalence_margin:.0f} % (two one-sided tests at 5 %).",
    ]
    noise = analysis.noise
    for gain in noise.gains if noise else ():
        if gain.metric.key == PRIMARY:
            half = (gain.estimate.high - gain.estimate.low) / 2
            sentences.append(
                f"Noise in {gain.cell!r}: two identical arms came out {percent(gain.estimate.gain)} apart, with an "
                f"interval of ± {percent(half)}. The smallest gain this run finds with 80 % power is "
                f"{percent(smallest(analysis, gain.cell))}."
            )
    if not analysis.complete:
        sentences.append("The run is not complete: some launches of the design are missing.")
    return sentences


def smallest(analysis: Analysis, cell: str) -> float:
    """The smallest detectable gain of the family of switches, as a log ratio."""
    found = [
        g.detectable
        for f in analysis.findings
        if f.comparison.kind not in ("aa", "total") and (g := f.gain(cell)) is not None
    ]
    return max(found, default=float("nan"))


def receipts(analysis: Analysis) -> list[tuple[str, str]]:
    """What the numbers belong to."""
    design, machine = analysis.design, analysis.design.machine
    launch = next((r for r in analysis.launches if r.error is None), None)
    rates = [f"{machine.read_bytes_per_s / 1e9:.1f} GB/s read"] if machine.read_bytes_per_s else []
    rates += [f"{machine.cache_read_bytes_per_s / 1e9:.1f} GB/s cached"] if machine.cache_read_bytes_per_s else []
    rates += [f"{machine.flops_per_s / 1e9:.0f} GFLOP/s"] if machine.flops_per_s else []
    rates += [f"{machine.integer_ops_per_s / 1e9:.0f} GOP/s on integers"] if machine.integer_ops_per_s else []
    found = [
        ("machine", f"{machine.processor}, {machine.cores} cores, {size(machine.memory_bytes)}"),
        ("kernel", machine.kernel),
        ("ceilings", ", ".join(rates) or "not measured"),
        ("workload", design.workload),
        ("workload digest", design.workload_digest[:16]),
        ("code digest", design.code_digest[:16]),
    ]
    if launch:
        found.append(("model digest", launch.model_digest[:16]))
        found.append(("versions", ", ".join(f"{name} {version}" for name, version in launch.versions.items())))
    return found


def metric_rows(analysis: Analysis, names: Sequence[str], cell: str) -> list[tuple[str, ...]]:
    """Arm and the median over launches of every metric."""
    return [(name, *(number(analysis.median(name, cell, metric)) for metric in METRICS)) for name in names]
