"""The CPU backend: capabilities of this machine and scratch sizes of its kernels."""

from collections.abc import Mapping
from typing import Any

from fuseboard import _native
from fuseboard.backends.cpu.ceilings import cached_ceilings
from fuseboard.backends.cpu.executable import CpuExecutable
from fuseboard.backends.cpu.topology import free_memory, memory_nodes, pinning_order, usable_threads
from fuseboard.core.device import DeviceCaps
from fuseboard.core.errors import PlanError
from fuseboard.core.weights import WeightSource
from fuseboard.formats.kv import KV_FORMATS
from fuseboard.formats.weights import WEIGHT_FORMATS
from fuseboard.graph.ir import Graph, Node, elements
from fuseboard.graph.ops import Sizes
from fuseboard.plan.memory import act_buffer
from fuseboard.plan.plan import ExecutionPlan

FEATURES = ("affinity", "autotune", "overlap", "streams", "weight_pages", "weight_prefetch")
REGIONS = ("norm_qkv_rope", "swiglu", "residual", "lm_head")
PROFILE = {
    "weights": "native",
    "fuse.qkv": "on",
    "fuse.norm_qkv_rope": "on",
    "fuse.residual": "on",
    "fuse.swiglu": "on",
    "fuse.lm_head": "on",
    "fold_constants": "on",
    "memory_reuse": "on",
    "buckets": "list",
    "graph": "captured",
    "weight_pages": "huge",
    "attention": "blockwise",
    "kv.dtype": "f16",
    "kv.layout": "paged",
    "kv.block_size": "64",
    "kv.pool": "on",
    "batching": "continuous",
    "prefill": "chunked",
    "prefix_cache": "on",
}
ISAS = ("scalar", "avx2", "avx512", "amx", "neon")


class CpuBackend:
    """Our C++ kernels; no framework needed."""

    name = "cpu"

    def capabilities(self, *, threads: int | None = None, options: Mapping[str, str] | None = None) -> DeviceCaps:
        wanted = dict(options or {})
        isa = _native.isa(_isa_option(wanted))  # type: ignore[arg-type]
        if not isa:
            raise PlanError(f"This machine cannot run the {options and options.get('isa')} kernels; leave isa out.")
        most = usable_threads()
        if threads is not None and not 1 <= threads <= 256:
            raise PlanError(f"--threads {threads} must be from 1 to 256; this process may use {most}.")
        ceilings = cached_ceilings(threads or most)
        return DeviceCaps(
            backend=self.name,
            isa=isa,
            threads=threads or most,
            weight_formats=WEIGHT_FORMATS,
            kv_formats=tuple(KV_FORMATS),
            regions=REGIONS,
            attention=("naive", "blockwise"),
            graph_modes=("eager", "captured"),
            features=FEATURES,
            cores=pinning_order(),
            memory_nodes=len(memory_nodes()),
            memory_bytes=free_memory(),
            read_bytes_per_s=ceilings.read_bytes_per_s if ceilings else 0.0,
            cache_bytes=ceilings.cache_bytes if ceilings else 0,
            cache_read_bytes_per_s=ceilings.cache_read_bytes_per_s if ceilings else 0.0,
            flops_per_s=ceilings.flops_per_s if ceilings else 0.0,
            integer_ops_per_s=ceilings.int8_ops_per_s if ceilings else 0.0,
            profile=PROFILE,
        )

    def workspace(self, caps: DeviceCaps, graph: Graph, node: Node, sizes: Sizes, max_context: int) -> int:
        if node.op == "attention":
            return _attention_bytes(caps, node, sizes, max_context)
        if node.op == "top_k":
            return _top_k_bytes(caps, graph, node, sizes)
        if not node.body:
            return 0
        top = [_top_k_bytes(caps, graph, inner, sizes) for inner in node.body if inner.op == "top_k"]
        return _scratch_act_bytes(graph, node, sizes) + sum(top)

    def examine(self, threads: int | None = None) -> dict[str, Any]:
        from fuseboard.backends.cpu.doctor import examine

        return examine(threads)

    def compile(self, plan: ExecutionPlan, weights: WeightSource) -> CpuExecutable:
        return CpuExecutable(plan, weights)


def _isa_option(options: dict[str, str]) -> str:
    isa = options.pop("isa", "")
    if options:
        raise PlanError(f"The CPU backend has no option {', '.join(options)}; the only one is isa.")
    if isa not in ("", *ISAS):
        raise PlanError(f"There is no kernel set {isa!r}; choose one of {', '.join(ISAS)}.")
    return isa


def _attention_bytes(caps: DeviceCaps, node: Node, sizes: Sizes, max_context: int) -> int:
    return _native.attention_workspace_bytes(
        max_tokens=sizes["T"],
        max_seqs=sizes["S"],
        max_context=max_context,
        heads=node.attrs["heads"],
        kv_heads=node.attrs["kv_heads"],
        head_dim=node.attrs["head_dim"],
        naive=node.attrs["mode"] == "naive",
        threads=caps.threads,
    )


def _top_k_bytes(caps: DeviceCaps, graph: Graph, node: Node, sizes: Sizes) -> int:
    vocabulary = graph.values[node.inputs[0]].shape[-1]
    return _native.lm_head_workspace_bytes(elements((vocabulary,), sizes), sizes["R"], caps.threads)


def _scratch_act_bytes(graph: Graph, node: Node, sizes: Sizes) -> int:
    """The rounded input of a fused projection, if it is made inside the region."""
    linear = next(inner for inner in node.body if inner.op == "linear")
    x = graph.values[linear.inputs[0]]
    rows = elements(x.shape[:-1], sizes)
    return act_buffer(x.dtype, rows, elements(x.shape[-1:], sizes)).size
