"""Workloads: which token ids are sent, how many tokens are wanted back, and when.

Requests are token ids, so that every arm gets identical work. Prompts are windows of a real text, moved until the
window's text tokenises back to exactly the wanted number of tokens.
"""

import dataclasses
import functools
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any, Protocol

import numpy as np

from fuseboard.core.errors import UserError
from fuseboard.measure.record import decode as decode_record

CHARS_PER_TOKEN = 8
"""More characters than a window of tokens ever needs."""
MOST_TRIES = 3000


class TextCodec(Protocol):
    """The part of a tokenizer that prompts need; `encode` adds what the model expects before a text (BOS)."""

    def encode(self, text: str) -> list[int]: ...

    def decode(self, ids: Sequence[int]) -> str: ...


@dataclass(frozen=True, kw_only=True)
class Request:
    """Token ids in, `n_out` tokens wanted. `arrival_s` is the time of an open loop after the cell's start."""

    token_ids: tuple[int, ...]
    n_out: int
    arrival_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class Cell:
    """Requests that run together. `concurrency` in flight at most (closed loop); None: as they arrive (open loop)."""

    name: str
    requests: tuple[Request, ...]
    concurrency: int | None


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Cells, run in order with a flushed cache before each, and the requests of the warm-up rounds.

    Warm-up stops after `warmup_s` seconds even when rounds are left.
    """

    name: str
    cells: tuple[Cell, ...]
    warmup: tuple[Cell, ...]
    warmup_s: float
    seed: int

    @functools.cached_property
    def digest(self) -> str:
        """SHA-256 of everything that is sent."""
        return hashlib.sha256(json.dumps(dataclasses.asdict(self), sort_keys=True).encode()).hexdigest()

    @property
    def max_len(self) -> int:
        """Tokens of the longest request, in and out."""
        return max(len(r.token_ids) + r.n_out for cell in self.cells for r in cell.requests)

    @property
    def max_concurrency(self) -> int:
        """Requests in flight at most; an open loop is bounded by its number of requests."""
        return max(cell.concurrency or len(cell.requests) for cell in self.cells)

    @property
    def tokens(self) -> tuple[int, int]:
        """Input and output tokens of one run of the cells."""
        requests = [r for cell in self.cells for r in cell.requests]
        return sum(len(r.token_ids) for r in requests), sum(r.n_out for r in requests)

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def from_json(data: dict[str, Any]) -> Workload:
    """Inverse of `Workload.to_json`, from parsed JSON."""
    return decode_record(Workload, data)


def corpus() -> str:
    """The public domain text that prompts are cut from."""
    return resources.files("fuseboard.measure").joinpath("data/plays.txt").read_text(encoding="utf-8")


class Prompts:
    """Hands out prompts of exact lengths, each from another place of the text."""

    def __init__(self, codec: TextCodec, *, seed: int) -> None:
        self._codec = codec
        self._random = np.random.default_rng(seed)
        self._seen: set[tuple[int, ...]] = set()
        self._text = corpus()
        self._lines = np.array([i + 1 for i, c in enumerate(self._text) if c == "\n"][:-1])

    def take(self, length: int, prefix: Sequence[int] = (), *, extendable: bool = False) -> tuple[int, ...]:
        """A prompt of exactly `length` tokens that nobody got before, starting with `prefix`.

        An `extendable` one ends with a word at the end of a line, so that it may be a prefix. UserError when the text
        holds no such prompt.
        """
        if length <= len(prefix):
            raise UserError(f"A prompt of {length} tokens cannot hold a prefix of {len(prefix)} tokens of its own.")
        for start in self._random.permutation(self._lines)[:MOST_TRIES]:
            prompt = self._prompt_at(int(start), length, tuple(prefix), extendable)
            if prompt is not None and prompt not in self._seen:
                self._seen.add(prompt)
                return prompt
        raise UserError(f"The text for prompts holds no new prompt of {length} tokens; ask for shorter or fewer ones.")

    def _prompt_at(self, start: int, length: int, prefix: tuple[int, ...], extendable: bool) -> tuple[int, ...] | None:
        """The prompt that goes on with the line at `start`; None when its text tokenises to anything else."""
        wanted = length - len(prefix)
        text = self._text[start : start + CHARS_PER_TOKEN * (wanted + 2)]
        if len(text) < wanted:
            return None
        # After a word and a line break no tokenizer sees what came before; the word itself is left out again.
        ids = self._codec.encode("a\n" + text)[self._lead + 1 :] if prefix else self._codec.encode(text)
        ids = ids[:wanted]
        own = self._codec.decode(ids).removeprefix("\n" if prefix else "")
        if extendable and not (own[-1:].isalpha() and text[len(own) : len(own) + 1] == "\n"):
            return None
        prompt = (*prefix, *ids)
        exact = len(prompt) == length and tuple(self._codec.encode(self._codec.decode(prompt))) == prompt
        return prompt if exact else None

    @functools.cached_property
    def _lead(self) -> int:
        """How many tokens the tokenizer puts before every text."""
        return len(self._codec.encode(""))


def grid_cell(
    prompts: Prompts, *, input_len: int, output_len: int, concurrency: int | None, count: int, shared_prefix: int = 0
) -> Cell:
    """`count` requests of one shape; the first `shared_prefix` tokens of all of them are the same."""
    lengths = [(input_len, output_len)] * count
    name = f"{input_len} in, {output_len} out, {concurrency or count} at a time"
    return mixed_cell(prompts, name=name, lengths=lengths, concurrency=concurrency, shared_prefix=shared_prefix)


def mixed_cell(
    prompts: Prompts,
    *,
    name: str,
    lengths: Sequence[tuple[int, int]],
    concurrency: int | None,
    shared_prefix: int = 0,
) -> Cell:
    """Requests of the given (input, output) lengths, optionally with a common prefix of `shared_prefix` tokens."""
    prefix = prompts.take(shared_prefix, extendable=True) if shared_prefix else ()
    requests = tuple(Request(token_ids=prompts.take(n_in, prefix), n_out=n_out) for n_in, n_out in lengths)
    return Cell(name=name, requests=requests, concurrency=concurrency)


def warmup_rounds(prompts: Prompts, cells: Sequence[Cell], *, rounds: int, n_out: int = 3) -> tuple[Cell, ...]:
    """`rounds` times the cells with other prompts of the same lengths and short outputs."""
    lengths = {cell.name: [(len(r.token_ids), min(n_out, r.n_out)) for r in cell.requests] for cell in cells}
    return tuple(
        mixed_cell(prompts, name=f"warm-up {k + 1}", lengths=lengths[cell.name], concurrency=cell.concurrency)
        for k in range(rounds)
        for cell in cells
    )


def quick(prompts: Prompts, seed: int) -> Workload:
    """Four requests at once, 136 to 384 tokens in (128 of them shared) and 32 out; little warm-up.

    The long prompt comes second, so that a step of 512 tokens has to split it.
    """
    lengths = [(136, 32), (384, 32), (144, 32), (152, 32)]
    cell = mixed_cell(prompts, name="4 at a time", lengths=lengths, concurrency=4, shared_prefix=128)
    short = mixed_cell(prompts, name="warm-up", lengths=[(64, 3), (64, 3)], concurrency=2)
    return Workload(name="quick", cells=(cell,), warmup=(short,), warmup_s=0.5, seed=seed)


def full(prompts: Prompts, seed: int) -> Workload:
    """One stream, and eight mixed streams with a long prompt and a shared prefix, so that every switch has work."""
    one = grid_cell(prompts, input_len=256, output_len=48, concurrency=1, count=2)
    inputs = (1024, 288, 384, 320, 288, 448, 320, 288, 384, 320)
    outputs = (32, 48, 24, 40, 32, 24, 48, 32, 24, 32)
    lengths = list(zip(inputs, outputs, strict=True))
    mixed = mixed_cell(prompts, name="8 mixed streams", lengths=lengths, concurrency=8, shared_prefix=256)
    cells = (dataclasses.replace(one, name="one stream"), mixed)
    return Workload(name="full", cells=cells, warmup=warmup_rounds(prompts, cells, rounds=5), warmup_s=15.0, seed=seed)
