"""The reference backend: every node by its NumPy float32 reference, one after the other. It is the truth in tests."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fuseboard.core.batch import StepBatch, StepOutput
from fuseboard.core.device import DeviceCaps
from fuseboard.core.errors import PlanError
from fuseboard.core.weights import WeightSource
from fuseboard.formats.calibration import head_scales
from fuseboard.formats.convert import converted_rows
from fuseboard.formats.kv import KV_FORMATS, fake_quantise, kv_format
from fuseboard.formats.quantise import dequantise
from fuseboard.formats.weights import WEIGHT_FORMATS
from fuseboard.graph.ir import Graph, Node, Value
from fuseboard.graph.ops import OPS, KvState, Sizes
from fuseboard.plan.plan import ExecutionPlan

REGIONS = ("norm_qkv_rope", "swiglu", "residual", "lm_head")


class ReferenceBackend:
    """Runs any plan; fused nodes run their bodies."""

    name = "reference"

    def capabilities(self, *, threads: int | None = None, options: Mapping[str, str] | None = None) -> DeviceCaps:
        if options:
            raise PlanError(f"The reference backend has no options, so {', '.join(options)} cannot be set.")
        return DeviceCaps(
            backend=self.name,
            isa="numpy",
            threads=1,
            weight_formats=WEIGHT_FORMATS,
            kv_formats=tuple(KV_FORMATS),
            regions=REGIONS,
            attention=("naive", "blockwise"),
            graph_modes=("eager",),
            head_dim_multiple=2,
        )

    def workspace(self, caps: DeviceCaps, graph: Graph, node: Node, sizes: Sizes, max_context: int) -> int:
        return 0

    def examine(self, threads: int | None = None) -> dict[str, Any]:
        return {"numpy": np.__version__}

    def compile(self, plan: ExecutionPlan, weights: WeightSource) -> "ReferenceExecutable":
        return ReferenceExecutable(plan, weights)


class ReferenceExecutable:
    """A plan with all weights as float32 arrays."""

    def __init__(self, plan: ExecutionPlan, weights: WeightSource) -> None:
        self.plan = plan
        self._values: dict[str, Any] = {v.name: _load(weights, v) for v in _weights(plan.graph)}
        for layer_group in plan.kv.groups:
            for layer in layer_group.layers:
                self._values[f"kv.{layer}@0"] = self._empty_cache(layer, layer_group.num_blocks)
        for node in plan.graph.once:
            self._run_node(node, self._values)
        self._times: dict[str, list[int]] | None = None

    def run(self, batch: StepBatch) -> StepOutput:
        values = self._values | _inputs(batch)
        shape = self.plan.shape_for(batch.num_tokens, batch.num_seqs, batch.num_rows, full_logits=batch.full_logits)
        for node in self.plan.nodes_for(shape):
            start = time.perf_counter_ns()
            self._run_node(node, values)
            if self._times is not None:
                entry = self._times.setdefault(node.name, [0, 0])
                entry[0], entry[1] = entry[0] + 1, entry[1] + time.perf_counter_ns() - start
        ids, top, logsumexp = (values[f"top.{i}"] for i in range(3))
        logits = values[self.plan.logits] if batch.full_logits else None
        return StepOutput(top_ids_RK=ids, top_logits_RK=top, logsumexp_R=logsumexp, logits_RV=logits)

    def start(self, batch: StepBatch) -> None:
        self._started = batch

    def wait(self) -> StepOutput:
        return self.run(self._started)

    def _run_node(self, node: Node, values: dict[str, Any]) -> None:
        for inner in node.body or (node,):
            results = OPS[inner.op].reference([values[name] for name in inner.inputs], inner.attrs)
            values.update(zip(inner.outputs, results, strict=True))

    def _empty_cache(self, layer: int, blocks: int) -> KvState:
        kv, spec, fmt = self.plan.kv, self.plan.spec, kv_format(self.plan.kv.dtype)
        scales_LKH = head_scales(self.plan.model_digest) if fmt.calibrated else None
        shape = (blocks * kv.block_size, spec.num_kv_heads, spec.head_dim)

        def store(x_TND: NDArray[np.float32], part: str) -> NDArray[np.float32]:
            scales_H = None if scales_LKH is None else scales_LKH[layer, 0 if part == "k" else 1]
            return fake_quantise(x_TND, fmt, scales_H)

        empty = np.full(shape, np.nan, np.float32)
        return KvState(k_PND=empty, v_PND=empty.copy(), block_size=kv.block_size, store=store)

    def state(self, layer: int) -> KvState:
        """A layer's cache, for calibration and tests."""
        cache: KvState = self._values[f"kv.{layer}@0"]
        return cache

    def counters(self) -> dict[str, int]:
        """None: nothing here is done in more than one way."""
        return {}

    def memory(self) -> dict[str, int]:
        arrays = (value for value in self._values.values() if isinstance(value, np.ndarray))
        return {"weights": sum(array.nbytes for array in arrays)}

    def profile(self, on: bool) -> None:
        self._times = {} if on else None

    def node_times(self) -> Sequence[tuple[str, int, int]]:
        return [(name, calls, ns) for name, (calls, ns) in (self._times or {}).items()]

    def release_blocks(self, group: int, block_ids: Sequence[int]) -> None:
        """Arrays stay whole: there are no pages to give back."""

    def poison_blocks(self, group: int, block_ids: Sequence[int]) -> None:
        size = self.plan.kv.block_size
        for layer in self.plan.kv.groups[group].layers:
            cache = self.state(layer)
            for block in block_ids:
                cache.k_PND[block * size : (block + 1) * size] = np.nan
                cache.v_PND[block * size : (block + 1) * size] = np.nan

    def close(self) -> None:
        self._values.clear()


def _weights(graph: Graph) -> list[Value]:
    return [value for value in graph.values.values() if value.kind == "weight"]


def _load(source: WeightSource, value: Value) -> NDArray[np.float32]:
    if len(value.shape) == 1 or value.dtype == "f32":
        return source.f32(value.name)
    return np.concatenate([dequantise(rows) for rows in converted_rows(source, value.name, value.dtype)])


def _inputs(batch: StepBatch) -> dict[str, NDArray[np.int32]]:
    """The live part of the step's metadata under the names of the graph's inputs."""
    inputs = {
        "token_ids": batch.token_ids_T[: batch.num_tokens],
        "positions": batch.positions_T[: batch.num_tokens],
        "seq_starts": batch.seq_starts_S1[: batch.num_seqs + 1],
        "context_lens": batch.context_lens_S[: batch.num_seqs],
        "sample_rows": batch.sample_rows_R[: batch.num_rows],
    }
    for group, (slots, tables) in enumerate(zip(batch.kv_slots_GT, batch.block_tables_GSB, strict=True)):
        inputs[f"kv_slots.{group}"] = slots[: batch.num_tokens]
        inputs[f"block_table.{group}"] = tables[: batch.num_seqs]
    return inputs
