"""What changed between two sets of runs and what that did, for a terminal and as one offline page."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fuseboard.measure.compare import ArmComparison, CellComparison, Comparison, Phase, Ratio
from fuseboard.report import view

if TYPE_CHECKING:
    from rich.console import Console

COLUMNS = ("metric", "A", "B", "ratio", "95 % interval", "verdict")
PHASES_SHOWN = 6


def ratio_row(ratio: Ratio) -> tuple[str, ...]:
    """A quantity as text; the ratio is above 1 where B is better."""
    found = ratio.estimate
    return (
        f"{ratio.quantity.label}, {ratio.quantity.unit}",
        view.number(ratio.a),
        view.number(ratio.b),
        view.times(view.ratio_of(found.gain if found else ratio.gain)),
        view.interval(found.low, found.high) if found else "",
        ratio.verdict,
    )


def phase_rows(phases: tuple[Phase, ...]) -> list[tuple[str, ...]]:
    """Part of the time, milliseconds on both sides, difference; those that moved most first."""
    return [(phase.name, view.number(phase.a), view.number(phase.b), f"{phase.moved:+.1f}") for phase in _shown(phases)]


def parts(cell: CellComparison) -> list[tuple[str, tuple[Phase, ...]]]:
    """The tables that say where the time went, titled; without those that a side does not have."""
    tables = [
        ("Time of the steps", cell.phases),
        ("Time of the operators, one pass of each that timed them", cell.operators),
    ]
    return [(title, phases) for title, phases in tables if _shown(phases)]


def _shown(phases: tuple[Phase, ...]) -> tuple[Phase, ...]:
    return tuple(phase for phase in phases if phase.a or phase.b)[:PHASES_SHOWN]


def refusal(arm: ArmComparison, cell: CellComparison | None = None) -> str:
    """Why there is no verdict, as a sentence; empty when there may be one."""
    reason = arm.refusal or (cell.refusal if cell else "")
    return f"Not comparable, so no verdict: {reason}." if reason else ""


def sentence(cell: CellComparison) -> str:
    """The headline of a cell in words."""
    ratio = cell.headline
    if ratio is None:
        return "No quantity is known on both sides."
    gain = ratio.estimate.gain if ratio.estimate else ratio.gain
    verdict = f", {ratio.verdict}" if ratio.verdict else ""
    return (
        f"{ratio.quantity.label}: {view.number(ratio.a)} -> {view.number(ratio.b)} {ratio.quantity.unit}, "
        f"{view.times(view.ratio_of(gain))}{verdict} ({cell.runs[0]} and {cell.runs[1]} runs)"
    )


def moved_most(phases: tuple[Phase, ...]) -> str:
    """Which part of the time moved most, in words."""
    first, whole = phases[0], sum(phase.moved for phase in phases)
    return f"Moved most: {first.name}, {first.moved:+.1f} ms of {whole:+.1f} ms."


def print_comparison(comparison: Comparison, console: "Console | None" = None) -> None:
    """Everything on a terminal; of several arms only the headlines."""
    from rich.console import Console

    console = console or Console()
    console.print(f"A: {comparison.a}\nB: {comparison.b}", highlight=False, markup=False)
    _print_changes(console, comparison)
    if len(comparison.arms) == 1:
        _print_arm(console, comparison.arms[0])
    else:
        _print_headlines(console, comparison)
    for note in comparison.notes:
        console.print(f"Note: {note}", style="yellow", highlight=False, markup=False)


def shared_changes(comparison: Comparison) -> list[tuple[str, str, str]]:
    """Facts that differ, each once: the arms of a set share most of them."""
    return list(dict.fromkeys((c.name, c.a, c.b) for arm in comparison.arms for c in arm.changes))


def _print_changes(console: "Console", comparison: Comparison) -> None:
    changes = shared_changes(comparison)
    if not changes:
        console.print("Nothing that is recorded changed between them.", highlight=False)
        return
    _print_table(console, "What changed", ("", "A", "B"), changes)


def _print_arm(console: "Console", arm: ArmComparison) -> None:
    if reason := refusal(arm):
        console.print(reason, style="red", highlight=False, markup=False)
    for cell in arm.cells:
        if cell.refusal:
            console.print(refusal(arm, cell), style="red", highlight=False, markup=False)
        _print_table(console, cell.cell, COLUMNS, [ratio_row(r) for r in cell.ratios], numbers_from=1)
        for title, phases in parts(cell):
            _print_table(console, f"{title}, ms", ("part", "A", "B", "B - A"), phase_rows(phases), numbers_from=1)
            console.print(moved_most(phases), highlight=False, markup=False)


def _print_headlines(console: "Console", comparison: Comparison) -> None:
    several = len({cell.cell for arm in comparison.arms for cell in arm.cells}) > 1
    rows = [
        (f"{arm.a}, {cell.cell}" if several else arm.a, *ratio_row(cell.headline)[1:5], _verdict(arm, cell))
        for arm in comparison.arms
        for cell in arm.cells
        if cell.headline
    ]
    labels = {cell.headline.quantity.label for arm in comparison.arms for cell in arm.cells if cell.headline}
    _print_table(console, ", ".join(sorted(labels)), ("arm", *COLUMNS[1:]), rows, numbers_from=1)
    for reason in dict.fromkeys(refusal(arm, cell) for arm in comparison.arms for cell in arm.cells):
        if reason:
            console.print(reason, style="red", highlight=False, markup=False)
    console.print("Choose one arm with PATH#ARM for all metrics and the time of the steps.", style="dim")


def _verdict(arm: ArmComparison, cell: CellComparison) -> str:
    assert cell.headline is not None
    return "not comparable" if refusal(arm, cell) else cell.headline.verdict


def _print_table(
    console: "Console",
    title: str,
    columns: tuple[str, ...],
    rows: Sequence[tuple[str, ...]],
    *,
    numbers_from: int = 99,
) -> None:
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=escape(title), title_justify="left", title_style="bold")
    for i, column in enumerate(columns):
        right = i >= numbers_from and column != "verdict"
        table.add_column(column, justify="right" if right else "left", overflow="fold", no_wrap=i >= numbers_from)
    for row in rows:
        table.add_row(*(_colored(cell) for cell in row))
    console.print(table)


def _colored(text: str) -> str:
    from rich.markup import escape

    colors = {"good": "green", "bad": "red", "flat": "dim"}
    tone = view.tone(text)
    return f"[{colors[tone]}]{escape(text)}[/]" if tone in colors else escape(text)


def render(comparison: Comparison) -> str:
    """The page as text."""
    from fuseboard.report.html import page

    return page("compare.html.j2", _context(comparison))


def _context(comparison: Comparison) -> dict[str, object]:
    return {
        "a": comparison.a,
        "b": comparison.b,
        "notes": comparison.notes,
        "changes": shared_changes(comparison),
        "columns": COLUMNS,
        "arms": [
            {
                "name": arm.a if arm.a == arm.b else f"{arm.a} | {arm.b}",
                "refusal": refusal(arm),
                "cells": [_cell_context(arm, cell) for cell in arm.cells],
            }
            for arm in comparison.arms
        ],
    }


def _cell_context(arm: ArmComparison, cell: CellComparison) -> dict[str, object]:
    return {
        "name": cell.cell,
        "refusal": refusal(arm, cell),
        "sentence": sentence(cell),
        "rows": [(ratio_row(ratio), view.tone(ratio.verdict)) for ratio in cell.ratios],
        "parts": [(title, moved_most(phases), phase_rows(phases)) for title, phases in parts(cell)],
    }
