"""The cost model: bytes that a step must move and operations it must do, node by node, and the time they take."""

from dataclasses import dataclass

from fuseboard.core.device import DeviceCaps
from fuseboard.formats.kv import block_bytes, kv_format
from fuseboard.graph.ir import Graph, Node
from fuseboard.graph.ops import OPS, Sizes
from fuseboard.plan.memory import value_bytes
from fuseboard.plan.policy import KvPolicy


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Bytes read from weights, read from and written to the cache, moved for activations; operations, and how many
    of them are on integers."""

    weight_bytes: int = 0
    kv_bytes: int = 0
    activation_bytes: int = 0
    operations: int = 0
    integer_operations: int = 0

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(
            weight_bytes=self.weight_bytes + other.weight_bytes,
            kv_bytes=self.kv_bytes + other.kv_bytes,
            activation_bytes=self.activation_bytes + other.activation_bytes,
            operations=self.operations + other.operations,
            integer_operations=self.integer_operations + other.integer_operations,
        )

    @property
    def bytes(self) -> int:
        return self.weight_bytes + self.kv_bytes + self.activation_bytes

    def seconds(self, caps: DeviceCaps, *, working_set: int | None = None) -> float | None:
        """The roofline limit: the longer of moving the bytes and doing the operations; None without measured rates.

        `working_set` are the bytes of the whole step, which decide whether a cache can hold them; a step's own bytes
        when not given.
        """
        if not caps.read_bytes_per_s or not caps.flops_per_s:
            return None
        floating = (self.operations - self.integer_operations) / caps.flops_per_s
        integer = self.integer_operations / (caps.integer_ops_per_s or caps.flops_per_s)
        rate = caps.read_rate(self.bytes if working_set is None else working_set)
        return max(self.bytes / rate, floating + integer)


def decode_sizes(batch: int, context: int) -> Sizes:
    """Symbolic sizes of a step in which `batch` sequences of `context` tokens each make one token."""
    seen = batch * context
    return {"T": batch, "S": batch, "R": batch, "context_tokens": seen, "cached_tokens": seen}


def step_cost(graph: Graph, kv: KvPolicy, sizes: Sizes) -> Cost:
    """Cost of a whole step."""
    return sum((node_cost(graph, node, kv, sizes) for node in graph.nodes), Cost())


def node_cost(graph: Graph, node: Node, kv: KvPolicy, sizes: Sizes) -> Cost:
    """Cost of a node: a fused node moves only what crosses its border, and computes all that is in its body."""
    operations = integer_operations = kv_bytes = 0
    for inner in node.body or (node,):
        inputs = [graph.values[name] for name in inner.inputs]
        count = OPS[inner.op].operations(inputs, inner.attrs, sizes)
        operations += count
        integer_operations += count if inner.op == "linear" and inputs[0].dtype != "f32" else 0
        kv_bytes += _kv_bytes(inner, kv, sizes)
    weights = [name for name in node.inputs if graph.values[name].kind == "weight"]
    moved = [n for n in (*node.inputs, *node.outputs) if graph.values[n].kind in ("temp", "constant")]
    return Cost(
        weight_bytes=sum(_weight_bytes(graph, node, name, sizes) for name in weights),
        kv_bytes=kv_bytes,
        activation_bytes=sum(min(value_bytes(graph.values[n], sizes), _rows_used(graph, n, sizes)) for n in moved),
        operations=operations,
        integer_operations=integer_operations,
    )


def _weight_bytes(graph: Graph, node: Node, name: str, sizes: Sizes) -> int:
    whole = value_bytes(graph.values[name], sizes)
    rows = graph.values[name].shape[0]
    looked_up = node.op == "embed" and isinstance(rows, int)
    return whole * min(sizes["T"], int(rows)) // int(rows) if looked_up and isinstance(rows, int) else whole


def _rows_used(graph: Graph, name: str, sizes: Sizes) -> int:
    """Bytes of as many rows as the step has tokens: tables of constants are read row by row."""
    value = graph.values[name]
    if value.kind != "constant" or len(value.shape) < 2 or not isinstance(value.shape[0], int):
        return value_bytes(value, sizes)
    return value_bytes(value, sizes) * min(sizes["T"], value.shape[0]) // value.shape[0]


def _kv_bytes(node: Node, kv: KvPolicy, sizes: Sizes) -> int:
    if node.op not in ("attention", "kv_write"):
        return 0
    group = kv.groups[int(node.inputs[-1].rpartition(".")[2])]
    token = block_bytes(kv_format(kv.dtype), kv.block_size, group.kv_heads, group.head_dim) / kv.block_size
    if node.op == "kv_write":
        return int(sizes["T"] * token)
    seen = sizes["cached_tokens"]
    if group.window is not None:
        seen = min(seen, group.window * sizes["S"] + sizes["T"] - sizes["S"])
    return int(seen * token)
