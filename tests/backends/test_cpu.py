"""The CPU backend against the reference: every family, format, kernel set and kind of step, all off and all on."""

import numpy as np
import pytest
from test_reference import SCHEDULES, ragged, run_all, sequences, tolerance

from fuseboard import _native
from fuseboard.backends.calibrate import measure_head_scales
from fuseboard.backends.cpu.backend import ISAS, CpuBackend
from fuseboard.backends.reference.backend import ReferenceBackend
from fuseboard.core.errors import PlanError
from fuseboard.formats.calibration import record_head_scales
from fuseboard.plan.build import Limits, build_plan
from steps import Stepper
from tiny import CASES, TinyModel

LONGEST = 45
PLAIN = {"weights": "f32", "kv.dtype": "f32"}
WEIGHTS = {
    "bf16": 2e-5,
    "f16": 2e-5,
    # Rounded activations: two float orders round single values to neighbouring codes, which then differ everywhere.
    "w8a16": 1e-3,
    "w8a16:g32": 1e-3,
    "w4a16:g64": 1e-3,
    "w4a16:g32a": 1e-3,
    "w8a8": 0.06,
    "w5a16": 1e-3,
    "w5a8": 0.06,
    "w4a8:g32": 0.06,
    "w4a8:g64": 0.06,
    "w4a8:g128": 0.06,
    "w4a8:g32a": 0.06,
}
"""Weight scheme -> largest difference from the reference, as a share of the largest logit."""
KV = {"f16": 1e-3, "bf16": 8e-3, "int8_token": 2e-2, "int8_token_head": 2e-2, "int8_head": 2e-2}
"""KV format -> the same; a key or value at a rounding border may land on either side of it."""


def run(model: TinyModel, schedule, *, backend="cpu", preset="off", isa=None, threads=None, **switches):
    """Logits of every sequence under a schedule, and the counters."""
    chosen = CpuBackend() if backend == "cpu" else ReferenceBackend()
    caps = chosen.capabilities(threads=threads, options={"isa": isa} if isa else None)
    limits = Limits(max_model_len=LONGEST, max_num_seqs=4)
    base = caps.profile | PLAIN if preset == "on" else {}
    plan = build_plan(model.loaded, caps, chosen.workspace, preset=base, chosen=switches, limits=limits)
    executable = chosen.compile(plan, model.loaded.weights)
    ids = sequences(model)
    logits = run_all(executable, ids, schedule(ids), drop_dead=True)
    return logits, executable.counters()


def assert_close(got, expected, share):
    for name, logits in expected.items():
        np.testing.assert_allclose(got[name], logits, rtol=0, atol=share * np.abs(logits).max(), err_msg=name)


@pytest.mark.parametrize("preset", ["off", "on"])
@pytest.mark.parametrize("case", CASES)
def test_every_family_in_float32(tiny, case, preset):
    model = tiny(case)
    got, _ = run(model, ragged, preset=preset)
    for name, tokens in sequences(model).items():
        expected = model.logits_TV(tokens)
        np.testing.assert_allclose(got[name], expected, rtol=0, atol=2 * tolerance(expected), err_msg=name)


@pytest.mark.parametrize("isa", [name for name in ISAS if _native.isa(name) == name])
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("case", ["llama_panels", "qwen3_panels", "gemma3_panels"])
def test_fused_nodes_in_every_kernel_set_and_kind_of_step(tiny, case, schedule, isa):
    model = tiny(case)
    got, counters = run(model, SCHEDULES[schedule], preset="on", isa=isa)
    assert counters["fused_norm_qkv_rope"] > 0
    assert counters["fused_swiglu"] > 0
    for name, tokens in sequences(model).items():
        expected = model.logits_TV(tokens)
        np.testing.assert_allclose(got[name], expected, rtol=0, atol=2 * tolerance(expected), err_msg=name)


@pytest.mark.parametrize("preset", ["off", "on"])
@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("case", ["llama", "llama_panels", "qwen3_panels"])
def test_every_weight_format(tiny, case, weights, preset):
    model = tiny(case)
    expected, _ = run(model, ragged, backend="reference", weights=weights)
    got, counters = run(model, ragged, preset=preset, weights=weights)
    assert_close(got, expected, WEIGHTS[weights])
    moved = {"b": "half_bytes", "f": "half_bytes", "w4": "w4_bytes", "w5": "w5_bytes", "w8": "w8_bytes"}
    assert counters[moved[weights[:2] if weights[0] == "w" else weights[0]]] > 0


@pytest.mark.parametrize("preset", ["off", "on"])
@pytest.mark.parametrize("dtype", KV)
@pytest.mark.parametrize("case", ["llama", "llama_panels", "gemma3_panels"])
def test_every_kv_format(tiny, case, dtype, preset):
    model = tiny(case)
    if dtype == "int8_head":
        tokens = next(iter(sequences(model).values()))
        record_head_scales(model.loaded.digest, measure_head_scales(model.loaded, tokens.tolist()))
    switches = {"kv.dtype": dtype}
    expected, _ = run(model, ragged, backend="reference", **switches)
    got, counters = run(model, ragged, preset=preset, **switches)
    assert_close(got, expected, KV[dtype])
    assert counters["kv_int8_bytes" if dtype.startswith("int8") else "kv_half_bytes"] > 0


@pytest.mark.parametrize("weights", ["f32", "bf16", "w8a16", "w4a8:g32a"])
def test_rows_do_not_depend_on_threads_blocks_or_graph(tiny, weights):
    """Bit for bit: the sums run in a fixed order."""
    model = tiny("llama_panels")
    expected, _ = run(model, ragged, preset="on", weights=weights, threads=1)
    variants = (
        {"kv.block_size": "16"},
        {"kv.block_size": "256"},
        {"kv.layout": "contiguous"},
        {"graph": "eager"},
        {"buckets": "dynamic"},
        {"memory_reuse": "off"},
        {"fold_constants": "off"},
        {"affinity": "pinned"},
        {"weight_prefetch": "on"},
    )
    for switches in variants:
        got, _ = run(model, ragged, preset="on", threads=2, weights=weights, **switches)
        for name, logits in expected.items():
            np.testing.assert_array_equal(got[name], logits, err_msg=f"{name} {switches}")


@pytest.mark.parametrize("streams", ["2", "4"])
@pytest.mark.parametrize("case", ["llama", "qwen3_panels", "gemma3"])
def test_concurrent_nodes_change_no_bit(tiny, case, streams):
    model = tiny(case)
    for more in ({}, {"weights": "w8a16"}, {"fuse.swiglu": "on", "memory_reuse": "on"}):
        expected, before = run(model, ragged, threads=1, **more)
        got, counters = run(model, ragged, threads=3, **{"memory_reuse": "on", "streams": streams} | more)
        assert counters["barriers_saved"] > before["barriers_saved"] == 0
        for name, logits in expected.items():
            np.testing.assert_array_equal(got[name], logits, err_msg=f"{name} {more}")


def test_candidates_without_full_logits_are_those_of_the_logits(tiny):
    model = tiny("llama_panels")
    backend = CpuBackend()
    caps = backend.capabilities()
    limits = Limits(max_model_len=LONGEST, max_num_seqs=4)
    plan = build_plan(model.loaded, caps, backend.workspace, preset=caps.profile | PLAIN, chosen={}, limits=limits)
    executable = backend.compile(plan, model.loaded.weights)
    ids = sequences(model)
    parts = [(name, len(tokens)) for name, tokens in ids.items()]
    full = executable.run(Stepper(plan, ids).batch(parts))
    expected = [full.top_ids_RK.copy(), full.top_logits_RK.copy(), full.logsumexp_R.copy()]
    short = executable.run(Stepper(plan, ids).batch(parts, full_logits=False))
    assert short.logits_RV is None
    assert executable.counters()["fused_lm_head"] == sum(map(len, ids.values()))
    np.testing.assert_array_equal(short.top_ids_RK, expected[0])
    np.testing.assert_allclose(short.top_logits_RK, expected[1], rtol=1e-5)
    np.testing.assert_allclose(short.logsumexp_R, expected[2], rtol=1e-5)


def test_measured_memory_is_the_planned_memory(tiny):
    model = tiny("llama_panels")
    backend = CpuBackend()
    caps = backend.capabilities()
    plan = build_plan(model.loaded, caps, backend.workspace, preset=caps.profile, chosen={}, limits=Limits())
    executable = backend.compile(plan, model.loaded.weights)
    ids = sequences(model)
    executable.run(Stepper(plan, ids).batch([(name, len(tokens)) for name, tokens in ids.items()]))
    measured = executable.memory()
    assert set(plan.memory) <= set(measured)
    assert 0 < measured["kv"] <= plan.memory["kv"] + (2 << 20)
    assert measured["python and libraries"] > 0


def test_a_fused_projection_that_cannot_be_is_refused_when_asked_for_and_noted_otherwise(tiny):
    model = tiny("llama")
    with pytest.raises(PlanError, match="head size that 16 divides"):
        run(model, ragged, **{"fuse.norm_qkv_rope": "on"})
    backend = CpuBackend()
    caps = backend.capabilities()
    limits = Limits(max_model_len=LONGEST)
    plan = build_plan(model.loaded, caps, backend.workspace, preset=caps.profile, chosen={}, limits=limits)
    assert any(d.subject == "fuse.norm_qkv_rope" and d.choice == "no effect" for d in plan.decisions)


def test_unknown_kernel_set_and_threads_are_refused():
    with pytest.raises(PlanError, match="choose one of"):
        CpuBackend().capabilities(options={"isa": "sse9"})
    with pytest.raises(PlanError, match="--threads 0"):
        CpuBackend().capabilities(threads=0)
