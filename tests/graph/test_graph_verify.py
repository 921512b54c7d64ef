"""The verifier names what is wrong with a broken graph; the dump can be read."""

from dataclasses import replace

import pytest

from fuseboard.graph.builder import GraphBuilder
from fuseboard.graph.ir import Dim, Graph, Node, S, T, Value, elements
from fuseboard.graph.rewrite import fuse
from fuseboard.graph.verify import verify


def small() -> Graph:
    """x -> norm -> two projections -> product, and a cache write whose result is read."""
    g = GraphBuilder()
    for name, shape in (("ids", (T,)), ("starts", (S,)), ("lens", (S,)), ("kv_slots.0", (T,)), ("block_table.0", (S,))):
        g.input(name, shape)
    for name, shape in (("table", (50, 8)), ("w", (8,)), ("a.w", (8, 8)), ("b.w", (8, 8))):
        g.weight(name, shape)
    x = g.op("embed", "x", "ids", "table")
    h = g.op("rms_norm", "h", x, "w", eps=1e-5, dim=8)
    a, b = g.linear("a", h, "a.w"), g.linear("b", h, "b.w")
    kv = g.op("kv_write", "write", a, b, g.state("kv.0"), "kv_slots.0")
    attrs = {"heads": 2, "kv_heads": 2, "head_dim": 4, "scale": 0.5, "window": None, "softcap": None}
    y = g.op("attention", "y", a, kv, "starts", "lens", "block_table.0", **attrs)
    return g.finish(g.op("add", "out", x, y))


def node(graph: Graph, name: str) -> Node:
    return next(n for n in graph.nodes if n.name == name)


def swap(graph: Graph, name: str, **changes: object) -> Graph:
    nodes = tuple(replace(n, **changes) if n.name == name else n for n in graph.nodes)  # type: ignore[arg-type]
    return replace(graph, nodes=nodes)


def region(graph: Graph) -> Graph:
    fused = fuse(graph, [node(graph, n) for n in ("h", "a", "b")], "kind", "fused")
    assert fused is not None
    return fused


def test_a_good_graph_passes():
    verify(small())
    verify(region(small()))


def move_first(graph: Graph, name: str) -> Graph:
    moved = node(graph, name)
    return replace(graph, nodes=(moved, *(n for n in graph.nodes if n is not moved)))


def second_writer(graph: Graph) -> Graph:
    extra = replace(node(graph, "write"), name="again", outputs=("kv.0@2",))
    return replace(graph, nodes=(*graph.nodes, extra)).with_values(replace(graph.values["kv.0@1"], name="kv.0@2"))


def stale_reader(graph: Graph) -> Graph:
    inputs = ("a", "kv.0@0", *node(graph, "y").inputs[2:])
    return swap(graph, "y", inputs=inputs)


def region_that_forgets_an_input(graph: Graph) -> Graph:
    return swap(region(graph), "fused", inputs=("x", "w", "a.w"))


def region_that_promises_an_input(graph: Graph) -> Graph:
    fused = region(graph)
    return swap(fused, "fused", outputs=("a", "b", "x2")).with_values(replace(graph.values["x"], name="x2"))


def region_with_a_bad_body(graph: Graph) -> Graph:
    fused = region(graph)
    body = tuple(replace(n, attrs={"eps": 1e-5, "dim": 3}) if n.name == "h" else n for n in node(fused, "fused").body)
    return swap(fused, "fused", body=body)


BROKEN = {
    "reads .'x'. before": lambda g: move_first(g, "h"),
    "writes .'a'. again": lambda g: swap(g, "b", outputs=("a",)),
    "a: .* should be": lambda g: g.with_values(Value(name="a", shape=(T, 9))),
    "b: .* should be": lambda g: g.with_values(Value(name="b", shape=(T, 8), dtype="i32")),
    "again reads .'kv.0@0'., which another node already overwrote": second_writer,
    "y reads .'kv.0@0'., which another node already overwrote": stale_reader,
    "nobody computes the results .'lost'.": lambda g: replace(g, outputs=("out", "lost")),
    "h is of the unknown operation shuffle": lambda g: swap(g, "h", op="shuffle"),
    "b names .'nowhere'.": lambda g: swap(g, "b", outputs=("nowhere",)),
    "b in fused reads .'b.w'., which the region does not take": region_that_forgets_an_input,
    "fused does not compute all of": region_that_promises_an_input,
    "in pieces of 3": region_with_a_bad_body,
    r"x: f32\[T, 8\] does not match": lambda g: swap(g, "out", inputs=("x", "table")),
}


@pytest.mark.parametrize("message", BROKEN)
def test_broken_graphs_are_refused_by_name(message):
    with pytest.raises(AssertionError, match=message):
        verify(BROKEN[message](small()))


def test_nodes_computed_once_may_not_read_the_step():
    graph = small()
    with pytest.raises(AssertionError, match=r"h reads .'x'. before"):
        verify(replace(graph, once=(node(graph, "h"),), nodes=tuple(n for n in graph.nodes if n.name != "h")))


def test_dump_is_a_readable_listing():
    lines = region(small()).dump().splitlines()
    assert lines[0] == "x: f32[T, 8] = embed(ids, table)"
    assert lines[1] == "a: f32[T, 8], b: f32[T, 8] = region(x, w, a.w, b.w, kind=kind)"
    assert lines[2] == "    h: f32[T, 8] = rms_norm(x, w, dim=8, eps=1e-05)"
    assert lines[3] == "    a: f32[T, 8] = linear(h, a.w, biases=(), count=1)"
    assert lines[5] == "kv.0@1: f32[] = kv_write(a, b, kv.0@0, kv_slots.0)"
    assert lines[-1] == "return out"


def test_builder_refuses_a_second_value_of_the_same_name():
    g = GraphBuilder()
    g.input("x", (T,))
    with pytest.raises(AssertionError, match="x is there twice"):
        g.weight("x", (3,))


def test_elements_follow_the_symbols():
    assert elements((Dim("T", 2), 3, Dim("R")), {"T": 5, "R": 7}) == 210
    assert elements((), {}) == 1
    assert str(Value(name="v", shape=(Dim("S", 4), T), dtype="i32")) == "v: i32[4S, T]"
