"""The rules of the house, checked on the source: import direction, sizes, device words, environment, commands."""

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "fuseboard"
SOURCES = sorted(PACKAGE.rglob("*.py"))

ORDER = ("core", "graph", "formats", "models", "load", "plan", "backends", "execute", "measure", "report", "serve")
"""A folder imports only itself and those before it; what lies beside the folders (the command line) may import all."""

MOST_LINES, MOST_FUNCTION_LINES = 400, 60

DEVICE_WORDS = {"cpu", "cuda", "npu", "avx", "avx2", "avx512", "amx", "neon", "triton", "torch_npu", "ascend", "cann"}
DEVICE_NAMES_ALLOWED = {
    "cpu_count": "the operating system's own name for the number of processors",
    "cpu_info": "the name of a field in the result files of llama-bench",
    "/proc/cpuinfo": "the operating system's own file that names the processor",
}

ENVIRONMENT = {
    "FUSEBOARD_CACHE": "where models, packed weights and measured ceilings are kept",
    "XDG_CACHE_HOME": "the desktop convention behind the default of FUSEBOARD_CACHE",
    "FUSEBOARD_DEBUG": "poison and verify more",
}

COMMANDS = ("run", "plan", "bench", "profile", "ablate", "tune", "compare", "doctor")
"""The command line, frozen: a new command is a decision, so it is written down here too."""

FORBIDDEN = re.compile(
    r"\bTODO\b|\bFIXME\b|\bXXX\b|(?<![\w.~])/(work|tmp|home|root)/\w|https?://[\w.-]*(pypi|pythonhosted)"
)
"""Unfinished business, paths of one machine, and hosts of a package registry."""


@functools.cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


def folder_of(path: Path) -> str | None:
    parts = path.relative_to(PACKAGE).parts
    return parts[0] if len(parts) > 1 else None


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def imported(path: Path) -> Iterator[tuple[int, str]]:
    """(line, module) of every import in the file, in functions and under TYPE_CHECKING too."""
    package = ["fuseboard", *path.relative_to(PACKAGE).parts[:-1]]
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield node.lineno, module
            if module == "fuseboard":
                yield from ((node.lineno, f"fuseboard.{alias.name}") for alias in node.names)


def test_every_folder_has_its_place():
    folders = {path.name for path in PACKAGE.iterdir() if path.is_dir() and any(path.rglob("*.py"))}
    assert folders <= set(ORDER)


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_imports_point_backwards(path):
    folder = folder_of(path)
    wrong = []
    for line, module in imported(path):
        parts = module.split(".")
        if folder is None or parts[0] != "fuseboard" or len(parts) < 2:
            continue
        target = parts[1]
        if target == "_native":
            allowed = folder == "backends"
        else:
            allowed = target in ORDER and ORDER.index(target) <= ORDER.index(folder)
        if not allowed:
            wrong.append(f"line {line} imports {module}")
    assert not wrong, f"{name_of(path)}: {'; '.join(wrong)}"


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_files_and_functions_stay_small(path):
    lines = len(path.read_text().splitlines())
    assert lines <= MOST_LINES, f"{name_of(path)} has {lines} lines"
    functions = [n for n in ast.walk(tree(path)) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    long = {f.name: size for f in functions if (size := (f.end_lineno or 0) - f.lineno + 1) > MOST_FUNCTION_LINES}
    assert not long, f"{name_of(path)} has functions with too many lines: {long}"


def words(path: Path) -> Iterator[tuple[int, str]]:
    """Every identifier, string and docstring of the file with its line."""
    for node in ast.walk(tree(path)):
        line = getattr(node, "lineno", 0)
        for field in ("id", "attr", "name", "arg", "module", "value", "asname"):
            text = getattr(node, field, None)
            if isinstance(text, str):
                yield line, text


@pytest.mark.parametrize("path", [p for p in SOURCES if folder_of(p) != "backends"], ids=name_of)
def test_device_words_stay_in_the_backends(path):
    found = []
    for line, text in words(path):
        for allowed in DEVICE_NAMES_ALLOWED:
            text = text.replace(allowed, "")
        used = DEVICE_WORDS & set(re.split(r"[^a-z0-9]+", text.lower()))
        if used:
            found.append(f"line {line} says {', '.join(sorted(used))}")
    assert not found, f"{name_of(path)}: {'; '.join(found)}"


def environment_names(path: Path) -> Iterator[str]:
    """What the file reads of the environment: the name, or the whole expression when it is no plain constant."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("os.environ.get", "os.getenv"):
            first = node.args[0]
            yield str(first.value) if isinstance(first, ast.Constant) else ast.unparse(node)
        elif isinstance(node, ast.Subscript) and ast.unparse(node.value) == "os.environ":
            yield str(node.slice.value) if isinstance(node.slice, ast.Constant) else ast.unparse(node)


def test_only_known_environment_variables_are_read():
    assert set(environment_names(PACKAGE / "core" / "env.py")) == set(ENVIRONMENT)


@pytest.mark.parametrize("path", [p for p in SOURCES if p != PACKAGE / "core" / "env.py"], ids=name_of)
def test_nobody_else_touches_the_environment(path):
    used = {text for _, text in words(path) if text in ("environ", "getenv", "putenv", "environb")}
    assert not used, f"{name_of(path)} uses {used}"


def test_the_native_code_reads_no_environment():
    reading = [p for p in (ROOT / "csrc").rglob("*") if p.is_file() and "getenv" in p.read_text(errors="replace")]
    assert not reading


def test_the_command_line_is_frozen():
    from fuseboard import cli

    assert tuple(cli.COMMANDS) == COMMANDS


TEXTS = sorted(
    path
    for folder in ("src", "csrc", "tests", "docs", "benchmarks", ".")
    for path in ((ROOT / folder).glob("*") if folder == "." else (ROOT / folder).rglob("*"))
    if path.suffix in (".py", ".pyi", ".h", ".cpp", ".md", ".toml", ".txt", ".cmake") and path.is_file()
)


def test_no_forbidden_words():
    found = [
        f"{name_of(path)}:{number}"
        for path in TEXTS
        if path != Path(__file__)
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if FORBIDDEN.search(line)
    ]
    assert not found
