"""What the options of an experiment ask for: its arms and comparisons, its workload, and the engine of every arm."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from fuseboard.core.errors import DoesNotFitError, PlanError, UserError
from fuseboard.execute.options import EngineOptions
from fuseboard.measure import design as designs
from fuseboard.measure import studies, workload
from fuseboard.measure.options import AblateOptions
from fuseboard.measure.record import ArmRecord
from fuseboard.measure.subject import EngineArgs, Subject
from fuseboard.plan.switches import parse_settings, switch


def chosen_study(options: AblateOptions) -> studies.Study | None:
    """The published report whose own ladder is asked for; UserError for options that it has no use for."""
    if options.scale != 1 and options.workload not in studies.STUDIES:
        raise UserError(f"--scale goes with the workloads {' and '.join(studies.STUDIES)} only.")
    if options.design != "auto" or options.workload not in studies.STUDIES:
        return None
    if options.only or options.on:
        raise UserError(f"{options.workload} has steps of its own; leave out --only and --on, or name a --design.")
    return studies.STUDIES[options.workload]


def make_design(
    options: AblateOptions, subject: Subject, study: studies.Study | None, title: str
) -> tuple[designs.Design, tuple[str, ...]]:
    """The arms and comparisons, and what has to be said of them."""
    fixed = parse_settings(list(options.set))
    if study:
        refused = refusals(subject, bare_args(options), study.full, study.full, fixed)
        return studies.make(study, fixed=fixed, refused=refused), left_out(refused)
    parts = designs.parse_parts(title)
    profile = dict(subject.profile) | parse_settings(list(options.on))
    on = designs.on_values(profile)
    for name in options.only:
        switch(name)
    target = designs.target_settings(profile=profile, on=on, fixed=fixed, only=options.only)
    refused = refusals(subject, bare_args(options), target, on, fixed)
    made = designs.make(
        parts, profile=profile, on=on, fixed=fixed, only=options.only, refused=refused, seed=options.seed
    )
    grouped = not {"ladder", "alone", "without"} & parts.keys()
    return made, left_out({n: why for n, why in refused.items() if n in target}) if grouped else ()


def left_out(refused: Mapping[str, str]) -> tuple[str, ...]:
    """Sentences on the switches that have no effect on the model."""
    return tuple(f"{name} is left out: {why}" for name, why in refused.items())


def refusals(
    subject: Subject, bare: EngineArgs, target: Mapping[str, str], on: Mapping[str, str], fixed: Mapping[str, str]
) -> dict[str, str]:
    """Why switches cannot take effect on this model, beside the settings they are studied with."""
    found: dict[str, str] = {}
    for name, value in on.items():
        if name in fixed:
            continue
        held = {k: v for k, v in target.items() if k != name} if name in target else designs.with_needs(switch(name))
        try:
            subject.plan(replace(bare, preset=held, switches={**fixed, name: value}))
        except DoesNotFitError:
            continue
        except PlanError as error:
            found[name] = str(error)
    return found


def bare_args(options: EngineOptions) -> EngineArgs:
    """The options as they were given, with every switch off."""
    return EngineArgs(
        model=options.model,
        switches={},
        threads=options.threads,
        max_model_len=options.max_model_len,
        max_num_seqs=options.max_num_seqs,
        kv_memory=options.kv_bytes,
        load_format=options.load_format,
    )


def make_engine(args: EngineArgs, work: workload.Workload, subject: Subject, options: AblateOptions) -> EngineArgs:
    """The arguments of every arm; a report with a fixed size of the KV cache sets it by its own baseline."""
    study = studies.STUDIES.get(options.workload)
    if args.kv_memory:
        return fitted(args, work, subject)
    if study is None or study.kv_seqs is None or study.context is None:
        args = fitted(args, work, subject)
        return replace(args, kv_memory=_cache_bytes(subject, args))
    context = min(round(study.context * options.scale), subject.model.spec.max_position)
    context = args.max_model_len or max(context, work.max_len)
    sized = replace(args, preset=study.baseline, max_model_len=context, max_num_seqs=study.kv_seqs)
    return fitted(replace(args, max_model_len=context, kv_memory=_cache_bytes(subject, sized)), work, subject)


def _cache_bytes(subject: Subject, args: EngineArgs) -> int:
    """KV memory in which all of the arguments' sequences fit whatever the size of a block."""
    sizes = {"kv.block_size": switch("kv.block_size").values[-1]}
    return subject.plan(replace(args, preset=dict(args.preset) | sizes, kv_memory=None)).memory["kv"]


def fitted(args: EngineArgs, work: workload.Workload, subject: Subject) -> EngineArgs:
    """The arguments with limits that were not given filled in: what the workload needs, and one KV size for all."""
    longest = args.max_model_len or min(-(-work.max_len // 64) * 64, subject.model.spec.max_position)
    args = replace(args, max_model_len=longest, max_num_seqs=args.max_num_seqs or work.max_concurrency)
    return args if args.kv_memory else replace(args, kv_memory=subject.plan(args).memory["kv"])


def planned(arms: Sequence[ArmRecord], subject: Subject, engine: EngineArgs) -> tuple[ArmRecord, ...]:
    """The arms with the digests of their plans; an arm that has no plan keeps none, and its launches say why."""

    def digest(arm: ArmRecord) -> str:
        try:
            return subject.plan(replace(engine, preset=arm.switches)).digest
        except PlanError:
            return ""

    return tuple(replace(arm, plan_digest=digest(arm)) for arm in arms)


def make_workload(options: AblateOptions, subject: Subject, quick: bool) -> tuple[workload.Workload, tuple[str, ...]]:
    prompts = prompts_for(subject, options.seed)
    name = ("quick" if quick else "full") if options.workload == "auto" else options.workload
    if name in ("quick", "full"):
        return (workload.quick if name == "quick" else workload.full)(prompts, options.seed), ()
    if name in studies.STUDIES:
        work = studies.make_workload(studies.STUDIES[name], prompts, scale=options.scale, seed=options.seed)
        short = f"All lengths are those of {name} times {options.scale:g}."
        return work, (short,) if options.scale != 1 else ()
    from fuseboard.measure import traces

    limit = options.max_model_len or subject.model.spec.max_position
    loaded = traces.load(Path(name), max_len=limit)
    return traces.workload(loaded, prompts, seed=options.seed), tuple(loaded.notes)


def prompts_for(subject: Subject, seed: int) -> workload.Prompts:
    """Prompts in the model's own tokens."""
    return workload.Prompts(subject.model.tokenizer, seed=seed)


def describe(work: workload.Workload) -> str:
    """One sentence on what a launch runs."""
    cells = []
    for cell in work.cells:
        lengths = [len(r.token_ids) for r in cell.requests]
        outs = [r.n_out for r in cell.requests]
        pace = f"{cell.concurrency} at a time" if cell.concurrency else "as they arrive"
        name = f"{cell.name}: " if len(work.cells) > 1 else ""
        cells.append(f"{name}{len(lengths)} requests, {_span(lengths)} tokens in, {_span(outs)} out, {pace}")
    return "; ".join(cells)


def _span(values: Sequence[int]) -> str:
    low, high = min(values), max(values)
    return str(low) if low == high else f"{low} to {high}"
