"""`ConfigReader`: reads a `config.json` so that no key which changes the model is overlooked."""

import math
from collections.abc import Mapping
from typing import Any

from fuseboard.core.errors import LoadError
from fuseboard.graph.rope import RopeSpec

ACTIVATIONS = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh", "gelu_tanh": "gelu_tanh"}

ROPE_KEYS = {
    "none": (),
    "linear": ("factor",),
    "dynamic": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "yarn": ("factor", "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"),
}

HARMLESS = """
architectures model_type transformers_version dtype torch_dtype use_cache initializer_range auto_map torchscript
bos_token_id eos_token_id pad_token_id sep_token_id decoder_start_token_id tokenizer_class prefix attention_dropout
hidden_dropout embd_pdrop resid_pdrop attn_implementation pretraining_tp return_dict output_attentions
output_hidden_states return_dict_in_generate is_decoder is_encoder_decoder problem_type id2label label2id num_labels
chunk_size_feed_forward finetuning_task task_specific_params pruned_heads tf_legacy_loss use_bfloat16 bad_words_ids
max_length min_length temperature top_k top_p typical_p repetition_penalty num_beams num_beam_groups
diversity_penalty length_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size num_return_sequences early_stopping
do_sample remove_invalid_values exponential_decay_length_penalty suppress_tokens begin_suppress_tokens
forced_bos_token_id forced_eos_token_id cache_implementation is_llama_config
"""
"""Keys that do not change what the decoder computes."""

HARMLESS_PREFIXES = ("_", "unsloth_", "transformers.js")

EXPLAINED = {
    "quantization_config": "quantised safetensors are not supported; use the original model or a GGUF file",
    "text_config": "nested configurations are not supported for this family",
}


class ConfigReader:
    """Typed reads from a configuration; `finish` refuses every key that nobody read and that may matter."""

    def __init__(self, config: Mapping[str, Any], family: str) -> None:
        self.config, self.family = config, family
        self._read: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        """The key's value, or `default` when it is absent or null."""
        self._read.add(key)
        value = self.config.get(key)
        return default if value is None else value

    def size(self, key: str, default: int | None = None) -> int:
        """A positive integer; required when there is no default."""
        value = self.get(key, default)
        if value is None:
            raise self.error(f"lacks '{key}'")
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.error(f"has {key} = {value!r}, which is not a positive integer")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A positive number; required when there is no default."""
        value = self.get(key, default)
        if value is None:
            raise self.error(f"lacks '{key}'")
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise self.error(f"has {key} = {value!r}, which is not a positive number")
        return float(value)

    def optional_number(self, key: str) -> float | None:
        return None if self.get(key) is None else self.number(key)

    def flag(self, key: str, default: bool = False) -> bool:
        value = self.get(key, default)
        if not isinstance(value, bool):
            raise self.error(f"has {key} = {value!r}, which is neither true nor false")
        return value

    def activation(self, key: str = "hidden_act", default: str = "silu") -> str:
        value = self.get(key, default)
        if value not in ACTIVATIONS:
            raise self.error(f"asks for the activation '{value}'; known are {', '.join(ACTIVATIONS)}")
        return ACTIVATIONS[value]

    def only(self, key: str, *allowed: Any) -> None:
        """The key may be absent or null, or have one of these values."""
        if (value := self.get(key)) is not None and value not in allowed:
            raise self.error(f"asks for {key} = {value!r}, which is not supported")

    def finish(self) -> None:
        """Refuses what was not read, by name."""
        harmless = frozenset(HARMLESS.split())
        for key, value in self.config.items():
            if key in self._read or key in harmless or key.startswith(HARMLESS_PREFIXES) or value in (None, False):
                continue
            why = EXPLAINED.get(key, "if it does not change the model's computation, remove it from config.json")
            raise self.error(f"has '{key}', which is not supported: {why}")

    def error(self, what: str) -> LoadError:
        return LoadError(f"The {self.family} model's configuration {what}.")


def read_rope(reader: ConfigReader, *, default_theta: float = 10000.0) -> RopeSpec:
    """The model's one rotary embedding, from `rope_parameters` or from `rope_theta` and `rope_scaling`."""
    parameters = dict(reader.get("rope_scaling") or reader.get("rope_parameters") or {})
    reader.get("rope_parameters")
    theta = reader.number("rope_theta", default_theta)
    return rope_from(reader, {"rope_theta": theta} | parameters)


def rope_from(reader: ConfigReader, parameters: Mapping[str, Any]) -> RopeSpec:
    """A `RopeSpec` from one dictionary of rope parameters, in the spelling of transformers 4 or 5."""
    rope = ConfigReader(parameters, reader.family)
    old, new = rope.get("type", "default"), rope.get("rope_type")
    kind = new or old
    scaling = "none" if kind == "default" else kind
    if scaling not in ROPE_KEYS:
        raise reader.error(f"asks for the rope type '{kind}'; known are default, {', '.join(list(ROPE_KEYS)[1:])}")
    rope.only("partial_rotary_factor", 1, 1.0)
    reader.only("partial_rotary_factor", 1, 1.0)
    longest = reader.size("max_position_embeddings")
    original = rope.size("original_max_position_embeddings", longest)
    if scaling == "dynamic":
        original = longest
    fields: dict[str, Any] = {key: rope.get(key) for key in ROPE_KEYS[scaling]}
    if scaling == "yarn" and fields["factor"] is None:
        fields["factor"] = longest / original
    elif scaling != "none":
        fields["factor"] = rope.number("factor")
    theta = rope.number("rope_theta")
    factors = tuple(float(value) for value in rope.get("frequency_factors", ()))
    if scaling == "none":
        rope.get("factor")
    rope.finish()
    given = {key: value for key, value in fields.items() if value is not None}
    return RopeSpec(
        theta=theta,
        scaling=scaling,
        original_max_position=0 if scaling in ("none", "linear") else original,
        frequency_factors=factors,
        **given,
    )


def longest_context(rope: RopeSpec, stated: int) -> int:
    """Positions the model can use: methods that stretch a shorter original range state only the original one."""
    if rope.scaling == "yarn":
        return max(stated, int(rope.original_max_position * rope.factor))
    return int(stated * rope.factor) if rope.scaling == "dynamic" else stated


def read_layer_types(reader: ConfigReader, num_layers: int, default: tuple[bool, ...]) -> tuple[bool, ...]:
    """Whether each layer has a sliding window, from `layer_types` or by the family's default rule."""
    types = reader.get("layer_types")
    if types is None:
        return default
    known = {"sliding_attention": True, "full_attention": False}
    if len(types) != num_layers or not set(types) <= known.keys():
        raise reader.error(f"has layer_types {sorted(set(types))} for {len(types)} of {num_layers} layers; "
                           f"sliding_attention and full_attention are known")  # fmt: skip
    return tuple(known[kind] for kind in types)


def read_common(reader: ConfigReader) -> dict[str, Any]:
    """The fields of `ModelSpec` that every family reads the same way (head_dim: hidden size / heads by default)."""
    hidden, heads = reader.size("hidden_size"), reader.size("num_attention_heads")
    kv_heads = reader.size("num_key_value_heads", heads)
    head_dim = reader.size("head_dim", hidden // heads)
    if heads % kv_heads:
        raise reader.error(f"has {heads} attention heads, not a multiple of its {kv_heads} key-value heads")
    if head_dim % 2:
        raise reader.error(f"has the odd head size {head_dim}, which a rotary embedding cannot split")
    return {
        "family": reader.family,
        "vocab_size": reader.size("vocab_size"),
        "hidden_size": hidden,
        "num_layers": reader.size("num_hidden_layers"),
        "num_heads": heads,
        "num_kv_heads": kv_heads,
        "head_dim": head_dim,
        "intermediate_size": reader.size("intermediate_size"),
        "norm_eps": reader.number("rms_norm_eps", 1e-6),
    }
