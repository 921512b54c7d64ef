"""Designs: which arms run, which pairs of them are compared, and in which order, all from the switch catalogue."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch

import numpy as np

from fuseboard.core.errors import UserError
from fuseboard.measure.gate import answer_key
from fuseboard.measure.record import ArmRecord, ComparisonRecord, TermRecord
from fuseboard.plan.switches import BY_NAME, CATALOGUE, Switch, switch

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

PARTS = ("quick", "alone", "ladder", "without", "pairs", "orders")
SAMPLED_ORDERS = 4
"""Ladder orders of the part `orders` when it names no number (`orders:8`)."""


@dataclass(frozen=True, kw_only=True)
class Design:
    """Arms by name (their settings, as differences from all off) and the comparisons between them."""

    arms: tuple[ArmRecord, ...]
    comparisons: tuple[ComparisonRecord, ...]
    quality_arms: tuple[str, ...]


class Builder:
    """Collects arms, one for each distinct setting, and comparisons."""

    def __init__(self, fixed: Settings, baseline: Settings | None = None) -> None:
        self._fixed = fixed
        self._arms: dict[str, Settings] = {}
        self.comparisons: list[ComparisonRecord] = []
        self.add(BASELINE, baseline or {})
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

    def compare(
        self,
        name: str,
        kind: str,
        switches: Sequence[str],
        treatment: str,
        reference: str,
        *,
        claim: float | None = None,
        claim_note: str = "",
    ) -> None:
        self.comparisons.append(
            ComparisonRecord(
                name=name,
                kind=kind,
                switches=tuple(switches),
                treatment=treatment,
                reference=reference,
                claim=claim,
                claim_note=claim_note,
            )
        )

    def compare_sum(self, name: str, kind: str, switches: Sequence[str], terms: Sequence[TermRecord]) -> None:
        first = terms[0]
        self.comparisons.append(
            ComparisonRecord(
                name=name,
                kind=kind,
                switches=tuple(switches),
                treatment=first.treatment,
                reference=first.reference,
                terms=tuple(terms),
            )
        )

    def cannot(self, name: str, kind: str, reason: str) -> None:
        """The switch has no effect here, so that it has no arm."""
        self.comparisons.append(
            ComparisonRecord(
                name=name, kind=kind, switches=(name,), treatment=BASELINE, reference=BASELINE, unavailable=reason
            )
        )

    def build(self) -> Design:
        arms = tuple(ArmRecord(name=name, switches=settings) for name, settings in self._arms.items())
        return Design(arms=arms, comparisons=tuple(self.comparisons), quality_arms=_quality_arms(self._arms))


def _quality_arms(arms: Mapping[str, Settings]) -> tuple[str, ...]:
    """One arm for each distinct setting of the rows that may change an answer, the baseline first."""
    chosen: dict[tuple[tuple[str, str], ...], str] = {}
    for name, settings in arms.items():
        chosen.setdefault(answer_key(settings), name)
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


def target_settings(*, profile: Settings, on: Settings, fixed: Settings, only: Sequence[str] = ()) -> Settings:
    """What all on means, needs first: the profile's value of every row that is studied, or the studied one of those
    that were chosen."""
    studied = [name for name in BY_NAME if name not in fixed and (not only or name in only)]
    values = {name: on[name] if name in only else profile.get(name, switch(name).off) for name in topological(studied)}
    return {name: value for name, value in values.items() if value != switch(name).off}


def parse_parts(text: str) -> dict[str, int]:
    """The parts of a design joined by '+', each with its number (of `orders:8`). UserError for what cannot be."""
    parts: dict[str, int] = {}
    for part in text.split("+"):
        name, _, number = part.partition(":")
        if name not in PARTS or (number and name != "orders"):
            raise UserError(f"There is no design {part!r}; join some of {', '.join(PARTS)} with '+'.")
        if number and not (number.isdecimal() and int(number) > 1):
            raise UserError(f"orders takes a number of orders of at least 2, not {number!r}.")
        parts[name] = int(number) if number else SAMPLED_ORDERS
    if {"quick", "ladder"} <= parts.keys():
        raise UserError("The designs quick and ladder exclude each other: quick is a ladder of groups.")
    return parts


def make(
    parts: Mapping[str, int],
    *,
    profile: Settings,
    on: Settings,
    fixed: Settings,
    only: Sequence[str] = (),
    refused: Mapping[str, str] | None = None,
    seed: int = 0,
) -> Design:
    """The design whose arms are those of all `parts`.

    `profile` is the preset `on`, `on` the value each row is studied at, `fixed` holds in every arm, `only` limits the
    rows that are studied one by one, `refused` says why rows have no effect on this model.
    """
    refused = refused or {}
    builder = Builder(fixed)
    studied = [name for name in BY_NAME if name not in fixed and (not only or name in only)]
    target = target_settings(profile=profile, on=on, fixed=fixed, only=only)
    for kind in ("ladder", "alone", "without"):
        for name in studied:
            if name in refused and kind in parts and (name in target or kind == "alone"):
                builder.cannot(name, kind, refused[name])
    target = {name: value for name, value in target.items() if name not in refused}
    studied = [name for name in studied if name not in refused]
    if "quick" in parts:
        _ladder(builder, _quick_groups(list(target)), target)
    if "ladder" in parts:
        _ladder(builder, [(name, [name]) for name in target], target)
    full = builder.add(FULL, target)
    builder.compare("all on against all off", "total", tuple(target), full, BASELINE)
    if "alone" in parts:
        for name in studied:
            _alone(builder, name, on)
    if "without" in parts:
        for name in target:
            _without(builder, name, target, full)
    if "pairs" in parts:
        _pairs(builder, [name for name in only if name in studied], on)
    if "orders" in parts:
        units = [(name, [name]) for name in target] if only else _quick_groups(list(target))
        _orders(builder, units, target, parts["orders"], seed)
    return builder.build()


def _quick_groups(names: Sequence[str]) -> list[tuple[str, list[str]]]:
    def group_of(name: str) -> str:
        named = [title for title, patterns in QUICK_GROUPS if any(fnmatch(name, p) and p != "*" for p in patterns)]
        return named[0] if named else next(title for title, patterns in QUICK_GROUPS if "*" in patterns)

    groups = [(title, [n for n in names if group_of(n) == title]) for title, _ in QUICK_GROUPS]
    return [(title, members) for title, members in groups if members]


def _ladder(builder: Builder, groups: Sequence[tuple[str, Sequence[str]]], target: Settings) -> None:
    reached: Settings = {}
    below = BASELINE
    for i, (title, members) in enumerate(groups):
        reached |= {name: target[name] for name in members}
        arm = builder.add(FULL if i == len(groups) - 1 else f"+ {title}", reached)
        builder.compare(f"+ {title}", "ladder", members, arm, below)
        below = arm


def _alone(builder: Builder, name: str, on: Settings) -> None:
    needs = with_needs(switch(name))
    base = builder.add(f"needs of {name}", needs) if needs else BASELINE
    label = _label(name, on)
    arm = builder.add(label, needs | {name: on[name]})
    builder.compare(label, "alone", (name,), arm, base)


def _without(builder: Builder, name: str, target: Settings, full: str) -> None:
    group = [name, *(d for d in dependents(name) if d in target)]
    arm = builder.add(f"without {name}", {k: v for k, v in target.items() if k not in group})
    label = name if len(group) == 1 else f"{name} with {', '.join(group[1:])}"
    builder.compare(label, "without", group, full, arm)


def _pairs(builder: Builder, names: Sequence[str], on: Settings) -> None:
    """Two by two: what both bring together beyond what each brings alone, on top of what either needs."""
    pairs = [
        (a, b)
        for a, b in itertools.combinations(names, 2)
        if a not in with_needs(switch(b)) and b not in with_needs(switch(a))
    ]
    if not pairs:
        raise UserError("The design pairs needs two or more --only switches of which neither needs the other.")
    for a, b in pairs:
        needs = with_needs(switch(a)) | with_needs(switch(b))
        base = builder.add(f"needs of {a} and {b}", needs) if needs else BASELINE
        one = builder.add(f"{a} beside {b}" if needs else _label(a, on), needs | {a: on[a]})
        other = builder.add(f"{b} beside {a}" if needs else _label(b, on), needs | {b: on[b]})
        both = builder.add(f"{a} and {b}", needs | {a: on[a], b: on[b]})
        terms = (
            TermRecord(treatment=both, reference=other, weight=1.0),
            TermRecord(treatment=one, reference=base, weight=-1.0),
        )
        builder.compare_sum(f"{a} and {b}", "pair", (a, b), terms)


def _orders(
    builder: Builder, units: Sequence[tuple[str, Sequence[str]]], target: Settings, count: int, seed: int
) -> None:
    """Ladders in several orders; a unit's worth is the mean of its steps, so that all of them add up to the total."""
    members = dict(units)
    steps: dict[str, list[tuple[str, str]]] = {title: [] for title in members}
    sampled = sampled_orders(units, count, seed)
    for order in sampled:
        reached: Settings = {}
        below = BASELINE
        for i, title in enumerate(order):
            reached |= {name: target[name] for name in members[title]}
            name = FULL if i == len(order) - 1 else " + ".join(sorted(order[: i + 1], key=list(members).index))
            arm = builder.add(name, reached)
            steps[title].append((arm, below))
            below = arm
    for title, pairs in steps.items():
        terms = [TermRecord(treatment=t, reference=r, weight=1 / len(pairs)) for t, r in pairs]
        builder.compare_sum(title, "shapley", members[title], terms)


def sampled_orders(units: Sequence[tuple[str, Sequence[str]]], count: int, seed: int) -> list[list[str]]:
    """Up to `count` different orders of the units in which none comes before what it needs, the given one first."""
    owner = {name: title for title, members in units for name in members}
    before = {
        title: {owner[n] for name in members for n in with_needs(switch(name)) if n in owner} - {title}
        for title, members in units
    }
    rng = np.random.default_rng(seed)
    found = [[title for title, _ in units]]
    for _ in range(50 * count):
        order: list[str] = []
        while len(order) < len(units):
            ready = [title for title in before if title not in order and before[title] <= set(order)]
            order.append(ready[rng.integers(len(ready))])
        if len(found) < count and order not in found:
            found.append(order)
    return found


def _label(name: str, on: Settings) -> str:
    return name if on[name] == "on" else f"{name}={on[name]}"


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
