"""Storage formats of the KV cache: sizes, and the rounding that storing a key or value does to it.

Shape suffixes: T tokens, H KV heads, D head size.
"""

from dataclasses import dataclass
from typing import Literal

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from fuseboard.core.errors import PlanError

Floats = NDArray[np.float32]
Scaling = Literal["none", "token", "token_head", "head"]

BLOCK_SIZES = (16, 32, 64, 128, 256)
PANEL_TOKENS = 16
ALIGNMENT = 64
SMALLEST = np.float32(1e-30)
"""A vector whose largest magnitude is below this is stored as zeros: 127 / largest would leave float32's range."""


@dataclass(frozen=True, kw_only=True)
class KvFormat:
    """One storage format of keys and values.

    `native` names it in the native module. `scaling` says what shares an int8 scale: a token over all heads, a token
    and head, or a head over all tokens (static, calibrated). `per_head_write` is whether one head's vector can be
    stored without seeing the token's other heads, which a fused projection needs.
    """

    name: str
    native: str
    element_bytes: int
    scaling: Scaling = "none"

    @property
    def per_head_write(self) -> bool:
        return self.scaling != "token"

    @property
    def calibrated(self) -> bool:
        """It needs `head_scales`, float32 [2, H] (K, then V), from a recorded pass."""
        return self.scaling == "head"

    def scale_bytes(self, kv_heads: int) -> int:
        """Bytes of scales a token, K and V together."""
        return {"none": 0, "token": 8, "token_head": 8 * kv_heads, "head": 0}[self.scaling]


KV_FORMATS: dict[str, KvFormat] = {
    f.name: f
    for f in (
        KvFormat(name="f32", native="f32", element_bytes=4),
        KvFormat(name="f16", native="f16", element_bytes=2),
        KvFormat(name="bf16", native="bf16", element_bytes=2),
        KvFormat(name="int8_token", native="i8_token", element_bytes=1, scaling="token"),
        KvFormat(name="int8_token_head", native="i8_token_head", element_bytes=1, scaling="token_head"),
        KvFormat(name="int8_head", native="i8_head", element_bytes=1, scaling="head"),
    )
}


def kv_format(name: str) -> KvFormat:
    """The format called `name`; `PlanError` names the known ones."""
    if name not in KV_FORMATS:
        raise PlanError(f"Unknown KV format {name!r}; choose one of {', '.join(KV_FORMATS)}.")
    return KV_FORMATS[name]


def block_bytes(fmt: KvFormat, block_size: int, kv_heads: int, head_dim: int) -> int:
    """Bytes of a block of `block_size` tokens of one layer: K, V (rows padded to 16 elements) and scales.

    A multiple of 64. `PlanError` for a block size that is not in `BLOCK_SIZES`.
    """
    if block_size not in BLOCK_SIZES:
        raise PlanError(f"KV block size {block_size} is not supported; choose one of {BLOCK_SIZES}.")
    elements = kv_heads * (head_dim + -(-head_dim // PANEL_TOKENS) * PANEL_TOKENS)
    size = block_size * (elements * fmt.element_bytes + fmt.scale_bytes(kv_heads))
    return -(-size // ALIGNMENT) * ALIGNMENT


def int8_codes(x_THD: Floats, inverse: Floats) -> tuple[Floats, int]:
    """round(x * inverse) to nearest even, clipped to +-127, and how many values were clipped."""
    wide = np.rint(np.clip(x_THD * inverse, np.float32(-1000), np.float32(1000)))
    return np.clip(wide, np.float32(-127), np.float32(127)), int((np.abs(wide) > 127).sum())


def dynamic_scales(x_THD: Floats, scaling: Scaling) -> tuple[Floats, Floats]:
    """(max|x| / 127, 127 / max|x|) over a token, or over a token and head; both 0 below `SMALLEST`."""
    axes = (1, 2) if scaling == "token" else (2,)
    largest = np.abs(x_THD).max(axis=axes, keepdims=True).astype(np.float32)
    live = largest >= SMALLEST
    inverse = np.divide(np.float32(127), largest, out=np.zeros_like(largest), where=live)
    return np.where(live, largest / np.float32(127), np.float32(0)), inverse


def static_scales(scales_H: Floats) -> tuple[Floats, Floats]:
    """Calibrated scales and their inverses, shaped [1, H, 1]; a scale of 0 stores zeros."""
    scale = np.asarray(scales_H, np.float32)[None, :, None]
    return scale, np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=scale > 0)


def fake_quantise(x_THD: Floats, fmt: KvFormat, scales_H: Floats | None = None) -> Floats:
    """What reading back stored keys or values gives, float32 [T, H, D], rounded exactly as the kernels do.

    `scales_H` are the static scales of calibrated formats (K's or V's half of `head_scales`).
    """
    x = np.asarray(x_THD, np.float32)
    if fmt.scaling == "none":
        stored = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}[fmt.name]
        with np.errstate(over="ignore"):
            return x.astype(stored).astype(np.float32)
    if fmt.calibrated:
        assert scales_H is not None, "a calibrated format needs its scales"
        scale, inverse = static_scales(scales_H)
    else:
        scale, inverse = dynamic_scales(x, fmt.scaling)
    codes, _ = int8_codes(x, inverse)
    return codes * scale


def clipped_values(x_THD: Floats, scales_H: Floats) -> int:
    """How many values of x a static scale clips."""
    return int8_codes(np.asarray(x_THD, np.float32), static_scales(scales_H)[1])[1]


def calibrate(x_THD: Floats) -> Floats:
    """Static scales [H] that hold every value of a recorded pass: max|x| / 127 over its tokens."""
    largest: Floats = np.abs(np.asarray(x_THD, np.float32)).max(axis=(0, 2))
    return largest / np.float32(127)
