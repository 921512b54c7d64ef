"""`Engine`: requests in, events out; one step at a time, on the caller's thread."""

import time
from collections.abc import Iterable, MutableSequence, Sequence

import numpy as np

from fuseboard.backends.base import Executable
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
        """
        marks = [_now()]
        step = self._scheduler.schedule()
        if step is None:
            return []
        self._give_back_blocks()
        marks.append(_now())
        lives = [self._live[seq.request.request_id] for seq in step.seqs]
        for live in lives:
            live.record.first_scheduled_ns = live.record.first_scheduled_ns or marks[0]
        decodes = step.is_decode and all(live.record.token_ns for live in lives)
        sampling = [live for live, seq in zip(lives, step.seqs, strict=True) if seq.samples]
        try:
            tokens, logprobs = self._compute(step, sampling, marks)
        except Exception as error:
            return [self._end(live, "error", error=error) for live in lives]
        events = self._fail_rows(sampling, tokens) if NO_TOKEN in tokens else []
        self._scheduler.complete(step, tokens)
        sampled = marks[-1]
        marks.append(_now())
        for live, token, logprob in zip(sampling, tokens, logprobs, strict=True):
            if token != NO_TOKEN:
                events.append(self._token_event(live, token, logprob, sampled))
        if self.step_log is not None:
            marks.append(_now())
            self.step_log.append(_step_record(marks, decodes, step))
        return events

    def memory(self) -> dict[str, int]:
        """Bytes of physical memory by component, as the system reports them now."""
        return self._executable.memory()

    def counters(self) -> dict[str, int]:
        """Engagement counters of scheduler, cache and executable since the start."""
        return self._scheduler.counters() | self._cache.counters() | self._executable.counters()

    def reset_prefix_cache(self) -> None:
        """Forgets all known prefixes; requests that run keep their blocks."""
        self._cache.forget_prefixes()

    def close(self) -> None:
        """Ends all requests and frees the executable."""
        for live in list(self._live.values()):
            self._end(live, "abort")
        self._executable.close()

    def _compute(
        self, step: ScheduledStep, sampling: list[_Live], marks: list[int]
    ) -> tuple[list[int], list[TokenLogprobs | None]]:
        """A token and its log-probabilities for every request that samples."""
        samplers = [live.sampler for live in sampling]
        batch = self._runner.prepare(step, full_logits=any(sampler.needs_full for sampler in samplers))
        marks.append(_now())
        output = self._executable.run(batch)
        marks.append(_now())
        tokens = choose_tokens(samplers, output)
        logprobs: list[TokenLogprobs | None] = [None] * len(tokens)
        for row, (live, token) in enumerate(zip(sampling, tokens, strict=True)):
            if live.params.logprobs is not None and token != NO_TOKEN:
                logprobs[row] = token_logprobs(output, row, token, live.params.logprobs)
        marks.append(_now())
        return tokens, logprobs

    def _fail_rows(self, sampling: list[_Live], tokens: list[int]) -> list[TokenEvent]:
        # What the requests left in the cache may be wrong from an earlier step on.
        self._cache.forget_prefixes()
        error = ArithmeticError(
            "The model gave logits that are not finite; the weights or the cache format do not fit."
        )
        failed = [live for live, token in zip(sampling, tokens, strict=True) if token == NO_TOKEN]
        return [self._end(live, "error", error=error) for live in failed]

    def _token_event(self, live: _Live, token: int, logprobs: TokenLogprobs | None, time_ns: int) -> TokenEvent:
        record = live.record
        record.token_ns.append(time_ns)
        count = len(record.token_ns)
        if token in live.stop_ids and count > live.params.min_tokens:
            return self._end(live, "stop", token=token, logprobs=logprobs)
        text = ""
        if live.text is not None:
            text, stopped = live.text.push(token)
            if stopped:
                return self._end(live, "stop", token=token, logprobs=logprobs, shown=text, flush=False)
        if count == live.request.max_tokens:
            return self._end(live, "length", token=token, logprobs=logprobs, shown=text)
        return TokenEvent(record.request_id, token, text, logprobs, time_ns)

    def _end(
        self,
        live: _Live,
        reason: str,
        *,
        token: int | None = None,
        logprobs: TokenLogprobs | None = None,
        shown: str = "",
        flush: bool = True,
        error: Exception | None = None,
    ) -> TokenEvent:
        """The last event of a request, which leaves the engine."""
        record, request = live.record, live.request
        self._scheduler.remove(request)
        del self._live[request.request_id]
        record.finish_ns, record.finish_reason = _now(), reason
        record.cached_tokens, record.preemptions = request.cached_tokens, request.preemptions
        if live.text is not None and flush:
            shown += live.text.finish()
        time_ns = record.finish_ns if token is None else record.token_ns[-1]
        return TokenEvent(request.request_id, token, shown, logprobs, time_ns, reason, error, record)

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


def _step_record(marks: list[int], decodes: bool, step: ScheduledStep) -> StepRecord:
    start, scheduled, prepared, executed, sampled, completed, end = marks
    return StepRecord(
        start_ns=start,
        schedule_ns=scheduled - start + completed - sampled,
        prepare_ns=prepared - scheduled,
        execute_ns=executed - prepared,
        sample_ns=sampled - executed,
        detokenise_ns=end - completed,
        is_decode=decodes,
        tokens=step.num_tokens,
        seqs=len(step.seqs),
        rows=sum(seq.samples for seq in step.seqs),
        context_tokens=sum(_seen(seq) for seq in step.seqs),
        cached_tokens=sum(seq.start + seq.num_tokens for seq in step.seqs),
    )


def _seen(seq: ScheduledSeq) -> int:
    """Context that the tokens of a sequence see, each up to itself, summed."""
    return seq.num_tokens * seq.start + seq.num_tokens * (seq.num_tokens + 1) // 2
