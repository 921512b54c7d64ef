"""`ModelSpec`: everything the generic decoder needs to know of a model, as data."""

import math
from dataclasses import dataclass

from fuseboard.graph.rope import RopeSpec

__all__ = ["ModelSpec", "RopeSpec", "tensor_shapes"]


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """A decoder-only transformer.

    `windows[i]` is layer i's sliding window in tokens (the query itself included) or None for full attention;
    layers with a window use `rope_local` where there is one. `norm_shift` is added to every norm weight (Gemma in
    safetensors stores w - 1). Softcaps are `cap * tanh(x / cap)`.
    """

    family: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    norm_eps: float
    rope: RopeSpec
    max_position: int
    windows: tuple[int | None, ...]
    rope_local: RopeSpec | None = None
    tied_head: bool = False
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    post_norms: bool = False
    norm_shift: float = 0.0
    activation: str = "silu"
    embed_scale: float = 1.0
    attn_scale: float = 0.0
    attn_softcap: float | None = None
    final_softcap: float | None = None

    def __post_init__(self) -> None:
        assert len(self.windows) == self.num_layers
        assert self.num_heads % self.num_kv_heads == 0
        if self.attn_scale == 0.0:
            object.__setattr__(self, "attn_scale", 1.0 / math.sqrt(self.head_dim))

    @property
    def q_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_dim


def tensor_shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Every tensor of the model under its canonical name, with its shape ([rows out, columns in] for a matrix).

    This list is what a checkpoint is checked against: a tensor missing from it, or left over, is an error.
    """
    hidden, ff = spec.hidden_size, spec.intermediate_size
    shapes: dict[str, tuple[int, ...]] = {"embed.weight": (spec.vocab_size, hidden)}
    for i in range(spec.num_layers):
        layer = {
            "attn_norm.weight": (hidden,),
            "q.weight": (spec.q_size, hidden),
            "k.weight": (spec.kv_size, hidden),
            "v.weight": (spec.kv_size, hidden),
            "o.weight": (hidden, spec.q_size),
            "mlp_norm.weight": (hidden,),
            "gate.weight": (ff, hidden),
            "up.weight": (ff, hidden),
            "down.weight": (hidden, ff),
        }
        if spec.qkv_bias:
            layer |= {"q.bias": (spec.q_size,), "k.bias": (spec.kv_size,), "v.bias": (spec.kv_size,)}
        if spec.out_bias:
            layer["o.bias"] = (hidden,)
        if spec.mlp_bias:
            layer |= {"gate.bias": (ff,), "up.bias": (ff,), "down.bias": (hidden,)}
        if spec.qk_norm:
            layer |= {"q_norm.weight": (spec.head_dim,), "k_norm.weight": (spec.head_dim,)}
        if spec.post_norms:
            layer |= {"attn_post_norm.weight": (hidden,), "mlp_post_norm.weight": (hidden,)}
        shapes |= {f"layers.{i}.{name}": shape for name, shape in layer.items()}
    shapes["final_norm.weight"] = (hidden,)
    if not spec.tied_head:
        shapes["lm_head.weight"] = (spec.vocab_size, hidden)
    return shapes
