"""Samples to ratios with their spread, and the ratios to a Markdown table."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.peers.work import Row

OURS, AGAIN = "fuseboard", "fuseboard again"
REFERENCE = "llama.cpp"
"""The peer that the bars are about."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One process: tokens a second, and its peak resident memory."""

    rate: float
    peak_bytes: int


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Median and range of repetitions."""

    median: float
    low: float
    high: float

    def text(self, digits: int = 2) -> str:
        return f"{self.median:.{digits}f} ({self.low:.{digits}f}-{self.high:.{digits}f})"


@dataclass(kw_only=True)
class Outcome:
    """What came out of a row: samples by arm, one a repetition; the peers' settings, and why a peer has no number."""

    row: Row
    samples: dict[str, list[Sample]] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    step_bytes: int = 0
    host_share: float = 0.0
    read_bytes_per_s: float = 0.0


def spread(values: Iterable[float]) -> Spread:
    kept = list(values)
    return Spread(median=statistics.median(kept), low=min(kept), high=max(kept))


def rates(samples: Sequence[Sample]) -> Spread:
    return spread(s.rate for s in samples)


def ratio(outcome: Outcome, peer: str) -> Spread:
    """Our speed over the peer's, paired by repetition; times instead of speeds where the row asks for them.

    Ours is the geometric mean of the two processes of a repetition.
    """
    ours = zip(outcome.samples[OURS], outcome.samples[AGAIN], strict=True)
    quotients = [math.sqrt(a.rate * b.rate) / p.rate for (a, b), p in zip(ours, outcome.samples[peer], strict=True)]
    return spread(1 / q if outcome.row.as_time else q for q in quotients)


def floor(outcome: Outcome) -> Spread:
    """Ours over ours: what the machine alone does to a ratio."""
    pairs = zip(outcome.samples[OURS], outcome.samples[AGAIN], strict=True)
    return spread(a.rate / b.rate for a, b in pairs)


def memory_ratio(outcome: Outcome, peer: str) -> float:
    return _peak(outcome.samples[OURS]) / _peak(outcome.samples[peer])


def limit_share(outcome: Outcome) -> float | None:
    """Share of the measured read rate that a decode row uses on the bytes it must read; None for prompts."""
    if outcome.row.work.kind == "prefill" or not outcome.read_bytes_per_s:
        return None
    steps_per_s = rates(outcome.samples[OURS]).median / outcome.row.work.batch
    return steps_per_s * outcome.step_bytes / outcome.read_bytes_per_s


def meets(outcome: Outcome, peer: str) -> bool | None:
    """Whether the row's bar is met; None where there is none."""
    bar = outcome.row.bar
    if bar is None or peer != REFERENCE:
        return None
    found = ratio(outcome, peer).median
    return found <= bar if outcome.row.as_time else found >= bar


HEAD = (
    "work",
    "model",
    "ours",
    "tokens/s",
    "A/A",
    "of the memory limit",
    "host",
    "peer",
    "file, settings",
    "its tokens/s",
    "ours / peer",
    "bar",
    "memory ours / peer",
)


def markdown(outcomes: Sequence[Outcome]) -> str:
    """One line for every row and peer."""
    lines = [_line(HEAD), _line(["---"] * len(HEAD))]
    for outcome in outcomes:
        lines += _lines(outcome)
    return "\n".join(lines) + "\n"


def _lines(outcome: Outcome) -> list[str]:
    row, mine = outcome.row, outcome.samples.get(OURS, [])
    broken = outcome.failures.get(OURS) or outcome.failures.get(AGAIN)
    if broken or not mine:
        return [_line([row.work.label, row.model, row.weights or "all off", broken or "not measured"])]
    share = limit_share(outcome)
    start = [
        row.work.label + (", as time" if row.as_time else ""),
        row.model,
        row.weights or "all off",
        rates(mine).text(1),
        floor(outcome).text(),
        "" if share is None else f"{share:.0%}",
        f"{outcome.host_share:.1%}",
    ]
    peers = [peer for peer in row.peers if peer in outcome.failures or peer in outcome.samples]
    return [_line([*start, peer, *_peer_cells(outcome, peer)]) for peer in peers]


def _peer_cells(outcome: Outcome, peer: str) -> list[str]:
    if peer in outcome.failures:
        return [outcome.row.file, outcome.failures[peer]]
    return [
        f"{outcome.row.file} {outcome.settings[peer]}".strip(),
        rates(outcome.samples[peer]).text(1),
        ratio(outcome, peer).text(),
        _bar(outcome, peer),
        f"{memory_ratio(outcome, peer):.2f}",
    ]


def _bar(outcome: Outcome, peer: str) -> str:
    met = meets(outcome, peer)
    if met is None:
        return ""
    return f"{'<=' if outcome.row.as_time else '>='} {outcome.row.bar} {'met' if met else 'missed'}"


def quality_markdown(values: Mapping[str, Mapping[str, Mapping[str, float]]]) -> str:
    """Divergence from float32 by model and format, ours and llama.cpp's."""
    keys = ("kl_mean", "kl_p999", "same_top_1", "ln_ppl_ratio")
    head = ("model", "format", "mean KL", "99.9 % KL", "same top-1", "ln PPL ratio")
    lines = [_line(head), _line(["---"] * len(head))]
    for model, formats in values.items():
        for name, found in formats.items():
            lines.append(_line([model, name, *(f"{found[key]:.4f}" for key in keys)]))
    return "\n".join(lines) + "\n"


def _peak(samples: Sequence[Sample]) -> float:
    return statistics.median(s.peak_bytes for s in samples)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |"
