"""Where the time goes, as tables: phases that add up to the wall time, operators beside limits, and what moved."""

import math
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fuseboard.measure.analysis import Analysis
from fuseboard.measure.explained import Explanation, explained, predictor_errors
from fuseboard.measure.record import CellProfile, Machine, OperatorRecord, ProfileRecord, StepsProfile
from fuseboard.report import view

if TYPE_CHECKING:
    from rich.console import Console

PHASE_COLUMNS = ("part", "decode, ms", "\u00b5s/step", "prefill, ms", "\u00b5s/step", "both, ms", "share")
OPERATOR_COLUMNS = ("operator", "calls", "\u00b5s", "share", "MB", "MOP", "GB/s", "GOP/s", "of limit")
"""Calls, microseconds, bytes moved and operations are those of a step."""
CHANGE_COLUMNS = ("part", "before, ms", "after, ms", "change, ms", "predicted change, ms")
EXPLAINED_COLUMNS = ("comparison", "operators, ms", "faster", "predicted", "predictor's error", "moved most")
MINUS = "\u2212"
SUSPICIOUS, CACHED = "!", "~"
CACHED_NOTE = f"{CACHED} faster than memory: its activations stayed in caches."


def phase_rows(cell: CellProfile) -> list[tuple[str, ...]]:
    """The parts of a cell's wall time; the columns of `PHASE_COLUMNS`."""
    parts = [_phase(name, cell, key) for name, key in _STEP_PARTS]
    rest = (
        ("between steps", cell.idle_ns),
        ("node timing", cell.instrument_ns),
        ("residual", cell.residual_ns),
    )
    parts += [(name, "", "", "", "", _ms(ns), _share(ns, cell.wall_ns)) for name, ns in rest]
    return [*parts, ("wall time", "", "", "", "", _ms(cell.wall_ns), "100 %")]


_STEP_PARTS = (
    ("schedule", "schedule_ns"),
    ("prepare", "prepare_ns"),
    ("operators", "operators_ns"),
    ("dispatch", "dispatch_ns"),
    ("sample", "sample_ns"),
    ("detokenise", "detokenise_ns"),
)


def _phase(name: str, cell: CellProfile, key: str) -> tuple[str, ...]:
    found = [_of(steps, key) for steps in (cell.decode, cell.prefill)]
    columns = [
        text
        for ns, steps in zip(found, (cell.decode, cell.prefill), strict=True)
        for text in ((_ms(ns), _us(ns / steps.sums.steps)) if steps.sums.steps else ("", ""))
    ]
    return (name, *columns, _ms(sum(found)), _share(sum(found), cell.wall_ns))


def _of(steps: StepsProfile, key: str) -> int:
    return int(getattr(steps if key in ("operators_ns", "dispatch_ns") else steps.sums, key))


def operator_rows(steps: StepsProfile) -> list[tuple[str, ...]]:
    """The operators of steps of one kind; bytes and operations are a step's. The columns of `OPERATOR_COLUMNS`."""
    count = steps.sums.steps
    return [
        (
            o.name,
            view.number(o.calls / count),
            _us(o.ns / count),
            _share(o.ns, steps.sums.total_ns),
            view.number(moved(o) / count / 1e6),
            view.number(o.operations / count / 1e6),
            view.number(moved(o) / o.ns) if o.ns else "",
            view.number(o.operations / o.ns) if o.ns else "",
            f"{100 * o.limit_ns / o.ns:.0f} % {mark(o)}".rstrip() if o.ns and o.limit_ns else "n/a",
        )
        for o in steps.operators
        if count
    ]


def moved(operator: OperatorRecord) -> int:
    """All bytes that the cost model says an operator moves."""
    return operator.weight_bytes + operator.kv_bytes + operator.activation_bytes


def mark(operator: OperatorRecord) -> str:
    """The mark of an operator that took less time than its ceilings allow."""
    if operator.streamed_limit_ns > operator.ns:
        return SUSPICIOUS
    return CACHED if operator.limit_ns > operator.ns else ""


def suspicious(cell: CellProfile) -> list[str]:
    """What to say of operators that were faster than this machine can be: something the numbers rest on is wrong."""
    found = [
        f"{operator.name} of {kind} ({100 * operator.streamed_limit_ns / operator.ns:.0f} %)"
        for kind, steps in (("decode", cell.decode), ("prefill", cell.prefill))
        for operator in steps.operators
        if operator.ns and mark(operator) == SUSPICIOUS
    ]
    reason = "the cost model or the ceilings are wrong, or its weights stayed in a cache"
    return [f"{SUSPICIOUS} above its ceiling: {', '.join(found)}; {reason}."] if found else []


def legend(cell: CellProfile) -> list[str]:
    """What the marks of the operator tables mean, of those that are there."""
    marks = {mark(o) for steps in (cell.decode, cell.prefill) for o in steps.operators if o.ns}
    return [*suspicious(cell), *([CACHED_NOTE] if CACHED in marks else [])]


def change_rows(explanation: Explanation) -> list[tuple[str, ...]]:
    """Part by part what a comparison changed; the columns of `CHANGE_COLUMNS`."""
    return [
        (
            c.name,
            _ms(c.before_ns),
            _ms(c.after_ns),
            _signed(c.change_ns),
            _signed(c.predicted_ns) if c.predicted_ns else "",
        )
        for c in explanation.changes
        if c.before_ns or c.after_ns
    ]


def explanations(analysis: Analysis, kind: str, cell: str) -> list[tuple[str, Explanation]]:
    """The explained comparisons of a kind, by name."""
    found = ((f.comparison.name, explained(analysis, f, cell)) for f in analysis.of_kind(kind))
    return [(name, explanation) for name, explanation in found if explanation is not None]


def explained_rows(found: Sequence[tuple[str, Explanation]]) -> list[tuple[str, ...]]:
    """A line a comparison: its operators' time, measured and predicted. The columns of `EXPLAINED_COLUMNS`."""
    return [
        (
            name,
            f"{_ms(e.before_ns)} \u2192 {_ms(e.after_ns)}",
            view.times(e.measured),
            view.times(e.predicted) if e.predicted else "n/a",
            _percent(e.error),
            f"{e.moved.name} ({_signed(e.moved.change_ns)} ms)" if e.moved.change_ns else "nothing",
        )
        for name, e in found
    ]


def predictor_sentence(analysis: Analysis) -> str:
    """How far the cost model was off over all explained comparisons, or an empty sentence."""
    found = [e for f in analysis.findings for cell in analysis.cells if (e := explained(analysis, f, cell))]
    errors = predictor_errors(found)
    if not errors:
        return ""
    return (
        f"The cost model was off by {_percent(statistics.median(errors)).lstrip('+')} in what the operators gain "
        f"(median of the {len(errors)} comparisons in which they gain or were said to)."
    )


def _ms(ns: float) -> str:
    return view.number(ns / 1e6)


def _us(ns: float) -> str:
    return view.number(ns / 1e3)


def _share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f} %" if whole else ""


def _signed(ns: float) -> str:
    sign = "+" if ns > 0 else MINUS if ns < 0 else ""
    return sign + _ms(abs(ns))


def _percent(log_ratio: float | None) -> str:
    if log_ratio is None:
        return "n/a"
    share = round(100 * math.expm1(log_ratio))
    return f"{'+' if share > 0 else MINUS if share < 0 else ''}{abs(share)} %"


def ceilings(machine: Machine) -> str:
    """The measured limits of a machine in words."""
    if not machine.read_bytes_per_s:
        return "No ceilings are known for this backend."
    cached = (
        f"{machine.cache_read_bytes_per_s / 1e9:.1f} GB/s for steps whose weights and KV fit the last cache "
        f"({view.size(machine.cache_bytes)}), "
        if machine.cache_read_bytes_per_s
        else ""
    )
    return (
        f"Ceilings, measured: {machine.read_bytes_per_s / 1e9:.1f} GB/s from memory, {cached}"
        f"{machine.flops_per_s / 1e9:.0f} GFLOP/s, {machine.integer_ops_per_s / 1e9:.0f} GOP/s on integers."
    )


def overhead(cell: CellProfile) -> str:
    """What timing the nodes cost, where the same work also ran without it."""
    if not cell.plain_ns:
        return ""
    return (
        f"The same work took {_ms(cell.plain_ns)} ms without node timing, {_ms(cell.wall_ns - cell.instrument_ns)} ms "
        f"with it, and {_ms(cell.instrument_ns)} ms more to read the node times."
    )


def print_profile(record: ProfileRecord, console: "Console | None" = None) -> None:
    """All tables of a profile on a terminal."""
    from rich.console import Console

    console = console or Console()
    for cell in record.cells:
        console.print(f"{record.model}, {cell.name}, plan {record.plan_digest[:12]}", style="bold", highlight=False)
        _print_table(console, "Where the wall time goes", PHASE_COLUMNS, phase_rows(cell))
        for kind, steps in (("decode", cell.decode), ("prefill", cell.prefill)):
            if steps.sums.steps:
                title = f"Operators of a {kind} step ({steps.sums.steps} steps, {_tokens(steps)} tokens a step)"
                _print_table(console, title, OPERATOR_COLUMNS, operator_rows(steps))
        for sentence in filter(None, (ceilings(record.machine), overhead(cell))):
            console.print(sentence, style="dim", highlight=False)
        for sentence in legend(cell):
            console.print(sentence, style="yellow", highlight=False)


def _tokens(steps: StepsProfile) -> str:
    return view.number(steps.sums.tokens / steps.sums.steps)


def _print_table(console: "Console", title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.table import Table

    shown = Table(title=title, title_justify="left", title_style="bold", header_style="dim", box=None, pad_edge=False)
    for i, column in enumerate(columns):
        shown.add_column(column, justify="right" if i else "left", no_wrap=True)
    for row in rows:
        shown.add_row(*row)
    console.print(shown, "")
