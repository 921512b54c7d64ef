"""Which tokens of which requests the next step computes.

Requests are served in the order of their arrival. Running requests come before waiting ones, the oldest first, and
nobody overtakes the head of the queue, so nobody starves. When blocks run out, the request that arrived last is
preempted: it keeps its tokens, goes back to the head of the queue and is computed again when there is room. The
oldest request can therefore always go on, and because a request that cannot fit alone is refused at once, it ends.
"""

from collections import deque
from typing import NamedTuple

from fuseboard.core.errors import RequestError
from fuseboard.execute.kv_cache import BlockTable, KvCache
from fuseboard.execute.prefix import PrefixChain
from fuseboard.plan.policy import SchedulePolicy


class Request:
    """A request as the scheduler sees it. `tokens` is the prompt and what was generated; the first `computed` of them
    are in the KV cache. It has a table exactly while it runs."""

    __slots__ = ("cached_tokens", "chain", "computed", "max_tokens", "preemptions", "prompt_len", "request_id", "table",
                 "tokens")  # fmt: skip

    def __init__(self, request_id: str, prompt: list[int], max_tokens: int, chain: PrefixChain) -> None:
        self.request_id = request_id
        self.tokens = list(prompt)
        self.prompt_len = len(prompt)
        self.max_tokens = max_tokens
        self.chain = chain
        self.computed = 0
        self.table: BlockTable | None = None
        self.cached_tokens = 0
        self.preemptions = 0

    @property
    def pending(self) -> int:
        return len(self.tokens) - self.computed

    @property
    def decoding(self) -> bool:
        """All that is left to compute is the token generated last."""
        return len(self.tokens) - self.computed == 1 and len(self.tokens) > self.prompt_len


class ScheduledSeq(NamedTuple):
    """`num_tokens` tokens of a request from position `start`; `samples` when they reach its end, so a token follows."""

    request: Request
    table: BlockTable
    start: int
    num_tokens: int
    samples: bool


class ScheduledStep(NamedTuple):
    """The sequences of a step, the oldest first; `is_decode` when each brings one token."""

    seqs: list[ScheduledSeq]
    num_tokens: int

    @property
    def is_decode(self) -> bool:
        return self.num_tokens == len(self.seqs)


class Scheduler:
    """Shares steps and blocks between requests as the policy says."""

    def __init__(self, policy: SchedulePolicy, cache: KvCache) -> None:
        self._policy = policy
        self._cache = cache
        self._arrived: deque[Request] = deque()
        self._queue: deque[Request] = deque()
        self._running: list[Request] = []
        self._last_was_prefill = False
        self._counts = dict.fromkeys(("steps", "batched_steps", "prefill_chunks", "separated_steps", "preemptions"), 0)

    @property
    def has_work(self) -> bool:
        return bool(self._running or self._queue or self._arrived)

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._queue) + len(self._arrived)

    def counters(self) -> dict[str, int]:
        return dict(self._counts)

    def most_new_tokens(self, prompt_len: int) -> int:
        """How many tokens can follow a prompt of this length; the last one is never written to the cache."""
        return min(self._policy.max_model_len, self._cache.longest + 1) - prompt_len

    def add(self, request: Request) -> None:
        """Queues the request; RequestError when it could never run."""
        self._check_fits(request)
        self._arrived.append(request)

    def schedule(self) -> ScheduledStep | None:
        """The next step, or None when there is nothing to do."""
        self._open_batch()
        if self._keeps_apart():
            seqs = self._separate_step()
        else:
            seqs = self._running_seqs(prefill=True, decode=True)
            self._admit(seqs)
        if not seqs:
            assert not self.has_work, "requests wait although nothing runs"
            return None
        self._count(seqs)
        return ScheduledStep(seqs, sum(seq.num_tokens for seq in seqs))

    def complete(self, step: ScheduledStep, sampled: list[int]) -> None:
        """The step was computed; `sampled` has one token for each of its sequences that samples. A request that was
        aborted since the step was made is left alone."""
        tokens, commit = iter(sampled), self._cache.commit
        for request, table, start, count, samples in step.seqs:
            token = next(tokens) if samples else None
            if request.table is not table:
                continue
            request.computed = computed = start + count
            commit(table, request.tokens, request.chain, computed)
            if token is not None:
                request.tokens.append(token)

    def remove(self, request: Request) -> None:
        """The request has ended or is given up, at any moment; its blocks are free for others."""
        if request.table is not None:
            self._running.remove(request)
            self._release(request)
        elif request in self._queue:
            self._queue.remove(request)
        else:
            self._arrived.remove(request)

    def _open_batch(self) -> None:
        """Moves requests from those that arrived to those that may be admitted."""
        room = self._policy.max_num_seqs
        if self._policy.batching == "continuous":
            room = len(self._arrived)
        elif self._running or self._queue:
            return
        elif self._policy.batching == "one":
            room = 1
        for _ in range(min(room, len(self._arrived))):
            self._queue.append(self._arrived.popleft())

    def _keeps_apart(self) -> bool:
        """Prefill and decode take turns: always with separate steps; else only while the next prompt has to enter
        whole and does not fit beside the running requests."""
        if self._policy.separate_steps:
            return True
        if self._policy.chunked or not self._queue or not self._running or not self._has_seat:
            return False
        return self._queue[0].pending > self._policy.max_step_tokens - len(self._running)

    @property
    def _has_seat(self) -> bool:
        return len(self._running) < self._policy.max_num_seqs

    def _separate_step(self) -> list[ScheduledSeq]:
        # A prefill step is followed by a decode step, so that neither kind waits for long.
        seqs: list[ScheduledSeq] = []
        if not self._last_was_prefill:
            seqs = self._prefill_seqs()
        self._last_was_prefill = bool(seqs)
        if not seqs:
            seqs = self._running_seqs(prefill=False, decode=True)
        if not seqs:
            seqs = self._prefill_seqs()
            self._last_was_prefill = bool(seqs)
        return seqs

    def _prefill_seqs(self) -> list[ScheduledSeq]:
        seqs = self._running_seqs(prefill=True, decode=False)
        self._admit(seqs)
        return seqs

    def _running_seqs(self, *, prefill: bool, decode: bool) -> list[ScheduledSeq]:
        """The next tokens of the running requests, the oldest first, as far as the budget reaches."""
        seqs: list[ScheduledSeq] = []
        budget = self._policy.max_step_tokens
        wants_all = prefill and decode
        running = self._running
        index = 0
        while index < len(running) and budget:
            request = running[index]
            index += 1
            if not (wants_all or (decode if request.decoding else prefill)):
                continue
            start = request.computed
            pending = len(request.tokens) - start
            count = min(pending, budget)
            table = request.table
            assert table is not None
            if start + count > table.capacity and not self._make_room(request, table, start + count):
                break
            seqs.append(ScheduledSeq(request, table, start, count, count == pending))
            budget -= count
        return seqs

    def _make_room(self, request: Request, table: BlockTable, end: int) -> bool:
        """Room for the request's tokens up to `end`, at the cost of later requests; False when it had to go itself."""
        while not self._cache.grow(table, request.computed, end):
            victim = self._running.pop()
            self._release(victim)
            victim.computed = 0
            victim.preemptions += 1
            self._counts["preemptions"] += 1
            self._queue.appendleft(victim)
            if victim is request:
                return False
        return True

    def _admit(self, seqs: list[ScheduledSeq]) -> None:
        """Lets requests from the head of the queue join the step."""
        budget = self._policy.max_step_tokens - sum(seq.num_tokens for seq in seqs)
        while self._queue and self._has_seat and budget:
            request = self._queue[0]
            total = len(request.tokens)
            hit = self._cache.match(request.tokens, request.chain)
            count = min(total - hit, budget)
            if count < total - hit and not self._may_split(request):
                return
            table = self._cache.admit(request.chain, hit, hit + count, total)
            if table is None:
                return
            self._running.append(self._queue.popleft())
            request.table = table
            request.computed = hit
            if not request.preemptions:
                request.cached_tokens = hit
            seqs.append(ScheduledSeq(request, table, hit, count, hit + count == total))
            budget -= count

    def _may_split(self, request: Request) -> bool:
        # A preempted request may have outgrown the budget, so it may be split even where prompts enter whole.
        return self._policy.chunked or len(request.tokens) > self._policy.max_step_tokens

    def _release(self, request: Request) -> None:
        assert request.table is not None
        self._cache.release(request.table)
        request.table = None

    def _count(self, seqs: list[ScheduledSeq]) -> None:
        counts = self._counts
        counts["steps"] += 1
        counts["batched_steps"] += len(seqs) > 1
        for seq in seqs:
            if not seq.samples and seq.start + seq.num_tokens < seq.request.prompt_len:
                counts["prefill_chunks"] += 1
        if self._policy.separate_steps and len(seqs) < len(self._running):
            kinds = {request.decoding for request in self._running}
            counts["separated_steps"] += len(kinds) > 1

    def _check_fits(self, request: Request) -> None:
        prompt, new = request.prompt_len, request.max_tokens
        limit = self._policy.max_model_len
        if prompt + new > limit:
            raise RequestError(
                f"Request {request.request_id} needs {prompt} prompt + {new} new = {prompt + new} tokens, but the "
                f"maximum model length is {limit}; shorten it or raise the maximum model length."
            )
        if prompt + new - 1 > self._cache.longest:
            raise RequestError(
                f"Request {request.request_id} needs {prompt + new - 1} tokens in the KV cache, which holds at most "
                f"{self._cache.longest} for one request; shorten it or give the cache more memory."
            )
        if not self._policy.chunked and prompt > self._policy.max_step_tokens:
            raise RequestError(
                f"The prompt of request {request.request_id} has {prompt} tokens, but a step holds "
                f"{self._policy.max_step_tokens} and prompts enter whole; shorten it or allow chunked prefill."
            )
