"""What the engine tells its caller: events, and raw times on the monotonic clock in nanoseconds."""

from dataclasses import dataclass, field
from typing import NamedTuple

from fuseboard.execute.sampler import TokenLogprobs


@dataclass(slots=True, kw_only=True)
class RequestRecord:
    """The times of one request. `token_ns[i]` is when its token i was chosen; 0 is a time that never came."""

    request_id: str
    prompt_tokens: int
    arrival_ns: int
    first_scheduled_ns: int = 0
    token_ns: list[int] = field(default_factory=list)
    finish_ns: int = 0
    finish_reason: str | None = None
    cached_tokens: int = 0
    """Leading prompt tokens whose KV was reused when the request was first admitted."""
    preemptions: int = 0

    @property
    def first_token_ns(self) -> int:
        return self.token_ns[0] if self.token_ns else 0


class TokenEvent(NamedTuple):
    """One more token of a request, or its end without one (`token_id` None).

    `text` is what can be shown since the last event. `finish_reason` is stop, length, abort or error, with `error`;
    the last event of a request has its `record`.
    """

    request_id: str
    token_id: int | None
    text: str
    logprobs: TokenLogprobs | None
    time_ns: int
    finish_reason: str | None = None
    error: Exception | None = None
    record: RequestRecord | None = None


class StepRecord(NamedTuple):
    """Where the time of one step went. `is_decode` is a step that computed one generated token a sequence.

    Where steps overlap, `execute_ns` goes from the start of the step to its end and the text and events of the step
    before, made meanwhile, are not counted: `detokenise_ns` is only what the next step had to wait for.

    `rows` tokens were sampled. The tokens of the step saw `context_tokens` of context, summed over tokens; its
    sequences had `cached_tokens` in the cache at the end of it, summed over sequences.
    """

    start_ns: int
    schedule_ns: int
    prepare_ns: int
    execute_ns: int
    sample_ns: int
    detokenise_ns: int
    is_decode: bool
    tokens: int
    seqs: int
    rows: int
    context_tokens: int
    cached_tokens: int
