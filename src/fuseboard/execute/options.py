"""Options of every command that makes an engine; the command line is generated from them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from fuseboard.backends.registry import DEFAULT
from fuseboard.core.errors import UserError
from fuseboard.plan.build import Limits
from fuseboard.plan.switches import parse_settings

_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}


def parse_bytes(text: str) -> int:
    """`1500000`, `512MiB` or `2GB` in bytes; UserError for anything else."""
    number = text.rstrip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ ")
    unit = text[len(number) :].strip().lower()
    try:
        size = float(number) * _UNITS[unit]
    except (ValueError, KeyError):
        raise UserError(f"{text!r} is not a size in bytes; write for example 512MiB or 2GB.") from None
    if not 0 < size < 2**62:
        raise UserError(f"A size of {text} bytes cannot be; give a positive one.")
    return int(size)


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """What an engine is made with."""

    model: Annotated[Positional[str], arg(metavar="MODEL")]
    """A path, a hub id or a name of the catalogue."""
    threads: Annotated[int | None, arg(metavar="N", help_behavior_hint="(default: all cores it may use)")] = None
    """Compute threads."""
    max_model_len: Annotated[int | None, arg(metavar="N", help_behavior_hint="(default: as needed)")] = None
    """Longest sequence in tokens."""
    max_num_seqs: Annotated[int | None, arg(metavar="N", help_behavior_hint="(default: as needed)")] = None
    """Most sequences at once."""
    kv_memory: Annotated[str | None, arg(metavar="SIZE", help_behavior_hint="(default: as needed)")] = None
    """Most memory for the KV cache, such as 512MiB."""
    load_format: Annotated[str, arg(metavar="FORMAT")] = "auto"
    """auto, or dummy: random weights for a config.json."""

    @property
    def kv_bytes(self) -> int | None:
        """`kv_memory` in bytes; UserError when it is not a size."""
        return None if self.kv_memory is None else parse_bytes(self.kv_memory)

    def limits(self) -> Limits:
        """The limits as the plan takes them."""
        return Limits(max_model_len=self.max_model_len, max_num_seqs=self.max_num_seqs, kv_memory=self.kv_bytes)


@dataclass(frozen=True, kw_only=True)
class ServingOptions(EngineOptions):
    """An engine under one set of switches."""

    preset: Annotated[str, arg(metavar="off|on")] = "on"
    """Switches to start from: none, or all that are lossless."""
    set: Annotated[tuple[str, ...], arg(metavar="NAME=VALUE")] = ()
    """A switch to change; `fuseboard plan` lists them."""
    backend: Annotated[str, arg(metavar="NAME")] = DEFAULT
    """What computes; reference is the plain truth."""
    revision: Annotated[str | None, arg(metavar="REV", help_behavior_hint="(default: main)")] = None
    """Revision of a model on the hub."""
    config: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")] = None
    """A fuseboard.toml of `tune`; options that are given win."""

    @property
    def switches(self) -> dict[str, str]:
        """`set` as a dictionary; PlanError for an unknown switch or value."""
        return parse_settings(list(self.set))


@dataclass(frozen=True, kw_only=True)
class RunOptions(ServingOptions):
    """Generate text, or chat when no prompt is given."""

    prompt: Annotated[str | None, arg(aliases=["-p"], metavar="TEXT")] = None
    """The prompt; without it an interactive chat opens."""
    max_tokens: Annotated[int, arg(metavar="N")] = 256
    """Most tokens to generate."""
    temperature: Annotated[float, arg(metavar="T")] = 0.0
    """0 takes the most probable token."""
    top_p: Annotated[float, arg(metavar="P")] = 1.0
    """Sample from the smallest set of tokens with this probability."""
    top_k: Annotated[int, arg(metavar="K")] = 0
    """Sample from the K most probable tokens; 0 is off."""
    seed: Annotated[int | None, arg(metavar="N")] = None
    """Seed of the sampling."""
    raw: bool = False
    """The prompt as it is, without the chat template."""
    json: bool = False
    """Print one JSON object with text, tokens and times instead of streaming text."""


@dataclass(frozen=True, kw_only=True)
class PlanOptions(ServingOptions):
    """Print the plan of a model before loading it: decisions, rewrites, memory, cost and limit of a decode step."""

    json: bool = False
    """Print JSON."""
    graph: bool = False
    """Also print the graph, node by node."""
    batch: Annotated[int, arg(metavar="N")] = 1
    """Sequences of the decode step whose cost is shown."""
    context: Annotated[int, arg(metavar="N")] = 512
    """Tokens of context of each of them."""
    measure: bool = False
    """Also load the model, generate a few tokens, and print the measured memory beside the planned."""


@dataclass(frozen=True, kw_only=True)
class DoctorOptions:
    """Show what this machine offers: instruction sets, cores, clock, measured ceilings, a checked product, versions."""

    threads: Annotated[int | None, arg(metavar="N")] = None
    """Threads to measure with; all usable ones when not given."""
    json: bool = False
    """Print JSON."""
