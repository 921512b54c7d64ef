"""Files that appear whole or not at all, and a lock between processes."""

import contextlib
import fcntl
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """A writable binary file that takes the place of `path` when the block ends without an error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with temporary.open("xb") as file:
            yield file
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_atomic(path: Path, data: bytes) -> None:
    """Writes `data` to `path` in one step."""
    with atomic_file(path) as file:
        file.write(data)


@contextlib.contextmanager
def process_lock(path: Path) -> Iterator[None]:
    """Holds the lock file `path`; other processes wait, and a killed holder releases it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
