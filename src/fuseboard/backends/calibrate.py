"""The calibration pass of static KV scales: the largest key and value of every head over recorded tokens."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fuseboard.backends.base import Backend, Executable
from fuseboard.core.batch import StepBatch
from fuseboard.formats.calibration import has_head_scales, record_head_scales
from fuseboard.formats.kv import calibrate, kv_format
from fuseboard.load.model import LoadedModel
from fuseboard.plan.build import Limits, PlannableModel, build_plan
from fuseboard.plan.plan import ExecutionPlan

TEXT = """The committee met on Tuesday to settle three questions: who pays for the bridge, when the work begins, and
whether the old road stays open meanwhile. "Nobody likes a detour," said the engineer, "but 14 weeks of noise is worse."

def mean(values: list[float]) -> float:
    if not values:
        raise ValueError("no values")
    return sum(values) / len(values)

Q: A farmer has 17 sheep and buys 5 more every month. How many are there after 6 months?
A: 17 + 5 * 6 = 47. In the morning the fog lay so low over the fields that only the church tower stood out of it, and
the boy, who had never seen the sea, thought that it must look like this: white, silent, and without an end.
"""
TOKENS = 256


def compile_plan(backend: Backend, plan: ExecutionPlan, model: LoadedModel) -> Executable:
    """The executable of a plan; records the model's static KV scales first if it needs them and nobody did."""
    if kv_format(plan.kv.dtype).calibrated and not has_head_scales(model.digest):
        tokens = model.tokenizer.encode(TEXT, add_special=True, parse_special=False)
        record_head_scales(model.digest, measure_head_scales(model, tokens[:TOKENS]))
    return backend.compile(plan, model.weights)


def measure_head_scales(model: PlannableModel, tokens: Sequence[int]) -> NDArray[np.float32]:
    """Scales [layers, 2, KV heads] from one prefill of `tokens` by the reference backend in float32."""
    from fuseboard.backends.reference.backend import ReferenceBackend

    backend = ReferenceBackend()
    limits = Limits(max_model_len=min(len(tokens), model.spec.max_position), max_num_seqs=1)
    plan = build_plan(model, backend.capabilities(), backend.workspace, preset={}, chosen={}, limits=limits)
    executable = backend.compile(replace(plan, kv=replace(plan.kv, dtype="f32")), model.weights)
    batch = _prefill(tokens[: plan.schedule.max_model_len], plan)
    executable.run(batch)
    slots = batch.kv_slots_GT[0]
    scales = []
    for layer in range(model.spec.num_layers):
        state = executable.state(layer)
        scales.append([calibrate(state.k_PND[slots]), calibrate(state.v_PND[slots])])
    return np.asarray(scales, np.float32)


def _prefill(tokens: Sequence[int], plan: ExecutionPlan) -> StepBatch:
    count, size = len(tokens), plan.kv.block_size
    table = np.arange(1, 1 + -(-count // size), dtype=np.int32)[None]
    positions = np.arange(count, dtype=np.int32)
    slots = (table[0, positions // size] * size + positions % size).astype(np.int32)
    groups = len(plan.kv.groups)
    return StepBatch(
        num_tokens=count,
        num_seqs=1,
        num_rows=1,
        token_ids_T=np.asarray(tokens, np.int32),
        positions_T=positions,
        seq_starts_S1=np.array([0, count], np.int32),
        context_lens_S=np.array([count], np.int32),
        state_slots_S=np.zeros(1, np.int32),
        sample_rows_R=np.array([count - 1], np.int32),
        kv_slots_GT=(slots,) * groups,
        block_tables_GSB=(table,) * groups,
    )
