"""What the process may use of this machine: CPUs, memory, and the physical memory behind address ranges."""

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

import psutil


def usable_threads() -> int:
    """CPUs this process may run on, capped by the cgroup's quota."""
    allowed = len(os.sched_getaffinity(0))
    return max(1, min(allowed, _cgroup_cpus() or allowed))


def pinning_order(root: Path = Path("/sys/devices/system")) -> tuple[int, ...]:
    """The CPUs this process may run on, in the order in which threads are bound to them.

    One of each core first; within that the memory node with most usable CPUs first, so that a small team stays on one.
    `root` is where the system describes its devices.
    """
    allowed = os.sched_getaffinity(0)
    nodes = sorted((node & allowed for node in memory_nodes(root)), key=len, reverse=True)

    def place(cpu: int) -> tuple[int, int, int]:
        core = _cpu_list(root / f"cpu/cpu{cpu}/topology/thread_siblings_list") & allowed
        node = next((i for i, node in enumerate(nodes) if cpu in node), len(nodes))
        return sum(sibling < cpu for sibling in core), node, cpu

    return tuple(sorted(allowed, key=place))


def memory_nodes(root: Path = Path("/sys/devices/system")) -> list[set[int]]:
    """The CPUs of every memory node that has some."""
    found = (_cpu_list(path) for path in sorted(root.glob("node/node[0-9]*/cpulist")))
    return [cpus for cpus in found if cpus] or [os.sched_getaffinity(0)]


def _cpu_list(path: Path) -> set[int]:
    """CPUs of a file like "0-3,8"; none where the system does not say."""
    try:
        text = path.read_text().strip()
    except OSError:
        return set()
    spans = [part.partition("-") for part in text.split(",") if part]
    return {cpu for first, _, last in spans for cpu in range(int(first), int(last or first) + 1)}


def _cgroup_cpus() -> int | None:
    """Whole CPUs of the quota of control groups v2 (`cpu.max` is "quota period" or "max period")."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):
        return None
    return None if quota == "max" else max(1, int(quota) // int(period))


def last_cache(root: Path = Path("/sys/devices/system")) -> int:
    """Bytes of the outermost cache of the first usable CPU; 0 where the system does not say."""
    sizes = {0: 0}
    for index in (root / f"cpu/cpu{min(os.sched_getaffinity(0))}/cache").glob("index[0-9]*"):
        with contextlib.suppress(OSError, ValueError, KeyError):
            text = (index / "size").read_text().strip()
            sizes[int((index / "level").read_text())] = int(text[:-1]) * {"K": 1 << 10, "M": 1 << 20}[text[-1]]
    return sizes[max(sizes)]


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


def huge_bytes(first: int, last: int) -> int:
    """Bytes in huge pages within the address range [first, last), from the process's memory map."""
    found = start = end = 0
    for line in Path("/proc/self/smaps").read_text().splitlines():
        key, _, rest = line.partition(" ")
        if "-" in key and not key.endswith(":"):
            start, end = (int(part, 16) for part in key.split("-"))
        elif key == "AnonHugePages:" and first <= start and end <= last:
            found += int(rest.split()[0]) * 1024
    return found


def process_pss() -> int:
    """The process's share of all memory it maps, in bytes."""
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0
