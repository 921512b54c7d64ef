"""How matrix products are cut into units of work: measured for one model on one machine, and kept on disk.

A cut changes no result. Steps of few tokens (decoding) and of many (prefill) are measured apart, the candidates in turn
on the real weights; the nodes of all layers that differ only in the layer's number share one choice.
"""

import hashlib
import json
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from fuseboard.backends.cpu.ceilings import machine_name
from fuseboard.core.env import cache_dir
from fuseboard.formats.packed import LAYOUT_VERSION
from fuseboard.load.atomic import write_atomic
from fuseboard.plan.plan import ExecutionPlan

FEW_TOKENS = 8
"""Most tokens of a step that is cut like a decode step."""
MEASURED_TOKENS = {"few": 1, "many": 128}
SECONDS = 0.9
"""To measure each of the two kinds of step."""
ROUNDS = 8
GAIN = 0.97
"""A candidate is taken instead of an earlier one when it needs less than this share of its time."""

Tiles = tuple[int, int]
"""(units of work for each thread at least, rows of a tile at most)"""
CANDIDATES: Mapping[str, tuple[Tiles, ...]] = {
    "few": ((8, 64), (64, 64), (16, 64), (4, 64)),
    "many": ((8, 64), (64, 64), (8, 128), (8, 32)),
}
Tiling = Callable[[str], Tiles | None]
"""The cut of the instruction with this label; None is the fixed default."""
Probe = Callable[[int, Tiling], Callable[[], Mapping[str, int]]]
"""probe(tokens, tiling) prepares a step; each call of the result runs it and gives nanoseconds by label."""


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """The chosen cuts by pattern of labels; empty where a step takes too long to try several."""

    few: Mapping[str, Tiles]
    many: Mapping[str, Tiles]

    def of(self, tokens: int) -> Tiling:
        chosen = self.few if tokens <= FEW_TOKENS else self.many
        return lambda label: chosen.get(_pattern(label))

    def describe(self) -> str:
        """The choices of the plan's decision."""

        def texts(chosen: Mapping[str, Tiles]) -> str:
            return "; ".join(f"{name} {units}x{rows}" for name, (units, rows) in chosen.items()) or "defaults"

        return f"few tokens: {texts(self.few)}. many tokens: {texts(self.many)}"


def tuning_for(plan: ExecutionPlan, probe: Probe) -> tuple[Tuning, str]:
    """The cuts for a plan, from disk or measured now in about two seconds at most, and where they come from."""
    path = tuning_path(plan)
    stored = _read(path)
    if stored is not None:
        return stored, "measured before on this machine"
    start = time.monotonic()
    most = min(plan.schedule.max_step_tokens, plan.schedule.max_model_len)
    found = Tuning(**{kind: _measure(kind, min(n, most), probe) for kind, n in MEASURED_TOKENS.items()})
    write_atomic(path, json.dumps(asdict(found)).encode())
    return found, f"measured now in {time.monotonic() - start:.1f} s"


def _measure(kind: str, tokens: int, probe: Probe) -> dict[str, Tiles]:
    tunable: set[str] = set()

    def always(tiles: Tiles) -> Tiling:
        def tiling(label: str) -> Tiles:
            tunable.add(_pattern(label))
            return tiles

        return tiling

    candidates = CANDIDATES[kind]
    start = time.monotonic()
    runs = [probe(tokens, always(tiles)) for tiles in candidates]
    runs[0]()  # brings the weights into memory
    warm = time.monotonic()
    runs[0]()
    if (time.monotonic() - warm) * len(candidates) > SECONDS:
        return {}
    best: list[dict[str, int]] = [{} for _ in candidates]
    for _ in range(ROUNDS):
        for times, run in zip(best, runs, strict=True):
            for name, ns in _by_pattern(run()).items():
                times[name] = min(ns, times.get(name, ns))
        if time.monotonic() - start > SECONDS:
            break
    return {name: candidates[_choose([times[name] for times in best])] for name in sorted(tunable)}


def _choose(times: list[int]) -> int:
    chosen = 0
    for index, ns in enumerate(times):
        if ns < GAIN * times[chosen]:
            chosen = index
    return chosen


def _by_pattern(times: Mapping[str, int]) -> dict[str, int]:
    found: dict[str, int] = {}
    for label, ns in times.items():
        found[_pattern(label)] = found.get(_pattern(label), 0) + ns
    return found


def _pattern(label: str) -> str:
    return re.sub(r"\d+", "*", label)


def tuning_path(plan: ExecutionPlan) -> Path:
    """What the choice depends on: machine and threads, the weights, and the graph with their formats."""
    caps = plan.caps
    parts = [LAYOUT_VERSION, machine_name(), caps.isa, caps.threads, plan.model_digest, plan.graph.dump()]
    return cache_dir() / "tuning" / f"{hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:40]}.json"


def _read(path: Path) -> Tuning | None:
    """None too for a file that another version wrote or somebody damaged: it is measured again."""
    try:
        stored = json.loads(path.read_text())
        kinds = {kind: {name: (int(u), int(r)) for name, (u, r) in stored[kind].items()} for kind in MEASURED_TOKENS}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    legal = all(u >= 1 and 1 <= r <= 256 for chosen in kinds.values() for u, r in chosen.values())
    return Tuning(**kinds) if legal else None
