"""Qwen3 (dense): RMS norms on the heads of q and k, and a head size of its own."""

from collections.abc import Mapping
from typing import Any

from fuseboard.models.family import Family
from fuseboard.models.qwen2 import upper_layer_windows
from fuseboard.models.read import ConfigReader, longest_context, read_common, read_rope
from fuseboard.models.spec import ModelSpec

DEFAULT_HEAD_DIM = 128


def spec_from_config(config: Mapping[str, Any]) -> ModelSpec:
    """Source of keys and defaults: transformers' `Qwen3Config`."""
    reader = ConfigReader({"head_dim": DEFAULT_HEAD_DIM} | dict(config), "qwen3")
    common = read_common(reader)
    rope = read_rope(reader)
    biases = reader.flag("attention_bias")
    spec = ModelSpec(
        **common,
        rope=rope,
        max_position=longest_context(rope, reader.size("max_position_embeddings")),
        windows=upper_layer_windows(reader, common["num_layers"]),
        tied_head=reader.flag("tie_word_embeddings"),
        qkv_bias=biases,
        out_bias=biases,
        qk_norm=True,
        activation=reader.activation(),
    )
    reader.finish()
    return spec


FAMILY = Family(
    name="qwen3",
    architectures=("Qwen3ForCausalLM",),
    model_types=("qwen3",),
    gguf_arch=("qwen3",),
    spec_from_config=spec_from_config,
)
