"""The configuration file: its values under those of the command line, and clear words for what it may not hold."""

import json
from pathlib import Path

import pytest

from dummy_model import write_dummy
from fuseboard import cli
from fuseboard.core.errors import UserError
from fuseboard.execute.config_file import read_config, write_config


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "fuseboard.toml"
    options = {"model": write_dummy(tmp_path), "load_format": "dummy", "threads": 1, "max_model_len": 256}
    limits = {"max_num_seqs": 3, "kv_memory": 2_000_000, "revision": None}
    write_config(path, options | limits, {"kv.dtype": "int8_token_head", "kv.block_size": "32"}, ["why"])
    return str(path)


def planned(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, dict[str, object]]:
    assert cli.main(["plan", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_values_of_the_file_are_defaults(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    plan = planned(capsys, "--config", config)
    assert plan["schedule"]["max_num_seqs"] == 3
    assert plan["schedule"]["max_model_len"] == 256
    assert (plan["switches"]["kv.dtype"], plan["switches"]["kv.block_size"]) == ("int8_token_head", "32")
    assert plan["switches"]["graph"] == "captured", "the preset stays below"


def test_what_is_given_wins(config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ("--max-num-seqs", "2", "--set", "kv.dtype=f16")
    for where in ((f"--config={config}", *given), (*given, "--config", config), (write_dummy(tmp_path), *given)):
        more = () if any("--config" in word for word in where) else ("--config", config)
        plan = planned(capsys, *where, *more)
        assert plan["schedule"]["max_num_seqs"] == 2
        assert (plan["switches"]["kv.dtype"], plan["switches"]["kv.block_size"]) == ("f16", "32")


def test_run_reads_it(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", "--config", config, "-p", "hello", "--max-tokens", "3", "--raw", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("model = ", "is not TOML"),
        ('speed = "high"', "'speed'"),
        ("max_num_seqs = true", "max_num_seqs"),
        ('max_num_seqs = "many"', "a whole number"),
        ("model = 3", "a text"),
        ("[switches]\nwarp = 'on'", "There is no switch 'warp'"),
        ("[switches]\n'kv.dtype' = 'f4'", "no value 'f4'"),
        ("[switches]\nkv.dtype = 'f16'", "with dots within quotes"),
        ("switches = 3", "with dots within quotes"),
    ],
)
def test_bad_files_are_one_sentence_and_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, words: str
) -> None:
    path = tmp_path / "fuseboard.toml"
    path.write_text(text)
    assert cli.main(["plan", "--config", str(path)]) == 2
    said = capsys.readouterr().err.strip()
    assert words in said
    assert str(path) in said
    assert "\n" not in said
    with pytest.raises(UserError):
        read_config(path)


def test_a_missing_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", "--config", str(tmp_path / "none.toml")]) == 2
    assert "cannot be read" in capsys.readouterr().err
