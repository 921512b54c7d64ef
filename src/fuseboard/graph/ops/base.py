"""`Op`: what the catalogue knows of an operation, and the registry of all of them."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from fuseboard.graph.ir import Shape, Value, elements

Array = np.ndarray[Any, Any]
Attrs = Mapping[str, Any]
Sizes = Mapping[str, int]
"""T, S, R, and for costs two sums of context lengths: over the tokens of a step, of what each of them sees
(`context_tokens`), and over its sequences, of what the cache holds of each (`cached_tokens`)."""


class Op:
    """An operation: shape rule, cost and a NumPy float32 reference.

    `inplace` is the index of an input whose memory the first output may take over. Activations in a quantised format
    reach the reference as the float32 values that their codes stand for.
    """

    name: ClassVar[str]
    inplace: int | None = None

    def infer(self, inputs: Sequence[Value], attrs: Attrs) -> list[tuple[Shape, str]]:
        """Shape and dtype of every output; AssertionError when the inputs do not fit."""
        raise NotImplementedError

    def operations(self, inputs: Sequence[Value], attrs: Attrs, sizes: Sizes) -> int:
        """Floating-point operations of one step (a multiply and an add are two)."""
        return elements(inputs[0].shape, sizes)

    def reference(self, inputs: Sequence[Any], attrs: Attrs) -> list[Any]:
        """The results, in float32."""
        raise NotImplementedError


OPS: dict[str, Op] = {}


def register(op: type[Op]) -> type[Op]:
    assert op.name not in OPS, op.name
    OPS[op.name] = op()
    return op
