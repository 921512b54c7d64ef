"""GGUF v2 and v3: the header, parsed in milliseconds, and mapped tensors.

Source of the layout: the GGUF specification of the ggml project. Reading is our own because a start must not pay
seconds for a vocabulary: string arrays are skipped over and decoded when somebody asks for them.
"""

import mmap
import struct
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fuseboard.core.errors import LoadError
from fuseboard.load.tensors import BLOCK_SIZES, LFS_MAGIC, Bytes, StoredTensor, stored_bytes

KINDS = {
    0: "f32",
    1: "f16",
    2: "q4_0",
    3: "q4_1",
    6: "q5_0",
    7: "q5_1",
    8: "q8_0",
    10: "q2_k",
    11: "q3_k",
    12: "q4_k",
    13: "q5_k",
    14: "q6_k",
    20: "iq4_nl",
    23: "iq4_xs",
    30: "bf16",
}

SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9
DEFAULT_ALIGNMENT = 32
MAX_DIMS = 4
MIN_ENTRY_BYTES = 13
"""No key-value pair or tensor entry is shorter than this: a bound on believable counts."""

read_u64 = struct.Struct("<Q").unpack_from


class StringArray:
    """An array of strings as it lies in the header, decoded when iterated.

    It holds a copy: the tokenizer reads it in a thread of its own, while somebody may already replace the file.
    """

    def __init__(self, data: bytes, count: int) -> None:
        self._data, self._count = data, count

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[str]:
        data, position = self._data, 0
        for _ in range(self._count):
            end = position + 8 + read_u64(data, position)[0]
            yield data[position + 8 : end].decode("utf-8", "replace")
            position = end

    def pick(self, wanted: Collection[int]) -> dict[int, str]:
        """The strings at some indices, without decoding the others."""
        data, position, picked = self._data, 0, {}
        for index in range(max(wanted, default=-1) + 1):
            end = position + 8 + read_u64(data, position)[0]
            if index in wanted:
                picked[index] = data[position + 8 : end].decode("utf-8", "replace")
            position = end
        return picked


class Header:
    """A cursor over the header; every read is checked against the end of the file."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data, self.size, self.position = data, len(data), 0

    def scalar(self, code: str) -> Any:
        (value,) = struct.unpack_from("<" + code, self.data, self.position)
        self.position += struct.calcsize(code)
        return value

    def take(self, nbytes: int) -> int:
        """Position of the next `nbytes`, which are stepped over."""
        start = self.position
        if nbytes > self.size - start:
            raise struct.error("past the end")
        self.position = start + nbytes
        return start

    def string(self) -> str:
        length = self.scalar("Q")
        start = self.take(length)
        return self.data[start : start + length].decode("utf-8", "replace")

    def value(self, kind: int) -> Any:
        if kind == STRING:
            return self.string()
        if kind == ARRAY:
            return self.array(self.scalar("I"), self.scalar("Q"))
        if kind not in SCALARS:
            raise HeaderError(f"has a metadata value of unknown type {kind}")
        return self.scalar(SCALARS[kind])

    def array(self, kind: int, count: int) -> Any:
        if kind == STRING:
            return self.string_array(count)
        if kind not in SCALARS:
            raise HeaderError(f"has a metadata array of unknown type {kind}")
        start = self.take(count * struct.calcsize(SCALARS[kind]))
        return np.frombuffer(self.data, np.dtype(SCALARS[kind]).newbyteorder("<"), count, start).copy()

    def string_array(self, count: int) -> StringArray:
        if count * 8 > self.size - self.position:
            raise struct.error("past the end")
        data, start = self.data, self.position
        position = start
        for _ in range(count):
            position += 8 + read_u64(data, position)[0]
        self.take(position - start)
        return StringArray(data[start:position], count)


class HeaderError(Exception):
    """What is wrong with the header, as the end of a sentence that begins with the file's name."""


class GgufFile:
    """A GGUF file: `metadata` by key (scalars, strings, NumPy arrays, `StringArray`s) and mapped tensors.

    Raises `LoadError` naming the file and what is wrong with it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._data = map_file(path)
        self.metadata: dict[str, Any] = {}
        self.tensors: dict[str, StoredTensor] = {}
        try:
            self._read(Header(self._data))
        except HeaderError as error:
            raise LoadError(f"The GGUF file {path} {error}.") from None
        except (struct.error, OverflowError):
            raise LoadError(f"The GGUF file {path} ends inside its header; download it again.") from None

    def raw(self, name: str) -> Bytes:
        tensor = self.tensors[name]
        return np.frombuffer(self._data, np.uint8, tensor.nbytes, tensor.offset)

    def _read(self, header: Header) -> None:
        check_magic(header)
        tensor_count, value_count = header.scalar("Q"), header.scalar("Q")
        for what, count in (("tensors", tensor_count), ("metadata values", value_count)):
            if count * MIN_ENTRY_BYTES > header.size:
                raise HeaderError(f"claims {count} {what}, more than its size can hold; download it again")
        for _ in range(value_count):
            key = header.string()
            self.metadata[key] = header.value(header.scalar("I"))
        entries = [tensor_entry(header) for _ in range(tensor_count)]
        alignment = self.metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 8 or alignment % 8:
            raise HeaderError(f"has the alignment {alignment}, which is not a multiple of 8")
        start = -(-header.position // alignment) * alignment
        for name, kind, shape, offset in entries:
            if name in self.tensors:
                raise HeaderError(f"has two tensors called '{name}'")
            self.tensors[name] = place(name, kind, shape, offset, start, alignment, header.size)


def map_file(path: Path) -> mmap.mmap:
    """The whole file, mapped read-only; refuses files that cannot be a checkpoint."""
    try:
        with path.open("rb") as file:
            head = file.read(len(LFS_MAGIC))
            if not head:
                raise LoadError(f"The file {path} is empty; download it again.")
            if head == LFS_MAGIC:
                raise LoadError(f"The file {path} is a Git LFS pointer, not the file itself; run git lfs pull.")
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise LoadError(f"The file {path} cannot be read: {error.strerror}.") from error


def check_magic(header: Header) -> None:
    if header.data[:4] != b"GGUF":
        raise HeaderError(f"begins with {bytes(header.data[:4])!r} instead of b'GGUF', so it is something else")
    header.position = 4
    version = header.scalar("I")
    if version in (0x02000000, 0x03000000):
        raise HeaderError("is big-endian, which is not supported; convert it to little-endian")
    if version not in (2, 3):
        raise HeaderError(f"has version {version}; versions 2 and 3 are understood")


def tensor_entry(header: Header) -> tuple[str, str, tuple[int, ...], int]:
    """Name, kind, shape (fastest dimension last) and offset of the next tensor."""
    name = header.string()
    dims = header.scalar("I")
    if dims > MAX_DIMS:
        raise HeaderError(f"gives the tensor '{name}' {dims} dimensions, more than {MAX_DIMS}")
    shape = tuple(header.scalar("Q") for _ in range(dims))[::-1]
    number = header.scalar("I")
    if number not in KINDS:
        raise HeaderError(
            f"stores the tensor '{name}' in type {number}, which is unknown; known are {list(BLOCK_SIZES)}"
        )
    return name, KINDS[number], shape, header.scalar("Q")


def place(
    name: str, kind: str, shape: tuple[int, ...], offset: int, start: int, alignment: int, size: int
) -> StoredTensor:
    """The tensor's checked place, given the start of the data section and the file's size."""
    try:
        nbytes = stored_bytes(kind, shape)
    except ValueError as error:
        raise HeaderError(f"has the {kind} tensor '{name}' of shape {list(shape)}: {error}") from None
    if offset % alignment:
        raise HeaderError(f"has the tensor '{name}' at offset {offset}, which is not a multiple of {alignment}")
    if start + offset + nbytes > size:
        raise HeaderError(
            f"has {size} bytes, but its tensor '{name}' ends at byte {start + offset + nbytes}; it is truncated, "
            f"download it again"
        )
    return StoredTensor(kind=kind, shape=shape, offset=start + offset, nbytes=nbytes)
