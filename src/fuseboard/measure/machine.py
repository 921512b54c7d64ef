"""Identity of a launch: machine, versions, and a digest of the code that ran."""

import functools
import hashlib
import os
import platform
from importlib import metadata
from pathlib import Path

from fuseboard.core.device import DeviceCaps
from fuseboard.measure.record import Machine


def current(caps: DeviceCaps | None = None) -> Machine:
    """This machine as Linux describes it, with the measured ceilings of its backend where `caps` has them."""
    fields = _processor()
    flags = fields.get("flags") or fields.get("Features") or ""
    return Machine(
        processor=fields.get("model name") or platform.machine(),
        features=hashlib.sha256(flags.encode()).hexdigest()[:16],
        cores=len(os.sched_getaffinity(0)),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        kernel=platform.release(),
        boot=_read("/proc/sys/kernel/random/boot_id"),
        read_bytes_per_s=caps.read_bytes_per_s if caps else 0.0,
        flops_per_s=caps.flops_per_s if caps else 0.0,
        integer_ops_per_s=caps.integer_ops_per_s if caps else 0.0,
        cache_bytes=caps.cache_bytes if caps else 0,
        cache_read_bytes_per_s=caps.cache_read_bytes_per_s if caps else 0.0,
    )


def _processor() -> dict[str, str]:
    first_core = _read("/proc/cpuinfo").split("\n\n")[0]
    pairs = (line.partition(":") for line in first_core.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def versions() -> dict[str, str]:
    """Versions of Python and of the packages a result depends on."""
    found = {"python": platform.python_version()}
    for name in ("fuseboard", "numpy", "tokenizers", "gguf", "safetensors"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


@functools.cache
def code_digest() -> str:
    """SHA-256 over the package's code, native library and data: equal digests, equal behaviour."""
    root = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for path in sorted(p for p in root.rglob("*") if p.is_file() and p.suffix in (".py", ".so", ".txt", ".json")):
        if "report" in path.relative_to(root).parts[:1]:
            continue
        digest.update(path.relative_to(root).as_posix().encode() + b"\0")
        digest.update(path.read_bytes())
    return digest.hexdigest()
