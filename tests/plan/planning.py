"""Plans for tests: any specification on any capabilities, without a checkpoint."""

from dataclasses import dataclass, field, replace

import numpy as np

from fuseboard.backends.reference.backend import ReferenceBackend
from fuseboard.core.device import DeviceCaps
from fuseboard.core.weights import StoredBlocks
from fuseboard.graph.rope import RopeSpec
from fuseboard.models.spec import ModelSpec, tensor_shapes
from fuseboard.plan.build import Limits, build_plan
from fuseboard.plan.plan import ExecutionPlan

CAPS = ReferenceBackend().capabilities()
FEATURES = ("affinity", "autotune", "overlap", "streams", "weight_pages", "weight_prefetch")
FULL_CAPS = replace(CAPS, graph_modes=("eager", "captured"), features=FEATURES, cores=(0, 1), threads=2)

LLAMA = ModelSpec(
    family="llama", vocab_size=211, hidden_size=42, num_layers=2, num_heads=6, num_kv_heads=2, head_dim=12,
    intermediate_size=58, norm_eps=1e-5, rope=RopeSpec(), max_position=256, windows=(None, None), qkv_bias=True,
    out_bias=True, mlp_bias=True,
)  # fmt: skip
QWEN3 = replace(LLAMA, family="qwen3", qk_norm=True, qkv_bias=False, out_bias=False, mlp_bias=False, tied_head=True)
GEMMA = replace(
    QWEN3, family="gemma3", num_layers=3, windows=(20, None, 20), rope_local=RopeSpec(theta=7000.0), post_norms=True,
    norm_shift=1.0, activation="gelu_tanh", embed_scale=6.5, final_softcap=5.0,
)  # fmt: skip
SPECS = {"llama": LLAMA, "qwen3": QWEN3, "gemma3": GEMMA}


@dataclass(frozen=True, kw_only=True)
class SpecWeights:
    """Random weights of a specification; `stored` says how the file would store the matrices."""

    spec: ModelSpec
    stored: str = "f32"
    digest: str = "0" * 64

    def names(self) -> tuple[str, ...]:
        return tuple(tensor_shapes(self.spec))

    def shape(self, name: str) -> tuple[int, ...]:
        return tensor_shapes(self.spec)[name]

    def storage(self, name: str) -> str:
        return self.stored if len(self.shape(name)) == 2 else "f32"

    def f32(self, name: str, rows: slice | None = None) -> np.ndarray:
        rng = np.random.default_rng(sum(map(ord, name)))
        shape = self.shape(name)
        values = rng.standard_normal(shape, np.float32)
        scaled = values / np.float32(np.sqrt(shape[-1])) * 2 if len(shape) == 2 else 1 + values * np.float32(0.3)
        return np.ascontiguousarray(scaled[rows or slice(None)], np.float32)

    def blocks(self, name: str) -> StoredBlocks | None:
        return None


@dataclass(frozen=True, kw_only=True)
class SpecModel:
    """A model that is only its specification."""

    spec: ModelSpec
    weights: SpecWeights
    name: str = "spec"
    digest: str = field(default="0" * 64)


def spec_model(spec: ModelSpec, stored: str = "f32") -> SpecModel:
    return SpecModel(spec=spec, weights=SpecWeights(spec=spec, stored=stored))


def plan_of(
    spec: ModelSpec,
    caps: DeviceCaps = CAPS,
    *,
    preset: dict[str, str] | None = None,
    limits: Limits | None = None,
    stored: str = "f32",
    **chosen: str,
) -> ExecutionPlan:
    """A plan; keyword names use underscores for the first dot (`fuse_qkv="on"` is fuse.qkv=on)."""
    return build_plan(
        spec_model(spec, stored),
        caps,
        ReferenceBackend().workspace,
        preset=preset or {},
        chosen={switch_name(name): value for name, value in chosen.items()},
        limits=limits or Limits(max_model_len=64, max_num_seqs=4),
    )


def switch_name(keyword: str) -> str:
    head, _, rest = keyword.partition("_")
    return f"{head}.{rest}" if head in ("fuse", "kv") else keyword
