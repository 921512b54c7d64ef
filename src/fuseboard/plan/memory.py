"""Memory planning: how large values are, when they live, and where they lie in the arena."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fuseboard.formats.panels import packed_bytes
from fuseboard.formats.weights import ACT_FORMATS, act_format
from fuseboard.graph.ir import Graph, Node, Value, elements
from fuseboard.graph.ops import OPS, Sizes
from fuseboard.plan.streams import concurrent

ALIGN = 64
ACT_COLUMNS = 128
"""Rounded activations are padded to a multiple of the largest weight group, so that one row fits every format."""


def align(size: int) -> int:
    return size + -size % ALIGN


def act_columns(columns: int) -> int:
    """Columns of a row of rounded activations, padding included."""
    return columns + -columns % ACT_COLUMNS


@dataclass(frozen=True, kw_only=True)
class ActBuffer:
    """Where the three parts of rounded activations lie, in bytes from the start of the value."""

    ld: int
    scales: int
    sums: int
    size: int


def act_buffer(dtype: str, rows: int, columns: int) -> ActBuffer:
    """Layout of `rows` rows of activations in the format `dtype`; see csrc/contract.h."""
    fmt = act_format(dtype)
    if fmt.group == 0:
        return ActBuffer(ld=columns, scales=0, sums=0, size=align(4 * rows * columns))
    ld = act_columns(columns)
    scales = align(rows * ld * fmt.bits // 8)
    sums = scales + align(4 * rows * (ld // fmt.group))
    return ActBuffer(ld=ld, scales=scales, sums=sums, size=sums + align(4 * rows * (ld // fmt.group)))


def value_bytes(value: Value, sizes: Sizes) -> int:
    """Size of a value in memory; a weight's in its storage format, a state's is 0 (the cache is counted apart)."""
    if value.kind == "state":
        return 0
    if value.kind == "weight" and len(value.shape) == 2:
        rows, columns = (elements((size,), sizes) for size in value.shape)
        return packed_bytes(value.dtype, rows, columns)
    if value.dtype in ACT_FORMATS and value.dtype != "f32":
        return act_buffer(value.dtype, elements(value.shape[:-1], sizes), elements(value.shape[-1:], sizes)).size
    return align(4 * elements(value.shape, sizes))


@dataclass(frozen=True, kw_only=True)
class Arena:
    """Offsets of all temporary values of a step, the bytes it takes, and the bytes without any sharing."""

    offsets: Mapping[str, int]
    bytes: int
    unshared_bytes: int


def plan_arena(graph: Graph, nodes: Sequence[Node], sizes: Sizes, *, reuse: bool, streams: int = 1) -> Arena:
    """Places the values that `nodes` make and exchange.

    With `reuse` values share memory when their lifetimes do not overlap, larger ones placed first at the lowest free
    offset; an elementwise node takes over the memory of an input that nobody reads afterwards. Nodes that may run at
    the same time are one moment. Results live to the end of the step. Without it every value has its own memory.
    """
    groups = concurrent(nodes, streams)
    lives = _lifetimes(graph, groups)
    size = {name: value_bytes(graph.values[name], sizes) for name in lives}
    total = sum(size.values())
    if not reuse:
        offsets, at = {}, 0
        for name in lives:
            offsets[name], at = at, at + size[name]
        return Arena(offsets=offsets, bytes=total, unshared_bytes=total)
    owner = _take_over(graph, groups, lives, size)
    spans: dict[str, tuple[int, int]] = {}
    for name, (first, last) in lives.items():
        root = owner.get(name, name)
        start, end = spans.get(root, (first, last))
        spans[root] = (min(start, first), max(end, last))
    placed = _place(spans, size)
    used = max((placed[name] + size[name] for name in spans), default=0)
    return Arena(offsets={n: placed[owner.get(n, n)] for n in lives}, bytes=used, unshared_bytes=total)


def _lifetimes(graph: Graph, groups: Sequence[Sequence[Node]]) -> dict[str, tuple[int, int]]:
    """First and last group of every temporary, in order of appearance."""
    lives: dict[str, tuple[int, int]] = {}
    for index, group in enumerate(groups):
        for name in (name for node in group for name in (*node.inputs, *node.outputs)):
            if graph.values[name].kind == "temp":
                lives[name] = (lives[name][0] if name in lives else index, index)
    for name in graph.outputs:
        if name in lives:
            lives[name] = (lives[name][0], len(groups))
    return lives


def _take_over(
    graph: Graph, groups: Sequence[Sequence[Node]], lives: Mapping[str, tuple[int, int]], size: Mapping[str, int]
) -> dict[str, str]:
    """Values that live in the memory of another: output -> the first owner of that memory."""
    owner: dict[str, str] = {}
    for index, node in ((index, node) for index, group in enumerate(groups) for node in group):
        source = _inplace_source(node)
        if source is None or source not in lives or lives[source][1] != index:
            continue
        if sum(source in other.inputs for other in groups[index]) > 1:
            continue
        (output, *_) = node.outputs
        if size[source] == size[output] and source not in graph.outputs:
            owner[output] = owner.get(source, source)
    return owner


def _inplace_source(node: Node) -> str | None:
    if node.region == "residual":
        *before, add = node.body
        read = {name for inner in before for name in inner.inputs}
        return None if add.inputs[0] in read else add.inputs[0]
    if node.body or OPS[node.op].inplace is None:
        return None
    return node.inputs[OPS[node.op].inplace or 0]


def _place(spans: Mapping[str, tuple[int, int]], size: Mapping[str, int]) -> dict[str, int]:
    placed: dict[str, int] = {}
    for name in sorted(spans, key=lambda n: (-size[n], spans[n])):
        first, last = spans[name]
        busy = sorted(
            (offset, offset + size[other])
            for other, offset in placed.items()
            if spans[other][0] <= last and first <= spans[other][1]
        )
        at = 0
        for start, end in busy:
            if at + size[name] <= start:
                break
            at = max(at, end)
        placed[name] = at
    return placed
