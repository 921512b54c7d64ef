"""Recorded calibration: static KV scales of a model, kept in the cache folder under its digest."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fuseboard.core.env import cache_dir
from fuseboard.core.errors import PlanError


def scales_path(model_digest: str) -> Path:
    return cache_dir() / "calibration" / f"{model_digest[:40]}.npy"


def has_head_scales(model_digest: str) -> bool:
    return scales_path(model_digest).exists()


def head_scales(model_digest: str) -> NDArray[np.float32]:
    """Scales [layers, 2, KV heads], K then V; PlanError when no calibration pass was recorded for the model."""
    path = scales_path(model_digest)
    if not path.exists():
        raise PlanError("kv.dtype=int8_head needs a recorded calibration pass; load the model with it to record one.")
    return np.asarray(np.load(path), np.float32)


def record_head_scales(model_digest: str, scales_LKH: NDArray[np.float32]) -> None:
    """Keeps the scales for later loads; the file appears whole or not at all."""
    path = scales_path(model_digest)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".part.npy")
    np.save(partial, scales_LKH)
    partial.replace(path)
