"""Does the instrument notice what it should, and nothing else? `python -m fuseboard.measure.selfcheck`.

On a real engine: identical arms are rarely told apart, a planted slow-down is found, a switch that does nothing is not
engaged, wrong answers fail the gate, unequal work is refused. Writes every number to selfcheck.json and a note beside.
A run that was stopped goes on from its records.
"""

import dataclasses
import json
import math
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import arg

from fuseboard.load.atomic import write_atomic
from fuseboard.measure import design as designs
from fuseboard.measure import machine, quality, record, setup, stats, workload
from fuseboard.measure.analysis import NOT_ENGAGED, UNEQUAL, WRONG, Analysis, analyse
from fuseboard.measure.experiment import Place, measuring_lock, unanswered, unmeasured
from fuseboard.measure.launch import LaunchSpec, launch
from fuseboard.measure.options import LAUNCH_S
from fuseboard.measure.record import ArmRecord, ComparisonRecord, DesignRecord, Line
from fuseboard.measure.subject import EngineArgs, Subject, load_subject

AS_IT_IS, SLOW, IDLE, SWAPPED, SHORT = designs.BASELINE, "waits", "does nothing", "swaps tokens", "a token short"
FAULTY, IDLE_SWITCH = "fuse.swiglu", "pd"
"""The switch under which answers are made wrong, and one that is said to be on and is not."""
MAX_KL = 1e-3
"""The baseline has the arms' own settings, so that only rounding may come between their answers."""
CELL = "self-check"


@dataclass(frozen=True, kw_only=True)
class SelfcheckOptions:
    """Check the instrument on a real engine: what it must notice, and what it must not."""

    model: Annotated[str, arg(metavar="MODEL")] = "smollm2-135m"
    """A path, a hub id or a name of the catalogue."""
    load_format: Annotated[str, arg(metavar="auto|dummy")] = "auto"
    """auto, or dummy: random weights for any config.json."""
    threads: Annotated[int | None, arg(metavar="N")] = None
    """Compute threads; all cores that this process may use when not given."""
    out: Annotated[Path, arg(metavar="FOLDER")] = Path("out/selfcheck")
    """Folder of the records, selfcheck.json and selfcheck.md; a stopped run goes on from them."""
    quick: bool = False
    """A few short runs, to see that it works rather than how well."""
    seed: Annotated[int, arg(metavar="N")] = 0
    """Seed of the prompts and orders."""
    resume: Annotated[bool, arg(help_behavior_hint="")] = True
    """Measure anew what the records already hold."""


@dataclass(frozen=True, kw_only=True)
class Size:
    """Runs of identical arms, how many may be told apart, blocks of them, the fewest and the most blocks of the plants,
    the share of a step that a planted wait adds, and (input, output) tokens of the requests."""

    runs: int
    allowed: int
    run_blocks: int
    plant_blocks: int
    most_blocks: int
    slower_by: float
    requests: tuple[tuple[int, int], ...]


FULL = Size(runs=20, allowed=3, run_blocks=5, plant_blocks=10, most_blocks=40, slower_by=0.1, requests=((128, 32),) * 4)
QUICK = Size(runs=3, allowed=1, run_blocks=3, plant_blocks=3, most_blocks=3, slower_by=0.5, requests=((64, 8),) * 2)


@dataclass(frozen=True, kw_only=True)
class Check:
    """One thing the instrument must do, what it did, and the numbers."""

    name: str
    expected: str
    found: str
    passed: bool
    numbers: dict[str, Any] = field(default_factory=dict)


class SelfCheck:
    """The runs of one self-check on one engine."""

    def __init__(self, options: SelfcheckOptions, size: Size) -> None:
        self._options, self._size = options, size
        bare = EngineArgs(model=options.model, switches={}, threads=options.threads, load_format=options.load_format)
        self._subject = load_subject(bare)
        prompts = setup.prompts_for(self._subject, options.seed)
        cell = workload.mixed_cell(prompts, name=CELL, lengths=size.requests, concurrency=len(size.requests))
        warmup = workload.warmup_rounds(prompts, [cell], rounds=2)
        self._work = workload.Workload(name=CELL, cells=(cell,), warmup=warmup, warmup_s=2.0, seed=options.seed)
        self._held = {k: v for k, v in self._subject.profile.items() if k not in (FAULTY, IDLE_SWITCH)}
        self._engine = setup.fitted(replace(bare, preset=self._held), self._work, self._subject)
        self._code = machine.code_digest()
        self._made = 0
        self._places: dict[str, int] = {}

    @property
    def subject(self) -> Subject:
        return self._subject

    @property
    def resumed(self) -> int:
        """Launches that were found in the records instead of being made."""
        return sum(self._places.values()) - self._made

    def identical_arms(self) -> Check:
        """Runs of an A/A experiment, and how many of them told the arms apart."""
        size, gains = self._size, []
        for i in range(size.runs):
            arms = {AS_IT_IS: self._held, designs.SAME: self._held}
            compared = ComparisonRecord(name="A/A", kind="aa", switches=(), treatment=designs.SAME, reference=AS_IT_IS)
            found = self._experiment(f"identical-{i + 1:02}", arms, [compared], size.run_blocks, seed=i)
            gains.append(_numbers(found, "A/A"))
            _say(f"identical arms, run {i + 1} of {size.runs}: {gains[-1]}")
        apart = sum(g["p"] < stats.ALPHA for g in gains)
        return Check(
            name="identical arms",
            expected=f"told apart in at most {size.allowed} of {size.runs} runs",
            found=f"told apart in {apart}",
            passed=apart <= size.allowed,
            numbers={"runs": gains},
        )

    def planted_faults(self) -> list[Check]:
        """One experiment with every fault as an arm, in as many blocks as this machine's noise asks for.

        Blocks are added until a slow-down of the planted size is one that the experiment would find. Only the
        interval's width decides that, never where it lies.
        """
        arms = {
            AS_IT_IS: self._held,
            designs.SAME: self._held,
            SLOW: self._held,
            IDLE: self._held,
            SWAPPED: self._held | {FAULTY: "on"},
            SHORT: self._held,
        }
        plants = {SLOW: f"wait:{self._size.slower_by}", SWAPPED: "swap", SHORT: "short"}
        switches = {IDLE: (IDLE_SWITCH,), SWAPPED: (FAULTY,)}
        compared = [
            ComparisonRecord(
                name=name,
                kind="aa" if name == designs.SAME else "alone",
                switches=switches.get(name, ()),
                treatment=name,
                reference=AS_IT_IS,
            )
            for name in list(arms)[1:]
        ]
        size = self._size
        for blocks in range(size.plant_blocks, size.most_blocks + 1, size.plant_blocks):
            found = self._experiment("plants", arms, compared, blocks, plants=plants, seed=99)
            slow = _numbers(found, SLOW)
            if slow.get("detectable", 0.0) <= math.log1p(size.slower_by):
                break
            _say(f"after {blocks} blocks of planted faults: {slow}")
        verdicts = {f.comparison.name: (f.verdict(CELL), f.reason) for f in found.findings}
        checks = [
            Check(
                name=f"every step takes {100 * size.slower_by:.0f} % longer",
                expected=f"slower, {1 / (1 + size.slower_by):.3f} within the interval or near it",
                found=f"{verdicts[SLOW][0]}, {slow.get('ratio', float('nan')):.3f}",
                passed=verdicts[SLOW][0] == stats.SLOWER,
                numbers=slow | {"blocks": found.design.blocks},
            )
        ]
        for name, wanted in ((IDLE, NOT_ENGAGED), (SWAPPED, WRONG), (SHORT, UNEQUAL)):
            verdict, reason = verdicts[name]
            numbers = next((q.values for q in found.quality if q.arm == name), {})
            checks.append(
                Check(
                    name=name, expected=wanted, found=f"{verdict}: {reason}", passed=verdict == wanted, numbers=numbers
                )
            )
        return checks

    def _experiment(
        self,
        name: str,
        settings: Mapping[str, Mapping[str, str]],
        compared: Sequence[ComparisonRecord],
        blocks: int,
        *,
        plants: Mapping[str, str] | None = None,
        seed: int = 0,
    ) -> Analysis:
        plants = plants or {}
        arms = tuple(ArmRecord(name=arm, switches=dict(values)) for arm, values in settings.items())
        answered = [arm for arm in arms if plants.get(arm.name) == "swap"]
        design = self._design(arms, compared, blocks, seed, quality_arms=tuple(a.name for a in (arms[0], *answered)))
        path = self._options.out / f"{name}.jsonl"
        known = self._known(path, design)
        if not any(isinstance(line, DesignRecord) and line.blocks >= blocks for line in known):
            record.append(path, design)
        order = enumerate(designs.orders(list(settings), max(blocks, self._size.most_blocks), seed)[:blocks])
        places = [Place(block=b, position=i, arm=arm) for b, names in order for i, arm in enumerate(names)]
        todo = unmeasured(design, places, known)
        self._places[name] = len(places)
        self._made += len(todo)
        for place in todo:
            spec = self._spec(place, settings[place.arm], plants.get(place.arm, ""))
            record.append(path, launch(spec, timeout_s=LAUNCH_S))
        if unsure := unanswered(design, known):
            for line in quality.compare(self._engine, arms[0], unsure, self._code, plants):
                if line is not None:
                    record.append(path, line)
        return analyse(record.read(path))

    def _known(self, path: Path, design: DesignRecord) -> list[Line]:
        """What the file holds of this experiment. One of another version, machine or size is removed, and that said."""
        known = record.read(path)
        first = next((line for line in known if isinstance(line, DesignRecord)), None)
        if self._options.resume and first is not None and _same(first, design):
            return known
        if path.exists():
            why = "another version, machine or size" if self._options.resume else "an earlier run"
            _say(f"{path} is of {why} and is measured anew.")
            path.unlink()
        return []

    def _spec(self, place: Place, settings: Mapping[str, str], plant: str) -> LaunchSpec:
        return LaunchSpec(
            arm=place.arm,
            block=place.block,
            position=place.position,
            engine=replace(self._engine, preset=dict(settings)),
            workload=self._work,
            code_digest=self._code,
            plant=plant,
        )

    def _design(
        self,
        arms: tuple[ArmRecord, ...],
        compared: Sequence[ComparisonRecord],
        blocks: int,
        seed: int,
        quality_arms: tuple[str, ...],
    ) -> DesignRecord:
        return DesignRecord(
            model=self._options.model,
            design="self-check",
            blocks=blocks,
            seed=seed,
            arms=setup.planned(arms, self._subject, self._engine),
            comparisons=tuple(compared),
            quality_arms=quality_arms,
            workload=setup.describe(self._work),
            workload_digest=self._work.digest,
            code_digest=self._code,
            machine=machine.current(self._subject.caps),
            created_unix=time.time(),
            max_kl=MAX_KL,
        )


def _same(a: DesignRecord, b: DesignRecord) -> bool:
    """Whether launches of one design may stand for those of the other."""
    alike = replace(a, machine=b.machine, created_unix=b.created_unix, blocks=b.blocks)
    return a.machine.kind == b.machine.kind and alike == b


def _numbers(found: Analysis, name: str) -> dict[str, float]:
    gain = next(f for f in found.findings if f.comparison.name == name).gain(CELL)
    if gain is None:
        return {"p": 0.0}
    e = gain.estimate
    return {
        "gain": e.gain,
        "ratio": e.ratio,
        "low": e.low,
        "high": e.high,
        "p": e.p,
        "dof": e.dof,
        "detectable": gain.detectable,
    }


def _say(text: str) -> None:
    print(text, file=sys.stderr)


def run(options: SelfcheckOptions, size: Size | None = None) -> list[Check]:
    """All checks, with their record written."""
    size = size or (QUICK if options.quick else FULL)
    started = time.time()
    with measuring_lock():
        check = SelfCheck(options, size)
        checks = [*check.planted_faults(), check.identical_arms()]
    data = {
        "model": options.model,
        "size": dataclasses.asdict(size),
        "machine": dataclasses.asdict(machine.current(check.subject.caps)),
        "versions": machine.versions(),
        "code_digest": machine.code_digest(),
        "started_unix": started,
        "seconds": time.time() - started,
        "launches_resumed": check.resumed,
        "passed": all(c.passed for c in checks),
        "checks": [dataclasses.asdict(c) for c in checks],
    }
    write_atomic(options.out / "selfcheck.json", (json.dumps(data, indent=1) + "\n").encode())
    write_atomic(options.out / "selfcheck.md", note(data, checks).encode())
    return checks


def note(data: Mapping[str, Any], checks: Sequence[Check]) -> str:
    """The result as Markdown."""
    rows = [f"| {c.name} | {c.expected} | {c.found} | {'yes' if c.passed else 'NO'} |" for c in checks]
    place = f"{data['model']} on {data['machine']['processor']}, {data['machine']['cores']} cores"
    resumed = f" after {data['launches_resumed']} launches of a stopped run" if data["launches_resumed"] else ""
    took = f"{data['seconds'] / 60:.0f} min{resumed}"
    return "\n".join([
        "# Self-check of the laboratory", "",
        f"{place}, {took}. Every launch is a fresh process; faults are planted in the engine.", "",
        "| planted | the instrument must say | it said | passed |", "| --- | --- | --- | --- |", *rows, "",
    ])  # fmt: skip


def main() -> None:
    """Entry of the command: prints the table; the exit code is 1 when a check failed."""
    import tyro

    checks = run(tyro.cli(SelfcheckOptions, prog="selfcheck", config=(tyro.conf.FlagCreatePairsOff,)))
    for c in checks:
        print(f"{'passed' if c.passed else 'FAILED'}  {c.name}: {c.found} (must be: {c.expected})")
    sys.exit(0 if all(c.passed for c in checks) else 1)


if __name__ == "__main__":
    main()
