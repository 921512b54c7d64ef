"""Why an arm is slower: the part of the time that grew between two profiles, as a sentence."""

from fuseboard.measure.analysis import Analysis, Finding
from fuseboard.measure.explained import Explanation, explained
from fuseboard.measure.metrics import PRIMARY
from fuseboard.report import view

GREW = 0.01
"""A part counts that grew by this share of the time before."""


def sentences(analysis: Analysis, cell: str) -> list[str]:
    """One for every comparison of two arms that came out slower in the cell."""
    found = (sentence(analysis, finding, cell) for finding in analysis.findings if finding.comparison.kind != "aa")
    return list(dict.fromkeys(filter(None, found)))


def sentence(analysis: Analysis, finding: Finding, cell: str) -> str:
    """Which operators, or which other part of the time, grew; empty when the interval is not wholly below 1."""
    gain = finding.gain(cell, PRIMARY)
    compared = finding.comparison
    if gain is None or finding.problem or compared.terms or gain.estimate.high >= 0:
        return ""
    slower = f"{compared.name} ({compared.kind}) is slower, {view.times(gain.estimate.ratio)}"
    profiles = explained(analysis, finding, cell)
    if profiles is None:
        missing = [a for a in (compared.treatment, compared.reference) if analysis.profile_of(a, cell) is None]
        return (
            f"{slower}; what grew is unknown, as there is no profile of {' and '.join(missing or ['its operators'])}."
        )
    return f"{slower}: {_grown(profiles)}."


def _grown(found: Explanation) -> str:
    before = sum(change.before_ns for change in found.changes)
    most = max(found.changes, key=lambda change: change.change_ns)
    if most.change_ns < GREW * before:
        return "no operator and no other part of its profile grew, so look at threads, memory nodes and other processes"
    times = f"{view.number(most.before_ns / 1e6)} to {view.number(most.after_ns / 1e6)} ms"
    rest = sum(change.change_ns for change in found.changes) - most.change_ns
    sign = "+" if rest >= 0 else "\u2212"
    return f"{most.name} grew most, from {times}, all else by {sign}{view.number(abs(rest) / 1e6)} ms"
