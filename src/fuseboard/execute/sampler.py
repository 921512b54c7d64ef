"""Choosing tokens from what a step gives.

R rows to sample, K candidates a row (the best `TOP_K`), V vocabulary, N tokens still in play. A row's token depends on
its own logits, parameters and generator only: every request has its own Philox stream and draws one number a token.
"""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fuseboard.core.batch import StepOutput
from fuseboard.execute.sampling_params import SamplingParams

Doubles = NDArray[np.float64]
Ids = NDArray[np.int32] | NDArray[np.int64]

NO_TOKEN = -1
"""In place of a token where the model gave numbers that are not finite."""


class TokenLogprobs(NamedTuple):
    """Log-probabilities of one position, natural logarithm, from the model's own logits."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]
    """The best (token id, log-probability) pairs, best first."""


class RowSampler:
    """Chooses the tokens of one request. `banned` may not come before `min_tokens` tokens have."""

    def __init__(self, params: SamplingParams, prompt: list[int], banned: frozenset[int]) -> None:
        self._params = params
        self._banned = np.array(sorted(banned) if params.min_tokens else (), dtype=np.int64)
        self._count = 0
        self._prompt = np.unique(np.array(prompt, dtype=np.int64)) if params.repetition_penalty != 1.0 else None
        self._output: Counter[int] = Counter()
        self._bias_ids = np.array(list(params.logit_bias), dtype=np.int64)
        self._bias = np.array(list(params.logit_bias.values()), dtype=np.float64)
        self.needs_full = params.needs_full_logits(len(self._banned))
        self.takes_best = params.temperature == 0 and not params.changes_logits and not len(self._banned)
        greedy = params.temperature == 0
        self._generator = None if greedy else np.random.Generator(np.random.Philox(params.seed))

    def choose(self, output: StepOutput, row: int) -> int:
        """The next token of this request, whose logits are row `row` of the step's output."""
        if self.needs_full:
            assert output.logits_RV is not None
            logits_N = output.logits_RV[row].astype(np.float64)
            ids_N: Ids = np.arange(len(logits_N))
            self._change(logits_N)
        else:
            ids_N, logits_N = output.top_ids_RK[row], output.top_logits_RK[row].astype(np.float64)
        if self._count < self._params.min_tokens and len(self._banned):
            keep_N = ~np.isin(ids_N, self._banned)
            ids_N, logits_N = ids_N[keep_N], logits_N[keep_N]
        if self._generator is None:
            token = int(ids_N[np.argmax(logits_N)])
        else:
            token = draw(*distribution(self._params, ids_N, logits_N), self._generator.random())
        self._count += 1
        if self._params.changes_logits:
            self._output[token] += 1
        return token

    def _change(self, logits_V: Doubles) -> None:
        """Penalties and biases, in place."""
        params = self._params
        seen = np.fromiter(self._output, dtype=np.int64, count=len(self._output))
        if self._prompt is not None:
            known = np.union1d(self._prompt, seen)
            values = logits_V[known]
            penalty = params.repetition_penalty
            logits_V[known] = np.where(values > 0, values / penalty, values * penalty)
        if len(seen) and (params.frequency_penalty or params.presence_penalty):
            times = np.fromiter(self._output.values(), dtype=np.float64, count=len(seen))
            logits_V[seen] -= params.frequency_penalty * times + params.presence_penalty
        logits_V[self._bias_ids] += self._bias


def distribution(params: SamplingParams, ids_N: Ids, logits_N: Doubles) -> tuple[Ids, Doubles]:
    """What temperature (above 0), top-k, top-p and min-p leave: token ids and their weights, which need not sum to 1.

    `ids_N` are rising, or sorted by falling logit; of equal logits the smaller id is the better one.
    """
    with np.errstate(over="ignore"):
        weights_N = np.exp((logits_N - logits_N.max()) / params.temperature)
    if params.top_k or params.top_p < 1.0:
        total = float(weights_N.sum())
        if params.top_k:
            order_N = _best(logits_N, params.top_k)
            total = float(weights_N[order_N].sum())
        else:
            # Tokens lighter than this weigh less than 1 - top_p together, so the nucleus is among the others.
            light = (1.0 - params.top_p) * total / len(weights_N)
            order_N = _falling(logits_N, np.flatnonzero(weights_N >= light))
        ids_N, weights_N = ids_N[order_N], weights_N[order_N]
        if params.top_p < 1.0:
            size = int(np.searchsorted(np.cumsum(weights_N), params.top_p * total)) + 1
            ids_N, weights_N = ids_N[:size], weights_N[:size]
    if params.min_p:
        keep_N = weights_N >= params.min_p * weights_N.max()
        ids_N, weights_N = ids_N[keep_N], weights_N[keep_N]
    return ids_N, weights_N


def draw(ids_N: Ids, weights_N: Doubles, uniform: float) -> int:
    """The token at the quantile `uniform`, from 0 to below 1."""
    mass_N = np.cumsum(weights_N)
    index = np.searchsorted(mass_N, uniform * mass_N[-1], side="right")
    return int(ids_N[min(int(index), len(ids_N) - 1)])


def choose_tokens(samplers: Sequence[RowSampler], output: StepOutput) -> list[int]:
    """A token a row; `NO_TOKEN` for a row whose logits are not finite, which leaves its neighbours alone."""
    if not samplers:
        return []
    rows = len(samplers)
    tokens: list[int] = output.top_ids_RK[:rows, 0].tolist()
    if not np.isfinite(output.logsumexp_R[:rows].sum()):
        finite = np.isfinite(output.logsumexp_R[:rows]).tolist()
    else:
        finite = None
    for row, sampler in enumerate(samplers):
        if finite is not None and not finite[row]:
            tokens[row] = NO_TOKEN
        elif not sampler.takes_best:
            tokens[row] = sampler.choose(output, row)
    return tokens


def token_logprobs(output: StepOutput, row: int, token: int, count: int) -> TokenLogprobs:
    """Log-softmax of the chosen token and of the `count` best ones of a row; more than `TOP_K` need full logits."""
    norm = float(output.logsumexp_R[row])
    ids_N: Ids = output.top_ids_RK[row]
    logits_N = output.top_logits_RK[row]
    if count > len(ids_N):
        assert output.logits_RV is not None
        logits_V = output.logits_RV[row]
        ids_N = _best(logits_V, count)
        logits_N = logits_V[ids_N]
    found = np.flatnonzero(ids_N == token)
    if len(found):
        chosen = float(logits_N[found[0]])
    else:
        assert output.logits_RV is not None
        chosen = float(output.logits_RV[row, token])
    best = zip(ids_N[:count].tolist(), (logits_N[:count].astype(np.float64) - norm).tolist(), strict=True)
    return TokenLogprobs(token, chosen - norm, tuple(best))


def _best(logits_N: NDArray[np.floating], count: int) -> NDArray[np.int64]:
    """Indices of the `count` largest values, falling; of equal values the first."""
    among_N = np.arange(len(logits_N))
    if count < len(logits_N):
        smallest = np.partition(logits_N, len(logits_N) - count)[len(logits_N) - count]
        among_N = np.flatnonzero(logits_N >= smallest)
    return _falling(logits_N, among_N)[:count]


def _falling(logits_N: NDArray[np.floating], among_N: NDArray[np.int64]) -> NDArray[np.int64]:
    return among_N[np.argsort(-logits_N[among_N], kind="stable")]
