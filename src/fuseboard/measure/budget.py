"""How many blocks a time budget buys, and what so many blocks can see."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from fuseboard.core.errors import UserError
from fuseboard.measure import design as designs
from fuseboard.measure import stats
from fuseboard.measure.analysis import observations
from fuseboard.measure.metrics import BY_KEY, PRIMARY
from fuseboard.measure.record import DesignRecord, LaunchRecord

LEAST_BLOCKS, MOST_BLOCKS = 2, 20
UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Blocks to run, and a sentence on why."""

    blocks: int
    sentence: str


def seconds(text: str) -> float:
    """`20m`, `90s` or `2h` in seconds; UserError for anything else."""
    number = text.rstrip("abcdefghijklmnopqrstuvwxyz ")
    try:
        found = float(number) * UNITS[text[len(number) :].strip()]
    except (ValueError, KeyError):
        found = 0.0
    if not 0 < found < math.inf:
        raise UserError(f"--budget takes a time such as 20m, 90s or 2h, not {text!r}.")
    return found


def launch_s(launched: LaunchRecord) -> float:
    """Seconds that a launch took, from the start of its process to its last cell's end."""
    cells = sum(c.end_ns - c.start_ns for c in launched.cells)
    return (sum(launched.startup_ns.values()) + sum(launched.warmup_ns) + cells) / 1e9


def plan(design: DesignRecord, launches: Sequence[LaunchRecord], budget_s: float, *, profiled: bool = False) -> Budget:
    """As many blocks as fit in the time, at least two; each arm is taken to need the median of its launches so far,
    and each quality run and each run with timed operators as long as a launch of its arm."""
    by_arm = {arm.name: [launch_s(r) for r in launches if r.arm == arm.name] for arm in design.arms}
    each = {name: statistics.median(times) if times else 0.0 for name, times in by_arm.items()}
    (order,) = designs.orders(list(each), 1, 0)
    block_s = sum(each[name] for name in order)
    passes = {arm.plan_digest: arm.name for arm in design.arms} if profiled else {}
    rest_s = sum(each[name] for name in (*design.quality_arms, *passes.values()))
    fits = int((budget_s - rest_s) / block_s) if block_s else LEAST_BLOCKS
    blocks = min(MOST_BLOCKS, max(LEAST_BLOCKS, fits))
    short = "" if fits >= LEAST_BLOCKS else ", less than the two that an experiment needs at least"
    sentence = (
        f"A block takes {block_s:.0f} s, answers and profiles {rest_s:.0f} s: a budget of {budget_s:.0f} s buys "
        f"{max(fits, 0)} blocks{short}; {blocks} will run{_promise(design, launches, blocks)}."
    )
    return Budget(blocks=blocks, sentence=sentence)


def _promise(design: DesignRecord, launches: Sequence[LaunchRecord], blocks: int) -> str:
    """What so many blocks will find with 80 % power, by the noise of the launches so far."""
    cells = dict.fromkeys(c.name for r in launches for c in r.cells)
    found = []
    for cell in cells:
        model = stats.fit(observations(launches, cell, BY_KEY[PRIMARY]))
        if model is None:
            continue
        dof = (blocks - 1) * (len(model.arms) - 1)
        comparisons = sum(c.kind not in ("aa", "total") and not c.unavailable for c in design.comparisons)
        gain = stats.smallest_detectable(model.sigma * (2 / blocks) ** 0.5, dof, comparisons)
        found.append(f"{100 * math.expm1(gain):.1f} % in {cell!r}")
    return f" and find gains from {', '.join(found)} on with 80 % power" if found else ""
