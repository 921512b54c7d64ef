"""`LLM`: a model ready to generate, in one object."""

import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from types import TracebackType
from typing import Any, cast

from fuseboard.backends.base import Backend
from fuseboard.backends.calibrate import compile_plan
from fuseboard.backends.registry import DEFAULT, get_backend
from fuseboard.core.errors import PlanError, RequestError
from fuseboard.execute.engine import Engine
from fuseboard.execute.records import RequestRecord, TokenEvent
from fuseboard.execute.sampler import TokenLogprobs
from fuseboard.execute.sampling_params import SamplingParams
from fuseboard.load.model import LoadedModel, load_model
from fuseboard.plan.build import Limits, build_plan
from fuseboard.plan.plan import ExecutionPlan

PRESETS = ("off", "on")

Prompt = str | Sequence[int]


@dataclass(frozen=True, kw_only=True)
class Completion:
    """What a prompt got. `finish_reason` is stop, length or abort; `logprobs` has one entry a token where asked for.

    `token_ids` contains the end token, `text` does not. `metrics` are the request's raw times.
    """

    prompt_token_ids: list[int]
    token_ids: list[int]
    text: str
    finish_reason: str
    logprobs: list[TokenLogprobs] | None
    metrics: RequestRecord


def plan_model(
    model: LoadedModel,
    backend: Backend,
    *,
    preset: str = "on",
    switches: Mapping[str, str] | None = None,
    threads: int | None = None,
    limits: Limits | None = None,
) -> ExecutionPlan:
    """The plan of a model on a backend: `switches` by name over the preset (`off`, or `on`: the backend's profile)."""
    if preset not in PRESETS:
        raise PlanError(f"There is no preset {preset!r}; choose one of {', '.join(PRESETS)}.")
    caps = backend.capabilities(threads=threads)
    return build_plan(
        model,
        caps,
        backend.workspace,
        preset=caps.profile if preset == "on" else {},
        chosen=switches or {},
        limits=limits or Limits(),
    )


class LLM:
    """A model with its plan, weights and engine. Not thread-safe; `close` it, or use it in a `with` statement.

    `model` is a path, a hub id, a name of the catalogue, or a model already loaded; `switches` are set over `preset`.
    `max_model_len` is in tokens, `kv_memory` in bytes. Raises LoadError and PlanError.
    """

    def __init__(
        self,
        model: str | LoadedModel,
        *,
        preset: str = "on",
        switches: Mapping[str, str] | None = None,
        threads: int | None = None,
        max_model_len: int | None = None,
        max_num_seqs: int | None = None,
        kv_memory: int | None = None,
        load_format: str = "auto",
        revision: str | None = None,
        backend: str = DEFAULT,
    ) -> None:
        limits = Limits(max_model_len=max_model_len, max_num_seqs=max_num_seqs, kv_memory=kv_memory)
        if isinstance(model, str):
            model = load_model(model, revision=revision, load_format=load_format)
        self.model = model
        chosen = get_backend(backend)
        plan = plan_model(self.model, chosen, preset=preset, switches=switches, threads=threads, limits=limits)
        executable = compile_plan(chosen, plan, self.model)
        self.plan = executable.plan
        self.engine = Engine(executable, self.plan, self.model.tokenizer)
        self._inboxes: dict[str, deque[TokenEvent]] = {}
        self._numbers = itertools.count()

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[Completion]:
        """Completes one prompt or several, in their order.

        A prompt is a string (taken as it is, without chat template) or a list of token ids. `params` is for all
        prompts, or one for each. Raises RequestError before anything runs when one of them can never be served.
        """
        inputs = [self._tokens(prompt) for prompt in _as_list(prompts)]
        if params is None or isinstance(params, SamplingParams):
            params = [params or SamplingParams()] * len(inputs)
        if len(params) != len(inputs):
            raise RequestError(f"There are {len(inputs)} prompts but {len(params)} sampling parameters; give as many.")
        started: list[str] = []
        try:
            for tokens, own_params in zip(inputs, params, strict=True):
                started.append(self._start(tokens, own_params))
            events = [list(self._until_end(request_id)) for request_id in started]
        finally:
            for request_id in started:
                self._stop(request_id)
        return [_completion(tokens, own) for tokens, own in zip(inputs, events, strict=True)]

    def chat(
        self,
        messages: Iterable[Mapping[str, Any]],
        params: SamplingParams | None = None,
        **template: Any,
    ) -> Completion:
        """The answer to a conversation, `[{"role": ..., "content": ...}, ...]`, in the model's chat template, which
        also gets the `template` variables."""
        return self.generate([self.chat_tokens(messages, **template)], params)[0]

    def chat_tokens(self, messages: Iterable[Mapping[str, Any]], **template: Any) -> list[int]:
        """The conversation in the model's chat template, as token ids."""
        text = self.model.chat_prompt(messages, **template)
        return self.model.tokenizer.encode(text, add_special=False, parse_special=True)

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> Iterator[TokenEvent]:
        """The events of one prompt as they come; each has the new `text`. Closing the iterator aborts the request."""
        request_id = self._start(self._tokens(prompt), params or SamplingParams())
        try:
            yield from self._until_end(request_id)
        finally:
            self._stop(request_id)

    def close(self) -> None:
        """Ends all requests and frees weights, cache and threads."""
        self.engine.close()

    def __enter__(self) -> "LLM":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _tokens(self, prompt: Prompt) -> list[int]:
        if isinstance(prompt, str):
            return self.model.tokenizer.encode(prompt, add_special=True, parse_special=True)
        return list(prompt)

    def _start(self, tokens: list[int], params: SamplingParams) -> str:
        request_id = f"{next(self._numbers)}"
        self.engine.add_request(request_id, tokens, params)
        self._inboxes[request_id] = deque()
        return request_id

    def _stop(self, request_id: str) -> None:
        self.engine.abort(request_id)
        self._inboxes.pop(request_id, None)

    def _until_end(self, request_id: str) -> Iterator[TokenEvent]:
        """The events of a request to its last one. Several streams may be read in turns: a step serves them all."""
        inbox = self._inboxes[request_id]
        while inbox or self.engine.has_work:
            if not inbox:
                self._step()
                continue
            event = inbox.popleft()
            if event.error is not None:
                raise RuntimeError(f"Request {request_id} failed: {event.error}") from event.error
            yield event
            if event.finish_reason is not None:
                return
        raise RuntimeError(f"Request {request_id} was ended by somebody else who uses this engine.")

    def _step(self) -> None:
        for event in self.engine.step():
            # A request that somebody else gave to the engine has no inbox here.
            if (inbox := self._inboxes.get(event.request_id)) is not None:
                inbox.append(event)


def _as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    if isinstance(prompts, str) or (len(prompts) and isinstance(prompts[0], Integral)):
        return [cast(Prompt, prompts)]
    return list(cast(Sequence[Prompt], prompts))


def _completion(prompt: list[int], events: list[TokenEvent]) -> Completion:
    last = events[-1]
    assert last.record is not None
    logprobs = [event.logprobs for event in events if event.logprobs is not None]
    return Completion(
        prompt_token_ids=prompt,
        token_ids=[event.token_id for event in events if event.token_id is not None],
        text="".join(event.text for event in events),
        finish_reason=last.finish_reason or "abort",
        logprobs=logprobs or None,
        metrics=last.record,
    )
