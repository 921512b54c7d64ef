"""`tune`: the configuration to serve a workload with, under limits on latency and memory, from measurements.

Formats of weights and cache are ranked by the cost model; the best that pass the quality gate are measured against the
preset, then the neighbours of the winner: other values, which may replace its own, and each switch off, which says what
that one is worth. Every stage runs in blocks of fresh processes and keeps its records in a folder of its own.
"""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from fuseboard.backends.registry import get_backend
from fuseboard.core.errors import UserError
from fuseboard.execute.config_file import write_config
from fuseboard.execute.options import parse_bytes
from fuseboard.measure import budget, candidates, experiment, memory, setup, slo
from fuseboard.measure.analysis import Analysis, Finding
from fuseboard.measure.candidates import Candidate, Neighbour, Rejection, Space
from fuseboard.measure.ceilings import ensure_ceilings
from fuseboard.measure.record import ComparisonRecord
from fuseboard.measure.subject import load_subject
from fuseboard.measure.tune_options import TuneOptions
from fuseboard.measure.tune_workload import load_workload
from fuseboard.measure.tuning import (
    LEAST_BLOCKS,
    Judged,
    Study,
    best_of,
    eligible,
    forget,
    gated,
    is_faster,
    judge,
    measure,
)
from fuseboard.plan.switches import parse_settings

OPEN_LOOP_SEQS = 64
"""Sequences at once where the arrivals, not the workload, say how many requests wait."""
FINALISTS_SHARE, NEIGHBOURS_SHARE = 0.5, 0.85
"""Shares of the budget after which a stage starts no further block."""


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """What was found. `nearest` is the likeliest to keep the limits when there is no `winner`."""

    options: TuneOptions
    limits: tuple[slo.Limit, ...]
    workload: str
    notes: tuple[str, ...]
    ranked: tuple[Candidate, ...]
    finalists: tuple[Judged, ...] = ()
    winner: Judged | None = None
    nearest: Judged | None = None
    worth: tuple[Finding, ...] = ()
    choices: tuple[Finding, ...] = ()
    rejected: tuple[Rejection, ...] = ()
    unmeasured: tuple[str, ...] = ()
    cells: tuple[str, ...] = ()
    metric: str = "duration"


def run(options: TuneOptions) -> Tuning:
    """Search, measure and write the configuration file; UserError when no configuration can be measured at all."""
    if options.dry_run:
        study = _prepare(options)
        return _tuning(study, _ranked(study))
    with experiment.measuring_lock():
        ensure_ceilings(get_backend(), options.threads)
        study = _prepare(options)
        found = _search(study, _ranked(study))
    if found.winner is not None:
        _write(found, found.winner)
    return found


def _prepare(options: TuneOptions) -> Study:
    """The space of the search; UserError for options that make no sense."""
    limits, seconds = slo.parse_slo(options.slo), budget.seconds(options.budget)
    if options.finalists < 1 or not 0 < options.confidence < 1 or options.max_kl < 0:
        raise UserError("--finalists must be at least 1, --confidence between 0 and 1, --max-kl at least 0.")
    fixed, extra = parse_settings(list(options.set)), _extra(options)
    bare = setup.bare_args(options)
    subject = load_subject(bare)
    work, notes = load_workload(options, subject)
    closed = max(cell.concurrency or min(OPEN_LOOP_SEQS, len(cell.requests)) for cell in work.cells)
    longest = options.max_model_len or min(-(-work.max_len // 64) * 64, subject.model.spec.max_position)
    base = replace(
        bare,
        preset=dict(subject.profile),
        switches=fixed,
        max_model_len=longest,
        max_num_seqs=options.max_num_seqs or closed,
    )
    space = Space(
        subject=subject,
        base=base,
        work=work,
        limits=limits,
        memory=parse_bytes(options.memory) if options.memory else None,
        overhead=memory.resident_bytes(),
    )
    return Study(options=options, space=space, extra=extra, notes=notes, seconds=seconds)


def _extra(options: TuneOptions) -> dict[str, list[str]]:
    """Values of `--also` by switch."""
    extra: dict[str, list[str]] = {}
    for setting in options.also:
        for name, value in parse_settings([setting]).items():
            extra.setdefault(name, []).append(value)
    return extra


def _ranked(study: Study) -> list[Candidate]:
    """The formats that have a plan; UserError when nothing has one."""
    ranked, rejected = candidates.formats(study.space, study.extra)
    study.rejected += rejected
    if not ranked:
        raise UserError(
            f"No configuration can be measured, all {len(rejected)} are ruled out; {rejected[0].name} as: "
            f"{rejected[0].reason}"
        )
    return ranked


def _tuning(study: Study, ranked: Sequence[Candidate]) -> Tuning:
    return Tuning(
        options=study.options,
        limits=study.space.limits,
        workload=setup.describe(study.space.work),
        notes=study.notes,
        ranked=tuple(ranked),
        rejected=tuple(study.rejected),
        cells=tuple(cell.name for cell in study.space.work.cells),
        metric=study.metric,
    )


def _search(study: Study, ranked: Sequence[Candidate]) -> Tuning:
    if not study.options.resume:
        forget(study)
    chosen = gated(study, ranked)
    if not chosen:
        raise UserError(f"No configuration passes the quality gate of {study.options.max_kl:g} nats; raise --max-kl.")
    comparisons = [_against(chosen[0], c.name, c) for c in chosen[1:]]
    first = measure(study, "finalists", chosen, comparisons, until=FINALISTS_SHARE)
    finalists = judge(study, chosen)
    best = best_of(study, _proven(study, finalists, first))
    if best is None and any(not judged.problem for judged in finalists):
        # Few launches leave a wide interval: the time that the neighbours would take is spent on certainty instead.
        first = measure(study, "finalists", chosen, comparisons, until=1.0)
        finalists = judge(study, chosen)
        best = best_of(study, _proven(study, finalists, first))
    if best is None:
        nearest = max(finalists, key=lambda j: (not j.problem, j.probability or 0.0))
        return replace(_tuning(study, ranked), finalists=tuple(finalists), nearest=nearest)
    around, unmeasured = _affordable(study, candidates.neighbours(study.space, best.candidate, study.extra))
    found = _measure_neighbours(study, best.candidate, around)
    winner = _improved(study, best, around, found)
    _reject_losers(study, finalists, winner)
    return replace(
        _tuning(study, ranked),
        finalists=tuple(finalists),
        winner=winner,
        worth=tuple(found.of_kind("without")) if found else (),
        choices=tuple(found.of_kind("choice")) if found else (),
        unmeasured=tuple(unmeasured),
    )


def _proven(study: Study, finalists: Sequence[Judged], found: Analysis) -> list[Judged]:
    """The first finalist, which is the most faithful, and those that are faster than it; all, where it is no option."""
    if not eligible(study, finalists[0]):
        return list(finalists)
    faster = {f.comparison.treatment for f in found.findings if is_faster(study, f, found.cells)}
    return [finalists[0], *(j for j in finalists[1:] if j.name in faster)]


def _against(reference: Candidate, name: str, treatment: Candidate) -> ComparisonRecord:
    """Another value is judged against what there is; no counter has to move, as both sides may use the switch."""
    return ComparisonRecord(name=name, kind="choice", switches=(), treatment=treatment.name, reference=reference.name)


def _affordable(study: Study, around: Sequence[Neighbour]) -> tuple[list[Neighbour], list[str]]:
    """The neighbours that the budget has time for, and the names of the others."""
    timed = [budget.launch_s(r) for runs in study.launches.values() for r in runs if r.error is None]
    fits = int((NEIGHBOURS_SHARE * study.seconds - study.elapsed) / (LEAST_BLOCKS * statistics.median(timed))) - 1
    fits = max(0, fits)
    return list(around[:fits]), [n.title for n in around[fits:]]


def _measure_neighbours(study: Study, winner: Candidate, around: Sequence[Neighbour]) -> Analysis | None:
    if not around:
        return None
    comparisons = [_comparison(winner, neighbour) for neighbour in around]
    return measure(study, "neighbours", [winner, *(n.candidate for n in around)], comparisons, until=NEIGHBOURS_SHARE)


def _comparison(winner: Candidate, other: Neighbour) -> ComparisonRecord:
    """The winner is judged against itself with a switch off, another value against the winner."""
    if other.kind == "choice":
        return _against(winner, other.title, other.candidate)
    return ComparisonRecord(
        name=", ".join(other.rows),
        kind="without",
        switches=other.rows,
        treatment=winner.name,
        reference=other.candidate.name,
    )


def _improved(study: Study, best: Judged, around: Sequence[Neighbour], found: Analysis | None) -> Judged:
    """The winner with the values that proved faster and keep the limits, if a last comparison bears that out."""
    (best,) = judge(study, [best.candidate])
    adopted = [] if found is None else list(_faster(study, around, found))
    if not adopted:
        return best
    changed = _combined(study, best.candidate, adopted)
    comparison = _against(best.candidate, changed.name, changed)
    outcome = measure(study, "final", [best.candidate, changed], [comparison], until=1.0)
    best, improved = judge(study, [best.candidate, changed])
    verdicts = {f.verdict(cell, study.metric) for f in outcome.of_kind("choice") for cell in outcome.cells}
    if "slower" in verdicts or not eligible(study, improved):
        study.rejected.append(Rejection(name=changed.name, reason="It did not prove better in the last comparison."))
        return best
    return improved


def _faster(study: Study, around: Sequence[Neighbour], found: Analysis) -> Iterator[Neighbour]:
    """Of each row the value with the largest gain among those that are faster somewhere and slower nowhere."""
    gains: dict[str, tuple[float, Neighbour]] = {}
    by_name = {n.candidate.name: n for n in around if n.kind == "choice"}
    for finding in found.of_kind("choice"):
        neighbour = by_name[finding.comparison.treatment]
        (judged,) = judge(study, [neighbour.candidate])
        if is_faster(study, finding, found.cells) and eligible(study, judged):
            gain = sum(g.estimate.gain for g in finding.gains if g.metric.key == study.metric)
            row = neighbour.rows[0]
            gains[row] = max(gains.get(row, (gain, neighbour)), (gain, neighbour), key=lambda pair: pair[0])
    for _, neighbour in gains.values():
        yield neighbour


def _combined(study: Study, best: Candidate, adopted: Sequence[Neighbour]) -> Candidate:
    """The winner with all adopted values; with the first alone when together they have no plan."""
    changes = dict(best.changes)
    seqs = best.plan.schedule.max_num_seqs
    for neighbour in adopted:
        changes |= neighbour.candidate.changes
        seqs = min(seqs, neighbour.candidate.plan.schedule.max_num_seqs)
    together = study.space.candidate(changes, seqs)
    return adopted[0].candidate if isinstance(together, Rejection) else together


def _reject_losers(study: Study, finalists: Sequence[Judged], winner: Judged) -> None:
    for judged in finalists:
        if judged.candidate.plan.digest == winner.candidate.plan.digest:
            continue
        study.rejected.append(Rejection(name=judged.name, reason=judged.problem or _lost(study, judged, winner)))


def _lost(study: Study, judged: Judged, winner: Judged) -> str:
    if not eligible(study, judged):
        return f"It keeps the limits with a probability of {judged.probability or 0.0:.2f} only."
    ratio = (judged.seconds or 0.0) / (winner.seconds or 1.0)
    if ratio < 1:
        return f"It did not prove faster than {winner.name}."
    return f"It takes {ratio:.2f} times the time of {winner.name}."


def _write(found: Tuning, winner: Judged) -> None:
    """The configuration as a file, with what speaks for it."""
    engine, options = winner.candidate.engine, found.options
    kept = {
        "model": engine.model,
        "preset": "on",
        "load_format": None if engine.load_format == "auto" else engine.load_format,
        "threads": engine.threads,
        "max_model_len": engine.max_model_len,
        "max_num_seqs": engine.max_num_seqs,
        "kv_memory": engine.kv_memory,
    }
    chances = f"{100 * (winner.probability or 0.0):.1f} %"
    comments = [
        f"fuseboard tune: {found.workload}",
        f"keeps {', '.join(map(str, found.limits))} with a probability of {chances}, from {winner.launches} launches",
        f"plan {winner.candidate.plan.digest[:16]}; the records are in {options.out}",
    ]
    write_config(options.write, kept, engine.switches, comments)
