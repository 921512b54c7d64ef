"""The catalogue of operations: `OPS[name]` has the shape rule, the cost and the NumPy reference of each."""

from fuseboard.graph.ops import attention, dense, elementwise
from fuseboard.graph.ops.attention import KvState
from fuseboard.graph.ops.base import OPS, Op, Sizes

__all__ = ["OPS", "KvState", "Op", "Sizes", "attention", "dense", "elementwise"]
