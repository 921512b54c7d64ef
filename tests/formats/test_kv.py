import ml_dtypes
import numpy as np
import pytest

from fuseboard.core.errors import PlanError
from fuseboard.formats import kv

X_THD = np.random.default_rng(3).standard_normal((5, 3, 20), np.float32)


def test_block_bytes_counts_padded_values_and_scales():
    # K 16 x 2 x 20, V 16 x 2 x 32 elements; scales 2 x 16 (or 2 x 2 x 16) floats
    assert kv.block_bytes(kv.KV_FORMATS["f16"], 16, 2, 20) == 2 * (640 + 1024)
    assert kv.block_bytes(kv.KV_FORMATS["int8_token"], 16, 2, 20) == 1664 + 128
    assert kv.block_bytes(kv.KV_FORMATS["int8_token_head"], 16, 2, 20) == 1664 + 256
    assert kv.block_bytes(kv.KV_FORMATS["int8_head"], 16, 2, 20) == 1664


@pytest.mark.parametrize("name", kv.KV_FORMATS)
def test_blocks_start_on_cache_lines(name):
    for block_size in kv.BLOCK_SIZES:
        assert kv.block_bytes(kv.kv_format(name), block_size, 3, 7) % 64 == 0


def test_unknown_names_and_sizes_are_refused():
    with pytest.raises(PlanError, match="int8_token_head"):
        kv.kv_format("int4")
    with pytest.raises(PlanError, match="128"):
        kv.block_bytes(kv.KV_FORMATS["f16"], 48, 2, 64)


def test_only_a_scale_over_heads_needs_the_whole_token():
    assert [name for name, f in kv.KV_FORMATS.items() if not f.per_head_write] == ["int8_token"]


@pytest.mark.parametrize(("name", "dtype"), [("f32", np.float32), ("f16", np.float16), ("bf16", ml_dtypes.bfloat16)])
def test_float_formats_round_to_the_nearest(name, dtype):
    assert np.array_equal(kv.fake_quantise(X_THD, kv.KV_FORMATS[name]), X_THD.astype(dtype).astype(np.float32))


def test_int8_error_is_half_a_step_of_what_shares_the_scale():
    x = X_THD.copy()
    x[:, 0] *= 20
    per_head = np.abs(kv.fake_quantise(x, kv.KV_FORMATS["int8_token_head"]) - x)
    per_token = np.abs(kv.fake_quantise(x, kv.KV_FORMATS["int8_token"]) - x)
    assert (per_head <= np.abs(x).max(axis=2, keepdims=True) / 253).all()
    assert (per_token <= np.abs(x).max(axis=(1, 2), keepdims=True) / 253).all()
    assert per_token[:, 1:].mean() > 10 * per_head[:, 1:].mean()


def test_int8_rounds_half_to_even_and_keeps_zeros():
    x = np.zeros((2, 1, 4), np.float32)
    x[0, 0] = [127, 0.5, 1.5, -2.5]
    assert kv.fake_quantise(x, kv.KV_FORMATS["int8_token_head"]).tolist() == [[[127, 0, 2, -2]], [[0, 0, 0, 0]]]


def test_static_scales_hold_the_recorded_values_and_count_what_they_clip():
    scales = kv.calibrate(X_THD)
    assert kv.clipped_values(X_THD, scales) == 0
    louder = X_THD * np.float32(2)
    clipped = kv.clipped_values(louder, scales)
    assert 0 < clipped == (np.abs(louder) > scales[None, :, None] * np.float32(127.5)).sum()
    top = kv.fake_quantise(louder, kv.KV_FORMATS["int8_head"], scales)
    assert np.allclose(np.abs(top).max(axis=(0, 2)), scales * 127)
