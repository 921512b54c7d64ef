"""Block tables of sequences over all cache groups, in the paged and the contiguous layout.

Both layouts offer the same methods, so the scheduler does not know which one it has.
"""

from collections.abc import Sequence
from typing import Protocol

from fuseboard.execute.kv_pool import BlockPool, RunPool
from fuseboard.execute.prefix import PrefixChain
from fuseboard.plan.policy import CacheGroup, KvPolicy, SchedulePolicy

BASELINE_BLOCK_SIZE = 16
NULL_BLOCK = 0


class BlockTable:
    """The blocks of one admitted sequence: `ids[g][i]` holds its tokens `[i * block_size, (i + 1) * block_size)`.

    `dead[g]` leading entries have left the group's window and are the null block. `capacity` is in tokens.
    `version` moves with every change.
    """

    __slots__ = ("capacity", "dead", "ids", "published", "version")

    def __init__(self, ids: list[list[int]], dead: list[int], capacity: int, published: int = 0) -> None:
        self.ids = ids
        self.dead = dead
        self.capacity = capacity
        self.published = published
        self.version = 0


class KvCache(Protocol):
    """What the scheduler asks of a layout. `start` is the first token a step computes, `end` one past its last."""

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence that fits when it has the cache for itself."""
        ...

    def match(self, tokens: list[int], chain: PrefixChain) -> int:
        """Leading tokens that need not be computed: whole blocks, and never the last token."""
        ...

    def admit(self, chain: PrefixChain, hit: int, end: int, total: int) -> BlockTable | None:
        """A table that shares the `hit` tokens and has room up to `end`; None when the blocks for `total` tokens are
        not available at the moment."""
        ...

    def grow(self, table: BlockTable, start: int, end: int) -> bool:
        """Makes room up to `end`, giving back blocks that `start` leaves behind; False when blocks are missing."""
        ...

    def commit(self, table: BlockTable, tokens: list[int], chain: PrefixChain, computed: int) -> None:
        """The first `computed` tokens are in the cache now."""
        ...

    def release(self, table: BlockTable) -> None:
        """The sequence has ended or was preempted."""
        ...

    def drain_freed(self) -> list[tuple[int, list[int]]]:
        """(group, blocks) that lost their content since the last call, where the policy wants to know."""
        ...

    def forget_prefixes(self) -> None: ...

    def counters(self) -> dict[str, int]: ...

    def check(self) -> None:
        """Assert the invariants of the pools."""
        ...


def make_cache(kv: KvPolicy, schedule: SchedulePolicy, *, track_freed: bool) -> KvCache:
    """The cache of the policy's layout. With `track_freed` the blocks that lose their content are listed."""
    if kv.contiguous:
        return ContiguousCache(kv, schedule.max_model_len, track_freed=track_freed)
    return PagedCache(kv, schedule.max_step_tokens, track_freed=track_freed)


class PagedCache:
    """Blocks are taken as they fill, shared between equal prefixes, and leave with the window."""

    def __init__(self, kv: KvPolicy, max_step_tokens: int, *, track_freed: bool) -> None:
        self._kv = kv
        self._size = kv.block_size
        self._windows = [group.window for group in kv.groups]
        self._pools = [BlockPool(group.num_blocks, track_freed=track_freed) for group in kv.groups]
        self._max_piece = max_step_tokens
        self._hit_tokens = 0

    @property
    def longest(self) -> int:
        return min(self._longest_in(group) for group in self._kv.groups)

    def match(self, tokens: list[int], chain: PrefixChain) -> int:
        if not self._kv.prefix_cache:
            return 0
        most = (len(tokens) - 1) // self._size
        digests = chain.digests(tokens, most)
        for pool, window in zip(self._pools, self._windows, strict=True):
            if window is None:
                most = next((i for i in range(most) if pool.find(digests[i]) is None), most)
        while most and not self._windows_hold(digests, most):
            most -= 1
        return most * self._size

    def admit(self, chain: PrefixChain, hit: int, end: int, total: int) -> BlockTable | None:
        blocks = hit // self._size
        shared = self._shared(chain.digests([], 0), blocks)
        for group, held in enumerate(shared):
            pool = self._pools[group]
            fresh = self._blocks_at_once(group, hit, total) - len(held)
            if fresh > pool.available - sum(pool.is_cached(block) for block in held):
                return None
        for pool, held in zip(self._pools, shared, strict=True):
            for block in held:
                pool.share(block)
        self._hit_tokens += hit
        dead = [blocks - len(held) for held in shared]
        ids = [[NULL_BLOCK] * gone + held for gone, held in zip(dead, shared, strict=True)]
        table = BlockTable(ids, dead, hit, blocks)
        grown = self.grow(table, hit, end)
        assert grown
        return table

    def grow(self, table: BlockTable, start: int, end: int) -> bool:
        if end <= table.capacity:
            return True
        self._trim(table, start)
        blocks = -(-end // self._size)
        fresh = blocks - len(table.ids[0])
        if any(pool.available < fresh for pool in self._pools):
            return False
        for pool, ids in zip(self._pools, table.ids, strict=True):
            ids.extend(pool.take() for _ in range(fresh))
        table.capacity = blocks * self._size
        table.version += 1
        return True

    def commit(self, table: BlockTable, tokens: list[int], chain: PrefixChain, computed: int) -> None:
        full = computed // self._size
        if not self._kv.prefix_cache or full <= table.published:
            return
        digests = chain.digests(tokens, full)
        for group, pool in enumerate(self._pools):
            for i in range(max(table.published, table.dead[group]), full):
                pool.publish(table.ids[group][i], digests[i])
        table.published = full

    def release(self, table: BlockTable) -> None:
        # The tail goes first, so that it is evicted before the beginning, without which it is of no use.
        for pool, ids, dead in zip(self._pools, table.ids, table.dead, strict=True):
            for block in reversed(ids[dead:]):
                pool.give(block)

    def drain_freed(self) -> list[tuple[int, list[int]]]:
        return _drain(self._pools)

    def forget_prefixes(self) -> None:
        for pool in self._pools:
            pool.forget()

    def counters(self) -> dict[str, int]:
        taken = sum(pool.taken for pool in self._pools)
        return {
            "blocks_on_demand": taken,
            "blocks_reused": sum(pool.reused for pool in self._pools) if self._kv.pooled else 0,
            "blocks_larger": taken if self._size > BASELINE_BLOCK_SIZE else 0,
            "prefix_tokens": self._hit_tokens,
            "evictions": sum(pool.evictions for pool in self._pools),
        }

    def check(self) -> None:
        for pool in self._pools:
            pool.check()

    def _first_live(self, group: int, start: int) -> int:
        """The first block that a token at position `start` or later still reads."""
        window = self._windows[group]
        return 0 if window is None else max(0, start - window + 1) // self._size

    def _blocks_at_once(self, group: int, start: int, total: int) -> int:
        """Most blocks held at one moment while tokens from `start` to `total` are computed."""
        blocks = -(-total // self._size) - self._first_live(group, start)
        window = self._windows[group]
        if window is None:
            return blocks
        return min(blocks, -(-(window - 1 + self._max_piece) // self._size) + 1)

    def _longest_in(self, group: CacheGroup) -> int:
        blocks = group.num_blocks - 1
        if group.window is not None and (blocks - 1) * self._size >= group.window - 1 + self._max_piece:
            return 1 << 62
        return blocks * self._size

    def _windows_hold(self, digests: list[bytes], blocks: int) -> bool:
        return all(
            all(pool.find(digests[i]) is not None for i in range(self._first_live(group, blocks * self._size), blocks))
            for group, pool in enumerate(self._pools)
            if self._windows[group] is not None
        )

    def _shared(self, digests: list[bytes], blocks: int) -> list[list[int]]:
        found: list[list[int]] = []
        for group, pool in enumerate(self._pools):
            live = range(self._first_live(group, blocks * self._size), blocks)
            held = [block for i in live if (block := pool.find(digests[i])) is not None]
            assert len(held) == len(live)
            found.append(held)
        return found

    def _trim(self, table: BlockTable, start: int) -> None:
        for group, pool in enumerate(self._pools):
            ids, live = table.ids[group], self._first_live(group, start)
            for i in range(table.dead[group], live):
                pool.give(ids[i])
                ids[i] = NULL_BLOCK
            if live > table.dead[group]:
                table.dead[group] = live
                table.version += 1


class ContiguousCache:
    """One consecutive run a group, reserved for the maximum length when a sequence is admitted."""

    def __init__(self, kv: KvPolicy, max_model_len: int, *, track_freed: bool) -> None:
        self._kv = kv
        self._run = -(-max_model_len // kv.block_size)
        self._pools = [RunPool(group.num_blocks, track_freed=track_freed) for group in kv.groups]

    @property
    def longest(self) -> int:
        fits = all(pool.size >= self._run for pool in self._pools)
        return self._run * self._kv.block_size if fits else 0

    def match(self, tokens: list[int], chain: PrefixChain) -> int:
        return 0

    def admit(self, chain: PrefixChain, hit: int, end: int, total: int) -> BlockTable | None:
        if not all(pool.fits(self._run) for pool in self._pools):
            return None
        runs = [pool.take(self._run) for pool in self._pools]
        ids = [list(run) for run in runs if run is not None]
        return BlockTable(ids, [0] * len(ids), self._run * self._kv.block_size)

    def grow(self, table: BlockTable, start: int, end: int) -> bool:
        assert end <= table.capacity
        return True

    def commit(self, table: BlockTable, tokens: list[int], chain: PrefixChain, computed: int) -> None:
        pass

    def release(self, table: BlockTable) -> None:
        for pool, ids in zip(self._pools, table.ids, strict=True):
            pool.give(range(ids[0], ids[-1] + 1))

    def drain_freed(self) -> list[tuple[int, list[int]]]:
        return _drain(self._pools)

    def forget_prefixes(self) -> None:
        pass

    def counters(self) -> dict[str, int]:
        taken = sum(pool.taken for pool in self._pools)
        return {
            "blocks_on_demand": 0,
            "blocks_reused": sum(pool.reused for pool in self._pools) if self._kv.pooled else 0,
            "blocks_larger": taken if self._kv.block_size > BASELINE_BLOCK_SIZE else 0,
            "prefix_tokens": 0,
            "evictions": 0,
        }

    def check(self) -> None:
        for pool in self._pools:
            pool.check()


def _drain(pools: Sequence[BlockPool | RunPool]) -> list[tuple[int, list[int]]]:
    drained = ((group, pool.drain_freed()) for group, pool in enumerate(pools))
    return [(group, blocks) for group, blocks in drained if blocks]
