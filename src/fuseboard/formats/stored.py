"""GGUF quantisation blocks kept as they are: each stored kind has a native format that holds its bits.

Q4_0, Q4_1, Q5_0 and Q8_0 are exact (the same codes and float16 scales). Q4_K keeps its codes; its products of a float16
scale with a 6-bit factor are rounded to float16. Other kinds are re-rounded to w8 with one scale for 32 columns.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fuseboard.core.weights import StoredBlocks
from fuseboard.formats.quantise import Floats, Quantised, quantise
from fuseboard.formats.weights import weight_format

Bytes = NDArray[np.uint8]
_NATIVE = {
    "f32": "f32",
    "f16": "f16",
    "bf16": "bf16",
    "q4_0": "w4g32",
    "q4_1": "w4g32a",
    "q4_k": "w4g32a",
    "q5_0": "w5g32",
}


def native_format(storage: str) -> str:
    """The weight format that keeps the bits of a tensor stored as `storage` (`WeightSource.storage`)."""
    return _NATIVE.get(storage, "w8g32")


def dequantise_blocks(blocks: StoredBlocks) -> Floats:
    """The float32 values of stored rows."""
    import gguf  # slow to import, and a model whose packed file exists never needs it

    return gguf.quants.dequantize(blocks.rows, gguf.GGMLQuantizationType[blocks.kind.upper()])


def from_blocks(blocks: StoredBlocks, format_name: str) -> Quantised:
    """Stored rows in a weight format; codes are taken over unchanged where that is the kind's native format."""
    kind = blocks.kind.lower()
    if kind in _EXACT and format_name == (_NATIVE.get(kind) or "w8g32"):
        return _EXACT[kind](np.ascontiguousarray(blocks.rows))
    return quantise(dequantise_blocks(blocks), format_name)


def _halves(raw: Bytes) -> NDArray[np.float16]:
    """Two trailing bytes as a float16: [..., 2] becomes [...]."""
    return np.ascontiguousarray(raw).view(np.float16)[..., 0]


def _nibbles(raw_NGb: Bytes) -> Bytes:
    """[N, G, 16] bytes as [N, G * 32] codes: the low halves of a group come first."""
    return np.concatenate([raw_NGb & 15, raw_NGb >> 4], axis=-1).reshape(len(raw_NGb), -1)


def _q4_0(rows: Bytes) -> Quantised:
    block = rows.reshape(len(rows), -1, 18)
    return Quantised(
        format=weight_format("w4g32"), codes_NK=_nibbles(block[..., 2:]), scales_NG=_halves(block[..., :2])
    )


def _q4_1(rows: Bytes) -> Quantised:
    block = rows.reshape(len(rows), -1, 20)
    return Quantised(
        format=weight_format("w4g32a"),
        codes_NK=_nibbles(block[..., 4:]),
        scales_NG=_halves(block[..., :2]),
        minima_NG=_halves(block[..., 2:4]),
    )


def _q5_0(rows: Bytes) -> Quantised:
    """32 columns: a scale, 32 fifth bits in the order of the columns, 16 bytes of nibbles."""
    block = rows.reshape(len(rows), -1, 22)
    fifths = np.unpackbits(block[..., 2:6], axis=-1, bitorder="little").reshape(len(rows), -1)
    codes = _nibbles(block[..., 6:]) | fifths << 4
    return Quantised(format=weight_format("w5g32"), codes_NK=codes, scales_NG=_halves(block[..., :2]))


def _q8_0(rows: Bytes) -> Quantised:
    block = rows.reshape(len(rows), -1, 34)
    codes = np.ascontiguousarray(block[..., 2:]).view(np.int8).reshape(len(rows), -1)
    return Quantised(format=weight_format("w8g32"), codes_NK=codes, scales_NG=_halves(block[..., :2]))


def _q4_k(rows: Bytes) -> Quantised:
    """256 columns: d, dmin, eight 6-bit (scale, minimum) pairs, then 4 x 32 bytes whose nibbles are two groups each."""
    block = rows.reshape(len(rows), -1, 144)
    d, dmin = (_halves(block[..., i : i + 2]).astype(np.float32)[..., None] for i in (0, 2))
    low, middle, high = (block[..., 4 + i : 8 + i] for i in (0, 4, 8))
    factors = np.concatenate([low & 63, (high & 15) | (low >> 6 << 4)], axis=-1)
    offsets = np.concatenate([middle & 63, (high >> 4) | (middle >> 6 << 4)], axis=-1)
    quads = block[..., 16:].reshape(len(rows), -1, 32)
    codes = np.stack([quads & 15, quads >> 4], axis=2)
    return Quantised(
        format=weight_format("w4g32a"),
        codes_NK=codes.reshape(len(rows), -1),
        scales_NG=(d * factors).astype(np.float16).reshape(len(rows), -1),
        minima_NG=(-dmin * offsets).astype(np.float16).reshape(len(rows), -1),
    )


_EXACT: dict[str, Callable[[Bytes], Quantised]] = {
    "q4_0": _q4_0,
    "q4_1": _q4_1,
    "q4_k": _q4_k,
    "q5_0": _q5_0,
    "q8_0": _q8_0,
}
