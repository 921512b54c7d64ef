"""Qwen2 and Qwen2.5: biases on q, k and v, and an optional sliding window on the upper layers."""

from collections.abc import Mapping
from typing import Any

from fuseboard.models.family import Family
from fuseboard.models.read import ConfigReader, longest_context, read_common, read_layer_types, read_rope
from fuseboard.models.spec import ModelSpec


def upper_layer_windows(reader: ConfigReader, num_layers: int) -> tuple[int | None, ...]:
    """Qwen's rule: with `use_sliding_window`, layers from `max_window_layers` on have the window."""
    window = reader.size("sliding_window", 4096)
    first = reader.get("max_window_layers", 28)
    sliding = read_layer_types(reader, num_layers, tuple(i >= first for i in range(num_layers)))
    used = reader.flag("use_sliding_window")
    return tuple(window if local and used else None for local in sliding)


def spec_from_config(config: Mapping[str, Any]) -> ModelSpec:
    """Source of keys and defaults: transformers' `Qwen2Config`."""
    reader = ConfigReader(config, "qwen2")
    common = read_common(reader)
    rope = read_rope(reader)
    reader.only("use_mrope", False)
    spec = ModelSpec(
        **common,
        rope=rope,
        max_position=longest_context(rope, reader.size("max_position_embeddings")),
        windows=upper_layer_windows(reader, common["num_layers"]),
        tied_head=reader.flag("tie_word_embeddings"),
        qkv_bias=True,
        activation=reader.activation(),
    )
    reader.finish()
    return spec


FAMILY = Family(
    name="qwen2",
    architectures=("Qwen2ForCausalLM",),
    model_types=("qwen2",),
    gguf_arch=("qwen2",),
    spec_from_config=spec_from_config,
)
