"""`profile`: where the time of one configuration goes; and the profiling passes of an experiment, one a plan."""

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fuseboard.core.errors import UserError
from fuseboard.measure import bench, experiment, machine, setup, workload
from fuseboard.measure.analysis import matching
from fuseboard.measure.ceilings import ensure_ceilings
from fuseboard.measure.launch import LaunchSpec
from fuseboard.measure.options import ProfileOptions
from fuseboard.measure.profile_pass import ProfileSpec, profile
from fuseboard.measure.profiled import belongs, disturbed
from fuseboard.measure.record import ArmRecord, CellProfile, DesignRecord, Line, ProfileRecord, StepsProfile
from fuseboard.measure.subject import Subject, load_subject
from fuseboard.measure.workload import Workload

WARMUP_S = 20.0


def run(options: ProfileOptions) -> ProfileRecord:
    """Profile in a fresh process and write the files that were asked for. UserError when nothing ran."""
    bare = replace(setup.bare_args(options), backend=options.backend, revision=options.revision)
    subject = load_subject(bare)
    work = make_workload(options, subject)
    engine = setup.fitted(bench.with_preset(bare, options, subject), work, subject)
    launch = LaunchSpec(
        arm=options.preset, block=0, position=0, engine=engine, workload=work, code_digest=machine.code_digest()
    )
    trace = str(options.trace.resolve()) if options.trace else ""
    with experiment.measuring_lock():
        ensure_ceilings(subject.backend, options.threads)
        done = profile(ProfileSpec(launch=launch, plain=True, trace=trace), timeout_s=options.timeout)
    if done.error is not None:
        raise UserError(done.error.message)
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(as_json(done), indent=2) + "\n", encoding="utf-8")
    return done


def make_workload(options: ProfileOptions, subject: Subject) -> Workload:
    """One cell of equal requests, and one warm-up round of its shapes."""
    count = options.num_prompts or options.concurrency
    if min(options.input_len, options.output_len, options.concurrency, count) < 1:
        raise UserError("--input-len, --output-len, --num-prompts and --concurrency must be at least 1.")
    prompts = workload.Prompts(subject.model.tokenizer, seed=options.seed)
    cell = workload.grid_cell(
        prompts,
        input_len=options.input_len,
        output_len=options.output_len,
        concurrency=options.concurrency,
        count=count,
    )
    warmup = workload.warmup_rounds(prompts, [cell], rounds=1)
    return Workload(name="profile", cells=(cell,), warmup=warmup, warmup_s=WARMUP_S, seed=options.seed)


def as_json(record: ProfileRecord) -> dict[str, Any]:
    """The record as plain data, with the remainders that it implies."""
    return dataclasses.asdict(record) | {"cells": [_cell_json(cell) for cell in record.cells]}


def _cell_json(cell: CellProfile) -> dict[str, Any]:
    def steps(profile: StepsProfile) -> dict[str, Any]:
        return dataclasses.asdict(profile) | {"dispatch_ns": profile.dispatch_ns}

    kinds = {"decode": steps(cell.decode), "prefill": steps(cell.prefill)}
    return dataclasses.asdict(cell) | kinds | {"residual_ns": cell.residual_ns}


def missing(design: DesignRecord, known: Sequence[Line], *, resume: bool = True) -> list[ArmRecord]:
    """The first arm of every plan of the design that no known pass profiled undisturbed, under the same conditions."""
    launches = matching(known, design)
    have = {
        line.plan_digest
        for line in known
        if isinstance(line, ProfileRecord) and resume and belongs(line, design) and not disturbed(line, launches)
    }
    first = {arm.plan_digest: arm for arm in reversed(design.arms) if arm.plan_digest}
    return [arm for arm in design.arms if arm.plan_digest not in have and first.get(arm.plan_digest) is arm]
