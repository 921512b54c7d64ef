"""A row of attention depends on its own keys and position, and on nothing else, bit for bit."""

import numpy as np
import pytest
from attention_case import ISAS, Batch, Shape, attend, filled

KINDS = ("naive", "blockwise")
FORMATS = ("f32", "f16", "int8_token_head", "int8_head")
pytestmark = [pytest.mark.parametrize("isa", ISAS), pytest.mark.parametrize("kind", KINDS)]


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("window", [0, 90])
def test_block_size(fmt, window, kind, isa):
    shape, contexts = Shape(window=window, group=3), [(0, 70), (300, 1), (520, 9)]
    outs = []
    for block_size in (16, 32, 64, 128, 256):
        case = filled(shape, contexts, fmt=fmt, block_size=block_size)
        outs.append(attend(case.cache, case.batch, case.q_THD, kind=kind, isa=isa)[0])
    assert all(np.array_equal(outs[0], out) for out in outs[1:])


def test_layout(kind, isa):
    contexts = [(0, 40), (300, 1)]
    scattered = filled(Shape(), contexts, fmt="f16", block_size=16)
    in_a_row = filled(Shape(), contexts, fmt="f16", block_size=16)
    memory, fresh = in_a_row.cache.memory_B, scattered.cache.memory_B
    first = 1
    sequences = []
    for old, new, table in scattered.batch.sequences:
        row = list(range(first, first + len(table)))
        memory[row] = fresh[table]
        sequences.append((old, new, row))
        first += len(table)
    expected, _ = attend(scattered.cache, scattered.batch, scattered.q_THD, kind=kind, isa=isa)
    out, _ = attend(in_a_row.cache, Batch(sequences=sequences), in_a_row.q_THD, kind=kind, isa=isa)
    assert np.array_equal(expected, out)


@pytest.mark.parametrize("threads", [2, 3])
def test_threads(threads, kind, isa):
    case = filled(Shape(kv_heads=3), [(0, 70), (900, 1), (700, 1)], fmt="f16")
    one, _ = attend(case.cache, case.batch, case.q_THD, kind=kind, isa=isa)
    assert np.array_equal(one, attend(case.cache, case.batch, case.q_THD, kind=kind, isa=isa, threads=threads)[0])


@pytest.mark.parametrize("group", [1, 4, 7])
def test_neighbours(group, kind, isa):
    shape = Shape(group=group)
    contexts = [(0, 30), (600, 1), (255, 2), (5, 1), (256, 1)]
    together = filled(shape, contexts, fmt="f16", block_size=32)
    out, _ = attend(together.cache, together.batch, together.q_THD, kind=kind, isa=isa, threads=2)
    start = 0
    for i, context in enumerate(contexts):
        alone = filled(shape, [context], fmt="f16", block_size=32, seed=i)
        row, _ = attend(alone.cache, alone.batch, alone.q_THD, kind=kind, isa=isa, threads=2)
        assert np.array_equal(row, out[start : start + context[1]])
        start += context[1]


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize(("group", "window"), [(1, 0), (3, 0), (7, 100), (50, 0)])
def test_chunks_of_a_prompt_down_to_single_tokens(fmt, group, window, kind, isa):
    """The whole prompt in one step, in chunks, and token by token, as decode does it."""
    shape, tokens = Shape(kv_heads=1, group=group, window=window, head_dim=32), 330
    whole = filled(shape, [(0, tokens)], fmt=fmt)
    expected, _ = attend(whole.cache, whole.batch, whole.q_THD, kind=kind, isa=isa, threads=2)
    table = whole.batch.sequences[0][2]
    start = 0
    for size in (100, 1, 7, 64, 1, 120, 1, 1, 35):
        chunk = Batch(sequences=[(start, size, table)])
        out, _ = attend(whole.cache, chunk, whole.q_THD[start : start + size], kind=kind, isa=isa, threads=2)
        if isa == "amx" and kind == "blockwise" and fmt != "f32" and size < 16:  # few tokens are not worth its tiles
            np.testing.assert_allclose(out, expected[start : start + size], rtol=0, atol=1e-4)
        else:
            assert np.array_equal(out, expected[start : start + size]), (start, size)
        start += size
    assert start == tokens
