"""Measured limits of this machine, kept in the cache folder: the roofline's two lines."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fuseboard import _native
from fuseboard.core.env import cache_dir
from fuseboard.load.atomic import write_atomic

READ_BYTES = 1 << 28
SECONDS = 0.4


@dataclass(frozen=True, kw_only=True)
class Ceilings:
    """Rates with `threads` threads: memory read in bytes a second, f32 and int8 arithmetic in operations a second."""

    machine: str
    threads: int
    read_bytes_per_s: float
    flops_per_s: float
    int8_ops_per_s: float


def machine_name() -> str:
    """The processor's model name and kernel set: what measured rates belong to."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")
    return f"{model} ({_native.isa()})"


def cached_ceilings(threads: int) -> Ceilings | None:
    """What was measured with so many threads on this kind of machine before, if anything."""
    stored = _stored().get(str(threads))
    return Ceilings(**stored) if stored and stored.get("machine") == machine_name() else None


def _stored() -> dict[str, dict[str, Any]]:
    """Ceilings by number of threads."""
    try:
        stored = json.loads(_path().read_text())
    except (OSError, ValueError):
        return {}
    return {threads: found for threads, found in stored.items() if isinstance(found, dict)}


def measure_ceilings(threads: int) -> Ceilings:
    """Measures the rates (a few seconds) and keeps them for plans, `doctor` and reports."""
    found = Ceilings(
        machine=machine_name(),
        threads=threads,
        read_bytes_per_s=_native.measure_bandwidth(threads, READ_BYTES, SECONDS),
        flops_per_s=_native.measure_flops(threads, "fma"),
        int8_ops_per_s=_native.measure_flops(threads, "int8"),
    )
    write_atomic(_path(), json.dumps(_stored() | {str(threads): asdict(found)}).encode())
    return found


def _path() -> Path:
    return cache_dir() / "ceilings.json"
