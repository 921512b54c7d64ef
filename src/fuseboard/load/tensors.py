"""Tensors as files store them, and their way to float32. N rows, B bytes a row, C columns."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

BLOCK_SIZES: dict[str, tuple[int, int]] = {
    "f32": (1, 4),
    "f16": (1, 2),
    "bf16": (1, 2),
    "q4_0": (32, 18),
    "q4_1": (32, 20),
    "q5_0": (32, 22),
    "q5_1": (32, 24),
    "q8_0": (32, 34),
    "q2_k": (256, 84),
    "q3_k": (256, 110),
    "q4_k": (256, 144),
    "q5_k": (256, 176),
    "q6_k": (256, 210),
    "iq4_nl": (32, 18),
    "iq4_xs": (256, 136),
}
"""Elements and bytes of a block of every storage that is understood."""

PLAIN = ("f32", "f16", "bf16")
CHUNK_VALUES = 1 << 20

LFS_MAGIC = b"version https://git-lfs"


@dataclass(frozen=True, kw_only=True)
class StoredTensor:
    """Where a tensor lies in its file; `shape` has the fastest dimension last, `offset` and `nbytes` are bytes."""

    kind: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


class TensorFile(Protocol):
    """A checkpoint file (or several) that gives tensors under the names stored in it."""

    @property
    def path(self) -> Path: ...

    @property
    def tensors(self) -> Mapping[str, StoredTensor]: ...

    def raw(self, name: str) -> Bytes:
        """The tensor's bytes, mapped and read-only, as one row of bytes."""
        ...


def stored_bytes(kind: str, shape: tuple[int, ...]) -> int:
    """Bytes of a tensor; `ValueError` when its rows are not whole blocks."""
    block, size = BLOCK_SIZES[kind]
    columns = shape[-1] if shape else 1
    if columns % block:
        raise ValueError(f"rows of {columns} are not whole blocks of {block}")
    return math.prod(shape) // block * size


def dequantise(raw_NB: Bytes, kind: str) -> Floats:
    """Stored rows as float32 [N, C]; values agree with `gguf.quants`. A float32 view is returned where one can be."""
    if kind == "f32":
        return np.require(raw_NB.view(np.float32), requirements=["A", "C"])
    if kind == "f16":
        return raw_NB.view(np.float16).astype(np.float32)
    if kind == "bf16":
        return widen_bf16(raw_NB)
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize

    quantisation = GGMLQuantizationType[kind.upper()]
    block, size = BLOCK_SIZES[kind]
    out_NC = np.empty((raw_NB.shape[0], raw_NB.shape[1] // size * block), np.float32)
    step = max(1, CHUNK_VALUES // out_NC.shape[1])
    for start in range(0, len(out_NC), step):
        out_NC[start : start + step] = dequantize(raw_NB[start : start + step], quantisation)
    return out_NC


def widen_bf16(raw_NB: Bytes) -> Floats:
    """bfloat16 is the upper half of float32."""
    out_NC = np.zeros((raw_NB.shape[0], raw_NB.shape[1] // 2), np.uint32)
    out_NC.view(np.uint16)[:, 1::2] = raw_NB.view(np.uint16)
    return out_NC.view(np.float32)
