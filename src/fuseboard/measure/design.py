"""Designs: which arms run, which pairs of them are compared, and in which order, all from the switch catalogue."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch

import numpy as np

from fuseboard.core.errors import UserError
from fuseboard.measure.record import ArmRecord, ComparisonRecord
from fuseboard.plan.switches import CATALOGUE, Switch, all_off, switch

Settings = dict[str, str]
BASELINE = "all off"
SAME = "A/A"
FULL = "all on"
REPEAT_BASELINE_EVERY = 8

QUICK_GROUPS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("weights", ("weights", "weight_*")),
    ("fusion", ("fuse.*",)),
    ("attention and KV cache", ("attention", "kv.*")),
    ("graph and memory plan", ("*",)),
    ("batching", ("batching", "prefill", "pd", "overlap")),
    ("prefix cache", ("prefix_cache", "speculation")),
)
"""Ladder steps of the quick design. A row belongs to the first group that names it, else to the one with `*`."""

PARTS = ("quick", "alone", "ladder", "without")


@dataclass(frozen=True, kw_only=True)
class Design:
    """Arms by name (their settings, as differences from all off) and the comparisons between them."""

    arms: tuple[ArmRecord, ...]
    comparisons: tuple[ComparisonRecord, ...]
    quality_arms: tuple[str, ...]


class _Builder:
    """Collects arms, one for each distinct setting, and comparisons."""

    def __init__(self, fixed: Settings) -> None:
        self._fixed = fixed
        self._arms: dict[str, Settings] = {}
        self.comparisons: list[ComparisonRecord] = []
        self.add(BASELINE, {})
        self._arms[SAME] = self._arms[BASELINE]
        self.compare("A/A", "aa", (), SAME, BASELINE)

    def add(self, name: str, settings: Settings) -> str:
        """The name of the arm that has these settings; a new one called `name` when there is none yet."""
        settings = {k: v for k, v in (settings | self._fixed).items() if v != switch(k).off}
        for known, existing in self._arms.items():
            if existing == settings:
                return known
        assert name not in self._arms, name
        self._arms[name] = settings
        return name

    def compare(self, name: str, kind: str, switches: Sequence[str], treatment: str, reference: str) -> None:
        self.comparisons.append(
            ComparisonRecord(name=name, kind=kind, switches=tuple(switches), treatment=treatment, reference=reference)
        )

    def build(self) -> Design:
        arms = tuple(ArmRecord(name=name, switches=settings) for name, settings in self._arms.items())
        return Design(arms=arms, comparisons=tuple(self.comparisons), quality_arms=_quality_arms(self._arms))


def _quality_arms(arms: Mapping[str, Settings]) -> tuple[str, ...]:
    """One arm for each distinct setting of the rows that may change an answer, the baseline first."""
    chosen: dict[tuple[tuple[str, str], ...], str] = {}
    for name, settings in arms.items():
        key = tuple(sorted((k, v) for k, v in settings.items() if switch(k).kind != "exact"))
        chosen.setdefault(key, name)
    return tuple(chosen.values())


def on_values(profile: Mapping[str, str]) -> Settings:
    """The value that each row is studied at: the profile's, or the first one that is not off."""
    values = {row.name: profile.get(row.name, row.off) for row in CATALOGUE}
    return {name: value if value != switch(name).off else switch(name).values[1] for name, value in values.items()}


def with_needs(row: Switch) -> Settings:
    """What must be on before `row` can be, all the way down."""
    needed: Settings = {}
    for name, value in row.needs:
        needed |= with_needs(switch(name)) | {name: value}
    return needed


def dependents(name: str) -> tuple[str, ...]:
    """Rows that need `name`, directly or not."""
    return tuple(row.name for row in CATALOGUE if name in with_needs(row))


def topological(names: Iterable[str]) -> list[str]:
    """The names in the catalogue's order, needs first."""
    wanted, ordered = set(names), []

    def visit(name: str) -> None:
        for needed, _ in switch(name).needs:
            visit(needed)
        if name in wanted and name not in ordered:
            ordered.append(name)

    for row in CATALOGUE:
        visit(row.name)
    return ordered


def make(parts: Sequence[str], *, profile: Settings, on: Settings, fixed: Settings, only: Sequence[str] = ()) -> Design:
    """The design whose arms are those of all `parts`.

    `profile` is the preset `on`, `on` the value each row is studied at, `fixed` holds in every arm, `only` limits the
    rows that are studied one by one. UserError for an unknown part.
    """
    if unknown := set(parts) - set(PARTS):
        raise UserError(f"There is no design {sorted(unknown)[0]!r}; join some of {', '.join(PARTS)} with '+'.")
    if {"quick", "ladder"} <= set(parts):
        raise UserError("The designs quick and ladder exclude each other: quick is a ladder of groups.")
    builder = _Builder(fixed)
    studied = [row.name for row in CATALOGUE if row.name not in fixed and (not only or row.name in only)]
    target = {name: on[name] if name in only else profile.get(name, switch(name).off) for name in topological(studied)}
    target = {name: value for name, value in target.items() if value != switch(name).off}
    ladder = list(target)
    if "quick" in parts:
        _ladder(builder, _quick_groups(ladder), target)
    if "ladder" in parts:
        _ladder(builder, [(name, [name]) for name in ladder], target)
    full = builder.add(FULL, target)
    builder.compare("all on against all off", "total", ladder, full, BASELINE)
    if "alone" in parts:
        for name in studied:
            _alone(builder, name, on)
    if "without" in parts:
        for name in ladder:
            _without(builder, name, target, full)
    return builder.build()


def _quick_groups(names: Sequence[str]) -> list[tuple[str, list[str]]]:
    def group_of(name: str) -> str:
        named = [title for title, patterns in QUICK_GROUPS if any(fnmatch(name, p) and p != "*" for p in patterns)]
        return named[0] if named else next(title for title, patterns in QUICK_GROUPS if "*" in patterns)

    groups = [(title, [n for n in names if group_of(n) == title]) for title, _ in QUICK_GROUPS]
    return [(title, members) for title, members in groups if members]


def _ladder(builder: _Builder, groups: Sequence[tuple[str, Sequence[str]]], target: Settings) -> None:
    reached: Settings = {}
    below = BASELINE
    for i, (title, members) in enumerate(groups):
        reached |= {name: target[name] for name in members}
        arm = builder.add(FULL if i == len(groups) - 1 else f"+ {title}", reached)
        builder.compare(f"+ {title}", "ladder", members, arm, below)
        below = arm


def _alone(builder: _Builder, name: str, on: Settings) -> None:
    needs = with_needs(switch(name))
    base = builder.add(f"needs of {name}", needs) if needs else BASELINE
    label = name if on[name] == "on" else f"{name}={on[name]}"
    arm = builder.add(label, needs | {name: on[name]})
    builder.compare(label, "alone", (name,), arm, base)


def _without(builder: _Builder, name: str, target: Settings, full: str) -> None:
    group = [name, *(d for d in dependents(name) if d in target)]
    arm = builder.add(f"without {name}", {k: v for k, v in target.items() if k not in group})
    label = name if len(group) == 1 else f"{name} with {', '.join(group[1:])}"
    builder.compare(label, "without", group, full, arm)


def orders(names: Sequence[str], blocks: int, seed: int) -> list[list[str]]:
    """The order of the arms in every block: rows of a Williams square, each followed by its reverse.

    Over two blocks every arm has the same mean place; over as many blocks as arms (twice as many when their number is
    odd) it has had every place and followed every other arm equally often. Blocks of more than 8 launches repeat the
    first arm after every 8th.
    """
    shuffled = [names[i] for i in np.random.default_rng(seed).permutation(len(names))]
    rows = _williams(len(names))
    distinct = len(rows) // 2 if len(rows) % 2 == 0 else len(rows)  # an even square holds the reverse of every row
    step = max(1, distinct // max(1, (blocks + 1) // 2))
    chosen = [rows[(b // 2 * step) % distinct][:: 1 if b % 2 == 0 else -1] for b in range(blocks)]
    return [_with_repeats([shuffled[i] for i in row], names[0]) for row in chosen]


def _williams(n: int) -> list[list[int]]:
    zigzag = [(i + 1) // 2 if i % 2 else (n - i // 2) % n for i in range(n)]
    return [[(place + shift) % n for place in zigzag] for shift in range(n)]


def _with_repeats(order: Sequence[str], baseline: str) -> list[str]:
    if len(order) <= REPEAT_BASELINE_EVERY:
        return list(order)
    repeated: list[str] = []
    for i, name in enumerate(order):
        if i and i % REPEAT_BASELINE_EVERY == 0:
            repeated.append(baseline)
        repeated.append(name)
    return repeated


def full_settings(settings: Mapping[str, str]) -> Settings:
    """Every row's value in an arm."""
    return all_off() | dict(settings)
