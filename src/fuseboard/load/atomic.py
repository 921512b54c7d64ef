"""Files that appear whole or not at all, and a lock between processes."""

import contextlib
import fcntl
import os
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, TextIO

PATIENCE_S, POLL_S = 1.0, 0.05


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
def process_lock(path: Path, *, waiting: Callable[[int | None], None] | None = None) -> Iterator[None]:
    """Holds the lock file `path`; other processes wait, and a killed holder releases it.

    The file holds the holder's process id. `waiting` is called once with it (None when it is not known) after
    `PATIENCE_S` of waiting; the wait goes on afterwards.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # Not "w": a process that waits must not clear what the holder wrote.
    with path.open("a+") as file:
        if waiting and not _locked_within(file, PATIENCE_S):
            waiting(_holder(path))
        fcntl.flock(file, fcntl.LOCK_EX)
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        try:
            yield
        finally:
            file.truncate(0)


def _locked_within(file: TextIO, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while True:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        if time.monotonic() >= deadline:
            return False
        time.sleep(POLL_S)


def _holder(path: Path) -> int | None:
    """The process that wrote its id into the lock file, if it lives."""
    try:
        pid = int(path.read_text())
        os.kill(pid, 0)
    except PermissionError:
        return pid
    except (OSError, ValueError):
        return None
    return pid
