"""Options of every command that makes an engine; the command line is generated from them."""

from dataclasses import dataclass
from typing import Annotated

from tyro.conf import Positional, arg

from fuseboard.core.errors import UserError

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
    """A path, a hub id or a name of the catalogue (smollm2-135m, qwen2.5-coder-0.5b, gemma3-270m)."""
    threads: Annotated[int | None, arg(metavar="N")] = None
    """Compute threads; all cores that this process may use when not given."""
    max_model_len: Annotated[int | None, arg(metavar="N")] = None
    """Longest sequence in tokens."""
    max_num_seqs: Annotated[int | None, arg(metavar="N")] = None
    """Most sequences at once."""
    kv_memory: Annotated[str | None, arg(metavar="SIZE")] = None
    """Memory for the KV cache, for example 512MiB; what the limits need, at most half of what is free, by default."""
    load_format: Annotated[str, arg(metavar="auto|dummy")] = "auto"
    """auto, or dummy: random weights for any config.json, to measure a shape whose weights are not at hand."""

    @property
    def kv_bytes(self) -> int | None:
        """`kv_memory` in bytes; UserError when it is not a size."""
        return None if self.kv_memory is None else parse_bytes(self.kv_memory)
