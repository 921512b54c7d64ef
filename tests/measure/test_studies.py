"""The ladders of the two published reports: their steps, arms, claims and workloads."""

import dataclasses
import math
from pathlib import Path

import pytest

from dummy_model import write_dummy
from fuseboard.core.errors import UserError
from fuseboard.load.dummy import byte_tokenizer
from fuseboard.measure import design as designs
from fuseboard.measure import experiment, studies
from fuseboard.measure.options import AblateOptions
from fuseboard.measure.subject import load_subject
from fuseboard.measure.workload import Prompts
from fuseboard.plan.switches import BY_NAME, resolve

STUDIES = list(studies.STUDIES.values())


@pytest.mark.parametrize("study", STUDIES, ids=lambda s: s.name)
def test_every_rung_is_a_valid_setting_and_adds_to_the_one_below(study: studies.Study) -> None:
    design = studies.make(study, fixed={}, refused={})
    arms = {a.name: a.switches for a in design.arms}
    assert arms[designs.BASELINE] == arms[designs.SAME] == study.baseline
    assert arms[designs.FULL] == {k: v for k, v in study.full.items() if v != BY_NAME[k].off}
    for settings in arms.values():
        assert resolve({}, settings).items() >= settings.items()
    steps = [c for c in design.comparisons if c.kind == "ladder"]
    assert [c.reference for c in steps] == [designs.BASELINE, *(c.treatment for c in steps[:-1])]
    assert len(steps) == len(study.steps)


def test_report_a_claims_multiply_to_its_total() -> None:
    claims = [s.claim for s in studies.REPORT_A.steps if s.claim]
    assert len(claims) == 4
    assert math.prod(claims) == pytest.approx(studies.REPORT_A.total.claim, rel=0.01)


def test_steps_without_effect_on_the_model_are_left_out() -> None:
    design = studies.make(studies.REPORT_B, fixed={}, refused={"pd": "why", "fuse.residual": "why"})
    assert not any({"pd", "fuse.residual"} & a.switches.keys() for a in design.arms)
    assert not any("apart" in c.name for c in design.comparisons)


def test_lengths_scale() -> None:
    prompts = Prompts(byte_tokenizer(300, [1]), seed=0)
    a = studies.make_workload(studies.REPORT_A, prompts, scale=0.1, seed=0)
    assert [(len(r.token_ids), r.n_out) for r in a.cells[0].requests] == [(200, 150)]
    assert a.cells[1].concurrency == len(a.cells[1].requests) == studies.OFFERED
    assert "0.1" in a.name
    b = studies.make_workload(studies.REPORT_B, prompts, scale=0.05, seed=0)
    assert [c.concurrency for c in b.cells] == [1, 8, 16, 32]
    assert {(len(r.token_ids), r.n_out) for c in b.cells for r in c.requests} == {(26, 26)}
    with pytest.raises(UserError, match="--scale"):
        studies.make_workload(studies.REPORT_A, prompts, scale=2.0, seed=0)


def options(folder: Path, **more: object) -> AblateOptions:
    chosen = {"workload": "report-a", "scale": 0.05, "threads": 1} | more
    return AblateOptions(model=write_dummy(folder), load_format="dummy", out=folder / "out", **chosen)  # type: ignore[arg-type]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FUSEBOARD_CACHE", str(tmp_path / "cache"))
    return tmp_path


def test_the_cache_holds_four_sequences_of_the_baseline_in_every_arm(cache: Path) -> None:
    made = experiment.prepare(options(cache))
    assert made.design.source == made.design.design == "report-a"
    assert made.engine.max_model_len == round(8192 * 0.05)
    subject = load_subject(made.engine)
    for arm in made.design.arms:
        plan = subject.plan(dataclasses.replace(made.engine, preset=arm.switches))
        held = sum((g.num_blocks - 1) * plan.kv.block_size for g in plan.kv.groups)
        assert held >= 4 * (made.engine.max_model_len or 0)
        assert plan.memory["kv"] <= (made.engine.kv_memory or 0)
    assert any("times 0.05" in note for note in made.design.notes)


def test_options_that_do_not_go_with_a_report_are_refused(cache: Path) -> None:
    for bad in ({"only": ("graph",)}, {"workload": "quick"}, {"scale": 0.0}):
        with pytest.raises(UserError):
            experiment.prepare(options(cache, **bad))
    assert experiment.prepare(options(cache, design="ladder")).design.source == ""
