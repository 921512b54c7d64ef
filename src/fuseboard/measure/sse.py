"""Server-sent events from bytes that were cut anywhere.

The rules are those of the HTML standard, section "Interpreting an event stream": a line ends with CRLF, LF or CR, one
space after the colon is left out, a line that starts with a colon is a comment, an empty line ends an event. Fields
other than `data` and `event` steer reconnecting browsers and are left out. Lines are cut as bytes and decoded whole:
no byte of a longer UTF-8 sequence looks like a line end, so a cut inside a character does no harm.
"""

import re
from dataclasses import dataclass

LINE_END = re.compile(rb"\r\n|\n|\r")
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True, kw_only=True)
class Event:
    """One event: its lines of data joined by line feeds, and its type, `message` where the server names none."""

    data: str
    type: str = "message"


class EventParser:
    """Takes the bytes of a stream in any pieces; the same bytes give the same events however they are cut."""

    def __init__(self) -> None:
        self._tail = b""
        self._after_cr = False
        self._first_line = True
        self._data: list[str] = []
        self._type = ""

    def feed(self, piece: bytes) -> list[Event]:
        """The events that this piece completed, in order."""
        if self._after_cr and piece:
            piece = piece.removeprefix(b"\n")
            self._after_cr = False
        *lines, self._tail = LINE_END.split(self._tail + piece)
        self._after_cr = self._after_cr or piece.endswith(b"\r")
        return [event for line in lines if (event := self._take(line))]

    def close(self) -> list[Event]:
        """What the stream ended in the middle of. A browser drops it; here a last `[DONE]` without line end counts."""
        events = [event for line in (self._tail, b"") if (event := self._take(line))]
        self._tail = b""
        return events

    def _take(self, line: bytes) -> Event | None:
        if self._first_line:
            line, self._first_line = line.removeprefix(BYTE_ORDER_MARK), False
        if not line:
            return self._end_event()
        name, _, value = line.decode("utf-8", errors="replace").partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
        elif name == "event":
            self._type = value
        return None

    def _end_event(self) -> Event | None:
        data, kind = self._data, self._type
        self._data, self._type = [], ""
        return Event(data="\n".join(data), type=kind or "message") if data else None
