"""GGUF files: every storage against `gguf.quants`, every way to be broken refused by name."""

import contextlib
import os
import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fuseboard.core.errors import LoadError
from fuseboard.load.gguf_file import GgufFile
from fuseboard.load.tensors import BLOCK_SIZES, PLAIN, dequantise, stored_bytes

from .conftest import tiny_metadata, tiny_tensors, write_gguf

ROWS, COLUMNS = 5, 512


def random_blocks(kind: str) -> np.ndarray:
    """Random stored rows; float scales are overwritten where they lie so that values stay finite."""
    generator = np.random.default_rng(len(kind))
    if kind in PLAIN:
        values = generator.standard_normal((ROWS, COLUMNS), np.float32)
        return gguf.quants.quantize(values, gguf.GGMLQuantizationType[kind.upper()]).view(np.uint8)
    return generator.integers(0, 60, (ROWS, stored_bytes(kind, (COLUMNS,))), np.uint8)


@pytest.mark.parametrize("kind", BLOCK_SIZES)
def test_values_agree_with_gguf(kind: str, tmp_path: Path) -> None:
    number = gguf.GGMLQuantizationType[kind.upper()]
    blocks = random_blocks(kind)
    file = GgufFile(write_gguf(tmp_path / "x.gguf", {"pad": (np.ones(3, np.float32), None), "x": (blocks, number)}))
    assert file.tensors["x"].kind == kind
    assert file.tensors["x"].shape == (ROWS, COLUMNS)
    values = dequantise(file.raw("x").reshape(ROWS, -1), kind)
    assert values.dtype == np.float32
    assert values.flags.c_contiguous
    expected = dequantize(blocks, number)
    assert np.isfinite(expected).all()
    np.testing.assert_array_equal(values, expected)


def test_block_sizes_are_those_of_gguf() -> None:
    for kind, size in BLOCK_SIZES.items():
        assert gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind.upper()]] == size


def test_large_tensor_is_dequantised_in_pieces(tmp_path: Path) -> None:
    values = np.random.default_rng(0).standard_normal((2100, 1024), np.float32)
    blocks = gguf.quants.quantize(values, gguf.GGMLQuantizationType.Q8_0)
    np.testing.assert_array_equal(dequantise(blocks, "q8_0"), dequantize(blocks, gguf.GGMLQuantizationType.Q8_0))


def test_metadata_of_every_type(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_uint8("u8", 200)
    writer.add_int8("i8", -3)
    writer.add_uint16("u16", 60000)
    writer.add_int16("i16", -30000)
    writer.add_int32("i32", -7)
    writer.add_uint64("u64", 1 << 60)
    writer.add_int64("i64", -(1 << 60))
    writer.add_float64("f64", 0.1)
    writer.add_bool("yes", True)
    writer.add_array("words", ["one", "zwei", "三", ""])
    writer.add_array("numbers", [1, 2, 3])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    metadata = GgufFile(tmp_path / "m.gguf").metadata
    assert {k: metadata[k] for k in ("u8", "i8", "u16", "i16", "i32", "u64", "i64", "f64", "yes")} == {
        "u8": 200, "i8": -3, "u16": 60000, "i16": -30000, "i32": -7, "u64": 1 << 60, "i64": -(1 << 60), "f64": 0.1,
        "yes": True,
    }  # fmt: skip
    assert list(metadata["words"]) == ["one", "zwei", "三", ""]
    assert len(metadata["words"]) == 4
    assert metadata["words"].pick([2, 0]) == {0: "one", 2: "三"}
    assert metadata["numbers"].tolist() == [1, 2, 3]


def test_version_2_is_read_like_version_3(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "x.gguf", tiny_tensors(), tiny_metadata())
    three = GgufFile(path)
    data = bytearray(path.read_bytes())
    data[4:8] = struct.pack("<I", 2)
    (tmp_path / "two.gguf").write_bytes(data)
    assert GgufFile(tmp_path / "two.gguf").tensors == three.tensors


def header(*entries: bytes, tensors: int = 0, values: int = 0, version: int = 3, magic: bytes = b"GGUF") -> bytes:
    return magic + struct.pack("<IQQ", version, tensors, values) + b"".join(entries)


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def entry(name: str = "x", shape: tuple[int, ...] = (32,), kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


BROKEN = {
    "empty": (b"", "is empty"),
    "lfs": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "Git LFS pointer"),
    "magic": (header(magic=b"GGML"), "instead of b'GGUF'"),
    "version 1": (header(version=1), "version 1"),
    "version 9": (header(version=9), "version 9"),
    "big-endian": (header(version=3 << 24), "big-endian"),
    "short": (b"GGUF\x03", "ends inside its header"),
    "many tensors": (header(tensors=1 << 40), "claims 1099511627776 tensors"),
    "many values": (header(values=1 << 40), "claims 1099511627776 metadata values"),
    "long string": (header(struct.pack("<Q", 1 << 62), bytes(32), values=1), "ends inside its header"),
    "long array": (header(text("k"), struct.pack("<IIQ", 9, 4, 1 << 61), values=1), "ends inside its header"),
    "long string array": (header(text("k"), struct.pack("<IIQ", 9, 8, 1 << 50), values=1), "ends inside its header"),
    "value type": (header(text("k"), struct.pack("<I", 77), bytes(8), values=1), "unknown type 77"),
    "array type": (header(text("k"), struct.pack("<IIQ", 9, 9, 1), values=1), "array of unknown type 9"),
    "dimensions": (header(entry(shape=(1,) * 5), tensors=1), "5 dimensions"),
    "tensor type": (header(entry(kind=99), tensors=1), "type 99, which is unknown"),
    "part of a block": (header(entry(shape=(33,), kind=2), tensors=1), "not whole blocks of 32"),
    "misaligned": (header(entry(offset=4), bytes(256), tensors=1), "offset 4, which is not a multiple of 32"),
    "offset": (header(entry(offset=1 << 40), bytes(256), tensors=1), "truncated"),
    "overflow": (header(entry(offset=(1 << 64) - 32), bytes(256), tensors=1), "truncated"),
    "huge shape": (header(entry(shape=(1 << 40, 1 << 40)), bytes(256), tensors=1), "truncated"),
    "same name": (header(entry(), entry(), bytes(256), tensors=2), "two tensors called 'x'"),
    "alignment": (
        header(text("general.alignment"), struct.pack("<II", 4, 3), values=1),
        "alignment 3",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN)
def test_broken_file_is_refused_by_name(case: str, tmp_path: Path) -> None:
    data, message = BROKEN[case]
    (tmp_path / "broken.gguf").write_bytes(data)
    with pytest.raises(LoadError, match=r"broken\.gguf") as error:
        GgufFile(tmp_path / "broken.gguf")
    assert message in str(error.value)


def test_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="cannot be read"):
        GgufFile(tmp_path / "none.gguf")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "whole.gguf", tiny_tensors(), tiny_metadata())


def test_metadata_outlives_the_file(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "x.gguf", tiny_tensors(), tiny_metadata())
    file = GgufFile(path)
    os.truncate(path, 0)  # reading a mapped page past the end would end the process
    assert list(file.metadata["tokenizer.ggml.tokens"]) == tiny_metadata()["tokenizer.ggml.tokens"]
    assert len(file.metadata["tokenizer.ggml.token_type"]) == len(file.metadata["tokenizer.ggml.tokens"])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(length=st.integers(1, 80_000))
def test_truncated_file_is_refused_wherever_it_ends(length: int, whole: Path, tmp_path: Path) -> None:
    data = whole.read_bytes()
    path = tmp_path / "cut.gguf"
    path.write_bytes(data[: min(length, len(data) - 128)])
    with pytest.raises(LoadError, match=r"cut\.gguf"):
        GgufFile(path)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(position=st.integers(0, 2600), byte=st.integers(0, 255))
def test_damaged_header_fails_in_no_other_way(position: int, byte: int, whole: Path, tmp_path: Path) -> None:
    data = bytearray(whole.read_bytes())
    data[position] = byte
    path = tmp_path / "damaged.gguf"
    path.write_bytes(data)
    with contextlib.suppress(LoadError):
        file = GgufFile(path)
        assert all(tensor.offset + tensor.nbytes <= len(data) for tensor in file.tensors.values())
