"""Fuseboard beside its peers: the same token work, interleaved, one process at a time.

python -m benchmarks.peers [--quick] [--rows 'decode-*'] [--peers llama.cpp] [--text FILE] [--note TEXT]
"""

import dataclasses
import datetime
import fnmatch
import functools
import json
import re
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro
from benchmarks.peers import ours, quality, table
from benchmarks.peers.install import Home, gguf, home, install
from benchmarks.peers.peer import PEERS, Job
from benchmarks.peers.process import PeerError, run
from benchmarks.peers.table import AGAIN, OURS, Outcome, Sample
from benchmarks.peers.work import MODELS, ROWS, Row

from fuseboard.load.resolve import resolve_model
from fuseboard.measure.experiment import measuring_lock
from fuseboard.measure.machine import current, versions

RECORDS = Path(__file__).parent / "records"


@dataclass(frozen=True, kw_only=True)
class Options:
    """Compare Fuseboard with other engines on this machine."""

    rows: tuple[str, ...] = ("*",)
    """Patterns of row keys, for example 'decode-w4-*'; --list prints them."""
    peers: tuple[str, ...] = tuple(PEERS)
    """Peers to run: llama.cpp, openvino, transformers-f32, transformers-bf16."""
    repetitions: int = 5
    """Processes of every arm and row; ours runs twice as many."""
    threads: int = 2
    """Threads of every engine."""
    timeout: float = 300.0
    """Seconds after which a process is killed."""
    text: Path | None = None
    """A text file on which the formats' divergence from float32 is measured; not measured without it."""
    quality_share: float = 1.0
    """Share of the chunks of text that are scored."""
    quick: bool = False
    """Two repetitions at most, to see that everything works."""
    out: Path = RECORDS
    """Folder of the records."""
    note: str = ""
    """What a reader of the record has to know."""
    list: bool = False
    """Only print the row keys."""


@dataclass(frozen=True, kw_only=True)
class Bench:
    """What every measurement of this run shares."""

    options: Options
    at: Home
    shipped: dict[str, Path]
    unavailable: dict[str, str]

    def chosen_rows(self) -> list[Row]:
        patterns = self.options.rows
        return [row for row in ROWS if any(fnmatch.fnmatchcase(row.key, pattern) for pattern in patterns)]

    @property
    def repetitions(self) -> int:
        return min(2, self.options.repetitions) if self.options.quick else self.options.repetitions


def main() -> None:
    options = tyro.cli(Options, prog="python -m benchmarks.peers")
    if unknown := set(options.peers) - set(PEERS):
        raise SystemExit(f"There is no peer {', '.join(unknown)}; the peers are {', '.join(PEERS)}.")
    if options.list:
        print("\n".join(row.key for row in ROWS))
        return
    # A process that is told to end takes the one that it started with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    bench = prepare(options)
    with measuring_lock():
        measure(bench)


def prepare(options: Options) -> Bench:
    """Install what can be installed, and note why the rest cannot."""
    unavailable: dict[str, str] = {}
    reasons: dict[str, str] = {}
    for environment in dict.fromkeys(["llama", *(PEERS[name].environment for name in options.peers)]):
        try:
            install(environment, options.threads)
        except (PeerError, OSError) as error:
            reasons[environment] = str(error)
    for name in options.peers:
        if (reason := reasons.get(PEERS[name].environment)) is not None:
            unavailable[name] = f"not installed: {reason}"
    shipped = {model: resolve_model(entry) for model, entry in MODELS.items()}
    return Bench(options=options, at=home(), shipped=shipped, unavailable=unavailable)


def measure(bench: Bench) -> None:
    """All rows; the record is written anew after each, so that a run that is stopped loses one row at most."""
    target = record_path(bench.options.out)
    outcomes: list[Outcome] = []
    divergence: dict[str, quality.Divergence] = {}
    for row in bench.chosen_rows():
        say(f"{row.key}: {row.work.label}, {row.model}, ours {row.weights or 'all off'}, peers {row.file}")
        outcomes.append(measure_row(bench, row))
        print(table.markdown(outcomes[-1:]), flush=True)
        write(bench, target, outcomes, divergence)
    for model in bench.shipped if bench.options.text else ():
        try:
            divergence[model] = measure_quality(bench, model)
        except PeerError as error:
            say(f"No divergence of {model}: {error}")
            continue
        print(table.quality_markdown({model: divergence[model]}), flush=True)
        write(bench, target, outcomes, divergence)
    say(f"written: {target.with_suffix('.md')}")


def measure_quality(bench: Bench, model: str) -> quality.Divergence:
    options = bench.options
    assert options.text is not None
    return quality.both(bench.at, model, bench.shipped[model], options.text, options.threads, options.quality_share)


def measure_row(bench: Bench, row: Row) -> Outcome:
    """Repetitions of ours, peers, ours; every second one in the opposite order. An arm that fails runs no more."""
    outcome = Outcome(row=row, read_bytes_per_s=read_rate(bench))
    arms: dict[str, Callable[[int], Sample]] = {OURS: functools.partial(run_ours, bench, outcome)}
    for name in row.peers:
        if (job := choose(bench, row, name, outcome)) is not None:
            arms[name] = functools.partial(run_peer, bench, name, job)
    arms[AGAIN] = arms[OURS]
    for repetition in range(bench.repetitions):
        for name in list(arms)[:: 1 if repetition % 2 == 0 else -1]:
            if name in outcome.failures:
                continue
            try:
                outcome.samples.setdefault(name, []).append(arms[name](repetition))
            except (PeerError, ValueError) as error:
                outcome.failures[name] = str(error)
    return outcome


def choose(bench: Bench, row: Row, name: str, outcome: Outcome) -> Job | None:
    """The peer's job at the setting that is fastest in one trial each; None, with the reason noted, when none runs."""
    if name not in bench.options.peers:
        return None
    if name in bench.unavailable:
        outcome.failures[name] = bench.unavailable[name]
        return None
    candidates = PEERS[name].settings(row.work)
    trials: dict[Job, float] = {}
    try:
        file = gguf(bench.at, bench.shipped[row.model], row.file)
        for setting in candidates:
            job = Job(work=row.work, file=file, threads=bench.options.threads, setting=setting)
            trials[job] = run_peer(bench, name, job, 0).rate if len(candidates) > 1 else 0.0
    except (PeerError, ValueError) as error:
        outcome.failures[name] = str(error)
        return None
    best = max(trials, key=lambda job: trials[job])
    outcome.settings[name] = " ".join(best.setting)
    return best


def run_peer(bench: Bench, name: str, job: Job, repetition: int) -> Sample:
    """A process of a peer; its prompts are random, so that `repetition` changes nothing."""
    done = run(PEERS[name].command(bench.at, job), timeout_s=bench.options.timeout)
    return Sample(rate=PEERS[name].rate(done.out, job.work), peak_bytes=done.peak_bytes)


def run_ours(bench: Bench, outcome: Outcome, repetition: int) -> Sample:
    row = outcome.row
    command = ours.command(row, str(bench.shipped[row.model]), bench.options.threads, seed=repetition)
    done = run(command, timeout_s=bench.options.timeout)
    found = json.loads(done.out)
    outcome.step_bytes, outcome.host_share = found["step_bytes"], found["host_share"]
    return Sample(rate=found["rate"], peak_bytes=done.peak_bytes)


def read_rate(bench: Bench) -> float:
    """Bytes a second from memory, in a process of its own."""
    spec = json.dumps({"threads": bench.options.threads})
    found = json.loads(run([sys.executable, "-m", "benchmarks.peers.ours", spec], timeout_s=bench.options.timeout).out)
    return float(found["memory"])


def record_path(folder: Path) -> Path:
    """`<date>-<machine>` in the folder, numbered when that is taken."""
    machine = re.sub(r"[^a-z0-9]+", "-", current().processor.lower()).strip("-")
    name = f"{datetime.date.today().isoformat()}-{machine}"
    taken = len(list(folder.glob(f"{name}*.json")))
    return folder / (f"{name}-{taken + 1}.json" if taken else f"{name}.json")


def write(bench: Bench, target: Path, outcomes: Sequence[Outcome], divergence: dict[str, quality.Divergence]) -> None:
    """The record as JSON with every sample, and as Markdown."""
    target.parent.mkdir(parents=True, exist_ok=True)
    machine, options = current(), bench.options
    record = {
        "date": time.strftime("%Y-%m-%d %H:%M:%S"),
        "note": options.note,
        "machine": dataclasses.asdict(machine),
        "versions": versions(),
        "unavailable": bench.unavailable,
        "threads": options.threads,
        "rows": [dataclasses.asdict(outcome) for outcome in outcomes],
        "divergence": divergence,
    }
    target.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    read = [outcome.read_bytes_per_s / 1e9 for outcome in outcomes]
    parts = [
        f"# {machine.processor}, {record['date']}",
        f"{options.note}\n\n{options.threads} threads, {bench.repetitions} repetitions, medians with their range; "
        f"memory read at {min(read, default=0):.1f}-{max(read, default=0):.1f} GB/s.",
        table.markdown(outcomes),
        *([table.quality_markdown(divergence)] if divergence else []),
    ]
    target.with_suffix(".md").write_text("\n\n".join(part.strip() for part in parts) + "\n", encoding="utf-8")


def say(text: str) -> None:
    print(f"[peers] {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
