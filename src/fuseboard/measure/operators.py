"""Operator classes of a plan's nodes, and what the cost model says of each class at a step's real sizes."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from fuseboard.core.device import DeviceCaps
from fuseboard.execute.records import StepRecord
from fuseboard.graph.ir import Graph, Node
from fuseboard.graph.ops import Sizes
from fuseboard.measure.record import OperatorRecord
from fuseboard.plan.cost import Cost, node_cost
from fuseboard.plan.plan import ExecutionPlan

PROJECTIONS = {
    "q": "q, k, v",
    "k": "q, k, v",
    "v": "q, k, v",
    "o": "attention output",
    "gate": "gate, up",
    "up": "gate, up",
    "down": "down",
    "embed": "head",
    "lm_head": "head",
}
"""Class of a projection by the last part of its weight's name; a tied head multiplies by the embedding."""

OPS = {
    "embed": "embedding",
    "rms_norm": "norms",
    "rope_angles": "rope",
    "rope": "rope",
    "kv_write": "cache write",
    "attention": "attention",
    "quantise": "rounding",
    "top_k": "top-k",
}
ELEMENTWISE, OTHER = "elementwise", "other"
CLASSES = (
    "embedding", "norms", "q, k, v", "rope", "cache write", "attention", "attention output", "gate, up", ELEMENTWISE,
    "rounding", "down", "head", "top-k", OTHER,
)  # fmt: skip
"""In the order of a layer. A fused node belongs to the class of its projection."""


def operator_class(graph: Graph, node: Node) -> str:
    """The class of a node of a plan."""
    linear = next((inner for inner in node.body or (node,) if inner.op == "linear"), None)
    if linear is None:
        return OPS.get(node.op, ELEMENTWISE)
    weight = next(name for name in linear.inputs if graph.values[name].kind == "weight")
    return PROJECTIONS.get(weight.removesuffix(".weight").rpartition(".")[2], OTHER)


def class_of_labels(plan: ExecutionPlan) -> Mapping[str, str]:
    """The class of every name that node times may come under, also those of opened fused nodes."""
    nodes = [*plan.graph.nodes, *(inner for node in plan.graph.nodes for inner in node.body)]
    return {node.name: operator_class(plan.graph, node) for node in nodes}


def label_class(classes: Mapping[str, str], label: str) -> str:
    """The class of a timed instruction: of its node, or of the node it is a part of (`node:part`)."""
    return classes.get(label) or classes.get(label.rpartition(":")[0], OTHER)


def step_sizes(step: StepRecord) -> Sizes:
    """The symbolic sizes of a step that was run."""
    return {
        "T": step.tokens,
        "S": step.seqs,
        "R": step.rows,
        "context_tokens": step.context_tokens,
        "cached_tokens": step.cached_tokens,
    }


@dataclass(frozen=True, kw_only=True)
class _Alike:
    """`count` nodes of a class that cost the same whatever the step."""

    name: str
    node: Node
    count: int


class OperatorCosts:
    """The cost model over operator classes. Layers repeat, so it computes one of each kind of node."""

    def __init__(self, plan: ExecutionPlan, caps: DeviceCaps) -> None:
        self._graph, self._kv, self._caps = plan.graph, plan.kv, caps
        keys = [(operator_class(plan.graph, node), _signature(plan.graph, node)) for node in plan.graph.nodes]
        counts, first = Counter(keys), dict(zip(keys, plan.graph.nodes, strict=True))
        self._alike = [_Alike(name=key[0], node=node, count=counts[key]) for key, node in first.items()]

    def total(self, steps: Iterable[StepRecord]) -> dict[str, OperatorRecord]:
        """Bytes, operations and least times of every class, summed over steps; calls and measured times are zero."""
        found: dict[str, OperatorRecord] = {}
        for step in steps:
            sizes = step_sizes(step)
            costs = [(alike, node_cost(self._graph, alike.node, self._kv, sizes)) for alike in self._alike]
            working_set = sum(alike.count * (cost.weight_bytes + cost.kv_bytes) for alike, cost in costs)
            for alike, one in costs:
                cost = self._record(alike, one, working_set)
                found[alike.name] = add(found[alike.name], cost) if alike.name in found else cost
        return found

    def _record(self, alike: _Alike, cost: Cost, working_set: int) -> OperatorRecord:
        times = alike.count
        return OperatorRecord(
            name=alike.name,
            limit_ns=times * self._limit_ns(cost, working_set),
            streamed_limit_ns=times * self._limit_ns(replace(cost, activation_bytes=0), working_set),
            weight_bytes=times * cost.weight_bytes,
            kv_bytes=times * cost.kv_bytes,
            activation_bytes=times * cost.activation_bytes,
            operations=times * cost.operations,
            integer_operations=times * cost.integer_operations,
        )

    def _limit_ns(self, cost: Cost, working_set: int) -> int:
        seconds = cost.seconds(self._caps, working_set=working_set)
        return 0 if seconds is None else round(seconds * 1e9)


def add(a: OperatorRecord, b: OperatorRecord) -> OperatorRecord:
    """Both together, under the name of the first."""
    numbers = (f.name for f in fields(OperatorRecord) if f.name != "name")
    return OperatorRecord(name=a.name, **{key: getattr(a, key) + getattr(b, key) for key in numbers})


def _signature(graph: Graph, node: Node) -> Any:
    """What a node's cost depends on: its operations, and shapes and formats of all that they touch."""
    return tuple(
        (part.op, repr(sorted(part.attrs.items())), tuple(_kind(graph, v) for v in (*part.inputs, *part.outputs)))
        for part in (node, *node.body)
    )


def _kind(graph: Graph, name: str) -> Any:
    value = graph.values[name]
    group = name if value.kind == "input" else ""
    return value.shape, value.dtype, value.kind, group
