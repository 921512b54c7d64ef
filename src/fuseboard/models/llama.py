"""Llama 1 to 3.x and its many derivatives, such as SmolLM2: the generic decoder itself."""

from collections.abc import Mapping
from typing import Any

from fuseboard.models.family import Family
from fuseboard.models.read import ConfigReader, longest_context, read_common, read_rope
from fuseboard.models.spec import ModelSpec


def spec_from_config(config: Mapping[str, Any]) -> ModelSpec:
    """Source of keys and defaults: transformers' `LlamaConfig`."""
    reader = ConfigReader(config, "llama")
    common = read_common(reader)
    rope = read_rope(reader)
    biases = reader.flag("attention_bias")
    spec = ModelSpec(
        **common,
        rope=rope,
        max_position=longest_context(rope, reader.size("max_position_embeddings")),
        windows=(None,) * common["num_layers"],
        tied_head=reader.flag("tie_word_embeddings"),
        qkv_bias=biases,
        out_bias=biases,
        mlp_bias=reader.flag("mlp_bias"),
        activation=reader.activation(),
    )
    reader.finish()
    return spec


FAMILY = Family(
    name="llama",
    architectures=("LlamaForCausalLM",),
    model_types=("llama",),
    gguf_arch=("llama",),
    spec_from_config=spec_from_config,
    gguf_permuted=True,
)
