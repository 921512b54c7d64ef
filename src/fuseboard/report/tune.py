"""What `tune` found, on a terminal and as JSON."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fuseboard.load.atomic import write_atomic
from fuseboard.measure.analysis import Finding
from fuseboard.measure.candidates import Rejection
from fuseboard.measure.tune import Tuning
from fuseboard.measure.tuning import Judged
from fuseboard.report import view

if TYPE_CHECKING:
    from rich.console import Console

RANKED_SHOWN, REJECTED_SHOWN, NAMES_SHOWN = 12, 14, 5
SUMMARY = "summary.json"


def failure(found: Tuning) -> str:
    """Why there is no recommendation, as a sentence; empty when there is one."""
    if found.winner is not None:
        return ""
    limits = ", ".join(map(str, found.limits))
    near = found.nearest
    nearest = f" (the nearest is {near.name}, {_chance(near)})" if near and not near.problem else ""
    return (
        f"No configuration that was measured keeps {limits} with a probability of {found.options.confidence:g}"
        f"{nearest}; loosen --slo, raise --memory or offer less load."
    )


def _chance(judged: Judged) -> str:
    return "unknown" if judged.probability is None else f"{100 * judged.probability:.1f} %"


def print_tuning(found: Tuning, console: "Console | None" = None) -> None:
    """The finalists, the recommendation with its risk, what each switch in it is worth, and what was rejected."""
    from rich.console import Console

    console = console or Console()
    console.print(f"{found.options.model}: {found.workload}", highlight=False, markup=False)
    for note in found.notes:
        console.print(f"Note: {note}", style="yellow", highlight=False, markup=False)
    if not found.finalists:
        _table(console, "Would be measured in this order", RANKED_COLUMNS, ranked_rows(found)[:RANKED_SHOWN])
    else:
        _table(console, "Finalists", ("configuration", *_measured_columns(found)), judged_rows(found, found.finalists))
    if found.winner is not None:
        _print_winner(console, found, found.winner)
    _print_rejected(console, found.rejected)


RANKED_COLUMNS = ("configuration", "memory", "TTFT, ms", "TPOT, ms", "time, s")


def ranked_rows(found: Tuning) -> list[tuple[str, ...]]:
    """The least times by the cost model, and the memory of the process."""
    rows = []
    for candidate in found.ranked:
        p = candidate.predicted
        times = (p.ttft_ms, p.tpot_ms, p.work_s) if p else (None, None, None)
        rows.append((candidate.name, view.size(candidate.memory), *map(view.number, times)))
    return rows


def _measured_columns(found: Tuning) -> tuple[str, ...]:
    objective = "time, s" if found.metric == "duration" else "E2E, ms"
    return (objective, *(f"{limit.name}, ms" for limit in found.limits), "P(kept)", "peak", "KL")


def judged_rows(found: Tuning, judged: Sequence[Judged]) -> list[tuple[str, ...]]:
    """Name, objective, the worst cell's value of each limit, probability of keeping them, peak memory, distance."""
    rows = []
    for one in judged:
        values = [view.number(value) for value in one.worst] or ["n/a"] * len(found.limits)
        chance = "failed" if one.problem and not one.worst else _chance(one)
        kl = view.number(one.kl, 2) if one.kl is not None else "0"
        rows.append((one.name, view.number(one.seconds), *values, chance, view.size(one.peak_bytes), kl))
    return rows


def _print_winner(console: "Console", found: Tuning, winner: Judged) -> None:
    _table(console, "Recommended", ("configuration", *_measured_columns(found)), judged_rows(found, [winner]))
    risk = 1 - (winner.probability or 0.0)
    console.print(
        f"Risk: the next launch breaks {' or '.join(map(str, found.limits))} with a probability "
        f"{'of' if risk >= 0.001 else 'below'} {max(100 * risk, 0.1):.1f} %, by {winner.launches} launches.",
        highlight=False,
        markup=False,
    )
    for title, findings in (
        ("What each switch in it is worth (with it against without it)", found.worth),
        ("Other values (against those of the best finalist)", found.choices),
    ):
        if rows := finding_rows(found, findings):
            _table(console, title, ("switch", "speed", "95 % interval", "verdict"), rows)
    if found.unmeasured:
        console.print(
            f"Not measured, as a budget of {found.options.budget} has no time for it: {', '.join(found.unmeasured)}.",
            style="yellow",
            highlight=False,
            markup=False,
        )


def finding_rows(found: Tuning, findings: Sequence[Finding]) -> list[tuple[str, ...]]:
    """Switch (and cell where there are several), speed ratio, interval, verdict."""
    rows: list[tuple[str, ...]] = []
    for finding in findings:
        for cell in found.cells:
            shown = view.row(finding, cell, found.metric)
            name = f"{shown.name}, {cell}" if len(found.cells) > 1 else shown.name
            rows.append((name, shown.ratio, shown.interval, shown.verdict))
    return rows


def _print_rejected(console: "Console", rejected: Sequence[Rejection]) -> None:
    if not rejected:
        return
    grouped: dict[str, list[str]] = {}
    for one in rejected:
        grouped.setdefault(one.reason, []).append(one.name)
    rows = [(_some(names), reason) for reason, names in grouped.items()]
    _table(console, "Rejected", ("configuration", "reason"), rows[:REJECTED_SHOWN], words=2)
    if len(rows) > REJECTED_SHOWN:
        console.print(f"and {len(rows) - REJECTED_SHOWN} more reasons; {SUMMARY} has all of them.", style="dim")


def _some(names: Sequence[str]) -> str:
    more = len(names) - NAMES_SHOWN
    return ", ".join(names[:NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _table(
    console: "Console", title: str, columns: tuple[str, ...], rows: Sequence[tuple[str, ...]], *, words: int = 1
) -> None:
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=escape(title), title_justify="left", title_style="bold")
    for i, column in enumerate(columns):
        text = i < words or column == "verdict"
        table.add_column(
            column,
            justify="left" if text else "right",
            overflow="fold",
            min_width=17 if i < words else len(column) // 2,
        )
    for row in rows:
        table.add_row(*map(escape, row))
    console.print(table)


def as_dict(found: Tuning) -> dict[str, Any]:
    """Everything that was found, as plain JSON data."""
    return {
        "model": found.options.model,
        "workload": found.workload,
        "limits": [str(limit) for limit in found.limits],
        "ranked": [dict(zip(RANKED_COLUMNS, row, strict=True)) for row in ranked_rows(found)],
        "objective": found.metric,
        "notes": list(found.notes),
        "finalists": [_judged(found, one) for one in found.finalists],
        "winner": _judged(found, found.winner) if found.winner else None,
        "worth": [_finding(found, one) for one in found.worth],
        "choices": [_finding(found, one) for one in found.choices],
        "rejected": [{"name": one.name, "reason": one.reason} for one in found.rejected],
        "unmeasured": list(found.unmeasured),
    }


def _judged(found: Tuning, one: Judged) -> dict[str, Any]:
    return {
        "name": one.name,
        "switches": one.candidate.settings,
        "max_num_seqs": one.candidate.plan.schedule.max_num_seqs,
        "kv_memory": one.candidate.engine.kv_memory,
        "plan_digest": one.candidate.plan.digest,
        "launches": one.launches,
        "objective": one.seconds,
        "limits": {limit.name: value for limit, value in zip(found.limits, one.worst, strict=False)},
        "probability": one.probability,
        "peak_bytes": one.peak_bytes,
        "kl_mean": one.kl,
        "problem": one.problem,
    }


def _finding(found: Tuning, finding: Finding) -> dict[str, Any]:
    rows = [view.row(finding, cell, found.metric) for cell in found.cells]
    gains = [finding.gain(cell, found.metric) for cell in found.cells]
    return {
        "name": finding.comparison.name,
        "switches": list(finding.comparison.switches),
        "cells": [
            {"cell": cell, "ratio": gain.estimate.ratio if gain else None, "verdict": row.verdict}
            for cell, gain, row in zip(found.cells, gains, rows, strict=True)
        ],
        "reason": finding.reason,
    }


def write_summary(found: Tuning) -> None:
    """Write summary.json beside the records."""
    write_atomic(found.options.out / SUMMARY, (json.dumps(as_dict(found), indent=2) + "\n").encode())
