"""Prompts have exactly the wanted lengths, are real text, and are all different."""

import json

import pytest

from fuseboard.core.errors import UserError
from fuseboard.load.dummy import byte_tokenizer
from fuseboard.measure import workload
from fuseboard.measure.workload import Prompts

CODEC = byte_tokenizer(300, [1])


def test_prompts_are_exact_text_and_distinct() -> None:
    prompts = Prompts(CODEC, seed=3)
    taken = [prompts.take(n) for n in (1, 7, 100, 100, 100)]
    assert [len(p) for p in taken] == [1, 7, 100, 100, 100]
    assert len(set(taken)) == len(taken)
    for ids in taken:
        assert CODEC.decode(ids) in workload.corpus()
        assert tuple(CODEC.encode(CODEC.decode(ids))) == ids


def test_a_shared_prefix_is_shared_and_the_whole_is_exact() -> None:
    prompts = Prompts(CODEC, seed=0)
    cell = workload.grid_cell(prompts, input_len=90, output_len=4, concurrency=2, count=3, shared_prefix=60)
    ids = [r.token_ids for r in cell.requests]
    assert {i[:60] for i in ids} == {ids[0][:60]}
    assert len({i[60:] for i in ids}) == 3
    assert all(len(i) == 90 and tuple(CODEC.encode(CODEC.decode(i))) == i for i in ids)


def test_the_same_seed_gives_the_same_work() -> None:
    first, again = (workload.quick(Prompts(CODEC, seed=5), 5) for _ in range(2))
    other = workload.quick(Prompts(CODEC, seed=6), 6)
    assert first.digest == again.digest != other.digest
    assert workload.from_json(json.loads(json.dumps(first.to_json()))).digest == first.digest


def test_quick_and_full_are_what_they_promise() -> None:
    quick = workload.quick(Prompts(CODEC, seed=0), 0)
    (cell,) = quick.cells
    assert cell.concurrency == len(cell.requests) == 4
    assert all(128 <= len(r.token_ids) <= 512 and r.n_out == 32 for r in cell.requests)
    full = workload.full(Prompts(CODEC, seed=0), 0)
    assert [c.concurrency for c in full.cells] == [1, 8]
    assert len(full.warmup) == 5 * len(full.cells)
    sent = {r.token_ids for c in full.cells for r in c.requests}
    assert not sent & {r.token_ids for c in full.warmup for r in c.requests}, "warm-up uses other prompts"
    assert full.max_len == 1024 + 32
    assert full.max_concurrency == 8


def test_a_prompt_longer_than_the_text_is_refused() -> None:
    with pytest.raises(UserError, match="holds no new prompt of 400000 tokens"):
        Prompts(CODEC, seed=0).take(400_000)
    with pytest.raises(UserError, match="cannot hold a prefix"):
        Prompts(CODEC, seed=0).take(3, (1, 2, 3))
