"""Mistral: Llama with a sliding window on every layer in its first version."""

from collections.abc import Mapping
from typing import Any

from fuseboard.models.family import Family
from fuseboard.models.read import ConfigReader, longest_context, read_common, read_rope
from fuseboard.models.spec import ModelSpec


def spec_from_config(config: Mapping[str, Any]) -> ModelSpec:
    """Source of keys and defaults: transformers' `MistralConfig`, but an absent window means none."""
    reader = ConfigReader(config, "mistral")
    common = read_common(reader)
    rope = read_rope(reader)
    window = reader.size("sliding_window") if reader.get("sliding_window") is not None else None
    spec = ModelSpec(
        **common,
        rope=rope,
        max_position=longest_context(rope, reader.size("max_position_embeddings")),
        windows=(window,) * common["num_layers"],
        tied_head=reader.flag("tie_word_embeddings"),
        activation=reader.activation(),
    )
    reader.finish()
    return spec


FAMILY = Family(
    name="mistral",
    architectures=("MistralForCausalLM",),
    model_types=("mistral",),
    gguf_arch=(),
    spec_from_config=spec_from_config,
    gguf_permuted=True,
)
