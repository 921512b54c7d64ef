"""The intermediate representation: what one decoder step computes, over a ragged batch.

A graph is a list of nodes in execution order over named values. Sizes are ints or multiples of the step's symbolic
sizes: T tokens, S sequences, R rows to sample. Mutable memory is explicit: an op that writes a state takes one version
of it (`kv.3@0`) and returns the next (`kv.3@1`), and readers name the version they read.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

SYMBOLS = ("T", "S", "R")


@dataclass(frozen=True)
class Dim:
    """`factor` times the symbolic size `symbol`."""

    symbol: str
    factor: int = 1

    def __str__(self) -> str:
        return self.symbol if self.factor == 1 else f"{self.factor}{self.symbol}"


Size = int | Dim
Shape = tuple[Size, ...]
T, S, R = Dim("T"), Dim("S"), Dim("R")


def elements(shape: Shape, sizes: Mapping[str, int]) -> int:
    """Number of elements of `shape` when the symbolic sizes are `sizes`."""
    count = 1
    for size in shape:
        count *= size if isinstance(size, int) else size.factor * sizes[size.symbol]
    return count


@dataclass(frozen=True, kw_only=True)
class Value:
    """A named tensor.

    `kind` is input (the step's metadata), weight (a checkpoint tensor), state (mutable memory), constant (computed
    once) or temp. `dtype` is f32, i32, an activation format (a8g32), for a weight its storage format and for a state
    the KV format.
    """

    name: str
    shape: Shape
    dtype: str = "f32"
    kind: str = "temp"

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True, kw_only=True)
class Node:
    """One operation. A fused node (`op == "region"`) keeps the nodes it replaces in `body`; their values keep their
    names, so the body can always run in its place."""

    name: str
    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    body: tuple["Node", ...] = ()

    @property
    def region(self) -> str | None:
        """The kind of a fused node, None for a plain one."""
        return self.attrs["kind"] if self.op == "region" else None


@dataclass(frozen=True, kw_only=True)
class Graph:
    """Values by name, the nodes of a step in execution order, the nodes computed once, and the step's results."""

    values: Mapping[str, Value]
    nodes: tuple[Node, ...]
    outputs: tuple[str, ...]
    once: tuple[Node, ...] = ()

    def dtype(self, name: str) -> str:
        return self.values[name].dtype

    def consumers(self) -> dict[str, list[Node]]:
        """For every value the nodes that read it, in order."""
        readers: dict[str, list[Node]] = {name: [] for name in self.values}
        for node in (*self.once, *self.nodes):
            for name in node.inputs:
                readers[name].append(node)
        return readers

    def producers(self) -> dict[str, Node]:
        """For every computed value the node that writes it."""
        return {name: node for node in (*self.once, *self.nodes) for name in node.outputs}

    def with_values(self, *values: Value) -> "Graph":
        return replace(self, values=dict(self.values) | {value.name: value for value in values})

    def flat_nodes(self) -> Iterable[Node]:
        """The nodes of a step with fused nodes replaced by their bodies."""
        for node in self.nodes:
            yield from flatten(node)

    def dump(self) -> str:
        """A readable listing: one line a node, fused nodes with their bodies indented."""
        lines = [self._line(node, "once ") for node in self.once]
        for node in self.nodes:
            lines.append(self._line(node, ""))
            lines += [self._line(inner, "    ") for inner in node.body]
        return "\n".join([*lines, f"return {', '.join(self.outputs)}"])

    def _line(self, node: Node, prefix: str) -> str:
        results = ", ".join(str(self.values[name]) for name in node.outputs)
        attrs = "".join(f", {key}={value}" for key, value in sorted(node.attrs.items()))
        return f"{prefix}{results} = {node.op}({', '.join(node.inputs)}{attrs})"


def flatten(node: Node) -> Iterable[Node]:
    """The node itself, or the innermost nodes of its body."""
    if not node.body:
        yield node
    for inner in node.body:
        yield from flatten(inner)
