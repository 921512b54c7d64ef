import re

import numpy as np
import pytest
from linear_calls import ISAS, empty_activations, quantise, tile

from fuseboard import _native
from fuseboard.formats.panels import pack, padded_k
from fuseboard.formats.quantise import Quantised, dequantise, fake_quantise, quantise_activations
from fuseboard.formats.quantise import quantise as quantise_weights
from fuseboard.formats.weights import ACT_FORMATS, WEIGHT_FORMATS, act_format, weight_format

PAIRS = [(name, act) for name in WEIGHT_FORMATS for act in weight_format(name).acts]
INTEGER_PAIRS = [(name, act) for name, act in PAIRS if act != "f32"]
SHAPES = [(1, 1), (16, 64), (17, 65), (70, 200), (33, 1100), (130, 321)]
ROWS = [1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 13, 16, 21, 40]
# Error of a sum of K products as a part of sum |w||x|, against float64 on the values after rounding to the formats (so
# the formats themselves cost nothing): K float32 additions, or exact sums of codes and a float32 addition a group.
TOLERANCE = {
    ("f32", "f32"): 8e-7,
    ("f16", "f32"): 8e-7,
    ("bf16", "f32"): 8e-7,
    ("w8", "a8"): 3e-7,
    ("w8", "a16"): 3e-7,
    ("w8g", "a8"): 3e-7,
    ("w8g", "a16"): 3e-7,
    ("w4", "a8"): 3e-7,
    ("w4", "a16"): 3e-7,
    ("w4a", "a8"): 5e-7,
    ("w4a", "a16"): 5e-7,
    ("w5", "a8"): 3e-7,
    ("w5", "a16"): 3e-7,
}


def rng_matrix(n, k, seed):
    return np.random.default_rng(seed).standard_normal((n, k), np.float32)


def case(name, act, n, k, rows, isa="scalar"):
    q = quantise_weights(rng_matrix(n, k, 1), name)
    x = rng_matrix(rows, k, 2) * np.float32(3)
    x[:, ::7] *= 20
    return q, x, quantise(isa, x, padded_k(q.format, k), act)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("name", "act"), PAIRS)
@pytest.mark.parametrize("shape", SHAPES)
def test_tile_matches_the_dequantised_product(isa, name, act, shape):
    n, k = shape
    for rows in ROWS if k < 1000 else [1, 2, 7, 40]:
        q, x, a = case(name, act, n, k, rows, isa)
        got = tile(isa, q, a, (0, rows))
        w, x = dequantise(q).astype(np.float64), fake_quantise(x, act).astype(np.float64)
        error = np.abs(got[:, :n] - x @ w.T) / (np.abs(x) @ np.abs(w).T + 1e-30)
        assert error.max() <= TOLERANCE[q.format.native, a.type], rows
        assert not got[:, n:].any()  # padded rows are zero


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("name", "act"), PAIRS)
def test_a_row_does_not_depend_on_its_neighbours_or_the_panel_range(isa, name, act):
    n, k, rows = 150, 1300 if isa != "scalar" else 300, 40
    q, _, a = case(name, act, n, k, rows)
    packed, panels = pack(q), -(-n // 16)
    whole = tile(isa, q, a, (0, rows), packed=packed)
    for m0 in range(0, rows, 3):
        np.testing.assert_array_equal(tile(isa, q, a, (m0, m0 + 1), packed=packed)[0], whole[m0])
    for count in range(2, 20):
        np.testing.assert_array_equal(tile(isa, q, a, (5, 5 + count), packed=packed), whole[5 : 5 + count])
    for p0 in range(panels):
        for p1 in range(p0 + 1, panels + 1):
            for m in ((0, 1), (3, 6), (0, 11)):
                got = tile(isa, q, a, m, (p0, p1), packed)
                np.testing.assert_array_equal(got, whole[m[0] : m[1], p0 * 16 : p1 * 16])


@pytest.mark.parametrize("isa", ISAS[1:])
@pytest.mark.parametrize(("name", "act"), INTEGER_PAIRS)
def test_integer_formats_agree_bit_for_bit_among_instruction_sets(isa, name, act):
    q, x, a = case(name, act, 50, 450, 13)
    b = quantise(isa, x, padded_k(q.format, 450), act)
    np.testing.assert_array_equal(tile(isa, q, b, (0, 13)), tile("scalar", q, a, (0, 13)))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("act", weight_format("w5g32").acts)
def test_five_bits_give_what_eight_give_for_the_same_codes(isa, act):
    q, _, a = case("w5g32", act, 50, 450, 13, isa)
    wide = Quantised(
        format=weight_format("w8g32"), codes_NK=(q.codes_NK - np.uint8(16)).view(np.int8), scales_NG=q.scales_NG
    )
    np.testing.assert_array_equal(tile(isa, q, a, (0, 13)), tile(isa, wide, a, (0, 13)))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("name", "act"), INTEGER_PAIRS)
def test_extreme_codes_never_saturate(isa, name, act):
    """Every weight code and activation at its limit, all of one sign: the largest sums there can be."""
    for sign in (1, -1):
        w = np.full((16, 256), np.float32(-sign))
        w[:, ::2] *= 0.99
        x = np.full((5, 256), np.float32(sign))
        q = quantise_weights(w, name)
        got = tile(isa, q, quantise(isa, x, 256, act), (0, 5))
        np.testing.assert_allclose(got, np.tile(dequantise(q).astype(np.float64).sum(axis=1) * sign, (5, 1)), rtol=2e-6)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", WEIGHT_FORMATS)
def test_row_is_the_dequantised_row(isa, name):
    n, k = 37, 203
    q = quantise_weights(rng_matrix(n, k, 5), name)
    packed, expected = pack(q), dequantise(q)
    for index in (0, 7, 8, 15, 16, 36):
        out = np.full((1, k + 2), np.nan, np.float32)
        _native.linear_row(isa, q.format.native, packed, n, k, padded_k(q.format, k), q.format.group, index, out)
        np.testing.assert_array_equal(out[0, :k], expected[index])
        assert np.isnan(out[0, k:]).all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("act", [name for name in ACT_FORMATS if name != "f32"])
@pytest.mark.parametrize("k", [1, 31, 64, 65, 200, 896])
def test_quantise_is_the_numpy_rounding(isa, act, k):
    group = act_format(act).group
    x = rng_matrix(9, k, 3) * np.float32(10) ** np.arange(-4, 5, dtype=np.float32)[:, None]
    x[4, : k // 2] = 0
    x[5] = np.round(x[5] * 2) / 2  # many ties
    ld = k + -k % 128 + 128
    a = quantise(isa, x, ld, act)
    codes, scales = quantise_activations(x, act)
    got = a.codes_in_order()
    np.testing.assert_array_equal(got[:, :k], codes)
    assert not got[:, k:].any()
    np.testing.assert_array_equal(a.scales[:, : scales.shape[1]], scales)
    assert not a.scales[:, scales.shape[1] :].any()
    np.testing.assert_array_equal(a.sums, got.astype(np.int32).reshape(9, -1, group).sum(axis=-1))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("act", ACT_FORMATS)
def test_slices_make_the_same_row(isa, act):
    x = rng_matrix(3, 330, 4)
    a, whole = empty_activations(3, 384, act), quantise(isa, x, 384, act)
    for k0, k1 in ((64, 192), (0, 64), (192, 320), (320, 330)):
        _native.quantise_slice(isa, a.type, a.group, np.ascontiguousarray(x[:, k0:k1]), k0, a.codes, a.scales, a.sums)
    live = -(-330 // a.group) if a.group else 0
    columns = live * a.group or 330
    per = a.codes.shape[1] // 384
    np.testing.assert_array_equal(a.codes[:, : columns * per], whole.codes[:, : columns * per])
    np.testing.assert_array_equal(a.scales[:, :live], whole.scales[:, :live])
    np.testing.assert_array_equal(a.sums[:, :live], whole.sums[:, :live])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("name", "act"), PAIRS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_is_seen_in_its_row_only(isa, name, act, bad):
    q, x, _ = case(name, act, 20, 150, 6)
    x[2, 77] = bad
    got = tile(isa, q, quantise(isa, x, padded_k(q.format, 150), act), (0, 6))[:, :20]
    assert not np.isfinite(got[2]).any()
    assert np.isfinite(got[[0, 1, 3, 4, 5]]).all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("name", "act"), INTEGER_PAIRS)
def test_groups_that_are_padding_are_not_read(isa, name, act):
    """A row may be wider than the matrix needs, and what lies beyond its last group with columns is undefined."""
    k = 130
    q, _, a = case(name, act, 16, k, 3, isa)
    expected = tile(isa, q, a, (0, 3))
    live = -(-k // a.group)
    a.codes[:, live * a.group * (a.codes.shape[1] // padded_k(q.format, k)) :] = 0x55
    a.scales[:, live:], a.sums[:, live:] = np.nan, 12345
    np.testing.assert_array_equal(tile(isa, q, a, (0, 3)), expected)


def test_bad_arguments_are_refused_at_the_border():
    q, _, a = case("w8", "a8g64", 16, 64, 2)
    with pytest.raises(ValueError, match="rows out of range"):
        tile("scalar", q, a, (0, 3))
    with pytest.raises(ValueError, match="panels out of range"):
        tile("scalar", q, a, (0, 1), (0, 2))
    with pytest.raises(ValueError, match="cannot run"):
        tile("z80", q, a, (0, 1))


def test_ceilings_are_positive_and_checked():
    assert _native.measure_bandwidth(1, 1 << 20, 0.01) > 1e8
    assert _native.measure_flops(1, "fma", 0.01) > 1e8
    assert _native.measure_flops(1, "int8", 0.01) > 1e8
    with pytest.raises(ValueError, match="fma or int8"):
        _native.measure_flops(1, "int4", 0.01)


def test_single_kernels_and_programs_know_the_same_names() -> None:
    formats = "Unknown weight format 'w6': use one of f32, f16, bf16, w8, w8g, w4, w4a, w5."
    acts = "Unknown activation type 'a4': use one of f32, a8, a16."
    out = np.empty((1, 4), np.float32)
    for message, call in (
        (formats, lambda: _native.Weight(fmt="w6", address=0, n=1, k=1, k_pad=1, panel_bytes=1)),
        (formats, lambda: _native.linear_row("scalar", "w6", np.zeros(64, np.uint8), 1, 4, 4, 0, 0, out)),
        (acts, lambda: _native.Act(type="a4", codes=0, ld=1)),
        (acts, lambda: _native.quantise("scalar", "a4", 0, out, out.view(np.uint8), out, out.view(np.int32))),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            call()
