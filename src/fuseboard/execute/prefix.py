"""Names of KV blocks by their content, so that equal prompt prefixes find each other's blocks."""

import hashlib
from array import array


class PrefixChain:
    """Digests of a sequence's full blocks, each over the block's tokens and everything before them.

    A digest is a whole SHA-256, so equal digests mean equal prefixes. `salt` keeps tenants and adapters apart: it
    enters the first digest and with it all others.
    """

    __slots__ = ("_block_size", "_digests", "_last")

    def __init__(self, block_size: int, salt: bytes = b"") -> None:
        self._block_size = block_size
        self._digests: list[bytes] = []
        self._last = hashlib.sha256(b"fuseboard kv prefix" + salt).digest()

    def digests(self, tokens: list[int], blocks: int) -> list[bytes]:
        """The digests of the first `blocks` blocks of `tokens`, which only ever grows; the list may have more."""
        size = self._block_size
        for start in range(len(self._digests) * size, blocks * size, size):
            ids = array("i", tokens[start : start + size])
            assert len(ids) == size
            self._last = hashlib.sha256(self._last + ids.tobytes()).digest()
            self._digests.append(self._last)
        return self._digests
