"""The packed layout of csrc/contract.h: 16 output rows a panel, written and read in NumPy.

Legend: P panels, G groups, Q k-quads of a group (4 columns each). Quads are handled as one uint32, so that packing is
a transpose of words and not of bytes.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fuseboard.formats.quantise import ZERO_POINTS, Quantised
from fuseboard.formats.weights import PANEL, WeightFormat, weight_format

Bytes = NDArray[np.uint8]
ALIGN = 64
FIFTHS = 64
"""Bytes of the fifth bits of a w5 group."""


def padded_k(fmt: WeightFormat, k: int) -> int:
    """Columns of the packed form, `k_pad` of the contract."""
    return k + -k % fmt.k_multiple


def panel_bytes(fmt: WeightFormat, k: int) -> int:
    """Distance in bytes from one panel of 16 rows to the next, a multiple of 64."""
    k_pad = padded_k(fmt, k)
    if fmt.is_float:
        size = PANEL * k_pad * fmt.bits // 8
    elif fmt.native == "w8":
        size = PANEL * (4 + k_pad)
    else:
        size = k_pad // fmt.group * _group_bytes(fmt)
    return int(size) + -int(size) % ALIGN


def packed_bytes(format_name: str, n: int, k: int) -> int:
    """Size in bytes of a packed [n, k] matrix."""
    return -(-n // PANEL) * panel_bytes(weight_format(format_name), k)


def row_blocks(n: int, k: int, *, elements: int = 1 << 20) -> Iterator[tuple[int, int]]:
    """Ranges of rows, multiples of 16 except at the end, of about `elements` weights: the unit of streaming."""
    step = max(PANEL, elements // max(k, 1) // PANEL * PANEL)
    for start in range(0, n, step):
        yield start, min(start + step, n)


def pack(q: Quantised) -> Bytes:
    """The whole matrix as a flat buffer of `packed_bytes`."""
    fmt, (rows, columns) = q.format, q.shape
    size = panel_bytes(fmt, columns)
    panels = np.zeros((-(-rows // PANEL), size), np.uint8)
    pack_into(panels, q)
    return panels.reshape(-1)


def pack_into(panels_PB: Bytes, q: Quantised) -> None:
    """Packs consecutive rows into their panels, [P, panel_bytes] with zeroed tails; rows start at a panel's start."""
    assert panels_PB.shape == (-(-q.shape[0] // PANEL), panel_bytes(q.format, q.shape[1]))
    _PACKERS[q.format.native](panels_PB, q, padded_k(q.format, q.shape[1]))


def unpack(packed: Bytes, format_name: str, n: int, k: int) -> Quantised:
    """The plain form of a packed matrix."""
    fmt = weight_format(format_name)
    panels = packed.reshape(-(-n // PANEL), panel_bytes(fmt, k))
    return _UNPACKERS[fmt.native](panels, fmt, n, k)


def _group_bytes(fmt: WeightFormat) -> int:
    return int(PANEL * fmt.group * fmt.bits) // 8


def _panel_rows(x_NK: NDArray[Any], k_pad: int, fill: int = 0) -> NDArray[Any]:
    """[N, K] as [P, 16, k_pad]."""
    rows, columns = x_NK.shape
    if rows % PANEL or columns != k_pad:
        x_NK = np.pad(x_NK, ((0, -rows % PANEL), (0, k_pad - columns)), constant_values=fill)
    return x_NK.reshape(-1, PANEL, k_pad)


def _pack_float(panels: Bytes, q: Quantised, k_pad: int) -> None:
    x = _panel_rows(q.codes_NK, k_pad).transpose(0, 2, 1)
    if q.format.native == "bf16":  # dword j = row j | row (j + 8) << 16
        x = x.reshape(len(x), k_pad, 2, 8).transpose(0, 1, 3, 2)
    panels[:, : k_pad * PANEL * x.itemsize].view(x.dtype).reshape(x.shape)[...] = x


def _unpack_float(panels: Bytes, fmt: WeightFormat, n: int, k: int) -> Quantised:
    dtype = {"f32": np.float32, "f16": np.float16, "bf16": np.uint16}[fmt.native]
    x = panels[:, : k * PANEL * np.dtype(dtype).itemsize].view(dtype)
    if fmt.native == "bf16":
        x = x.reshape(len(x), k, 8, 2).transpose(0, 1, 3, 2)
    x = x.reshape(len(x), k, PANEL).transpose(0, 2, 1).reshape(-1, k)
    return Quantised(format=fmt, codes_NK=x[:n])


def _quads(codes_NK: NDArray[np.int8], k_pad: int) -> NDArray[np.uint32]:
    """Signed bytes as [P, 16, K / 4] words of q + 128."""
    return _panel_rows(np.ascontiguousarray(codes_NK).view(np.uint8) ^ np.uint8(128), k_pad, 128).view(np.uint32)


def _pack_w8(panels: Bytes, q: Quantised, k_pad: int) -> None:
    assert q.scales_NG is not None
    scales = _panel_rows(q.scales_NG, 1)
    panels[:, :ALIGN].view(np.float32)[...] = scales[..., 0]
    words = panels[:, ALIGN : ALIGN + PANEL * k_pad].view(np.uint32)
    words.reshape(len(panels), k_pad // 4, PANEL)[...] = _quads(q.codes_NK, k_pad).transpose(0, 2, 1)


def _unpack_w8(panels: Bytes, fmt: WeightFormat, n: int, k: int) -> Quantised:
    k_pad = padded_k(fmt, k)
    words = panels[:, ALIGN : ALIGN + PANEL * k_pad].view(np.uint32).reshape(-1, k_pad // 4, PANEL)
    codes = np.ascontiguousarray(words.transpose(0, 2, 1)).view(np.uint8).reshape(-1, k_pad) ^ np.uint8(128)
    scales = panels[:, :ALIGN].view(np.float32).reshape(-1, 1)
    return Quantised(format=fmt, codes_NK=codes.view(np.int8)[:n, :k], scales_NG=scales[:n])


def _group_view(panels: Bytes, fmt: WeightFormat, k_pad: int) -> Bytes:
    """[P, G, bytes a group] of the same memory."""
    groups, size = k_pad // fmt.group, _group_bytes(fmt)
    return panels[:, : groups * size].reshape(len(panels), groups, size)


def _write_heads(view_PGB: Bytes, *heads: NDArray[np.float16] | None) -> int:
    """float16 scales (and minima) at the start of every group; returns where the quads begin."""
    start = 0
    for head_NG in heads:
        if head_NG is not None:
            rows = _panel_rows(head_NG, head_NG.shape[1])
            view_PGB[:, :, start : start + 32].view(np.float16)[...] = rows.transpose(0, 2, 1)
            start += 32
    return start


def _read_head(view_PGB: Bytes, start: int, n: int) -> NDArray[np.float16]:
    head = view_PGB[:, :, start : start + 32].view(np.float16)
    return head.transpose(0, 2, 1).reshape(-1, view_PGB.shape[1])[:n]


def _pack_w8g(panels: Bytes, q: Quantised, k_pad: int) -> None:
    view = _group_view(panels, q.format, k_pad)
    start = _write_heads(view, q.scales_NG)
    quads = _quads(q.codes_NK, k_pad).reshape(len(panels), PANEL, view.shape[1], -1)
    view[:, :, start:].view(np.uint32).reshape(*view.shape[:2], -1, PANEL)[...] = quads.transpose(0, 2, 3, 1)


def _unpack_w8g(panels: Bytes, fmt: WeightFormat, n: int, k: int) -> Quantised:
    view = _group_view(panels, fmt, padded_k(fmt, k))
    words = view[:, :, 32:].view(np.uint32).reshape(*view.shape[:2], -1, PANEL).transpose(0, 3, 1, 2)
    codes = np.ascontiguousarray(words).view(np.uint8).reshape(len(panels) * PANEL, -1) ^ np.uint8(128)
    return Quantised(format=fmt, codes_NK=codes.view(np.int8)[:n, :k], scales_NG=_read_head(view, 0, n))


def _pack_nibbles(panels: Bytes, q: Quantised, k_pad: int) -> None:
    view = _group_view(panels, q.format, k_pad)
    start = _write_heads(view, q.scales_NG, q.minima_NG)
    codes = _panel_rows(np.ascontiguousarray(q.codes_NK), k_pad, ZERO_POINTS.get(q.format.native, 0))
    if q.format.native == "w5":
        bits = (codes >> 4).reshape(len(panels), PANEL, view.shape[1], -1, 4).transpose(0, 2, 3, 1, 4)
        view[:, :, start : start + FIFTHS] = np.packbits(bits.reshape(*view.shape[:2], -1), axis=-1, bitorder="little")
        codes, start = codes & 15, start + FIFTHS
    quads = codes.view(np.uint32)
    words = (quads[:, :8] | quads[:, 8:] << np.uint32(4)).reshape(len(panels), 8, view.shape[1], -1)
    view[:, :, start:].view(np.uint32).reshape(*view.shape[:2], -1, 8)[...] = words.transpose(0, 2, 3, 1)


def _unpack_nibbles(panels: Bytes, fmt: WeightFormat, n: int, k: int) -> Quantised:
    view = _group_view(panels, fmt, padded_k(fmt, k))
    asymmetric = fmt.native == "w4a"
    start = {"w4": 32, "w4a": 64, "w5": 32 + FIFTHS}[fmt.native]
    words = view[:, :, start:].view(np.uint32).reshape(*view.shape[:2], -1, 8).transpose(0, 3, 1, 2)
    packed = np.ascontiguousarray(words).view(np.uint8).reshape(len(panels), 8, -1)
    codes = np.concatenate([packed & 15, packed >> 4], axis=1).reshape(len(panels) * PANEL, -1)
    if fmt.native == "w5":
        bits = np.unpackbits(view[:, :, 32:start], axis=-1, bitorder="little")
        bits = bits.reshape(*view.shape[:2], -1, PANEL, 4).transpose(0, 3, 1, 2, 4)
        codes |= bits.reshape(codes.shape) << 4
    return Quantised(
        format=fmt,
        codes_NK=codes[:n, :k],
        scales_NG=_read_head(view, 0, n),
        minima_NG=_read_head(view, 32, n) if asymmetric else None,
    )


_PACKERS = {
    "f32": _pack_float,
    "f16": _pack_float,
    "bf16": _pack_float,
    "w8": _pack_w8,
    "w8g": _pack_w8g,
    "w4": _pack_nibbles,
    "w4a": _pack_nibbles,
    "w5": _pack_nibbles,
}
_UNPACKERS = {
    "f32": _unpack_float,
    "f16": _unpack_float,
    "bf16": _unpack_float,
    "w8": _unpack_w8,
    "w8g": _unpack_w8g,
    "w4": _unpack_nibbles,
    "w4a": _unpack_nibbles,
    "w5": _unpack_nibbles,
}
