"""Writes docs/architecture.md: a line a file, taken from the first line of the file itself."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
STAGES = (
    ("core", "what every stage shares"),
    ("graph", "what is computed: representation, operations, rewriting"),
    ("formats", "how weights and KV are stored"),
    ("models", "model families as data, and the one decoder that builds the graph"),
    ("load", "from a name to a checked model"),
    ("plan", "from a model, a device and switches to a frozen plan"),
    ("backends", "how plan nodes are computed"),
    ("execute", "requests in, tokens out"),
    ("measure", "controlled experiments and their records"),
    ("report", "from records to tables, plots and pages"),
)
OPENING = """# Architecture

    load -> plan -> execute -> measure -> report

Folders of `src/fuseboard` are stages; imports point only backwards along the list below (a test enforces it). A token's
road: `load` checks a model and maps its weights; `models/decoder.py` builds the graph of one step; `plan/build.py`
rewrites it as the switches say and lays out memory; a backend lowers the plan's nodes; `execute/engine.py` schedules
requests into steps and samples; `measure` runs engines as arms of an experiment and writes records; `report` reads the
records and nothing else.

This file is written by `python docs/make_architecture.py` from the first line of every file.
"""


def first_line(path: Path) -> str:
    """The opening sentence of a Python module or of a C++ file's leading comment."""
    text = path.read_text()
    if path.suffix == ".py":
        return (ast.get_docstring(ast.parse(text)) or "").split("\n")[0]
    comment = re.match(r"(?:// ?.*\n)+", text)
    words = " ".join(line.removeprefix("//").strip() for line in comment.group(0).splitlines()) if comment else ""
    return re.split(r"(?<=[.:;])\s", words)[0].rstrip(":;")


def section(title: str, folder: Path) -> list[str]:
    files = sorted(p for p in folder.rglob("*") if p.suffix in {".py", ".h", ".cpp"})
    rows = [(p.relative_to(folder), first_line(p)) for p in files]
    return ["", f"## {title}", "", *(f"- `{name}`: {line}" for name, line in rows if line)]


def architecture() -> str:
    """The whole page."""
    source = ROOT / "src" / "fuseboard"
    lines = [OPENING.rstrip()]
    for stage, purpose in STAGES:
        lines += section(f"{stage}: {purpose}", source / stage)
    lines += ["", "## command line", "", f"- `cli.py`: {first_line(source / 'cli.py')}"]
    lines += section("csrc: the native kernels, program and thread team", ROOT / "csrc")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    (ROOT / "docs" / "architecture.md").write_text(architecture())
