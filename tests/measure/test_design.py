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


def weights(comparison: object) -> dict[str, float]:
    return {arm: w for arm, w in comparison.weights.items() if abs(w) > 1e-12}  # type: ignore[attr-defined]


def test_a_pair_is_a_two_by_two_of_arms() -> None:
    design = make("pairs", only=("graph", "fuse.swiglu", "attention"))
    arms = {a.name: a.switches for a in design.arms}
    pairs = [c for c in design.comparisons if c.kind == "pair"]
    assert {frozenset(c.switches) for c in pairs} == {
        frozenset(p) for p in itertools.combinations(("graph", "fuse.swiglu", "attention"), 2)
    }
    for c in pairs:
        signs = {frozenset(arms[name]): w for name, w in weights(c).items()}
        a, b = c.switches
        assert signs == {frozenset((a, b)): 1, frozenset((b,)): -1, frozenset((a,)): -1, frozenset(): 1}


def test_a_pair_stands_on_what_both_need() -> None:
    design = make("pairs", only=("prefix_cache", "graph"))
    (pair,) = [c for c in design.comparisons if c.kind == "pair"]
    arms = {a.name: a.switches for a in design.arms}
    assert all({"kv.layout", "kv.pool"} <= arms[name].keys() for name in pair.weights)


def test_pairs_of_one_or_of_a_switch_and_its_need_are_refused() -> None:
    for only in (("graph",), ("fuse.qkv", "fuse.norm_qkv_rope"), ()):
        with pytest.raises(UserError, match="pairs needs two"):
            make("pairs", only=only)


def test_the_worth_over_orders_adds_up_to_the_total() -> None:
    design = make("orders:5", seed=3)
    worth = [c for c in design.comparisons if c.kind == "shapley"]
    summed: Counter[str] = Counter()
    for c in worth:
        assert len(c.terms) == 5
        assert sum(t.weight for t in c.terms) == pytest.approx(1.0)
        for arm, w in c.weights.items():
            summed[arm] += w  # type: ignore[assignment]
    left = {arm: w for arm, w in summed.items() if abs(w) > 1e-9}
    assert left == pytest.approx({designs.FULL: 1.0, designs.BASELINE: -1.0})
    assert sorted(n for c in worth for n in c.switches) == sorted(PROFILE)


def test_sampled_orders_differ_and_respect_needs() -> None:
    units = [(n, [n]) for n in designs.topological(PROFILE)]
    orders = designs.sampled_orders(units, 6, seed=0)
    assert len({tuple(o) for o in orders}) == 6
    for order in orders:
        assert sorted(order) == sorted(PROFILE)
        for name in order:
            assert all(order.index(n) < order.index(name) for n in designs.with_needs(BY_NAME[name]) if n in order)
    assert len(designs.sampled_orders(units[:1], 6, seed=0)) == 1


def test_a_switch_without_effect_has_no_arm() -> None:
    refused = {"fuse.residual": "no such nodes", "pd": "no queue"}
    design = make("ladder", "alone", "without", refused=refused)
    assert not any("fuse.residual" in a.switches for a in design.arms)
    found = {(c.kind, c.name): c.unavailable for c in design.comparisons if c.unavailable}
    assert found[("ladder", "fuse.residual")] == found[("alone", "fuse.residual")] == "no such nodes"
    assert found[("alone", "pd")] == "no queue"


@pytest.mark.parametrize("bad", ["orders:1", "orders:x", "quick:3", "ladder+"])
def test_malformed_designs_are_refused(bad: str) -> None:
    with pytest.raises(UserError):
        designs.parse_parts(bad)
