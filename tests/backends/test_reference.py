"""The reference backend against transformers: complete logits of every family, in every way a batch can look."""

import numpy as np
import pytest

from fuseboard.backends.reference.backend import ReferenceBackend, ReferenceExecutable
from fuseboard.core.batch import TOP_K, StepOutput
from fuseboard.plan.build import Limits, build_plan
from fuseboard.plan.plan import ExecutionPlan
from steps import Stepper
from tiny import CASES, FAMILY_CASES, TinyModel, random_ids

LONGEST = 45
LENGTHS = {"a": LONGEST, "b": 23, "c": 9}


def tolerance(logits: np.ndarray) -> float:
    """Two float32 evaluations of the same logits may differ by this.

    A logit comes out of about 12 rounded sums a layer; sums of K <= 100 terms in two orders differ by some sqrt(K) *
    2^-24 of their size, independently of each other. 40 sums of that size, at three standard deviations, are
    3 * sqrt(40) * 10 * 2^-24 = 1.1e-5 of the logits' spread.
    """
    return 1.1e-5 * float(np.abs(logits).max())


def plan_of(model: TinyModel, **switches: str) -> ExecutionPlan:
    backend = ReferenceBackend()
    # Dynamic rope scaling follows the longest sequence, which transformers takes from the sequence itself.
    limits = Limits(max_model_len=LONGEST, max_num_seqs=4)
    return build_plan(
        model.loaded, backend.capabilities(), backend.workspace, preset={}, chosen=switches, limits=limits
    )


def compiled(model: TinyModel, **switches: str) -> ReferenceExecutable:
    return ReferenceBackend().compile(plan_of(model, **switches), model.loaded.weights)


def sequences(model: TinyModel) -> dict[str, np.ndarray]:
    vocab = model.loaded.spec.vocab_size
    lengths = dict.fromkeys(LENGTHS, LONGEST) if model.loaded.spec.rope.scaling == "dynamic" else LENGTHS
    return {name: random_ids(length, vocab, seed) for seed, (name, length) in enumerate(lengths.items())}


def check_top(out: StepOutput) -> None:
    """The candidates are the largest of the full logits, in order, with the logsumexp of the whole row."""
    logits_RV = out.logits_RV
    assert logits_RV is not None
    order = np.argsort(-logits_RV, axis=1, kind="stable")[:, :TOP_K]
    kept = order.shape[1]
    np.testing.assert_array_equal(out.top_ids_RK[:, :kept], order)
    np.testing.assert_array_equal(out.top_logits_RK[:, :kept], np.take_along_axis(logits_RV, order, axis=1))
    wide = logits_RV.astype(np.float64)
    np.testing.assert_allclose(out.logsumexp_R, np.log(np.exp(wide).sum(axis=1)), rtol=1e-6)


def run_all(
    executable: ReferenceExecutable,
    ids: dict[str, np.ndarray],
    schedule: list[list[tuple[str, int]]],
    **options: object,
) -> dict[str, np.ndarray]:
    """Logits [length, V] of every sequence after the scheduled steps, each of which must match its candidates."""
    stepper = Stepper(executable.plan, ids, **options)  # type: ignore[arg-type]
    rows: dict[str, list[np.ndarray]] = {name: [] for name in ids}
    for parts in schedule:
        out = executable.run(stepper.batch(parts))
        check_top(out)
        assert out.logits_RV is not None
        at = 0
        for name, count in parts:
            rows[name].append(out.logits_RV[at : at + count].copy())
            at += count
    return {name: np.concatenate(parts) for name, parts in rows.items() if parts}


def whole(ids: dict[str, np.ndarray]) -> list[list[tuple[str, int]]]:
    return [[(name, len(tokens))] for name, tokens in ids.items()]


def chunked(ids: dict[str, np.ndarray]) -> list[list[tuple[str, int]]]:
    """Every prompt alone, in chunks that straddle block borders and windows."""
    steps = []
    for name, tokens in ids.items():
        left, sizes = len(tokens), iter([5, 1, 13, 2, 17, 64])
        while left:
            count = min(left, next(sizes))
            steps.append([(name, count)])
            left -= count
    return steps


def decoded(ids: dict[str, np.ndarray]) -> list[list[tuple[str, int]]]:
    """A token of every sequence a step, until each ends."""
    longest = max(map(len, ids.values()))
    return [[(name, 1) for name, tokens in ids.items() if step < len(tokens)] for step in range(longest)]


def ragged(ids: dict[str, np.ndarray]) -> list[list[tuple[str, int]]]:
    """Random mixes of prefill chunks, decodes and absent sequences, in changing order."""
    rng = np.random.default_rng(7)
    left = {name: len(tokens) for name, tokens in ids.items()}
    steps = []
    while any(left.values()):
        names = [name for name in rng.permutation(sorted(left)) if left[name] and rng.random() < 0.8]
        parts = [(str(name), int(min(left[name], rng.choice([1, 1, 3, 11])))) for name in names]
        left |= {name: left[name] - count for name, count in parts}
        steps += [parts] if parts else []
    return steps


SCHEDULES = {"whole": whole, "chunked": chunked, "ragged": ragged, "decoded": decoded}


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("case", CASES)
def test_logits_are_those_of_transformers(tiny, case, schedule):
    model = tiny(case)
    ids = sequences(model)
    got = run_all(compiled(model), ids, SCHEDULES[schedule](ids), seed=len(case))
    for name, tokens in ids.items():
        expected = model.logits_TV(tokens)
        np.testing.assert_allclose(got[name], expected, rtol=0, atol=tolerance(expected), err_msg=name)


@pytest.mark.parametrize("case", ["qwen2_sliding", "mistral", "gemma3"])
def test_blocks_that_left_the_window_are_not_read(tiny, case):
    """Their table entries are the null block, which holds NaN."""
    model = tiny(case)
    ids = sequences(model)
    got = run_all(compiled(model), ids, ragged(ids), drop_dead=True)
    for name, tokens in ids.items():
        expected = model.logits_TV(tokens)
        np.testing.assert_allclose(got[name], expected, rtol=0, atol=tolerance(expected), err_msg=name)


@pytest.mark.parametrize("case", FAMILY_CASES)
def test_only_asked_rows_are_sampled_and_candidates_need_no_full_logits(tiny, case):
    model = tiny(case)
    tokens = random_ids(20, model.loaded.spec.vocab_size)
    executable = compiled(model, **{"fuse.lm_head": "on"})
    batch = Stepper(executable.plan, {"a": tokens}).batch([("a", 20)], full_logits=False)
    batch.num_rows = 2
    batch.sample_rows_R[:2] = [19, 4]
    out = executable.run(batch)
    assert out.logits_RV is None
    assert out.top_ids_RK.shape == (2, TOP_K)
    expected = model.logits_TV(tokens)[[19, 4]]
    top = -np.sort(-expected, axis=1)[:, :TOP_K]
    np.testing.assert_allclose(out.top_logits_RK, top, rtol=0, atol=tolerance(expected))


def test_a_vocabulary_smaller_than_the_candidates_is_padded(tiny):
    model = tiny("llama_small_vocab")
    tokens = random_ids(6, model.loaded.spec.vocab_size)
    executable = compiled(model)
    out = executable.run(Stepper(executable.plan, {"a": tokens}).batch([("a", 6)]))
    vocab = model.loaded.spec.vocab_size
    assert vocab < TOP_K
    np.testing.assert_array_equal(np.sort(out.top_ids_RK[:, :vocab], axis=1), np.tile(np.arange(vocab), (6, 1)))
    assert (out.top_ids_RK[:, vocab:] == -1).all()
    assert np.isneginf(out.top_logits_RK[:, vocab:]).all()


def test_poisoned_blocks_reach_only_their_readers(tiny):
    model = tiny("qwen3")
    ids = sequences(model)
    executable = compiled(model)
    stepper = Stepper(executable.plan, ids)
    executable.run(stepper.batch([("a", 20), ("b", 20)]))
    executable.poison_blocks(0, [int(stepper.tables[0]["b"][0])])
    logits_RV = executable.run(stepper.batch([("a", 1), ("b", 1)])).logits_RV
    assert logits_RV is not None
    expected = model.logits_TV(ids["a"])[20]
    np.testing.assert_allclose(logits_RV[0], expected, rtol=0, atol=tolerance(expected))
    assert np.isnan(logits_RV[1]).all()
