"""Configurations worth measuring: the catalogue's choices, planned, predicted by the cost model, and pruned."""

import hashlib
import json
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from fuseboard.core.device import DeviceCaps
from fuseboard.core.errors import DoesNotFitError, PlanError
from fuseboard.graph.ops import Sizes
from fuseboard.measure.slo import Limit
from fuseboard.measure.subject import EngineArgs, Subject
from fuseboard.measure.workload import Cell, Workload
from fuseboard.plan.cost import decode_sizes, step_cost
from fuseboard.plan.plan import ExecutionPlan
from fuseboard.plan.switches import BY_NAME, CATALOGUE, switch

FORMATS = ("weights", "kv.dtype")
"""Rows whose values decide bytes, and so memory and speed by the cost model: all pairs of them are planned."""
CHUNKS = (128, 256, 512, 1024)
REFERENCE = "preset on"


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """The roofline's least times: milliseconds to a first token and for each token after it, seconds for the work."""

    ttft_ms: float
    tpot_ms: float
    work_s: float


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A configuration that has a plan: the preset with `changes`. `memory` is that of the whole process, in bytes."""

    changes: Mapping[str, str]
    engine: EngineArgs
    plan: ExecutionPlan
    memory: int
    predicted: Prediction | None
    usual_seqs: int

    @property
    def name(self) -> str:
        """How it differs from the preset."""
        seqs = self.plan.schedule.max_num_seqs
        return label(self.changes, None if seqs == self.usual_seqs else seqs)

    @property
    def settings(self) -> dict[str, str]:
        """All differences from all off that the plan has."""
        return {name: value for name, value in self.plan.switches.items() if value != switch(name).off}

    @property
    def lossy(self) -> dict[str, str]:
        """The settings that have to pass the quality gate."""
        return {name: value for name, value in self.settings.items() if BY_NAME[name].kind == "lossy"}


@dataclass(frozen=True, kw_only=True)
class Rejection:
    """A configuration that is not recommended, and why, in words."""

    name: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Neighbour:
    """A configuration one step away. `kind` is choice (another value of `rows[0]`) or without (`rows` are off)."""

    kind: str
    rows: tuple[str, ...]
    candidate: Candidate

    @property
    def title(self) -> str:
        """What is different, in words."""
        row, plan = self.rows[0], self.candidate.plan
        return f"{row}={plan.switches.get(row, plan.schedule.max_num_seqs)}"


@dataclass(frozen=True, kw_only=True)
class Space:
    """What the search is about: `base` is the preset with what the user fixed; `memory` bounds the process, in bytes,
    of which `overhead` is in no plan (Python and libraries)."""

    subject: Subject
    base: EngineArgs
    work: Workload
    limits: tuple[Limit, ...]
    memory: int | None
    overhead: int

    def candidate(self, changes: Mapping[str, str], num_seqs: int | None = None) -> "Candidate | Rejection":
        """The configuration with `changes` over the preset, or why it cannot be.

        A cache that does not fit whole gets the memory that is left; without `num_seqs` the sequences at once are
        halved until a plan fits.
        """
        usual = self.base.max_num_seqs
        assert usual is not None
        seqs = num_seqs or usual
        switches = self.base.switches | dict(changes)
        while True:
            name = label(changes, None if seqs == usual else seqs)
            try:
                engine, plan = self._fitting(replace(self.base, switches=switches, max_num_seqs=seqs))
                break
            except DoesNotFitError as error:
                if num_seqs or seqs == 1:
                    return Rejection(name=name, reason=str(error))
                seqs //= 2
            except PlanError as error:
                return Rejection(name=name, reason=str(error))
        predicted = predict(plan, self.work, self.subject.caps)
        if predicted and (late := _too_slow(predicted, self.limits)):
            return Rejection(name=name, reason=late)
        return Candidate(
            changes=dict(changes),
            engine=engine,
            plan=plan,
            memory=self._bytes(plan),
            predicted=predicted,
            usual_seqs=usual,
        )

    def _bytes(self, plan: ExecutionPlan) -> int:
        return sum(plan.memory.values()) + self.overhead

    def _fitting(self, engine: EngineArgs) -> tuple[EngineArgs, ExecutionPlan]:
        """The plan within the memory, its cache stated: one that would not fit whole takes what is left."""
        engine = replace(engine, kv_memory=engine.kv_memory or self.subject.plan(engine).memory["kv"])
        plan = self.subject.plan(engine)
        needed = self._bytes(plan)
        if self.memory is None or needed <= self.memory:
            return engine, plan
        left = self.memory - (needed - plan.memory["kv"])
        if left <= 0 or self.base.kv_memory is not None:
            raise DoesNotFitError(
                f"It needs {needed / 1e6:,.1f} MB, with the process itself, of {self.memory / 1e6:,.1f}."
            )
        engine = replace(engine, kv_memory=left)
        plan = self.subject.plan(engine)
        if plan.kv.bytes < _busy_bytes(plan, self.work):
            raise DoesNotFitError(
                f"It needs {needed / 1e6:,.1f} MB of {self.memory / 1e6:,.1f}, and the cache that is left does not "
                f"hold {engine.max_num_seqs} requests."
            )
        return engine, plan


def _busy_bytes(plan: ExecutionPlan, work: Workload) -> int:
    """Bytes of cache that the workload's longest requests, and the null block, take when as many as the plan allows
    run at once."""
    lengths = sorted((len(r.token_ids) + r.n_out for cell in work.cells for r in cell.requests), reverse=True)
    blocks = 1 + sum(-(-length // plan.kv.block_size) for length in lengths[: plan.schedule.max_num_seqs])
    return sum(blocks * group.block_bytes * len(group.layers) for group in plan.kv.groups if group.window is None)


def label(changes: Mapping[str, str], num_seqs: int | None = None) -> str:
    """A configuration by what it changes in the preset."""
    parts = [f"{name}={value}" for name, value in changes.items()]
    parts += [f"max_num_seqs={num_seqs}"] if num_seqs else []
    return " ".join(parts) or REFERENCE


def _too_slow(predicted: Prediction, limits: Sequence[Limit]) -> str:
    """Why the least possible times break a limit, or an empty string. A floor of the median bounds
    the percentiles above it."""
    floors = {"ttft": predicted.ttft_ms, "tpot": predicted.tpot_ms, "itl": predicted.tpot_ms}
    for limit in limits:
        if limit.percentile is None or limit.percentile < 50:
            continue
        if (least := floors.get(limit.metric, 0.0)) > limit.most_ms:
            return f"{limit.metric} takes at least {least:.3g} ms by the cost model, the limit is {limit.most_ms:g} ms."
    return ""


def prefill_sizes(start: int, count: int) -> Sizes:
    """Symbolic sizes of a step in which one prompt, `start` tokens of it known, computes `count` more."""
    seen = count * start + count * (count + 1) // 2
    return {"T": count, "S": 1, "R": 1, "context_tokens": seen, "cached_tokens": start + count}


def predict(plan: ExecutionPlan, work: Workload, caps: DeviceCaps) -> Prediction | None:
    """The least times that the ceilings allow for a workload; None where no ceilings were measured.

    TTFT is that of a cell's median prompt alone, without what all its prompts share; TPOT that of a sequence alone; of
    several cells the worst, as limits hold in each.
    """
    cells = [found for cell in work.cells if (found := _predict_cell(plan, cell, caps))]
    if not cells:
        return None
    return Prediction(
        ttft_ms=max(c.ttft_ms for c in cells),
        tpot_ms=max(c.tpot_ms for c in cells),
        work_s=sum(c.work_s for c in cells),
    )


def _predict_cell(plan: ExecutionPlan, cell: Cell, caps: DeviceCaps) -> Prediction | None:
    outs = [r.n_out for r in cell.requests]
    shared = _shared_prefix(cell) if plan.kv.prefix_cache else 0
    own = [len(r.token_ids) - shared for r in cell.requests]
    batch = min(cell.concurrency or 1, plan.schedule.max_num_seqs, len(cell.requests))
    context = round(statistics.mean(len(r.token_ids) + r.n_out / 2 for r in cell.requests))
    step = step_cost(plan.graph, plan.kv, decode_sizes(batch, context)).seconds(caps)
    single = step_cost(plan.graph, plan.kv, decode_sizes(1, context)).seconds(caps)
    first = _prefill_s(plan, shared, round(statistics.median(own)), caps)
    if step is None or single is None or first is None:
        return None
    prompts = sum(_prefill_s(plan, shared, length, caps) or 0.0 for length in own)
    steps = sum(n - 1 for n in outs) / batch
    return Prediction(ttft_ms=first * 1e3, tpot_ms=single * 1e3, work_s=prompts + steps * step)


def _shared_prefix(cell: Cell) -> int:
    """Tokens at the start that all prompts of the cell have in common."""
    low, high = min(r.token_ids for r in cell.requests), max(r.token_ids for r in cell.requests)
    same = next((i for i, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), len(low))
    return same if len(cell.requests) > 1 else 0


def _prefill_s(plan: ExecutionPlan, start: int, count: int, caps: DeviceCaps) -> float | None:
    most = plan.schedule.max_step_tokens
    end, total = start + count, 0.0
    for begin in range(start, end, most):
        sizes = prefill_sizes(begin, min(most, end - begin))
        if (seconds := step_cost(plan.graph, plan.kv, sizes).seconds(caps)) is None:
            return None
        total += seconds
    return total


def formats(space: Space, extra: Mapping[str, Sequence[str]]) -> tuple[list[Candidate], list[Rejection]]:
    """Every pair of storage formats of weights and cache that has a plan of its own, and what was rejected.

    The preset first, then the fastest of each weight format by the cost model, then the others.
    """
    found: dict[str, Candidate] = {}
    rejected: list[Rejection] = []
    for changes in sorted(_format_changes(space, extra), key=len):
        candidate = space.candidate(changes)
        if isinstance(candidate, Rejection):
            rejected.append(candidate)
        elif found.setdefault(what_runs(candidate.plan), candidate) is not candidate:
            rejected.append(Rejection(name=candidate.name, reason="It does the same as a shorter one on this model."))
    by_speed = sorted(found.values(), key=lambda c: (c.predicted.work_s if c.predicted else 0.0, c.memory))
    met: Counter[str] = Counter()
    place: dict[str, tuple[bool, int]] = {}
    for candidate in by_speed:
        weights = candidate.plan.switches["weights"]
        place[candidate.name] = (bool(candidate.changes), met[weights])
        met[weights] += 1
    return sorted(by_speed, key=lambda c: place[c.name]), rejected


def what_runs(plan: ExecutionPlan) -> str:
    """A digest of what a plan does, whatever the switches were called that led there."""
    parts = {key: value for key, value in plan.as_dict().items() if key not in _REASONS} | {"graph": plan.graph.dump()}
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


_REASONS = ("switches", "decisions", "rewrites", "model", "device")


def _format_changes(space: Space, extra: Mapping[str, Sequence[str]]) -> Iterable[dict[str, str]]:
    preset = space.base.preset
    free = [name for name in FORMATS if name not in space.base.switches]
    values = {name: list(dict.fromkeys([*switch(name).values, *extra.get(name, ())])) for name in free}
    yield {}
    for weights in values.get("weights", [""]):
        for kv in values.get("kv.dtype", [""]):
            chosen = {name: value for name, value in zip(FORMATS, (weights, kv), strict=True) if value}
            changes = {name: value for name, value in chosen.items() if value != preset.get(name, switch(name).off)}
            if changes:
                yield changes


def neighbours(space: Space, winner: Candidate, extra: Mapping[str, Sequence[str]]) -> list[Neighbour]:
    """Configurations one step from the winner: first other values of rows that decide no bytes (block size, prompt
    chunks, sequences at once, and what the user wants tried), then each row that is on turned off."""
    seqs = winner.plan.schedule.max_num_seqs
    tried = [(name, value, seqs) for name, value in _other_values(space, winner, extra)]
    tried += [("max_num_seqs", str(seqs // 2), seqs // 2)] if seqs > 1 else []
    found: list[Neighbour] = []
    seen = {what_runs(winner.plan)}
    for name, value, most in tried:
        changes = {name: value} if name != "max_num_seqs" else {}
        _add(found, seen, "choice", (name,), space.candidate({**winner.changes, **changes}, most))
    for row in CATALOGUE:
        if row.name in winner.settings and row.name not in (*FORMATS, *space.base.switches):
            off = space.candidate({**winner.changes, row.name: row.off}, seqs)
            gone = () if isinstance(off, Rejection) else [n for n in winner.settings if n not in off.settings]
            _add(found, seen, "without", (row.name, *(n for n in gone if n != row.name)), off)
    return found


def _add(
    found: list[Neighbour], seen: set[str], kind: str, rows: tuple[str, ...], candidate: "Candidate | Rejection"
) -> None:
    if isinstance(candidate, Candidate) and (key := what_runs(candidate.plan)) not in seen:
        seen.add(key)
        found.append(Neighbour(kind=kind, rows=rows, candidate=candidate))


def _other_values(space: Space, winner: Candidate, extra: Mapping[str, Sequence[str]]) -> Iterable[tuple[str, str]]:
    longest = winner.plan.schedule.max_model_len
    tries = [("kv.block_size", value) for value in switch("kv.block_size").values]
    tries += [("prefill", f"chunked:{n}") for n in CHUNKS if n < longest]
    tries += [(name, value) for name, values in extra.items() if name not in FORMATS for value in values]
    for name, value in dict.fromkeys(tries):
        if name not in space.base.switches and winner.plan.switches[name] != value:
            yield name, value
