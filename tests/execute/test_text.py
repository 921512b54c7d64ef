"""Stop strings across token boundaries, and text in whole characters."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuseboard.execute.text import OutputText, StopFinder


def pieces(text, cuts):
    edges = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return [text[a:b] for a, b in itertools.pairwise(edges)]


@given(
    st.text("ab", max_size=20),
    st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3),
    st.lists(st.integers(0, 20)),
)
def test_the_text_ends_at_the_first_stop_string_however_it_is_cut(text, stops, cuts):
    finder, shown = StopFinder(tuple(stops)), ""
    for piece in pieces(text, cuts):
        more, stopped = finder.push(piece)
        shown += more
        if stopped:
            break
    else:
        shown += finder.finish()
        assert shown == text
        assert not any(stop in text for stop in stops)
        return
    assert text.startswith(shown)
    assert any(text.startswith(stop, len(shown)) for stop in stops)
    assert not any(stop in shown for stop in stops)


def test_text_is_held_back_only_as_long_as_it_may_become_a_stop_string():
    finder = StopFinder(("</end>",))
    assert finder.push("a </") == ("a ", False)
    assert finder.push("en") == ("", False)
    assert finder.push("try") == ("</entry", False)
    assert finder.push("</end> more") == ("", True)


class Bytes:
    """A tokenizer whose tokens are bytes; token 256 is special."""

    special_ids = frozenset({256})
    strips_space = True

    def piece(self, token_id):
        return b"<end>" if token_id == 256 else bytes([token_id])


def output(*stops, **options):
    return OutputText(Bytes(), stops, **({"skip_special": True, "min_tokens": 0} | options))


def feed(text, data):
    shown = [text.push(token) for token in data]
    return [s for s, _ in shown], [stopped for _, stopped in shown]


def test_characters_come_whole():
    shown, _ = feed(output(), "aé€😀".encode())
    assert shown == ["a", "", "é", "", "", "€", "", "", "", "😀"]


def test_half_a_character_at_the_end_is_replaced():
    text = output()
    feed(text, "é".encode()[:1])
    assert text.finish() == "\ufffd"


def test_the_first_space_stays_because_the_text_goes_on_from_the_prompt():
    assert "".join(feed(output(), b" a")[0]) == " a"


@pytest.mark.parametrize(("skip", "shown"), [(True, "ab"), (False, "a<end>b")])
def test_special_tokens(skip, shown):
    assert "".join(feed(output(skip_special=skip), [97, 256, 98])[0]) == shown


def test_a_stop_string_may_span_characters_of_several_bytes():
    shown, stopped = feed(output("é€"), "aé€".encode())
    assert "".join(shown) == "a"
    assert stopped[-1]
    assert not any(stopped[:-1])


def test_text_held_back_is_shown_at_the_end():
    text = output("abc")
    assert "".join(feed(text, b"xab")[0]) == "x"
    assert text.finish() == "ab"


def test_stop_strings_wait_for_min_tokens():
    shown, stopped = feed(output("ab", min_tokens=2), b"abab")
    assert "".join(shown) == "ab"
    assert stopped == [False, False, False, True]
