"""`verify`: the rules every graph keeps, before and after every rewrite."""

from fuseboard.graph.ir import Graph, Node
from fuseboard.graph.ops import OPS


def verify(graph: Graph) -> None:
    """AssertionError that names the node when a value is read before it is written, written twice, has the wrong
    shape, when a version of a state is read or written after it was overwritten, when an operation or value is
    unknown, or when a result nobody computes is asked for."""
    known = {name for name, value in graph.values.items() if value.kind in ("input", "weight")}
    known |= {name for name, value in graph.values.items() if value.kind == "state" and name.endswith("@0")}
    taken: set[str] = set()
    for node in (*graph.once, *graph.nodes):
        missing = [name for name in node.inputs if name not in known]
        assert not missing, f"{node.name} reads {missing} before they are written"
        stale = [name for name in node.inputs if name in taken]
        assert not stale, f"{node.name} reads {stale}, which another node already overwrote"
        twice = [name for name in node.outputs if name in known]
        assert not twice, f"{node.name} writes {twice} again"
        for inner in node.body:
            _check_inner(graph, inner)
        if node.body:
            _check_region(node)
        else:
            _check_inner(graph, node)
        taken |= set(_states_written(node))
        known |= set(node.outputs)
    lost = [name for name in graph.outputs if name not in known]
    assert not lost, f"nobody computes the results {lost}"


def _check_inner(graph: Graph, node: Node) -> None:
    assert node.op in OPS, f"{node.name} is of the unknown operation {node.op}"
    unknown = [name for name in (*node.inputs, *node.outputs) if name not in graph.values]
    assert not unknown, f"{node.name} names {unknown}, which are no values of the graph"
    inferred = OPS[node.op].infer([graph.values[name] for name in node.inputs], node.attrs)
    actual = [(graph.values[name].shape, graph.values[name].dtype) for name in node.outputs]
    assert inferred == actual, f"{node.name}: {actual} should be {inferred}"


def _check_region(node: Node) -> None:
    made: set[str] = set()
    for inner in node.body:
        outside = [name for name in inner.inputs if name not in made and name not in node.inputs]
        assert not outside, f"{inner.name} in {node.name} reads {outside}, which the region does not take"
        twice = made & set(inner.outputs)
        assert not twice, f"{inner.name} in {node.name} writes {sorted(twice)} again"
        made |= set(inner.outputs)
    assert set(node.outputs) <= made, f"{node.name} does not compute all of {node.outputs}"


def _states_written(node: Node) -> list[str]:
    writers = node.body or (node,)
    return [n.inputs[2] for n in writers if n.op == "kv_write"]
