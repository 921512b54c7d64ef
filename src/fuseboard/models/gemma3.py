"""Gemma 3, text: norms around both halves of a layer, q/k norms, five sliding layers to a full one, two rope bases."""

import math
from collections.abc import Mapping
from typing import Any

from fuseboard.graph.rope import RopeSpec
from fuseboard.models.family import Family
from fuseboard.models.read import ConfigReader, read_common, read_layer_types, rope_from
from fuseboard.models.spec import ModelSpec

DEFAULTS = {
    "vocab_size": 262208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131072,
    "sliding_window": 4096,
}
"""Values that configurations on the hub leave out (transformers' `Gemma3TextConfig`)."""


def flatten(config: Mapping[str, Any]) -> dict[str, Any]:
    """The text part's keys; a multimodal configuration keeps them under `text_config`."""
    text = config.get("text_config")
    if text is None:
        return DEFAULTS | dict(config)
    outer = {key: config[key] for key in ("quantization_config", "tie_word_embeddings") if key in config}
    return DEFAULTS | outer | dict(text)


def read_ropes(reader: ConfigReader) -> tuple[RopeSpec, RopeSpec]:
    """Rope of the full and of the sliding layers; `rope_scaling` touches only the full ones."""
    nested = reader.get("rope_parameters") or {}
    theta, local_theta = reader.number("rope_theta", 1e6), reader.number("rope_local_base_freq", 1e4)
    scaling = reader.get("rope_scaling") or {}
    full = {"rope_theta": theta} | dict(nested.get("full_attention") or {}) | dict(scaling)
    local = {"rope_theta": local_theta} | dict(nested.get("sliding_attention") or {})
    if unknown := nested.keys() - {"full_attention", "sliding_attention"}:
        raise reader.error(f"has rope_parameters for '{min(unknown)}', which is not a kind of layer")
    return rope_from(reader, full), rope_from(reader, local)


def spec_from_config(config: Mapping[str, Any]) -> ModelSpec:
    """Source of keys and defaults: transformers' `Gemma3TextConfig`."""
    reader = ConfigReader(flatten(config), "gemma3")
    common = read_common(reader)
    num_layers = common["num_layers"]
    rope, rope_local = read_ropes(reader)
    pattern = reader.size("sliding_window_pattern", reader.get("_sliding_window_pattern", 6))
    sliding = read_layer_types(reader, num_layers, tuple((i + 1) % pattern != 0 for i in range(num_layers)))
    window = reader.size("sliding_window")
    biases = reader.flag("attention_bias")
    reader.only("use_bidirectional_attention", False)
    spec = ModelSpec(
        **common,
        rope=rope,
        rope_local=rope_local,
        max_position=reader.size("max_position_embeddings"),
        windows=tuple(window if local else None for local in sliding),
        tied_head=reader.flag("tie_word_embeddings", True),
        qkv_bias=biases,
        out_bias=biases,
        qk_norm=True,
        post_norms=True,
        norm_shift=1.0,
        activation=reader.activation("hidden_activation", "gelu_pytorch_tanh"),
        embed_scale=math.sqrt(common["hidden_size"]),
        attn_scale=reader.number("query_pre_attn_scalar", 256) ** -0.5,
        attn_softcap=reader.optional_number("attn_logit_softcapping"),
        final_softcap=reader.optional_number("final_logit_softcapping"),
    )
    reader.get("hidden_act")
    reader.finish()
    return spec


FAMILY = Family(
    name="gemma3",
    architectures=("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"),
    model_types=("gemma3_text", "gemma3"),
    gguf_arch=("gemma3",),
    spec_from_config=spec_from_config,
    hf_names={
        "layers.{i}.attn_post_norm.weight": "layers.{i}.post_attention_layernorm.weight",
        "layers.{i}.mlp_norm.weight": "layers.{i}.pre_feedforward_layernorm.weight",
        "layers.{i}.mlp_post_norm.weight": "layers.{i}.post_feedforward_layernorm.weight",
    },
    gguf_names={
        "layers.{i}.attn_post_norm.weight": "blk.{i}.post_attention_norm.weight",
        "layers.{i}.mlp_post_norm.weight": "blk.{i}.post_ffw_norm.weight",
    },
    hf_ignored=("vision_tower.", "multi_modal_projector.", "model.vision_tower.", "model.multi_modal_projector."),
    gguf_norm_shifted=True,
)
