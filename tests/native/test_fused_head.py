"""The best 64 words and the logsumexp: stored logits against NumPy, the fused head bit for bit against its parts.

Shape suffixes: T tokens, R sample rows, V vocabulary, K candidates.
"""

from dataclasses import dataclass

import numpy as np
import pytest
from program_case import ISAS, THREADS, Acts, make_step, matrix, padded, random, run

from fuseboard import _native as native

K = native.TOP_K
each_isa = pytest.mark.parametrize("isa", ISAS)


@dataclass
class Top:
    """Poisoned outputs and a workspace of exactly the planned size, between guard pages."""

    rows: int
    vocab: int
    threads: int

    def __post_init__(self) -> None:
        self.ids = np.full((self.rows, K), -7, np.int32)
        self.logits = np.full((self.rows, K), np.nan, np.float32)
        self.logsumexp = np.full(self.rows, np.nan, np.float32)
        self.workspace = native.Region(native.lm_head_workspace_bytes(self.vocab, self.rows, self.threads))
        self.workspace.view()[:] = 0xFF

    def arguments(self) -> dict[str, int]:
        return {
            "ids": self.ids.ctypes.data,
            "top": self.logits.ctypes.data,
            "logsumexp": self.logsumexp.ctypes.data,
            "workspace": self.workspace.address,
        }

    def same_as(self, other: "Top") -> bool:
        return all(np.array_equal(getattr(self, name), getattr(other, name)) for name in ("ids", "logits", "logsumexp"))


def top_k(logits: np.ndarray, vocab: int, isa: str, threads: int) -> Top:
    rows = len(logits)
    top = Top(rows, vocab, threads)
    run(
        lambda p: p.add_top_k("top", logits=logits.ctypes.data, ldl=logits.shape[1], vocab=vocab, **top.arguments()),
        make_step(rows, sample_rows=list(range(rows))),
        isa=isa,
        threads=threads,
    )
    return top


def expected_top(logits_RV: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    order = np.argsort(-logits_RV, axis=1, kind="stable")[:, :K]
    return order, np.take_along_axis(logits_RV, order, axis=1)


@each_isa
@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize(("rows", "vocab"), [(1, 5000), (3, 64), (2, 65), (5, 257), (1, 1030), (70, 700)])
def test_top_k_of_stored_logits(rows: int, vocab: int, threads: int, isa: str) -> None:
    logits = padded(random(vocab, rows, vocab, scale=4))
    live = logits[:, :vocab]
    top = top_k(logits, vocab, isa, threads)
    ids, values = expected_top(live)
    assert np.array_equal(top.ids, ids)
    assert np.array_equal(top.logits, values)
    wide = live.astype(np.float64)
    largest = wide.max(axis=1)
    np.testing.assert_allclose(top.logsumexp, largest + np.log(np.exp(wide - largest[:, None]).sum(axis=1)), rtol=5e-7)
    assert top.same_as(top_k(logits, vocab, isa, 1))


@each_isa
@pytest.mark.parametrize("threads", THREADS)
def test_ties_go_to_the_lower_id(threads: int, isa: str) -> None:
    logits = np.round(random(1, 4, 3000), 1) + np.float32(0)
    logits[3] = 1.5
    top = top_k(logits, 3000, isa, threads)
    assert np.array_equal(top.ids, expected_top(logits)[0])
    assert top.ids[3].tolist() == list(range(K))


@each_isa
def test_a_small_vocabulary_leaves_empty_places(isa: str) -> None:
    logits = random(2, 2, 10)
    top = top_k(logits, 10, isa, 2)
    assert np.array_equal(top.ids[:, :10], np.argsort(-logits, axis=1))
    assert (top.ids[:, 10:] == -1).all()
    assert np.isneginf(top.logits[:, 10:]).all()


@dataclass
class HeadCase:
    tokens: int
    sampled: list[int]
    vocab: int
    fmt: str
    act: str
    softcap: float

    def __post_init__(self) -> None:
        self.k = 80
        self.x, self.norm = padded(random(1, self.tokens, self.k)), random(2, self.k)
        self.head = matrix(3, self.vocab, self.k, self.fmt, bias=True)
        self.step = make_step(self.tokens, sample_rows=self.sampled)

    def fused(self, isa: str, threads: int) -> tuple[Top, dict[str, int]]:
        top, acts = Top(len(self.sampled), self.vocab, threads), Acts(len(self.sampled), self.k, self.act)
        counters = run(
            lambda p: p.add_lm_head(
                "head",
                x=self.x.ctypes.data,
                ldx=self.k + 3,
                norm=self.norm.ctypes.data,
                eps=1e-6,
                act=acts.act,
                head=self.head.weight,
                softcap=self.softcap,
                **top.arguments(),
            ),
            self.step,
            isa=isa,
            threads=threads,
        )
        return top, counters

    def parts(self, isa: str) -> tuple[Top, dict[str, int]]:
        rows, k, v = len(self.sampled), self.k, self.vocab
        top, acts = Top(rows, v, 1), Acts(rows, k, self.act)
        gathered, logits = np.full((rows, k), np.nan, np.float32), np.full((rows, v), np.nan, np.float32)

        def build(p: native.Program) -> None:
            g, out = gathered.ctypes.data, logits.ctypes.data
            p.add_gather_rows("g", x=self.x.ctypes.data, ldx=k + 3, out=g, ldo=k, n=k)
            p.add_norm_quantise(
                "nq", x=g, ldx=k, weight=self.norm.ctypes.data, eps=1e-6, k=k, out=acts.act, rows="rows"
            )
            p.add_linear(
                "l", x=acts.act, rows="rows", segments=[native.Segment(weight=self.head.weight, out=out, ldo=v)]
            )
            if self.softcap:
                p.add_softcap("c", x=out, ldx=v, cap=self.softcap, out=out, ldo=v, n=v, rows="rows")
            p.add_top_k("top", logits=out, ldl=v, vocab=v, **top.arguments())

        return top, run(build, self.step, isa=isa)


@each_isa
@pytest.mark.parametrize(("fmt", "act"), [("f32", "f32"), ("bf16", "f32"), ("w8", "a16g64"), ("w4g32", "a8g32")])
@pytest.mark.parametrize(("tokens", "sampled"), [(1, [0]), (9, [8, 2, 2]), (80, list(range(79, 9, -1)))])
@pytest.mark.parametrize("softcap", [0.0, 5.0])
def test_fused_head_equals_its_parts(
    tokens: int, sampled: list[int], fmt: str, act: str, softcap: float, isa: str
) -> None:
    case = HeadCase(tokens, sampled, 1003, fmt, act, softcap)
    expected, counters = case.parts(isa)
    for threads in THREADS:
        top, fused_counters = case.fused(isa, threads)
        assert top.same_as(expected)
        assert fused_counters == counters | {"fused_lm_head": len(sampled)}


def test_no_sampled_row_does_nothing() -> None:
    case = HeadCase(3, [0], 100, "f32", "f32", 0.0)
    case.step.set(3, 1, 0)
    top, counters = case.fused("", 2)
    assert (top.ids == -7).all()
    assert counters == {"graph_replays": 1}
