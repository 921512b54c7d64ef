"""The generic decoder: builds the graph of one step from a `ModelSpec`. It knows no switch and no device."""

from fuseboard.core.batch import TOP_K
from fuseboard.graph.builder import GraphBuilder
from fuseboard.graph.ir import Graph, R, S, T
from fuseboard.models.spec import ModelSpec, tensor_shapes


def cache_groups(spec: ModelSpec) -> tuple[tuple[int | None, tuple[int, ...]], ...]:
    """Layers whose KV has the same lifetime: (window, layers), full attention first."""
    windows = sorted(set(spec.windows), key=lambda window: (window is not None, window or 0))
    return tuple((w, tuple(i for i, other in enumerate(spec.windows) if other == w)) for w in windows)


def build_decoder(spec: ModelSpec, max_position: int) -> Graph:
    """The graph of a step.

    Results: top ids and logits [R, 64], logsumexp [R] and logits [R, vocabulary]. `max_position` is the longest
    sequence the rotary tables have to hold.
    """
    return _Decoder(spec, max_position).build()


class _Decoder:
    def __init__(self, spec: ModelSpec, max_position: int) -> None:
        self.spec, self.max_position = spec, max_position
        self.g = GraphBuilder()
        self.group_of = {layer: g for g, (_, layers) in enumerate(cache_groups(spec)) for layer in layers}

    def build(self) -> Graph:
        g, spec = self.g, self.spec
        self._inputs()
        self.angles = self._rotary("angles", spec.rope)
        self.local_angles = self._rotary("angles_local", spec.rope_local) if spec.rope_local else self.angles
        x = g.op("embed", "embedding", "token_ids", "embed.weight")
        if spec.embed_scale != 1.0:
            x = g.op("affine", "embedding_scaled", x, scale=spec.embed_scale, shift=0.0)
        for layer in range(spec.num_layers):
            x = self._residual(x, self._attention(x, layer), f"layers.{layer}.attn")
            x = self._residual(x, self._mlp(x, layer), f"layers.{layer}.mlp")
        return self._head(x)

    def _inputs(self) -> None:
        for name, size in (("token_ids", T), ("positions", T), ("seq_starts", S), ("context_lens", S)):
            self.g.input(name, (size,))
        self.g.input("sample_rows", (R,))
        for group in range(len(set(self.group_of.values()))):
            self.g.input(f"kv_slots.{group}", (T,))
            self.g.input(f"block_table.{group}", (S,))
        for name, shape in tensor_shapes(self.spec).items():
            self.g.weight(name, shape)

    def _rotary(self, name: str, rope: object) -> str:
        attrs = {"rope": rope, "head_dim": self.spec.head_dim, "max_position": self.max_position}
        return self.g.op("rope_angles", name, "positions", **attrs)

    def _norm(self, name: str, x: str, weight: str, dim: int) -> str:
        if self.spec.norm_shift:
            weight = self.g.op("affine", f"{weight}.shifted", weight, scale=1.0, shift=self.spec.norm_shift)
        return self.g.op("rms_norm", name, x, weight, eps=self.spec.norm_eps, dim=dim)

    def _linear(self, name: str, x: str, biased: bool) -> str:
        return self.g.linear(name, x, f"{name}.weight", f"{name}.bias" if biased else None)

    def _attention(self, x: str, layer: int) -> str:
        g, spec, at = self.g, self.spec, f"layers.{layer}"
        h = self._norm(f"{at}.attn_norm", x, f"{at}.attn_norm.weight", spec.hidden_size)
        q, k, v = (self._linear(f"{at}.{p}", h, spec.qkv_bias) for p in "qkv")
        if spec.qk_norm:
            q = self._norm(f"{at}.q_norm", q, f"{at}.q_norm.weight", spec.head_dim)
            k = self._norm(f"{at}.k_norm", k, f"{at}.k_norm.weight", spec.head_dim)
        window = spec.windows[layer]
        angles = self.angles if window is None else self.local_angles
        q = g.op("rope", f"{at}.q_rope", q, angles, head_dim=spec.head_dim)
        k = g.op("rope", f"{at}.k_rope", k, angles, head_dim=spec.head_dim)
        group = self.group_of[layer]
        state = g.op("kv_write", f"{at}.kv_write", k, v, g.state(f"kv.{layer}"), f"kv_slots.{group}")
        mixed = g.op(
            "attention",
            f"{at}.attention",
            *(q, state, "seq_starts", "context_lens", f"block_table.{group}"),
            heads=spec.num_heads,
            kv_heads=spec.num_kv_heads,
            head_dim=spec.head_dim,
            scale=spec.attn_scale,
            window=window,
            softcap=spec.attn_softcap,
        )
        out = self._linear(f"{at}.o", mixed, spec.out_bias)
        return self._post_norm(f"{at}.attn_post_norm", out)

    def _mlp(self, x: str, layer: int) -> str:
        g, spec, at = self.g, self.spec, f"layers.{layer}"
        h = self._norm(f"{at}.mlp_norm", x, f"{at}.mlp_norm.weight", spec.hidden_size)
        gate = g.op(spec.activation, f"{at}.act", self._linear(f"{at}.gate", h, spec.mlp_bias))
        product = g.op("mul", f"{at}.glu", gate, self._linear(f"{at}.up", h, spec.mlp_bias))
        return self._post_norm(f"{at}.mlp_post_norm", self._linear(f"{at}.down", product, spec.mlp_bias))

    def _post_norm(self, name: str, x: str) -> str:
        return self._norm(name, x, f"{name}.weight", self.spec.hidden_size) if self.spec.post_norms else x

    def _residual(self, x: str, update: str, name: str) -> str:
        return self.g.op("add", f"{name}.residual", x, update)

    def _head(self, x: str) -> Graph:
        g, spec = self.g, self.spec
        rows = g.op("gather_rows", "sampled", x, "sample_rows")
        h = self._norm("final_norm", rows, "final_norm.weight", spec.hidden_size)
        logits = g.linear("lm_head", h, "embed.weight" if spec.tied_head else "lm_head.weight")
        if spec.final_softcap is not None:
            logits = g.op("softcap", "logits_capped", logits, cap=spec.final_softcap)
        return g.finish(*g.ops("top_k", "top", logits, k=TOP_K), logits)
