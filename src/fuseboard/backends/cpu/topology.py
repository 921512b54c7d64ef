"""What the process may use of this machine: CPUs, memory, and the physical memory behind address ranges."""

import os
from collections.abc import Sequence
from pathlib import Path

import psutil


def usable_threads() -> int:
    """CPUs this process may run on, capped by the cgroup's quota."""
    allowed = len(os.sched_getaffinity(0))
    return max(1, min(allowed, _cgroup_cpus() or allowed))


def _cgroup_cpus() -> int | None:
    """Whole CPUs of the quota of control groups v2 (`cpu.max` is "quota period" or "max period")."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):
        return None
    return None if quota == "max" else max(1, int(quota) // int(period))


def free_memory() -> int:
    """Bytes available without swapping."""
    return int(psutil.virtual_memory().available)


def resident_bytes(ranges: Sequence[tuple[int, int]]) -> list[int]:
    """Resident bytes within each address range [start, end), from the process's memory map."""
    found = [0] * len(ranges)
    start = end = 0
    for line in Path("/proc/self/smaps").read_text().splitlines():
        key, _, rest = line.partition(" ")
        if "-" in key and not key.endswith(":"):
            start, end = (int(part, 16) for part in key.split("-"))
        elif key == "Rss:":
            size = int(rest.split()[0]) * 1024
            for index, (first, last) in enumerate(ranges):
                if first <= start and end <= last:
                    found[index] += size
    return found


def process_pss() -> int:
    """The process's share of all memory it maps, in bytes."""
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0
