"""Limits, cache sizes, buckets, precision, requests that cannot be met, and the plan's identity."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planning import CAPS, FULL_CAPS, GEMMA, LLAMA, QWEN3, plan_of, switch_name

from fuseboard.core.errors import DoesNotFitError, PlanError
from fuseboard.formats.kv import block_bytes, kv_format
from fuseboard.formats.panels import packed_bytes
from fuseboard.plan.build import Limits
from fuseboard.plan.cost import decode_sizes, node_cost, step_cost
from fuseboard.plan.precision import Precision, parse_policy, precision
from fuseboard.plan.switches import CATALOGUE

LONG = replace(LLAMA, max_position=8192)


# ---- limits ----


@pytest.mark.parametrize(("limits", "message"), [
    (Limits(max_model_len=0), "--max-model-len 0 must be from 1 to the model's 256"),
    (Limits(max_model_len=257), "--max-model-len 257"),
    (Limits(max_model_len=-3), "--max-model-len -3"),
    (Limits(max_num_seqs=0), "--max-num-seqs 0 must be from 1"),
    (Limits(max_num_seqs=5000), "--max-num-seqs 5000"),
    (Limits(kv_memory=0), "A KV cache of 0 bytes cannot hold one sequence of 256 tokens"),
    (Limits(kv_memory=-1), "A KV cache of -1 bytes"),
])  # fmt: skip
def test_bad_limits_are_refused(limits, message):
    with pytest.raises(PlanError, match=message):
        plan_of(LLAMA, limits=limits)


def test_default_limits():
    plan = plan_of(LONG, limits=Limits())
    assert (plan.schedule.max_model_len, plan.schedule.max_num_seqs) == (4096, 16)
    assert plan_of(LLAMA, limits=Limits()).schedule.max_model_len == 256


def test_step_budget_follows_prefill():
    limits = Limits(max_model_len=2000, max_num_seqs=8)
    assert plan_of(LONG, limits=limits).schedule.max_step_tokens == 2008
    assert plan_of(LONG, limits=limits, prefill="chunked").schedule.max_step_tokens == 512
    assert plan_of(LONG, limits=limits, prefill="chunked:100").schedule.max_step_tokens == 100
    assert plan_of(LONG, limits=limits, prefill="chunked:3").schedule.max_step_tokens == 8
    assert plan_of(LONG, limits=limits, prefill="chunked:9000").schedule.max_step_tokens == 2000
    with pytest.raises(PlanError, match="prefill takes positive whole numbers, not '0'"):
        plan_of(LONG, prefill="chunked:0")
    with pytest.raises(PlanError, match="prefill takes positive whole numbers, not 'many'"):
        plan_of(LONG, prefill="chunked:many")


# ---- KV cache ----


def request_bytes(plan, tokens: int) -> int:
    """Bytes of one sequence in all full-attention layers."""
    blocks = -(-tokens // plan.kv.block_size)
    return sum(len(g.layers) * blocks * g.block_bytes for g in plan.kv.groups)


def null_bytes(plan) -> int:
    """Bytes of the null blocks."""
    return sum(len(g.layers) * g.block_bytes for g in plan.kv.groups)


def test_cache_holds_what_the_limits_need():
    plan = plan_of(LLAMA, limits=Limits(max_model_len=100, max_num_seqs=3), kv_block_size="32", kv_dtype="f16")
    (group,) = plan.kv.groups
    assert group.num_blocks == 1 + 3 * 4
    assert group.block_bytes == block_bytes(kv_format("f16"), 32, 2, 12)
    assert plan.kv.bytes == 2 * 13 * group.block_bytes == plan.memory["kv"]


@settings(max_examples=100, deadline=None)
@given(seqs=st.integers(1, 200), requests=st.integers(1, 50), extra=st.integers(0, 999))
def test_a_budget_of_whole_sequences_holds_them_all(seqs, requests, extra):
    """Block counts are whole-number arithmetic: a share of 1/49 of 49 sequences must not lose a block."""
    limits = Limits(max_model_len=100, max_num_seqs=seqs)
    one, null = request_bytes(plan_of(LLAMA, limits=limits), 100), null_bytes(plan_of(LLAMA, limits=limits))
    plan = plan_of(LLAMA, limits=replace(limits, kv_memory=null + requests * one + extra))
    (group,) = plan.kv.groups
    assert group.num_blocks >= 1 + requests * 7
    assert plan.memory["kv"] <= null + requests * one + extra


@settings(max_examples=50, deadline=None)
@given(
    spec=st.sampled_from((LLAMA, GEMMA)),
    block_size=st.sampled_from(("16", "64", "256")),
    layout=st.sampled_from(("contiguous", "paged")),
    budget=st.integers(150_000, 2_000_000),
)
def test_the_planned_cache_stays_within_the_budget(spec, block_size, layout, budget):
    chosen = {"kv_block_size": block_size, "kv_layout": layout}
    try:
        plan = plan_of(spec, limits=Limits(max_model_len=64, kv_memory=budget), **chosen)
    except DoesNotFitError:
        least = plan_of(spec, limits=Limits(max_model_len=64, max_num_seqs=1), **chosen)
        assert least.memory["kv"] > budget
        return
    assert plan.kv.bytes == plan.memory["kv"] <= budget
    again = plan_of(spec, limits=Limits(max_model_len=64, kv_memory=plan.kv.bytes), **chosen)
    assert again.kv.bytes <= plan.kv.bytes


def test_a_budget_below_one_sequence_names_the_bytes():
    one = request_bytes(plan_of(LLAMA), 64) + null_bytes(plan_of(LLAMA))
    with pytest.raises(DoesNotFitError, match=f"{one - 1} bytes cannot hold one sequence of 64 tokens.*{one} bytes"):
        plan_of(LLAMA, limits=Limits(max_model_len=64, kv_memory=one - 1))


def test_cache_takes_at_most_half_of_the_free_memory():
    one, null = request_bytes(plan_of(LLAMA), 64), null_bytes(plan_of(LLAMA))
    small = replace(CAPS, memory_bytes=2 * (null + 5 * one))
    plan = plan_of(LLAMA, small, limits=Limits(max_model_len=64, max_num_seqs=100))
    assert plan.kv.groups[0].num_blocks == 1 + 5 * 4


def test_window_groups_keep_only_the_window_when_paged():
    spec = replace(GEMMA, max_position=4096)
    limits = Limits(max_model_len=2048, max_num_seqs=4)
    paged = plan_of(spec, limits=limits, kv_layout="paged", prefill="chunked:64")
    full, local = paged.kv.groups
    assert (full.window, full.layers, local.window, local.layers) == (None, (1,), 20, (0, 2))
    assert full.num_blocks == 1 + 4 * 128
    assert local.num_blocks == 1 + 4 * (-(-(20 + 64) // 16) + 1)
    contiguous = plan_of(spec, limits=limits, prefill="chunked:64")
    assert [g.num_blocks for g in contiguous.kv.groups] == [1 + 4 * 128] * 2


# ---- buckets ----


def test_default_buckets_are_powers_of_two_then_steps_of_512():
    limits = Limits(max_model_len=1500, max_num_seqs=4)
    plan = plan_of(LONG, limits=limits, buckets="list")
    assert plan.buckets == (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 1504)
    assert plan_of(LONG, limits=limits).buckets == ()


def test_listed_buckets_end_with_the_largest_step():
    plan = plan_of(LONG, limits=Limits(max_model_len=90, max_num_seqs=4), buckets="list:16,4,1000,4")
    assert plan.buckets == (4, 16, 94)
    for bad in ("list:4,x", "list:0", "list:4,,8", "list:-1"):
        with pytest.raises(PlanError, match="Switch buckets takes positive whole numbers"):
            plan_of(LONG, buckets=bad)


@settings(max_examples=100, deadline=None)
@given(tokens=st.integers(1, 94), seqs=st.integers(1, 4), full=st.booleans())
def test_a_step_takes_the_smallest_bucket_that_holds_it(tokens, seqs, full):
    plan = PLAN_94
    seqs = min(seqs, tokens)
    shape = plan.shape_for(tokens, seqs, seqs, full_logits=full)
    assert shape.tokens == min(b for b in plan.buckets if b >= tokens)
    assert shape.seqs >= seqs
    assert shape.rows >= seqs
    assert shape.full_logits == full


PLAN_94 = plan_of(LONG, limits=Limits(max_model_len=90, max_num_seqs=4), buckets="list:1,2,8,30")


def test_a_step_of_dynamic_shape_is_taken_as_it_is():
    shape = plan_of(LLAMA).shape_for(7, 3, 2, full_logits=False)
    assert (shape.tokens, shape.seqs, shape.rows) == (7, 3, 2)


# ---- precision ----


def test_policy_takes_the_last_pattern_that_matches():
    policy = parse_policy("w4a8:g32;*.down.weight=w8a16;layers.0.*=bf16")
    assert policy.of("layers.1.q.weight", "f32") == Precision(weight="w4g32", act="a8g32")
    assert policy.of("layers.1.down.weight", "f32") == Precision(weight="w8", act="a16g64")
    assert policy.of("layers.0.down.weight", "f32") == Precision(weight="bf16", act="f32")


@pytest.mark.parametrize(("scheme", "storage", "weight", "act"), [
    ("f32", "q4_0", "f32", "f32"), ("bf16", "f32", "bf16", "f32"), ("f16", "f32", "f16", "f32"),
    ("w8a16", "f32", "w8", "a16g64"), ("w8a8", "f32", "w8", "a8g64"), ("w8a8:g32", "f32", "w8g32", "a8g32"),
    ("w4a8", "f32", "w4g64", "a8g64"), ("w4a16:g128", "f32", "w4g128", "a16g64"),
    ("w4a8:g32a", "f32", "w4g32a", "a8g32"), ("native", "q4_0", "w4g32", "a8g32"),
    ("w5a8", "f32", "w5g32", "a8g32"), ("native", "q5_0", "w5g32", "a16g32"),
    ("native", "q4_1", "w4g32a", "a8g32"), ("native", "q6_k", "w8g32", "a16g32"), ("native", "bf16", "bf16", "f32"),
])  # fmt: skip
def test_schemes(scheme, storage, weight, act):
    assert precision(scheme, storage) == Precision(weight=weight, act=act)


@pytest.mark.parametrize("text", [
    "w6a8", "w5a8:g64", "w4a4", "f32:g32", "native:g32", "w4a8:g48", "w8a16:g64", "w8a8:g32a", "w4a8;down",
    "w4a8;=w8a8", "w4a8;*.down.weight=w9", "w4a8;", "",
])  # fmt: skip
def test_bad_policies_are_refused(text):
    with pytest.raises(PlanError):
        parse_policy(text)


def test_native_follows_each_matrix_of_the_file():
    plan = plan_of(LLAMA, weights="native;lm_head.weight=w8a16", stored="q4_1")
    formats = {name: value.dtype for name, value in plan.graph.values.items() if value.kind == "weight"}
    assert formats["layers.0.q.weight"] == "w4g32a"
    assert formats["lm_head.weight"] == "w8"
    assert formats["layers.0.q.bias"] == formats["final_norm.weight"] == "f32"


def test_readers_of_a_rounded_value_share_the_rounding():
    plan = plan_of(LLAMA, weights="w4a8;*.v.weight=w8a16")
    rounded = [node for node in plan.graph.nodes if node.op == "quantise" and node.inputs[0] == "layers.0.attn_norm"]
    assert [node.outputs[0] for node in rounded] == ["layers.0.attn_norm.a8g64", "layers.0.attn_norm.a16g64"]
    linears = {node.name: node.inputs[0] for node in plan.graph.nodes if node.op == "linear"}
    assert linears["layers.0.q"] == linears["layers.0.k"] == "layers.0.attn_norm.a8g64"
    assert linears["layers.0.v"] == "layers.0.attn_norm.a16g64"


# ---- what cannot be ----

NO_REGIONS = replace(FULL_CAPS, regions=())
WIDE_HEADS = replace(FULL_CAPS, head_dim_multiple=16)
IMPOSSIBLE = [
    (GEMMA, FULL_CAPS, {"fuse_residual": "on"}, "no such sequence of nodes"),
    (LLAMA, NO_REGIONS, {"fuse_swiglu": "on"}, "has no kernel for the fused node"),
    (LLAMA, NO_REGIONS, {"fuse_lm_head": "on"}, "has no kernel for the fused node"),
    (LLAMA, WIDE_HEADS, {"fuse_norm_qkv_rope": "on"}, "a head size that 16 divides, this model has 12"),
    (LLAMA, FULL_CAPS, {"fuse_norm_qkv_rope": "on", "kv_dtype": "int8_token"}, "int8_token needs all heads of a token"),
    (LLAMA, CAPS, {"graph": "captured"}, "runs a step only as eager"),
]


@pytest.mark.parametrize(("spec", "caps", "wanted", "reason"), IMPOSSIBLE)
def test_a_switch_asked_for_by_name_must_take_effect(spec, caps, wanted, reason):
    name = switch_name(next(iter(wanted)))
    with pytest.raises(PlanError, match=f"{name}=.* cannot take effect: .*{reason}"):
        plan_of(spec, caps, **wanted)


@pytest.mark.parametrize(("spec", "caps", "wanted", "reason"), IMPOSSIBLE)
def test_asking_by_name_for_what_the_preset_has_is_still_asking(spec, caps, wanted, reason):
    preset = {switch_name(name): value for name, value in wanted.items()}
    with pytest.raises(PlanError, match=reason):
        plan_of(spec, caps, preset=preset, **wanted)


@pytest.mark.parametrize(("spec", "caps", "wanted", "reason"), IMPOSSIBLE)
def test_a_preset_that_cannot_take_effect_is_a_recorded_decision(spec, caps, wanted, reason):
    preset = {"fuse.qkv": "on"} | {switch_name(name): value for name, value in wanted.items()}
    plan = plan_of(spec, caps, preset=preset)
    (found,) = [d for d in plan.decisions if d.choice == "no effect"]
    assert found.subject == switch_name(next(iter(wanted)))
    assert reason in found.reason
    assert not plan.captured


def test_projections_that_cannot_be_shared_are_an_error_too():
    with pytest.raises(PlanError, match=r"fuse\.qkv=on cannot take effect: no layer has q, k and v"):
        plan_of(LLAMA, fuse_qkv="on", weights="w4a8;*.k.weight=f32")


def test_formats_the_device_lacks():
    poor = replace(FULL_CAPS, weight_formats=("f32", "bf16"), kv_formats=("f32",), attention=("naive",))
    with pytest.raises(PlanError, match="weights=w4a8 cannot take effect: reference has no kernel for w4g64"):
        plan_of(LLAMA, poor, weights="w4a8")
    with pytest.raises(PlanError, match="has no f16 cache; choose one of f32"):
        plan_of(LLAMA, poor, kv_dtype="f16")
    with pytest.raises(PlanError, match="has no blockwise attention; choose one of naive"):
        plan_of(LLAMA, poor, attention="blockwise")
    plan = plan_of(LLAMA, poor, preset={"weights": "native"}, stored="q4_0")
    assert {v.dtype for v in plan.graph.values.values() if v.kind == "weight"} == {"f32"}
    assert not [node for node in plan.graph.nodes if node.op == "quantise"]


def test_an_override_must_hit_a_matrix():
    with pytest.raises(PlanError, match=r"no matrix of this model is called lm_head\.weight"):
        plan_of(QWEN3, weights="w4a8;lm_head.weight=w8a16")


# ---- identity ----

DIGEST = """
import sys; sys.path[:0] = {paths!r}
from planning import GEMMA, plan_of
print(plan_of(GEMMA, fuse_swiglu="on", weights="w4a8;*.down.weight=w8a16", buckets="list").digest)
"""


def test_digest_is_the_same_in_every_process():
    here = Path(__file__).parent
    paths = [str(here), str(here.parents[1] / "src")]
    run = [sys.executable, "-c", DIGEST.format(paths=paths)]
    seeds = [os.environ | {"PYTHONHASHSEED": seed} for seed in ("1", "2")]
    digests = {subprocess.run(run, capture_output=True, text=True, check=True, env=env).stdout for env in seeds}
    own = plan_of(GEMMA, fuse_swiglu="on", weights="w4a8;*.down.weight=w8a16", buckets="list").digest
    assert digests == {f"{own}\n"}


def test_digest_tells_every_switch_value_apart():
    chosen = [{}] + [{row.name.replace(".", "_"): value} for row in CATALOGUE for value in row.values[1:]]
    digests = [plan_of(LLAMA, FULL_CAPS, **values).digest for values in chosen]
    assert len(set(digests)) == len(digests)


def test_digest_tells_models_machines_and_limits_apart():
    plans = [
        plan_of(LLAMA),
        plan_of(QWEN3),
        plan_of(LLAMA, replace(CAPS, threads=7)),
        plan_of(LLAMA, replace(CAPS, isa="x")),
        plan_of(LLAMA, limits=Limits(max_model_len=65, max_num_seqs=4)),
        plan_of(LLAMA, limits=Limits(max_model_len=64, max_num_seqs=5)),
        replace(plan_of(LLAMA), model_digest="1" * 64),
    ]  # fmt: skip
    assert len({plan.digest for plan in plans}) == len(plans)
    plan = plan_of(LLAMA)
    assert replace(plan, decisions=(), rewrites=(), model="another name").digest == plan.digest


def test_plan_is_json():
    text = json.dumps(plan_of(GEMMA, weights="w4a8", buckets="list").as_dict())
    assert json.loads(text)["switches"]["weights"] == "w4a8"


# ---- cost ----


def test_decode_reads_every_matrix_once_and_one_row_of_the_embedding():
    plan = plan_of(LLAMA)
    cost = step_cost(plan.graph, plan.kv, decode_sizes(1, 50))
    table = packed_bytes("f32", 211, 42)
    assert cost.weight_bytes == plan.memory["weights"] - table + table // 211
    matrices = sum(
        r * c
        for r, c in (
            v.shape
            for v in plan.graph.values.values()
            if len(v.shape) == 2 and v.kind == "weight" and v.name != "embed.weight"
        )
    )
    attention = 2 * 4 * 50 * 6 * 12
    assert cost.operations == pytest.approx(2 * matrices + attention, rel=0.1)
    token = 2 * block_bytes(kv_format("f32"), 16, 2, 12) / 16
    assert cost.kv_bytes == pytest.approx(51 * token, rel=0.01)


def test_fusing_moves_fewer_bytes_for_the_same_operations():
    plain, fused = plan_of(LLAMA), plan_of(LLAMA, fuse_swiglu="on", fuse_residual="on", fuse_lm_head="on")
    before, after = (step_cost(p.graph, p.kv, decode_sizes(8, 50)) for p in (plain, fused))
    assert after.operations == before.operations
    assert after.weight_bytes == before.weight_bytes
    assert after.activation_bytes < before.activation_bytes


def test_windows_bound_what_attention_reads():
    plan = plan_of(GEMMA, limits=Limits(max_model_len=256, max_num_seqs=2))
    cost = {
        node.name: node_cost(plan.graph, node, plan.kv, decode_sizes(1, 200)).kv_bytes
        for node in plan.graph.nodes if node.op == "attention"
    }  # fmt: skip
    assert cost["layers.0.attention"] * 10 == cost["layers.1.attention"]


def test_rates_give_the_roofline():
    cost = step_cost(plan_of(LLAMA).graph, plan_of(LLAMA).kv, decode_sizes(1, 10))
    assert cost.seconds(CAPS) is None
    assert cost.seconds(replace(CAPS, read_bytes_per_s=1e3, flops_per_s=1e15)) == cost.bytes / 1e3
    assert cost.seconds(replace(CAPS, read_bytes_per_s=1e15, flops_per_s=1e3)) == cost.operations / 1e3


def test_a_prefill_reads_the_cache_once_a_sequence():
    plan = plan_of(LLAMA)
    token = 2 * block_bytes(kv_format("f32"), 16, 2, 12) / 16
    sizes = {"T": 30, "S": 2, "R": 2, "context_tokens": 2 * 15 * 16 // 2, "cached_tokens": 30}
    assert step_cost(plan.graph, plan.kv, sizes).kv_bytes == pytest.approx((30 + 30) * token, rel=0.01)


def test_windows_bound_what_attention_computes():
    plan = plan_of(GEMMA, limits=Limits(max_model_len=256, max_num_seqs=2))
    work = {n.name: node_cost(plan.graph, n, plan.kv, decode_sizes(1, 200)).operations for n in plan.graph.nodes}
    assert work["layers.0.attention"] * 10 == work["layers.1.attention"]


def test_products_of_rounded_activations_count_as_integer_operations():
    plain, rounded = plan_of(LLAMA), plan_of(LLAMA, weights="w8a8")
    before, after = (step_cost(p.graph, p.kv, decode_sizes(1, 10)) for p in (plain, rounded))
    assert before.integer_operations == 0
    assert 0.8 * after.operations < after.integer_operations < after.operations
    caps = replace(CAPS, read_bytes_per_s=1e15, flops_per_s=1e3, integer_ops_per_s=1e15)
    assert after.seconds(caps) == pytest.approx((after.operations - after.integer_operations) / 1e3, rel=1e-6)
