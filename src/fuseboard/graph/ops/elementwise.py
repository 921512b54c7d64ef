"""Operations on single elements: affine, activations, products, sums, softcap."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fuseboard.graph.ir import Shape, Value, elements
from fuseboard.graph.ops.base import Array, Attrs, Op, Sizes, register


class _Unary(Op):
    inplace: int | None = 0

    def infer(self, inputs: Sequence[Value], attrs: Attrs) -> list[tuple[Shape, str]]:
        (x,) = inputs
        return [(x.shape, "f32")]


class _Binary(Op):
    inplace: int | None = 0

    def infer(self, inputs: Sequence[Value], attrs: Attrs) -> list[tuple[Shape, str]]:
        a, b = inputs
        assert a.shape == b.shape, f"{a} does not match {b}"
        return [(a.shape, "f32")]


@register
class Affine(_Unary):
    """`scale * x + shift`."""

    name = "affine"

    def reference(self, inputs: Sequence[Array], attrs: Attrs) -> list[Array]:
        return [(inputs[0] * np.float32(attrs["scale"]) + np.float32(attrs["shift"])).astype(np.float32)]


@register
class Softcap(_Unary):
    """`cap * tanh(x / cap)` (Gemma 2, arXiv:2408.00118)."""

    name = "softcap"

    def reference(self, inputs: Sequence[Array], attrs: Attrs) -> list[Array]:
        cap = np.float32(attrs["cap"])
        return [cap * np.tanh(inputs[0] / cap)]


@register
class Silu(_Unary):
    """`x * sigmoid(x)` (arXiv:1702.03118)."""

    name = "silu"

    def operations(self, inputs: Sequence[Value], attrs: Attrs, sizes: Sizes) -> int:
        return 4 * elements(inputs[0].shape, sizes)

    def reference(self, inputs: Sequence[Array], attrs: Attrs) -> list[Array]:
        x = inputs[0]
        with np.errstate(over="ignore"):
            return [x / (1 + np.exp(-x))]


@register
class GeluTanh(_Unary):
    """GELU by its tanh approximation (arXiv:1606.08415)."""

    name = "gelu_tanh"

    def operations(self, inputs: Sequence[Value], attrs: Attrs, sizes: Sizes) -> int:
        return 8 * elements(inputs[0].shape, sizes)

    def reference(self, inputs: Sequence[Array], attrs: Attrs) -> list[Array]:
        x = inputs[0]
        inner = np.float32(np.sqrt(2 / np.pi)) * (x + np.float32(0.044715) * x**3)
        return [np.float32(0.5) * x * (1 + np.tanh(inner))]


@register
class Mul(_Binary):
    name = "mul"

    def reference(self, inputs: Sequence[Array], attrs: Attrs) -> list[Array]:
        return [inputs[0] * inputs[1]]


@register
class Add(_Binary):
    name = "add"

    def reference(self, inputs: Sequence[Array], attrs: Attrs) -> list[Array]:
        return [inputs[0] + inputs[1]]


@register
class Quantise(_Unary):
    """Symmetric integer codes with a scale for every `group` columns; the reference returns what the codes stand for.

    scale = max|x| / limit over the group, code = round(x * limit / max|x|) to nearest even, limit = 127 or 32767.
    """

    name = "quantise"
    inplace = None

    def infer(self, inputs: Sequence[Value], attrs: Attrs) -> list[tuple[Shape, str]]:
        return [(inputs[0].shape, attrs["format"])]

    def reference(self, inputs: Sequence[Array], attrs: Attrs) -> list[Any]:
        x, group = inputs[0], attrs["group"]
        rows, columns = x.shape
        limit = np.float32(127 if attrs["bits"] == 8 else 32767)
        padded = np.pad(x, ((0, 0), (0, -columns % group))).reshape(rows, -1, group)
        top = np.abs(padded).max(axis=2, keepdims=True)
        inverse = np.divide(limit, top, out=np.zeros_like(top), where=top > 0)
        return [(np.rint(padded * inverse) * (top / limit)).reshape(rows, -1)[:, :columns]]
