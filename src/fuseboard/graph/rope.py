"""Rotary frequencies with every scaling method in use.

Sources: RoFormer (arXiv:2104.09864), position interpolation (arXiv:2306.15595), NTK-aware scaling, YaRN
(arXiv:2309.00071), and Llama 3.1's piecewise scaling; agreement with transformers is tested.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class RopeSpec:
    """Rotary embedding of the first and second half of a head ("neox" pairs).

    `scaling` is none, linear, dynamic (NTK), llama3 or yarn; the other fields are that method's parameters under the
    names of the Hugging Face configuration. `frequency_factors` divide the frequencies one by one (GGUF files carry
    scaled frequencies that way).
    """

    theta: float = 10000.0
    scaling: str = "none"
    factor: float = 1.0
    original_max_position: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True
    frequency_factors: tuple[float, ...] = ()


def inverse_frequencies(rope: RopeSpec, head_dim: int, max_position: int) -> tuple[NDArray[np.float32], float]:
    """Frequencies [head_dim / 2] in radians a position, and the factor on cosines and sines.

    Dynamic scaling depends on the longest sequence; a cache holds rotated keys, so it is fixed to `max_position`, the
    longest sequence that the plan allows.
    """
    theta = _ntk_theta(rope, head_dim, max_position) if rope.scaling == "dynamic" else rope.theta
    inverse = _plain(theta, head_dim)
    magnitude = 1.0
    if rope.scaling == "linear":
        inverse = inverse / rope.factor
    elif rope.scaling == "llama3":
        inverse = _llama3(rope, inverse)
    elif rope.scaling == "yarn":
        inverse, magnitude = _yarn(rope, inverse, head_dim), _yarn_magnitude(rope)
    if rope.frequency_factors:
        inverse = inverse / np.asarray(rope.frequency_factors, np.float64)
    return inverse.astype(np.float32), magnitude


def _plain(theta: float, head_dim: int) -> NDArray[Any]:
    return np.asarray(1.0 / theta ** (np.arange(0, head_dim, 2, dtype=np.float64) / head_dim))


def _ntk_theta(rope: RopeSpec, head_dim: int, max_position: int) -> float:
    original = rope.original_max_position
    if max_position <= original:
        return rope.theta
    stretch = rope.factor * max_position / original - (rope.factor - 1)
    return float(rope.theta * stretch ** (head_dim / (head_dim - 2)))


def _llama3(rope: RopeSpec, inverse: NDArray[Any]) -> NDArray[Any]:
    wavelength = 2 * math.pi / inverse
    turns = rope.original_max_position / wavelength
    blend = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    return inverse / rope.factor + np.clip(blend, 0, 1) * (inverse - inverse / rope.factor)


def _yarn(rope: RopeSpec, inverse: NDArray[Any], head_dim: int) -> NDArray[Any]:
    def turning_dim(turns: float) -> float:
        ratio = rope.original_max_position / (turns * 2 * math.pi)
        return head_dim * math.log(ratio) / (2 * math.log(rope.theta))

    low, high = turning_dim(rope.beta_fast), turning_dim(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    ramp = np.clip((np.arange(head_dim // 2) - low) / max(high - low, 0.001), 0, 1)
    return np.asarray(inverse / rope.factor * ramp + inverse * (1 - ramp))


def _yarn_magnitude(rope: RopeSpec) -> float:
    def magnitude(scale: float) -> float:
        return 1.0 if rope.factor <= 1 else 0.1 * scale * math.log(rope.factor) + 1.0

    if rope.attention_factor is not None:
        return rope.attention_factor
    if rope.mscale and rope.mscale_all_dim:
        return magnitude(rope.mscale) / magnitude(rope.mscale_all_dim)
    return magnitude(1.0)
