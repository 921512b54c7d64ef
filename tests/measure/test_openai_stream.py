"""Which chunks hold tokens, how many, and how an answer ended."""

from typing import Any

import pytest
import scripted_server as say

from fuseboard.measure.openai_stream import Answer, message_of
from fuseboard.measure.sse import EventParser


def answer_to(*pieces: bytes) -> Answer:
    """The answer after these events, which arrive at 1, 2, 3, ..."""
    answer, parser = Answer(), EventParser()
    for now, event in enumerate((*parser.feed(b"".join(pieces)), *parser.close()), start=1):
        answer.take(event, now)
    answer.end()
    return answer


def call(**function: str) -> dict[str, Any]:
    return {"tool_calls": [{"index": 0, "function": function}]}


def test_a_chunk_with_text_is_a_token_and_the_role_is_none() -> None:
    answer = answer_to(
        say.delta(role="assistant", content=""), say.delta(content="a"), say.delta(content=""), say.delta(content="b"),
        say.finish("stop"), say.usage(7, 2), say.DONE,
    )  # fmt: skip
    assert answer.chunk_ns == [1, 2, 3, 4, 5, 6]
    assert answer.token_ns == [2, 4]
    assert (answer.n_in, answer.n_out, answer.finish_reason, answer.done) == (7, 2, "stop", True)
    assert answer.error is None


@pytest.mark.parametrize(
    "fields",
    [
        {"content": None, "reasoning_content": "hm"},
        {"reasoning": "hm"},
        {"refusal": "no"},
        call(name="f"),
        call(arguments="{"),
        {"function_call": {"arguments": "{"}},
    ],
)
def test_reasoning_and_tool_calls_are_output(fields: dict[str, Any]) -> None:
    assert answer_to(say.delta(role="assistant"), say.delta(**fields), say.finish(), say.DONE).token_ns == [2]


@pytest.mark.parametrize(
    "fields", [{}, {"tool_calls": []}, call(name="", arguments=""), {"content": None}, {"tool_calls": None}]
)
def test_an_empty_delta_is_no_output(fields: dict[str, Any]) -> None:
    assert answer_to(say.delta(**fields), say.delta(content="a"), say.finish(), say.DONE).token_ns == [2]


@pytest.mark.parametrize(
    "fields",
    [
        {"token_ids": [4, 5, 6]},
        {"logprobs": {"tokens": ["a", "b", "c"]}},
        {"logprobs": {"content": [{"token": c} for c in "abc"]}},
    ],
)
def test_tokens_that_a_chunk_lists_are_counted(fields: dict[str, Any]) -> None:
    assert answer_to(say.text("abc", **fields), say.text("d"), say.finish(), say.DONE).token_ns == [1, 1, 1, 2]


def running(word: str, total: int) -> bytes:
    return say.event({"choices": [{"text": word}], "usage": {"prompt_tokens": 3, "completion_tokens": total}})


def test_a_usage_in_every_chunk_says_how_many_tokens_each_holds() -> None:
    answer = answer_to(running("", 0), running("ab", 2), running("", 3), running("c", 4), say.finish(), say.DONE)
    assert answer.token_ns == [2, 2, 3, 4], "a token may have no text yet"
    assert answer.n_out == 4


def test_a_total_in_the_last_chunk_is_no_running_usage() -> None:
    answer = answer_to(say.text("a"), say.text("bc"), running("", 3), say.finish(), say.DONE)
    assert answer.token_ns == [1, 2]
    assert answer.n_out == 3


def test_the_end_needs_a_finish_reason_or_done() -> None:
    assert answer_to(say.text("a"), say.finish()).error is None
    assert answer_to(say.text("a"), say.DONE).error is None
    assert answer_to(say.text("a")).error == "the connection was closed before the answer was finished"
    assert answer_to(say.finish(), say.DONE).error == "the answer holds no token"


@pytest.mark.parametrize(
    "piece",
    [
        say.event({"error": {"message": "out of memory", "code": 500}}),
        say.event({"error": "out of memory"}),
        say.event({"object": "error", "message": "out of memory"}),
        b"event: error\ndata: out of memory\n\n",
    ],
)
def test_an_error_in_the_stream_ends_the_answer(piece: bytes) -> None:
    answer = answer_to(say.text("a"), piece, say.text("b"), say.finish(), say.DONE)
    assert answer.error == "error in the stream: out of memory"
    assert answer.token_ns == [1], "what came before is kept"


@pytest.mark.parametrize("data", [b"{", b"[]", b"7", b'"text"'])
def test_an_event_that_is_no_object_is_an_error(data: bytes) -> None:
    assert answer_to(b"data: " + data + b"\n\n").error == f"not a JSON object in the stream: {data.decode()}"


@pytest.mark.parametrize(
    "odd",
    [
        {"choices": None},
        {"choices": [None, 3]},
        {"choices": [{"delta": None}]},
        {"choices": [{"delta": {"tool_calls": [None, {"function": None}]}}]},
        {"choices": [{"logprobs": 3, "token_ids": "x"}]},
        {"usage": None},
        {"usage": [1]},
        {"usage": {"completion_tokens": None}},
    ],
)
def test_odd_chunks_are_no_tokens_and_no_harm(odd: dict[str, Any]) -> None:
    assert answer_to(say.event(odd), say.text("a"), say.finish(), say.DONE).token_ns == [2]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ('{"error": {"message": "no such model", "type": "x"}}', "no such model"),
        ('{"object": "error", "message": "no such model"}', "no such model"),
        ('{"detail": [{"loc": ["body"], "msg": "field required"}]}', "field required"),
        ('{"detail": "Not Found"}', "Not Found"),
        ("<html>\n  gone </html>", "<html> gone </html>"),
        ("x" * 1000, "x" * 297 + "..."),
        ("", ""),
    ],
)
def test_the_message_of_an_error(body: str, message: str) -> None:
    assert message_of(body) == message
