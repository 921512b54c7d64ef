"""The blocks of one cache group: who holds them, which are free, and which still hold a known prefix.

Block 0 is the null block and is never handed out.
"""

from bisect import bisect_left


class BlockPool:
    """Reference-counted single blocks.

    A block is free, used (held by at least one sequence) or cached: held by nobody, but its content is known under a
    digest. A cached block is taken only when no free one is left, the least recently used first.
    """

    def __init__(self, num_blocks: int, *, track_freed: bool = False) -> None:
        self._refs = [0] * num_blocks
        self._free = list(range(num_blocks - 1, 0, -1))
        self._cached: dict[int, None] = {}
        self._block_of: dict[bytes, int] = {}
        self._digest_of: dict[int, bytes] = {}
        self._touched = bytearray(num_blocks)
        self._freed: list[int] | None = [] if track_freed else None
        self.taken = 0
        self.reused = 0
        self.evictions = 0

    @property
    def size(self) -> int:
        return len(self._refs) - 1

    @property
    def available(self) -> int:
        """Blocks that `take` can give."""
        return len(self._free) + len(self._cached)

    def take(self) -> int:
        """A block for one holder, its content unknown; there must be one available."""
        if self._free:
            block = self._free.pop()
        else:
            block = next(iter(self._cached))
            self._evict(block)
            self._free.pop()
        self._refs[block] = 1
        self.taken += 1
        self.reused += self._touched[block]
        self._touched[block] = 1
        return block

    def share(self, block: int) -> None:
        """One more holder of a block that is used or cached."""
        assert self._refs[block] > 0 or block in self._cached, f"block {block} is free"
        self._cached.pop(block, None)
        self._refs[block] += 1

    def give(self, block: int) -> None:
        """One holder fewer; the last one leaves the block cached when its content is known, else free."""
        assert self._refs[block] > 0, f"block {block} is given back twice"
        self._refs[block] -= 1
        if self._refs[block]:
            return
        if block in self._digest_of:
            self._cached[block] = None
        else:
            self._free_block(block)

    def publish(self, block: int, digest: bytes) -> None:
        """The block's content is computed: others may find it, unless another block already has that content."""
        assert self._refs[block] > 0
        if digest not in self._block_of and block not in self._digest_of:
            self._block_of[digest] = block
            self._digest_of[block] = digest

    def find(self, digest: bytes) -> int | None:
        return self._block_of.get(digest)

    def is_cached(self, block: int) -> bool:
        return block in self._cached

    def forget(self) -> None:
        """No content is known any more; used blocks stay with their holders."""
        self._block_of.clear()
        self._digest_of.clear()
        for block in self._cached:
            self._free_block(block)
        self._cached.clear()

    def drain_freed(self) -> list[int]:
        """Blocks whose content was given up since the last call (nothing when the pool does not track them)."""
        freed = self._freed or []
        if freed:
            self._freed = []
        return freed

    def check(self) -> None:
        """Assert that every block is in exactly one state and that the digests agree."""
        used = {b for b, refs in enumerate(self._refs) if refs}
        free, cached = set(self._free), set(self._cached)
        assert min(self._refs) >= 0
        assert len(free) == len(self._free)
        assert len(used) + len(free) + len(cached) == self.size
        assert used | free | cached == set(range(1, len(self._refs)))
        assert self._block_of == {digest: block for block, digest in self._digest_of.items()}
        assert cached <= set(self._digest_of) <= used | cached

    def _evict(self, block: int) -> None:
        del self._cached[block]
        del self._block_of[self._digest_of.pop(block)]
        self._free_block(block)
        self.evictions += 1

    def _free_block(self, block: int) -> None:
        self._free.append(block)
        if self._freed is not None:
            self._freed.append(block)


class RunPool:
    """Consecutive runs of blocks: the first gap that is large enough is taken, neighbouring gaps are joined again."""

    def __init__(self, num_blocks: int, *, track_freed: bool = False) -> None:
        self.size = num_blocks - 1
        self._gaps = [(1, self.size)] if self.size > 0 else []
        self._touched = bytearray(num_blocks)
        self._freed: list[int] | None = [] if track_freed else None
        self.taken = 0
        self.reused = 0

    @property
    def available(self) -> int:
        return sum(length for _, length in self._gaps)

    def take(self, length: int) -> range | None:
        """A run of `length` blocks, or None when no gap holds it."""
        for index, (start, gap) in enumerate(self._gaps):
            if gap < length:
                continue
            if gap == length:
                del self._gaps[index]
            else:
                self._gaps[index] = (start + length, gap - length)
            run = range(start, start + length)
            self.taken += length
            self.reused += sum(self._touched[start : run.stop])
            self._touched[start : run.stop] = b"\x01" * length
            return run
        return None

    def fits(self, length: int) -> bool:
        return any(gap >= length for _, gap in self._gaps)

    def give(self, run: range) -> None:
        """Gives back exactly what `take` gave."""
        start, length = run.start, len(run)
        index = bisect_left(self._gaps, (start, 0))
        if index < len(self._gaps):
            assert run.stop <= self._gaps[index][0], "a run is given back twice"
            if self._gaps[index][0] == run.stop:
                length += self._gaps.pop(index)[1]
        if index:
            before, gap = self._gaps[index - 1]
            assert before + gap <= start, "a run is given back twice"
            if before + gap == start:
                index -= 1
                del self._gaps[index]
                start, length = before, gap + length
        self._gaps.insert(index, (start, length))
        if self._freed is not None:
            self._freed.extend(run)

    def drain_freed(self) -> list[int]:
        """Blocks given back since the last call (nothing when the pool does not track them)."""
        freed = self._freed or []
        if freed:
            self._freed = []
        return freed

    def check(self) -> None:
        """Assert that the gaps are sorted, apart from each other and inside the pool."""
        end = 0
        for start, length in self._gaps:
            assert length > 0
            assert start > end
            end = start + length
        assert end <= self.size + 1
