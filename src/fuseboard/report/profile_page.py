"""What the report's pages say of where the time goes: the plots and tables of every cell that was profiled."""

from typing import Any

from fuseboard.measure.analysis import Analysis
from fuseboard.measure.design import BASELINE, FULL
from fuseboard.measure.record import CellProfile
from fuseboard.report import profile, profile_plots, view

KINDS = ("ladder", "alone", "without")
APART = (
    "Every arm ran once more in a process of its own with its operators timed; that costs time, so none of it counts "
    "as speed. A prediction is the ratio of the least times that the measured ceilings allow the operators."
)


def context(analysis: Analysis, slug: Any) -> dict[str, Any] | None:
    """Everything that the template of this section fills in; None where nothing was profiled."""
    cells = [_cell(analysis, cell, slug(cell)) for cell in analysis.cells if profiled(analysis, cell)]
    if not cells:
        return None
    return {
        "cells": cells,
        "sentences": sentences(analysis),
        "phase_columns": list(profile.PHASE_COLUMNS),
        "operator_columns": list(profile.OPERATOR_COLUMNS),
        "change_columns": list(profile.CHANGE_COLUMNS),
        "explained_columns": list(profile.EXPLAINED_COLUMNS),
    }


def profiled(analysis: Analysis, cell: str) -> list[tuple[str, CellProfile]]:
    """All off and all on, where they were profiled."""
    return [(arm, found) for arm in (BASELINE, FULL) if (found := analysis.profile_of(arm, cell))]


def sentences(analysis: Analysis) -> list[str]:
    """How the section's numbers came about, and how far the predictions were off."""
    machine = next((p.machine for p in analysis.profiles), analysis.design.machine)
    return [s for s in (APART, profile.ceilings(machine), profile.predictor_sentence(analysis)) if s]


def explained(analysis: Analysis, cell: str) -> list[tuple[str, list[tuple[str, ...]]]]:
    """Title and rows of every kind of comparison that can be explained."""
    found = ((view.KIND_TITLES[kind], profile.explanations(analysis, kind, cell)) for kind in KINDS)
    return [(title, profile.explained_rows(rows)) for title, rows in found if rows]


def _cell(analysis: Analysis, cell: str, name: str) -> dict[str, Any]:
    arms = profiled(analysis, cell)
    full = next((p for arm, p in arms if arm == FULL), None)
    machine = next((p.machine for p in analysis.profiles), analysis.design.machine)
    return {
        "name": cell,
        "bars": profile_plots.bars(analysis, cell, f"time-{name}"),
        "roofline": profile_plots.roofline(full, machine, f"roofline-{name}") if full else "",
        "explained": explained(analysis, cell),
        "changes": [
            (title, profile.change_rows(explanation))
            for title, explanation in profile.explanations(analysis, "ladder", cell)
        ],
        "phases": [(arm, profile.phase_rows(p)) for arm, p in arms],
        "operators": [(f"{arm}, {kind} step", rows) for arm, p in arms for kind, rows in operator_tables(p)],
        "warnings": [f"{arm}: {text}" for arm, p in arms for text in profile.legend(p)],
    }


def operator_tables(cell: CellProfile) -> list[tuple[str, list[tuple[str, ...]]]]:
    """The operators of decode and of prefill steps, where there were such steps."""
    kinds = (("decode", cell.decode), ("prefill", cell.prefill))
    return [(kind, profile.operator_rows(steps)) for kind, steps in kinds if steps.sums.steps]
