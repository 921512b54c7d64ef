"""The help of every command fits a screen and leaves no option out."""

import dataclasses
import re
import subprocess
import sys

import pytest

import fuseboard
from fuseboard import cli
from fuseboard.backends.cpu import doctor
from fuseboard.backends.cpu.backend import CpuBackend
from fuseboard.execute.options import DoctorOptions, PlanOptions, RunOptions
from fuseboard.measure.http_options import HttpBenchOptions
from fuseboard.measure.options import AblateOptions, BenchOptions, CompareOptions, ProfileOptions
from fuseboard.measure.tune_options import TuneOptions

LINES, COLUMNS = 40, 100
SERVER = "bench --base-url URL"
OPTIONS = {
    "run": RunOptions,
    "plan": PlanOptions,
    "bench": BenchOptions,
    SERVER: HttpBenchOptions,
    "profile": ProfileOptions,
    "ablate": AblateOptions,
    "tune": TuneOptions,
    "compare": CompareOptions,
    "doctor": DoctorOptions,
}
POSITIONAL = {"model", "a", "b"}


def help_of(command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("COLUMNS", str(COLUMNS))
    with pytest.raises(SystemExit) as ended:
        cli.main([*command.split(), "--help"])
    assert ended.value.code == 0
    return capsys.readouterr().out


def flag(field: dataclasses.Field) -> str:  # type: ignore[type-arg]
    name = field.name.replace("_", "-")
    return f"--no-{name}" if field.default is True else f"--{name}"


def test_the_package_is_the_command() -> None:
    version, unknown = (
        subprocess.run([sys.executable, "-m", "fuseboard", word], capture_output=True, text=True, check=False)
        for word in ("--version", "warp")
    )
    assert (version.returncode, version.stdout.strip()) == (0, fuseboard.__version__)
    assert (unknown.returncode, unknown.stdout) == (2, "")
    assert "no command 'warp'" in unknown.stderr


def test_doctor_says_the_unit_of_every_number(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    findings = {"memory read bytes/s": 2.14e10, "free memory bytes": 2**30, doctor.PRODUCT_ERROR: 1.3912}
    monkeypatch.setattr(CpuBackend, "examine", lambda self, threads: findings)
    assert cli.main(["doctor"]) == 0
    wanted = ("memory read bytes/s 21.4 Gbytes/s", "free memory bytes 1.0 GiB")
    said = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert said == [*wanted, "product error in float32 roundings 1.39"]


def test_every_command_is_looked_at() -> None:
    assert set(OPTIONS) == {*cli.COMMANDS, SERVER}


@pytest.mark.parametrize("command", OPTIONS)
def test_help_fits_a_screen_and_lists_every_option(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = help_of(command, capsys, monkeypatch)
    lines = text.rstrip("\n").splitlines()
    assert len(lines) <= LINES
    listed = set(re.findall(r"^. (?:-\w(?: \w+)?, )?(--[a-z-]+)", text, re.MULTILINE))
    fields = dataclasses.fields(OPTIONS[command])
    server = command == SERVER
    wanted = {flag(f) for f in fields if server or f.name not in POSITIONAL}
    assert wanted <= listed, f"not listed: {sorted(wanted - listed)}"
