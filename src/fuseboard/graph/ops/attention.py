"""Rotary embedding, the KV cache and attention.

Legend: T tokens, S sequences, H query heads, N KV heads, D head size, C context length, P slots of the cache.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fuseboard.graph.ir import Shape, T, Value, elements
from fuseboard.graph.ops.base import Array, Attrs, Op, Sizes, register
from fuseboard.graph.rope import inverse_frequencies


@dataclass(kw_only=True)
class KvState:
    """A layer's cache in the reference: float32 values, rounded by `store` to what the KV format can hold."""

    k_PND: Array
    v_PND: Array
    block_size: int
    store: Callable[[Array, str], Array]


@register
class RopeAngles(Op):
    """Cosines and sines [T, D] (cos | sin) of every position; without an input, of the positions 0..length - 1."""

    name = "rope_angles"

    def infer(self, inputs: Sequence[Value], attrs: Attrs) -> list[tuple[Shape, str]]:
        return [((T if inputs else attrs["length"], attrs["head_dim"]), "f32")]

    def operations(self, inputs: Sequence[Value], attrs: Attrs, sizes: Sizes) -> int:
        rows: int = sizes["T"] if inputs else attrs["length"]
        return rows * int(attrs["head_dim"]) * 16

    def reference(self, inputs: Sequence[Array], attrs: Attrs) -> list[Array]:
        positions = inputs[0] if inputs else np.arange(attrs["length"])
        frequencies, magnitude = inverse_frequencies(attrs["rope"], attrs["head_dim"], attrs["max_position"])
        angles = positions.astype(np.float32)[:, None] * frequencies
        return [np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32) * np.float32(magnitude)]


@register
class Rope(Op):
    """Rotates the first half of every head against the second (arXiv:2104.09864).

    Inputs are x [T, H*D] and the angles: row t for token t, or with a third input, positions, row positions[t].
    """

    name = "rope"
    inplace = 0

    def infer(self, inputs: Sequence[Value], attrs: Attrs) -> list[tuple[Shape, str]]:
        x, angles = inputs[:2]
        columns, dim = x.shape[-1], attrs["head_dim"]
        assert isinstance(columns, int), str(x)
        assert columns % dim == 0, f"{x} in heads of {dim}"
        assert angles.shape[1] == dim, f"{x} by {angles}"
        return [(x.shape, "f32")]

    def operations(self, inputs: Sequence[Value], attrs: Attrs, sizes: Sizes) -> int:
        return 3 * elements(inputs[0].shape, sizes)

    def reference(self, inputs: Sequence[Array], attrs: Attrs) -> list[Array]:
        x, angles, *positions = inputs
        if positions:
            angles = angles[positions[0]]
        half = attrs["head_dim"] // 2
        cos, sin = angles[:, None, :half], angles[:, None, half:]
        heads = x.reshape(len(x), -1, 2 * half)
        first, second = heads[..., :half], heads[..., half:]
        return [np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=2).reshape(x.shape)]


@register
class KvWrite(Op):
    """Stores k and v [T, N*D] of every token in its slot and gives the next version of the state."""

    name = "kv_write"

    def infer(self, inputs: Sequence[Value], attrs: Attrs) -> list[tuple[Shape, str]]:
        k, v, state, _slots = inputs
        assert k.shape == v.shape, f"{k} with {v}"
        assert state.kind == "state", str(state)
        return [(state.shape, state.dtype)]

    def reference(self, inputs: Sequence[Any], attrs: Attrs) -> list[Any]:
        k, v, state, slots = inputs
        shape = (len(k), *state.k_PND.shape[1:])
        state.k_PND[slots] = state.store(k.reshape(shape), "k")
        state.v_PND[slots] = state.store(v.reshape(shape), "v")
        return [state]


@register
class Attention(Op):
    """Causal grouped-query attention of a ragged batch over its block tables (arXiv:1706.03762, arXiv:2309.06180).

    Inputs: q [T, H*D], state, seq_starts, context_lens, block_table. A token sees its own position and those before
    it, with `window` only the last `window` of them; scores are softcapped where `softcap` is set.
    """

    name = "attention"

    def infer(self, inputs: Sequence[Value], attrs: Attrs) -> list[tuple[Shape, str]]:
        q = inputs[0]
        assert q.shape[1] == attrs["heads"] * attrs["head_dim"], str(q)
        assert inputs[1].kind == "state", str(inputs[1])
        return [(q.shape, "f32")]

    def operations(self, inputs: Sequence[Value], attrs: Attrs, sizes: Sizes) -> int:
        seen = sizes["context_tokens"]
        if attrs.get("window") is not None:
            seen = min(seen, attrs["window"] * sizes["T"])
        return 4 * seen * int(attrs["heads"] * attrs["head_dim"])

    def reference(self, inputs: Sequence[Any], attrs: Attrs) -> list[Array]:
        q, state, starts, contexts, tables = inputs
        out = np.empty_like(q)
        for s, context in enumerate(contexts):
            rows = slice(starts[s], starts[s + 1])
            places = np.arange(context)
            slots = tables[s, places // state.block_size] * state.block_size + places % state.block_size
            q_HTD = q[rows].reshape(-1, attrs["heads"], attrs["head_dim"]).swapaxes(0, 1)
            group = attrs["heads"] // attrs["kv_heads"]
            k_HCD = np.repeat(state.k_PND[slots].swapaxes(0, 1), group, axis=0)
            v_HCD = np.repeat(state.v_PND[slots].swapaxes(0, 1), group, axis=0)
            scores = q_HTD @ k_HCD.swapaxes(1, 2) * np.float32(attrs["scale"])
            if attrs["softcap"]:
                scores = np.float32(attrs["softcap"]) * np.tanh(scores / np.float32(attrs["softcap"]))
            own = np.arange(context - (starts[s + 1] - starts[s]), context)[:, None]
            seen = (places <= own) & (places > own - (attrs["window"] or context + 1))
            scores = np.where(seen, scores, -np.inf)
            weights = np.exp(scores - scores.max(axis=2, keepdims=True))
            weights = np.where(seen, weights, 0) / weights.sum(axis=2, keepdims=True)
            mixed = weights @ np.where(seen.any(axis=0)[None, :, None], v_HCD, 0)
            out[rows] = mixed.swapaxes(0, 1).reshape(-1, q.shape[1])
        return [out]
