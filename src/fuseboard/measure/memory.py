"""Measured memory of this process."""

import re
from collections.abc import Mapping
from pathlib import Path

REST = "python and libraries"


def resident_bytes() -> int:
    """Proportional resident size of this process now (Pss of all mappings)."""
    return _kilobytes("/proc/self/smaps_rollup", "Pss") * 1024


def with_rest(components: Mapping[str, int], total: int) -> dict[str, int]:
    """The components' measured bytes, and what is left of the process as a row of its own."""
    named = {name: size for name, size in components.items() if name != REST}
    return named | {REST: max(0, total - sum(named.values()))}


def peak_bytes() -> int:
    """The most memory this process ever had resident."""
    return _kilobytes("/proc/self/status", "VmHWM") * 1024


def _kilobytes(path: str, field: str) -> int:
    match = re.search(rf"^{field}:\s+(\d+) kB", Path(path).read_text(encoding="utf-8"), re.MULTILINE)
    return int(match[1]) if match else 0
