"""The ladder of a published report beside ours, told as such reports tell it: before and after, the gain of each step,
the product of the steps against the total, latency and throughput apart."""

import math

from fuseboard.measure.analysis import Analysis, Finding
from fuseboard.measure.design import BASELINE
from fuseboard.measure.metrics import BY_KEY
from fuseboard.report import view

COLUMNS = (
    "step", "the report", "here", "time, s", "TPOT, ms", "decode, tok/s", "output, tok/s", "sequences at once",
)  # fmt: skip
SHOWN = ("duration", "tpot", "decode", "throughput", "concurrency")


def rows(analysis: Analysis, cell: str) -> list[tuple[str, ...]]:
    """A row a step, then the product of the steps and the total; empty when this is no report's ladder."""
    steps, total = analysis.of_kind("ladder"), view.total(analysis)
    if not analysis.design.source or total is None or not analysis.cells_of(BASELINE, cell):
        return []
    found = [("before", "", "", *_values(analysis, BASELINE, cell))]
    found += [_row(analysis, step, cell, step.comparison.name) for step in steps]
    claims = [s.comparison.claim for s in steps if s.comparison.claim]
    gains = [g.estimate.gain for s in steps if (g := s.gain(cell))]
    product = view.times(math.exp(sum(gains))) if len(gains) == len(steps) else ""
    found.append(("product of the steps", view.times(math.prod(claims)) if claims else "", product, *[""] * len(SHOWN)))
    found.append(_row(analysis, total, cell, "total, before to after"))
    return found


def _row(analysis: Analysis, finding: Finding, cell: str, name: str) -> tuple[str, ...]:
    claim, gain = finding.comparison.claim, finding.gain(cell)
    measured = view.times(gain.estimate.ratio) if gain else ""
    words = finding.verdict(cell) if finding.problem or (gain and gain.verdict not in ("faster", "slower")) else ""
    values = _values(analysis, finding.comparison.treatment, cell)
    return (name, view.times(claim) if claim else "not stated", " ".join(filter(None, (measured, words))), *values)


def _values(analysis: Analysis, arm: str, cell: str) -> tuple[str, ...]:
    return tuple(view.number(analysis.median(arm, cell, BY_KEY[key])) for key in SHOWN)


def sentences(analysis: Analysis) -> list[str]:
    """What has to be known to read the table."""
    arms = {arm.name: arm.switches for arm in analysis.design.arms}
    start = " ".join(f"{name}={value}" for name, value in arms[BASELINE].items()) or "every switch off"
    found = [f"The ladder begins where the report began: {start}, everything else off."]
    compared = [*analysis.of_kind("ladder"), *analysis.of_kind("total")]
    found += [f"{f.comparison.name}: {f.comparison.claim_note}." for f in compared if f.comparison.claim_note]
    return found


def at_once(analysis: Analysis) -> list[tuple[str, ...]]:
    """Cell, arm, most and mean sequences in a decode step and preemptions, for cells that offer more than one request
    under a fixed size of the cache."""
    found: list[tuple[str, ...]] = []
    for cell in analysis.cells:
        for arm in (BASELINE, *(f.comparison.treatment for f in analysis.of_kind("ladder"))):
            cells = [c for c in analysis.cells_of(arm, cell) if len(c.requests) > 1]
            if cells:
                most = max(c.decode.most_seqs for c in cells)
                mean = view.number(analysis.median(arm, cell, BY_KEY["concurrency"]))
                preempted = max(c.counters.get("preemptions", 0) for c in cells)
                found.append((cell, arm, str(most), mean, str(preempted)))
    return found
