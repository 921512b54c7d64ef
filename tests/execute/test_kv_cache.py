"""Block tables: room on demand, windows that give blocks back, prefixes that are found again."""

import pytest
from policies import kv_policy, schedule_policy

from fuseboard.execute.kv_cache import make_cache
from fuseboard.execute.prefix import PrefixChain


def cache_of(kv, **schedule):
    return make_cache(kv, schedule_policy(**schedule), track_freed=True)


def compute(cache, tokens, *, salt=b"", steps=None):
    """Admits a sequence, computes all its tokens in steps of the given sizes, and gives its table and hit."""
    chain = PrefixChain(4, salt)
    hit = cache.match(tokens, chain)
    at, table = hit, None
    for size in steps or [len(tokens) - hit]:
        end = min(at + size, len(tokens))
        if table is None:
            table = cache.admit(chain, hit, end, len(tokens))
        else:
            assert cache.grow(table, at, end)
        cache.commit(table, tokens, chain, end)
        at = end
    cache.check()
    return table, hit


def test_digests_depend_on_every_earlier_token_and_on_the_salt():
    tokens = list(range(12))
    plain = PrefixChain(4).digests(tokens, 3)
    assert len(set(plain)) == 3
    assert all(len(d) == 32 for d in plain)
    assert PrefixChain(4).digests([*tokens, 9, 9], 3) == plain
    assert not set(PrefixChain(4, b"tenant").digests(tokens, 3)) & set(plain)
    assert not set(PrefixChain(4).digests([7, *tokens[1:]], 3)) & set(plain)


def test_blocks_are_taken_as_tokens_come():
    cache = cache_of(kv_policy())
    table = cache.admit(PrefixChain(4), 0, 5, 5)
    assert len(table.ids[0]) == 2
    assert cache.grow(table, 5, 8)
    assert len(table.ids[0]) == 2
    assert cache.grow(table, 8, 9)
    assert len(set(table.ids[0])) == 3
    assert cache.counters()["blocks_on_demand"] == 3
    cache.release(table)
    cache.check()
    assert sorted(cache.drain_freed()[0][1]) == sorted(table.ids[0])


def test_admission_asks_for_the_whole_prompt_but_takes_only_the_first_chunk():
    cache = cache_of(kv_policy(blocks=4))
    assert cache.admit(PrefixChain(4), 0, 4, 17) is None
    table = cache.admit(PrefixChain(4), 0, 4, 16)
    assert len(table.ids[0]) == 1


def test_a_window_gives_its_blocks_back():
    cache = cache_of(kv_policy(None, 6), max_step_tokens=4)
    tokens = list(range(24))
    table, _ = compute(cache, tokens, steps=[4] * 6)
    # The step from position 20 reads positions 15 and later: blocks 0, 1 and 2 are out of reach.
    assert table.ids[1][:3] == [0, 0, 0]
    assert all(table.ids[1][3:])
    assert all(table.ids[0])
    cache.release(table)
    cache.check()


def test_a_prefix_is_found_but_never_the_last_token():
    cache = cache_of(kv_policy(prefix_cache=True))
    tokens = list(range(12))
    table, _ = compute(cache, tokens)
    again, hit = compute(cache, tokens)
    assert hit == 8
    assert again.ids[0][:2] == table.ids[0][:2]
    assert again.ids[0][2] != table.ids[0][2]
    _, hit = compute(cache, [*tokens, 1])
    assert hit == 12
    _, hit = compute(cache, tokens, salt=b"tenant")
    assert hit == 0
    assert cache.counters()["prefix_tokens"] == 20


def test_a_prefix_outlives_its_sequence_until_its_blocks_are_needed():
    cache = cache_of(kv_policy(blocks=4, prefix_cache=True))
    tokens = list(range(12))
    table, _ = compute(cache, tokens)
    cache.release(table)
    other, _ = compute(cache, [90, 91, 92, 93, 94])
    # One free block and the cached tail went; the beginning is still there.
    chain = PrefixChain(4)
    assert cache.match([*tokens, 1], chain) == 8
    assert cache.counters()["evictions"] == 1
    cache.release(other)
    cache.forget_prefixes()
    assert cache.match([*tokens, 1], PrefixChain(4)) == 0
    cache.check()


def test_a_block_is_visible_only_once_it_is_computed():
    cache = cache_of(kv_policy(prefix_cache=True))
    tokens = list(range(9))
    chain = PrefixChain(4)
    table = cache.admit(chain, 0, 9, 9)
    assert cache.match(tokens, PrefixChain(4)) == 0
    cache.commit(table, tokens, chain, 7)
    assert cache.match(tokens, PrefixChain(4)) == 4


def test_without_the_prefix_cache_nothing_is_found():
    cache = cache_of(kv_policy())
    tokens = list(range(12))
    compute(cache, tokens)
    assert cache.match(tokens, PrefixChain(4)) == 0


def test_a_hit_needs_the_window_in_its_group():
    kv = kv_policy(None, 6, blocks=8, prefix_cache=True)
    cache = cache_of(kv, max_step_tokens=4)
    tokens = list(range(20))
    table, _ = compute(cache, tokens, steps=[4] * 5)
    cache.release(table)
    again = cache.match([*tokens, 1], PrefixChain(4))
    assert again == 20
    chain = PrefixChain(4)
    shared = cache.admit(chain, cache.match([*tokens, 1], chain), 21, 21)
    assert shared.dead == [0, 3]
    assert shared.ids[1][:3] == [0, 0, 0]
    cache.release(shared)
    # The window group's block 3 is evicted: the longest prefix whose window is complete is shorter.
    window_pool = cache._pools[1]
    for _ in range(8 - 5 + 1):
        window_pool.take()
    digests = chain.digests(tokens, 5)
    missing = [i for i in range(5) if window_pool.find(digests[i]) is None]
    hit = cache.match([*tokens, 1], PrefixChain(4)) // 4
    live = range(max(0, hit * 4 - 6 + 1) // 4, hit)
    assert missing
    assert not set(missing) & set(live)


def test_hits_that_nobody_holds_do_not_count_as_free_as_well():
    cache = cache_of(kv_policy(blocks=3, prefix_cache=True))
    tokens = list(range(8))
    table, _ = compute(cache, tokens)
    cache.release(table)
    chain = PrefixChain(4)
    long = [*tokens, *range(50, 58)]
    assert cache.match(long, chain) == 8
    assert cache.admit(chain, 8, 16, 16) is None
    cache.check()
    assert cache.admit(chain, 8, 12, 12) is not None


@pytest.mark.parametrize(("windows", "longest"), [((None,), 80), ((6,), 1 << 62), ((None, 6), 80), ((70,), 80)])
def test_the_longest_sequence_that_fits(windows, longest):
    assert cache_of(kv_policy(*windows), max_step_tokens=8).longest == longest


def test_contiguous_reserves_one_run_of_the_maximum_length():
    cache = cache_of(kv_policy(blocks=40, contiguous=True), max_model_len=64)
    first = cache.admit(PrefixChain(4), 0, 3, 3)
    second = cache.admit(PrefixChain(4), 0, 3, 3)
    assert first.ids[0] == list(range(1, 17))
    assert second.ids[0] == list(range(17, 33))
    assert cache.admit(PrefixChain(4), 0, 3, 3) is None
    assert cache.grow(first, 3, 64)
    cache.release(first)
    cache.check()
    assert cache.drain_freed() == [(0, list(range(1, 17)))]
    assert cache.counters()["blocks_on_demand"] == 0
    assert cache.longest == 64
    assert cache_of(kv_policy(blocks=15, contiguous=True), max_model_len=64).longest == 0


@pytest.mark.parametrize("contiguous", [False, True])
def test_counters_move_with_the_policy(contiguous):
    def counters(**policy):
        cache = cache_of(kv_policy(blocks=40, contiguous=contiguous, **policy))
        for _ in range(2):
            cache.release(cache.admit(PrefixChain(policy.get("block_size", 4)), 0, 9, 9))
        return cache.counters()

    assert counters(pooled=False)["blocks_reused"] == 0
    assert counters()["blocks_reused"] > 0
    assert counters(block_size=16)["blocks_larger"] == 0
    assert counters(block_size=32)["blocks_larger"] > 0
