"""`fuseboard.toml`: a configuration that `tune` writes and the commands that make an engine read with `--config`.

    model = "smollm2-135m"
    max_num_seqs = 8

    [switches]
    "kv.dtype" = "f16"

Its values stand in for the defaults of the options of the same names; an option that is given wins.
"""

import dataclasses
import json
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from fuseboard.core.errors import UserError
from fuseboard.execute.options import ServingOptions
from fuseboard.load.atomic import write_atomic
from fuseboard.plan.switches import parse_settings

KEYS: Mapping[str, tuple[type, ...]] = {
    "model": (str,),
    "backend": (str,),
    "preset": (str,),
    "threads": (int,),
    "max_model_len": (int,),
    "max_num_seqs": (int,),
    "kv_memory": (int, str),
    "load_format": (str,),
    "revision": (str,),
}
SWITCHES = "switches"
Options = TypeVar("Options", bound=ServingOptions)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConfigFile:
    """What a file says: options by name, and switches."""

    options: Mapping[str, Any]
    switches: Mapping[str, str]

    def under(self, parsed: Options) -> Options:
        """The parsed options with the file's switches under those that were given by name."""
        switches = dict(self.switches) | parse_settings(list(parsed.set))
        return dataclasses.replace(parsed, set=tuple(f"{name}={value}" for name, value in switches.items()))


def read_config(path: Path) -> ConfigFile:
    """The file's options and switches; UserError for a key, type, switch or value that is not known."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"The configuration {path} cannot be read ({error}).") from None
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"The configuration {path} is not TOML ({error}).") from None
    switches = data.pop(SWITCHES, {})
    if unknown := [key for key in data if key not in KEYS]:
        raise UserError(
            f"The configuration {path} has no use for {', '.join(map(repr, unknown))}; it may hold {', '.join(KEYS)} "
            f"and the table [{SWITCHES}]."
        )
    for key, value in data.items():
        if not isinstance(value, KEYS[key]) or isinstance(value, bool):
            wanted = " or ".join({"str": "a text", "int": "a whole number"}[kind.__name__] for kind in KEYS[key])
            raise UserError(f"{key} in the configuration {path} must be {wanted}, not {value!r}.")
    return ConfigFile(options=_as_options(data), switches=_switches(path, switches))


def _as_options(data: Mapping[str, Any]) -> dict[str, Any]:
    return {key: str(value) if key == "kv_memory" else value for key, value in data.items()}


def _switches(path: Path, table: Any) -> dict[str, str]:
    if not isinstance(table, dict) or not all(isinstance(value, str | int) for value in table.values()):
        raise UserError(f'[{SWITCHES}] in the configuration {path} takes "NAME" = "VALUE", with dots within quotes.')
    try:
        return parse_settings([f"{name}={value}" for name, value in table.items()])
    except UserError as error:
        raise UserError(f"The configuration {path} cannot be used: {error}") from None


def write_config(path: Path, options: Mapping[str, Any], switches: Mapping[str, str], comments: Sequence[str]) -> None:
    """Write a file that `read_config` reads; options that are None are left out."""
    lines = [f"# {comment}" for comment in comments]
    lines += ["", *(f"{key} = {json.dumps(value)}" for key, value in options.items() if value is not None)]
    lines += ["", f"[{SWITCHES}]", *(f"{json.dumps(name)} = {json.dumps(value)}" for name, value in switches.items())]
    write_atomic(path, ("\n".join(lines) + "\n").encode())
    read_config(path)
