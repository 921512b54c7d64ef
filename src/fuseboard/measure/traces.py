"""Workloads from logs of real traffic: lengths, arrival times, and shared prefixes where the log has them.

Formats, told apart by what is in the file: Azure LLM trace CSV, BurstGPT CSV, Mooncake JSONL (`hash_ids` name blocks
of 512 tokens that requests share), ShareGPT JSON, OpenAI messages JSONL, and any CSV with the columns `input_len`,
`output_len` and optionally `arrival_s`.
"""

import csv
import datetime
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fuseboard.core.errors import UserError
from fuseboard.measure.workload import Cell, Prompts, Request, Workload, warmup_rounds

MOONCAKE_BLOCK = 512
CHARS_PER_TOKEN = 4
"""A log of texts is sized by its characters; only lengths are taken from it, never its words."""
DEFAULT_OUTPUT = 128
WARMUP_S = 15.0
WARMUPS = 5


@dataclass(frozen=True, kw_only=True)
class Row:
    """A logged request. `blocks` are names of its leading prompt blocks of `MOONCAKE_BLOCK` tokens."""

    input_len: int
    output_len: int
    arrival_s: float = 0.0
    blocks: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Trace:
    """The usable rows of a log, by arrival. `notes` say what was clipped or left out."""

    name: str
    rows: tuple[Row, ...]
    notes: tuple[str, ...]


def load(path: Path, *, max_len: int) -> Trace:
    """Read a log; rows longer than `max_len` tokens in and out are clipped. UserError when it is not understood."""
    if not path.is_file():
        raise UserError(f"There is no workload {str(path)!r}; give auto, quick, full or a trace file.")
    try:
        rows = sorted(_read(path), key=lambda row: row.arrival_s)
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise UserError(f"The trace {path} is not in a known format ({error}).") from None
    usable = [row for row in rows if row.input_len > 0 and row.output_len > 0]
    if not usable:
        raise UserError(f"The trace {path} holds no request with tokens in and out.")
    clipped = [clip(row, max_len) for row in usable]
    changed = sum(a != b for a, b in zip(usable, clipped, strict=True))
    notes = [f"{changed} of {len(usable)} requests of {path.name} were clipped to {max_len} tokens."] if changed else []
    if dropped := len(rows) - len(usable):
        notes.append(f"{dropped} requests of {path.name} without tokens in or out were left out.")
    return Trace(name=path.stem, rows=tuple(clipped), notes=tuple(notes))


def clip(row: Row, max_len: int) -> Row:
    """The row within `max_len` tokens: the output keeps at most half, the input what is left."""
    n_out = min(row.output_len, max(1, max_len // 2, max_len - row.input_len))
    n_in = min(row.input_len, max_len - n_out)
    return Row(input_len=n_in, output_len=n_out, arrival_s=row.arrival_s, blocks=row.blocks)


def _read(path: Path) -> Iterable[Row]:
    text = path.read_text(encoding="utf-8-sig")
    if path.suffix == ".csv":
        return _from_csv(text)
    if path.suffix == ".jsonl":
        return [_from_object(json.loads(line)) for line in text.splitlines() if line.strip()]
    if path.suffix == ".json":
        return [row for item in json.loads(text) if (row := _sharegpt(item))]
    raise ValueError("the name must end in .csv, .json or .jsonl")


def _from_csv(text: str) -> list[Row]:
    rows = list(csv.DictReader(text.splitlines()))
    columns = set(rows[0]) if rows else set()
    for needed, convert in CSV_FORMATS:
        if needed <= columns:
            return _from_zero([convert(row) for row in rows])
    raise ValueError(f"its columns are {', '.join(sorted(columns))}")


def _azure(row: Mapping[str, str]) -> Row:
    moment = datetime.datetime.fromisoformat(row["TIMESTAMP"][:26]).replace(tzinfo=datetime.UTC)
    return Row(
        input_len=int(row["ContextTokens"]), output_len=int(row["GeneratedTokens"]), arrival_s=moment.timestamp()
    )


def _burstgpt(row: Mapping[str, str]) -> Row:
    return Row(
        input_len=int(row["Request tokens"]),
        output_len=int(row["Response tokens"]),
        arrival_s=float(row["Timestamp"]),
    )


def _mapped(row: Mapping[str, str]) -> Row:
    return Row(
        input_len=int(row["input_len"]), output_len=int(row["output_len"]), arrival_s=float(row.get("arrival_s") or 0)
    )


CSV_FORMATS: tuple[tuple[set[str], Callable[[Mapping[str, str]], Row]], ...] = (
    ({"TIMESTAMP", "ContextTokens", "GeneratedTokens"}, _azure),
    ({"Timestamp", "Request tokens", "Response tokens"}, _burstgpt),
    ({"input_len", "output_len"}, _mapped),
)


def _from_zero(rows: list[Row]) -> list[Row]:
    first = min(row.arrival_s for row in rows)
    return [
        Row(input_len=r.input_len, output_len=r.output_len, arrival_s=r.arrival_s - first, blocks=r.blocks)
        for r in rows
    ]


def _from_object(item: Mapping[str, Any]) -> Row:
    if "hash_ids" in item:
        return Row(
            input_len=int(item["input_length"]),
            output_len=int(item["output_length"]),
            arrival_s=float(item["timestamp"]) / 1000,
            blocks=tuple(item["hash_ids"]),
        )
    if "messages" in item:
        wanted = item.get("max_completion_tokens") or item.get("max_tokens") or DEFAULT_OUTPUT
        texts = [str(message.get("content") or "") for message in item["messages"]]
        return Row(input_len=_tokens("\n".join(texts)), output_len=int(wanted))
    return _mapped({key: str(value) for key, value in item.items()})


def _sharegpt(item: Mapping[str, Any]) -> Row | None:
    """The first question and its answer; None when the conversation has not both."""
    turns = item.get("conversations") or []
    if len(turns) < 2:
        return None
    return Row(input_len=_tokens(turns[0]["value"]), output_len=_tokens(turns[1]["value"]))


def _tokens(text: str) -> int:
    return -(-len(text) // CHARS_PER_TOKEN)


def workload(
    trace: Trace,
    prompts: Prompts,
    *,
    seed: int,
    count: int | None = None,
    time_scale: float = 1.0,
    closed: int | None = None,
    warmups: int = WARMUPS,
) -> Workload:
    """The first `count` requests of a trace, sent at its times scaled, or `closed` at a time regardless of them."""
    shared: dict[int, tuple[int, ...]] = {}
    requests = tuple(
        Request(
            token_ids=_prompt(row, prompts, shared),
            n_out=row.output_len,
            arrival_s=None if closed else row.arrival_s * time_scale,
        )
        for row in trace.rows[:count]
    )
    cell = Cell(name=trace.name, requests=requests, concurrency=closed)
    few = Cell(name=trace.name, requests=requests[:4], concurrency=4)
    warmup = warmup_rounds(prompts, [few], rounds=warmups)
    return Workload(name=trace.name, cells=(cell,), warmup=warmup, warmup_s=WARMUP_S, seed=seed)


def _prompt(row: Row, prompts: Prompts, shared: dict[int, tuple[int, ...]]) -> tuple[int, ...]:
    """Blocks that the log names are the same tokens wherever they appear; the rest is a text of its own."""
    prefix: tuple[int, ...] = ()
    for block in row.blocks[: (row.input_len - 1) // MOONCAKE_BLOCK]:
        if block not in shared:
            longer = prompts.take(len(prefix) + MOONCAKE_BLOCK, prefix, extendable=True)
            shared[block] = longer[len(prefix) :]
        prefix += shared[block]
    return prompts.take(row.input_len, prefix)
