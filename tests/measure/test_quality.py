"""The quality numbers against direct computation, and on a real engine."""

from pathlib import Path

import numpy as np
import pytest

from dummy_model import write_dummy
from fuseboard.measure import quality
from fuseboard.measure.record import ArmRecord
from fuseboard.measure.subject import EngineArgs, load_subject
from fuseboard.measure.workload import Prompts


def test_row_scores_against_the_definitions() -> None:
    rng = np.random.default_rng(0)
    a_NV = rng.normal(size=(32, 11)).astype(np.float32)
    b_NV = (a_NV + rng.normal(0, 0.3, size=a_NV.shape)).astype(np.float32)
    ids = rng.integers(11, size=32).tolist()
    scores = quality.row_scores(a_NV, b_NV, ids)
    p_NV = np.exp(a_NV) / np.exp(a_NV).sum(1, keepdims=True)
    q_NV = np.exp(b_NV) / np.exp(b_NV).sum(1, keepdims=True)
    assert scores["kl"] == pytest.approx((p_NV * np.log(p_NV / q_NV)).sum(1), rel=1e-4, abs=1e-6)
    assert scores["same"].tolist() == (a_NV.argmax(1) == b_NV.argmax(1)).tolist()
    expected = [np.log(p_NV[i, ids[i + 1]] / q_NV[i, ids[i + 1]]) for i in range(31)]
    assert scores["worse"][:31] == pytest.approx(expected, rel=1e-4, abs=1e-5)
    assert np.isnan(scores["worse"][31])


def test_equal_logits_are_no_distance() -> None:
    a_NV = np.random.default_rng(1).normal(size=(32, 7)).astype(np.float32)
    values, errors = quality.summarise(quality.row_scores(a_NV, a_NV, [0] * 32))
    assert (values["kl_max"], values["same_top_1"], values["perplexity_ratio"]) == (0.0, 1.0, 1.0)
    assert set(errors.values()) == {0.0}


def test_greedy_agreement_and_the_margin_at_the_first_difference() -> None:
    same = quality.Answer(token_ids=(1, 2, 3, 4), margins=(1.0, 2.0, 3.0, 4.0))
    other = quality.Answer(token_ids=(1, 2, 9, 9), margins=(0.0, 0.0, 0.0, 0.0))
    values, _ = quality.agreement([same, same], [same, other])
    assert values == {"greedy_agreement": 0.75, "first_divergence": 3.0, "divergence_margin": 3.0}


def test_text_logits_are_those_of_the_engine(tmp_path: Path) -> None:
    """Teacher-forced rows agree with the engine's own steps: the same best token and margin after every prefix."""
    args = EngineArgs(
        model=write_dummy(tmp_path), switches={}, threads=1, max_model_len=128, max_num_seqs=1, load_format="dummy"
    )
    opened = load_subject(args).open(args)
    prompt = Prompts(load_subject(args).model.tokenizer, seed=0).take(20)
    answer = quality.greedy_answer(opened, prompt, 5)
    logits_NV = quality.text_logits(opened, [*prompt, *answer.token_ids])
    after_NV = logits_NV[len(prompt) - 1 : -1]
    assert after_NV.argmax(axis=1).tolist() == list(answer.token_ids)
    best_two = np.sort(after_NV, axis=1)[:, -2:]
    assert answer.margins == pytest.approx(best_two[:, 1] - best_two[:, 0], abs=1e-4)


def test_lossy_weights_are_further_away_than_a_rewrite(tmp_path: Path) -> None:
    model = write_dummy(tmp_path)
    engine = EngineArgs(model=model, switches={}, threads=1, load_format="dummy")
    settings = {"w4": {"weights": "w4a8:g32"}, "fused": {"fuse.swiglu": "on"}}
    arms = [ArmRecord(name=name, switches=switches) for name, switches in settings.items()]
    first, w4, fused = quality.compare(engine, ArmRecord(name="off", switches={}), arms, "code")
    assert first is None
    assert w4 is not None
    assert fused is not None
    assert (w4.error, fused.error) == (None, None)
    assert w4.values["kl_mean"] > 1e-6 > fused.values["kl_mean"]
    assert w4.errors["kl_mean"] > 0
    assert fused.values["greedy_agreement"] == 1.0


def test_a_model_that_cannot_be_loaded_is_a_record(tmp_path: Path) -> None:
    engine = EngineArgs(model=str(tmp_path / "none"), switches={}, load_format="dummy")
    arm = ArmRecord(name="x", switches={})
    (record,) = quality.compare(engine, ArmRecord(name="off", switches={}), [arm], "code")
    assert record is not None
    assert record.error is not None
    assert record.error.kind == "refused"
