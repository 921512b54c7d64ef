"""Linear layers, fused QKV and fused SwiGLU: products against float64 NumPy, fusions bit for bit against their parts.

Shape suffixes: T tokens, N and K a matrix, H query heads, G KV heads, D head size.
"""

from typing import Any

import numpy as np
import pytest
from program_case import ISAS, THREADS, Acts, Matrix, make_step, matrix, padded, random, run

from fuseboard import _native as native
from fuseboard.formats.kv import KV_FORMATS, block_bytes

# Weight format, activation format, and the largest weight counter that must move.
PAIRS = [
    ("f32", "f32", "f32_bytes"),
    ("f16", "f32", "half_bytes"),
    ("bf16", "f32", "half_bytes"),
    ("w8", "a16g64", "w8_bytes"),
    ("w8", "a8g64", "w8_bytes"),
    ("w8g32", "a16g32", "w8_bytes"),
    ("w4g32", "a8g32", "w4_bytes"),
    ("w4g128", "a8g64", "w4_bytes"),
    ("w4g64a", "a16g64", "w4_bytes"),
    ("w5g32", "a16g32", "w5_bytes"),
]
each_pair = pytest.mark.parametrize(("fmt", "act", "counter"), PAIRS)
each_isa = pytest.mark.parametrize("isa", ISAS)


def add_norm_quantise(p: native.Program, x: np.ndarray, weight: np.ndarray, out: Acts) -> None:
    k = len(weight)
    p.add_norm_quantise(
        "nq", x=x.ctypes.data, ldx=x.shape[1], weight=weight.ctypes.data, eps=1e-6, k=k, out=out.act, rows="tokens"
    )


def quantised(x: np.ndarray, act: str, isa: str) -> Acts:
    acts = Acts(len(x), x.shape[1], act)
    run(
        lambda p: p.add_quantise("q", x=x.ctypes.data, ldx=x.shape[1], k=x.shape[1], out=acts.act, rows="tokens"),
        make_step(len(x)),
        isa=isa,
    )
    return acts


def linear(
    acts: Acts, matrices: list[Matrix], rows: int, *, isa: str, threads: int = 1, **options: Any
) -> tuple[list[np.ndarray], dict[str, int]]:
    outs = [np.full((rows, m.quantised.shape[0] + 3), np.nan, np.float32) for m in matrices]
    segments = [
        native.Segment(weight=m.weight, out=out.ctypes.data, ldo=out.shape[1])
        for m, out in zip(matrices, outs, strict=True)
    ]
    counters = run(
        lambda p: p.add_linear("l", x=acts.act, segments=segments, rows="tokens", **options),
        make_step(rows),
        isa=isa,
        threads=threads,
    )
    assert all(np.isnan(out[:, -3:]).all() for out in outs)
    return [out[:, :-3] for out in outs], counters


@each_isa
@each_pair
@pytest.mark.parametrize("rows", [1, 5, 67])
def test_linear_with_segments_of_ragged_sizes(rows: int, fmt: str, act: str, counter: str, isa: str) -> None:
    k = 97
    acts = quantised(random(1, rows, k), act, isa)
    matrices = [matrix(2, 70, k, fmt, bias=True), matrix(4, 16, k, fmt), matrix(6, 1, k, fmt, bias=True)]
    outs, counters = linear(acts, matrices, rows, isa=isa, fused_qkv=True)
    for out, m in zip(outs, matrices, strict=True):
        expected = acts.values()[:, :k] @ m.values.T + (0 if m.bias is None else m.bias)
        np.testing.assert_allclose(out, expected, rtol=3e-5, atol=1e-5)
    assert counters == {"graph_replays": 1, "fused_qkv": 1, counter: sum(map(len, matrices))}
    for threads in THREADS[1:]:
        again, _ = linear(acts, matrices, rows, isa=isa, threads=threads)
        assert all(np.array_equal(a, b) for a, b in zip(outs, again, strict=True))


@each_isa
@each_pair
def test_a_row_does_not_depend_on_its_batch(fmt: str, act: str, counter: str, isa: str) -> None:
    x, m = random(1, 70, 128), matrix(2, 50, 128, fmt)
    (whole,), _ = linear(quantised(x, act, isa), [m], 70, isa=isa, threads=2)
    for first, count in ((0, 1), (69, 1), (3, 2), (60, 7)):
        part = np.ascontiguousarray(x[first : first + count])
        (rows,), _ = linear(quantised(part, act, isa), [m], count, isa=isa)
        assert np.array_equal(rows, whole[first : first + count])


@each_isa
@each_pair
@pytest.mark.parametrize("rows", [1, 66])
def test_residual_in_place_equals_linear_then_add(rows: int, fmt: str, act: str, counter: str, isa: str) -> None:
    acts, m, residual = quantised(random(1, rows, 64), act, isa), matrix(2, 41, 64, fmt, bias=True), random(3, rows, 41)
    (product,), _ = linear(acts, [m], rows, isa=isa)
    expected = residual + product
    counters = run(
        lambda p: p.add_linear(
            "l",
            x=acts.act,
            rows="tokens",
            residual=residual.ctypes.data,
            ldr=41,
            segments=[native.Segment(weight=m.weight, out=residual.ctypes.data, ldo=41)],
        ),
        make_step(rows),
        isa=isa,
        threads=2,
    )
    assert np.array_equal(residual, expected)
    assert counters["fused_residual"] == rows


class QkvCase:
    """x [T, K] and everything behind q [T, H D] and a cache of one layer, fused or not."""

    def __init__(
        self, *, rows: int, fmt: str, act: str, kv: str, heads: int, kv_heads: int, dim: int, qk_norm: bool
    ) -> None:
        self.rows, self.act, self.heads, self.kv_heads, self.dim = rows, act, heads, kv_heads, dim
        self.k = 96
        self.x, self.norm = padded(random(1, rows, self.k)), random(2, self.k)
        sizes = enumerate((heads * dim, kv_heads * dim, kv_heads * dim))
        self.weights = [matrix(10 * i, n, self.k, fmt, bias=i != 1) for i, n in sizes]
        self.head_norms = [random(7, dim), random(8, dim)] if qk_norm else []
        self.angles = random(9, rows + 3, dim)
        self.kv, self.block_size = KV_FORMATS[kv], 16
        self.block_bytes = block_bytes(self.kv, self.block_size, kv_heads, dim)
        self.blocks = rows // self.block_size + 2
        self.scales = np.full((2, kv_heads), 0.02, np.float32)
        slots = np.random.default_rng(3).permutation(np.arange(16, 16 * self.blocks))[:rows]
        self.step = make_step(rows, positions=[(3 * i) % (rows + 3) for i in range(rows)], slots=slots.tolist())

    def buffers(self) -> tuple[np.ndarray, np.ndarray, native.KvPool]:
        pool = np.zeros((self.blocks, self.block_bytes), np.uint8)
        native_pool = native.KvPool(
            fmt=self.kv.native,
            address=pool.ctypes.data,
            block_bytes=self.block_bytes,
            block_size=self.block_size,
            kv_heads=self.kv_heads,
            head_dim=self.dim,
            head_scales=self.scales.ctypes.data if self.kv.calibrated else 0,
        )
        return np.full((self.rows, self.heads * self.dim), np.nan, np.float32), pool, native_pool

    def fused(self, isa: str, threads: int) -> tuple[np.ndarray, np.ndarray, dict[str, int]]:
        q_out, pool, native_pool = self.buffers()
        acts = Acts(self.rows, self.k, self.act)
        q, k, v = (m.weight for m in self.weights)
        norms = [n.ctypes.data for n in self.head_norms] or [0, 0]
        counters = run(
            lambda p: p.add_norm_qkv_rope(
                "qkv",
                x=self.x.ctypes.data,
                ldx=self.k + 3,
                norm=self.norm.ctypes.data,
                eps=1e-6,
                act=acts.act,
                q=q,
                k=k,
                v=v,
                angles=self.angles.ctypes.data,
                index="position",
                q_out=q_out.ctypes.data,
                ldq=q_out.shape[1],
                pool=native_pool,
                q_norm=norms[0],
                k_norm=norms[1],
                qk_eps=1e-5,
            ),
            self.step,
            isa=isa,
            threads=threads,
        )
        return q_out, pool, counters

    def parts(self, isa: str) -> tuple[np.ndarray, np.ndarray, dict[str, int]]:
        q_out, pool, native_pool = self.buffers()
        acts, width = Acts(self.rows, self.k, self.act), self.kv_heads * self.dim
        k_out, v_out = (np.full((self.rows, width), np.nan, np.float32) for _ in range(2))

        def build(p: native.Program) -> None:
            add_norm_quantise(p, self.x, self.norm, acts)
            outs = (q_out, k_out, v_out)
            p.add_linear(
                "qkv",
                x=acts.act,
                rows="tokens",
                segments=[
                    native.Segment(weight=m.weight, out=out.ctypes.data, ldo=out.shape[1])
                    for m, out in zip(self.weights, outs, strict=True)
                ],
            )
            for i, out in enumerate(outs[:2]):
                common = {"x": out.ctypes.data, "ldx": out.shape[1], "out": out.ctypes.data, "ldo": out.shape[1]}
                if self.head_norms:
                    p.add_rms_norm(
                        "n",
                        **common,
                        weight=self.head_norms[i].ctypes.data,
                        eps=1e-5,
                        dim=self.dim,
                        rows="tokens",
                        chunks=out.shape[1] // self.dim,
                    )
                p.add_rope(
                    "r",
                    **common,
                    angles=self.angles.ctypes.data,
                    index="position",
                    heads=out.shape[1] // self.dim,
                    dim=self.dim,
                )
            p.add_kv_write("w", k=k_out.ctypes.data, ldk=width, v=v_out.ctypes.data, ldv=width, pool=native_pool)

        counters = run(build, self.step, isa=isa)
        return q_out, pool, counters


def check_qkv(case: QkvCase, isa: str) -> dict[str, int]:
    q, pool, counters = case.parts(isa)
    assert not np.isnan(q).any()
    assert pool.any()
    for threads in THREADS:
        fused_q, fused_pool, fused_counters = case.fused(isa, threads)
        assert np.array_equal(fused_q, q)
        assert np.array_equal(fused_pool, pool)
        assert fused_counters == counters | {"fused_norm_qkv_rope": case.rows}
    return counters


@each_isa
@each_pair
@pytest.mark.parametrize("rows", [1, 70])
def test_norm_qkv_rope_equals_its_parts_by_weight(rows: int, fmt: str, act: str, counter: str, isa: str) -> None:
    case = QkvCase(rows=rows, fmt=fmt, act=act, kv="f16", heads=4, kv_heads=2, dim=32, qk_norm=rows > 1)
    assert check_qkv(case, isa)[counter] == sum(map(len, case.weights))


@each_isa
@pytest.mark.parametrize("kv", KV_FORMATS)
@pytest.mark.parametrize("dim", [16, 80])
def test_norm_qkv_rope_equals_its_parts_by_cache(dim: int, kv: str, isa: str) -> None:
    case = QkvCase(rows=67, fmt="w8", act="a16g64", kv=kv, heads=3, kv_heads=3, dim=dim, qk_norm=False)
    assert ("kv_clipped" in check_qkv(case, isa)) == (kv == "int8_head")


def test_norm_qkv_rope_needs_whole_panels_a_head() -> None:
    case = QkvCase(rows=2, fmt="f32", act="f32", kv="f32", heads=2, kv_heads=1, dim=24, qk_norm=False)
    with pytest.raises(ValueError, match="multiple of 16"):
        case.fused("", 1)


class SwigluCase:
    def __init__(self, *, rows: int, k: int, n: int, fmt: str, act: str, out: str, kind: Any) -> None:
        self.rows, self.k, self.n, self.act, self.out, self.kind = rows, k, n, act, out, kind
        self.x, self.norm = padded(random(1, rows, k)), random(2, k)
        self.gate, self.up = matrix(3, n, k, fmt, bias=True), matrix(5, n, k, fmt)

    def fused(self, isa: str, threads: int) -> tuple[Acts, dict[str, int]]:
        acts, out = Acts(self.rows, self.k, self.act), Acts(self.rows, self.n, self.out)
        counters = run(
            lambda p: p.add_swiglu(
                "mlp",
                x=self.x.ctypes.data,
                ldx=self.k + 3,
                norm=self.norm.ctypes.data,
                eps=1e-6,
                act=acts.act,
                gate=self.gate.weight,
                up=self.up.weight,
                activation=self.kind,
                out=out.act,
            ),
            make_step(self.rows),
            isa=isa,
            threads=threads,
        )
        return out, counters

    def parts(self, isa: str) -> tuple[Acts, dict[str, int]]:
        acts, out = Acts(self.rows, self.k, self.act), Acts(self.rows, self.n, self.out)
        gate, up = (np.full((self.rows, self.n), np.nan, np.float32) for _ in range(2))

        def build(p: native.Program) -> None:
            g, u, n = gate.ctypes.data, up.ctypes.data, self.n
            add_norm_quantise(p, self.x, self.norm, acts)
            segments = [native.Segment(weight=m.weight, out=o, ldo=n) for m, o in ((self.gate, g), (self.up, u))]
            p.add_linear("gu", x=acts.act, rows="tokens", segments=segments)
            p.add_activation("a", kind=self.kind, x=g, ldx=n, out=g, ldo=n, n=n, rows="tokens")
            p.add_mul("m", a=g, lda=n, b=u, ldb=n, out=g, ldo=n, n=n, rows="tokens")
            p.add_quantise("q", x=g, ldx=n, k=n, out=out.act, rows="tokens")

        return out, run(build, make_step(self.rows), isa=isa)


def check_swiglu(case: SwigluCase, isa: str) -> None:
    expected, counters = case.parts(isa)
    for threads in THREADS:
        out, fused_counters = case.fused(isa, threads)
        assert out.same_as(expected)
        assert fused_counters == counters | {"fused_swiglu": case.rows}


@each_isa
@each_pair
@pytest.mark.parametrize("rows", [1, 70])
def test_swiglu_equals_its_parts(rows: int, fmt: str, act: str, counter: str, isa: str) -> None:
    check_swiglu(SwigluCase(rows=rows, k=70, n=200, fmt=fmt, act=act, out=act, kind="silu"), isa)


@each_isa
@pytest.mark.parametrize("n", [1, 64, 96, 129])
@pytest.mark.parametrize("out", ["f32", "a8g32", "a16g64"])
def test_swiglu_widths_and_outputs(out: str, n: int, isa: str) -> None:
    check_swiglu(SwigluCase(rows=3, k=64, n=n, fmt="bf16", act="f32", out=out, kind="gelu_tanh"), isa)


@each_isa
def test_swiglu_against_numpy(isa: str) -> None:
    case = SwigluCase(rows=5, k=48, n=90, fmt="f32", act="f32", out="f32", kind="silu")
    x = case.x[:, :48].astype(np.float64)
    x = x / np.sqrt((x**2).mean(axis=1, keepdims=True) + 1e-6) * case.norm
    gate = x @ case.gate.values.T + case.gate.bias
    expected = gate / (1 + np.exp(-gate)) * (x @ case.up.values.T)
    np.testing.assert_allclose(case.fused(isa, 2)[0].values(), expected, rtol=1e-4, atol=1e-5)
