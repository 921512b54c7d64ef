import gguf
import ml_dtypes
import numpy as np
import pytest

from fuseboard.core.errors import LoadError, PlanError
from fuseboard.core.weights import StoredBlocks
from fuseboard.formats.panels import pack, packed_bytes, panel_bytes, unpack
from fuseboard.formats.quantise import dequantise, fake_quantise, quantise, quantise_activations
from fuseboard.formats.stored import dequantise_blocks, from_blocks, native_format
from fuseboard.formats.weights import ACT_FORMATS, WEIGHT_FORMATS, act_format, weight_format

SHAPES = [(1, 1), (16, 64), (17, 65), (33, 100), (5, 256), (48, 31)]
# Largest error of a value, as a part of the largest magnitude of its group.
ROUNDING = {
    "f32": 0,
    "f16": 2**-11,
    "bf16": 2**-8,
    "w8": 0.5 / 127,
    "w8g32": 0.51 / 127,
    "w4g32": 0.126,
    "w4g64": 0.126,
    "w4g128": 0.126,
    "w4g32a": 0.067,
    "w4g64a": 0.067,
    "w4g128a": 0.067,
    "w5g32": 0.063,
}


def matrix(n: int, k: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, k), np.float32)


@pytest.mark.parametrize("name", WEIGHT_FORMATS)
@pytest.mark.parametrize("shape", SHAPES)
def test_rounding_error_is_bounded_by_the_group_range(name, shape):
    w = matrix(*shape)
    values = dequantise(quantise(w, name))
    assert values.dtype == np.float32
    assert values.shape == w.shape
    assert np.abs(values - w).max() <= ROUNDING[name] * np.abs(w).max() * 1.001


@pytest.mark.parametrize("name", WEIGHT_FORMATS)
@pytest.mark.parametrize("shape", SHAPES)
def test_pack_round_trip_and_size(name, shape):
    q = quantise(matrix(*shape), name)
    packed = pack(q)
    assert packed.nbytes == packed_bytes(name, *shape)
    assert panel_bytes(weight_format(name), shape[1]) % 64 == 0
    back = unpack(packed, name, *shape)
    np.testing.assert_array_equal(back.codes_NK, q.codes_NK)
    np.testing.assert_array_equal(dequantise(back), dequantise(q))


def test_packed_bytes_follow_the_contract():
    """One byte of each format, placed by hand from the description in csrc/contract.h."""
    w = np.zeros((32, 64), np.float32)
    row, k = 16 + 11, 38  # second panel, row 11, sixth column of a quad's second half
    w[row, k] = 7.0
    quad, lane = k // 4, k % 4
    w4 = pack(quantise(w, "w4g32"))[panel_bytes(weight_format("w4g32"), 64) :]
    group = w4[288:]
    assert group[:32].view(np.float16)[11] == np.float16(-7 / 8)
    codes = group[32:].reshape(8, 32)
    assert codes[quad - 8, (11 % 8) * 4 + lane] >> 4 == 0  # the value of largest magnitude is -8
    assert codes[quad - 8, (11 % 8) * 4 + (lane + 1) % 4] >> 4 == 8
    w[row, k + 1] = 3.5
    w5 = pack(quantise(w, "w5g32"))[panel_bytes(weight_format("w5g32"), 64) :][352:]
    assert w5[:32].view(np.float16)[11] == np.float16(-7 / 16)
    fifths = np.unpackbits(w5[32:96].reshape(8, 8)[quad - 8], bitorder="little")
    assert fifths[11 * 4 : 12 * 4].tolist() == [1, 1, 0, 0]  # codes 16 16 0 8
    codes = w5[96:].reshape(8, 32)
    assert codes[quad - 8, (11 % 8) * 4 + lane + 1] == 8 << 4
    assert codes.sum() == 8 << 4
    w8 = pack(quantise(w, "w8"))[panel_bytes(weight_format("w8"), 64) :]
    assert w8[:64].view(np.float32)[11] == np.float32(7 / 127)
    assert w8[64:].reshape(16, 64)[quad, 11 * 4 + lane] == 127 + 128
    bf16 = pack(quantise(w, "bf16"))[32 * 64 :].view(np.uint32).reshape(64, 8)
    assert bf16[k, 3] == int(ml_dtypes.bfloat16(7).view(np.uint16)) << 16


def test_asymmetric_codes_use_minimum_and_range():
    w = np.linspace(3, 18, 32, dtype=np.float32)[None]
    q = quantise(w, "w4g32a")
    assert q.codes_NK.min() == 0
    assert q.codes_NK.max() == 15
    assert q.minima_NG is not None
    assert q.minima_NG[0, 0] == 3
    assert q.scales_NG[0, 0] == 1


@pytest.mark.parametrize("name", ["w4g32", "w4g64", "w4g32a", "w4g64a", "w5g32"])
def test_clip_search_lowers_the_error(name):
    w = matrix(64, 256) ** 3
    plain, searched = (np.square(dequantise(quantise(w, name, clip_search=c)) - w).sum() for c in (0, 12))
    assert searched < 0.97 * plain


@pytest.mark.parametrize("name", WEIGHT_FORMATS)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_values_that_are_not_finite_are_refused(name, bad):
    w = matrix(3, 70)
    w[1, 5] = bad
    with pytest.raises(LoadError, match="not finite"):
        quantise(w, name)


def test_zero_and_constant_groups():
    for name in WEIGHT_FORMATS:
        assert not dequantise(quantise(np.zeros((3, 70), np.float32), name)).any()
    constant = np.full((2, 64), 0.5, np.float32)
    for name in ("w4g32", "w4g32a", "w5g32", "w8", "w8g32"):
        np.testing.assert_allclose(dequantise(quantise(constant, name)), constant, rtol=1e-3)


def test_unknown_names_list_what_there_is():
    with pytest.raises(PlanError, match="w4g32"):
        weight_format("int3")
    with pytest.raises(PlanError, match="a8g64"):
        act_format("a4")


def test_activation_formats_fit_the_weight_groups():
    for name in WEIGHT_FORMATS:
        fmt = weight_format(name)
        for act in fmt.acts:
            group = act_format(act).group
            assert group == 0 if fmt.is_float else fmt.k_multiple % group == 0


# ---- GGUF blocks ----------------------------------------------------------------------------------------------------

EXACT = ["Q4_0", "Q4_1", "Q5_0", "Q8_0"]
REROUNDED = ["Q5_1"]


def stored(kind: str, n: int = 21, k: int = 256) -> StoredBlocks:
    return StoredBlocks(kind=kind.lower(), rows=gguf.quants.quantize(matrix(n, k), gguf.GGMLQuantizationType[kind]))


def random_blocks(kind: str, size: int, n: int = 19) -> StoredBlocks:
    """Random bytes with modest float16 scales, for kinds that the gguf package cannot make."""
    rng = np.random.default_rng(3)
    rows = rng.integers(0, 256, (n, 2, size), np.uint8)
    rows[..., :4] = rng.uniform(0.001, 0.02, (n, 2, 2)).astype(np.float16).view(np.uint8)
    return StoredBlocks(kind=kind, rows=rows.reshape(n, -1))


@pytest.mark.parametrize("kind", EXACT)
def test_stored_blocks_are_kept_bit_for_bit(kind):
    blocks = stored(kind)
    q = from_blocks(blocks, native_format(kind.lower()))
    expected = dequantise_blocks(blocks)
    np.testing.assert_array_equal(dequantise(q), expected)
    np.testing.assert_array_equal(dequantise(unpack(pack(q), q.format.name, *expected.shape)), expected)


def test_q4_k_keeps_codes_and_rounds_scales_to_half():
    blocks = random_blocks("q4_k", 144)
    expected = dequantise_blocks(blocks)
    got = dequantise(from_blocks(blocks, native_format("q4_k")))
    assert np.abs(got - expected).max() <= 2**-10 * np.abs(expected).max()


@pytest.mark.parametrize("kind", REROUNDED)
def test_other_kinds_become_eight_bits(kind):
    assert native_format(kind.lower()) == "w8g32"
    blocks = stored(kind)
    expected = dequantise_blocks(blocks)
    assert np.abs(dequantise(from_blocks(blocks, "w8g32")) - expected).max() <= 0.51 / 127 * np.abs(expected).max()


def test_blocks_in_another_format_go_through_their_values():
    blocks = stored("Q4_1")
    np.testing.assert_array_equal(dequantise(from_blocks(blocks, "f32")), dequantise_blocks(blocks))


# ---- activations ----------------------------------------------------------------------------------------------------

QUANTISED_ACTS = [name for name in ACT_FORMATS if name != "f32"]


@pytest.mark.parametrize("name", QUANTISED_ACTS)
def test_activations_round_to_nearest(name):
    fmt = act_format(name)
    x = matrix(7, 200) * np.float32(10)
    back = fake_quantise(x, name)
    assert back.shape == x.shape
    assert back.dtype == np.float32
    assert np.abs(back - x).max() <= 0.501 / fmt.limit * np.abs(x).max()
    codes, _ = quantise_activations(x, name)
    assert np.abs(codes).max() == fmt.limit


def test_activation_edge_cases():
    x = np.zeros((1, 256), np.float32)
    x[0, 64], x[0, 130], x[0, 200] = np.inf, np.nan, 2.0**-120
    back = fake_quantise(x, "a8g64")
    assert not back[0, :64].any()
    assert not back[0, 192:].any()
    assert np.isnan(back[0, 64:192]).all()
    assert fake_quantise(x, "f32") is x
