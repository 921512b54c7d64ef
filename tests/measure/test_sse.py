"""The event parser: what the standard says, what servers really send, and any cut of the bytes."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from fuseboard.measure.sse import Event, EventParser


def parse(data: bytes, cuts: list[int] | None = None) -> list[Event]:
    """The events of `data` fed in the pieces between the cuts."""
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts or []), len(data)]
    parser = EventParser()
    events = [event for a, b in itertools.pairwise(edges) for event in parser.feed(data[a:b])]
    return events + parser.close()


def data_of(text: str) -> list[str]:
    return [event.data for event in parse(text.encode())]


def test_a_space_after_the_colon_is_optional_and_only_one_is_left_out() -> None:
    assert data_of("data: a\n\ndata:b\n\ndata:  c\n\n") == ["a", "b", " c"]


def test_all_three_line_ends() -> None:
    assert data_of("data: a\r\n\r\ndata: b\r\rdata: c\n\n") == ["a", "b", "c"]


def test_comments_and_other_fields_are_no_events() -> None:
    assert data_of(": keep-alive\n\nid: 7\nretry: 100\n\ndata: a\n: ping\n\n") == ["a"]


def test_lines_of_data_are_joined_and_a_bare_name_is_an_empty_line() -> None:
    assert data_of("data: a\ndata: b\n\n") == ["a\nb"]
    assert data_of("data\n\n") == [""]


def test_the_type_belongs_to_one_event() -> None:
    events = parse(b"event: error\ndata: a\n\ndata: b\n\nevent: ping\n\ndata: c\n\n")
    assert events == [Event(data="a", type="error"), Event(data="b"), Event(data="c")]


def test_a_byte_order_mark_is_left_out() -> None:
    assert parse(b"\xef\xbb\xbfdata: a\n\n", [1, 2]) == [Event(data="a")]


def test_the_last_event_needs_no_line_end() -> None:
    assert data_of("data: a\n\ndata: [DONE]") == ["a", "[DONE]"]
    assert data_of("data: a\n") == ["a"]


def test_an_event_is_given_as_soon_as_its_empty_line_is_there() -> None:
    parser = EventParser()
    assert parser.feed(b"data: a\r\r") == [Event(data="a")], "the CR may be half of a CRLF, but nobody waits for it"
    assert parser.feed(b"\ndata: b\n") == []
    assert parser.feed(b"\n") == [Event(data="b")]


LINES = st.one_of(
    st.text(alphabet="aä漢🙂 :\ufeff", max_size=6).map(lambda text: "data:" + text),
    st.sampled_from(["", "", "data: x", "data", ": ping", "event: error", "id: 1", "retry", "nonsense: y"]),
)
ENDS = st.sampled_from(["\n", "\r\n", "\r"])


@given(st.lists(st.tuples(LINES, ENDS), max_size=20), st.lists(st.integers(0, 10**6), max_size=12))
def test_any_cut_gives_the_same_events(lines: list[tuple[str, str]], cuts: list[int]) -> None:
    data = "".join(line + end for line, end in lines).encode()
    assert parse(data, cuts) == parse(data)
    assert parse(data, list(range(len(data)))) == parse(data)


@given(st.binary(max_size=60), st.lists(st.integers(0, 60), max_size=8))
def test_any_bytes_at_all_are_read_the_same_way_however_cut(data: bytes, cuts: list[int]) -> None:
    assert parse(data, cuts) == parse(data)


@given(st.lists(st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), min_size=1), max_size=8))
def test_what_was_sent_is_what_comes_back(texts: list[str]) -> None:
    data = "".join(f"data: {text}\n\n" for text in texts).encode()
    assert [event.data for event in parse(data)] == texts
