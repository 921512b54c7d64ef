"""The ladders of two published reports as data: what each step was, what it is said to have gained, and our switches
for it. Only the gains that a report states are claims; a step without one is measured all the same.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from fuseboard.core.errors import UserError
from fuseboard.measure import workload
from fuseboard.measure.design import BASELINE, FULL, Builder, Design, Settings

SHORTEST = 16
"""Tokens below which a scaled length does not go."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """One step of a ladder. `claim` is the report's speed ratio."""

    title: str
    settings: Settings
    claim: float | None = None
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Study:
    """A report's experiment. `baseline` is where its ladder begins; `choices` are other values tried at its top.

    `kv_seqs` sequences of `context` tokens as the baseline stores them give the fixed size of the KV cache.
    """

    name: str
    title: str
    baseline: Settings
    steps: tuple[Step, ...]
    total: Step
    choices: tuple[Step, ...] = ()
    kv_seqs: int | None = None
    context: int | None = None

    @property
    def full(self) -> Settings:
        """The settings at the top of the ladder."""
        reached = dict(self.baseline)
        for step in self.steps:
            reached |= step.settings
        return reached


REPORT_A = Study(
    name="report-a",
    title="A 10B-class decoder through a graph compiler; 2000 tokens in, 1500 out, end to end",
    baseline={"weights": "bf16", "batching": "continuous"},
    steps=(
        Step(
            title="norm, QKV and rope in one operator",
            settings={"fuse.qkv": "on", "fuse.norm_qkv_rope": "on"},
            claim=1.6,
        ),
        Step(
            title="paged and pooled cache, blockwise attention",
            settings={"kv.layout": "paged", "kv.pool": "on", "attention": "blockwise"},
            claim=1.25,
        ),
        Step(
            title="INT8 weights, attention inputs in 16 bits",
            settings={"weights": "w8a8;*.q.weight=bf16;*.k.weight=bf16;*.v.weight=bf16"},
            claim=1.15,
            note="the report keeps Q and K in 16 bits; here V too, so that the three stay one operator",
        ),
        Step(
            title="static graph, memory reuse, folding, streams",
            settings={
                "graph": "captured",
                "memory_reuse": "on",
                "fold_constants": "on",
                "streams": "2",
                "buckets": "list",
            },
            claim=1.22,
        ),
    ),
    total=Step(title="total", settings={}, claim=2.8, note="105 s to 37 s end to end, 4 to 8 requests at once"),
    kv_seqs=4,
    context=8192,
)

REPORT_B = Study(
    name="report-b",
    title="A 27B-class model, decode; 512 tokens in, 512 out, batch 1 to 32, TPOT and throughput",
    baseline={"weights": "bf16", "batching": "static"},
    steps=(
        Step(title="INT8 weights", settings={"weights": "w8a8"}),
        Step(title="INT4 weights", settings={"weights": "w4a8"}),
        Step(title="INT8 cache, one scale a token", settings={"kv.dtype": "int8_token"}),
        Step(
            title="graph mode and fusion",
            settings={
                "fuse.qkv": "on",
                "fuse.residual": "on",
                "graph": "captured",
                "buckets": "list",
                "fold_constants": "on",
                "memory_reuse": "on",
            },
            claim=11.8 / 9.9,
            note="TPOT 11.8 to 9.9 ms",
        ),
        Step(
            title="paged cache in blocks of 128",
            settings={"kv.layout": "paged", "kv.pool": "on", "kv.block_size": "128", "attention": "blockwise"},
        ),
        Step(title="continuous batching", settings={"batching": "continuous"}),
        Step(title="prefill and decode apart", settings={"pd": "separate"}),
    ),
    total=Step(
        title="total",
        settings={},
        claim=22.3 / 9.2,
        note="TPOT 22.3 to 9.2 ms; throughput 3.6 times, 3265 tokens/s at batch 32; P99 of TPOT below 14 ms",
    ),
    choices=(
        Step(title="blocks of 64 against 128", settings={"kv.block_size": "64"}),
        Step(title="blocks of 256 against 128", settings={"kv.block_size": "256"}),
        Step(title="INT8 cache: a scale a head against a token", settings={"kv.dtype": "int8_head"}),
        Step(title="INT8 cache: a scale a token and head against a token", settings={"kv.dtype": "int8_token_head"}),
    ),
)

STUDIES: Mapping[str, Study] = {study.name: study for study in (REPORT_A, REPORT_B)}
BATCHES = (1, 8, 16, 32)
OFFERED = 12
"""Requests of report A's second cell: more than its cache holds at any step of the ladder."""


def make(study: Study, *, fixed: Settings, refused: Mapping[str, str]) -> Design:
    """The study's arms and comparisons; switches without effect on this model are left out."""
    kept = [dataclasses.replace(s, settings=_without(s.settings, refused, fixed)) for s in study.steps]
    builder = Builder(fixed, study.baseline)
    reached, below = dict(study.baseline), BASELINE
    steps = [step for step in kept if step.settings]
    for i, step in enumerate(steps):
        reached |= step.settings
        arm = builder.add(FULL if i == len(steps) - 1 else f"+ {step.title}", reached)
        builder.compare(
            f"+ {step.title}", "ladder", tuple(step.settings), arm, below, claim=step.claim, claim_note=step.note
        )
        below = arm
    changed = tuple(dict.fromkeys(name for step in steps for name in step.settings))
    total = study.total
    builder.compare(
        "all on against all off", "total", changed, FULL, BASELINE, claim=total.claim, claim_note=total.note
    )
    for choice in study.choices:
        if settings := _without(choice.settings, refused, fixed):
            arm = builder.add(choice.title, reached | settings)
            builder.compare(choice.title, "choice", tuple(settings), arm, FULL)
    return builder.build()


def _without(settings: Settings, *left_out: Mapping[str, str]) -> Settings:
    return {k: v for k, v in settings.items() if not any(k in names for names in left_out)}


def make_workload(study: Study, prompts: workload.Prompts, *, scale: float, seed: int) -> workload.Workload:
    """The study's cells with all lengths times `scale`. UserError for a scale above 1 or below 1/50."""
    if not 0.02 <= scale <= 1:
        raise UserError(f"--scale must be from 0.02 to 1, not {scale:g}.")
    cells = _cells_a(prompts, scale) if study is REPORT_A else _cells_b(prompts, scale)
    warmup = workload.warmup_rounds(prompts, cells[:1], rounds=5)
    name = study.name if scale == 1 else f"{study.name}, lengths times {scale:g}"
    return workload.Workload(name=name, cells=cells, warmup=warmup, warmup_s=10.0, seed=seed)


def _cells_a(prompts: workload.Prompts, scale: float) -> tuple[workload.Cell, ...]:
    lengths = [(scaled(2000, scale), scaled(1500, scale))]
    one = workload.mixed_cell(prompts, name="one request", lengths=lengths, concurrency=1)
    many = workload.mixed_cell(prompts, name="a full cache", lengths=lengths * OFFERED, concurrency=OFFERED)
    return one, many


def _cells_b(prompts: workload.Prompts, scale: float) -> tuple[workload.Cell, ...]:
    lengths = [(scaled(512, scale), scaled(512, scale))]
    return tuple(workload.mixed_cell(prompts, name=f"batch {n}", lengths=lengths * n, concurrency=n) for n in BATCHES)


def scaled(length: int, scale: float) -> int:
    """A length in tokens times the scale."""
    return max(SHORTEST, round(length * scale))
