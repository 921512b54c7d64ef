"""Fixtures for all tests: tiny models of every family, and the catalogue's real models when they are in the cache."""

import signal
from collections.abc import Callable, Iterator

import pytest

from fuseboard.core.env import cache_dir
from fuseboard.load.atomic import process_lock
from fuseboard.load.catalogue import CATALOGUE
from fuseboard.load.fetch import cached_model
from tiny import TinyModel, make_tiny

# A shell starts what it runs in the background with interrupts ignored, and programs that a test starts inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], TinyModel]:
    """`tiny(case)` makes a model of `tiny.CASES` once a session; the test is skipped without transformers."""
    made: dict[str, TinyModel] = {}

    def get(name: str) -> TinyModel:
        pytest.importorskip("torch")
        pytest.importorskip("transformers")
        if name not in made:
            made[name] = make_tiny(name, tmp_path_factory.mktemp(name))
        return made[name]

    return get


@pytest.fixture(scope="session")
def real_model() -> Callable[[str], str]:
    """`real_model(name)` is the file of a catalogue model; the test is skipped when it is not in the cache."""

    def path(name: str) -> str:
        found = cached_model(CATALOGUE[name])
        if found is None:
            pytest.skip(f"{name} is not in the model cache; `fuseboard run {name}` fetches it")
        return str(found)

    return path


@pytest.fixture
def alone() -> Iterator[None]:
    """Only one test that loads a real model runs on the machine at a time."""
    with process_lock(cache_dir() / ".real-model-tests.lock"):
        yield
