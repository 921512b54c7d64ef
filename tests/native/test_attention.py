"""Attention against float64, over stored formats, shapes, masks, block sizes and instruction sets.

All memory that no query may see is NaN, and the reference reads the same rounded keys and values, so the tolerance is
that of float32 arithmetic whatever the format.
"""

import numpy as np
import pytest
from attention_case import ISAS, Batch, Shape, attend, filled

from fuseboard.formats.kv import KV_FORMATS

TOLERANCE = {"f32": 2e-5, "f16": 2e-5, "bf16": 2e-5, "int8_token": 3e-5, "int8_token_head": 3e-5, "int8_head": 3e-5}
# The tiles of the amx set leave out products below 2^-16 of a sum, wherever a sequence brings 16 tokens or more.
AMX_TOLERANCE = 8e-5
KINDS = ("naive", "blockwise")
MIXED = [(0, 70), (130, 1), (10, 37), (255, 1), (0, 1), (63, 2), (256, 1), (300, 20)]


def check(case, fmt, **options):
    amx = options.get("isa", ISAS[-1]) == "amx" and options.get("kind") == "blockwise" and fmt != "f32"
    out, counters = attend(case.cache, case.batch, case.q_THD, **options)
    error = np.abs(out - case.expected()).max()
    assert error < (AMX_TOLERANCE if amx else TOLERANCE[fmt]), error
    return counters


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fmt", KV_FORMATS)
def test_formats_in_a_mixed_ragged_batch(fmt, kind, isa):
    check(filled(Shape(), MIXED, fmt=fmt), fmt, kind=kind, isa=isa, threads=2)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("head_dim", [8, 20, 37, 64, 80, 96, 128, 256])
@pytest.mark.parametrize(("kv_heads", "group"), [(4, 1), (3, 3), (2, 7), (1, 9), (1, 50)])
def test_shapes(kv_heads, group, head_dim, kind, isa):
    shape = Shape(kv_heads=kv_heads, group=group, head_dim=head_dim)
    check(filled(shape, [(0, 33), (270, 1), (20, 3)], fmt="f16", block_size=32), "f16", kind=kind, isa=isa, threads=2)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("block_size", [16, 32, 64, 128, 256])
def test_contexts_across_block_borders(block_size, kind, isa):
    borders = [15, 16, 17, 63, 64, 65, 255, 256, 257, 1000]
    contexts = [(n - 1, 1) for n in borders] + [(n - 4, 4) for n in borders]
    case = filled(Shape(kv_heads=1, group=2, head_dim=16), contexts, fmt="int8_token_head", block_size=block_size)
    check(case, "int8_token_head", kind=kind, isa=isa, threads=2)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("window", [1, 5, 16, 60, 256, 300])
@pytest.mark.parametrize("softcap", [0.0, 5.0])
def test_windows_and_soft_caps(window, softcap, kind, isa):
    shape = Shape(window=window, softcap=softcap, head_dim=20)
    case = filled(shape, [*MIXED, (600, 1), (500, 100)], fmt="f16", block_size=16)
    check(case, "f16", kind=kind, isa=isa, threads=2)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fmt", KV_FORMATS)
def test_blocks_before_the_window_may_be_gone(fmt, kind, isa):
    shape, block_size = Shape(window=100), 16
    case = filled(shape, [(600, 1), (290, 40)], fmt=fmt, block_size=block_size)
    for old, _, table in case.batch.sequences:
        left = max(0, old - shape.window + 1) // block_size
        case.cache.memory_B[table[:left]] = 0xFF
        table[:left] = [0] * left
    assert (case.cache.memory_B[0] == 0xFF).all()
    check(case, fmt, kind=kind, isa=isa, threads=2)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", KINDS)
def test_sharp_and_flat_softmax(kind, isa):
    case = filled(Shape(), [(400, 3), (500, 1)])
    for gain in (0.0, 60.0):  # uniform weights; scores of some hundreds, where a wrong maximum would overflow
        out, _ = attend(case.cache, case.batch, case.q_THD * np.float32(gain), kind=kind, isa=isa)
        case_q, case.q_THD = case.q_THD, case.q_THD * np.float32(gain)
        assert np.abs(out - case.expected()).max() < (1e-6 if gain == 0 else 2e-3)
        case.q_THD = case_q


@pytest.mark.parametrize("kind", KINDS)
def test_counters(kind):
    shape = Shape(window=50)
    case = filled(shape, [(99, 1), (0, 30)], fmt="int8_token_head")
    counters = check(case, "int8_token_head", kind=kind, threads=2)
    assert counters[f"attention_{kind}"] == 31
    assert counters["kv_int8_bytes"] == (50 + 30) * 2 * shape.kv_heads * (shape.head_dim + 4)
    assert counters["kv_half_bytes"] == 0
    half = check(filled(shape, [(99, 1)], fmt="bf16"), "bf16", kind=kind)
    assert half["kv_half_bytes"] == 50 * 2 * 2 * shape.kv_heads * shape.head_dim


def test_planned_workspace_holds_every_split_of_the_context():
    rng = np.random.default_rng(5)
    for trial in range(40):
        shape = Shape(kv_heads=1 + trial % 3, group=1, head_dim=8)
        contexts = [(int(n), 1) for n in rng.integers(0, 1500, rng.integers(1, 10))]
        case = filled(shape, contexts if trial % 2 else [(1300, 1)] * len(contexts), block_size=256)
        out, _ = attend(case.cache, case.batch, case.q_THD, threads=2 + trial % 2, max_seqs=9)
        assert np.abs(out - case.expected()).max() < TOLERANCE["f32"]


def test_an_idle_sequence_costs_nothing():
    case = filled(Shape(), [(40, 2), (64, 1)])
    (first, second), free = case.batch.sequences, case.cache.free.copy()
    batch = Batch(sequences=[first, (0, 0, []), second])
    out, _ = attend(case.cache, batch, case.q_THD)
    assert np.abs(out - case.expected()).max() < TOLERANCE["f32"]
    assert case.cache.free == free
