"""Storing keys and values: every stored element and scale, read back through the documented block layout."""

import ml_dtypes
import numpy as np
import pytest
from attention_case import ISAS, Batch, Cache, Shape, blocks_for, sequence_data, write

from fuseboard import _native as native
from fuseboard.formats.kv import KV_FORMATS, clipped_values, fake_quantise

STORED = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}


def read_back(cache: Cache, table: list[int], tokens: int) -> tuple[np.ndarray, np.ndarray]:
    """K and V [T, K, D] of a sequence, as the layout in csrc/attention/layout.h says."""
    fmt, heads, dim, size = cache.fmt, cache.shape.kv_heads, cache.shape.head_dim, cache.block_size
    padded, dtype = -(-dim // 16) * 16, np.dtype(STORED.get(fmt.name, np.int8))
    k_bytes, v_bytes = heads * size * dim * dtype.itemsize, heads * size * padded * dtype.itemsize
    keys, values = [], []
    for block in cache.memory_B[table]:
        panels = block[:k_bytes].view(dtype).reshape(heads, size // 16, dim, 16)
        k = panels.transpose(1, 3, 0, 2).reshape(size, heads, dim)
        v = block[k_bytes : k_bytes + v_bytes].view(dtype).reshape(heads, size, padded)[:, :, :dim].transpose(1, 0, 2)
        scales = np.ones((2, size, heads), np.float32)
        if fmt.calibrated:
            scales *= cache.head_scales[:, None, :]
        elif fmt.scaling != "none":
            stored = block[k_bytes + v_bytes :][: size * fmt.scale_bytes(heads)].view(np.float32)
            scales *= stored.reshape(2, -1, size).transpose(0, 2, 1)
        keys.append(k.astype(np.float32) * scales[0, :, :, None])
        values.append(v.astype(np.float32) * scales[1, :, :, None])
    return np.concatenate(keys)[:tokens], np.concatenate(values)[:tokens]


def store(
    fmt: str, shape: Shape, lengths: list[int], *, block_size: int, isa: str, threads: int = 1, gain: float = 1.0
) -> tuple[Cache, Batch, list[np.ndarray], list[np.ndarray], int]:
    blocks = blocks_for(block_size, lengths)
    cache = Cache(fmt=KV_FORMATS[fmt], shape=shape, block_size=block_size, blocks=blocks)
    if cache.fmt.calibrated:
        cache.head_scales = np.linspace(0.02, 0.04, 2 * shape.kv_heads, dtype=np.float32).reshape(2, -1)
    data = [sequence_data(shape, n, i) for i, n in enumerate(lengths)]
    keys, values = ([d[part] * np.float32(gain) for d in data] for part in (1, 2))
    batch = Batch(sequences=[(0, n, cache.table(n)) for n in lengths])
    clipped = write(cache, batch, np.concatenate(keys), np.concatenate(values), isa=isa, threads=threads)
    return cache, batch, keys, values, clipped


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("fmt", KV_FORMATS)
@pytest.mark.parametrize(("kv_heads", "head_dim", "block_size"), [(1, 8, 16), (3, 20, 32), (2, 64, 64), (2, 37, 256)])
def test_stored_values_are_the_rounded_ones_bit_for_bit(isa, fmt, kv_heads, head_dim, block_size):
    shape = Shape(kv_heads=kv_heads, head_dim=head_dim)
    cache, batch, keys, values, clipped = store(fmt, shape, [1, 17, 40], block_size=block_size, isa=isa, threads=2)
    scales = cache.head_scales if cache.head_scales is not None else (None, None)
    for (_, tokens, table), k, v in zip(batch.sequences, keys, values, strict=True):
        stored_k, stored_v = read_back(cache, table, tokens)
        assert np.array_equal(stored_k, fake_quantise(k, cache.fmt, scales[0]))
        assert np.array_equal(stored_v, fake_quantise(v, cache.fmt, scales[1]))
    assert clipped == 0 or cache.fmt.calibrated


@pytest.mark.parametrize("isa", ISAS)
def test_static_scales_count_every_clipped_value(isa):
    cache, _, keys, values, clipped = store("int8_head", Shape(), [50, 3], block_size=32, isa=isa, threads=2, gain=3.0)
    expected = sum(clipped_values(x, s) for xs, s in zip((keys, values), cache.head_scales, strict=True) for x in xs)
    assert clipped == expected > 100


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("fmt", ["f16", "bf16"])
def test_halves_round_like_the_standard_says(isa, fmt):
    edge = [0.0, -0.0, 65504.0, 65519.9, 65520.0, 1e30, -np.inf, 2.0**-14, 2.0**-24, 2.0**-25, 1.5 * 2.0**-25, 1e-40]
    ties = [1 + 2.0**-11, 1 + 3 * 2.0**-11, 1 + 2.0**-8, 1 + 3 * 2.0**-8, np.nan]
    x = np.array([edge + ties], np.float32).reshape(1, 1, -1)
    shape = Shape(kv_heads=1, head_dim=x.shape[-1])
    cache = Cache(fmt=KV_FORMATS[fmt], shape=shape, block_size=16, blocks=3)
    batch = Batch(sequences=[(0, 1, cache.table(1))])
    write(cache, batch, x, x, isa=isa)
    with np.errstate(over="ignore"):
        expected = x.astype(STORED[fmt]).astype(np.float32)
    for stored in read_back(cache, batch.sequences[0][2], 1):
        assert np.array_equal(stored, expected, equal_nan=True)


def test_only_the_slots_of_the_step_are_written():
    cache, batch, *_ = store("f16", Shape(), [20], block_size=16, isa="")
    used = batch.sequences[0][2]
    assert (np.delete(cache.memory_B, used, axis=0) == 0xFF).all()
    k, v = read_back(cache, used, 32)
    for x in (k, v):
        assert np.isnan(x[20:]).all()
        assert np.isfinite(x[:20]).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"block_bytes": 64}, "too small"),
        ({"block_size": 24}, "multiple of 16"),
        ({"head_dim": 1040}, "1024"),
        ({"group": 4}, "groups"),
        ({"address": 0}, "no address"),
        ({"fmt": "i8_head"}, "head_scales"),
    ],
)
def test_a_pool_that_cannot_work_is_refused(changes, message):
    pool = {"fmt": "f16", "address": 64, "block_bytes": 1 << 30, "block_size": 16, "kv_heads": 2, "head_dim": 64}
    with pytest.raises(ValueError, match=message):
        native.KvPool(**(pool | changes))
