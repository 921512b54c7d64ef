"""Measured cuts of the work: they change no bit, are kept on disk, and stand in the plan's decisions."""

import json

import numpy as np
import pytest
from test_cpu import LONGEST, PLAIN
from test_reference import ragged, run_all, sequences

from fuseboard.backends.cpu import autotune
from fuseboard.backends.cpu.autotune import CANDIDATES, Tuning, tuning_for, tuning_path
from fuseboard.backends.cpu.backend import CpuBackend
from fuseboard.load.atomic import write_atomic
from fuseboard.plan.build import Limits, build_plan


@pytest.fixture(autouse=True)
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FUSEBOARD_CACHE", str(tmp_path))


def plan_of(model, **switches):
    backend = CpuBackend()
    caps = backend.capabilities(threads=2)
    limits = Limits(max_model_len=LONGEST, max_num_seqs=4)
    return build_plan(
        model.loaded, caps, backend.workspace, preset=caps.profile | PLAIN, chosen=switches, limits=limits
    )


def run(model, plan):
    executable = CpuBackend().compile(plan, model.loaded.weights)
    ids = sequences(model)
    return run_all(executable, ids, ragged(ids), drop_dead=True), executable


def decision(executable):
    (found,) = [d for d in executable.plan.decisions if d.subject == "autotune"]
    return found


def test_it_is_measured_once_and_kept(tiny):
    model = tiny("llama_panels")
    plan = plan_of(model, autotune="on")
    _, first = run(model, plan)
    assert "measured now" in decision(first).reason
    assert first.counters()["tuned_calls"] > 0
    stored = json.loads(tuning_path(plan).read_text())
    assert set(stored["few"]) == set(stored["many"])
    assert {"norm_qkv_rope", "swiglu", "residual", "lm_head"} == {name.partition(":")[2] for name in stored["few"]}
    assert all(tuple(tiles) in CANDIDATES[kind] for kind in stored for tiles in stored[kind].values())
    _, second = run(model, plan)
    assert "measured before" in decision(second).reason
    assert decision(second).choice == decision(first).choice
    assert first.plan.digest == second.plan.digest == plan.digest


@pytest.mark.parametrize("text", ["", "{}", '{"few": {"a": [0, 64]}, "many": {}}', '{"few": {"a": 3}, "many": {}}'])
def test_a_damaged_file_is_measured_again(tiny, text):
    model = tiny("llama_panels")
    plan = plan_of(model, autotune="on")
    write_atomic(tuning_path(plan), text.encode())
    _, executable = run(model, plan)
    assert "measured now" in decision(executable).reason


@pytest.mark.parametrize("weights", ["f32", "w8a16", "w4a8:g32a"])
@pytest.mark.parametrize("preset", ["fused", "plain"])
def test_no_cut_changes_a_bit(tiny, monkeypatch, weights, preset):
    model = tiny("llama_panels")
    switches = {"weights": weights}
    if preset == "plain":
        switches |= {"fuse.swiglu": "off", "fuse.qkv": "off", "fuse.residual": "off", "fuse.lm_head": "off"}
    expected, before = run(model, plan_of(model, **switches))
    assert before.counters()["tuned_calls"] == 0
    for tiles in ((1, 1), (3, 7), (1, 256), (100, 40)):
        monkeypatch.setattr(Tuning, "of", lambda self, tokens, tiles=tiles: lambda label: tiles)
        plan = plan_of(model, autotune="on", **switches)
        write_atomic(tuning_path(plan), b'{"few": {}, "many": {}}')
        got, executable = run(model, plan)
        assert executable.counters()["tuned_calls"] > 0
        for name, logits in expected.items():
            np.testing.assert_array_equal(got[name], logits, err_msg=f"{name} {tiles}")


def test_the_fastest_cut_is_taken_by_kind_of_node(tiny):
    """A probe with known times: `a` is fastest with the third cut, `b` gains too little from any to leave the first."""
    plan = plan_of(tiny("llama_panels"), autotune="on")

    def probe(tokens, tiling):
        def times():
            index = cuts.index(tiling("layers.0.a"))
            tiling("layers.0.b")
            other = 1000 - index
            return {"layers.0.a": 50 + 50 * abs(index - 2), "layers.1.a": 50, "layers.0.b": other, "rest": 5}

        cuts = CANDIDATES["few" if tokens == 1 else "many"]
        times()
        return times

    found, origin = tuning_for(plan, probe)
    assert found.few == {"layers.*.a": CANDIDATES["few"][2], "layers.*.b": CANDIDATES["few"][0]}
    assert set(found.many) == {"layers.*.a", "layers.*.b"}
    assert origin.startswith("measured now")


def test_steps_that_take_long_keep_the_defaults(tiny, monkeypatch):
    monkeypatch.setattr(autotune, "SECONDS", 0.0)
    model = tiny("llama_panels")
    _, executable = run(model, plan_of(model, autotune="on"))
    assert decision(executable).choice == "few tokens: defaults. many tokens: defaults"
    assert executable.counters()["tuned_calls"] == 0
