"""Whatever the passes do to a graph, the reference backend gives the same logits."""

from itertools import combinations

import numpy as np
import pytest
from planning import CAPS, GEMMA, LLAMA, QWEN3, SPECS, plan_of, spec_model, switch_name

from fuseboard.backends.reference.backend import ReferenceBackend
from fuseboard.core.batch import StepOutput
from fuseboard.core.errors import PlanError
from fuseboard.graph.verify import verify
from fuseboard.plan.context import count_inner
from fuseboard.plan.switches import BY_NAME
from steps import Stepper

IDS = {
    name: np.random.default_rng(i).integers(0, 211, n).astype(np.int32)
    for i, (name, n) in enumerate({"a": 41, "b": 30}.items())
}
STEPS = ([("a", 17), ("b", 3)], [("b", 1), ("a", 22)], [("a", 1), ("b", 25)], [("b", 1), ("a", 1)])

ALTERNATIVES = {
    "fuse_qkv": "on",
    "fuse_norm_qkv_rope": "on",
    "fuse_residual": "on",
    "fuse_swiglu": "on",
    "fuse_lm_head": "on",
    "fold_constants": "on",
    "memory_reuse": "on",
    "buckets": "list:1,4,16",
    "attention": "blockwise",
    "kv_layout": "paged",
    "kv_block_size": "64",
    "kv_pool": "on",
    "batching": "continuous",
    "prefill": "chunked:8",
    "prefix_cache": "on",
}
"""Every switch of the plan that does not round anything, with a value other than off."""


def outputs(plan, spec, *, full_logits: bool = True) -> list[StepOutput]:
    verify(plan.graph)
    executable = ReferenceBackend().compile(plan, spec_model(spec).weights)
    stepper = Stepper(plan, IDS)
    return [executable.run(stepper.batch(parts, full_logits=full_logits)) for parts in STEPS]


@pytest.fixture(scope="module")
def baselines():
    return {name: outputs(plan_of(spec), spec) for name, spec in SPECS.items()}


def check_same(got: list[StepOutput], expected: list[StepOutput], *, exact: bool) -> None:
    for ours, theirs in zip(got, expected, strict=True):
        logits_RV = theirs.logits_RV
        tolerance = 0 if exact else 1e-5 * np.abs(logits_RV).max()
        if ours.logits_RV is not None:
            np.testing.assert_allclose(ours.logits_RV, logits_RV, rtol=0, atol=tolerance)
        np.testing.assert_allclose(ours.logsumexp_R, theirs.logsumexp_R, rtol=0, atol=tolerance)
        best = -np.sort(-logits_RV, axis=1)
        clear = best[:, 0] - best[:, 1] > 2 * tolerance
        assert exact or clear.mean() > 0.9
        rows = np.arange(len(logits_RV)) if exact else np.flatnonzero(clear)
        np.testing.assert_array_equal(ours.top_ids_RK[rows, 0], logits_RV[rows].argmax(axis=1))


def settings(spec: str) -> list[str]:
    return [name for name in ALTERNATIVES if not (spec == "gemma3" and name == "fuse_residual")]


def is_exact(*names: str) -> bool:
    return all(BY_NAME[switch_name(name)].kind == "exact" for name in names)


@pytest.mark.parametrize("spec", SPECS)
def test_each_switch_alone_keeps_the_result(baselines, spec):
    for name in settings(spec):
        plan = plan_of(SPECS[spec], **{name: ALTERNATIVES[name]})
        check_same(outputs(plan, SPECS[spec]), baselines[spec], exact=is_exact(name))


@pytest.mark.parametrize("spec", SPECS)
def test_each_pair_of_rewrites_keeps_the_result(baselines, spec):
    rewrites = [name for name in settings(spec) if name.startswith(("fuse", "fold", "memory"))]
    for names in combinations(rewrites, 2):
        plan = plan_of(SPECS[spec], **{name: ALTERNATIVES[name] for name in names})
        check_same(outputs(plan, SPECS[spec]), baselines[spec], exact=is_exact(*names))


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("full_logits", [True, False])
def test_all_together_keep_the_result(baselines, spec, full_logits):
    plan = plan_of(SPECS[spec], **{name: ALTERNATIVES[name] for name in settings(spec)})
    got = outputs(plan, SPECS[spec], full_logits=full_logits)
    assert all((out.logits_RV is not None) == full_logits for out in got)
    check_same(got, baselines[spec], exact=False)


@pytest.mark.parametrize("weights", ["w4a8", "w8a16", "w4a16:g128a", "bf16", "w8a8;*.down.weight=f32"])
@pytest.mark.parametrize("spec", SPECS)
def test_fusing_keeps_the_result_of_rounded_weights(spec, weights):
    plain = outputs(plan_of(SPECS[spec], weights=weights), SPECS[spec])
    rewrites = [name for name in settings(spec) if name.startswith(("fuse", "fold"))]
    fused = plan_of(SPECS[spec], weights=weights, **{name: ALTERNATIVES[name] for name in rewrites})
    check_same(outputs(fused, SPECS[spec]), plain, exact=False)


def regions(plan) -> dict[str, int]:
    kinds = [node.region for node in plan.graph.nodes if node.region]
    return {kind: kinds.count(kind) for kind in kinds}


def all_fused(spec, **more):
    names = ("fuse_qkv", "fuse_norm_qkv_rope", "fuse_swiglu", "fuse_residual", "fuse_lm_head", "fold_constants")
    return plan_of(spec, preset={switch_name(n): "on" for n in names}, **more)


@pytest.mark.parametrize("weights", ["f32", "w4a8", "w8a16"])
@pytest.mark.parametrize("spec", [LLAMA, QWEN3], ids=["llama", "qwen3"])
def test_a_fused_layer_is_five_nodes(spec, weights):
    """norm to cache write, attention, output projection, feed-forward, down projection; then embedding and head."""
    plan = all_fused(spec, weights=weights)
    assert regions(plan) == {"norm_qkv_rope": 2, "residual": 4, "swiglu": 2, "lm_head": 1}
    assert len(plan.graph.nodes) == 5 * spec.num_layers + 2
    assert count_inner(plan.graph) == sum(1 for _ in plan.graph.flat_nodes())


def test_gemma_norms_after_the_projections_keep_the_residuals_apart():
    plan = all_fused(GEMMA)
    assert regions(plan) == {"norm_qkv_rope": 3, "swiglu": 3, "lm_head": 1}
    reasons = {d.subject: d for d in plan.decisions}
    assert reasons["fuse.residual"].choice == "no effect"
    assert "no such sequence" in reasons["fuse.residual"].reason


def test_rounding_of_the_input_belongs_to_the_region():
    """w4a8: every rounding is inside a region, and the feed-forward rounds for the down projection."""
    plan = all_fused(LLAMA, weights="w4a8")
    assert not [node.name for node in plan.graph.nodes if node.op == "quantise"]
    by_region = {node.region: [inner.op for inner in node.body] for node in plan.graph.nodes if node.region}
    assert by_region["norm_qkv_rope"] == ["rms_norm", "quantise", "linear", "rope", "rope", "kv_write"]
    assert by_region["swiglu"] == ["rms_norm", "quantise", "linear", "silu", "linear", "mul", "quantise"]
    assert by_region["lm_head"] == ["gather_rows", "rms_norm", "quantise", "linear", "top_k"]


def test_heads_with_norms_are_inside_too():
    body = next(n for n in all_fused(QWEN3).graph.nodes if n.region == "norm_qkv_rope").body
    assert [n.op for n in body] == ["rms_norm", "linear", "rms_norm", "rms_norm", "rope", "rope", "kv_write"]


def test_projections_that_round_their_input_differently_stay_apart():
    """k in f32 reads the norm itself: no shared projection, and the norm, which others read too, is in no region."""
    plan = all_fused(LLAMA, weights="w4a8;*.k.weight=f32;*.up.weight=f32")
    assert "norm_qkv_rope" not in regions(plan)
    assert "swiglu" not in regions(plan)
    assert regions(plan)["residual"] == 4
    verify(plan.graph)


def test_shared_projection_carries_its_biases():
    linear = next(n for n in plan_of(LLAMA, fuse_qkv="on").graph.nodes if n.op == "linear" and n.attrs["count"] == 3)
    assert linear.attrs["biases"] == (0, 1, 2)
    assert linear.inputs[1:] == tuple(f"layers.0.{p}.{kind}" for kind in ("weight", "bias") for p in "qkv")


def test_folding_moves_tables_and_shifted_norms_out_of_the_step():
    plan = plan_of(GEMMA, fold_constants="on")
    assert {node.op for node in plan.graph.once} == {"rope_angles", "affine"}
    assert [node.name for node in plan.graph.nodes if node.op in ("rope_angles", "affine")] == ["embedding_scaled"]
    assert plan.graph.values["angles"].shape == (64, 12)
    turned = [node for node in plan.graph.nodes if node.op == "rope"]
    assert all(node.inputs[2] == "positions" for node in turned)


def test_a_fused_head_is_opened_for_full_logits():
    plan = all_fused(LLAMA)
    shapes = [plan.shape_for(4, 2, 2, full_logits=full) for full in (False, True)]
    assert [plan.logits in plan.graph_for(shape).outputs for shape in shapes] == [False, True]
    assert plan.graph_for(shapes[1]).outputs == ("top.0", "top.1", "top.2", plan.logits)
    verify(plan.graph_for(shapes[1]))


def test_rewrites_and_decisions_are_recorded():
    plan = all_fused(LLAMA)
    log = {r.name: (r.before, r.after) for r in plan.rewrites}
    assert log["fuse.swiglu"][0] - log["fuse.swiglu"][1] == 4 * LLAMA.num_layers
    assert all(before >= after for before, after in log.values())
    assert all(decision.reason for decision in plan.decisions)
    assert plan.nodes_built == 2 + 17 * LLAMA.num_layers + 4


def test_the_reference_takes_all_switch_values_of_its_own():
    assert set(CAPS.regions) == {"norm_qkv_rope", "swiglu", "residual", "lm_head"}
    with pytest.raises(PlanError, match="has no options"):
        ReferenceBackend().capabilities(options={"isa": "scalar"})
