"""Safetensors, one file or shards with an index: headers checked, tensors mapped.

Source of the layout: the safetensors format description (8 bytes of header length, a JSON header, then the data).
"""

import json
import mmap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fuseboard.core.errors import LoadError
from fuseboard.load.gguf_file import map_file
from fuseboard.load.tensors import Bytes, StoredTensor, stored_bytes

KINDS = {"F32": "f32", "F16": "f16", "BF16": "bf16"}
INDEX_NAME = "model.safetensors.index.json"
MAX_HEADER_BYTES = 100_000_000


class SafetensorsFiles:
    """The tensors of a folder's safetensors files.

    Raises `LoadError` for a missing shard, a truncated file, an offset or shape that does not fit, an unknown type, or
    an index that disagrees with its shards.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder
        index = folder / INDEX_NAME
        shards = index_shards(index) if index.is_file() else {single_file(folder): None}
        self.files = tuple(shards)
        self.tensors: dict[str, StoredTensor] = {}
        self._data: dict[str, mmap.mmap] = {}
        for path, expected in shards.items():
            if not path.is_file():
                raise LoadError(f"The shard {path.name} that {INDEX_NAME} lists is not in {folder}; download it.")
            self._add(path, expected)

    def raw(self, name: str) -> Bytes:
        tensor = self.tensors[name]
        return np.frombuffer(self._data[name], np.uint8, tensor.nbytes, tensor.offset)

    def _add(self, path: Path, expected: set[str] | None) -> None:
        data = map_file(path)
        tensors = read_header(path, data)
        if expected is not None and (wrong := expected ^ tensors.keys()):
            raise LoadError(f"{INDEX_NAME} and the shard {path} disagree about the tensor '{min(wrong)}'.")
        self.tensors |= tensors
        self._data |= dict.fromkeys(tensors, data)


def single_file(folder: Path) -> Path:
    """The folder's only safetensors file."""
    found = sorted(folder.glob("*.safetensors"))
    if folder / "model.safetensors" in found:
        return folder / "model.safetensors"
    if len(found) > 1:
        raise LoadError(f"{folder} has {len(found)} safetensors files but no {INDEX_NAME}; download the index too.")
    if not found:
        raise LoadError(f"{folder} has no safetensors file and no GGUF file; other checkpoints are not supported.")
    return found[0]


def index_shards(index: Path) -> dict[Path, set[str]]:
    """Each shard's path and the tensors that the index places in it."""
    try:
        weight_map = json.loads(index.read_bytes())["weight_map"]
        shards: dict[Path, set[str]] = {}
        for tensor, shard in weight_map.items():
            if Path(shard).name != shard:
                raise LoadError(f"{index} points outside its folder: '{shard}'.")
            shards.setdefault(index.parent / shard, set()).add(tensor)
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, AttributeError, TypeError):
        raise LoadError(f"{index} is not a safetensors index; download it again.") from None
    return dict(sorted(shards.items()))


def read_header(path: Path, data: mmap.mmap) -> dict[str, StoredTensor]:
    """Every tensor of one file, its place checked against the file's size."""
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or length > min(MAX_HEADER_BYTES, len(data) - 8):
        raise LoadError(f"{path} has {len(data)} bytes but claims a header of {length}; it is truncated or no "
                        f"safetensors file, download it again.")  # fmt: skip
    try:
        header = json.loads(data[8 : 8 + length])
    except (json.JSONDecodeError, UnicodeDecodeError):
        header = None
    if not isinstance(header, dict):
        raise LoadError(f"{path} has a header that is not a JSON object; download it again.")
    header.pop("__metadata__", None)
    return {name: place(path, name, entry, 8 + length, len(data)) for name, entry in header.items()}


def place(path: Path, name: str, entry: Mapping[str, Any], start: int, size: int) -> StoredTensor:
    try:
        dtype, shape = str(entry["dtype"]), tuple(int(size) for size in entry["shape"])
        begin, end = (int(offset) for offset in entry["data_offsets"])
    except (KeyError, TypeError, ValueError):
        raise LoadError(f"{path} describes the tensor '{name}' in a way that is not understood.") from None
    if dtype not in KINDS:
        raise LoadError(f"{path} stores the tensor '{name}' in {dtype}; only {', '.join(KINDS)} are supported.")
    if not 0 <= begin <= end or start + end > size:
        raise LoadError(f"{path} is truncated: its tensor '{name}' ends at byte {start + end} of {size}.")
    nbytes = stored_bytes(KINDS[dtype], shape)
    if end - begin != nbytes:
        raise LoadError(f"{path} gives the tensor '{name}' {end - begin} bytes, but its shape needs {nbytes}.")
    return StoredTensor(kind=KINDS[dtype], shape=shape, offset=start + begin, nbytes=nbytes)
