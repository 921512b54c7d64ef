"""The pools keep every block in exactly one state, whatever is asked of them in whatever order."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuseboard.execute.kv_pool import BlockPool, RunPool


def digest(number: int) -> bytes:
    return number.to_bytes(32, "little")


def test_the_null_block_is_never_handed_out():
    pool = BlockPool(5)
    assert sorted(pool.take() for _ in range(4)) == [1, 2, 3, 4]
    assert pool.available == 0


def test_a_block_is_free_when_its_last_holder_gives_it_back():
    pool = BlockPool(3)
    block = pool.take()
    pool.share(block)
    pool.give(block)
    assert pool.available == 1
    pool.give(block)
    assert pool.available == 2
    with pytest.raises(AssertionError, match="given back twice"):
        pool.give(block)


def test_published_blocks_are_evicted_in_the_order_they_were_given_back():
    pool = BlockPool(4, track_freed=True)
    blocks = [pool.take() for _ in range(3)]
    for number, block in enumerate(blocks):
        pool.publish(block, digest(number))
    for block in (blocks[1], blocks[0], blocks[2]):
        pool.give(block)
    assert pool.available == 3
    pool.share(blocks[1])
    pool.give(blocks[1])
    assert [pool.take() for _ in range(3)] == [blocks[0], blocks[2], blocks[1]]
    assert [pool.find(digest(n)) for n in range(3)] == [None, None, None]
    assert pool.evictions == 3
    assert pool.drain_freed() == [blocks[0], blocks[2], blocks[1]]
    assert pool.drain_freed() == []


def test_the_first_block_with_a_content_keeps_the_name():
    pool = BlockPool(3)
    first, second = pool.take(), pool.take()
    pool.publish(first, digest(7))
    pool.publish(second, digest(7))
    assert pool.find(digest(7)) == first
    pool.give(second)
    pool.check()
    assert not pool.is_cached(second)


def test_forgetting_frees_cached_blocks_and_leaves_used_ones_to_their_holders():
    pool = BlockPool(4)
    held, left = pool.take(), pool.take()
    pool.publish(held, digest(1))
    pool.publish(left, digest(2))
    pool.give(left)
    pool.forget()
    pool.check()
    assert pool.available == 2
    pool.give(held)
    pool.check()
    assert not pool.is_cached(held)


@given(st.lists(st.tuples(st.sampled_from(["take", "share", "give", "publish", "find", "forget"]), st.integers(0, 9))))
def test_any_sequence_of_calls_keeps_the_invariants(calls):
    pool = BlockPool(6)
    held: list[int] = []
    for call, number in calls:
        if call == "take" and pool.available:
            block = pool.take()
            assert block not in held
            held.append(block)
        elif call == "find" and (found := pool.find(digest(number))) is not None:
            pool.share(found)
            held.append(found)
        elif call == "forget":
            pool.forget()
        elif held:
            block = held[number % len(held)]
            if call == "share":
                pool.share(block)
                held.append(block)
            elif call == "give":
                held.remove(block)
                pool.give(block)
            elif call == "publish":
                pool.publish(block, digest(number))
        pool.check()
        assert pool.available == pool.size - len(set(held))


def test_runs_fill_the_first_gap_and_gaps_join_again():
    pool = RunPool(11)
    runs = [pool.take(3) for _ in range(3)]
    assert [run.start for run in runs] == [1, 4, 7]
    assert pool.take(2) is None
    pool.give(runs[0])
    pool.give(runs[2])
    assert not pool.fits(5)
    assert pool.take(3).start == 1
    pool.give(range(1, 4))
    pool.give(runs[1])
    assert pool.take(10) == range(1, 11)
    assert pool.reused == 3 + 9


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 9))))
def test_runs_never_overlap_and_never_get_lost(calls):
    pool = RunPool(31)
    held: list[range] = []
    for take, number in calls:
        if take and (run := pool.take(number)) is not None:
            assert not any(set(run) & set(other) for other in held)
            held.append(run)
        elif held:
            pool.give(held.pop(number % len(held)))
        pool.check()
        assert pool.available == 30 - sum(map(len, held))
    for run in held:
        pool.give(run)
    assert pool.take(30) == range(1, 31)


def test_a_run_given_back_twice_is_caught():
    pool = RunPool(11)
    run = pool.take(3)
    pool.give(run)
    with pytest.raises(AssertionError, match="twice"):
        pool.give(run)
