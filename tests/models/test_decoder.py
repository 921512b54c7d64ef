"""The generic decoder: every node it builds matters, and a specification decides what is built."""

from dataclasses import replace

import numpy as np
import pytest

from fuseboard.backends.reference.backend import ReferenceBackend
from fuseboard.graph.ir import Graph, Node
from fuseboard.graph.verify import verify
from fuseboard.models.decoder import build_decoder, cache_groups
from fuseboard.models.spec import tensor_shapes
from fuseboard.plan.build import Limits, build_plan
from steps import Stepper
from tiny import FAMILY_CASES, random_ids


def plan_of(model):
    backend = ReferenceBackend()
    return build_plan(
        model.loaded,
        backend.capabilities(),
        backend.workspace,
        preset={},
        chosen={},
        limits=Limits(max_model_len=32, max_num_seqs=2),
    )


def logits_of(executable, tokens: np.ndarray) -> np.ndarray:
    """Logits of the last token after a prefill and one decode step."""
    stepper = Stepper(executable.plan, {"a": tokens})
    executable.run(stepper.batch([("a", len(tokens) - 1)]))
    out = executable.run(stepper.batch([("a", 1)]))
    return out.logits_RV.copy()


def without(graph: Graph, gone: Node) -> Graph:
    """The graph without a node: its readers get what it read first, or nothing if the shapes differ."""
    (output, *_), source = gone.outputs, gone.inputs[0]
    nodes = [n for n in graph.nodes if n is not gone]
    if graph.values[source].shape == graph.values[output].shape and gone.op != "kv_write":
        nodes = [replace(n, inputs=tuple(source if i == output else i for i in n.inputs)) for n in nodes]
    elif gone.op == "kv_write":
        nodes = [replace(n, inputs=tuple(gone.inputs[2] if i == output else i for i in n.inputs)) for n in nodes]
    outputs = tuple(source if name == output else name for name in graph.outputs)
    return replace(graph, nodes=tuple(nodes), outputs=outputs)


@pytest.mark.parametrize("case", FAMILY_CASES)
def test_leaving_any_node_out_changes_or_breaks_the_step(tiny, case):
    model = tiny(case)
    plan = plan_of(model)
    backend = ReferenceBackend()
    tokens = random_ids(17, model.loaded.spec.vocab_size)
    baseline = logits_of(backend.compile(plan, model.loaded.weights), tokens)
    silent = []
    for node in plan.graph.nodes:
        if node.op == "top_k":
            continue
        graph = without(plan.graph, node)
        try:
            verify(graph)
        except (AssertionError, KeyError):
            continue
        cut = replace(plan, graph=graph, logits=node.inputs[0] if plan.logits in node.outputs else plan.logits)
        got = logits_of(backend.compile(cut, model.loaded.weights), tokens)
        if got.shape == baseline.shape and np.allclose(got, baseline, rtol=0, atol=1e-3):
            silent.append(node.name)
    assert not silent


@pytest.mark.parametrize("case", FAMILY_CASES)
def test_every_weight_is_read(tiny, case):
    spec = tiny(case).loaded.spec
    graph = build_decoder(spec, 32)
    read = {name for node in graph.nodes for name in node.inputs}
    assert set(tensor_shapes(spec)) <= read
    assert {name for name, value in graph.values.items() if value.kind == "input"} <= read
    verify(graph)


def test_layers_with_the_same_window_share_a_cache_group(tiny):
    spec = tiny("gemma3").loaded.spec
    assert cache_groups(spec) == ((None, (1,)), (5, (0, 2, 3)))
    graph = build_decoder(spec, 32)
    tables = {n.name: n.inputs[-1] for n in graph.nodes if n.op == "attention"}
    assert tables["layers.1.attention"] == "block_table.0"
    assert tables["layers.3.attention"] == "block_table.1"


def test_sliding_layers_of_gemma_turn_by_their_own_rope(tiny):
    graph = build_decoder(tiny("gemma3").loaded.spec, 32)
    angles = {n.name: n.inputs[1] for n in graph.nodes if n.op == "rope"}
    assert {name.split(".")[1] for name, source in angles.items() if source == "angles"} == {"1"}
