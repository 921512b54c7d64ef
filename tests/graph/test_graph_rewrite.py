"""Fusing keeps the order of reads and writes or refuses; pruning drops only what nobody needs."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuseboard.graph.builder import GraphBuilder
from fuseboard.graph.ir import Graph, T, Value, flatten
from fuseboard.graph.rewrite import fuse, map_nodes, prune
from fuseboard.graph.verify import verify


def chain(*steps: tuple[str, str, str]) -> Graph:
    """`add` nodes (name, input, input) over the embedding `x`; the last one is the result."""
    g = GraphBuilder()
    g.input("ids", (T,))
    g.weight("table", (9, 4))
    g.op("embed", "x", "ids", "table")
    for name, first, second in steps:
        g.op("add", name, first, second)
    return g.finish(steps[-1][0])


def named(graph: Graph, *names: str) -> list:
    return [node for node in graph.nodes if node.name in names]


DIAMOND = (("a", "x", "x"), ("b", "a", "x"), ("c", "a", "b"), ("d", "c", "x"))


def test_fused_nodes_stand_in_the_place_of_the_last():
    graph = chain(*DIAMOND)
    fused = fuse(graph, named(graph, "b", "c"), "k", "bc")
    assert fused is not None
    verify(fused)
    assert [n.name for n in fused.nodes] == ["x", "a", "bc", "d"]
    assert fused.nodes[2].inputs == ("a", "x")
    assert fused.nodes[2].outputs == ("c",)
    assert [n.name for n in fused.flat_nodes()] == ["x", "a", "b", "c", "d"]


def test_a_value_read_outside_leaves_the_region():
    graph = chain(*DIAMOND)
    fused = fuse(graph, named(graph, "a", "b"), "k", "ab")
    assert fused is not None
    assert fused.nodes[1].outputs == ("a", "b")
    verify(fused)


def test_a_result_leaves_the_region():
    graph = replace(chain(*DIAMOND), outputs=("b", "d"))
    fused = fuse(graph, named(graph, "b", "c"), "k", "bc")
    assert fused is not None
    assert fused.nodes[2].outputs == ("b", "c")


@pytest.mark.parametrize("members", [("a", "c"), ("a", "d"), ("b", "d")])
def test_an_outsider_between_that_reads_a_member_forbids_fusing(members):
    graph = chain(*DIAMOND)
    assert fuse(graph, named(graph, *members), "k", "f") is None


def test_an_outsider_between_that_depends_on_no_member_moves_before():
    graph = chain(("a", "x", "x"), ("other", "x", "x"), ("b", "a", "other"))
    fused = fuse(graph, named(graph, "a", "b"), "k", "ab")
    assert fused is not None
    verify(fused)
    assert [n.name for n in fused.nodes] == ["x", "other", "ab"]


@st.composite
def dags(draw: st.DrawFn) -> Graph:
    names = ["x"]
    steps = []
    for i in range(draw(st.integers(1, 9))):
        steps.append((f"n{i}", draw(st.sampled_from(names)), draw(st.sampled_from(names))))
        names.append(f"n{i}")
    return chain(*steps)


@settings(max_examples=200, deadline=None)
@given(graph=dags(), data=st.data())
def test_any_fusion_is_refused_or_keeps_a_valid_order(graph, data):
    """Refused exactly where a member would have to wait for an outsider that waits for a member."""
    members = data.draw(st.lists(st.sampled_from(graph.nodes[1:]), min_size=1, unique_by=lambda n: n.name))
    fused = fuse(graph, members, "k", "f")
    inside = {n.name for n in members}
    waiting: set[str] = set()
    for node in graph.nodes:
        if node.name not in inside and any(i in inside or i in waiting for i in node.inputs):
            waiting.add(node.name)
    cycle = any(i in waiting for node in members for i in node.inputs)
    if fused is None:
        order = [n.name for n in graph.nodes]
        last = max(order.index(name) for name in inside)
        assert cycle or any(order.index(name) < last for name in waiting)
    else:
        assert not cycle
        verify(fused)
        assert sorted(n.name for n in fused.flat_nodes()) == sorted(n.name for n in graph.nodes)


def test_prune_drops_dead_nodes_and_their_values():
    graph = chain(("a", "x", "x"), ("dead", "a", "a"), ("deader", "dead", "x"), ("b", "a", "x"))
    pruned = prune(graph)
    verify(pruned)
    assert [n.name for n in pruned.nodes] == ["x", "a", "b"]
    assert set(pruned.values) == {"ids", "table", "x", "a", "b"}


def test_prune_keeps_writes_to_states_and_the_inside_of_regions():
    g = GraphBuilder()
    for name in ("ids", "slots"):
        g.input(name, (T,))
    g.weight("table", (9, 4))
    x = g.op("embed", "x", "ids", "table")
    y = g.op("silu", "y", x)
    g.op("kv_write", "write", y, x, g.state("kv.0"), "slots")
    graph = g.finish("x")
    fused = fuse(graph, [graph.nodes[1], graph.nodes[2]], "k", "f")
    assert fused is not None
    pruned = prune(fused)
    assert [n.name for n in pruned.nodes] == ["x", "f"]
    assert "y" in pruned.values


def test_map_nodes_replaces_inserts_and_drops():
    graph = chain(("a", "x", "x"), ("b", "x", "a"))
    extra = Value(name="extra", shape=(T, 4))

    def change(node):
        if node.name == "a":
            return ()
        if node.name == "b":
            first = replace(node, name="extra", inputs=("x", "x"), outputs=("extra",))
            return (first, replace(node, inputs=("extra", "x")))
        return (node,)

    changed = map_nodes(graph, change, extra)
    verify(changed)
    assert [n.name for n in changed.nodes] == ["x", "extra", "b"]


def test_flatten_opens_nested_regions():
    graph = chain(*DIAMOND)
    inner = fuse(graph, named(graph, "b", "c"), "k", "bc")
    assert inner is not None
    outer = fuse(inner, named(inner, "a", "bc"), "k", "abc")
    assert outer is not None
    assert [n.name for n in flatten(outer.nodes[1])] == ["a", "b", "c"]
