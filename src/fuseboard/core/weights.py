"""`WeightSource`: how plan and backends read a checkpoint, whatever file it came from."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class StoredBlocks:
    """A matrix as the file stores it: uint8 [rows, bytes a row], rows in canonical order, of GGUF block type `kind`."""

    kind: str
    rows: NDArray[np.uint8]


class WeightSource(Protocol):
    """Tensors under canonical names (`models.spec.tensor_shapes`), memory-mapped, converted only when asked for."""

    digest: str
    """SHA-256 that identifies the checkpoint's contents (hex)."""

    def names(self) -> tuple[str, ...]: ...

    def shape(self, name: str) -> tuple[int, ...]: ...

    def storage(self, name: str) -> str:
        """How the file stores the tensor, in lower case: f32, f16, bf16, q4_0, q4_1, q4_k, ..."""
        ...

    def f32(self, name: str, rows: slice | None = None) -> NDArray[np.float32]:
        """The tensor's values (or those rows), dequantised, in canonical row order, as a C-contiguous float32 array
        that is new or read-only."""
        ...

    def blocks(self, name: str) -> StoredBlocks | None:
        """The stored quantisation blocks of a matrix, or None when it is not stored in blocks."""
        ...
