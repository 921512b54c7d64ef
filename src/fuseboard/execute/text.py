"""A request's text as its tokens come: whole characters only, ended by stop strings."""

from fuseboard.load.tokenizer import TextStream, Tokenizer


class StopFinder:
    """Finds the first of several strings in growing text, whatever pieces it comes in.

    Text that may still turn out to be the beginning of a stop string is held back.
    """

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = stops
        self._held = ""

    def push(self, text: str) -> tuple[str, bool]:
        """The text that is safe to show now, and whether a stop string ended it (which is not shown)."""
        if not text:
            return "", False
        text = self._held + text
        found = [at for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            self._held = ""
            return text[: min(found)], True
        held = max(self._held_by(text, stop) for stop in self._stops)
        self._held = text[len(text) - held :]
        return text[: len(text) - held], False

    def finish(self) -> str:
        """The text still held back: no stop string came of it."""
        held, self._held = self._held, ""
        return held

    @staticmethod
    def _held_by(text: str, stop: str) -> int:
        """Length of the longest end of `text` with which `stop` begins."""
        longest = min(len(text), len(stop) - 1)
        return next((n for n in range(longest, 0, -1) if stop.startswith(text[-n:])), 0)


class OutputText:
    """The text of one request. Stop strings count from the token after `min_tokens` on."""

    def __init__(self, tokenizer: Tokenizer, stops: tuple[str, ...], *, skip_special: bool, min_tokens: int) -> None:
        self._stream = TextStream(tokenizer, skip_special=skip_special, continuation=True)
        self._finder = StopFinder(stops) if stops else None
        self._unchecked = min_tokens

    def push(self, token: int) -> tuple[str, bool]:
        """The text to show after one more token, and whether a stop string ended it."""
        text = self._stream.push(token)
        if self._finder is None:
            return text, False
        if self._unchecked:
            self._unchecked -= 1
            return text, False
        return self._finder.push(text)

    def finish(self) -> str:
        """The rest of the text of a request that no stop string ended."""
        rest = self._stream.finish()
        if self._finder is None:
            return rest
        shown, stopped = self._finder.push(rest)
        return shown if stopped else shown + self._finder.finish()
