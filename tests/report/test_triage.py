"""A verdict of slower says which operators grew, from profiles of known truth, or that there is no profile."""

import dataclasses
import io
import json

from rich.console import Console

import simulated
import simulated_profiles
from fuseboard.measure.analysis import Analysis, Finding, analyse
from fuseboard.measure.record import CellProfile, Line, ProfileRecord
from fuseboard.report import html, markdown, summary, triage

CELL = "4 at a time"
SLOW = "pd=separate"


def slowed(profile: CellProfile, name: str, factor: float) -> CellProfile:
    """The profile with the decode time of one operator class multiplied."""
    decode = profile.decode
    operators = tuple(
        dataclasses.replace(o, ns=round(o.ns * factor)) if o.name == name else o for o in decode.operators
    )
    more = sum(o.ns for o in operators) - sum(o.ns for o in decode.operators)
    sums = dataclasses.replace(decode.sums, execute_ns=decode.sums.execute_ns + more)
    steps = dataclasses.replace(decode, operators=operators, sums=sums)
    return dataclasses.replace(profile, decode=steps, wall_ns=profile.wall_ns + more)


def analysis_of(operator: str = "", factor: float = 1.0, profiled: bool = True) -> Analysis:
    """An experiment in which one switch is 7 % slower; under it an operator takes `factor` times its time."""
    lines: list[Line] = simulated.experiment(["alone"], blocks=5, only=("pd", "graph"), noise=0.002)
    if not profiled:
        return analyse(lines)
    profiles = [p for p in simulated_profiles.profiles(lines) if isinstance(p, ProfileRecord)]
    changed = [
        dataclasses.replace(p, cells=tuple(slowed(c, operator, factor) for c in p.cells)) if p.arm == SLOW else p
        for p in profiles
    ]
    return analyse([*lines, *changed])


def finding(analysis: Analysis, name: str) -> Finding:
    return next(f for f in analysis.of_kind("alone") if f.comparison.name == name)


def test_the_operators_that_grew_are_named_everywhere() -> None:
    analysis = analysis_of("attention", 1.6)
    assert finding(analysis, SLOW).verdict(CELL) == "slower"
    (sentence,) = triage.sentences(analysis, CELL)
    assert sentence.startswith("pd=separate (alone) is slower, 0.9")
    assert "attention grew most, from 40.0 to 61.6 ms, all else by +0 ms." in sentence
    assert f"- {sentence}" in markdown.render(analysis)
    assert sentence in html.render(analysis)
    console = Console(file=io.StringIO(), width=300)
    markdown.print_summary(analysis, console)
    assert sentence in console.file.getvalue()  # type: ignore[attr-defined]
    comparisons = json.loads(summary.to_json(analysis))["comparisons"]
    found = {c["name"]: c["triage"] for c in comparisons if c["kind"] == "alone"}
    assert found == {SLOW: {CELL: sentence}, "graph=captured": {}}


def test_where_no_operator_grew_that_is_said() -> None:
    (sentence,) = triage.sentences(analysis_of("attention", 1.0), CELL)
    assert "no operator and no other part of its profile grew" in sentence


def test_without_a_profile_that_is_said() -> None:
    analysis = analysis_of(profiled=False)
    (sentence,) = triage.sentences(analysis, CELL)
    arm = finding(analysis, SLOW).comparison.treatment
    assert f"there is no profile of {arm}" in sentence
    assert triage.sentence(analysis, finding(analysis, "graph=captured"), CELL) == ""
