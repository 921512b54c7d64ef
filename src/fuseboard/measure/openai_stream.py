"""What an OpenAI-compatible server says in a stream: which chunks hold tokens, how many, and how the answer ended."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from fuseboard.measure.sse import Event

DONE = "[DONE]"
TEXT_FIELDS = ("content", "reasoning_content", "reasoning", "refusal")
LONGEST_MESSAGE = 300


class Answer:
    """The answer so far.

    `chunk_ns` has the arrival of every chunk, `token_ns` that of every token: a chunk that holds output counts as the
    tokens the server states for it (token ids, log-probabilities, or a usage that is kept up in every chunk), else as
    one. `n_in` and `n_out` are the server's own count where it gives one. A chunk without output, such as the one that
    only names the role, holds no token.
    """

    def __init__(self) -> None:
        self.chunk_ns: list[int] = []
        self.token_ns: list[int] = []
        self.n_in: int | None = None
        self.n_out: int | None = None
        self.finish_reason: str | None = None
        self.done = False
        self.error: str | None = None
        self._counted: int | None = 0

    @property
    def over(self) -> bool:
        """Nothing that follows matters."""
        return self.done or self.error is not None

    def take(self, event: Event, now_ns: int) -> None:
        """The next event, which arrived at `now_ns`."""
        if self.over:
            return
        if event.data.strip() == DONE:
            self.done = True
            return
        self.chunk_ns.append(now_ns)
        try:
            chunk = json.loads(event.data)
        except ValueError:
            chunk = None
        if event.type == "error" or (
            isinstance(chunk, dict) and (chunk.get("error") or chunk.get("object") == "error")
        ):
            self.error = f"error in the stream: {message_of(event.data)}"
        elif not isinstance(chunk, dict):
            self.error = f"not a JSON object in the stream: {shortened(event.data)}"
        else:
            self._take_chunk(chunk, now_ns)

    def fail(self, reason: str) -> None:
        """Something else stopped the answer; that changes nothing once it is over."""
        if not self.over:
            self.error = reason

    def end(self) -> None:
        """The connection has nothing more. Some servers send no `[DONE]`; a finish reason is enough."""
        if self.finish_reason is None:
            self.fail("the connection was closed before the answer was finished")
        if self.error is None and not self.token_ns:
            self.error = "the answer holds no token"

    def _take_chunk(self, chunk: Mapping[str, Any], now_ns: int) -> None:
        choices = [choice for choice in items(chunk.get("choices")) if isinstance(choice, dict)]
        self._take_usage(chunk.get("usage"))
        output = any(has_output(choice) for choice in choices)
        stated = sum(map(stated_tokens, choices)) or self._newly_counted(chunk.get("usage"), bool(choices), output)
        if output or stated:
            self.token_ns.extend([now_ns] * (stated or 1))
        for choice in choices:
            self.finish_reason = choice.get("finish_reason") or self.finish_reason

    def _take_usage(self, usage: Any) -> None:
        if isinstance(usage, dict):
            self.n_in = count(usage, "prompt_tokens", self.n_in)
            self.n_out = count(usage, "completion_tokens", self.n_out)

    def _newly_counted(self, usage: Any, has_choices: bool, output: bool) -> int:
        """Tokens that a running usage counts in this chunk; 0 once output came without one, as then it is a total."""
        if not has_choices or self._counted is None:
            return 0
        total = count(usage, "completion_tokens", None) if isinstance(usage, dict) else None
        if total is None:
            self._counted = None if output else self._counted
            return 0
        new, self._counted = max(0, total - self._counted), total
        return new


def count(usage: Mapping[str, Any], key: str, otherwise: int | None) -> int | None:
    value = usage.get(key)
    return value if isinstance(value, int) else otherwise


def items(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def has_output(choice: Mapping[str, Any]) -> bool:
    """The choice holds text, reasoning, a refusal or a part of a tool call."""
    delta = choice.get("delta")
    if not isinstance(delta, dict):
        return bool(choice.get("text"))
    calls = [call.get("function") for call in items(delta.get("tool_calls")) if isinstance(call, dict)]
    calls.append(delta.get("function_call"))
    return any(delta.get(field) for field in TEXT_FIELDS) or any(
        isinstance(call, dict) and (call.get("name") or call.get("arguments")) for call in calls
    )


def stated_tokens(choice: Mapping[str, Any]) -> int:
    """Tokens of the choice where the chunk lists them one by one, else 0."""
    logprobs = choice.get("logprobs")
    lists = [choice.get("token_ids")]
    if isinstance(logprobs, dict):
        lists += [logprobs.get("content"), logprobs.get("tokens")]
    return max(len(items(listed)) for listed in lists)


def message_of(body: str) -> str:
    """The message in an error's body, however the server nests it; the body itself, shortened, when there is none."""
    try:
        found = next(messages(json.loads(body)), None)
    except ValueError:
        found = None
    return shortened(found or body)


def messages(value: Any) -> Iterator[str]:
    if isinstance(value, str) and value:
        yield value
    elif isinstance(value, dict):
        for key in ("error", "message", "detail", "msg"):
            yield from messages(value.get(key))
    elif isinstance(value, list):
        for item in value:
            yield from messages(item)


def shortened(text: str) -> str:
    """The text on one line, at most `LONGEST_MESSAGE` characters."""
    line = " ".join(text.split())
    return line if len(line) <= LONGEST_MESSAGE else line[: LONGEST_MESSAGE - 3] + "..."
