"""What is written down of an experiment: one JSON line per design, launch, quality run and profile.

Times are raw readings of the monotonic clock in nanoseconds, sizes are bytes. Everything a report shows is computed
from these lines.
"""

import dataclasses
import json
import os
import types
import typing
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

SCHEMA = 1


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Where a launch ran. `features` digests the processor's feature flags; ceilings are measured rates, zero when
    nobody measured them."""

    processor: str
    features: str
    cores: int
    memory_bytes: int
    kernel: str
    boot: str
    read_bytes_per_s: float = 0.0
    flops_per_s: float = 0.0
    integer_ops_per_s: float = 0.0
    cache_bytes: int = 0
    cache_read_bytes_per_s: float = 0.0

    @property
    def kind(self) -> tuple[str, str, int, str]:
        """What must be equal for two launches to be compared."""
        return (self.processor, self.features, self.cores, self.kernel)


@dataclass(frozen=True, kw_only=True)
class RequestRecord:
    """One request: when it was sent, when each of its tokens arrived, and which tokens they were.

    `due_ns` is the scheduled arrival of an open loop; latency then counts from it, so that a late sender hides nothing.
    """

    request_id: str
    n_in: int
    n_out_wanted: int
    sent_ns: int
    due_ns: int | None = None
    token_ns: tuple[int, ...] = ()
    token_ids: tuple[int, ...] = ()
    finish_reason: str | None = None
    error: str | None = None

    @property
    def start_ns(self) -> int:
        return self.sent_ns if self.due_ns is None else self.due_ns

    @property
    def n_out(self) -> int:
        return len(self.token_ns)

    @property
    def ok(self) -> bool:
        return self.error is None and self.n_out > 0


@dataclass(frozen=True, kw_only=True)
class StepSums:
    """Sums over the steps of one kind (all-decode steps, or steps with a prompt in them); `most_seqs` is the largest
    number of sequences in one of them."""

    steps: int = 0
    tokens: int = 0
    seqs: int = 0
    schedule_ns: int = 0
    prepare_ns: int = 0
    execute_ns: int = 0
    sample_ns: int = 0
    detokenise_ns: int = 0
    most_seqs: int = 0

    @property
    def total_ns(self) -> int:
        return self.schedule_ns + self.prepare_ns + self.execute_ns + self.sample_ns + self.detokenise_ns


@dataclass(frozen=True, kw_only=True)
class CellRecord:
    """One cell of a workload run once: raw times of its requests, and what counters and steps did meanwhile."""

    name: str
    concurrency: int | None
    start_ns: int
    end_ns: int
    requests: tuple[RequestRecord, ...]
    counters: dict[str, int] = field(default_factory=dict)
    decode: StepSums = StepSums()
    prefill: StepSums = StepSums()


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Why a launch has no result: `kind` is refused, does_not_fit, crashed, killed or timeout."""

    kind: str
    message: str


@dataclass(frozen=True, kw_only=True)
class LaunchRecord:
    """One fresh process that ran every cell of the workload under one arm."""

    schema: int = SCHEMA
    arm: str
    block: int
    position: int
    switches: dict[str, str]
    model: str
    workload_digest: str
    code_digest: str
    machine: Machine
    versions: dict[str, str]
    seed: int
    started_unix: float
    plan_digest: str = ""
    model_digest: str = ""
    plan_switches: dict[str, str] = field(default_factory=dict)
    backend: str = ""
    startup_ns: dict[str, int] = field(default_factory=dict)
    warmup_ns: tuple[int, ...] = ()
    cells: tuple[CellRecord, ...] = ()
    counters_at_start: dict[str, int] = field(default_factory=dict)
    memory_planned: dict[str, int] = field(default_factory=dict)
    memory_measured: dict[str, int] = field(default_factory=dict)
    peak_bytes: int = 0
    error: Failure | None = None


@dataclass(frozen=True, kw_only=True)
class QualityRecord:
    """How far an arm's next-token distributions are from the all-off baseline's, teacher-forced on a fixed text.

    Each value has its standard error in `errors` under the same key. `first_divergence` is the mean index of the first
    differing greedy token (the length where none differs), `margin` the largest gap between the baseline's two best
    logits at such a place.
    """

    schema: int = SCHEMA
    arm: str
    switches: dict[str, str]
    code_digest: str
    model_digest: str = ""
    tokens: int = 0
    values: dict[str, float] = field(default_factory=dict)
    errors: dict[str, float] = field(default_factory=dict)
    error: Failure | None = None


@dataclass(frozen=True, kw_only=True)
class OperatorRecord:
    """All nodes of one class over the steps of one kind: their calls, the time they took, the time that the ceilings
    allow them at least, and what the cost model says they moved and computed. `streamed_limit_ns` is the least time
    without the activations, which may stay in caches. Limits are zero where no ceilings are known."""

    name: str
    calls: int = 0
    ns: int = 0
    limit_ns: int = 0
    streamed_limit_ns: int = 0
    weight_bytes: int = 0
    kv_bytes: int = 0
    activation_bytes: int = 0
    operations: int = 0
    integer_operations: int = 0


@dataclass(frozen=True, kw_only=True)
class StepsProfile:
    """The steps of one kind (all-decode steps, or steps with a prompt in them): phases, and execution by operator.

    What `sums.execute_ns` has beyond the operators is dispatch: native calls and waking threads.
    """

    sums: StepSums = StepSums()
    operators: tuple[OperatorRecord, ...] = ()

    @property
    def operators_ns(self) -> int:
        return sum(operator.ns for operator in self.operators)

    @property
    def dispatch_ns(self) -> int:
        return self.sums.execute_ns - self.operators_ns


@dataclass(frozen=True, kw_only=True)
class CellProfile:
    """One cell run once with its nodes timed.

    `idle_ns` is the time between steps, `instrument_ns` what reading the node times took, `plain_ns` the wall time of
    the same work without node timing, zero where that was not taken.
    """

    name: str
    wall_ns: int
    idle_ns: int
    instrument_ns: int
    plain_ns: int = 0
    decode: StepsProfile = StepsProfile()
    prefill: StepsProfile = StepsProfile()

    @property
    def residual_ns(self) -> int:
        """Wall time that no step, no gap between steps and no reading of clocks accounts for."""
        steps = self.decode.sums.total_ns + self.prefill.sums.total_ns
        return self.wall_ns - steps - self.idle_ns - self.instrument_ns


@dataclass(frozen=True, kw_only=True)
class ProfileRecord:
    """Where the time of an arm goes, from a process of its own: timing nodes costs time, so it times nothing else."""

    schema: int = SCHEMA
    arm: str
    switches: dict[str, str]
    model: str
    workload_digest: str
    code_digest: str
    machine: Machine
    plan_digest: str = ""
    model_digest: str = ""
    cells: tuple[CellProfile, ...] = ()
    error: Failure | None = None


@dataclass(frozen=True, kw_only=True)
class ArmRecord:
    """An arm's settings, all that differ from the all-off baseline, and the digest of its plan when there is one."""

    name: str
    switches: dict[str, str]
    plan_digest: str = ""


@dataclass(frozen=True, kw_only=True)
class TermRecord:
    """One difference of two arms in a comparison of several, and its weight."""

    treatment: str
    reference: str
    weight: float


@dataclass(frozen=True, kw_only=True)
class ComparisonRecord:
    """Two arms to compare: `treatment` has `switches` on, `reference` has not.

    `kind` is aa, total, alone, ladder, without, choice (another value of a switch), pair (an interaction) or shapley
    (the mean over several orders); the last two are sums over `terms`, of which the arms named here are the first.
    `unavailable` says why a switch has no arm. `claim` is the speed ratio that a source report gives for the step.
    """

    name: str
    kind: str
    switches: tuple[str, ...]
    treatment: str
    reference: str
    terms: tuple[TermRecord, ...] = ()
    unavailable: str = ""
    claim: float | None = None
    claim_note: str = ""

    @property
    def weights(self) -> dict[str, float]:
        """The comparison as a weighted sum of arms."""
        terms = self.terms or (TermRecord(treatment=self.treatment, reference=self.reference, weight=1.0),)
        found: dict[str, float] = {}
        for term in terms:
            found[term.treatment] = found.get(term.treatment, 0.0) + term.weight
            found[term.reference] = found.get(term.reference, 0.0) - term.weight
        return found


@dataclass(frozen=True, kw_only=True)
class DesignRecord:
    """The plan of an experiment, written before its launches.

    `max_kl` is the mean distance (nats) from the baseline's answers at which a lossy arm fails. `source` names the
    report whose ladder this is, if it is one.
    """

    schema: int = SCHEMA
    model: str
    design: str
    blocks: int
    seed: int
    arms: tuple[ArmRecord, ...]
    comparisons: tuple[ComparisonRecord, ...]
    quality_arms: tuple[str, ...]
    workload: str
    workload_digest: str
    code_digest: str
    machine: Machine
    created_unix: float
    equivalence_margin: float = 0.02
    max_kl: float = 0.1
    source: str = ""
    notes: tuple[str, ...] = ()


Line = DesignRecord | LaunchRecord | QualityRecord | ProfileRecord
KINDS: dict[str, type[Line]] = {
    "design": DesignRecord,
    "launch": LaunchRecord,
    "quality": QualityRecord,
    "profile": ProfileRecord,
}
R = TypeVar("R")


def to_line(record: Line) -> str:
    """The record as one line of JSON, without the newline."""
    kind = next(name for name, cls in KINDS.items() if isinstance(record, cls))
    return json.dumps({"type": kind} | dataclasses.asdict(record), separators=(",", ":"))


def from_line(line: str) -> Line:
    """Inverse of `to_line`; ValueError when the line is torn or of another schema."""
    data = json.loads(line)
    if not isinstance(data, dict) or data.get("type") not in KINDS or data.get("schema") != SCHEMA:
        raise ValueError(f"not a record of schema {SCHEMA}")
    return decode(KINDS[data.pop("type")], data)


def decode(cls: type[R], data: dict[str, Any]) -> R:
    """A dataclass of this file's kind from plain JSON data; ValueError for unknown or missing fields."""
    hints = typing.get_type_hints(cls)
    if unknown := set(data) - set(hints):
        raise ValueError(f"{cls.__name__} has no field {sorted(unknown)[0]!r}")
    try:
        return cls(**{name: _value(hints[name], value) for name, value in data.items()})
    except TypeError as error:
        raise ValueError(str(error)) from None


def _value(hint: Any, value: Any) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        inner = next(a for a in arguments if a is not type(None))
        return None if value is None else _value(inner, value)
    if origin is tuple:
        if arguments[0] in (int, str, float):
            return tuple(value)
        return tuple(_value(arguments[0], v) for v in value)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return decode(hint, value)
    return value


def append(path: Path, record: Line) -> None:
    """Add a record in one write that reaches the disk before this returns; a torn line before it is closed first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = (to_line(record) + "\n").encode()
    with path.open("ab+") as file:
        if file.tell() > 0:
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                data = b"\n" + data
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def read(path: Path) -> list[Line]:
    """All whole records of a file; a line that cannot be read (torn, another schema) is warned of and left out."""
    if not path.exists():
        return []
    return list(_parse(path, path.read_text(encoding="utf-8").splitlines()))


def _parse(path: Path, lines: Iterable[str]) -> Iterable[Line]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            yield from_line(line)
        except ValueError as error:
            warnings.warn(f"{path}, line {number} was left out: {error}.", stacklevel=4)
