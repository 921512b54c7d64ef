"""Rounding of matrices and activations to a storage format, and back.

Legend: N output rows, K columns, G groups of columns, T tokens. Values of a group are
    w8, w8g   scale * q             q in -127..127 (-128 where a file stores it)
    w4        scale * (q - 8)       q in 0..15
    w4a       scale * q + minimum   q in 0..15
    w5        scale * (q - 16)      q in 0..31
Scales and minima of groups are float16 and are rounded before the codes are chosen, so a code is the nearest one for
the scale that is applied. Ties round to even.
"""

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from fuseboard.core.errors import LoadError
from fuseboard.formats.weights import WeightFormat, act_format, weight_format

Floats = NDArray[np.float32]
SMALLEST = np.float32(2.0**-100)
"""A group of activations whose largest magnitude is below this counts as zero (its reciprocal would overflow)."""
ZERO_POINTS = {"w4": 8, "w5": 16}
"""The code that stands for zero in the symmetric formats of unsigned codes; the largest code is twice it less one."""


@dataclass(frozen=True, kw_only=True)
class Quantised:
    """Rows of a matrix in plain, unpacked form.

    `codes_NK` holds the values themselves for f32 and f16, their bit pattern (uint16) for bf16, int8 for w8 and w8g32
    and uint8 for w4 and w5. `scales_NG` is float32 [N, 1] for w8 and float16 for groups.
    """

    format: WeightFormat
    codes_NK: NDArray[Any]
    scales_NG: NDArray[Any] | None = None
    minima_NG: NDArray[np.float16] | None = None

    @property
    def shape(self) -> tuple[int, int]:
        return self.codes_NK.shape[0], self.codes_NK.shape[1]


def groups_of(x_NK: NDArray[Any], group: int) -> NDArray[Any]:
    """[N, K] as [N, G, group], the last group padded with zeros."""
    rows, columns = x_NK.shape
    if columns % group:
        x_NK = np.pad(x_NK, ((0, 0), (0, -columns % group)))
    return x_NK.reshape(rows, -1, group)


def quantise(w_NK: Floats, format_name: str, *, clip_search: int = 0) -> Quantised:
    """Rounds a float32 matrix [N, K] to a format.

    `clip_search` > 0 tries that many narrower ranges for each w4 or w5 group and keeps the one with the least squared
    error.
    Raises `LoadError` when a value is not finite, or too large for the format.
    """
    fmt = weight_format(format_name)
    with np.errstate(over="ignore", invalid="ignore"):
        quantised = _QUANTISERS[fmt.native](w_NK, fmt, clip_search)
    ranges = quantised.codes_NK if fmt.native in ("f32", "f16") else quantised.scales_NG
    if not _finite(w_NK) or (ranges is not None and not _finite(ranges)):
        raise LoadError(f"a value is not finite or too large for {fmt.name}: check the file or choose a wider format")
    return quantised


def dequantise(q: Quantised) -> Floats:
    """The float32 values [N, K] that a `Quantised` stands for, as the kernels apply them."""
    native = q.format.native
    if native == "bf16":
        return (q.codes_NK.astype(np.uint32) << np.uint32(16)).view(np.float32)
    if q.scales_NG is None:
        return q.codes_NK.astype(np.float32)
    rows, columns = q.shape
    codes = groups_of(q.codes_NK, q.format.group or columns).astype(np.float32)
    codes -= ZERO_POINTS.get(native, 0)
    codes *= q.scales_NG.astype(np.float32)[..., None]
    if q.minima_NG is not None:
        codes += q.minima_NG.astype(np.float32)[..., None]
    values: Floats = codes.reshape(rows, -1)[:, :columns]
    return values


def quantise_activations(x_TK: Floats, name: str) -> tuple[NDArray[np.int16], Floats]:
    """Codes [T, K] and scales [T, G] of activations, exactly as the kernels round them.

    A group is scaled by its largest magnitude over 127 (a8) or 32767 (a16). A group with an infinity or NaN gets a NaN
    scale and zero codes: every output that reads it is NaN, which is seen, where a clipped code would not be.
    """
    fmt = act_format(name)
    x_TGg = groups_of(np.ascontiguousarray(x_TK, np.float32), fmt.group)
    top_TG = np.abs(x_TGg).max(axis=-1)
    limit = np.float32(fmt.limit)
    live = np.isfinite(top_TG) & (top_TG >= SMALLEST)
    inverse_TG = np.divide(limit, top_TG, out=np.zeros_like(top_TG), where=live)
    scales_TG = np.where(np.isfinite(top_TG), np.where(live, top_TG / limit, np.float32(0)), np.float32(np.nan))
    with np.errstate(invalid="ignore"):
        codes = np.where(live[..., None], np.rint(x_TGg * inverse_TG[..., None]), np.float32(0))
    return codes.astype(np.int16).reshape(len(x_TK), -1)[:, : x_TK.shape[1]], scales_TG.astype(np.float32)


def fake_quantise(x: Floats, name: str) -> Floats:
    """Activations [..., K] after a round trip through an activation format: what a kernel effectively multiplies."""
    fmt = act_format(name)
    if not fmt.group:
        return x
    x_TK = x.reshape(-1, x.shape[-1])
    codes, scales = quantise_activations(x_TK, name)
    return (codes * np.repeat(scales, fmt.group, axis=-1)[:, : x_TK.shape[1]]).reshape(x.shape).astype(np.float32)


def _finite(x: NDArray[Any]) -> bool:
    if x.dtype == np.float16:
        return not bool(((x.view(np.uint16) & 0x7C00) == 0x7C00).any())
    return bool(np.isfinite(x.sum(dtype=np.float32)) or np.isfinite(x).all())


def _float(w: Floats, fmt: WeightFormat, clip_search: int) -> Quantised:
    if fmt.native == "bf16":
        return Quantised(format=fmt, codes_NK=w.astype(ml_dtypes.bfloat16).view(np.uint16))
    return Quantised(format=fmt, codes_NK=w.astype(np.float16 if fmt.native == "f16" else np.float32))


def _reciprocal(x: Floats) -> Floats:
    return np.divide(np.float32(1), x, out=np.zeros_like(x), where=x != 0)


def _w8(w: Floats, fmt: WeightFormat, clip_search: int) -> Quantised:
    rows, columns = w.shape
    x = groups_of(w, fmt.group or columns)
    top = np.maximum(x.max(axis=-1), -x.min(axis=-1))
    scales = (top / np.float32(127)).astype(np.float16 if fmt.group else np.float32)
    codes = x * _reciprocal(scales.astype(np.float32))[..., None]
    np.rint(codes, out=codes)
    np.clip(codes, -127, 127, out=codes)
    return Quantised(format=fmt, codes_NK=codes.astype(np.int8).reshape(rows, -1)[:, :columns], scales_NG=scales)


def _symmetric(w: Floats, fmt: WeightFormat, clip_search: int) -> Quantised:
    """The value of largest magnitude gets code 0, so the sign of the scale is free and all codes are used."""
    x, zero = groups_of(w, fmt.group), np.float32(ZERO_POINTS[fmt.native])
    top = int(2 * zero - 1)
    high, low = x.max(axis=-1), x.min(axis=-1)
    scales = np.where(high > -low, high, low) / -zero
    if clip_search:
        # A range of as many steps down as up is a candidate too: it is the better one when both ends matter.
        narrower = [scales * np.float32(1 - 0.5 * i / clip_search) for i in range(clip_search)]
        wide = np.maximum(high, -low)
        scales = _least_error(x, [*narrower, wide / (zero - 1)], lambda s: (s, -zero * s), top)
    scales16 = scales.astype(np.float16)
    codes = _unsigned(x, scales16.astype(np.float32), -zero * scales16.astype(np.float32), top)
    return Quantised(format=fmt, codes_NK=codes.reshape(len(w), -1)[:, : w.shape[1]], scales_NG=scales16)


def _w4a(w: Floats, fmt: WeightFormat, clip_search: int) -> Quantised:
    x = groups_of(w, fmt.group)
    high, low = x.max(axis=-1), x.min(axis=-1)
    if clip_search:
        centre, half = (high + low) / 2, (high - low) / 2
        factors = [np.float32(1 - 0.4 * i / clip_search) for i in range(clip_search)]
        factor = _least_error(
            x,
            [np.full_like(half, f) for f in factors],
            lambda f: (2 * half * f / np.float32(15), centre - half * f),
            15,
        )
        high, low = centre + half * factor, centre - half * factor
    minima = low.astype(np.float16)
    scales = ((high - minima.astype(np.float32)) / np.float32(15)).astype(np.float16)
    codes = _unsigned(x, scales.astype(np.float32), minima.astype(np.float32), 15)
    codes = codes.reshape(len(w), -1)[:, : w.shape[1]]
    return Quantised(format=fmt, codes_NK=codes, scales_NG=scales, minima_NG=minima)


def _unsigned(x: Floats, scales: Floats, minima: Floats, top: int) -> NDArray[np.uint8]:
    codes = x - minima[..., None]
    codes *= _reciprocal(scales)[..., None]
    np.rint(codes, out=codes)
    np.clip(codes, 0, top, out=codes)
    return codes.astype(np.uint8)


def _least_error(x: Floats, candidates: list[Floats], affine: Any, top: int) -> Floats:
    """Per group, the candidate parameter whose (scale, minimum) = affine(parameter) rounds `x` with least error."""
    best, best_error = candidates[0], np.full(x.shape[:-1], np.inf, np.float32)
    for candidate in candidates:
        scale, minimum = (p.astype(np.float16).astype(np.float32) for p in affine(candidate))
        values = _unsigned(x, scale, minimum, top) * scale[..., None] + minimum[..., None]
        error = np.square(values - x).sum(axis=-1)
        better = error < best_error
        best, best_error = np.where(better, candidate, best), np.where(better, error, best_error)
    return best


_QUANTISERS = {
    "f32": _float,
    "f16": _float,
    "bf16": _float,
    "w8": _w8,
    "w8g": _w8,
    "w4": _symmetric,
    "w4a": _w4a,
    "w5": _symmetric,
}
