"""`fuseboard doctor`: what this machine offers, measured, and whether the kernels compute the right thing on it."""

import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from fuseboard import _native
from fuseboard.backends.cpu.backend import ISAS
from fuseboard.backends.cpu.ceilings import machine_name, measure_ceilings
from fuseboard.backends.cpu.topology import free_memory, usable_threads
from fuseboard.formats.panels import pack, padded_k, panel_bytes
from fuseboard.formats.quantise import quantise
from fuseboard.formats.weights import weight_format

PACKAGES = ("fuseboard", "numpy", "tokenizers", "gguf", "safetensors", "scipy", "matplotlib")
PRODUCT_ERROR = "product error in float32 roundings"


def examine(threads: int | None = None) -> dict[str, Any]:
    """All findings as plain data. Rates are in bytes and operations a second; it takes a few seconds."""
    threads = threads or usable_threads()
    ceilings = measure_ceilings(threads)
    return {
        "machine": machine_name(),
        "kernel sets": [isa for isa in ISAS if _native.isa(isa)],  # type: ignore[arg-type]
        "kernels in use": _native.isa(),
        "usable threads": usable_threads(),
        "numa nodes": len(list(Path("/sys/devices/system/node").glob("node[0-9]*"))) or 1,
        "clock MHz": _clock(),
        "huge pages": _huge_pages(),
        "free memory bytes": free_memory(),
        "threads measured": threads,
        "memory read bytes/s": ceilings.read_bytes_per_s,
        "memory read over bytes": ceilings.read_bytes,
        "last cache bytes": ceilings.cache_bytes,
        "last cache read bytes/s": ceilings.cache_read_bytes_per_s,
        "f32 operations/s": ceilings.flops_per_s,
        "int8 operations/s": ceilings.int8_ops_per_s,
        PRODUCT_ERROR: product_error(),
        "kernel": platform.release(),
        "python": sys.version.split()[0],
        "packages": {name: _version(name) for name in PACKAGES},
    }


def product_error(n: int = 96, k: int = 200) -> float:
    """Largest relative error of a small native projection against NumPy, in the units of float32 rounding."""
    random = np.random.default_rng(0)
    w_NK, x_K = random.standard_normal((n, k), np.float32), random.standard_normal(k, np.float32)
    fmt = weight_format("f32")
    memory = _native.Region(len(packed := pack(quantise(w_NK, "f32"))), name="fuseboard doctor")
    memory.view()[: len(packed)] = packed
    out_N = np.zeros(n, np.float32)
    weight = _native.Weight(
        fmt="f32", address=memory.address, n=n, k=k, k_pad=padded_k(fmt, k), panel_bytes=panel_bytes(fmt, k)
    )
    program = _native.Program()
    program.add_linear(
        "product",
        x=_native.Act(type="f32", codes=x_K.ctypes.data, ld=k),
        segments=[_native.Segment(weight=weight, out=out_N.ctypes.data, ldo=n)],
        rows="one",
    )
    program.run(_native.Team(usable_threads()), _native.Step())
    exact_N = w_NK.astype(np.float64) @ x_K.astype(np.float64)
    scale_N = np.abs(w_NK).astype(np.float64) @ np.abs(x_K).astype(np.float64)
    return float((np.abs(out_N - exact_N) / scale_N).max() / np.finfo(np.float32).eps)


def _clock() -> float | None:
    speeds = [
        float(line.partition(":")[2])
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("cpu MHz")
    ]
    return max(speeds, default=None)


def _huge_pages() -> str:
    """The active choice of "always [madvise] never"."""
    try:
        text = Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text()
    except OSError:
        return "unavailable"
    return text.partition("[")[2].partition("]")[0]


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
