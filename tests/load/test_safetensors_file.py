"""Safetensors files against the safetensors library, and every way to be broken."""

import json
import struct
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from fuseboard.core.errors import LoadError
from fuseboard.load.safetensors_file import SafetensorsFiles
from fuseboard.load.tensors import dequantise


def values(shape: tuple[int, ...], dtype: object = np.float32) -> np.ndarray:
    return np.random.default_rng(7).standard_normal(shape, np.float32).astype(dtype)


def read(file: SafetensorsFiles, name: str) -> np.ndarray:
    tensor = file.tensors[name]
    return dequantise(file.raw(name).reshape(tensor.shape[0], -1), tensor.kind).reshape(tensor.shape)


def test_three_types_round_trip(tmp_path: Path) -> None:
    tensors = {"a": values((7, 5)), "b": values((3, 9), np.float16), "c": values((11,), ml_dtypes.bfloat16)}
    save_file(tensors, tmp_path / "model.safetensors")
    file = SafetensorsFiles(tmp_path)
    assert {name: file.tensors[name].kind for name in tensors} == {"a": "f32", "b": "f16", "c": "bf16"}
    for name, expected in tensors.items():
        np.testing.assert_array_equal(read(file, name), expected.astype(np.float32))


def test_float32_is_mapped_and_read_only(tmp_path: Path) -> None:
    save_file({"a": values((8, 4))}, tmp_path / "model.safetensors")
    array = read(SafetensorsFiles(tmp_path), "a")
    assert not array.flags.owndata
    assert not array.flags.writeable


def test_odd_header_length_still_gives_aligned_arrays(tmp_path: Path) -> None:
    data = values((4,)).tobytes()
    header = json.dumps({"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}).encode()
    header += b" " * (1 - len(header) % 2)
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + data)
    array = read(SafetensorsFiles(tmp_path), "a")
    assert array.flags.aligned
    np.testing.assert_array_equal(array, values((4,)))


def sharded(folder: Path, weight_map: dict[str, str] | None = None) -> Path:
    save_file({"a": values((2, 3))}, folder / "model-1.safetensors")
    save_file({"b": values((4, 3))}, folder / "model-2.safetensors")
    placed = weight_map or {"a": "model-1.safetensors", "b": "model-2.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": placed}))
    return folder


def test_shards_are_joined(tmp_path: Path) -> None:
    file = SafetensorsFiles(sharded(tmp_path))
    np.testing.assert_array_equal(read(file, "b"), values((4, 3)))
    assert {path.name for path in file.files} == {"model-1.safetensors", "model-2.safetensors"}


def test_missing_shard(tmp_path: Path) -> None:
    (sharded(tmp_path) / "model-2.safetensors").unlink()
    with pytest.raises(LoadError, match=r"shard model-2\.safetensors .* is not in"):
        SafetensorsFiles(tmp_path)


def test_index_and_shard_disagree(tmp_path: Path) -> None:
    sharded(tmp_path, {"a": "model-1.safetensors", "c": "model-2.safetensors"})
    with pytest.raises(LoadError, match="disagree about the tensor 'b'"):
        SafetensorsFiles(tmp_path)


def test_index_leads_outside(tmp_path: Path) -> None:
    sharded(tmp_path, {"a": "../model-1.safetensors"})
    with pytest.raises(LoadError, match="points outside its folder"):
        SafetensorsFiles(tmp_path)


@pytest.mark.parametrize("content", ["[]", "{}", "not json", '{"weight_map": 3}'])
def test_bad_index(content: str, tmp_path: Path) -> None:
    (sharded(tmp_path) / "model.safetensors.index.json").write_text(content)
    with pytest.raises(LoadError, match="is not a safetensors index"):
        SafetensorsFiles(tmp_path)


def test_no_file_and_no_index(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="no safetensors file"):
        SafetensorsFiles(tmp_path)
    save_file({"a": values((2,))}, tmp_path / "x.safetensors")
    assert set(SafetensorsFiles(tmp_path).tensors) == {"a"}
    save_file({"a": values((2,))}, tmp_path / "y.safetensors")
    with pytest.raises(LoadError, match=r"2 safetensors files but no model\.safetensors\.index\.json"):
        SafetensorsFiles(tmp_path)


def raw_file(header: object, data: bytes = bytes(16), length: int | None = None) -> bytes:
    encoded = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(encoded) if length is None else length) + encoded + data


def one(**changes: object) -> dict[str, object]:
    return {"x": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]} | changes}


BROKEN = {
    "lfs": (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"),
    "empty": (b"", "is empty"),
    "short": (b"\x01\x02", "truncated"),
    "long header": (raw_file(one(), length=1 << 40), "claims a header of"),
    "no json": (raw_file(b"{{{{"), "not a JSON object"),
    "json array": (raw_file([1]), "not a JSON object"),
    "truncated": (raw_file(one(), data=bytes(8)), "its tensor 'x' ends at byte"),
    "negative": (raw_file(one(data_offsets=[-4, 12])), "truncated"),
    "type": (raw_file(one(dtype="F8_E4M3")), "in F8_E4M3"),
    "shape": (raw_file(one(shape=[5])), "its shape needs 20"),
    "entry": (raw_file({"x": {"dtype": "F32"}}), "not understood"),
    "no entry": (raw_file({"x": 3}), "not understood"),
    "odd shape": (raw_file(one(shape=["a"])), "not understood"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_file_is_refused_by_name(case: str, tmp_path: Path) -> None:
    data, message = BROKEN[case]
    (tmp_path / "model.safetensors").write_bytes(data)
    with pytest.raises(LoadError, match=r"model\.safetensors") as error:
        SafetensorsFiles(tmp_path)
    assert message in str(error.value)
