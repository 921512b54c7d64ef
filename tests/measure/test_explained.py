"""A gain explained as the difference of two profiles, on profiles whose truth is known."""

import dataclasses
import math

import pytest

import simulated
import simulated_profiles
from fuseboard.measure.analysis import Analysis, analyse
from fuseboard.measure.explained import explain, explained, parts, predictor_errors
from fuseboard.measure.record import ProfileRecord

CELL = "4 at a time"


@pytest.fixture(scope="module")
def ladder() -> Analysis:
    lines = simulated.experiment(["ladder"], blocks=2)
    return analyse([*lines, *simulated_profiles.profiles(lines)])


def test_the_parts_are_the_whole_wall_time() -> None:
    cell = simulated_profiles.cell(CELL, {})
    assert sum(parts(cell).values()) == cell.wall_ns - cell.instrument_ns
    assert parts(cell)["dispatch"] == simulated_profiles.STEPS * 8_000_000


def test_the_difference_says_which_part_moved(ladder: Analysis) -> None:
    steps = {f.comparison.name: explained(ladder, f, CELL) for f in ladder.of_kind("ladder")}
    captured = steps["+ graph"]
    assert captured is not None
    assert captured.moved.name == "dispatch"
    assert captured.moved.change_ns == -simulated_profiles.STEPS * 7_000_000
    assert captured.measured == 1.0
    fused = steps["+ fuse.swiglu"]
    assert fused is not None
    gone = {c.name for c in fused.changes if c.before_ns and not c.after_ns}
    assert gone == set(simulated_profiles.SMALL)
    assert sum(c.change_ns for c in fused.changes if c.name in gone) == -simulated_profiles.STEPS * 11_000_000


def test_the_predictors_error_is_the_ratio_of_ratios(ladder: Analysis) -> None:
    (weights,) = (explained(ladder, f, CELL) for f in ladder.of_kind("ladder") if f.comparison.name == "+ weights")
    assert weights is not None
    assert weights.predicted is not None
    before = sum(c.before_limit_ns for c in weights.changes)
    after = sum(c.after_limit_ns for c in weights.changes)
    assert weights.predicted == before / after
    assert weights.error == pytest.approx(math.log(weights.predicted / weights.measured))
    assert predictor_errors([weights, weights]) == [abs(weights.error)] * 2


def test_where_nothing_changes_a_right_prediction_does_not_count() -> None:
    same = simulated_profiles.cell(CELL, {})
    found = explain(same, same)
    assert found is not None
    assert found.error == 0
    assert predictor_errors([found]) == []


def test_without_ceilings_nothing_is_predicted() -> None:
    cell = simulated_profiles.cell(CELL, {})

    def blind(steps):  # type: ignore[no-untyped-def]
        return dataclasses.replace(
            steps, operators=tuple(dataclasses.replace(o, limit_ns=0, streamed_limit_ns=0) for o in steps.operators)
        )

    unknown = dataclasses.replace(cell, decode=blind(cell.decode), prefill=blind(cell.prefill))
    found = explain(unknown, unknown)
    assert found is not None
    assert found.predicted is None
    assert found.error is None


def test_only_profiles_of_the_same_conditions_count() -> None:
    lines = simulated.experiment(["quick"], blocks=2)
    made = simulated_profiles.profiles(lines)
    for changed in ({"code_digest": "x"}, {"workload_digest": "x"}, {"model": "x"}):
        others = [dataclasses.replace(p, **changed) for p in made]  # type: ignore[arg-type]
        assert analyse([*lines, *others]).profiles == ()
    assert len(analyse([*lines, *made]).profiles) == len(made)


def test_a_disturbed_pass_is_left_out_with_a_warning() -> None:
    lines = simulated.experiment(["quick"], blocks=2)
    first, *others = simulated_profiles.profiles(lines)
    assert isinstance(first, ProfileRecord)
    usual = analyse([*lines, first]).launches_of(first.arm)[0].cells[0]
    (cell,) = first.cells
    long = 2.5 * (usual.end_ns - usual.start_ns)
    slow = dataclasses.replace(first, cells=(dataclasses.replace(cell, wall_ns=round(long)),))
    analysis = analyse([*lines, slow, *others])
    assert analysis.profile_of(first.arm, CELL) is not None, "the A/A arm has the same settings"
    assert slow not in analysis.profiles
    alone = analyse([*lines, slow])
    assert alone.profiles == ()
    assert any(f"profile of {first.arm} is left out" in warning for warning in alone.warnings)
