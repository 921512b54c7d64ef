"""Configurations: planned, predicted, and pruned with the reason."""

import dataclasses

import pytest

from dummy_model import write_dummy
from fuseboard.measure import candidates
from fuseboard.measure.candidates import Candidate, Rejection, Space
from fuseboard.measure.slo import parse_slo
from fuseboard.measure.subject import EngineArgs, load_subject
from fuseboard.measure.workload import Prompts, Workload, grid_cell

RATES = {"read_bytes_per_s": 1e9, "flops_per_s": 1e10, "integer_ops_per_s": 4e10}


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Space:
    """Four requests at once, nothing limited, rates known."""
    model = write_dummy(tmp_path_factory.mktemp("model"))
    base = EngineArgs(
        model=model, switches={}, threads=1, max_model_len=128, max_num_seqs=4, load_format="dummy"
    )  # fmt: skip
    subject = load_subject(base)
    subject = dataclasses.replace(subject, caps=dataclasses.replace(subject.caps, **RATES))
    prompts = Prompts(subject.model.tokenizer, seed=0)
    grid = grid_cell(prompts, input_len=64, output_len=8, concurrency=4, count=6, shared_prefix=32)
    work = Workload(name="test", cells=(grid,), warmup=(), warmup_s=0.0, seed=0)
    base = dataclasses.replace(base, preset=dict(subject.profile))
    return Space(subject=subject, base=base, work=work, limits=(), memory=None, overhead=1_000_000)


def planned(space: Space, changes: dict[str, str], seqs: int | None = None) -> Candidate:
    found = space.candidate(changes, seqs)
    assert isinstance(found, Candidate), found
    return found


def refused(space: Space, changes: dict[str, str], seqs: int | None = None) -> Rejection:
    found = space.candidate(changes, seqs)
    assert isinstance(found, Rejection), found
    return found


def test_names_say_what_differs(wide: Space) -> None:
    assert planned(wide, {}).name == "preset on"
    assert planned(wide, {"kv.dtype": "f32"}, 2).name == "kv.dtype=f32 max_num_seqs=2"


def test_smaller_formats_are_predicted_faster_and_smaller(wide: Space) -> None:
    full, small = planned(wide, {"weights": "f32"}), planned(wide, {"weights": "w4a8"})
    assert full.predicted is not None
    assert small.predicted is not None
    assert small.memory < full.memory
    assert small.predicted.tpot_ms < full.predicted.tpot_ms
    assert small.predicted.work_s < full.predicted.work_s
    assert small.lossy["weights"] == "w4a8"


def test_a_known_prefix_is_not_predicted_to_be_computed(wide: Space) -> None:
    with_cache, without = planned(wide, {}), planned(wide, {"prefix_cache": "off"})
    assert with_cache.predicted is not None
    assert without.predicted is not None
    assert with_cache.predicted.ttft_ms < without.predicted.ttft_ms


def test_the_prediction_is_unknown_without_ceilings(wide: Space) -> None:
    caps = dataclasses.replace(wide.subject.caps, read_bytes_per_s=0.0)
    blind = dataclasses.replace(wide, subject=dataclasses.replace(wide.subject, caps=caps))
    assert planned(blind, {}).predicted is None


def test_what_cannot_be_fast_enough_is_refused_with_the_bound(wide: Space) -> None:
    tight = dataclasses.replace(wide, limits=parse_slo("tpot_p95=1us"))
    assert "tpot takes at least" in refused(tight, {}).reason
    assert "0.001 ms" in refused(tight, {}).reason
    planned(dataclasses.replace(wide, limits=parse_slo("e2e_p95=1us,tpot_p10=1us")), {})


def test_memory_shrinks_the_cache_then_the_sequences_then_refuses(wide: Space) -> None:
    wide = dataclasses.replace(wide, base=dataclasses.replace(wide.base, max_model_len=192))
    whole = planned(wide, {})
    kv = whole.plan.memory["kv"]
    busy = candidates._busy_bytes(whole.plan, wide.work)
    tight = dataclasses.replace(wide, memory=whole.memory - (kv - busy) // 2)
    smaller = planned(tight, {})
    assert smaller.plan.schedule.max_num_seqs == 4
    assert busy <= smaller.plan.memory["kv"] < kv
    assert smaller.memory <= whole.memory
    tighter = dataclasses.replace(wide, memory=whole.memory - kv + busy // 2)
    halved = planned(tighter, {})
    assert halved.plan.schedule.max_num_seqs < 4
    assert halved.name.endswith(f"max_num_seqs={halved.plan.schedule.max_num_seqs}")
    assert halved.memory <= (tighter.memory or 0)
    assert "MB" in refused(dataclasses.replace(wide, memory=1_100_000), {}).reason
    assert "MB" in refused(tighter, {}, 4).reason, "sequences that were asked for are not halved"


def test_the_stated_cache_gives_the_same_plan_again(wide: Space) -> None:
    found = planned(wide, {"kv.dtype": "int8_token"})
    assert wide.subject.plan(found.engine).digest == found.plan.digest
    as_preset = dataclasses.replace(found.engine, preset=found.settings, switches={})
    assert wide.subject.plan(as_preset).digest == found.plan.digest


def test_formats_are_all_pairs_each_once(wide: Space) -> None:
    ranked, rejected = candidates.formats(wide, {"weights": ("w4a8:g32a",)})
    names = [c.name for c in ranked]
    assert names[0] == "preset on"
    assert len(set(names)) == len(names)
    assert any("w4a8:g32a" in name for name in names)
    first = [c.plan.switches["weights"] for c in ranked[1:5]]
    assert len(set(first)) == 4, "the best of each weight format before the second best"
    assert "It does the same as a shorter one on this model." in {r.reason for r in rejected}
    keys = [candidates.what_runs(c.plan) for c in ranked]
    assert len(set(keys)) == len(keys)


def test_what_is_fixed_is_not_up_for_choice(wide: Space) -> None:
    base = dataclasses.replace(wide.base, switches={"weights": "w8a8", "kv.block_size": "32"})
    fixed = dataclasses.replace(wide, base=base)
    ranked, _ = candidates.formats(fixed, {})
    assert {c.plan.switches["weights"] for c in ranked} == {"w8a8"}
    around = candidates.neighbours(fixed, ranked[0], {})
    assert not any("kv.block_size" in n.rows for n in around)


def test_neighbours_change_one_thing(wide: Space) -> None:
    winner = planned(wide, {"weights": "w8a8"})
    around = candidates.neighbours(wide, winner, {"prefill": ("chunked:40",)})
    titles = [n.title for n in around]
    assert "kv.block_size=32" in titles
    assert "prefill=chunked:40" in titles
    assert "max_num_seqs=2" in titles
    without = {n.rows[0]: n for n in around if n.kind == "without"}
    assert without["graph"].title == "graph=eager"
    assert set(without["kv.layout"].rows) == {"kv.layout", "prefix_cache"}, "what needs it goes with it"
    assert "weights" not in without
    for neighbour in around:
        assert neighbour.candidate.plan.switches["weights"] == "w8a8"
