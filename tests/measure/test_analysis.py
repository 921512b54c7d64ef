"""Findings of simulated experiments with known truth: gains, engagement, equal work, failures, resuming."""

import dataclasses

import numpy as np
import pytest

import simulated
from fuseboard.core.errors import UserError
from fuseboard.measure.analysis import FAILED, NOT_ENGAGED, UNAVAILABLE, UNEQUAL, WRONG, Analysis, Finding, analyse
from fuseboard.measure.record import Failure, LaunchRecord, Line, QualityRecord

CELL = "4 at a time"


def finding(analysis: Analysis, kind: str, name: str) -> Finding:
    return next(f for f in analysis.of_kind(kind) if name in f.comparison.switches)


def changed(lines: list[Line], arm: str, **fields: object) -> list[Line]:
    return [
        dataclasses.replace(line, **fields) if isinstance(line, LaunchRecord) and line.arm == arm else line  # type: ignore[arg-type]
        for line in lines
    ]


def test_planted_gains_are_found() -> None:
    analysis = analyse(simulated.experiment(["alone"], blocks=5))
    for name, verdict in (("weights", "faster"), ("graph", "faster"), ("pd", "slower"), ("memory_reuse", "equivalent")):
        found = finding(analysis, "alone", name)
        gain = found.gain(CELL)
        assert gain is not None
        assert found.verdict(CELL) == verdict, name
        assert gain.estimate.ratio == pytest.approx(simulated.SPEED.get(name, 1.0), rel=0.02)
        assert found.verdict(CELL, "tpot") == verdict
        assert found.engaged[name] == 100
    assert analysis.complete


def test_the_ladder_multiplies_to_the_total() -> None:
    analysis = analyse(simulated.experiment(["ladder"], blocks=3))
    (total,) = analysis.of_kind("total")
    steps = [f.gain(CELL) for f in analysis.of_kind("ladder")]
    whole = total.gain(CELL)
    assert whole is not None
    assert sum(g.estimate.gain for g in steps if g) == pytest.approx(whole.estimate.gain, abs=1e-9)


def test_a_switch_that_did_nothing_is_not_a_gain_of_zero() -> None:
    analysis = analyse(simulated.experiment(["alone"], idle=("graph",)))
    found = finding(analysis, "alone", "graph")
    assert found.verdict(CELL) == NOT_ENGAGED
    assert "graph_replays" in found.reason
    assert any("graph did not engage" in warning for warning in analysis.warnings)


def test_a_group_with_one_idle_switch_counts_and_says_so() -> None:
    analysis = analyse(simulated.experiment(["quick"], idle=("fuse.swiglu",)))
    found = finding(analysis, "ladder", "fuse.swiglu")
    assert found.verdict(CELL) == "faster"
    assert any("fuse.swiglu did not engage" in warning for warning in analysis.warnings)


def test_unequal_work_is_not_compared() -> None:
    lines = simulated.experiment(["alone"])
    arm = "graph=captured"
    launch = next(line for line in lines if isinstance(line, LaunchRecord) and line.arm == arm)
    (cell,) = launch.cells
    short = dataclasses.replace(cell.requests[0], token_ns=cell.requests[0].token_ns[:-1])
    shorter = dataclasses.replace(cell, requests=(short, *cell.requests[1:]))
    found = finding(analyse(changed(lines, arm, cells=(shorter,))), "alone", "graph")
    assert (found.verdict(CELL), found.gains) == (UNEQUAL, ())
    failed = dataclasses.replace(cell, requests=(dataclasses.replace(cell.requests[0], error="x"), *cell.requests[1:]))
    found = finding(analyse(changed(lines, arm, cells=(failed,))), "alone", "graph")
    assert found.verdict(CELL) == UNEQUAL
    assert "failed (x)" in found.reason


def test_what_does_not_fit_is_a_result() -> None:
    failure = Failure(kind="does_not_fit", message="A KV cache of 5 bytes cannot hold one sequence.")
    lines = changed(simulated.experiment(["alone"]), "graph=captured", error=failure, cells=())
    analysis = analyse(lines)
    assert finding(analysis, "alone", "graph").verdict(CELL) == "does not fit"
    assert finding(analysis, "alone", "weights").verdict(CELL) == "faster"
    assert any("5 bytes" in warning for warning in analysis.warnings)


def test_a_run_that_was_stopped_gives_what_it_has() -> None:
    lines = simulated.experiment(["quick"], blocks=3)
    launches = [line for line in lines if isinstance(line, LaunchRecord)]
    analysis = analyse([lines[0], *launches[:11]])
    assert not analysis.complete
    assert analysis.cells == (CELL,)
    assert any(f.gain(CELL) for f in analysis.findings)
    nothing = analyse([lines[0]])
    assert {f.verdict(CELL) for f in nothing.findings} == {FAILED}


@pytest.mark.parametrize("field", ["workload_digest", "code_digest", "model"])
def test_launches_of_other_work_are_left_out(field: str) -> None:
    lines = simulated.experiment(["quick"])
    arms = {line.arm for line in lines if isinstance(line, LaunchRecord)}
    for arm in arms:
        lines = changed(lines, arm, **{field: "other"})
    assert analyse(lines).launches == ()


def test_launches_of_another_machine_are_left_out() -> None:
    lines = simulated.experiment(["quick"])
    other = dataclasses.replace(simulated.MACHINE, processor="another")
    foreign = [dataclasses.replace(line, machine=other) if isinstance(line, LaunchRecord) else line for line in lines]
    assert analyse(foreign).launches == ()


def test_identical_arms_that_differ_are_warned_of() -> None:
    lines = simulated.experiment(["quick"], blocks=5)
    slow = [
        dataclasses.replace(simulated.launch("A/A", line.block, line.position, {}, scale=2.0 + 0.01 * line.block))
        if isinstance(line, LaunchRecord) and line.arm == "A/A"
        else line
        for line in lines
    ]
    assert any("identical arms were told apart" in warning for warning in analyse(slow).warnings)


def test_records_without_an_experiment_are_refused() -> None:
    with pytest.raises(UserError, match="no experiment"):
        analyse([])


def test_interactions_of_independent_switches_are_nothing() -> None:
    """Speeds multiply in the simulation, so that pairs bring nothing beyond their product."""
    lines = simulated.experiment(["pairs"], blocks=5, only=("weights", "attention", "graph"))
    pairs = analyse(lines).of_kind("pair")
    assert len(pairs) == 3
    for found in pairs:
        gain = found.gain(CELL)
        assert gain is not None
        assert gain.estimate.low < 0 < gain.estimate.high
        assert set(found.engaged.values()) == {100}


def test_a_planted_interaction_is_found() -> None:
    lines = simulated.experiment(["pairs"], blocks=5, only=("attention", "graph"))
    both = analyse(lines).of_kind("pair")[0].comparison.treatment
    lines = [
        simulated.scaled(line, 1 / 1.2) if isinstance(line, LaunchRecord) and line.arm == both else line
        for line in lines
    ]
    (pair,) = analyse(lines).of_kind("pair")
    gain = pair.gain(CELL)
    assert gain is not None
    assert gain.estimate.ratio == pytest.approx(1.2, rel=0.05)
    assert gain.verdict == "faster"


def test_the_worth_over_orders_is_the_truth_when_speeds_multiply() -> None:
    analysis = analyse(simulated.experiment(["orders:4"], blocks=5))
    (total,) = analysis.of_kind("total")
    whole, summed = total.gain(CELL), 0.0
    for found in analysis.of_kind("shapley"):
        gain = found.gain(CELL)
        assert gain is not None
        assert gain.spread is not None
        assert gain.spread[0] <= gain.estimate.gain <= gain.spread[1]
        truth = np.prod([simulated.SPEED.get(name, 1.0) for name in found.comparison.switches])
        assert gain.estimate.ratio == pytest.approx(truth, rel=0.03)
        summed += gain.estimate.gain
    assert whole is not None
    assert summed == pytest.approx(whole.estimate.gain, abs=1e-9)


def test_wrong_answers_are_no_gain() -> None:
    lines = simulated.experiment(["alone"])

    def worse(line: Line, arm: str, kl: float) -> Line:
        if not isinstance(line, QualityRecord) or line.arm != arm:
            return line
        return dataclasses.replace(line, values=line.values | {"kl_mean": kl})

    lossy, ties = "weights=native", "attention=blockwise"
    fine = analyse([worse(worse(line, lossy, 0.05), ties, 1e-6) for line in lines])
    assert {finding(fine, "alone", n).verdict(CELL) for n in ("weights", "attention")} == {"faster"}
    broken = analyse([worse(worse(line, lossy, 0.5), ties, 0.01) for line in lines])
    for name in ("weights", "attention"):
        found = finding(broken, "alone", name)
        assert found.verdict(CELL) == WRONG
        assert "mean KL" in found.reason
    assert finding(broken, "alone", "graph").verdict(CELL) == "faster"


def test_other_tokens_from_an_exact_switch_are_wrong_answers() -> None:
    lines = simulated.experiment(["alone"])
    launch = next(line for line in lines if isinstance(line, LaunchRecord) and line.arm == "graph=captured")
    (cell,) = launch.cells
    other = dataclasses.replace(cell.requests[0], token_ids=tuple(range(1, 33)))
    changed_cell = dataclasses.replace(cell, requests=(other, *cell.requests[1:]))
    found = finding(analyse(changed(lines, "graph=captured", cells=(changed_cell,))), "alone", "graph")
    assert found.verdict(CELL) == WRONG
    preempted = dataclasses.replace(changed_cell, counters=cell.counters | {"preemptions": 1})
    found = finding(analyse(changed(lines, "graph=captured", cells=(preempted,))), "alone", "graph")
    assert found.verdict(CELL) != WRONG, "a preempted request is computed by other kernels"


def test_a_switch_without_effect_is_not_available() -> None:
    lines = simulated.experiment(["alone"], refused={"fuse.residual": "the graph has no such nodes"})
    analysis = analyse(lines)
    assert finding(analysis, "alone", "fuse.residual").verdict(CELL) == UNAVAILABLE
    assert any(w.startswith("fuse.residual is n/a: the graph") for w in analysis.warnings)
