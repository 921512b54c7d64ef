"""Constant folding: what depends on weights alone is computed once, rotary tables for all positions included."""

from dataclasses import replace

from fuseboard.graph.ir import Graph, Node, Value
from fuseboard.graph.ops import OPS
from fuseboard.plan.context import PlanContext


def fold_constants(graph: Graph, ctx: PlanContext) -> Graph:
    """Moves nodes without any input of the step to `graph.once` and turns rotary angles into indexed tables."""
    if ctx.switches["fold_constants"] == "off":
        return graph
    constant = {name for name, value in graph.values.items() if value.kind == "weight"}
    tables: set[str] = set()
    once: list[Node] = []
    rest: list[Node] = []
    values: list[Value] = []
    for node in graph.nodes:
        if node.op == "rope_angles":
            node = replace(node, inputs=(), attrs=dict(node.attrs) | {"length": ctx.max_model_len})
            tables |= set(node.outputs)
        if node.op == "rope" and node.inputs[1] in tables:
            node = replace(node, inputs=(*node.inputs, "positions"))
        if set(node.inputs) <= constant and node.op in ("affine", "rope_angles"):
            constant |= set(node.outputs)
            once.append(node)
            values += _constants(graph, node)
        else:
            rest.append(node)
    ctx.decide("fold_constants", f"{len(once)} nodes", "they depend on weights or positions alone")
    return replace(graph.with_values(*values), nodes=tuple(rest), once=(*graph.once, *once))


def _constants(graph: Graph, node: Node) -> list[Value]:
    inferred = OPS[node.op].infer([graph.values[i] for i in node.inputs], node.attrs)
    return [
        replace(graph.values[name], shape=shape, kind="constant")
        for name, (shape, _) in zip(node.outputs, inferred, strict=True)
    ]
