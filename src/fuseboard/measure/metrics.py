"""Metrics of one cell, from raw nanoseconds. A metric that has no value is None, never 0."""

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from fuseboard.measure.record import CellRecord, RequestRecord

NS_PER_S = 1e9
NS_PER_MS = 1e6
P99_NEEDS = 100
"""Below this many values a P99 is mostly the maximum, and is flagged."""


def ttft_ms(request: RequestRecord) -> float | None:
    """Time to first token, milliseconds."""
    return (request.token_ns[0] - request.start_ns) / NS_PER_MS if request.ok else None


def tpot_ms(request: RequestRecord) -> float | None:
    """Time per output token after the first, milliseconds; None below two tokens."""
    if not request.ok or request.n_out < 2:
        return None
    return (request.token_ns[-1] - request.token_ns[0]) / (request.n_out - 1) / NS_PER_MS


def e2e_ms(request: RequestRecord) -> float | None:
    """From the send to the last token, milliseconds."""
    return (request.token_ns[-1] - request.start_ns) / NS_PER_MS if request.ok else None


def itl_ms(request: RequestRecord) -> tuple[float, ...]:
    """Gaps between tokens, milliseconds. Tokens of one step arrive together, so a gap may be 0."""
    times = request.token_ns if request.ok else ()
    return tuple((b - a) / NS_PER_MS for a, b in itertools.pairwise(times))


def chunk_gaps_ms(request: RequestRecord) -> tuple[float, ...]:
    """Gaps between arrivals, milliseconds, where tokens that arrive at the same moment are one arrival."""
    times = sorted(set(request.token_ns)) if request.ok else []
    return tuple((b - a) / NS_PER_MS for a, b in itertools.pairwise(times))


@dataclass(frozen=True, kw_only=True)
class Distribution:
    """Summary of n values; percentiles interpolate linearly. `p99_flagged` when n is too small for a P99."""

    n: int
    mean: float
    std: float
    p50: float
    p90: float
    p95: float
    p99: float
    p99_flagged: bool


def distribution(values: Iterable[float | None]) -> Distribution | None:
    """Summary of the values that exist, or None."""
    kept = np.array([v for v in values if v is not None], dtype=np.float64)
    if not kept.size:
        return None
    p50, p90, p95, p99 = (float(p) for p in np.percentile(kept, (50, 90, 95, 99), method="linear"))
    std = float(kept.std(ddof=1)) if kept.size > 1 else 0.0
    return Distribution(
        n=kept.size, mean=float(kept.mean()), std=std, p50=p50, p90=p90, p95=p95, p99=p99,
        p99_flagged=kept.size < P99_NEEDS,
    )  # fmt: skip


def duration_s(cell: CellRecord) -> float | None:
    """From the first send to the last token, seconds; None when no request gave a token."""
    done = [r for r in cell.requests if r.ok]
    if not done:
        return None
    return (max(r.token_ns[-1] for r in done) - min(r.start_ns for r in cell.requests)) / NS_PER_S


def _rate(amount: int, seconds: float | None) -> float | None:
    return amount / seconds if seconds else None


def output_throughput(cell: CellRecord) -> float | None:
    """Output tokens a second over the window."""
    return _rate(sum(r.n_out for r in cell.requests if r.ok), duration_s(cell))


def total_throughput(cell: CellRecord) -> float | None:
    """Input and output tokens a second over the window."""
    return _rate(sum(r.n_in + r.n_out for r in cell.requests if r.ok), duration_s(cell))


def request_throughput(cell: CellRecord) -> float | None:
    """Finished requests a second over the window."""
    return _rate(sum(r.ok for r in cell.requests), duration_s(cell))


def active_s(spans: Iterable[tuple[int, int]]) -> float:
    """Length of the union of (start, end) nanosecond spans, seconds."""
    total, reached = 0, -1
    for start, end in sorted(spans):
        total += max(0, end - max(start, reached))
        reached = max(reached, end)
    return total / NS_PER_S


def decode_throughput(cell: CellRecord) -> float | None:
    """Sum of (n_out - 1) over the time in which some request was between its first and last token, tokens a second."""
    decoding = [r for r in cell.requests if r.ok and r.n_out > 1]
    return _rate(sum(r.n_out - 1 for r in decoding), active_s((r.token_ns[0], r.token_ns[-1]) for r in decoding))


def prefill_throughput(cell: CellRecord) -> float | None:
    """Prompt tokens served over the time of the steps that held a prompt, tokens a second.

    Tokens found in the prefix cache count as served: that is what the cache gains.
    """
    return _rate(sum(r.n_in for r in cell.requests if r.ok), cell.prefill.total_ns / NS_PER_S)


def max_in_flight(cell: CellRecord) -> int:
    """Most requests between send and last token at one moment."""
    edges = [(r.sent_ns, 1) for r in cell.requests if r.ok] + [(r.token_ns[-1], -1) for r in cell.requests if r.ok]
    level = most = 0
    for _, change in sorted(edges):
        level += change
        most = max(most, level)
    return most


def concurrency(cell: CellRecord) -> float | None:
    """Sequences in a decode step, mean over the steps."""
    return cell.decode.seqs / cell.decode.steps if cell.decode.steps else None


def goodput(
    cell: CellRecord, *, ttft: float | None = None, tpot: float | None = None, e2e: float | None = None
) -> float | None:
    """Requests a second that met every limit given (milliseconds). A failed request is a miss."""
    return _rate(sum(meets(r, ttft=ttft, tpot=tpot, e2e=e2e) for r in cell.requests), duration_s(cell))


def meets(request: RequestRecord, *, ttft: float | None, tpot: float | None, e2e: float | None) -> bool:
    """The request succeeded within every limit given; a TPOT that does not exist breaks no limit."""
    pairs = ((ttft_ms(request), ttft), (tpot_ms(request), tpot), (e2e_ms(request), e2e))
    return request.ok and all(limit is None or value is None or value <= limit for value, limit in pairs)


def _mean(values: Sequence[float | None]) -> float | None:
    found = distribution(values)
    return found.mean if found else None


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A number of a cell that arms are compared by. `lower` says that less is better."""

    key: str
    label: str
    unit: str
    lower: bool
    of: Callable[[CellRecord], float | None]


METRICS: tuple[Metric, ...] = (
    Metric(key="duration", label="time for the work", unit="s", lower=True, of=duration_s),
    Metric(key="ttft", label="TTFT, mean", unit="ms", lower=True, of=lambda c: _mean([ttft_ms(r) for r in c.requests])),
    Metric(key="tpot", label="TPOT, mean", unit="ms", lower=True, of=lambda c: _mean([tpot_ms(r) for r in c.requests])),
    Metric(key="e2e", label="E2E, mean", unit="ms", lower=True, of=lambda c: _mean([e2e_ms(r) for r in c.requests])),
    Metric(key="decode", label="decode throughput", unit="tok/s", lower=False, of=decode_throughput),
    Metric(key="prefill", label="prefill throughput", unit="tok/s", lower=False, of=prefill_throughput),
    Metric(key="throughput", label="output throughput", unit="tok/s", lower=False, of=output_throughput),
    Metric(key="concurrency", label="sequences a decode step, mean", unit="seqs", lower=False, of=concurrency),
)
BY_KEY = {metric.key: metric for metric in METRICS}
PRIMARY = "duration"
"""The metric of the headline: equal work, so its ratio is the throughput's as well."""
