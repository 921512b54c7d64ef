"""The arena: a value keeps its memory until its last reader, and sharing never costs more than not sharing."""

from collections.abc import Sequence
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planning import GEMMA, LLAMA, SPECS, plan_of

from fuseboard.formats.panels import packed_bytes
from fuseboard.graph.builder import GraphBuilder
from fuseboard.graph.ir import Graph, Node, T, Value
from fuseboard.graph.ops import OPS
from fuseboard.graph.rewrite import fuse, prune
from fuseboard.plan.memory import ALIGN, Arena, act_buffer, plan_arena, value_bytes
from fuseboard.plan.plan import StepShape
from fuseboard.plan.streams import concurrent

SIZES = {"T": 7, "S": 3, "R": 2, "context_tokens": 0}


def inplace_operand(node: Node) -> str | None:
    """The input that a node may overwrite element by element while it reads it."""
    last = node.body[-1] if node.body else node
    index = OPS[last.op].inplace if node.region in (None, "residual") else None
    return None if index is None else last.inputs[index]


def check_arena(graph: Graph, nodes: Sequence[Node], sizes: dict[str, int], arena: Arena) -> None:
    """Plays the step on a map of the memory: every value that is read must still own all its bytes."""
    owner = np.full(arena.bytes // ALIGN, "", dtype=object)
    size = {name: value_bytes(graph.values[name], sizes) for name in arena.offsets}

    def span(name: str) -> slice:
        start = arena.offsets[name]
        assert start % ALIGN == 0
        assert start + size[name] <= arena.bytes
        return slice(start // ALIGN, (start + size[name]) // ALIGN)

    def overlap(a: str, b: str) -> bool:
        return span(a).start < span(b).stop and span(b).start < span(a).stop

    for node in nodes:
        read = [name for name in node.inputs if name in arena.offsets]
        for name in read:
            assert (owner[span(name)] == name).all(), f"{node.name} reads {name}, which was overwritten"
        for output in (name for name in node.outputs if name in arena.offsets):
            for name in read:
                same = span(name) == span(output) and inplace_operand(node) == name
                assert same or not overlap(name, output), f"{node.name} writes {output} over its input {name}"
            written = [other for other in node.outputs if other in arena.offsets and other != output]
            assert not any(overlap(output, other) for other in written)
            owner[span(output)] = output
        operand = inplace_operand(node) if node.body else None
        if operand in read and any(operand in inner.inputs for inner in node.body[:-1]):
            assert arena.offsets[operand] != arena.offsets[node.outputs[0]], f"{node.name} writes over what it reads"
    for name in graph.outputs:
        if name in arena.offsets:
            assert (owner[span(name)] == name).all(), f"the result {name} was overwritten"


def check_both(graph: Graph, nodes: Sequence[Node], sizes: dict[str, int]) -> tuple[Arena, Arena]:
    shared, own = (plan_arena(graph, nodes, sizes, reuse=reuse) for reuse in (True, False))
    for arena in (shared, own):
        check_arena(graph, nodes, sizes, arena)
    assert shared.bytes <= shared.unshared_bytes == own.bytes == own.unshared_bytes
    return shared, own


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Random steps over values of three widths, with in-place ops, roundings and several results."""
    g = GraphBuilder()
    g.input("ids", (T,))
    widths: dict[str, int] = {}
    for width in (3, 40, 130):
        g.weight(f"table{width}", (9, width))
        widths[g.op("embed", f"x{width}", "ids", f"table{width}")] = width
    for i in range(draw(st.integers(1, 14))):
        name, source = f"n{i}", draw(st.sampled_from(sorted(widths)))
        width = widths[source]
        kind = draw(st.sampled_from(["silu", "affine", "add", "mul", "rms_norm", "linear", "quantised"]))
        if kind in ("add", "mul"):
            g.op(kind, name, source, draw(st.sampled_from([n for n, w in sorted(widths.items()) if w == width])))
        elif kind == "rms_norm":
            g.weight(f"{name}.w", (width,))
            g.op(kind, name, source, f"{name}.w", eps=1e-5, dim=width)
        elif kind in ("linear", "quantised"):
            width_out = draw(st.sampled_from([3, 40, 130]))
            g.weight(f"{name}.w", (width_out, width))
            if kind == "quantised":
                source = g.op("quantise", f"{name}.q", source, format="a8g64", bits=8, group=64)
            g.linear(name, source, f"{name}.w")
            width = width_out
        else:
            g.op(kind, name, source, **({"scale": 2.0, "shift": 1.0} if kind == "affine" else {}))
        widths[name] = width
    return prune(g.finish(*draw(st.lists(st.sampled_from(sorted(widths)), min_size=1, max_size=3, unique=True))))


@settings(max_examples=150, deadline=None)
@given(graph=graphs(), tokens=st.integers(1, 40))
def test_no_value_loses_its_memory_in_random_graphs(graph, tokens):
    check_both(graph, graph.nodes, SIZES | {"T": tokens})


@settings(max_examples=100, deadline=None)
@given(graph=graphs(), tokens=st.integers(1, 40))
def test_no_value_loses_its_memory_with_fused_residuals(graph, tokens):
    """Every projection before an add becomes a residual region, even where the add's other input feeds it too."""
    for node in graph.nodes:
        made = graph.producers()
        maker = made.get(node.inputs[1]) if node.op == "add" else None
        if maker is not None and maker.op == "linear" and maker.outputs[0] not in graph.outputs:
            readers = graph.consumers()[maker.outputs[0]]
            if len(readers) == 1 and node.inputs[0] != node.inputs[1]:
                graph = fuse(graph, [maker, node], "residual", f"{node.name}:residual") or graph
    check_both(graph, graph.nodes, SIZES | {"T": tokens})


def check_concurrent(graph: Graph, streams: int) -> tuple[tuple[Node, ...], ...]:
    """Nodes of a group touch no byte that another of them writes, and every group read what it should."""
    arena = plan_arena(graph, graph.nodes, SIZES, reuse=True, streams=streams)
    check_arena(graph, graph.nodes, SIZES, arena)
    groups = concurrent(graph.nodes, streams)
    assert [node for group in groups for node in group] == list(graph.nodes)

    def spans(names: Sequence[str]) -> list[tuple[int, int]]:
        held = [name for name in names if name in arena.offsets]
        return [(arena.offsets[n], arena.offsets[n] + value_bytes(graph.values[n], SIZES)) for n in held]

    for group in groups:
        assert len(group) <= streams
        for a, b in ((a, b) for a in group for b in group if a is not b):
            touched = spans((*b.inputs, *b.outputs))
            assert not [1 for lo, hi in spans(a.outputs) for low, high in touched if lo < high and low < hi]
    return groups


@settings(max_examples=150, deadline=None)
@given(graph=graphs(), streams=st.integers(2, 5))
def test_concurrent_nodes_of_random_graphs_keep_apart(graph, streams):
    check_concurrent(graph, streams)


def test_concurrent_nodes_of_a_decoder():
    graph = plan_of(LLAMA, fold_constants="on").graph
    for streams, most in ((2, 2), (4, 3)):
        groups = check_concurrent(graph, streams)
        assert max(map(len, groups)) == most
    ops = [tuple(node.op for node in group) for group in groups]
    assert ("linear", "linear", "linear") in ops
    assert ("rope", "rope") in ops
    assert ("silu", "linear") in ops
    assert len(concurrent(graph.nodes, 1)) == len(graph.nodes)


def test_a_residual_that_feeds_its_own_projection_is_not_overwritten():
    """x + x w: the kernel still reads rows of x when it writes the first sums."""
    g = GraphBuilder()
    g.input("ids", (T,))
    g.weight("table", (9, 8))
    g.weight("w", (8, 8))
    x = g.op("embed", "x", "ids", "table")
    graph = g.finish(g.op("add", "y", x, g.linear("p", x, "w")))
    fused = fuse(graph, graph.nodes[1:], "residual", "r")
    assert fused is not None
    arena = plan_arena(fused, fused.nodes, SIZES, reuse=True)
    assert arena.offsets["x"] != arena.offsets["y"]


FUSIONS = ("fuse_qkv", "fuse_norm_qkv_rope", "fuse_swiglu", "fuse_residual", "fuse_lm_head", "fold_constants")
WEIGHTS = ("f32", "w4a8", "w8a16;*.down.weight=w4a8:g32a;*.k.weight=f32")


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("weights", WEIGHTS)
def test_no_value_loses_its_memory_in_decoders(spec, weights):
    possible = [s for s in FUSIONS if not (spec == "gemma3" and s == "fuse_residual")]
    sets = [(), *combinations(possible, 1), *combinations(possible, 2), tuple(possible)]
    for chosen in sets:
        preset = {name.replace("fuse_", "fuse."): "on" for name in chosen}
        plan = plan_of(SPECS[spec], preset=preset, weights=weights)
        for shape in (plan.largest_shape, StepShape(tokens=5, seqs=2, rows=3, full_logits=True)):
            graph = plan.graph_for(shape)
            shared, own = check_both(graph, graph.nodes, dict(shape.sizes))
            assert shared.bytes < own.bytes / 2


def test_elementwise_nodes_take_memory_over():
    plan = plan_of(LLAMA)
    arena = plan_arena(plan.graph, plan.graph.nodes, SIZES, reuse=True)
    at = arena.offsets
    assert at["layers.0.act"] == at["layers.0.gate"] == at["layers.0.glu"]
    assert at["layers.0.q_rope"] == at["layers.0.q"]
    assert at["layers.0.attn.residual"] == at["embedding"]
    assert at["layers.0.attn_norm"] != at["embedding"]


def test_results_are_kept_to_the_end_and_inner_values_have_no_memory():
    plan = plan_of(LLAMA, fuse_lm_head="on", fuse_swiglu="on")
    arena = plan_arena(plan.graph, plan.graph.nodes, SIZES, reuse=True)
    assert {"top.0", "top.1", "top.2"} <= set(arena.offsets)
    assert not {"lm_head", "layers.0.gate", "layers.0.up", "layers.0.act"} & set(arena.offsets)


def test_sizes_of_values():
    assert value_bytes(Value(name="v", shape=(T, 10)), SIZES) == 320
    assert value_bytes(Value(name="v", shape=(), kind="state"), SIZES) == 0
    assert value_bytes(Value(name="v", shape=(33, 70), kind="weight", dtype="w4g32"), SIZES) == packed_bytes(
        "w4g32", 33, 70
    )
    # 7 rows of 100 columns: codes of 128 columns, two scales and two sums a row, each part on a border of 64 bytes.
    buffer = act_buffer("a8g64", 7, 100)
    assert (buffer.ld, buffer.scales, buffer.sums, buffer.size) == (128, 896, 960, 1024)
    assert act_buffer("a16g64", 7, 100).scales == 2 * 896
    assert value_bytes(Value(name="v", shape=(T, 100), dtype="a8g64"), SIZES) == 1024


def test_planned_components():
    plan = plan_of(GEMMA, fold_constants="on", weights="w8a16")
    graph = plan.graph
    weights = [v for v in graph.values.values() if v.kind == "weight"]
    norms = [v for v in weights if len(v.shape) == 1]
    matrices = [v for v in weights if len(v.shape) == 2]
    assert {v.dtype for v in matrices} == {"w8"}
    assert plan.memory["weights"] == sum(packed_bytes("w8", *v.shape) for v in matrices) + sum(
        -(-4 * v.shape[0] // 64) * 64 for v in norms
    )
    tables = 2 * 64 * 12 * 4
    shifted = sum(-(-4 * v.shape[0] // 64) * 64 for v in norms)
    assert plan.memory["constants"] == tables + shifted
    assert plan.memory["kv"] == plan.kv.bytes
    assert plan.memory["workspace"] == 0
