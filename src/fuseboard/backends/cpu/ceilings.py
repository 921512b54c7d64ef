"""Measured limits of this machine, kept in the cache folder: the roofline's two lines."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fuseboard import _native
from fuseboard.backends.cpu.topology import free_memory, last_cache
from fuseboard.core.env import cache_dir
from fuseboard.load.atomic import write_atomic

VERSION = 2
"""Of what is measured and how; rates of another version are measured anew."""
SECONDS = 0.4
LEAST_READ, CACHES = 1 << 30, 4
"""Memory is read over at least so many bytes and so many times the last cache, which would serve a part otherwise."""
FREE_SHARE, CACHE_SHARE = 4, 4
"""Parts of the free memory of which one is read at most; parts of the last cache of which one is read."""


@dataclass(frozen=True, kw_only=True)
class Ceilings:
    """Rates with `threads` threads: memory read in bytes a second over `read_bytes`, the same from the last cache of
    `cache_bytes` (zero where there is none), f32 and int8 arithmetic in operations a second."""

    machine: str
    threads: int
    read_bytes: int
    read_bytes_per_s: float
    cache_bytes: int
    cache_read_bytes_per_s: float
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
    if not isinstance(stored, dict) or stored.get("version") != VERSION:
        return {}
    return {threads: found for threads, found in stored.items() if isinstance(found, dict)}


def memory_read_bytes(cache: int, free: int) -> int:
    """How many bytes to read to see the memory and not the last cache."""
    return min(max(LEAST_READ, CACHES * cache), free // FREE_SHARE)


def measure_ceilings(threads: int) -> Ceilings:
    """Measures the rates (a few seconds) and keeps them for plans, `doctor` and reports."""
    cache = last_cache()
    read_bytes = memory_read_bytes(cache, free_memory())
    found = Ceilings(
        machine=machine_name(),
        threads=threads,
        read_bytes=read_bytes,
        read_bytes_per_s=_native.measure_bandwidth(threads, read_bytes, SECONDS),
        cache_bytes=cache,
        cache_read_bytes_per_s=_native.measure_bandwidth(threads, cache // CACHE_SHARE, SECONDS) if cache else 0.0,
        flops_per_s=_native.measure_flops(threads, "fma"),
        int8_ops_per_s=_native.measure_flops(threads, "int8"),
    )
    write_atomic(_path(), json.dumps(_stored() | {"version": VERSION, str(threads): asdict(found)}).encode())
    return found


def _path() -> Path:
    return cache_dir() / "ceilings.json"
