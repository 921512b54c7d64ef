"""One self-contained page that opens offline: styles, plots and tables inline, no script needed."""

import re
from importlib import resources
from typing import Any

from fuseboard.measure.analysis import Analysis
from fuseboard.measure.metrics import METRICS
from fuseboard.report import plots, profile_page, source, triage, view


def render(analysis: Analysis) -> str:
    """The page as text."""
    return page("report.html.j2", _context(analysis))


def page(template: str, context: dict[str, Any]) -> str:
    """A template of this folder with the common style, filled in."""
    from jinja2 import Environment, PackageLoader
    from markupsafe import Markup

    loader = PackageLoader("fuseboard.report")
    environment = Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters["slug"] = slug
    environment.filters["svg"] = Markup
    return environment.get_template(template).render(style=Markup(_file("style.css")), **context)


def _file(name: str) -> str:
    return resources.files("fuseboard.report").joinpath("templates", name).read_text(encoding="utf-8")


def slug(text: str) -> str:
    """The text as an id of the page."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def _context(analysis: Analysis) -> dict[str, Any]:
    design = analysis.design
    return {
        "design": design,
        "launches": sum(r.error is None for r in analysis.launches),
        "warnings": analysis.warnings,
        "complete": analysis.complete,
        "cells": [_cell(analysis, cell) for cell in analysis.cells],
        "memory_plot": plots.memory(analysis, "memory"),
        "memory_rows": view.memory_rows(analysis),
        "quality_rows": view.quality_rows(analysis),
        "source_columns": source.COLUMNS,
        "quality_columns": [label for _, label in view.QUALITY_COLUMNS],
        "at_once": source.at_once(analysis) if design.source else [],
        "source_sentences": source.sentences(analysis) if design.source else [],
        "time": profile_page.context(analysis, slug),
        "counters": view.counter_rows(analysis),
        "method": view.method(analysis),
        "receipts": view.receipts(analysis),
    }


def _cell(analysis: Analysis, cell: str) -> dict[str, Any]:
    name = slug(cell)
    total = view.total(analysis)
    kinds = [k for k in view.KIND_TITLES if k not in ("total", "aa")]
    return {
        "name": cell,
        "total": view.row(total, cell) if total else None,
        "changes": view.headline(analysis, cell),
        "source": source.rows(analysis, cell),
        "noise": view.rows(analysis, "aa", cell),
        "tables": [(view.KIND_TITLES[k], rows) for k in kinds if (rows := view.rows(analysis, k, cell))],
        "slower": triage.sentences(analysis, cell),
        "ladder": plots.ladder(analysis, cell, f"ladder-{name}"),
        "forest": plots.forest(analysis, cell, f"forest-{name}"),
        "latency": plots.latency(analysis, cell, f"latency-{name}"),
        "latency_rows": view.latency_rows(analysis, cell),
        "quality": plots.quality(analysis, cell, f"quality-{name}"),
        "steps": view.step_rows(analysis, cell),
        "metric_labels": [f"{m.label}, {m.unit}" for m in METRICS],
        "metrics": view.metric_rows(analysis, [arm.name for arm in analysis.design.arms], cell),
    }
