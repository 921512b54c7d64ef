"""Arms, comparisons and orders, all from the catalogue."""

import itertools
from collections import Counter

import pytest

import simulated
from fuseboard.core.errors import UserError
from fuseboard.measure import design as designs
from fuseboard.plan.switches import BY_NAME, CATALOGUE, resolve

PROFILE = simulated.PROFILE


def make(*parts: str, **more: object) -> designs.Design:
    arguments = {"profile": PROFILE, "on": designs.on_values(PROFILE), "fixed": {}} | more
    return designs.make(designs.parse_parts("+".join(parts)), **arguments)  # type: ignore[arg-type]


def test_quick_is_baseline_same_and_six_groups_that_cover_the_profile() -> None:
    design = make("quick")
    assert len(design.arms) == 8
    steps = [c for c in design.comparisons if c.kind == "ladder"]
    assert len(steps) == 6
    assert sorted(name for c in steps for name in c.switches) == sorted(PROFILE)
    assert {a.name: a.switches for a in design.arms}[designs.FULL] == PROFILE
    assert [c.reference for c in steps[1:]] == [c.treatment for c in steps[:-1]]


def test_there_is_always_an_identical_arm() -> None:
    for parts in (["quick"], ["alone"], ["ladder"], ["without"]):
        arms = {a.name: a.switches for a in make(*parts).arms}
        assert arms[designs.SAME] == arms[designs.BASELINE] == {}


def test_alone_compares_against_what_a_switch_needs() -> None:
    design = make("alone")
    arms = {a.name: a.switches for a in design.arms}
    for comparison in design.comparisons:
        if comparison.kind == "alone":
            (name,) = comparison.switches
            more = dict(arms[comparison.treatment].items() - arms[comparison.reference].items())
            assert set(more) == {name}
            for needed, wanted in BY_NAME[name].needs:
                assert arms[comparison.reference][needed] == wanted
    assert {c.switches[0] for c in design.comparisons if c.kind == "alone"} == set(BY_NAME)


def test_without_takes_dependents_along() -> None:
    design = make("without")
    by_first = {c.switches[0]: c for c in design.comparisons if c.kind == "without"}
    assert by_first["kv.layout"].switches == ("kv.layout", *designs.dependents("kv.layout"))
    assert "prefix_cache" in designs.dependents("kv.layout")
    arms = {a.name: a.switches for a in design.arms}
    assert "prefix_cache" not in arms[by_first["kv.layout"].reference]
    assert by_first["fuse.swiglu"].switches == ("fuse.swiglu",)


def test_every_arm_is_a_valid_setting() -> None:
    for arm in make("alone", "ladder", "without").arms:
        values = resolve({}, arm.switches)
        assert {k: v for k, v in values.items() if v != BY_NAME[k].off} == arm.switches, arm.name


def test_equal_settings_run_once() -> None:
    arms = make("alone", "ladder", "without").arms
    settings = [tuple(sorted(a.switches.items())) for a in arms if a.name != designs.SAME]
    assert len(settings) == len(set(settings))


def test_fixed_and_chosen_rows() -> None:
    design = make("ladder", fixed={"kv.dtype": "f16"}, only=("graph", "pd"))
    assert all(a.switches["kv.dtype"] == "f16" for a in design.arms)
    assert [c.switches for c in design.comparisons if c.kind == "ladder"] == [("graph",), ("pd",)]


def test_ladder_is_topological() -> None:
    order = designs.topological(row.name for row in reversed(CATALOGUE))
    for row in CATALOGUE:
        for needed, _ in row.needs:
            assert order.index(needed) < order.index(row.name)


def test_quality_runs_once_for_each_setting_that_may_change_an_answer() -> None:
    design = make("ladder")
    assert design.quality_arms[0] == designs.BASELINE
    assert "+ weights" in design.quality_arms
    assert "+ memory_reuse" not in design.quality_arms


def test_unknown_designs_are_refused() -> None:
    with pytest.raises(UserError, match="no design 'sideways'"):
        make("sideways")
    with pytest.raises(UserError, match="exclude"):
        make("quick", "ladder")


@pytest.mark.parametrize("n", [4, 5, 8])
def test_orders_are_balanced(n: int) -> None:
    names = [str(i) for i in range(n)]
    blocks = n if n % 2 == 0 else 2 * n
    orders = designs.orders(names, blocks, seed=1)
    assert all(sorted(order) == names for order in orders)
    for place in range(n):
        assert len(set(Counter(order[place] for order in orders).values())) == 1
    followed = Counter(pair for order in orders for pair in itertools.pairwise(order))
    assert len(followed) == n * (n - 1)
    assert len(set(followed.values())) == 1


def test_two_blocks_cancel_a_linear_drift() -> None:
    first, second = designs.orders([str(i) for i in range(7)], 2, seed=0)
    assert second == first[::-1]


def test_long_blocks_repeat_the_baseline() -> None:
    names = ["base", *(str(i) for i in range(17))]
    for order in designs.orders(names, 2, seed=0):
        assert Counter(order)["base"] == 3
        assert order[8] == order[17] == "base"
