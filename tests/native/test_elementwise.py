"""Operations that treat every row alone, against float64 NumPy, in every instruction set.

Shape suffixes: T tokens, N columns, H heads, D head size.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from program_case import ISAS, THREADS, Acts, make_step, matrix, padded, random, rms_norm, run

from fuseboard import _native as native
from fuseboard.formats.quantise import fake_quantise

SHAPES = [(1, 1), (1, 2500), (3, 7), (5, 64), (40, 33), (2, 1025)]
Wide = np.ndarray[Any, np.dtype[np.float64]]

each_isa = pytest.mark.parametrize("isa", ISAS)
each_shape = pytest.mark.parametrize(("rows", "n"), SHAPES)


def silu(x: Wide) -> Wide:
    return x / (1 + np.exp(-x))


def gelu_tanh(x: Wide) -> Wide:
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


UNARY: dict[str, tuple[Callable[[Wide], Wide], dict[str, Any], float]] = {
    "affine": (lambda x: x * 0.3 - 1.5, {"scale": 0.3, "shift": -1.5}, 3e-7),
    "softcap": (lambda x: 30 * np.tanh(x / 30), {"cap": 30.0}, 0),
    "silu": (silu, {"kind": "silu"}, 0),
    "gelu_tanh": (gelu_tanh, {"kind": "gelu_tanh"}, 1e-9),
}


def unary(name: str, x: np.ndarray, n: int, isa: str, threads: int) -> np.ndarray:
    method = "activation" if name in ("silu", "gelu_tanh") else name
    out = np.full((len(x), n + 5), np.nan, np.float32)
    run(
        lambda p: getattr(p, f"add_{method}")(
            name, x=x.ctypes.data, ldx=x.shape[1], out=out.ctypes.data, ldo=n + 5, n=n, rows="tokens", **UNARY[name][1]
        ),
        make_step(len(x)),
        isa=isa,
        threads=threads,
    )
    assert np.isnan(out[:, n:]).all()
    return out[:, :n]


@each_isa
@each_shape
@pytest.mark.parametrize("name", UNARY)
def test_unary(name: str, rows: int, n: int, isa: str) -> None:
    x = padded(random(rows * n, rows, n, scale=5))
    function, _, absolute = UNARY[name]
    expected = function(x[:, :n].astype(np.float64))
    outs = [unary(name, x, n, isa, threads) for threads in THREADS]
    np.testing.assert_allclose(outs[0], expected, rtol=1.5e-6 if name == "gelu_tanh" else 5e-7, atol=30 * absolute)
    assert all(np.array_equal(outs[0], out) for out in outs[1:])


@each_isa
def test_exponential_keeps_its_relative_error_over_the_whole_range(isa: str) -> None:
    x = np.linspace(-87.2, 87.2, 20011, dtype=np.float32)[None]
    wide = x.astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        error = np.abs(unary("silu", x, x.shape[1], isa, 1) / silu(wide) - 1)
    assert np.nanmax(error[wide != 0]) < 4e-7  # two more roundings than exp itself


@each_isa
def test_extremes_do_not_become_nan_and_nan_stays(isa: str) -> None:
    x = np.array([[-1e30, -200, 0, 200, 1e30, np.inf, np.nan]], np.float32)
    assert unary("silu", x, 7, isa, 1)[0, 2:6].tolist() == [0, 200, float(np.float32(1e30)), np.inf]
    assert unary("softcap", x, 7, isa, 1)[0, [0, 2, 4, 5]].tolist() == [-30, 0, 30, 30]
    for name in ("silu", "gelu_tanh", "softcap", "affine"):
        out = unary(name, x, 7, isa, 1)
        assert np.isnan(out[0, 6])
        assert not np.isnan(out[0, 1:6]).any()


@each_isa
@each_shape
@pytest.mark.parametrize(("name", "function"), [("mul", np.multiply), ("add", np.add)])
def test_binary_in_place(name: str, function: Any, rows: int, n: int, isa: str) -> None:
    a, b = random(1, rows, n), padded(random(2, rows, n))
    expected = function(a, b[:, :n])
    run(
        lambda p: getattr(p, f"add_{name}")(
            name, a=a.ctypes.data, lda=n, b=b.ctypes.data, ldb=n + 3, out=a.ctypes.data, ldo=n, n=n, rows="tokens"
        ),
        make_step(rows),
        isa=isa,
        threads=2,
    )
    assert np.array_equal(a, expected)


def norm(x: np.ndarray, weight: np.ndarray, chunks: int, isa: str, threads: int = 1) -> np.ndarray:
    dim, out = len(weight), np.full((len(x), chunks * len(weight) + 1), np.nan, np.float32)
    run(
        lambda p: p.add_rms_norm(
            "norm",
            x=x.ctypes.data,
            ldx=x.shape[1],
            weight=weight.ctypes.data,
            eps=1e-5,
            out=out.ctypes.data,
            ldo=out.shape[1],
            dim=dim,
            rows="tokens",
            chunks=chunks,
        ),
        make_step(len(x)),
        isa=isa,
        threads=threads,
    )
    assert np.isnan(out[:, -1]).all()
    return np.ascontiguousarray(out[:, :-1])


@each_isa
@pytest.mark.parametrize(("rows", "dim", "chunks"), [(1, 576, 1), (7, 33, 3), (30, 5, 4), (2, 16, 9), (3, 1, 1)])
def test_rms_norm(rows: int, dim: int, chunks: int, isa: str) -> None:
    x, weight = padded(random(3, rows, chunks * dim), 2), random(4, dim)
    expected = rms_norm(x[:, :-2].reshape(rows, chunks, dim), weight, 1e-5).reshape(rows, -1)
    outs = [norm(x, weight, chunks, isa, threads) for threads in THREADS]
    np.testing.assert_allclose(outs[0], expected, rtol=2e-6, atol=1e-7)
    assert all(np.array_equal(outs[0], out) for out in outs[1:])
    assert np.array_equal(norm(np.ascontiguousarray(x[-1:]), weight, chunks, isa)[0], outs[0][-1])


@each_isa
@pytest.mark.parametrize("fmt", ["f32", "f16", "bf16", "w8", "w4g32", "w4g64a"])
def test_embed_reads_rows_of_every_format(fmt: str, isa: str) -> None:
    table, ids = matrix(5, 37, 70, fmt), [0, 36, 17, 17, 5]
    out = np.full((5, 72), np.nan, np.float32)
    run(
        lambda p: p.add_embed("embed", weight=table.weight, out=out.ctypes.data, ldo=72),
        make_step(5, token_ids=ids),
        isa=isa,
        threads=2,
    )
    np.testing.assert_allclose(out[:, :70], table.values[ids], rtol=1e-6, atol=1e-7)
    assert np.isnan(out[:, 70:]).all()


def test_gather_rows() -> None:
    x, rows = random(6, 9, 11), [8, 0, 3, 3]
    out = np.zeros((4, 11), np.float32)
    run(
        lambda p: p.add_gather_rows("gather", x=x.ctypes.data, ldx=11, out=out.ctypes.data, ldo=11, n=11),
        make_step(9, sample_rows=rows),
        threads=3,
    )
    assert np.array_equal(out, x[rows])


def test_rows_follow_the_named_count() -> None:
    x, out = random(7, 6, 4), np.zeros((6, 4), np.float32)
    for axis, count in (("one", 1), ("seqs", 1), ("rows", 2), ("tokens", 5)):
        out[:] = 0
        run(
            lambda p, axis=axis: p.add_affine(
                "a", x=x.ctypes.data, ldx=4, scale=1.0, shift=0.0, out=out.ctypes.data, ldo=4, n=4, rows=axis
            ),
            make_step(5, sample_rows=[1, 4]),
        )
        assert np.array_equal(out[:count], x[:count])
        assert not out[count:].any()


POSITIONS = [0, 1, 7, 511, 40_000]


def angles_of(dim: int, factor: float) -> tuple[np.ndarray, dict[str, int]]:
    inv_freq = (10000.0 ** (-np.arange(0, dim, 2) / dim)).astype(np.float32)
    out = np.full((len(POSITIONS), dim), np.nan, np.float32)
    counters = run(
        lambda p: p.add_rope_angles("a", inv_freq=inv_freq.ctypes.data, factor=factor, out=out.ctypes.data, dim=dim),
        make_step(len(POSITIONS), positions=POSITIONS),
        threads=2,
    )
    angles = np.array(POSITIONS, np.float32)[:, None] * inv_freq
    expected = factor * np.concatenate([np.cos(angles.astype(np.float64)), np.sin(angles.astype(np.float64))], axis=1)
    np.testing.assert_allclose(out, expected, atol=2e-7)
    return out, counters


def test_rope_angles() -> None:
    assert angles_of(64, 1.25)[1]["rope_computed"] == 1


@each_isa
@pytest.mark.parametrize(("heads", "dim"), [(3, 64), (1, 6), (2, 80)])
@pytest.mark.parametrize("index", ["row", "position"])
def test_rope(index: str, heads: int, dim: int, isa: str) -> None:
    computed, _ = angles_of(dim, 1.0)
    table, places = computed, POSITIONS if index == "row" else [4, 0, 3, 2, 1]
    x = padded(random(8, 5, heads * dim), 1)
    out = np.full((5, heads * dim), np.nan, np.float32)
    run(
        lambda p: p.add_rope(
            "rope",
            x=x.ctypes.data,
            ldx=x.shape[1],
            angles=table.ctypes.data,
            index=index,
            out=out.ctypes.data,
            ldo=heads * dim,
            heads=heads,
            dim=dim,
        ),
        make_step(5, positions=places),
        isa=isa,
        threads=2,
    )
    rows = table[places] if index == "position" else table
    cos, sin = np.split(rows.astype(np.float64)[:, None], 2, axis=-1)
    a, b = np.split(x[:, :-1].astype(np.float64).reshape(5, heads, dim), 2, axis=-1)
    expected = np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1).reshape(5, -1)
    np.testing.assert_allclose(out, expected, rtol=1e-6, atol=5e-7)


@each_isa
@pytest.mark.parametrize("name", ["a8g32", "a8g64", "a16g32", "a16g64", "f32"])
@pytest.mark.parametrize(("rows", "k"), [(1, 64), (5, 97), (33, 128)])
def test_quantise_and_norm_quantise(name: str, rows: int, k: int, isa: str) -> None:
    x, weight = padded(random(9, rows, k)), random(10, k)
    normed = norm(np.ascontiguousarray(x[:, :k]), weight, 1, isa)

    def stored(add: Callable[[native.Program, Acts], Any], threads: int) -> Acts:
        acts = Acts(rows, k, name)
        run(lambda p: add(p, acts), make_step(rows), isa=isa, threads=threads)
        return acts

    def plain(source: np.ndarray) -> Callable[[native.Program, Acts], Any]:
        return lambda p, acts: p.add_quantise(
            "q", x=source.ctypes.data, ldx=source.shape[1], k=k, out=acts.act, rows="tokens"
        )

    first = stored(plain(x), 1)
    np.testing.assert_allclose(first.values()[:, :k], fake_quantise(x[:, :k], name), rtol=1e-6)
    assert not first.values()[:, k:].any()
    fused = [
        stored(
            lambda p, acts: p.add_norm_quantise(
                "nq", x=x.ctypes.data, ldx=k + 3, weight=weight.ctypes.data, eps=1e-5, k=k, out=acts.act, rows="tokens"
            ),
            threads,
        )
        for threads in THREADS
    ]
    unfused = stored(plain(normed), 1)
    assert all(acts.same_as(unfused) for acts in fused)
