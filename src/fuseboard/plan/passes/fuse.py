"""Fusion: each function is one switch and recognises its nodes by what they compute, not by their names."""

from collections.abc import Callable, Iterable
from dataclasses import replace

from fuseboard.core.batch import TOP_K
from fuseboard.formats.kv import kv_format
from fuseboard.graph.ir import Graph, Node
from fuseboard.graph.rewrite import fuse
from fuseboard.plan.context import PlanContext

Match = Callable[[Graph, Node, "_Uses"], list[Node] | None]


class _Uses:
    """Who makes and who reads a value."""

    def __init__(self, graph: Graph) -> None:
        self.made_by, self.read_by, self.results = graph.producers(), graph.consumers(), set(graph.outputs)

    def maker(self, value: str, op: str) -> Node | None:
        """The node that makes the value, if it is of that kind and runs in every step."""
        node = self.made_by.get(value)
        return node if node is not None and node.op == op else None

    def only_reader(self, value: str, *ops: str) -> Node | None:
        readers = self.read_by[value]
        single = len(readers) == 1 and value not in self.results and readers[0].op in ops
        return readers[0] if single else None


def share_projections(graph: Graph, ctx: PlanContext) -> Graph:
    """fuse.qkv: the linear nodes that feed one cache write and its queries become one node with three weights."""
    if ctx.switches["fuse.qkv"] == "off":
        return graph
    merged: dict[str, tuple[Node, ...]] = {}
    gone: set[str] = set()
    uses = _Uses(graph)
    for write in (node for node in graph.nodes if node.op == "kv_write"):
        qkv = _projections(uses, graph, write)
        if qkv is None:
            continue
        merged[qkv[0].name] = qkv
        gone |= {node.name for node in qkv[1:]}
    if not merged:
        ctx.cannot("fuse.qkv", "no layer has q, k and v projections with the same input and activation format")
    nodes = [_merge(merged[n.name]) if n.name in merged else n for n in graph.nodes if n.name not in gone]
    return replace(graph, nodes=tuple(nodes))


def _projections(uses: _Uses, graph: Graph, write: Node) -> tuple[Node, ...] | None:
    k, v = (_source_linear(uses, value) for value in write.inputs[:2])
    attention = next(node for node in uses.read_by[write.outputs[0]] if node.op == "attention")
    q = _source_linear(uses, attention.inputs[0])
    if q is None or k is None or v is None or len({n.inputs[0] for n in (q, k, v)}) > 1:
        return None
    first = min((q, k, v), key=graph.nodes.index)
    return (q, k, v) if first is q else None


def _source_linear(uses: _Uses, value: str) -> Node | None:
    """The projection behind a value, seen through rope and head norm."""
    node = uses.made_by.get(value)
    while node is not None and node.op in ("rope", "rms_norm"):
        node = uses.made_by.get(node.inputs[0])
    return node if node is not None and node.op == "linear" else None


def _merge(parts: tuple[Node, ...]) -> Node:
    weights = tuple(part.inputs[1] for part in parts)
    biases = tuple(i for i, part in enumerate(parts) if part.attrs["biases"])
    bias_inputs = tuple(part.inputs[2] for part in parts if part.attrs["biases"])
    return Node(
        name=f"{parts[0].name}kv",
        op="linear",
        inputs=(parts[0].inputs[0], *weights, *bias_inputs),
        outputs=tuple(part.outputs[0] for part in parts),
        attrs={"count": len(parts), "biases": biases},
    )


def fuse_norm_qkv_rope(graph: Graph, ctx: PlanContext) -> Graph:
    """fuse.norm_qkv_rope: norm, rounding, shared projections, q/k norm, rope and cache write become one node."""
    name, multiple = "fuse.norm_qkv_rope", ctx.caps.head_dim_multiple
    if ctx.switches[name] == "off":
        return graph
    if ctx.spec.head_dim % multiple:
        ctx.cannot(name, f"the kernel needs a head size that {multiple} divides, this model has {ctx.spec.head_dim}")
        return graph
    if not kv_format(ctx.switches["kv.dtype"]).per_head_write:
        ctx.cannot(name, f"{ctx.switches['kv.dtype']} needs all heads of a token before it can store one")
        return graph
    return _fuse_all(graph, ctx, name, "norm_qkv_rope", _match_norm_qkv_rope)


def _match_norm_qkv_rope(graph: Graph, node: Node, uses: _Uses) -> list[Node] | None:
    if node.op != "kv_write":
        return None
    attention = next(n for n in uses.read_by[node.outputs[0]] if n.op == "attention")
    linear = _source_linear(uses, node.inputs[1])
    if linear is None or linear.attrs["count"] != 3:
        return None
    chains = [_back_to(uses, value, linear) for value in (attention.inputs[0], node.inputs[0])]
    if uses.made_by.get(node.inputs[1]) is not linear or not all(chains):
        return None
    return [*_prologue(uses, linear.inputs[0]), linear, *(n for chain in chains if chain for n in chain), node]


def _back_to(uses: _Uses, value: str, linear: Node) -> list[Node] | None:
    """rope, or head norm and rope, between a projection and its reader; None if something else is there."""
    chain: list[Node] = []
    node = uses.made_by[value]
    while node is not linear:
        if node.op not in ("rope", "rms_norm") or len(uses.read_by[node.outputs[0]]) != 1:
            return None
        chain.insert(0, node)
        node = uses.made_by[node.inputs[0]]
    return chain if [n.op for n in chain] in (["rope"], ["rms_norm", "rope"]) else None


def _prologue(uses: _Uses, value: str, *, norm: bool = True) -> list[Node]:
    """The rounding and the norm that make a projection's input, where nobody else reads their results."""
    found: list[Node] = []
    for op in ("quantise", "rms_norm") if norm else ("quantise",):
        node = uses.maker(value, op)
        if node is not None and all(r.op == "linear" or r in found for r in uses.read_by[value]):
            found.insert(0, node)
            value = node.inputs[0]
    return found


def fuse_swiglu(graph: Graph, ctx: PlanContext) -> Graph:
    """fuse.swiglu: norm, rounding, gate, up, activation, product and the next rounding become one node."""
    return _fuse_all(graph, ctx, "fuse.swiglu", "swiglu", _match_swiglu)


def _match_swiglu(graph: Graph, node: Node, uses: _Uses) -> list[Node] | None:
    if node.op != "mul":
        return None
    act = uses.maker(node.inputs[0], "silu") or uses.maker(node.inputs[0], "gelu_tanh")
    gate = uses.maker(act.inputs[0], "linear") if act else None
    up = uses.maker(node.inputs[1], "linear")
    if act is None or gate is None or up is None or gate.inputs[0] != up.inputs[0]:
        return None
    after = uses.only_reader(node.outputs[0], "quantise")
    return [*_prologue(uses, gate.inputs[0]), gate, act, up, node, *([after] if after else [])]


def fuse_residual(graph: Graph, ctx: PlanContext) -> Graph:
    """fuse.residual: a projection whose only reader is a residual add writes the sum itself."""
    return _fuse_all(graph, ctx, "fuse.residual", "residual", _match_residual)


def _match_residual(graph: Graph, node: Node, uses: _Uses) -> list[Node] | None:
    if node.op != "add":
        return None
    linear = uses.maker(node.inputs[1], "linear")
    if linear is None or uses.only_reader(linear.outputs[0], "add") is not node:
        return None
    return [*_prologue(uses, linear.inputs[0], norm=False), linear, node]


def fuse_lm_head(graph: Graph, ctx: PlanContext) -> Graph:
    """fuse.lm_head: from the choice of rows to the top candidates in one node; the logits stay inside."""
    if ctx.switches["fuse.lm_head"] == "off":
        return graph
    results = tuple(name for name in graph.outputs if name.startswith("top."))
    return _fuse_all(replace(graph, outputs=results), ctx, "fuse.lm_head", "lm_head", _match_lm_head)


def _match_lm_head(graph: Graph, node: Node, uses: _Uses) -> list[Node] | None:
    if node.op != "top_k" or node.attrs["k"] != TOP_K:
        return None
    cap = uses.maker(node.inputs[0], "softcap")
    linear = uses.maker(cap.inputs[0] if cap else node.inputs[0], "linear")
    if linear is None:
        return None
    prologue = _prologue(uses, linear.inputs[0])
    gather = uses.maker(prologue[0].inputs[0] if prologue else linear.inputs[0], "gather_rows")
    if gather is None:
        return None
    return [gather, *prologue, linear, *([cap] if cap else []), node]


def _fuse_all(graph: Graph, ctx: PlanContext, switch: str, kind: str, match: Match) -> Graph:
    if ctx.switches[switch] == "off":
        return graph
    if kind not in ctx.caps.regions:
        ctx.cannot(switch, f"{ctx.caps.backend} has no kernel for the fused node")
        return graph
    uses, fused = _Uses(graph), 0
    for node in graph.nodes:
        members = match(graph, node, uses)
        region = fuse(graph, members, kind, f"{node.name}:{kind}") if members else None
        if region is not None:
            graph, fused = region, fused + 1
    if not fused:
        ctx.cannot(switch, "the model's graph has no such sequence of nodes")
    else:
        ctx.decide(switch, f"{fused} fused nodes", "the device has a kernel for them")
    return graph


def fusions() -> Iterable[tuple[str, Callable[[Graph, PlanContext], Graph]]]:
    """The fusion passes in the order they run."""
    yield "fuse.qkv", share_projections
    yield "fuse.norm_qkv_rope", fuse_norm_qkv_rope
    yield "fuse.swiglu", fuse_swiglu
    yield "fuse.residual", fuse_residual
    yield "fuse.lm_head", fuse_lm_head
