"""A compiled plan on the CPU: memory, prepared steps, and running them node by node or as one program."""

from __future__ import annotations

import math
import mmap
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fuseboard import _native
from fuseboard.backends.cpu.autotune import Tiling, Tuning, tuning_for
from fuseboard.backends.cpu.lower import Addresses, Lowered, kv_pool, lower
from fuseboard.backends.cpu.topology import process_pss, resident_bytes
from fuseboard.backends.cpu.weights import WeightMemory
from fuseboard.core.batch import StepBatch, StepOutput
from fuseboard.core.errors import PlanError
from fuseboard.core.weights import WeightSource
from fuseboard.formats.calibration import head_scales
from fuseboard.formats.kv import kv_format
from fuseboard.formats.packed import VECTOR, PackedFile, load_packed
from fuseboard.graph.ir import Graph, Node, elements
from fuseboard.graph.ops import OPS
from fuseboard.graph.rope import inverse_frequencies
from fuseboard.plan.build import workspace_bytes
from fuseboard.plan.context import Decision
from fuseboard.plan.memory import Arena, align, plan_arena
from fuseboard.plan.plan import ExecutionPlan, StepShape


@dataclass(kw_only=True)
class PreparedStep:
    """A step's program for one shape, its memory, and its results as arrays over the arena."""

    lowered: Lowered
    arena: Arena
    memory: _native.Region
    workspace: _native.Region
    ids_RK: NDArray[np.int32]
    top_RK: NDArray[np.float32]
    logsumexp_R: NDArray[np.float32]
    logits_RV: NDArray[np.float32] | None


class CpuExecutable:
    """Runs the steps of a plan. Weights are mapped from the packed file, everything else is allocated here, once.

    `plan` is the plan with the decisions that were taken here.
    """

    def __init__(self, plan: ExecutionPlan, weights: WeightSource) -> None:
        self.plan = plan
        self._packed = load_packed(weights, _packed_formats(plan.graph))
        self._weights = WeightMemory(self._packed, huge=plan.run.huge_weights)
        self._constants, self._tensors = _place_tensors(plan, self._packed, self._weights)
        self._pools_memory = [_native.Region(g.bytes, huge=True, name="fuseboard kv") for g in plan.kv.groups]
        self._arena_memory = _native.Region(max(plan.memory["arena"], 64), huge=True, name="fuseboard arena")
        self._workspace = _native.Region(max(plan.memory["workspace"], 64), huge=True, name="fuseboard workspace")
        self._kept, self._pools = self._make_pools()
        self._team = _native.Team(
            plan.caps.threads,
            cpus=plan.caps.cores[: plan.caps.threads] if plan.run.pinned else (),
            driven=plan.run.overlap,
        )
        self._step = _native.Step()
        self._bound: tuple[Any, ...] = ()
        self._prepared: dict[StepShape, PreparedStep] = {}
        self._profiling = False
        self._times: dict[str, list[int]] = {}
        self._own = {"folded_constants": 0, "arena_bytes_saved": 0, "bucket_hits": 0, "steps_prepared": 0}
        self._tuning: Tuning | None = None
        if plan.run.autotune:
            self._tune()

    # ---- running ----

    def run(self, batch: StepBatch) -> StepOutput:
        step = self._prepare(batch)
        self._bind(batch)
        if self.plan.captured:
            step.lowered.program.run(self._team, self._step)
        else:
            for begin, end in step.lowered.ranges:
                step.lowered.program.run_range(self._team, begin, end, self._step)
        return self._output(step, batch.num_rows)

    def start(self, batch: StepBatch) -> None:
        step = self._prepare(batch)
        self._bind(batch)
        step.lowered.program.start(self._team, self._step)
        self._started = step, batch.num_rows

    def wait(self) -> StepOutput:
        self._team.wait()
        return self._output(*self._started)

    def _output(self, step: PreparedStep, rows: int) -> StepOutput:
        if self._profiling and not self.plan.buckets:
            self._collect_times(step)
        self._own["folded_constants"] += len(self.plan.graph.once)
        self._own["arena_bytes_saved"] += step.arena.unshared_bytes - step.arena.bytes
        return StepOutput(
            top_ids_RK=step.ids_RK[:rows],
            top_logits_RK=step.top_RK[:rows],
            logsumexp_R=step.logsumexp_R[:rows],
            logits_RV=None if step.logits_RV is None else step.logits_RV[:rows],
        )

    def _bind(self, batch: StepBatch) -> None:
        """Tells the kernels where the step's metadata is; the scheduler reuses its buffers, so this is rare."""
        arrays = _arrays(batch)
        if len(arrays) != len(self._bound) or not all(map(operator.is_, arrays, self._bound)):
            self._step.bind(
                token_ids=batch.token_ids_T,
                positions=batch.positions_T,
                seq_starts=batch.seq_starts_S1,
                context_lens=batch.context_lens_S,
                sample_rows=batch.sample_rows_R,
                kv_slots=batch.kv_slots_GT,
                block_tables=batch.block_tables_GSB,
            )
            self._bound = arrays
        self._step.set(batch.num_tokens, batch.num_seqs, batch.num_rows)

    # ---- preparing ----

    def _prepare(self, batch: StepBatch) -> PreparedStep:
        plan = self.plan
        shape = plan.shape_for(batch.num_tokens, batch.num_seqs, batch.num_rows, full_logits=batch.full_logits)
        found = self._prepared.get(shape)
        if found is not None:
            self._own["bucket_hits"] += 1
            return found
        step = self._build(shape)
        self._own["steps_prepared"] += 1
        if plan.buckets:
            self._prepared[shape] = step
        return step

    def _tune(self) -> None:
        self._tuning, origin = tuning_for(self.plan, self._probe)
        self._team.reset_counters()
        for pool in self._pools_memory:
            pool.release(0, pool.bytes)
        decision = Decision(subject="autotune", choice=self._tuning.describe(), reason=f"units x rows, {origin}")
        self.plan = replace(self.plan, decisions=(*self.plan.decisions, decision))

    def _probe(self, tokens: int, tiling: Tiling) -> Callable[[], dict[str, int]]:
        """A step of one sequence in the first blocks, which no request has yet."""
        batch = _first_batch(self.plan, tokens)
        step = self._build(self.plan.shape_for(tokens, 1, 1, full_logits=False), tiling)

        def times() -> dict[str, int]:
            program = step.lowered.program
            self._bind(batch)
            program.profile(True)
            program.run(self._team, self._step)
            return {label: ns for _, label, _, ns in program.times()}

        return times

    def _build(self, shape: StepShape, tiling: Tiling | None = None) -> PreparedStep:
        plan = self.plan
        if tiling is None:
            tiling = self._tuning.of(shape.tokens) if self._tuning else _default_tiling
        graph = plan.graph_for(shape)
        arena = plan_arena(graph, graph.nodes, shape.sizes, reuse=plan.reuse_memory, streams=plan.run.streams)
        memory = self._memory_for(self._arena_memory, arena.bytes, "fuseboard arena")
        workspace = self._memory_for(self._workspace, self._workspace_bytes(shape), "fuseboard workspace")
        at = Addresses(arena=memory.address, workspace=workspace.address, tensors=self._tensors, pools=self._pools)
        lowered = lower(plan, shape, arena, at, tiling)
        lowered.program.profile(self._profiling)

        def array(name: str, dtype: Any) -> NDArray[Any]:
            dims = [elements((dim,), shape.sizes) for dim in graph.values[name].shape]
            return np.asarray(memory.view(arena.offsets[name], 4 * math.prod(dims)).view(dtype).reshape(dims))

        tops = [name for name in graph.outputs if name != plan.logits]
        return PreparedStep(
            lowered=lowered,
            arena=arena,
            memory=memory,
            workspace=workspace,
            ids_RK=array(tops[0], np.int32),
            top_RK=array(tops[1], np.float32),
            logsumexp_R=array(tops[2], np.float32),
            logits_RV=array(plan.logits, np.float32) if shape.full_logits else None,
        )

    def _workspace_bytes(self, shape: StepShape) -> int:
        from fuseboard.backends.cpu.backend import CpuBackend

        return workspace_bytes(self.plan, shape, CpuBackend().workspace)

    @staticmethod
    def _memory_for(planned: _native.Region, size: int, name: str) -> _native.Region:
        """The planned memory, or memory of its own for a step that is larger than the scheduler ever makes."""
        return planned if size <= planned.bytes else _native.Region(size, huge=True, name=name)

    def _make_pools(self) -> tuple[list[NDArray[np.float32]], dict[int, _native.KvPool]]:
        plan = self.plan
        calibrated = kv_format(plan.kv.dtype).calibrated
        scales = head_scales(plan.model_digest) if calibrated else None
        kept: list[NDArray[np.float32]] = []
        pools = {}
        for g, group in enumerate(plan.kv.groups):
            for index, layer in enumerate(group.layers):
                address = self._pools_memory[g].address + index * group.num_blocks * group.block_bytes
                if scales is not None:
                    kept.append(np.ascontiguousarray(scales[layer]))
                pools[layer] = kv_pool(plan, g, address, kept[-1].ctypes.data if kept else 0)
        return kept, pools

    # ---- accounts ----

    def counters(self) -> dict[str, int]:
        return self._team.counters() | self._own | {"huge_weight_bytes": self._weights.huge_bytes()}

    def memory(self) -> dict[str, int]:
        regions = {
            "weights": self._weights.span,
            "constants": _span(self._constants),
            "arena": _span(self._arena_memory),
            "workspace": _span(self._workspace),
            "scratch": _span(self._team.scratch),
        }
        spans = [*regions.values(), *(_span(region) for region in self._pools_memory)]
        sizes = resident_bytes(spans)
        found = dict(zip(regions, sizes, strict=False))
        found["kv"] = sum(sizes[len(regions) :])
        found["python and libraries"] = max(0, process_pss() - sum(found.values()))
        return found

    def profile(self, on: bool) -> None:
        self._team.wait()
        self._profiling, self._times = on, {}
        for step in self._prepared.values():
            step.lowered.program.profile(on)

    def node_times(self) -> Sequence[tuple[str, int, int]]:
        self._team.wait()
        for step in self._prepared.values():
            self._collect_times(step)
            step.lowered.program.profile(self._profiling)
        return [(name, calls, ns) for name, (calls, ns) in self._times.items()]

    def _collect_times(self, step: PreparedStep) -> None:
        for _, label, calls, ns in step.lowered.program.times():
            entry = self._times.setdefault(label, [0, 0])
            entry[0], entry[1] = entry[0] + calls, entry[1] + ns

    # ---- KV blocks ----

    def release_blocks(self, group: int, block_ids: Sequence[int]) -> None:
        layers = self.plan.kv.groups[group]
        for index in range(len(layers.layers)):
            for block in block_ids:
                offset = (index * layers.num_blocks + block) * layers.block_bytes
                self._pools_memory[group].release(offset, layers.block_bytes)

    def poison_blocks(self, group: int, block_ids: Sequence[int]) -> None:
        layers = self.plan.kv.groups[group]
        for index in range(len(layers.layers)):
            for block in block_ids:
                offset = (index * layers.num_blocks + block) * layers.block_bytes
                self._pools_memory[group].view(offset, layers.block_bytes)[:] = 0xFF

    def close(self) -> None:
        self._team.wait()
        self._prepared.clear()
        del self._team


def _arrays(batch: StepBatch) -> tuple[Any, ...]:
    return (
        batch.token_ids_T,
        batch.positions_T,
        batch.seq_starts_S1,
        batch.context_lens_S,
        batch.sample_rows_R,
        *batch.kv_slots_GT,
        *batch.block_tables_GSB,
    )


def _default_tiling(label: str) -> None:
    """The kernels' own sizes."""


def _first_batch(plan: ExecutionPlan, tokens: int) -> StepBatch:
    """The first tokens of one sequence whose blocks follow the null block."""
    groups, size = len(plan.kv.groups), plan.kv.block_size
    table = np.arange(1, 1 + -(-tokens // size), dtype=np.int32)[None]
    positions, zeros = np.arange(tokens, dtype=np.int32), np.zeros(tokens, np.int32)
    return StepBatch(
        num_tokens=tokens,
        num_seqs=1,
        num_rows=1,
        token_ids_T=zeros,
        positions_T=positions,
        seq_starts_S1=np.array([0, tokens], np.int32),
        context_lens_S=np.array([tokens], np.int32),
        state_slots_S=zeros[:1],
        sample_rows_R=np.array([tokens - 1], np.int32),
        kv_slots_GT=(positions + np.int32(size),) * groups,
        block_tables_GSB=(table,) * groups,
    )


def _span(region: _native.Region) -> tuple[int, int]:
    return region.address, region.address + region.bytes + -region.bytes % mmap.PAGESIZE


def _packed_formats(graph: Graph) -> dict[str, str]:
    weights = (v for v in graph.values.values() if v.kind == "weight")
    return {v.name: v.dtype if len(v.shape) == 2 else VECTOR for v in weights}


def _place_tensors(
    plan: ExecutionPlan, packed: PackedFile, weights: WeightMemory
) -> tuple[_native.Region, dict[str, int]]:
    """Addresses of weights, and of constants, which are computed now, in memory of their own."""
    tensors = dict(weights.addresses)
    values: dict[str, Any] = {}
    for node in plan.graph.once:
        inputs = [values[n] if n in values else packed.vector(n) for n in node.inputs]
        results = (
            [_rope_table(node, plan.caps.isa)]
            if node.op == "rope_angles"
            else OPS[node.op].reference(inputs, node.attrs)
        )
        values.update(zip(node.outputs, results, strict=True))
    memory = _native.Region(max(sum(align(v.nbytes) for v in values.values()), 64), name="fuseboard constants")
    at = 0
    for name, value in values.items():
        memory.view(at, value.nbytes).view(np.float32)[:] = value.reshape(-1)
        tensors[name], at = memory.address + at, at + align(value.nbytes)
    return memory, tensors


def _rope_table(node: Node, isa: str) -> NDArray[np.float32]:
    """Angles of all positions by the kernel that computes them step by step, so that folding changes no bit."""
    length, dim = node.attrs["length"], node.attrs["head_dim"]
    frequencies, factor = inverse_frequencies(node.attrs["rope"], dim, node.attrs["max_position"])
    table = np.empty((length, dim), np.float32)
    positions, none = np.arange(length, dtype=np.int32), np.zeros(1, np.int32)
    program, step = _native.Program(isa=isa), _native.Step()  # type: ignore[arg-type]
    program.add_rope_angles(node.name, inv_freq=frequencies.ctypes.data, factor=factor, out=table.ctypes.data, dim=dim)
    step.bind(
        token_ids=positions,
        positions=positions,
        seq_starts=none,
        context_lens=none,
        sample_rows=none,
        kv_slots=(),
        block_tables=(),
    )
    step.set(length, 0, 0)
    program.run(_native.Team(1), step)
    return table


def check_fits(plan: ExecutionPlan, available: int) -> None:
    """PlanError with the numbers when the plan needs more memory than there is."""
    needed = sum(plan.memory.values())
    if needed > available:
        parts = ", ".join(f"{name} {size / 1e9:.2f} GB" for name, size in plan.memory.items())
        raise PlanError(
            f"The plan needs {needed / 1e9:.2f} GB ({parts}) but {available / 1e9:.2f} GB are free; lower --kv-memory, "
            "--max-model-len or --max-num-seqs, or choose smaller weights."
        )
