"""The one catalogue of switches. Command-line options, documentation, ablation arms and on/off tests come from it.

The first value of a row is the baseline (`off`). Classes of equivalence: `exact` gives the same tokens, `ties` may
differ only where two logits tie within rounding, `lossy` has to pass the quality gate. `counters` are the numbers
that prove that a value other than the first really did something; one of them must move.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from fuseboard.core.errors import PlanError


@dataclass(frozen=True, kw_only=True)
class Switch:
    """One row. `needs` are (switch, value) pairs that must hold for the values other than the first to work; a value
    that takes an argument (`chunked:256`) is listed without it in `values` and named in `parameters`; with `overrides`
    a value may go on after a semicolon (`w4a8;lm_head.weight=w8a16`)."""

    name: str
    values: tuple[str, ...]
    kind: str
    doc: str
    counters: tuple[str, ...]
    needs: tuple[tuple[str, str], ...] = ()
    parameters: tuple[str, ...] = ()
    overrides: bool = False

    @property
    def off(self) -> str:
        return self.values[0]

    def check(self, value: str) -> None:
        first = value.partition(";")[0] if self.overrides else value
        head, _, argument = first.partition(":")
        if head not in self.values or (argument and head not in self.parameters):
            allowed = ", ".join(f"{v}[:...]" if v in self.parameters else v for v in self.values)
            raise PlanError(f"Switch {self.name} has no value {value!r}; choose one of: {allowed}.")


CATALOGUE: tuple[Switch, ...] = (
    Switch(
        name="weights",
        values=("f32", "native", "bf16", "f16", "w8a16", "w8a8", "w5a16", "w5a8", "w4a8", "w4a16"),
        parameters=("w8a16", "w8a8", "w5a16", "w5a8", "w4a8", "w4a16"),
        overrides=True,
        kind="lossy",
        doc="storage of the weights, with an optional group (w4a8:g32, g32a is asymmetric) and overrides by name "
        "pattern (w4a8:g64;lm_head.weight=w8a16)",
        counters=("w4_bytes", "w5_bytes", "w8_bytes", "half_bytes"),
    ),
    Switch(
        name="fuse.qkv",
        values=("off", "on"),
        kind="ties",
        doc="the q, k and v projections share one pass over their input",
        counters=("fused_qkv", "fused_norm_qkv_rope"),
    ),
    Switch(
        name="fuse.norm_qkv_rope",
        values=("off", "on"),
        kind="ties",
        doc="norm, projections, q/k norm, rope and cache write are one node",
        needs=(("fuse.qkv", "on"),),
        counters=("fused_norm_qkv_rope",),
    ),
    Switch(
        name="fuse.residual",
        values=("off", "on"),
        kind="ties",
        doc="the output and down projections add the residual",
        counters=("fused_residual",),
    ),
    Switch(
        name="fuse.swiglu",
        values=("off", "on"),
        kind="ties",
        doc="norm, gate, up, activation and product are one node",
        counters=("fused_swiglu",),
    ),
    Switch(
        name="fuse.lm_head",
        values=("off", "on"),
        kind="ties",
        doc="final norm, head and top-64 with logsumexp are one node; the logits are never stored",
        counters=("fused_lm_head",),
    ),
    Switch(
        name="fold_constants",
        values=("off", "on"),
        kind="exact",
        doc="rope tables and shifted norm weights are computed once, at plan time",
        counters=("folded_constants",),
    ),
    Switch(
        name="memory_reuse",
        values=("off", "on"),
        kind="exact",
        doc="values whose lifetimes do not overlap share memory",
        counters=("arena_bytes_saved",),
    ),
    Switch(
        name="buckets",
        values=("dynamic", "list"),
        parameters=("list",),
        kind="exact",
        doc="steps use memory and programs prepared for the smallest token count that holds them (list:1,8,512); "
        "dynamic prepares every step anew",
        counters=("bucket_hits",),
    ),
    Switch(
        name="graph",
        values=("eager", "captured"),
        kind="exact",
        doc="a step is one static program instead of one call a node",
        counters=("graph_replays",),
    ),
    Switch(
        name="streams",
        values=("1", "2", "4"),
        kind="exact",
        doc="so many neighbouring nodes that need nothing of each other run at once, without a barrier between them",
        needs=(("graph", "captured"),),
        counters=("barriers_saved",),
    ),
    Switch(
        name="weight_prefetch",
        values=("off", "on"),
        kind="exact",
        doc="a thread that has to wait for others pulls the first weights of the next node into its cache meanwhile",
        needs=(("graph", "captured"),),
        counters=("prefetched_bytes",),
    ),
    Switch(
        name="weight_pages",
        values=("mapped", "huge"),
        kind="exact",
        doc="weights are read into huge pages of the process's own instead of mapped from the packed file",
        counters=("huge_weight_bytes",),
    ),
    Switch(
        name="autotune",
        values=("off", "on"),
        kind="ties",
        doc="units of work and rows of a tile are measured for this model and machine (2 s, once) instead of fixed",
        counters=("tuned_calls",),
    ),
    Switch(
        name="overlap",
        values=("off", "on"),
        kind="exact",
        doc="the text and events of a step are made while the next one runs already, on threads of the device's own",
        needs=(("graph", "captured"),),
        counters=("overlapped_steps",),
    ),
    Switch(
        name="affinity",
        values=("off", "pinned"),
        kind="exact",
        doc="every thread stays on a processor of its own, one a core first, memory nodes filled one after the other",
        counters=("pinned_runs",),
    ),
    Switch(
        name="attention",
        values=("naive", "blockwise"),
        kind="ties",
        doc="online softmax over tiles; the scores are never stored",
        counters=("attention_blockwise",),
    ),
    Switch(
        name="kv.dtype",
        values=("f32", "f16", "bf16", "int8_token", "int8_token_head", "int8_head"),
        kind="lossy",
        doc="storage of the KV cache; int8 with one scale a token, a token and head, or a head (static, calibrated)",
        counters=("kv_half_bytes", "kv_int8_bytes"),
    ),
    Switch(
        name="kv.layout",
        values=("contiguous", "paged"),
        kind="exact",
        doc="blocks are taken as they fill instead of one run reserved for the maximum length",
        counters=("blocks_on_demand",),
    ),
    Switch(
        name="kv.block_size",
        values=("16", "32", "64", "128", "256"),
        kind="exact",
        doc="tokens a KV block",
        counters=("blocks_larger",),
    ),
    Switch(
        name="kv.pool",
        values=("off", "on"),
        kind="exact",
        doc="freed blocks keep their pages instead of giving them back to the system",
        counters=("blocks_reused",),
    ),
    Switch(
        name="batching",
        values=("one", "static", "continuous"),
        kind="ties",
        doc="requests run one at a time, in fixed batches, or join and leave at every step",
        counters=("batched_steps",),
    ),
    Switch(
        name="prefill",
        values=("whole", "chunked"),
        parameters=("chunked",),
        kind="ties",
        doc="long prompts are split so that a step stays within a token budget (chunked:256)",
        counters=("prefill_chunks",),
    ),
    Switch(
        name="pd",
        values=("mixed", "separate"),
        kind="ties",
        doc="a step is either prefill or decode, never both",
        counters=("separated_steps",),
        needs=(("batching", "continuous"),),
    ),
    Switch(
        name="prefix_cache",
        values=("off", "on"),
        kind="ties",
        doc="blocks of a known prompt prefix are reused instead of computed",
        counters=("prefix_tokens",),
        needs=(("kv.layout", "paged"), ("kv.pool", "on")),
    ),
)

BY_NAME: Mapping[str, Switch] = {switch.name: switch for switch in CATALOGUE}


def switch(name: str) -> Switch:
    """The row called `name`; PlanError with the list of names when there is none."""
    if name not in BY_NAME:
        raise PlanError(f"There is no switch {name!r}; the switches are: {', '.join(BY_NAME)}.")
    return BY_NAME[name]


def all_off() -> dict[str, str]:
    """The baseline: the first value of every row."""
    return {s.name: s.off for s in CATALOGUE}


def parse_settings(settings: list[str]) -> dict[str, str]:
    """`name=value` strings of the command line as a dictionary; PlanError for a bad form, name or value."""
    chosen: dict[str, str] = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals:
            raise PlanError(f"--set takes NAME=VALUE, not {setting!r}.")
        if name in chosen:
            raise PlanError(f"Switch {name} is set twice.")
        switch(name).check(value)
        chosen[name] = value
    return chosen


def resolve(preset: Mapping[str, str], chosen: Mapping[str, str]) -> dict[str, str]:
    """Every switch's value: `chosen` over `preset` over the baseline.

    An explicitly chosen value whose needs are chosen away is a PlanError; a preset's value whose needs do not hold is
    taken back to off. Needs of a chosen value that nobody set are switched on with it.
    """
    for name, value in chosen.items():
        switch(name).check(value)
    values = all_off() | dict(preset) | dict(chosen)
    for name, value in chosen.items():
        for needed, wanted in switch(name).needs if value != switch(name).off else ():
            if chosen.get(needed, wanted) != wanted:
                raise PlanError(f"{name}={value} needs {needed}={wanted}, but {needed}={chosen[needed]} was asked for.")
            values[needed] = wanted
    for row in CATALOGUE:
        if any(values[needed] != wanted for needed, wanted in row.needs) and row.name not in chosen:
            values[row.name] = row.off
    return values
