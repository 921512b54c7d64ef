"""The findings for a pull request (Markdown) and for a terminal."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fuseboard.measure.analysis import Analysis
from fuseboard.report import profile, profile_page, source, triage, view

if TYPE_CHECKING:
    from rich.console import Console

COLUMNS = ("comparison", "speed", "95 % interval", "verdict", "p (Holm)", "engaged")
STYLES = {"good": "green", "bad": "red", "flat": "dim", "none": "yellow"}


def render(analysis: Analysis) -> str:
    """The report as GitHub Markdown."""
    design = analysis.design
    parts = [f"# {design.model}: what each switch is worth", f"{design.workload}.", *_headlines(analysis)]
    if analysis.warnings:
        parts.append("\n".join(f"> **Note:** {warning}" for warning in analysis.warnings))
    if analysis.design.source:
        parts += _as_the_source(analysis)
    for cell in analysis.cells:
        for kind, title in view.KIND_TITLES.items():
            if kind != "total" and (rows := view.rows(analysis, kind, cell)):
                parts += [f"## {title} ({cell})", table(COLUMNS, [_cells(row) for row in rows])]
        if why := triage.sentences(analysis, cell):
            parts += [f"## Why slower ({cell})", "\n".join(f"- {sentence}" for sentence in why)]
    for cell in analysis.cells:
        latencies = view.latency_rows(analysis, cell)
        parts += [f"## Latency ({cell})", table(("arm", "metric", "n", "mean", "P50", "P95", "P99"), latencies)]
        if any(row[-1].endswith("*") for row in latencies):
            parts.append("\\* a P99 of fewer than 100 requests is little more than their maximum.")
    parts += _where_the_time_goes(analysis)
    if quality := view.quality_rows(analysis):
        columns = ("arm", *(label for _, label in view.QUALITY_COLUMNS))
        parts += ["## Answers against the all-off baseline in float32", table(columns, quality)]
    if memory := view.memory_rows(analysis):
        columns = ("component", "all off, planned", "measured", "all on, planned", "measured")
        parts += ["## Memory", table(columns, memory)]
    parts += ["## How it was measured", "\n".join(f"- {sentence}" for sentence in view.method(analysis))]
    parts.append(table(("", ""), view.receipts(analysis)))
    return "\n\n".join(parts) + "\n"


def _where_the_time_goes(analysis: Analysis) -> list[str]:
    found: list[str] = []
    for cell in analysis.cells:
        for title, rows in profile_page.explained(analysis, cell):
            found += [f"### {title} ({cell})", table(profile.EXPLAINED_COLUMNS, rows)]
        for arm, profiled in profile_page.profiled(analysis, cell):
            found += [f"### Wall time of {arm} ({cell})", table(profile.PHASE_COLUMNS, profile.phase_rows(profiled))]
            for kind, rows in profile_page.operator_tables(profiled):
                found += [f"### Operators of {arm}, {kind} step ({cell})", table(profile.OPERATOR_COLUMNS, rows)]
    return ["## Where the time goes", *profile_page.sentences(analysis), *found] if found else []


def _as_the_source(analysis: Analysis) -> list[str]:
    found = [f"## As {analysis.design.source} tells it", *source.sentences(analysis)]
    for cell in analysis.cells:
        if rows := source.rows(analysis, cell):
            found += [f"### {cell}", table(source.COLUMNS, rows)]
    if at_once := source.at_once(analysis):
        columns = ("cell", "arm", "most", "mean", "preemptions")
        found += ["### Sequences at once in the same bytes of cache", table(columns, at_once)]
    return found


def _headlines(analysis: Analysis) -> list[str]:
    found = []
    for cell in analysis.cells:
        changes = view.headline(analysis, cell)
        if changes:
            rows = [(c.label, c.off, c.on, c.unit, f"**{c.ratio}**") for c in changes]
            found += [f"**{cell}: all off against all on**", table(("", "all off", "all on", "", "better"), rows)]
    return found


def _cells(row: view.Row) -> tuple[str, ...]:
    return (row.name, row.ratio, row.interval, row.verdict, row.p, row.engaged)


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def print_summary(analysis: Analysis, console: "Console | None" = None) -> None:
    """The headline, the tables of gains, the answers' distance and the warnings, on a terminal."""
    from rich.console import Console

    console = console or Console()
    for cell in analysis.cells:
        for change in view.headline(analysis, cell):
            text = f"{change.label}: {change.off} -> {change.on} {change.unit}, [bold]{change.ratio}[/bold] better"
            console.print(f"{cell}, {text}", highlight=False)
        for kind, title in view.KIND_TITLES.items():
            if kind != "total" and (rows := view.rows(analysis, kind, cell)):
                _print_rows(console, f"{title} ({cell})", rows)
        for sentence in triage.sentences(analysis, cell):
            console.print(sentence, highlight=False, markup=False)
    for record in analysis.quality:
        if record.error is None:
            kl, top = record.values["kl_mean"], record.values["same_top_1"]
            console.print(f"answers, {record.arm}: KL {view.number(kl)}, same top-1 {100 * top:.1f} %", highlight=False)
    for warning in analysis.warnings:
        console.print(f"Note: {warning}", style="yellow", highlight=False, markup=False)
    for sentence in view.method(analysis)[3:]:
        console.print(sentence, style="dim", highlight=False, markup=False)


def _print_rows(console: "Console", title: str, rows: Sequence[view.Row]) -> None:
    from rich.markup import escape
    from rich.table import Table

    shown = Table(title=escape(title), title_justify="left", title_style="bold")
    for column in COLUMNS:
        shown.add_column(column, justify="right" if column in ("speed", "95 % interval", "p (Holm)") else "left")
    for row in rows:
        cells = [escape(cell) for cell in _cells(row)]
        cells[3] = f"[{STYLES[row.tone]}]{cells[3]}[/]"
        shown.add_row(*cells)
    console.print(shown)
