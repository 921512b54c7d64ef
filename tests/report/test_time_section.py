"""The report's section on where the time goes: complete, true to the records, and drawn by a real browser."""

import dataclasses
import io
import json
import re
from typing import Any

import pytest
from rich.console import Console

import simulated
import simulated_profiles
from fuseboard.measure.analysis import Analysis, analyse
from fuseboard.measure.record import CellProfile, OperatorRecord
from fuseboard.report import html, markdown, profile, summary, view

CELLS = ("one stream", "8 mixed streams")


@pytest.fixture(scope="module")
def profiled() -> Analysis:
    lines = simulated.experiment(["ladder", "alone"], blocks=2, cells=CELLS)
    return analyse([*lines, *simulated_profiles.profiles(lines, CELLS)])


@pytest.fixture(scope="module")
def page(profiled: Analysis) -> str:
    return html.render(profiled)


def section(page: str) -> str:
    start = page.index('<section id="time">')
    return page[start : page.index("</section>", start)]


def test_the_section_has_plots_and_tables_of_every_cell(page: str) -> None:
    found = section(page)
    assert found.count("<svg") == 2 * len(CELLS), "bars and roofline"
    assert found.count("<details>") == len(CELLS) * (1 + 2 + 4 + found.count(": what changed") // len(CELLS))
    for expected in ("20.0 GB/s from memory", "predictor&#39;s error", "wall time", "residual", "dispatch"):
        assert expected in found, expected
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))


def test_without_profiles_there_is_no_section() -> None:
    analysis = analyse(simulated.experiment(["quick"], blocks=2))
    assert 'id="time"' not in html.render(analysis)
    assert "Where the time goes" not in markdown.render(analysis)
    assert json.loads(summary.to_json(analysis))["predictor"] is None


def test_the_markdown_tables_are_well_formed(profiled: Analysis) -> None:
    text = markdown.render(profiled)
    text = text[text.index("## Where the time goes") :]
    blocks = re.findall(r"(?:^\|.*\|\n)+", text, flags=re.MULTILINE)
    assert len(blocks) > 8
    for block in blocks:
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}) == 1


def test_the_summary_holds_predictions_and_errors(profiled: Analysis) -> None:
    data = json.loads(summary.to_json(profiled))
    step = next(c for c in data["comparisons"] if c["comparison" if "comparison" in c else "name"] == "+ weights")
    assert [e["cell"] for e in step["explained"]] == list(CELLS)
    first = step["explained"][0]
    assert first["operators_ratio"] > 1
    assert first["predicted_ratio"] > 1
    assert first["predictor_error"] is not None
    assert "off by" in data["predictor"]


def test_phases_add_up_in_the_table() -> None:
    cell = simulated_profiles.cell("c", {})
    rows = {row[0]: row for row in profile.phase_rows(cell)}
    shares = [float(row[-1].split()[0]) for name, row in rows.items() if name != "wall time"]
    assert sum(shares) == pytest.approx(100, abs=0.5)
    assert rows["operators"][1] == view.number(cell.decode.operators_ns / 1e6)
    assert rows["operators"][2] == view.number(cell.decode.operators_ns / cell.decode.sums.steps / 1e3)


def with_operator(**numbers: Any) -> CellProfile:
    cell = simulated_profiles.cell("c", {})
    fast = OperatorRecord(name="down", calls=1, ns=100, weight_bytes=10, operations=10, **numbers)
    return dataclasses.replace(cell, decode=dataclasses.replace(cell.decode, operators=(fast,)))


def test_what_is_above_its_ceiling_is_flagged() -> None:
    (flag,) = profile.suspicious(with_operator(limit_ns=150, streamed_limit_ns=150))
    assert "down of decode (150 %)" in flag
    assert "wrong" in flag
    assert profile.suspicious(with_operator(limit_ns=150, streamed_limit_ns=90)) == []
    assert profile.legend(with_operator(limit_ns=150, streamed_limit_ns=90)) == [profile.CACHED_NOTE]
    assert profile.legend(with_operator(limit_ns=90, streamed_limit_ns=90)) == []


def test_the_terminal_tables_fit_80_columns(profiled: Analysis) -> None:
    out = io.StringIO()
    profile.print_profile(profiled.profiles[0], Console(file=out, width=80))
    lines = out.getvalue().splitlines()
    assert not [line for line in lines if "\u2026" in line]
    assert max(map(len, lines)) <= 80
