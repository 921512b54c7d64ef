"""Tokens follow the exact distribution of their parameters, by their own seed, whatever is beside them."""

import math

import numpy as np
import pytest
from memory_machine import step_output
from scipy.stats import chisquare

from fuseboard.core.batch import TOP_K
from fuseboard.core.errors import RequestError
from fuseboard.execute.sampler import NO_TOKEN, RowSampler, choose_tokens, distribution, draw, token_logprobs
from fuseboard.execute.sampling_params import SamplingParams

VOCAB = 200
NONE: frozenset[int] = frozenset()


def some_logits(seed=0, *, spread=1.5, ties=False):
    logits = np.random.default_rng(seed).normal(scale=spread, size=VOCAB).astype(np.float32)
    return np.round(logits) if ties else logits


def softmax(logits):
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()


def exact_probabilities(logits, params):
    """Word for word what `SamplingParams` promises, over the whole vocabulary."""
    p = softmax(logits.astype(np.float64) / params.temperature)
    order = sorted(range(len(p)), key=lambda i: (-logits[i], i))
    if params.top_k:
        p[order[params.top_k :]] = 0
        p /= p.sum()
    if params.top_p < 1:
        mass = 0.0
        for i in order:
            if mass >= params.top_p:
                p[i] = 0
            mass += p[i]
        p /= p.sum()
    p[p < params.min_p * p.max()] = 0
    return p / p.sum()


def sampler_of(prompt=(1,), banned=NONE, **params):
    return RowSampler(SamplingParams(**params), list(prompt), banned)


def choose(sampler, logits):
    return choose_tokens([sampler], step_output(logits[None], full=sampler.needs_full))[0]


SHAPES = [
    {},
    {"temperature": 0.5},
    {"temperature": 3.0},
    {"top_k": 1},
    {"top_k": 7},
    {"top_k": 64},
    {"top_k": 65},
    {"top_k": 500},
    {"top_p": 0.3},
    {"top_p": 0.95, "temperature": 2.0},
    {"min_p": 0.2},
    {"top_k": 20, "top_p": 0.7},
    {"top_k": 90, "top_p": 0.9, "min_p": 0.05, "temperature": 1.3},
    {"top_p": 1e-6},
]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("ties", [False, True])
def test_the_distribution_is_exact(shape, ties):
    params = SamplingParams(**shape)
    logits = some_logits(ties=ties)
    output = step_output(logits[None], full=True)
    ids, given = np.arange(VOCAB), logits
    if not params.needs_full_logits(0):
        ids, given = output.top_ids_RK[0], output.top_logits_RK[0]
    kept, weights = distribution(params, ids, given.astype(np.float64))
    got = np.zeros(VOCAB)
    got[kept] = weights / weights.sum()
    np.testing.assert_allclose(got, exact_probabilities(logits, params), rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("shape", [{"temperature": 0.7}, {"top_k": 9}, {"top_p": 0.8}, {"min_p": 0.1, "top_k": 40}])
def test_draws_follow_the_distribution(shape):
    params = SamplingParams(seed=11, **shape)
    logits = some_logits(3)
    expected = exact_probabilities(logits, params)
    sampler = RowSampler(params, [1], NONE)
    draws = 20_000
    counts = np.bincount([choose(sampler, logits) for _ in range(draws)], minlength=VOCAB)
    assert not counts[expected == 0].any()
    common = expected * draws >= 5
    observed = [*counts[common], counts[~common].sum()]
    wanted = [*(expected[common] * draws), expected[~common].sum() * draws]
    if wanted[-1] == 0:
        observed, wanted = observed[:-1], wanted[:-1]
    assert chisquare(observed, wanted).pvalue > 1e-3


def test_a_draw_never_leaves_the_distribution():
    ids, weights = np.array([3, 5, 8]), np.array([0.5, 0.0, 0.1])
    assert draw(ids, weights, 0.0) == 3
    assert draw(ids, weights, np.nextafter(1.0, 0.0)) == 8


def test_greedy_takes_the_first_of_equal_logits():
    logits = some_logits(ties=True)
    assert choose(sampler_of(temperature=0), logits) == int(np.flatnonzero(logits == logits.max())[0])


def test_a_tiny_temperature_is_greedy():
    logits = some_logits()
    assert choose(sampler_of(temperature=1e-300, seed=1), logits) == int(logits.argmax())


def test_a_row_depends_on_its_seed_and_not_on_its_neighbours():
    rows = np.stack([some_logits(n) for n in range(5)])
    shapes = [{"temperature": 0}, {}, {"top_k": 5}, {"presence_penalty": 1.0}, {"top_p": 0.9}]

    def alone(row):
        sampler = sampler_of(seed=row, **shapes[row])
        return [choose(sampler, rows[row]) for _ in range(20)]

    def together(order):
        samplers = [sampler_of(seed=row, **shapes[row]) for row in order]
        output = step_output(rows[order], full=True)
        steps = [choose_tokens(samplers, output) for _ in range(20)]
        return {row: [tokens[i] for tokens in steps] for i, row in enumerate(order)}

    wanted = {row: alone(row) for row in range(5)}
    assert together([0, 1, 2, 3, 4]) == wanted
    assert together([3, 1, 4, 0, 2]) == wanted
    other_seed = sampler_of(seed=99)
    assert alone(1) != [choose(other_seed, rows[1]) for _ in range(20)]


def test_without_a_seed_requests_differ():
    logits = some_logits()
    runs = []
    for _ in range(2):
        sampler = sampler_of()
        runs.append([choose(sampler, logits) for _ in range(20)])
    assert runs[0] != runs[1]


def test_penalties_count_what_was_seen():
    logits = np.zeros(VOCAB, dtype=np.float32)
    logits[[10, 11, 12]] = (5.0, 4.9, 4.0)
    presence = sampler_of(temperature=0, presence_penalty=0.5)
    assert [choose(presence, logits) for _ in range(4)] == [10, 11, 10, 10]
    frequency = sampler_of(temperature=0, frequency_penalty=0.5)
    # 5.0, 4.9, 4.5, 4.4, 4.0 (10 before 12), 4.0, ...
    assert [choose(frequency, logits) for _ in range(6)] == [10, 11, 10, 11, 10, 12]
    repetition = sampler_of(prompt=[10], temperature=0, repetition_penalty=1.2)
    assert [choose(repetition, logits) for _ in range(3)] == [11, 10, 10]


def test_repetition_makes_negative_logits_more_negative():
    logits = np.full(VOCAB, -1.0, dtype=np.float32)
    logits[5] = -0.9
    assert choose(sampler_of(prompt=[5], temperature=0, repetition_penalty=1.2), logits) == 0


def test_biases_move_logits():
    logits = some_logits()
    assert choose(sampler_of(temperature=0, logit_bias={42: 100.0}), logits) == 42
    best = int(logits.argmax())
    assert choose(sampler_of(temperature=0, logit_bias={best: -100.0}), logits) == int(np.argsort(-logits)[1])


@pytest.mark.parametrize("shape", [{"temperature": 0}, {"top_k": 3, "seed": 1}, {"seed": 1}])
def test_end_tokens_are_left_out_before_min_tokens(shape):
    logits = some_logits()
    best = np.argsort(-logits)[:2].tolist()
    sampler = sampler_of(banned=frozenset(best), min_tokens=5, max_tokens=9, **shape)
    assert not {choose(sampler, logits) for _ in range(5)} & set(best)
    logits[best[0]] = 50.0
    assert choose(sampler, logits) == best[0]


@pytest.mark.parametrize(
    ("params", "full"),
    [
        ({"temperature": 0}, False),
        ({"temperature": 0, "logprobs": 64}, False),
        ({"temperature": 0, "logprobs": 65}, True),
        ({"temperature": 0, "frequency_penalty": 0.1}, True),
        ({"temperature": 0, "logit_bias": {1: 1.0}}, True),
        ({"temperature": 0, "min_tokens": 3}, False),
        ({"top_k": 64}, False),
        ({"top_k": 64, "top_p": 0.5, "min_p": 0.1}, False),
        ({"top_k": 64, "min_tokens": 3}, True),
        ({"top_k": 62, "min_tokens": 3}, False),
        ({"top_k": 65}, True),
        ({"top_p": 0.5}, True),
        ({}, True),
    ],
)
def test_full_logits_are_asked_for_only_when_a_choice_may_need_them(params, full):
    assert sampler_of(banned=frozenset({1, 2}), **params).needs_full == full


def test_logprobs_are_those_of_the_model():
    logits = some_logits()
    wanted = np.log(softmax(logits.astype(np.float64)))
    order = sorted(range(VOCAB), key=lambda i: (-logits[i], i))
    output = step_output(logits[None], full=True)
    for token, count in ((order[0], 3), (order[0], 0), (order[70], 5), (order[10], 100)):
        got = token_logprobs(output, 0, token, count)
        assert got.token_id == token
        assert got.logprob == pytest.approx(wanted[token], abs=1e-5)
        assert [t for t, _ in got.top] == order[:count]
        np.testing.assert_allclose([p for _, p in got.top], wanted[order[:count]], atol=1e-5)
    output.logits_RV = None
    assert token_logprobs(output, 0, order[5], TOP_K).logprob == pytest.approx(wanted[order[5]], abs=1e-5)


def test_rows_that_are_not_finite_are_marked():
    rows = np.stack([some_logits(n) for n in range(3)])
    output = step_output(rows, full=True)
    output.logsumexp_R[1] = np.nan
    tokens = choose_tokens([sampler_of(temperature=0) for _ in range(3)], output)
    assert tokens == [int(rows[0].argmax()), NO_TOKEN, int(rows[2].argmax())]
    assert choose_tokens([], output) == []


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"max_tokens": 0}, "max_tokens must be at least 1, not 0"),
        ({"max_tokens": 2.5}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_tokens": 2, "min_tokens": 3}, "min_tokens"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": math.nan}, "temperature"),
        ({"temperature": math.inf}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_k": -1}, "top_k"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"min_p": 1.5}, "min_p"),
        ({"presence_penalty": 2.5}, "presence_penalty"),
        ({"frequency_penalty": -2.5}, "frequency_penalty"),
        ({"repetition_penalty": 0.0}, "repetition_penalty"),
        ({"logit_bias": {1: 101.0}}, "logit_bias"),
        ({"logit_bias": {"a": 1.0}}, "logit_bias"),
        ({"seed": -1}, "seed"),
        ({"stop": ""}, "stop"),
        ({"stop": ("a", "")}, "stop"),
        ({"stop_token_ids": (-1,)}, "stop_token_ids"),
        ({"logprobs": -1}, "logprobs"),
    ],
)
def test_parameters_out_of_range_are_refused(params, words):
    with pytest.raises(RequestError, match=words):
        SamplingParams(**params)


def test_a_single_stop_string_is_a_list_of_one():
    assert SamplingParams(stop="end").stop == ("end",)
    assert SamplingParams(stop=["a", "b"], stop_token_ids=[1]).stop_token_ids == (1,)
