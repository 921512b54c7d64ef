"""Records of simulated experiments whose truth is known: what a switch does to the time, and which counters move."""

import dataclasses
import time

import numpy as np

from fuseboard.measure import design as designs
from fuseboard.measure import studies
from fuseboard.measure.record import (
    CellRecord,
    DesignRecord,
    LaunchRecord,
    Line,
    Machine,
    QualityRecord,
    RequestRecord,
    StepSums,
)
from fuseboard.plan.switches import BY_NAME

PROFILE = {
    row.name: row.values[1] for row in BY_NAME.values() if row.name not in ("pd", "batching", "kv.block_size")
} | {"batching": "continuous", "kv.block_size": "64"}

SPEED = {
    "weights": 2.2,
    "fuse.norm_qkv_rope": 1.06,
    "fuse.swiglu": 1.04,
    "fuse.lm_head": 1.05,
    "attention": 1.08,
    "kv.dtype": 1.03,
    "graph": 1.12,
    "batching": 1.4,
    "prefix_cache": 1.06,
    "pd": 0.93,
}
"""Speed ratio that a switch brings in the simulation; 1 when not listed."""

MACHINE = Machine(
    processor="Simulated 2-core", features="f", cores=2, memory_bytes=8 << 30, kernel="6.1", boot="boot",
    read_bytes_per_s=20e9, flops_per_s=150e9,
)  # fmt: skip

MEMORY_OFF = {"weights": 538_000_000, "constants": 0, "kv": 100_000_000, "arena": 94_000_000, "workspace": 34_000}
MEMORY_ON = {"weights": 97_000_000, "constants": 16_000, "kv": 50_000_000, "arena": 9_000_000, "workspace": 120_000}


def make_design(
    parts: list[str], blocks: int, only: tuple[str, ...] = (), refused: dict[str, str] | None = None, **fields: object
) -> DesignRecord:
    made = designs.make(
        designs.parse_parts("+".join(parts)),
        profile=PROFILE,
        on=designs.on_values(PROFILE),
        fixed={},
        only=only,
        refused=refused,
    )
    base = {
        "model": "simulated-135m",
        "design": "+".join(parts),
        "blocks": blocks,
        "seed": 0,
        "arms": made.arms,
        "comparisons": made.comparisons,
        "quality_arms": made.quality_arms,
        "workload": "4 at a time: 4 requests, 160 to 512 tokens in, 32 out, 4 at a time",
        "workload_digest": "w",
        "code_digest": "c",
        "machine": MACHINE,
        "created_unix": time.time(),
    }
    return DesignRecord(**(base | fields))  # type: ignore[arg-type]


def launch(
    arm: str,
    block: int,
    position: int,
    switches: dict[str, str],
    *,
    scale: float,
    cells: tuple[str, ...] = ("4 at a time",),
    idle: tuple[str, ...] = (),
) -> LaunchRecord:
    """A launch whose times are `scale` times those of a fixed schedule; the counters of `idle` switches stay still."""
    counters = {c: 100 for name in switches if name not in idle for c in BY_NAME[name].counters[:1]}
    on = len(switches) > 3
    planned = MEMORY_ON if on else MEMORY_OFF
    return LaunchRecord(
        arm=arm,
        block=block,
        position=position,
        switches=switches,
        model="simulated-135m",
        workload_digest="w",
        code_digest="c",
        machine=MACHINE,
        versions={"python": "3.11"},
        seed=0,
        started_unix=0.0,
        model_digest="m",
        startup_ns={"process": 300_000_000, "engine": 500_000_000},
        warmup_ns=(500_000_000,),
        cells=tuple(_cell(name, scale, counters) for name in cells),
        memory_planned=planned,
        memory_measured={k: int(v * 1.01) for k, v in planned.items()} | {"python and libraries": 70_000_000},
        peak_bytes=sum(planned.values()) + 90_000_000,
    )


def _cell(name: str, scale: float, counters: dict[str, int]) -> CellRecord:
    requests = []
    for i, n_in in enumerate((512, 160, 192, 256)):
        first = round((i + 1) * 4e8 * scale)
        gaps = np.full(31, 30e6 * scale)
        times = (first, *(first + np.cumsum(gaps)).round().astype(int).tolist())
        requests.append(
            RequestRecord(
                request_id=f"{name}/{i}",
                n_in=n_in,
                n_out_wanted=32,
                sent_ns=0,
                token_ns=times,
                token_ids=tuple(range(32)),
                finish_reason="length",
            )
        )
    return CellRecord(
        name=name,
        concurrency=4,
        start_ns=0,
        end_ns=max(r.token_ns[-1] for r in requests),
        requests=tuple(requests),
        counters=counters,
        decode=StepSums(steps=31, tokens=124, seqs=124, execute_ns=round(9e8 * scale), schedule_ns=round(4e6)),
        prefill=StepSums(steps=4, tokens=1120, seqs=8, execute_ns=round(16e8 * scale), schedule_ns=round(2e6)),
    )


def experiment(
    parts: list[str],
    *,
    blocks: int = 3,
    noise: float = 0.01,
    seed: int = 0,
    cells: tuple[str, ...] = ("4 at a time",),
    idle: tuple[str, ...] = (),
    speed: dict[str, float] | None = None,
    only: tuple[str, ...] = (),
    refused: dict[str, str] | None = None,
) -> list[Line]:
    """All the records of a run."""
    design = make_design(parts, blocks, only, refused)
    return run(design, noise=noise, seed=seed, cells=cells, idle=idle, speed=speed)


def study(made: studies.Study, *, cells: tuple[str, ...], blocks: int = 3, noise: float = 0.01) -> list[Line]:
    """All the records of a published report's ladder."""
    built = studies.make(made, fixed={}, refused={})
    design = make_design(
        ["quick"], blocks, design=made.name, source=made.name, arms=built.arms, comparisons=built.comparisons,
        quality_arms=built.quality_arms,
    )  # fmt: skip
    return run(design, noise=noise, seed=0, cells=cells)


def run(
    design: DesignRecord,
    *,
    noise: float,
    seed: int,
    cells: tuple[str, ...],
    idle: tuple[str, ...] = (),
    speed: dict[str, float] | None = None,
) -> list[Line]:
    """The design and its launches in order, then the answers."""
    rng = np.random.default_rng(seed)
    blocks = design.blocks
    settings = {arm.name: arm.switches for arm in design.arms}
    factors = SPEED if speed is None else speed
    lines: list[Line] = [design]
    for block, order in enumerate(designs.orders(list(settings), blocks, 0)):
        of_block = np.exp(rng.normal(0, 0.05))
        for position, arm in enumerate(order):
            ratio = np.prod([factors.get(name, 1.0) for name in settings[arm]])
            scale = float(of_block / ratio * np.exp(rng.normal(0, noise)))
            lines.append(launch(arm, block, position, settings[arm], scale=scale, cells=cells, idle=idle))
    lines += [quality(name, settings[name]) for name in design.quality_arms[1:]]
    return lines


def scaled(done: LaunchRecord, factor: float) -> LaunchRecord:
    """The launch with all times of its requests times the factor."""
    cells = []
    for cell in done.cells:
        requests = tuple(
            dataclasses.replace(r, token_ns=tuple(round(t * factor) for t in r.token_ns)) for r in cell.requests
        )
        cells.append(dataclasses.replace(cell, requests=requests))
    return dataclasses.replace(done, cells=tuple(cells))


def quality(arm: str, switches: dict[str, str]) -> QualityRecord:
    kl = 1e-9 + 2e-5 * ("kv.dtype" in switches) + 3e-3 * ("weights" in switches)
    values = {
        "kl_mean": kl, "kl_median": kl / 2, "kl_p99": kl * 8, "kl_max": kl * 20, "perplexity_ratio": 1 + kl,
        "same_top_1": 1 - 10 * kl, "greedy_agreement": 1 - 30 * kl, "first_divergence": 32 - 900 * kl,
        "divergence_margin": 100 * kl,
    }  # fmt: skip
    return QualityRecord(
        arm=arm, switches=switches, code_digest="c", tokens=512, values=values,
        errors={k: abs(v) * 0.1 for k, v in values.items()},
    )  # fmt: skip
