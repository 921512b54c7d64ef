"""The catalogue of switches: what a value may look like, needs, and what wins."""

import pytest
from planning import FULL_CAPS, LLAMA, plan_of

from fuseboard.core.errors import PlanError
from fuseboard.plan.switches import BY_NAME, CATALOGUE, all_off, parse_settings, resolve


def test_catalogue_is_consistent():
    assert len(BY_NAME) == len(CATALOGUE)
    for row in CATALOGUE:
        assert row.kind in ("exact", "ties", "lossy")
        assert row.counters
        assert row.doc
        assert len(set(row.values)) == len(row.values) >= 2
        assert set(row.parameters) <= set(row.values)
        for needed, wanted in row.needs:
            BY_NAME[needed].check(wanted)
            assert wanted != BY_NAME[needed].off, "a need that holds at off is none"


def test_off_is_the_first_value_of_every_row():
    assert resolve({}, {}) == all_off() == {row.name: row.values[0] for row in CATALOGUE}


@pytest.mark.parametrize("setting", [
    "fuse.qkv=maybe", "fuse.qkv=on:3", "fuse.qkv=on;rest", "fuse.qkv=", "graph=captured;x=y", "kv.block_size=48",
    "weights=w3a8", "weights=f32:g32", "attention=blockwise:64",
])  # fmt: skip
def test_values_outside_the_catalogue_are_refused(setting):
    name = setting.partition("=")[0]
    with pytest.raises(PlanError, match=f"Switch {name} has no value .* choose one of"):
        parse_settings([setting])


def test_unknown_switches_and_forms_are_refused():
    with pytest.raises(PlanError, match=r"no switch 'fuse\.all'; the switches are: weights"):
        parse_settings(["fuse.all=on"])
    with pytest.raises(PlanError, match="NAME=VALUE"):
        parse_settings(["fuse.qkv"])
    with pytest.raises(PlanError, match="set twice"):
        parse_settings(["fuse.qkv=on", "fuse.qkv=off"])
    with pytest.raises(PlanError, match="no switch"):
        resolve({}, {"nothing": "on"})


def test_settings_keep_arguments_and_overrides():
    texts = ["prefill=chunked:256", "buckets=list:1,8", "weights=w4a8:g32a;lm_head.weight=w8a16", "kv.dtype=f16"]
    chosen = parse_settings(texts)
    assert [f"{name}={value}" for name, value in chosen.items()] == texts


def test_chosen_wins_over_preset_wins_over_off():
    values = resolve({"fuse.qkv": "on", "fuse.swiglu": "on"}, {"fuse.swiglu": "off"})
    assert (values["fuse.qkv"], values["fuse.swiglu"], values["fuse.residual"]) == ("on", "off", "off")


def test_needs_of_a_chosen_value_come_with_it():
    values = resolve({}, {"prefix_cache": "on"})
    assert (values["kv.layout"], values["kv.pool"]) == ("paged", "on")
    assert resolve({"fuse.qkv": "off"}, {"fuse.norm_qkv_rope": "on"})["fuse.qkv"] == "on"


def test_needs_chosen_away_are_an_error():
    with pytest.raises(PlanError, match=r"prefix_cache=on needs kv.pool=on, but kv.pool=off was asked for"):
        resolve({}, {"prefix_cache": "on", "kv.pool": "off"})
    with pytest.raises(PlanError, match=r"pd=separate needs batching=continuous, but batching=static"):
        resolve({}, {"pd": "separate", "batching": "static"})


def test_a_presets_value_yields_when_its_need_is_chosen_away():
    values = resolve({"fuse.qkv": "on", "fuse.norm_qkv_rope": "on", "fuse.swiglu": "on"}, {"fuse.qkv": "off"})
    assert (values["fuse.norm_qkv_rope"], values["fuse.swiglu"]) == ("off", "on")
    assert resolve({"pd": "separate", "batching": "continuous"}, {"batching": "one"})["pd"] == "mixed"


def test_choosing_off_needs_nothing():
    values = resolve({}, {"prefix_cache": "off", "kv.pool": "off", "pd": "mixed"})
    assert values == all_off()


@pytest.mark.parametrize("row", CATALOGUE, ids=lambda row: row.name)
def test_every_value_can_be_planned_or_says_why_not(row):
    for value in row.values:
        setting = {row.name.replace(".", "_"): value}
        if value == "captured":
            with pytest.raises(PlanError, match=r"graph=captured cannot take effect: reference runs .* only as eager"):
                plan_of(LLAMA, **setting)
        assert plan_of(LLAMA, FULL_CAPS, **setting).switches[row.name] == value
