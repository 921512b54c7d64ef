"""Reads result files of other tools, and folders of them, as runs that can be compared."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fuseboard.core.errors import UserError
from fuseboard.measure.import_layouts import MARKS, READERS, MissingKeyError, Row, aiperf_metrics
from fuseboard.measure.runs import Arm, RunSet


def load(path: Path) -> RunSet:
    """The runs in a result file, or in a folder of them: a sweep, or files of repeated runs.

    UserError names what is missing when the layout is none of `import_layouts`.
    """
    if path.is_dir():
        return _load_folder(path)
    rows = _read(path)
    tool = _tool(path, rows)
    try:
        arms = tuple(READERS[tool](path.stem, rows))
    except MissingKeyError as missing:
        raise UserError(f"{path} looks like a result of {tool} but has no {str(missing)!r}.") from None
    except (TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{path} looks like a result of {tool} but cannot be read as one ({error}).") from None
    if not any(arm.runs for arm in arms):
        raise UserError(f"{path} is a result of {tool} in which no request succeeded.")
    return RunSet(label=str(path), tool=tool, arms=arms)


def _load_folder(path: Path) -> RunSet:
    """A sweep's combinations are arms, and the runs in a combination repetitions; so are the files of a flat folder."""
    combinations = sorted({file.parent for file in path.glob("*/run=*.json")})
    groups = {folder.name: sorted(folder.glob("run=*.json")) for folder in combinations}
    groups = groups or {path.name: sorted(f for p in ("*.json", "*.jsonl") for f in path.glob(p))}
    if not any(groups.values()):
        raise UserError(f"The folder {path} holds neither records.jsonl nor a result file of a known tool.")
    merged = []
    tools: dict[str, None] = {}
    for name, files in groups.items():
        sets = [load(file) for file in files]
        tools |= {found.tool: None for found in sets}
        if len(tools) > 1:
            raise UserError(f"The folder {path} mixes results of {' and '.join(tools)}; give one of them.")
        merged += _merge(name, [arm for found in sets for arm in found.arms])
    return RunSet(label=str(path), tool=next(iter(tools)), arms=tuple(merged))


def _merge(name: str, arms: Sequence[Arm]) -> list[Arm]:
    """Arms of the same configuration become one; where all are the same it takes the folder's name."""
    kept: list[Arm] = []
    for arm in arms:
        same = next((i for i, k in enumerate(kept) if k.facts == arm.facts), None)
        if same is None:
            kept.append(arm)
        else:
            kept[same] = replace(kept[same], runs=(*kept[same].runs, *arm.runs))
    return [replace(kept[0], name=name)] if len(kept) == 1 else kept


def _read(path: Path) -> list[Row]:
    try:
        text = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read ({error}).") from None
    try:
        data = json.loads(text)
    except ValueError:
        data = _lines(path, text)
    rows = data if isinstance(data, list) else [data]
    if not rows or not all(isinstance(row, dict) for row in rows):
        raise UserError(f"{path} holds no JSON object; give a result file of a benchmark.")
    return rows


def _lines(path: Path, text: str) -> list[Any]:
    try:
        return [json.loads(line) for line in text.splitlines() if line.strip()]
    except ValueError as error:
        raise UserError(f"{path} is neither JSON nor JSON lines ({error}).") from None


def _tool(path: Path, rows: Sequence[Row]) -> str:
    first = aiperf_metrics(rows[0])
    for tool, marks in MARKS:
        if all(mark in first for mark in marks):
            return tool
    known = "; ".join(f"{tool} has {' and '.join(marks)}" for tool, marks in MARKS)
    raise UserError(f"{path} is no result file that is known here: {known}.")
