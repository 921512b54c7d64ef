"""Op references against independent formulas, and shape rules that refuse what does not fit."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuseboard.formats.quantise import fake_quantise
from fuseboard.graph.ir import Dim, R, T, Value
from fuseboard.graph.ops import OPS, KvState


def reference(op, *inputs, **attrs):
    return OPS[op].reference(list(inputs), attrs)


def normal(*shape, seed=0, scale=1.0):
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


def test_top_k_orders_ties_by_rising_id():
    logits = np.array([[1, 3, 3, 2, 3, -np.inf], [0, 0, 0, 0, 0, 0]], np.float32)
    ids, top, logsumexp = reference("top_k", logits, k=4)
    np.testing.assert_array_equal(ids, [[1, 2, 4, 3], [0, 1, 2, 3]])
    np.testing.assert_array_equal(top, [[3, 3, 3, 2], [0, 0, 0, 0]])
    np.testing.assert_allclose(logsumexp, [math.log(3 * math.e**3 + math.e**2 + math.e), math.log(6)], rtol=1e-6)
    assert ids.dtype == np.int32


def test_top_k_of_large_logits_does_not_overflow():
    _, _, logsumexp = reference("top_k", np.array([[1000.0, 1000.0]], np.float32), k=2)
    np.testing.assert_allclose(logsumexp, [1000 + math.log(2)], rtol=1e-6)


@settings(max_examples=50, deadline=None)
@given(
    rows=st.integers(1, 5),
    columns=st.integers(1, 150),
    bits=st.sampled_from([8, 16]),
    group=st.sampled_from([32, 64]),
    seed=st.integers(0, 99),
)
def test_quantise_is_what_the_kernels_round_to(rows, columns, bits, group, seed):
    x = normal(rows, columns, seed=seed)
    x[0, : columns // 2] = 0
    name = f"a{bits}g{group}"
    (got,) = reference("quantise", x, format=name, bits=bits, group=group)
    np.testing.assert_allclose(got, fake_quantise(x, name), rtol=3e-7, atol=0)
    for start in range(0, columns, group):
        piece = x[:, start : start + group]
        step = np.abs(piece).max(axis=1, keepdims=True) / (127 if bits == 8 else 32767)
        assert (np.abs(got[:, start : start + group] - piece) <= step * 0.505).all()


def test_quantise_places_codes_by_hand():
    x = np.array([[127.0, 63.4, 0.5, 1.5, -127.0]], np.float32)
    (got,) = reference("quantise", x, format="a8g64", bits=8, group=64)
    np.testing.assert_array_equal(got, [[127, 63, 0, 2, -127]])


def test_elementwise_formulas():
    x = normal(3, 7, scale=3.0)
    wide = x.astype(np.float64)
    expected = {
        "silu": wide / (1 + np.exp(-wide)),
        "gelu_tanh": wide * 0.5 * (1 + np.tanh(math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3))),
    }
    for op, values in expected.items():
        np.testing.assert_allclose(reference(op, x)[0], values, rtol=2e-6, atol=1e-6)
    np.testing.assert_allclose(reference("affine", x, scale=2.5, shift=-1.0)[0], wide * 2.5 - 1, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(reference("softcap", x, cap=2.0)[0], 2 * np.tanh(wide / 2), rtol=1e-6)
    np.testing.assert_array_equal(reference("mul", x, x)[0], x * x)
    np.testing.assert_array_equal(reference("add", x, x)[0], 2 * x)


def test_activations_of_large_inputs_stay_finite():
    x = np.array([[-1e4, -200.0, 0.0, 200.0, 1e4]], np.float32)
    np.testing.assert_array_equal(reference("silu", x)[0], [[0, 0, 0, 200, 1e4]])
    np.testing.assert_array_equal(reference("gelu_tanh", x)[0], [[0, 0, 0, 200, 1e4]])


def test_rms_norm_normalises_piece_by_piece():
    x, weight = normal(2, 12), normal(4, seed=1)
    (got,) = reference("rms_norm", x, weight, eps=1e-3, dim=4)
    for piece in range(3):
        part = x[:, 4 * piece : 4 * piece + 4].astype(np.float64)
        expected = part / np.sqrt((part**2).mean(axis=1, keepdims=True) + 1e-3) * weight
        np.testing.assert_allclose(got[:, 4 * piece : 4 * piece + 4], expected, rtol=1e-6)


def test_linear_biases_belong_to_the_weights_that_have_them():
    x, a, b, bias = normal(3, 4), normal(5, 4, seed=1), normal(2, 4, seed=2), normal(2, seed=3)
    first, second = reference("linear", x, a, b, bias, count=2, biases=(1,))
    np.testing.assert_allclose(first, x @ a.T, rtol=1e-6)
    np.testing.assert_allclose(second, x @ b.T + bias, rtol=1e-6)


def test_embed_and_gather_pick_rows():
    table = normal(9, 3)
    np.testing.assert_array_equal(reference("embed", np.array([8, 0, 8]), table)[0], table[[8, 0, 8]])
    np.testing.assert_array_equal(reference("gather_rows", table, np.array([4, 1]))[0], table[[4, 1]])


def test_rope_turns_pairs_and_can_look_its_rows_up():
    from fuseboard.graph.rope import RopeSpec

    attrs = {"rope": RopeSpec(theta=100.0), "head_dim": 6, "max_position": 50}
    positions = np.array([3, 0, 17], np.int32)
    (angles,) = reference("rope_angles", positions, **attrs)
    (table,) = reference("rope_angles", length=20, **attrs)
    np.testing.assert_array_equal(table[positions], angles)
    x = normal(3, 12)
    (turned,) = reference("rope", x, angles, head_dim=6)
    np.testing.assert_array_equal(reference("rope", x, table, positions, head_dim=6)[0], turned)
    pairs = x.reshape(3, 2, 2, 3)
    complex_x = pairs[:, :, 0] + 1j * pairs[:, :, 1]
    phase = positions[:, None] * 100.0 ** (-np.arange(3) / 3)
    spun = complex_x * np.exp(1j * phase)[:, None]
    expected = np.stack([spun.real, spun.imag], axis=2).reshape(3, 12)
    np.testing.assert_allclose(turned, expected, atol=2e-6)


def attend(q, keys, values, *, window=None, softcap=None, scale=0.3):
    """One query head group by group, position by position, in float64; the queries are the last positions."""
    heads, kv_heads = q.shape[1], keys.shape[1]
    out = np.zeros(q.shape)
    for t in range(len(q)):
        own = len(keys) - len(q) + t
        start = 0 if window is None else max(0, own - window + 1)
        for head in range(heads):
            kv = head // (heads // kv_heads)
            scores = keys[start : own + 1, kv].astype(np.float64) @ q[t, head] * scale
            scores = scores if softcap is None else softcap * np.tanh(scores / softcap)
            weights = np.exp(scores - scores.max())
            out[t, head] = weights / weights.sum() @ values[start : own + 1, kv]
    return out


@pytest.mark.parametrize("window", [None, 1, 2, 5, 11, 40])
@pytest.mark.parametrize("softcap", [None, 0.7])
@pytest.mark.parametrize("heads", [(3, 1), (4, 4), (6, 2)])
def test_attention_over_scattered_blocks(window, softcap, heads):
    """Two sequences, one a decode and one a prefill with 4 earlier tokens, over blocks in random order."""
    (count, kv_count), dim, block = heads, 5, 4
    contexts, news = [9, 11], [1, 7]
    keys, values = normal(40, kv_count, dim, seed=1), normal(40, kv_count, dim, seed=2)
    state = KvState(k_PND=keys, v_PND=values, block_size=block, store=lambda x, part: x)
    tables = np.array([[7, 2, 9], [4, 1, 8]], np.int32)
    q = normal(sum(news), count * dim, seed=3)
    attrs = {"heads": count, "kv_heads": kv_count, "head_dim": dim, "scale": 0.3, "window": window, "softcap": softcap}
    (got,) = reference("attention", q, state, np.array([0, 1, 8]), np.array(contexts), tables, **attrs)
    at = 0
    for table, context, new in zip(tables, contexts, news, strict=True):
        slots = [table[p // block] * block + p % block for p in range(context)]
        heads_q = q[at : at + new].reshape(new, count, dim)
        expected = attend(heads_q, keys[slots], values[slots], window=window, softcap=softcap)
        np.testing.assert_allclose(got[at : at + new], expected.reshape(new, -1), atol=3e-6)
        at += new


def test_attention_never_mixes_what_the_window_hides():
    """NaN in hidden slots does not spread."""
    keys, values = normal(8, 1, 4), normal(8, 1, 4, seed=1)
    keys[:4] = values[:4] = np.nan
    state = KvState(k_PND=keys, v_PND=values, block_size=4, store=lambda x, part: x)
    attrs = {"heads": 1, "kv_heads": 1, "head_dim": 4, "scale": 1.0, "window": 3, "softcap": None}
    (got,) = reference("attention", normal(1, 4), state, np.array([0, 1]), np.array([7]), np.array([[0, 1]]), **attrs)
    assert np.isfinite(got).all()


def test_kv_write_stores_in_slots_through_the_format():
    state = KvState(
        k_PND=np.zeros((6, 2, 3), np.float32),
        v_PND=np.zeros((6, 2, 3), np.float32),
        block_size=2,
        store=lambda x, part: x * (10 if part == "k" else 100),
    )
    k, v = normal(2, 6), normal(2, 6, seed=1)
    (after,) = reference("kv_write", k, v, state, np.array([5, 2]))
    assert after is state
    np.testing.assert_array_equal(state.k_PND[[5, 2]].reshape(2, 6), k * 10)
    np.testing.assert_array_equal(state.v_PND[[5, 2]].reshape(2, 6), v * 100)
    assert not state.k_PND[[0, 1, 3, 4]].any()


def value(*shape, kind="temp", dtype="f32"):
    return Value(name="v", shape=shape, kind=kind, dtype=dtype)


STATE = value(kind="state", dtype="f16")
ATTENTION = {"heads": 2, "kv_heads": 1, "head_dim": 4}
SHAPES = [
    ("embed", [value(T), value(50, 8)], {}, [((T, 8), "f32")]),
    ("rms_norm", [value(T, 12), value(4)], {"dim": 4}, [((T, 12), "f32")]),
    (
        "linear",
        [value(T, 8), value(3, 8), value(5, 8), value(5)],
        {"count": 2, "biases": (1,)},
        [((T, 3), "f32"), ((T, 5), "f32")],
    ),
    ("gather_rows", [value(T, 8), value(R)], {}, [((R, 8), "f32")]),
    ("top_k", [value(R, 50)], {"k": 7}, [((R, 7), "i32"), ((R, 7), "f32"), ((R,), "f32")]),
    ("rope_angles", [value(T)], {"head_dim": 4}, [((T, 4), "f32")]),
    ("rope_angles", [], {"head_dim": 4, "length": 9}, [((9, 4), "f32")]),
    ("rope", [value(T, 8), value(T, 4)], {"head_dim": 4}, [((T, 8), "f32")]),
    ("kv_write", [value(T, 8), value(T, 8), STATE, value(T)], {}, [((), "f16")]),
    ("attention", [value(T, 8), STATE], ATTENTION, [((T, 8), "f32")]),
    ("silu", [value(T, 8)], {}, [((T, 8), "f32")]),
    ("add", [value(T, 8), value(T, 8)], {}, [((T, 8), "f32")]),
    ("quantise", [value(T, 8)], {"format": "a8g64"}, [((T, 8), "a8g64")]),
]
MISFITS = [
    ("rms_norm", [value(T, 12), value(5)], {"dim": 5}),
    ("rms_norm", [value(T, 12), value(3)], {"dim": 4}),
    ("linear", [value(T, 8), value(3, 9)], {"count": 1, "biases": ()}),
    ("linear", [value(T, 8), value(3, 8), value(4)], {"count": 1, "biases": (0,)}),
    ("rope", [value(T, 8), value(T, 6)], {"head_dim": 4}),
    ("rope", [value(T, 10), value(T, 4)], {"head_dim": 4}),
    ("kv_write", [value(T, 8), value(T, 4), STATE, value(T)], {}),
    ("kv_write", [value(T, 8), value(T, 8), value(T, 8), value(T)], {}),
    ("attention", [value(T, 12), STATE], ATTENTION),
    ("attention", [value(T, 8), value(T, 8)], ATTENTION),
    ("add", [value(T, 8), value(R, 8)], {}),
    ("mul", [value(T, 8), value(Dim("T", 2), 8)], {}),
]


@pytest.mark.parametrize(("op", "inputs", "attrs", "expected"), SHAPES)
def test_shape_rules(op, inputs, attrs, expected):
    assert OPS[op].infer(inputs, attrs) == expected


@pytest.mark.parametrize(("op", "inputs", "attrs"), MISFITS)
def test_shape_rules_refuse_what_does_not_fit(op, inputs, attrs):
    with pytest.raises(AssertionError):
        OPS[op].infer(inputs, attrs)


def test_every_op_has_a_shape_rule_test():
    assert {op for op, *_ in SHAPES} | {"affine", "softcap", "gelu_tanh", "mul"} == set(OPS)


def test_operations_count_multiplies_and_adds():
    sizes = {"T": 3, "S": 1, "R": 2, "context_tokens": 20}
    linear = [value(T, 8), value(5, 8), value(4, 8)]
    assert OPS["linear"].operations(linear, {"count": 2, "biases": ()}, sizes) == 2 * 3 * 8 * (5 + 4)
    attention = OPS["attention"].operations([value(T, 8), STATE], ATTENTION, sizes)
    assert attention == 2 * 2 * 20 * 8
    assert OPS["embed"].operations([value(T), value(50, 8)], {}, sizes) == 0
