"""Embedding, normalisation, projections and row selection."""

from collections.abc import Sequence

import numpy as np

from fuseboard.graph.ir import R, Shape, Value, elements
from fuseboard.graph.ops.base import Array, Attrs, Op, Sizes, register


@register
class Embed(Op):
    """Rows of a [vocabulary, hidden] table by token id."""

    name = "embed"

    def infer(self, inputs: Sequence[Value], attrs: Attrs) -> list[tuple[Shape, str]]:
        ids, table = inputs
        return [((*ids.shape, table.shape[1]), "f32")]

    def operations(self, inputs: Sequence[Value], attrs: Attrs, sizes: Sizes) -> int:
        return 0

    def reference(self, inputs: Sequence[Array], attrs: Attrs) -> list[Array]:
        ids, table = inputs
        return [table[ids]]


@register
class RmsNorm(Op):
    """`x / sqrt(mean(x²) + eps) * weight` over `dim` consecutive columns (arXiv:1910.07467).

    A row with several times `dim` columns is normalised piece by piece: that is the norm of each head.
    """

    name = "rms_norm"

    def infer(self, inputs: Sequence[Value], attrs: Attrs) -> list[tuple[Shape, str]]:
        x, weight = inputs
        columns, dim = x.shape[-1], attrs["dim"]
        assert isinstance(columns, int), str(x)
        assert columns % dim == 0, f"{x} in pieces of {dim}"
        assert weight.shape == (dim,), f"{x} norm {weight}"
        return [(x.shape, "f32")]

    def operations(self, inputs: Sequence[Value], attrs: Attrs, sizes: Sizes) -> int:
        return 4 * elements(inputs[0].shape, sizes)

    def reference(self, inputs: Sequence[Array], attrs: Attrs) -> list[Array]:
        x, weight = inputs
        pieces = x.reshape(len(x), x.shape[1] // attrs["dim"], attrs["dim"])
        mean_square = np.mean(pieces * pieces, axis=2, keepdims=True, dtype=np.float32)
        return [(pieces / np.sqrt(mean_square + np.float32(attrs["eps"])) * weight).reshape(x.shape)]


@register
class Linear(Op):
    """`x wᵀ (+ bias)` for one or several weights [rows out, columns in] that share their input.

    Inputs are x, then the weights, then the biases of those weights whose index is in `biases`; one output a weight.
    """

    name = "linear"

    def infer(self, inputs: Sequence[Value], attrs: Attrs) -> list[tuple[Shape, str]]:
        x, weights = inputs[0], inputs[1 : 1 + attrs["count"]]
        for weight in weights:
            assert weight.shape[1] == x.shape[-1], f"{x} times {weight}"
        for index, bias in zip(attrs["biases"], inputs[1 + attrs["count"] :], strict=True):
            assert bias.shape == weights[index].shape[:1], f"{bias} for {weights[index]}"
        return [((x.shape[0], weight.shape[0]), "f32") for weight in weights]

    def operations(self, inputs: Sequence[Value], attrs: Attrs, sizes: Sizes) -> int:
        rows = elements(inputs[0].shape[:1], sizes)
        return sum(2 * rows * elements(weight.shape, sizes) for weight in inputs[1 : 1 + attrs["count"]])

    def reference(self, inputs: Sequence[Array], attrs: Attrs) -> list[Array]:
        x, count = inputs[0], attrs["count"]
        results = [x @ weight.T for weight in inputs[1 : 1 + count]]
        for index, bias in zip(attrs["biases"], inputs[1 + count :], strict=True):
            results[index] = results[index] + bias
        return results


@register
class GatherRows(Op):
    """The rows of x [T, n] that are to be sampled."""

    name = "gather_rows"

    def infer(self, inputs: Sequence[Value], attrs: Attrs) -> list[tuple[Shape, str]]:
        return [((R, *inputs[0].shape[1:]), "f32")]

    def operations(self, inputs: Sequence[Value], attrs: Attrs, sizes: Sizes) -> int:
        return 0

    def reference(self, inputs: Sequence[Array], attrs: Attrs) -> list[Array]:
        x, rows = inputs
        return [x[rows]]


@register
class TopK(Op):
    """The k largest logits of a row (ids, logits; ties by rising id) and the logsumexp of the whole row."""

    name = "top_k"

    def infer(self, inputs: Sequence[Value], attrs: Attrs) -> list[tuple[Shape, str]]:
        rows, k = inputs[0].shape[0], attrs["k"]
        return [((rows, k), "i32"), ((rows, k), "f32"), ((rows,), "f32")]

    def reference(self, inputs: Sequence[Array], attrs: Attrs) -> list[Array]:
        logits, k = inputs[0], attrs["k"]
        ids = np.argsort(-logits, axis=1, kind="stable")[:, :k]
        short = k - ids.shape[1]
        top = np.pad(np.take_along_axis(logits, ids, axis=1), ((0, 0), (0, short)), constant_values=-np.inf)
        peak = logits.max(axis=1, keepdims=True)
        logsumexp = peak[:, 0] + np.log(np.exp(logits - peak).sum(axis=1))
        ids = np.pad(ids, ((0, 0), (0, short)), constant_values=-1)
        return [ids.astype(np.int32), top, logsumexp]
