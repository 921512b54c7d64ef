"""Ceilings of this machine: measured once, under the measuring lock, kept by the backend in the cache."""

from fuseboard.backends.base import Backend
from fuseboard.core.device import DeviceCaps


def ensure_ceilings(backend: Backend, threads: int | None) -> DeviceCaps:
    """The backend's capabilities with ceilings for so many threads, measured now unless the backend knows them.

    The caller holds the measuring lock. A backend that measures none leaves all that depends on them unknown.
    """
    caps = backend.capabilities(threads=threads)
    if not caps.read_bytes_per_s:
        backend.examine(threads)
        caps = backend.capabilities(threads=threads)
    return caps
