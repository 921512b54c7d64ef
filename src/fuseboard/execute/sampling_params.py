"""`SamplingParams`: how a request's tokens are chosen and when it ends."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from fuseboard.core.batch import TOP_K
from fuseboard.core.errors import RequestError


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """Parameters of one request; RequestError when one is out of range.

    A token is chosen in this order: tokens that may not come yet are removed (`min_tokens`), repetition, frequency
    and presence penalties, `logit_bias`, `temperature` (0 takes the best token), `top_k`, `top_p`, `min_p`; each step
    works on the distribution that the one before left. The repetition penalty counts prompt and output, the other two
    the output only.

    `max_tokens` None means as many as fit. `top_k` 0 is off. `seed` None draws a new seed. A request ends at a token
    of the model's end tokens (unless `ignore_eos`), at one of `stop_token_ids`, at a string of `stop` (which the text
    then does not contain), or after `max_tokens`; stops wait for `min_tokens`. `logprobs` n reports the chosen token
    and the n best ones of every position, as log-softmax of the model's own logits, before penalties, bias and
    temperature.
    """

    max_tokens: int | None = None
    min_tokens: int = 0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    stop: str | tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    skip_special_tokens: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "stop", (self.stop,) if isinstance(self.stop, str) else tuple(self.stop))
        object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids))
        self._check_lengths()
        self._check_distribution()
        for text in self.stop:
            _require(isinstance(text, str) and bool(text), "stop", "non-empty strings", text)
        for token in self.stop_token_ids:
            _require(_is_int(token) and token >= 0, "stop_token_ids", "token ids", token)
        for token, bias in self.logit_bias.items():
            _require(_is_int(token) and token >= 0, "logit_bias", "a mapping from token ids", token)
            _require(_within(bias, -100, 100), "logit_bias", "biases from -100 to 100", bias)

    def _check_lengths(self) -> None:
        most = self.max_tokens
        _require(most is None or (_is_int(most) and most >= 1), "max_tokens", "at least 1", most)
        _require(_is_int(self.min_tokens) and self.min_tokens >= 0, "min_tokens", "at least 0", self.min_tokens)
        if most is not None and self.min_tokens > most:
            raise RequestError(f"min_tokens ({self.min_tokens}) must not be larger than max_tokens ({most}).")
        count = self.logprobs
        _require(count is None or (_is_int(count) and count >= 0), "logprobs", "None or at least 0", count)

    def _check_distribution(self) -> None:
        _require(
            _within(self.temperature, 0, math.inf), "temperature", "a finite number of at least 0", self.temperature
        )
        _require(_is_int(self.top_k) and self.top_k >= 0, "top_k", "0 (off) or at least 1", self.top_k)
        _require(_within(self.top_p, 0, 1) and self.top_p > 0, "top_p", "above 0 and at most 1", self.top_p)
        _require(_within(self.min_p, 0, 1), "min_p", "from 0 to 1", self.min_p)
        _require(_within(self.presence_penalty, -2, 2), "presence_penalty", "from -2 to 2", self.presence_penalty)
        _require(_within(self.frequency_penalty, -2, 2), "frequency_penalty", "from -2 to 2", self.frequency_penalty)
        penalty = self.repetition_penalty
        _require(
            _within(penalty, 0, math.inf) and penalty > 0, "repetition_penalty", "a finite number above 0", penalty
        )
        _require(self.seed is None or (_is_int(self.seed) and self.seed >= 0), "seed", "None or at least 0", self.seed)

    @property
    def changes_logits(self) -> bool:
        """Penalties or biases, which may reach any token of the vocabulary."""
        penalties = self.presence_penalty or self.frequency_penalty or self.repetition_penalty != 1.0
        return bool(penalties or self.logit_bias)

    def needs_full_logits(self, banned: int) -> bool:
        """Whether a choice may fall outside the best `TOP_K` tokens when `banned` of them may have to be left out.

        A nucleus (`top_p`) or an unbounded choice can be of any size, and it has to be known before the step.
        """
        if self.changes_logits or (self.logprobs or 0) > TOP_K:
            return True
        candidates = 1 if self.temperature == 0 else self.top_k
        return candidates == 0 or candidates + banned > TOP_K


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _within(value: object, low: float, high: float) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and low <= value <= high and math.isfinite(value)  # type: ignore[operator, arg-type]


def _require(holds: bool, name: str, what: str, value: object) -> None:
    if not holds:
        raise RequestError(f"{name} must be {what}, not {value!r}.")
