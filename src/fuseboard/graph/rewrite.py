"""Tools for rewrites: fuse nodes into a region, replace nodes, insert nodes, drop what nobody reads."""

from collections.abc import Callable, Iterable
from dataclasses import replace

from fuseboard.graph.ir import Graph, Node, Value


def fuse(graph: Graph, members: Iterable[Node], kind: str, name: str) -> Graph | None:
    """`graph` with `members` replaced by one region node in the place of the last of them.

    None when that would change the order of reads and writes: an outsider that runs before the last member reads what
    a member makes. Results of the region are what outsiders read, the graph's results, and states.
    """
    inside = {node.name for node in members}
    nodes = [node for node in graph.nodes if node.name in inside]
    first, last = graph.nodes.index(nodes[0]), graph.nodes.index(nodes[-1])
    made = {value for node in nodes for value in node.outputs}
    for node in graph.nodes[first:last]:
        if node.name not in inside and made & set(node.inputs):
            return None
    taken = tuple(dict.fromkeys(v for node in nodes for v in node.inputs if v not in made))
    wanted = {v for node in graph.nodes if node.name not in inside for v in node.inputs} | set(graph.outputs)
    wanted |= {v for v in made if graph.values[v].kind == "state"}
    given = tuple(v for node in nodes for v in node.outputs if v in wanted)
    region = Node(name=name, op="region", inputs=taken, outputs=given, attrs={"kind": kind}, body=tuple(nodes))
    rest = [node for node in graph.nodes if node.name not in inside]
    place = sum(node.name not in inside for node in graph.nodes[:last])
    return replace(graph, nodes=(*rest[:place], region, *rest[place:]))


def map_nodes(graph: Graph, change: Callable[[Node], Iterable[Node]], *new_values: Value) -> Graph:
    """Every node replaced by what `change` gives for it (itself, others, or nothing)."""
    nodes = tuple(result for node in graph.nodes for result in change(node))
    return replace(graph.with_values(*new_values), nodes=nodes)


def prune(graph: Graph) -> Graph:
    """Without nodes whose results nobody reads and without values nobody names; writes to states stay."""
    needed = set(graph.outputs)
    kept: list[Node] = []
    for node in reversed((*graph.once, *graph.nodes)):
        writes = any(graph.values[name].kind == "state" for name in node.outputs)
        if writes or needed & set(node.outputs):
            kept.append(node)
            needed |= set(node.inputs)
    names = {node.name for node in kept}
    used = needed | {v for node in kept for n in (node, *node.body) for v in (*n.inputs, *n.outputs)}
    return replace(
        graph,
        nodes=tuple(n for n in graph.nodes if n.name in names),
        once=tuple(n for n in graph.once if n.name in names),
        values={name: value for name, value in graph.values.items() if name in used},
    )
