"""SHA-256 of files, remembered: hashing a model takes tenths of a second, which every start would pay."""

import hashlib
from collections.abc import Iterable
from pathlib import Path

from fuseboard.core.env import cache_dir
from fuseboard.load.atomic import write_atomic


def file_sha256(path: Path) -> str:
    """SHA-256 of the file's content (hex).

    The result is cached under the file's resolved path, size, modification time and inode; a file that is replaced or
    written to is hashed again.
    """
    path = path.resolve()
    stat = path.stat()
    identity = f"{path}|{stat.st_size}|{stat.st_mtime_ns}|{stat.st_ino}"
    entry = cache_dir() / "digests" / hashlib.sha256(identity.encode()).hexdigest()[:32]
    if entry.is_file() and len(known := entry.read_text()) == 64:
        return known
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    write_atomic(entry, digest.encode())
    return digest


def files_sha256(paths: Iterable[Path]) -> str:
    """One digest for several files: over each one's name and content, in the order given."""
    lines = "".join(f"{path.name} {file_sha256(path)}\n" for path in paths)
    return hashlib.sha256(lines.encode()).hexdigest()
