import errno
import multiprocessing
import os

import gguf
import numpy as np
import pytest

from fuseboard.core.errors import LoadError
from fuseboard.core.weights import StoredBlocks
from fuseboard.formats import packed as packed_module
from fuseboard.formats.packed import VECTOR, DamagedError, PackedFile, load_packed, packed_path
from fuseboard.formats.panels import unpack
from fuseboard.formats.quantise import dequantise, quantise
from fuseboard.formats.stored import dequantise_blocks


class Checkpoint:
    """A small `WeightSource` in memory: one stored in blocks, one in float32, one vector."""

    digest = "d1"

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.values = {
            "a": rng.standard_normal((70, 128), np.float32),
            "b": rng.standard_normal((33, 100), np.float32),
            "norm": rng.standard_normal(100).astype(np.float32),
        }
        rows = gguf.quants.quantize(self.values["a"], gguf.GGMLQuantizationType.Q4_1)
        self.stored = StoredBlocks(kind="q4_1", rows=rows)
        self.values["a"] = dequantise_blocks(self.stored)

    def names(self):
        return tuple(self.values)

    def shape(self, name):
        return self.values[name].shape

    def storage(self, name):
        return "q4_1" if name == "a" else "f32"

    def f32(self, name):
        return self.values[name]

    def blocks(self, name):
        return self.stored if name == "a" else None


FORMATS = {"a": "w4g32a", "b": "w8", "norm": VECTOR}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FUSEBOARD_CACHE", str(tmp_path))
    return tmp_path


def test_tensors_come_back_as_stored():
    source = Checkpoint()
    packed = load_packed(source, FORMATS, verify=True)
    a, b = packed.entries["a"], packed.entries["b"]
    np.testing.assert_array_equal(dequantise(unpack(packed.tensor("a"), a.format, *a.shape)), source.values["a"])
    expected = dequantise(quantise(source.values["b"], "w8"))
    np.testing.assert_array_equal(dequantise(unpack(packed.tensor("b"), b.format, *b.shape)), expected)
    np.testing.assert_array_equal(packed.vector("norm"), source.values["norm"])
    for name in FORMATS:
        assert packed.tensor(name).ctypes.data % 64 == 0
        assert not packed.tensor(name).flags.writeable


def test_streaming_in_small_blocks_gives_the_same_bytes(monkeypatch):
    whole = load_packed(Checkpoint(), FORMATS).tensor("a").tobytes()
    by_panel = lambda n, k: ((i, min(i + 16, n)) for i in range(0, n, 16))  # noqa: E731
    monkeypatch.setattr("fuseboard.formats.convert.row_blocks", by_panel)
    other = Checkpoint()
    other.digest = "d2"
    assert load_packed(other, FORMATS, verify=True).tensor("a").tobytes() == whole


def test_written_once_and_keyed_by_contents():
    source = Checkpoint()
    first = load_packed(source, FORMATS).path
    stamp = first.stat().st_mtime_ns
    assert load_packed(source, FORMATS).path == first
    assert first.stat().st_mtime_ns == stamp
    assert load_packed(source, FORMATS | {"b": "bf16"}).path != first
    assert load_packed(source, FORMATS, clip_search=4).path != first
    source.digest = "other"
    assert load_packed(source, FORMATS).path != first


@pytest.mark.parametrize("damage", ["truncate", "header", "empty", "version"])
def test_a_damaged_file_is_found_and_written_anew(damage, monkeypatch):
    source = Checkpoint()
    path = load_packed(source, FORMATS).path
    good = path.read_bytes()
    bad = {"truncate": good[:-64], "header": good[:40] + b"\0" + good[41:], "empty": b"", "version": good}[damage]
    path.write_bytes(bad)
    with monkeypatch.context() as patch:
        patch.setattr(packed_module, "LAYOUT_VERSION", 99 if damage == "version" else packed_module.LAYOUT_VERSION)
        with pytest.raises(DamagedError):
            PackedFile.open(path)
    load_packed(source, FORMATS)
    assert path.read_bytes() == good


def test_flipped_tensor_bytes_are_found_on_request():
    source = Checkpoint()
    path = load_packed(source, FORMATS).path
    good = path.read_bytes()
    path.write_bytes(good[:-200] + bytes([good[-200] ^ 1]) + good[-199:])
    PackedFile.open(path)
    with pytest.raises(DamagedError, match="tensor norm"):
        PackedFile.open(path, verify=True)
    load_packed(source, FORMATS, verify=True)
    assert path.read_bytes() == good


def _load(source, queue):
    queue.put(load_packed(source, FORMATS, verify=True).tensor("a").tobytes())


def test_concurrent_writers_leave_one_whole_file(cache):
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    workers = [context.Process(target=_load, args=(Checkpoint(), queue)) for _ in range(4)]
    for worker in workers:
        worker.start()
    results = {queue.get(timeout=60) for _ in workers}
    for worker in workers:
        worker.join()
    assert len(results) == 1
    assert [p.suffix for p in (cache / "packed").iterdir() if p.suffix != ".lock"] == [".fuse"]


@pytest.mark.parametrize(("number", "words"), [(errno.ENOSPC, "disk .* is full"), (errno.EACCES, "cannot write")])
def test_a_failed_write_is_one_clear_error_and_leaves_nothing(cache, monkeypatch, number, words):
    def fail(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(LoadError, match=words):
        load_packed(Checkpoint(), FORMATS)
    assert not [p for p in (cache / "packed").iterdir() if p.suffix != ".lock"]


def test_values_a_format_cannot_hold_name_the_tensor():
    source = Checkpoint()
    source.values["b"][3, 4] = np.nan
    with pytest.raises(LoadError, match="tensor b cannot be stored as w8"):
        load_packed(source, FORMATS)
    assert not packed_path("d1", FORMATS).exists()
