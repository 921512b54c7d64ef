"""The environment variables Fuseboard reads, all of them; none changes a result."""

import os
from pathlib import Path


def cache_dir() -> Path:
    """Folder for models, packed weights and measured ceilings: `FUSEBOARD_CACHE`, or the user's cache folder."""
    explicit = os.environ.get("FUSEBOARD_CACHE")
    if explicit:
        return Path(explicit).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "fuseboard"


def debug_checks() -> bool:
    """`FUSEBOARD_DEBUG=1` poisons freed KV blocks with NaN and verifies the graph after every rewrite."""
    return os.environ.get("FUSEBOARD_DEBUG", "0") not in ("", "0")
