"""`Engine`: requests in, events out; one step at a time, on the caller's thread."""

from __future__ import annotations

import time
from collections.abc import Iterable, MutableSequence, Sequence
from typing import NamedTuple

import numpy as np

from fuseboard.backends.base import Executable
from fuseboard.core.batch import StepBatch
from fuseboard.core.env import debug_checks
from fuseboard.core.errors import RequestError
from fuseboard.execute.kv_cache import make_cache
from fuseboard.execute.prefix import PrefixChain
from fuseboard.execute.records import RequestRecord, StepRecord, TokenEvent
from fuseboard.execute.runner import Runner
from fuseboard.execute.sampler import NO_TOKEN, RowSampler, TokenLogprobs, choose_tokens, token_logprobs
from fuseboard.execute.sampling_params import SamplingParams
from fuseboard.execute.scheduler import Request, ScheduledSeq, ScheduledStep, Scheduler
from fuseboard.execute.text import OutputText
from fuseboard.load.tokenizer import Tokenizer
from fuseboard.plan.plan import ExecutionPlan

_now = time.monotonic_ns


class _Live:
    """A request that has not ended."""

    __slots__ = ("params", "record", "request", "sampler", "stop_ids", "text")

    def __init__(
        self, request: Request, params: SamplingParams, stop_ids: frozenset[int], text: OutputText | None, arrival: int
    ) -> None:
        self.request = request
        self.params = params
        self.stop_ids = stop_ids
        self.sampler = RowSampler(params, request.tokens, stop_ids)
        self.text = text
        self.record = RequestRecord(request_id=request.request_id, prompt_tokens=request.prompt_len, arrival_ns=arrival)

    @property
    def lives(self) -> bool:
        return self.record.finish_reason is None


class _Flight:
    """A step from its schedule to its tokens; some of its requests may have been aborted since."""

    MARKS = 7
    """Points in time of a step that did not fail."""

    __slots__ = ("batch", "decodes", "error", "lives", "marks", "sampling", "step")

    def __init__(self, step: ScheduledStep, lives: list[_Live], marks: list[int]) -> None:
        self.step, self.lives, self.marks = step, lives, marks
        self.decodes = step.is_decode and all(live.record.token_ns for live in lives)
        self.sampling = [live for live, seq in zip(lives, step.seqs, strict=True) if seq.samples]
        self.batch: StepBatch
        self.error: Exception | None = None


class _Choice(NamedTuple):
    """A request's next token and whether it ends with it. `shown` is its text where that had to be known; `cut`: a stop
    string ended it, and nothing of what it held back is shown."""

    live: _Live
    token: int
    logprobs: TokenLogprobs | None
    time_ns: int
    reason: str | None
    shown: str | None
    cut: bool


class Engine:
    """Runs requests on an executable as the plan says.

    Without a tokenizer there is no text. `eos_ids` end a request unless it ignores them; they are the tokenizer's
    where none are given. While `step_log` is a list (or a bounded deque) every step adds a `StepRecord` to it.
    """

    def __init__(
        self,
        executable: Executable,
        plan: ExecutionPlan,
        tokenizer: Tokenizer | None = None,
        *,
        eos_ids: Iterable[int] | None = None,
    ) -> None:
        self._executable = executable
        self._plan = plan
        self._tokenizer = tokenizer
        self._eos_ids = None if eos_ids is None else frozenset(eos_ids)
        self._releases = not plan.kv.pooled
        self._poisons = debug_checks()
        self._cache = make_cache(plan.kv, plan.schedule, track_freed=self._releases or self._poisons)
        self._scheduler = Scheduler(plan.schedule, self._cache)
        self._runner = Runner(plan.kv, plan.schedule)
        self._live: dict[str, _Live] = {}
        self._overlaps = plan.run.overlap
        self._flight: _Flight | None = None
        self._overlapped = 0
        self.step_log: MutableSequence[StepRecord] | None = None

    @property
    def has_work(self) -> bool:
        return bool(self._live)

    @property
    def num_running(self) -> int:
        return self._scheduler.num_running

    @property
    def num_waiting(self) -> int:
        return self._scheduler.num_waiting

    def add_request(
        self,
        request_id: str,
        token_ids: Sequence[int],
        params: SamplingParams,
        *,
        arrival_ns: int | None = None,
        want_text: bool = True,
        cache_salt: bytes = b"",
    ) -> None:
        """Queues a request; RequestError when it can never be served.

        `want_text` False saves turning tokens into text where nobody reads it (stop strings still work).
        `cache_salt` keeps its prefixes apart from those of requests with another salt.
        """
        if request_id in self._live:
            raise RequestError(f"There is already a request {request_id!r}; give every request its own id.")
        tokens = self._checked_prompt(token_ids, params)
        most = params.max_tokens or max(1, self._scheduler.most_new_tokens(len(tokens)))
        request = Request(request_id, tokens, most, PrefixChain(self._plan.kv.block_size, cache_salt))
        text = self._output_text(params, want_text=want_text)
        live = _Live(request, params, self._stop_ids(params), text, _now() if arrival_ns is None else arrival_ns)
        self._scheduler.add(request)
        self._live[request_id] = live

    def abort(self, request_id: str) -> TokenEvent | None:
        """Ends a request now and gives its last event; None when it has ended already or never was."""
        if request_id not in self._live:
            return None
        return self._end(self._live[request_id], "abort")

    def step(self) -> list[TokenEvent]:
        """Computes one step; the events come in the order of the step's sequences.

        When the executable fails, the requests of the step end with the reason error and everything else goes on.
        When the plan overlaps steps, the next one runs from here on: it is started as soon as this one's tokens are
        known, and the text and events of this one are made meanwhile.
        """
        flight, self._flight = self._flight or self._begin(), None
        if flight is None:
            return []
        events, chosen = self._finish(flight)
        if self._overlaps:
            self._log(flight)
            self._flight = self._begin()
            self._overlapped += bool(self._flight and chosen)
        events += [self._event(choice) for choice in chosen]
        if not self._overlaps:
            self._log(flight)
        return events

    def memory(self) -> dict[str, int]:
        """Bytes of physical memory by component, as the system reports them now."""
        return self._executable.memory()

    def counters(self) -> dict[str, int]:
        """Engagement counters of scheduler, cache and executable since the start."""
        own = {"overlapped_steps": self._overlapped}
        return self._scheduler.counters() | self._cache.counters() | self._executable.counters() | own

    def reset_prefix_cache(self) -> None:
        """Forgets all known prefixes; requests that run keep their blocks."""
        self._cache.forget_prefixes()

    def close(self) -> None:
        """Ends all requests and frees the executable."""
        for live in list(self._live.values()):
            self._end(live, "abort")
        self._executable.close()

    def _begin(self) -> _Flight | None:
        """The next step, prepared, and running already where steps overlap."""
        start = _now()
        step = self._scheduler.schedule()
        if step is None:
            return None
        self._give_back_blocks()
        lives = [self._live[seq.request.request_id] for seq in step.seqs]
        for live in lives:
            live.record.first_scheduled_ns = live.record.first_scheduled_ns or start
        flight = _Flight(step, lives, [start, _now()])
        try:
            needs_full = any(live.sampler.needs_full for live in flight.sampling)
            flight.batch = self._runner.prepare(step, full_logits=needs_full)
            if self._overlaps:
                self._executable.start(flight.batch)
        except Exception as error:
            flight.error = error
        flight.marks.append(_now())
        return flight

    def _finish(self, flight: _Flight) -> tuple[list[TokenEvent], list[_Choice]]:
        """Events of requests that failed in the step, and the tokens of the others. Who ends with its token leaves."""
        try:
            tokens, logprobs = self._compute(flight)
        except Exception as error:
            return [self._end(live, "error", error=error) for live in flight.lives if live.lives], []
        events = self._fail_rows(flight.sampling, tokens) if NO_TOKEN in tokens else []
        self._scheduler.complete(flight.step, tokens)
        sampled = flight.marks[-1]
        flight.marks.append(_now())
        rows = zip(flight.sampling, tokens, logprobs, strict=True)
        return events, [self._choice(live, token, logprob, sampled) for live, token, logprob in rows if live.lives]

    def _compute(self, flight: _Flight) -> tuple[list[int], list[TokenLogprobs | None]]:
        """A token and its log-probabilities for every request that samples."""
        if flight.error is not None:
            raise flight.error
        output = self._executable.wait() if self._overlaps else self._executable.run(flight.batch)
        flight.marks.append(_now())
        tokens = choose_tokens([live.sampler for live in flight.sampling], output)
        logprobs: list[TokenLogprobs | None] = [None] * len(tokens)
        for row, (live, token) in enumerate(zip(flight.sampling, tokens, strict=True)):
            if live.params.logprobs is not None and token != NO_TOKEN:
                logprobs[row] = token_logprobs(output, row, token, live.params.logprobs)
        flight.marks.append(_now())
        return tokens, logprobs

    def _fail_rows(self, sampling: list[_Live], tokens: list[int]) -> list[TokenEvent]:
        # What the requests left in the cache may be wrong from an earlier step on.
        self._cache.forget_prefixes()
        error = ArithmeticError(
            "The model gave logits that are not finite; the weights or the cache format do not fit."
        )
        failed = [live for live, token in zip(sampling, tokens, strict=True) if token == NO_TOKEN and live.lives]
        return [self._end(live, "error", error=error) for live in failed]

    def _choice(self, live: _Live, token: int, logprobs: TokenLogprobs | None, time_ns: int) -> _Choice:
        """What follows from a token for its request. Text is made here only where it may end the request."""
        live.record.token_ns.append(time_ns)
        count = len(live.record.token_ns)
        reason, shown, cut = None, None, False
        if token in live.stop_ids and count > live.params.min_tokens:
            reason, shown = "stop", ""
        elif live.text is not None and live.params.stop:
            shown, cut = live.text.push(token)
        if cut:
            reason = "stop"
        elif reason is None and count == live.request.max_tokens:
            reason = "length"
        if reason is not None:
            self._leave(live, reason)
        return _Choice(live, token, logprobs, time_ns, reason, shown, cut)

    def _event(self, choice: _Choice) -> TokenEvent:
        live, token, logprobs, time_ns, reason, shown, cut = choice
        if shown is None:
            shown = live.text.push(token)[0] if live.text is not None else ""
        if reason is None:
            return TokenEvent(live.record.request_id, token, shown, logprobs, time_ns)
        if live.text is not None and not cut:
            shown += live.text.finish()
        return TokenEvent(live.record.request_id, token, shown, logprobs, time_ns, reason, None, live.record)

    def _end(self, live: _Live, reason: str, *, error: Exception | None = None) -> TokenEvent:
        """The last event of a request that ends without a token."""
        self._leave(live, reason)
        record = live.record
        shown = live.text.finish() if live.text is not None else ""
        return TokenEvent(record.request_id, None, shown, None, record.finish_ns, reason, error, record)

    def _leave(self, live: _Live, reason: str) -> None:
        record, request = live.record, live.request
        self._scheduler.remove(request)
        del self._live[request.request_id]
        record.finish_ns, record.finish_reason = _now(), reason
        record.cached_tokens, record.preemptions = request.cached_tokens, request.preemptions

    def _log(self, flight: _Flight) -> None:
        if self.step_log is not None and len(flight.marks) == _Flight.MARKS - 1:
            flight.marks.append(_now())
            self.step_log.append(_step_record(flight))

    def _give_back_blocks(self) -> None:
        """Before the step that may write them anew, freed blocks lose their pages or are filled with NaN."""
        for group, blocks in self._cache.drain_freed():
            if self._releases:
                self._executable.release_blocks(group, blocks)
            if self._poisons:
                self._executable.poison_blocks(group, blocks)

    def _checked_prompt(self, token_ids: Sequence[int], params: SamplingParams) -> list[int]:
        vocab = self._plan.spec.vocab_size
        if not len(token_ids):
            raise RequestError("The prompt is empty; give at least one token.")
        ids = np.asarray(token_ids)
        if ids.ndim != 1 or ids.dtype.kind not in "iu":
            raise RequestError("A prompt is a string or a flat list of whole numbers, the token ids.")
        prompt: list[int] = ids.tolist()
        named = {"prompt": prompt, "stop_token_ids": params.stop_token_ids, "logit_bias": params.logit_bias}
        for name, tokens in named.items():
            bad = next((t for t in (min(tokens, default=0), max(tokens, default=0)) if not 0 <= t < vocab), None)
            if bad is not None:
                raise RequestError(f"Token id {bad} of {name} is not in the vocabulary of {vocab} tokens.")
        return prompt

    def _stop_ids(self, params: SamplingParams) -> frozenset[int]:
        """Tokens that end the request; the model's own are read late, when the tokenizer has had time to load."""
        if params.ignore_eos:
            return frozenset(params.stop_token_ids)
        if self._eos_ids is None:
            self._eos_ids = self._tokenizer.eos_ids if self._tokenizer is not None else frozenset()
        return self._eos_ids | frozenset(params.stop_token_ids)

    def _output_text(self, params: SamplingParams, *, want_text: bool) -> OutputText | None:
        stops = tuple(params.stop)
        if self._tokenizer is None:
            if stops:
                raise RequestError("Stop strings need a tokenizer, and this model has none; use stop_token_ids.")
            return None
        if not want_text and not stops:
            return None
        return OutputText(self._tokenizer, stops, skip_special=params.skip_special_tokens, min_tokens=params.min_tokens)


def _step_record(flight: _Flight) -> StepRecord:
    start, scheduled, prepared, executed, sampled, completed, end = flight.marks
    step = flight.step
    return StepRecord(
        start_ns=start,
        schedule_ns=scheduled - start + completed - sampled,
        prepare_ns=prepared - scheduled,
        execute_ns=executed - prepared,
        sample_ns=sampled - executed,
        detokenise_ns=end - completed,
        is_decode=flight.decodes,
        tokens=step.num_tokens,
        seqs=len(step.seqs),
        rows=sum(seq.samples for seq in step.seqs),
        context_tokens=sum(_seen(seq) for seq in step.seqs),
        cached_tokens=sum(seq.start + seq.num_tokens for seq in step.seqs),
    )


def _seen(seq: ScheduledSeq) -> int:
    """Context that the tokens of a sequence see, each up to itself, summed."""
    return seq.num_tokens * seq.start + seq.num_tokens * (seq.num_tokens + 1) // 2
