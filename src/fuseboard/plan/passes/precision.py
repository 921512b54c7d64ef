"""Storage formats for the matrices, and rounding of activations where the kernels of a format want integers."""

from dataclasses import replace
from fnmatch import fnmatchcase

from fuseboard.formats.weights import act_format
from fuseboard.graph.ir import Graph, Node, Value
from fuseboard.graph.rewrite import map_nodes
from fuseboard.plan.context import PlanContext
from fuseboard.plan.precision import Precision, PrecisionPolicy, parse_policy


def assign_precision(graph: Graph, ctx: PlanContext) -> Graph:
    """Gives every matrix its format; a `quantise` node, shared by all readers, goes before integer projections."""
    policy = parse_policy(ctx.switches["weights"])
    chosen = {v.name: policy.of(v.name, ctx.storage(v.name)) for v in graph.values.values() if _is_matrix(v)}
    for name, choice in chosen.items():
        if choice.weight not in ctx.caps.weight_formats:
            ctx.cannot("weights", f"{ctx.caps.backend} has no kernel for {choice.weight}, asked for {name}")
            chosen[name] = Precision(weight="f32", act="f32")
    _check_overrides(policy, chosen, ctx)
    graph = graph.with_values(*(replace(graph.values[n], dtype=c.weight) for n, c in chosen.items()))
    return _round_activations(graph, chosen)


def _is_matrix(value: Value) -> bool:
    return value.kind == "weight" and len(value.shape) == 2


def _check_overrides(policy: PrecisionPolicy, chosen: dict[str, Precision], ctx: PlanContext) -> None:
    for pattern, scheme in policy.overrides:
        hits = sum(fnmatchcase(name, pattern) for name in chosen)
        if not hits:
            ctx.cannot("weights", f"no matrix of this model is called {pattern}")
        ctx.decide(f"weights of {pattern}", scheme, f"override, {hits} matrices")


def _round_activations(graph: Graph, chosen: dict[str, Precision]) -> Graph:
    made: dict[tuple[str, str], Value] = {}

    def change(node: Node) -> tuple[Node, ...]:
        act = chosen[node.inputs[1]].act if node.op == "linear" else "f32"
        if act == "f32":
            return (node,)
        x = node.inputs[0]
        key, fmt = (x, act), act_format(act)
        rounded = replace(node, inputs=(f"{x}.{act}", *node.inputs[1:]))
        if key in made:
            return (rounded,)
        made[key] = Value(name=f"{x}.{act}", shape=graph.values[x].shape, dtype=act)
        attrs = {"format": act, "bits": fmt.bits, "group": fmt.group}
        return (Node(name=f"{x}.{act}", op="quantise", inputs=(x,), outputs=(f"{x}.{act}",), attrs=attrs), rounded)

    changed = map_nodes(graph, change)
    return changed.with_values(*made.values())
