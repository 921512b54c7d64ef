"""The workload that `tune` is told of: a built-in one, a trace file, or a shape in words."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fuseboard.core.errors import UserError
from fuseboard.measure import bench, traces, workload
from fuseboard.measure.options import BenchOptions
from fuseboard.measure.subject import Subject
from fuseboard.measure.tune_options import TuneOptions

BUILT_IN: Mapping[str, Callable[[workload.Prompts, int], workload.Workload]] = {
    "quick": workload.quick,
    "full": workload.full,
}
SHAPE: Mapping[str, Callable[[str], Any]] = {
    "input_len": int,
    "output_len": int,
    "concurrency": int,
    "num_prompts": int,
    "shared_prefix": int,
    "request_rate": float,
    "burstiness": float,
}
"""Words of a shape; they mean what the options of `bench` of the same names mean."""


def load_workload(options: TuneOptions, subject: Subject) -> tuple[workload.Workload, tuple[str, ...]]:
    """The workload, and what has to be said of it; UserError when it is not understood."""
    prompts = workload.Prompts(subject.model.tokenizer, seed=options.seed)
    if options.workload in BUILT_IN:
        return BUILT_IN[options.workload](prompts, options.seed), ()
    if "=" in options.workload and not Path(options.workload).exists():
        return bench.make_workload(_shaped(options), subject), ()
    if options.num_prompts < 1 or options.time_scale <= 0:
        raise UserError("--num-prompts must be at least 1 and --time-scale above 0.")
    loaded = traces.load(Path(options.workload), max_len=options.max_model_len or subject.model.spec.max_position)
    made = traces.workload(loaded, prompts, seed=options.seed, count=options.num_prompts, time_scale=options.time_scale)
    return made, tuple(loaded.notes)


def _shaped(options: TuneOptions) -> BenchOptions:
    shape: dict[str, Any] = {}
    for part in options.workload.split(","):
        name, _, value = part.strip().partition("=")
        if name not in SHAPE:
            raise UserError(f"--workload has no {name!r}; a shape is made of {', '.join(SHAPE)}.")
        try:
            shape[name] = SHAPE[name](value)
        except ValueError:
            raise UserError(f"{name} of --workload takes a number, not {value!r}.") from None
    return BenchOptions(model=options.model, seed=options.seed, **shape)
