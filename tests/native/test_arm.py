"""The Arm kernels against the scalar ones: every format and ragged shape, cross-compiled and run under emulation."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"
COMMON = ("-std=c++17", "-O3", "-Wall", "-Wextra", "-Werror", "-ffp-contract=off", f"-I{ROOT / 'csrc'}")

pytestmark = [pytest.mark.skipif(not shutil.which(tool), reason=f"needs {tool}") for tool in (COMPILER, EMULATOR)]


def flags(source: Path) -> list[str]:
    """What the build adds for this file on an Arm machine."""
    arm = (ROOT / "CMakeLists.txt").read_text().split('MATCHES "aarch64|arm64"')[1]
    found = re.search(rf'{source.relative_to(ROOT)} PROPERTIES COMPILE_OPTIONS "([^"]+)"', arm)
    return found[1].split(";") if found else []


@pytest.fixture(scope="module")
def check(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program of tests/native/arm."""
    folder = tmp_path_factory.mktemp("arm")
    csrc = ROOT / "csrc"
    sources = [*csrc.glob("isa/*.cpp"), csrc / "attention/sizes.cpp", csrc / "region.cpp", csrc / "team.cpp"]
    objects = []
    for source in [*sources, *(ROOT / "tests/native/arm").glob("*.cpp")]:
        objects.append(folder / f"{source.parent.name}_{source.stem}.o")
        subprocess.run([COMPILER, *COMMON, *flags(source), "-c", source, "-o", objects[-1]], check=True)
    subprocess.run([COMPILER, "-static", "-pthread", *objects, "-o", folder / "check"], check=True)
    return folder / "check"


def run(check: Path, cpu: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([EMULATOR, "-cpu", cpu, check, *arguments], capture_output=True, text=True, check=False)


def test_neon_computes_what_scalar_does(check):
    done = run(check, "max", "neon")
    assert done.returncode == 0, done.stdout
    assert re.findall(r"(\w+): [1-9]\d* cases, 0 failures", done.stdout) == ["linear", "vectors", "attention"]


def test_the_set_is_chosen_by_what_the_processor_has(check):
    assert run(check, "max").stdout == "neon\n"
    assert run(check, "cortex-a76").stdout == "scalar\n"  # dot products, but no int8 matrix products
    assert "cannot run the neon kernels" in run(check, "cortex-a76", "neon").stdout
