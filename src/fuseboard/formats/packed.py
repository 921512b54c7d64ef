"""The packed file: every tensor of a model in the layout the kernels read, written once and mapped by each process.

    8 B magic | 4 B header length | 4 B CRC-32 of the header | header (JSON) | zeros to 4 KiB | tensors, 64-byte aligned

Tensors follow one another in the order they were asked for, without gaps beyond the alignment, so matrices of one
format with whole panels can be read as one. The name of a file is a digest of the checkpoint, the formats and the
layout version: a file that exists under the right name is never stale, and opening checks that it is whole.
"""

import errno
import fcntl
import hashlib
import json
import mmap
import os
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from fuseboard.core.env import cache_dir
from fuseboard.core.errors import LoadError
from fuseboard.core.weights import WeightSource
from fuseboard.formats.convert import convert
from fuseboard.formats.panels import ALIGN, packed_bytes

LAYOUT_VERSION = 1
"""Raise it whenever packed bytes change their meaning."""
VECTOR = "vector"
"""The format of biases and norm weights: plain float32."""

_MAGIC = b"FUSEPACK"
_PAGE = 4096


@dataclass(frozen=True, kw_only=True)
class PackedEntry:
    """One tensor of a packed file; `offset` counts from the first tensor, `crc` is the CRC-32 of its bytes (hex)."""

    name: str
    format: str
    shape: tuple[int, ...]
    offset: int
    size: int
    crc: str = "00000000"


class DamagedError(Exception):
    """A packed file that is not whole; `load_packed` writes it anew."""


class PackedFile:
    """A mapped packed file. `tensor(name)` gives read-only bytes that stay valid as long as they are referenced."""

    def __init__(
        self, path: Path, digest: str, entries: Mapping[str, PackedEntry], mapped: NDArray[np.uint8], header_bytes: int
    ) -> None:
        self.path, self.digest, self.entries = path, digest, entries
        self._data, self._header_bytes = mapped[header_bytes:], header_bytes

    @classmethod
    def open(cls, path: Path, *, verify: bool = False) -> "PackedFile":
        """Maps the file; `DamagedError` if its header or size, or with `verify` any tensor, is not as written."""
        with path.open("rb") as file:
            header, start = _read_header(file, path)
            entries = {e["name"]: PackedEntry(**e | {"shape": tuple(e["shape"])}) for e in header["tensors"]}
            size = os.fstat(file.fileno()).st_size
            if size != start + header["size"]:
                raise DamagedError(f"{path} has {size} bytes instead of {start + header['size']}")
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        packed = cls(path, header["digest"], entries, np.frombuffer(mapped, np.uint8), start)
        if verify:
            packed._verify()
        return packed

    def tensor(self, name: str) -> NDArray[np.uint8]:
        """The packed bytes of a tensor, 64-byte aligned."""
        entry = self.entries[name]
        return self._data[entry.offset : entry.offset + entry.size]

    def vector(self, name: str) -> NDArray[np.float32]:
        """A tensor stored as plain float32, in its own shape."""
        entry = self.entries[name]
        assert entry.format == VECTOR
        return self.tensor(name).view(np.float32).reshape(entry.shape)

    @property
    def address(self) -> int:
        """Where the first tensor lies in memory."""
        return int(self._data.ctypes.data)

    def read_into(self, target: NDArray[np.uint8]) -> None:
        """All tensors at their offsets in `target` [nbytes], read from the file and not through the mapping."""
        with self.path.open("rb", buffering=0) as file:
            file.seek(self._header_bytes)
            done = 0
            while done < self.nbytes:
                count = file.readinto(target[done : self.nbytes].data)
                if not count:
                    raise LoadError(f"{self.path} ended early; remove it and load the model again.")
                done += count

    @property
    def span(self) -> tuple[int, int]:
        """First address and end of the mapping, whole pages, for accounts of resident memory."""
        start = self._data.ctypes.data - self._header_bytes
        end = self._data.ctypes.data + len(self._data)
        return start, end + -end % _PAGE

    @property
    def nbytes(self) -> int:
        return len(self._data)

    def _verify(self) -> None:
        for entry in self.entries.values():
            if f"{zlib.crc32(self.tensor(entry.name).data):08x}" != entry.crc:
                raise DamagedError(f"tensor {entry.name} of {self.path} is damaged")


def packed_path(digest: str, formats: Mapping[str, str]) -> Path:
    """Where the packed file of a checkpoint (its digest) in these formats (tensor name to format) lives."""
    key = json.dumps([LAYOUT_VERSION, digest, list(formats.items())])
    return cache_dir() / "packed" / f"{hashlib.sha256(key.encode()).hexdigest()[:40]}.fuse"


def packed_layout(source: WeightSource, formats: Mapping[str, str]) -> tuple[PackedEntry, ...]:
    """Names, formats and places of all tensors, before anything is converted."""
    entries, offset = [], 0
    for name, format_name in formats.items():
        shape = source.shape(name)
        size = int(np.prod(shape)) * 4 if format_name == VECTOR else packed_bytes(format_name, *shape)
        entries.append(PackedEntry(name=name, format=format_name, shape=shape, offset=offset, size=size))
        offset += size + -size % ALIGN
    return tuple(entries)


def load_packed(
    source: WeightSource, formats: Mapping[str, str], *, clip_search: int = 0, verify: bool = False
) -> PackedFile:
    """The packed file of a checkpoint in the given formats (in this order), written now if it is not there or damaged.

    Tensors of one dimension take the format `VECTOR`. Safe among processes: one writes, the others wait and map the
    result. Raises `LoadError` when it cannot be written.
    """
    digest = f"{source.digest}+clip{clip_search}" if clip_search else source.digest
    path = packed_path(digest, formats)
    if (found := _try_open(path, verify)) is not None:
        return found
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(path.with_suffix(".lock")):
            if (found := _try_open(path, verify)) is None:
                write_packed(path, source, formats, digest=digest, clip_search=clip_search)
    except OSError as error:
        raise LoadError(_explain(error, path)) from None
    return found or PackedFile.open(path)


def write_packed(
    path: Path, source: WeightSource, formats: Mapping[str, str], *, digest: str, clip_search: int = 0
) -> None:
    """Writes a packed file through a temporary file in the same folder; it appears whole or not at all."""
    entries = packed_layout(source, formats)
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            start = len(_header(digest, entries))
            done = [_write_tensor(file, start, source, entry, clip_search) for entry in entries]
            file.truncate(start + _data_size(entries))
            file.seek(0)
            file.write(_header(digest, done))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        _sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def _write_tensor(file: BinaryIO, start: int, source: WeightSource, entry: PackedEntry, clip: int) -> PackedEntry:
    crc = 0
    file.seek(start + entry.offset)
    chunks = (
        iter([np.ascontiguousarray(source.f32(entry.name), np.float32)])
        if entry.format == VECTOR
        else convert(source, entry.name, entry.format, clip_search=clip)
    )
    for chunk in chunks:
        crc = zlib.crc32(chunk.data, crc)
        file.write(chunk.data)
    assert file.tell() == start + entry.offset + entry.size
    return PackedEntry(**asdict(entry) | {"crc": f"{crc:08x}"})


def _data_size(entries: tuple[PackedEntry, ...] | list[PackedEntry]) -> int:
    last = entries[-1]
    return last.offset + last.size + -last.size % ALIGN


def _header(digest: str, entries: tuple[PackedEntry, ...] | list[PackedEntry]) -> bytes:
    """Everything before the first tensor; its length does not depend on the checksums."""
    fields = {
        "version": LAYOUT_VERSION,
        "digest": digest,
        "size": _data_size(entries),
        "tensors": [asdict(e) for e in entries],
    }
    body = json.dumps(fields).encode()
    head = _MAGIC + len(body).to_bytes(4, "little") + zlib.crc32(body).to_bytes(4, "little") + body
    return head + bytes(-len(head) % _PAGE)


def _read_header(file: BinaryIO, path: Path) -> tuple[dict[str, Any], int]:
    head = file.read(16)
    body = file.read(int.from_bytes(head[8:12], "little"))
    if head[:8] != _MAGIC or zlib.crc32(body) != int.from_bytes(head[12:16], "little"):
        raise DamagedError(f"{path} is not a packed file, or its header is damaged")
    header = json.loads(body)
    if header["version"] != LAYOUT_VERSION:
        raise DamagedError(f"{path} has layout version {header['version']}, not {LAYOUT_VERSION}")
    return header, 16 + len(body) + -(16 + len(body)) % _PAGE


def _try_open(path: Path, verify: bool) -> PackedFile | None:
    try:
        return PackedFile.open(path, verify=verify)
    except (FileNotFoundError, DamagedError):
        return None


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _explain(error: OSError, path: Path) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"the disk of {path.parent} is full: free some space or set FUSEBOARD_CACHE to another folder"
    return f"cannot write packed weights to {path.parent} ({error.strerror}): set FUSEBOARD_CACHE to another folder"
