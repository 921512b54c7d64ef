"""`build_plan`: model + device + switches + limits -> `ExecutionPlan`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from fuseboard.core.device import DeviceCaps
from fuseboard.core.env import debug_checks
from fuseboard.core.errors import DoesNotFitError, PlanError
from fuseboard.core.weights import WeightSource
from fuseboard.formats.kv import block_bytes, kv_format
from fuseboard.graph.ir import Graph, Node
from fuseboard.graph.ops import Sizes
from fuseboard.graph.rewrite import prune
from fuseboard.graph.verify import verify
from fuseboard.models.decoder import build_decoder, cache_groups
from fuseboard.models.spec import ModelSpec
from fuseboard.plan.context import PlanContext
from fuseboard.plan.memory import plan_arena, value_bytes
from fuseboard.plan.passes.fold import fold_constants
from fuseboard.plan.passes.fuse import fusions
from fuseboard.plan.passes.precision import assign_precision
from fuseboard.plan.plan import ExecutionPlan, StepShape
from fuseboard.plan.policy import CacheGroup, KvPolicy, SchedulePolicy
from fuseboard.plan.running import run_policy
from fuseboard.plan.switches import resolve

DEFAULT_MODEL_LEN = 4096
DEFAULT_NUM_SEQS = 16
CHUNK = 512
LARGEST_BUCKET_STEP = 512

Workspace = Callable[[DeviceCaps, Graph, Node, Sizes, int], int]
"""Bytes of scratch memory a backend needs for a node: (device, graph, node, sizes, longest context)."""


class PlannableModel(Protocol):
    """What the plan reads of a loaded model."""

    @property
    def name(self) -> str: ...

    @property
    def digest(self) -> str: ...

    @property
    def spec(self) -> ModelSpec: ...

    @property
    def weights(self) -> WeightSource: ...


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Longest sequence, most sequences at once, and bytes for the KV cache; None lets the plan choose."""

    max_model_len: int | None = None
    max_num_seqs: int | None = None
    kv_memory: int | None = None


def build_plan(
    model: PlannableModel,
    caps: DeviceCaps,
    workspace: Workspace,
    *,
    preset: Mapping[str, str],
    chosen: Mapping[str, str],
    limits: Limits,
) -> ExecutionPlan:
    """Builds the graph, rewrites it as the switches say, and lays out memory.

    Raises PlanError when a chosen switch cannot take effect or the memory does not suffice.
    """
    switches = resolve(preset, chosen)
    schedule = _schedule(model.spec, switches, limits)
    ctx = PlanContext(
        spec=model.spec,
        caps=caps,
        switches=switches,
        explicit=frozenset(chosen),
        storage=model.weights.storage,
        max_model_len=schedule.max_model_len,
    )
    built = build_decoder(model.spec, schedule.max_model_len)
    graph = _rewrite(built, ctx)
    kv = _kv_policy(ctx, schedule, limits)
    plan = ExecutionPlan(
        model=model.name,
        model_digest=model.digest,
        spec=model.spec,
        caps=caps,
        switches=switches,
        graph=graph,
        logits=built.outputs[-1],
        kv=kv,
        schedule=schedule,
        buckets=_buckets(ctx, schedule),
        reuse_memory=switches["memory_reuse"] == "on",
        captured=_captured(ctx),
        run=run_policy(ctx, graph),
        memory={},
        nodes_built=len(built.nodes),
        decisions=tuple(ctx.decisions),
        rewrites=tuple(ctx.rewrites),
    )
    return replace(plan, memory=component_bytes(plan, workspace))


def _rewrite(graph: Graph, ctx: PlanContext) -> Graph:
    passes = [
        ("weights", assign_precision),
        ("fold_constants", fold_constants),
        ("attention", _choose_attention),
        *fusions(),
    ]
    for name, rewrite in passes:
        graph = ctx.run(name, graph, rewrite)
        if debug_checks():
            verify(graph)
    graph = prune(graph)
    verify(graph)
    return graph


def _choose_attention(graph: Graph, ctx: PlanContext) -> Graph:
    """Writes the kind of attention into its nodes and the storage of the cache into its states."""
    mode, dtype = ctx.switches["attention"], ctx.switches["kv.dtype"]
    if mode not in ctx.caps.attention:
        raise PlanError(f"{ctx.caps.backend} has no {mode} attention; choose one of {', '.join(ctx.caps.attention)}.")
    if dtype not in ctx.caps.kv_formats:
        raise PlanError(f"{ctx.caps.backend} has no {dtype} cache; choose one of {', '.join(ctx.caps.kv_formats)}.")
    ctx.decide("kv.dtype", dtype, "asked for" if "kv.dtype" in ctx.explicit else "preset")
    nodes = tuple(replace(n, attrs=dict(n.attrs) | {"mode": mode}) if n.op == "attention" else n for n in graph.nodes)
    states = (replace(v, dtype=dtype) for v in graph.values.values() if v.kind == "state")
    return replace(graph, nodes=nodes).with_values(*states)


def _schedule(spec: ModelSpec, switches: Mapping[str, str], limits: Limits) -> SchedulePolicy:
    max_len = min(spec.max_position, DEFAULT_MODEL_LEN) if limits.max_model_len is None else limits.max_model_len
    if not 0 < max_len <= spec.max_position:
        raise PlanError(f"--max-model-len {max_len} must be from 1 to the model's {spec.max_position} positions.")
    seqs = DEFAULT_NUM_SEQS if limits.max_num_seqs is None else limits.max_num_seqs
    if not 0 < seqs <= 4096:
        raise PlanError(f"--max-num-seqs {seqs} must be from 1 to 4096.")
    head, _, chunk_text = switches["prefill"].partition(":")
    chunk = _positive("prefill", chunk_text) if chunk_text else CHUNK
    chunked = head == "chunked"
    budget = max(min(chunk, max_len), seqs) if chunked else max_len + seqs
    return SchedulePolicy(
        batching=switches["batching"],
        chunked=chunked,
        separate_steps=switches["pd"] == "separate",
        max_step_tokens=budget,
        max_num_seqs=seqs,
        max_model_len=max_len,
    )


def _captured(ctx: PlanContext) -> bool:
    mode = ctx.switches["graph"]
    if mode not in ctx.caps.graph_modes:
        ctx.cannot("graph", f"{ctx.caps.backend} runs a step only as {', '.join(ctx.caps.graph_modes)}")
        return False
    return mode == "captured"


def _positive(switch: str, text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise PlanError(f"Switch {switch} takes positive whole numbers, not {text!r}.")
    return int(text)


def _buckets(ctx: PlanContext, schedule: SchedulePolicy) -> tuple[int, ...]:
    head, _, listed = ctx.switches["buckets"].partition(":")
    if head == "dynamic":
        return ()
    most = schedule.max_step_tokens
    if listed:
        sizes = sorted({min(_positive("buckets", part), most) for part in listed.split(",")} | {most})
        reason = "as listed, and the largest step"
    else:
        powers = [1 << i for i in range(10) if 1 << i < min(most, LARGEST_BUCKET_STEP)]
        sizes = sorted({*powers, *range(LARGEST_BUCKET_STEP, most, LARGEST_BUCKET_STEP), most})
        reason = "powers of two up to 512 tokens, then every 512, up to the largest step"
    ctx.decide("buckets", ", ".join(map(str, sizes)), reason)
    return tuple(sizes)


def _kv_policy(ctx: PlanContext, schedule: SchedulePolicy, limits: Limits) -> KvPolicy:
    block_size, dtype = int(ctx.switches["kv.block_size"]), ctx.switches["kv.dtype"]
    spec = ctx.spec
    size = block_bytes(kv_format(dtype), block_size, spec.num_kv_heads, spec.head_dim)
    longest = -(-schedule.max_model_len // block_size)
    contiguous = ctx.switches["kv.layout"] == "contiguous"
    wanted = []
    for window, layers in cache_groups(spec):
        kept = longest if window is None or contiguous else min(longest, _window_blocks(window, schedule, block_size))
        wanted.append((window, layers, kept))
    per_request = sum(len(layers) * kept * size for _, layers, kept in wanted)
    null = sum(len(layers) * size for _, layers, _ in wanted)
    wished = null + schedule.max_num_seqs * per_request
    budget = min(wished, _free_memory(ctx) or wished) if limits.kv_memory is None else limits.kv_memory
    groups = tuple(
        CacheGroup(
            layers=layers,
            window=window,
            kv_heads=spec.num_kv_heads,
            head_dim=spec.head_dim,
            block_bytes=size,
            num_blocks=1 + max(0, budget - null) * kept // per_request,
        )
        for window, layers, kept in wanted
    )
    if any(group.num_blocks < 1 + kept for group, (_, _, kept) in zip(groups, wanted, strict=True)):
        raise DoesNotFitError(
            f"A KV cache of {budget} bytes cannot hold one sequence of {schedule.max_model_len} tokens, which needs "
            f"{null + per_request} bytes; raise --kv-memory or lower --max-model-len."
        )
    ctx.decide(
        "kv memory", f"{budget} bytes", "--kv-memory" if limits.kv_memory is not None else "what the limits need"
    )
    return KvPolicy(
        dtype=dtype,
        contiguous=contiguous,
        block_size=block_size,
        pooled=ctx.switches["kv.pool"] == "on",
        prefix_cache=ctx.switches["prefix_cache"] == "on",
        groups=groups,
    )


def _window_blocks(window: int, schedule: SchedulePolicy, block_size: int) -> int:
    """Blocks a sequence can need at once: the window, and the tokens of a step before old blocks are given back."""
    return -(-(window + schedule.max_step_tokens) // block_size) + 1


def _free_memory(ctx: PlanContext) -> int:
    return ctx.caps.memory_bytes // 2


def component_bytes(plan: ExecutionPlan, workspace: Workspace) -> dict[str, int]:
    """Bytes by component, before anything is loaded: the arena and workspace of the largest step."""
    shape = plan.largest_shape
    graph = plan.graph_for(shape)
    values = graph.values.values()
    return {
        "weights": sum(value_bytes(v, shape.sizes) for v in values if v.kind == "weight"),
        "constants": sum(value_bytes(v, shape.sizes) for v in values if v.kind == "constant"),
        "kv": plan.kv.bytes,
        "arena": plan_arena(graph, graph.nodes, shape.sizes, reuse=plan.reuse_memory, streams=plan.run.streams).bytes,
        "workspace": workspace_bytes(plan, shape, workspace),
    }


def workspace_bytes(plan: ExecutionPlan, shape: StepShape, workspace: Workspace) -> int:
    """The largest scratch memory that one node of the step needs; nodes run one after the other and share it."""
    nodes = plan.nodes_for(shape)
    longest = plan.schedule.max_model_len
    sizes = [workspace(plan.caps, plan.graph, node, shape.sizes, longest) for node in nodes]
    return max(sizes, default=0)
