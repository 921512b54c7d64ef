"""`GraphBuilder`: states a step op by op; shapes follow from the catalogue."""

from typing import Any

from fuseboard.graph.ir import Graph, Node, Shape, Value
from fuseboard.graph.ops import OPS


class GraphBuilder:
    """Collects values and nodes. A node's results are called like the node (`a`, or `a.0`, `a.1` when several)."""

    def __init__(self) -> None:
        self._values: dict[str, Value] = {}
        self._nodes: list[Node] = []

    def input(self, name: str, shape: Shape) -> str:
        """Metadata of the step, int32."""
        return self._add(Value(name=name, shape=shape, dtype="i32", kind="input"))

    def weight(self, name: str, shape: Shape) -> str:
        return self._add(Value(name=name, shape=shape, kind="weight"))

    def state(self, name: str) -> str:
        """The first version of a mutable memory; its layout belongs to the cache group, not to the graph."""
        return self._add(Value(name=f"{name}@0", shape=(), kind="state"))

    def op(self, op: str, name: str, *inputs: str, **attrs: Any) -> str:
        """Adds a node with one result."""
        (result,) = self.ops(op, name, *inputs, **attrs)
        return result

    def ops(self, op: str, name: str, *inputs: str, **attrs: Any) -> tuple[str, ...]:
        """Adds a node with any number of results."""
        values = [self._values[i] for i in inputs]
        results = OPS[op].infer(values, attrs)
        names = (name,) if len(results) == 1 else tuple(f"{name}.{i}" for i in range(len(results)))
        kind = "temp"
        if op == "kv_write":
            state, _, version = inputs[2].rpartition("@")
            names, kind = (f"{state}@{int(version) + 1}",), "state"
        for result, (shape, dtype) in zip(names, results, strict=True):
            self._add(Value(name=result, shape=shape, dtype=dtype, kind=kind))
        self._nodes.append(Node(name=name, op=op, inputs=inputs, outputs=names, attrs=attrs))
        return names

    def linear(self, name: str, x: str, weight: str, bias: str | None = None) -> str:
        inputs = (x, weight) if bias is None else (x, weight, bias)
        return self.op("linear", name, *inputs, count=1, biases=() if bias is None else (0,))

    def finish(self, *outputs: str) -> Graph:
        return Graph(values=self._values, nodes=tuple(self._nodes), outputs=outputs)

    def _add(self, value: Value) -> str:
        assert value.name not in self._values, f"{value.name} is there twice"
        self._values[value.name] = value
        return value.name
