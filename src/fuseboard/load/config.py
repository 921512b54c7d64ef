"""GGUF metadata rewritten into the keys of a Hugging Face `config.json`, and JSON files read with clear errors."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fuseboard.core.errors import LoadError
from fuseboard.load.gguf_file import GgufFile
from fuseboard.load.tensors import dequantise
from fuseboard.models import mistral
from fuseboard.models.family import Family
from fuseboard.models.registry import family_of_gguf
from fuseboard.models.spec import ModelSpec

PLAIN_KEYS = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.sliding_window": "sliding_window",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "rope.freq_base": "rope_theta",
    "rope.freq_base_swa": "rope_local_base_freq",
}
SCALING_KEYS = {
    "rope.scaling.type": "rope_type",
    "rope.scaling.factor": "factor",
    "rope.scale_linear": "factor",
    "rope.scaling.original_context_length": "original_max_position_embeddings",
    "rope.scaling.attn_factor": "attention_factor",
    "rope.scaling.yarn_beta_fast": "beta_fast",
    "rope.scaling.yarn_beta_slow": "beta_slow",
}
DERIVED_KEYS = {
    "vocab_size",
    "rope.dimension_count",
    "rope.scaling.finetuned",
    "attention.value_length",
    "attention.sliding_window_pattern",
}
ROPE_FACTORS = "rope_freqs.weight"
GEMMA_27B_LAYERS = 62


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file; `LoadError` names the file when it is none."""
    try:
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise LoadError(f"{path} cannot be read: {error.strerror}.") from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise LoadError(f"{path} is not valid JSON ({error}); download it again.") from None
    if not isinstance(content, dict):
        raise LoadError(f"{path} holds no JSON object; download it again.")
    return content


def gguf_family(file: GgufFile) -> Family:
    """The file's family. A Llama file with a sliding window is Mistral, which GGUF stores as Llama."""
    metadata = file.metadata
    if (kind := metadata.get("general.type", "model")) != "model":
        raise LoadError(f"The GGUF file {file.path} holds a part of type '{kind}', not a whole model.")
    if metadata.get("split.count", 1) > 1:
        raise LoadError(f"The GGUF file {file.path} is one of {metadata['split.count']} splits; merge them first.")
    arch = metadata.get("general.architecture", "")
    return mistral.FAMILY if arch == "llama" and "llama.attention.sliding_window" in metadata else family_of_gguf(arch)


def gguf_spec(file: GgufFile, family: Family) -> ModelSpec:
    """The model's specification from the file's metadata."""
    spec = family.spec_from_config(gguf_config(file, family))
    return dataclasses.replace(spec, norm_shift=0.0) if family.gguf_norm_shifted else spec


def gguf_config(file: GgufFile, family: Family) -> dict[str, Any]:
    """The file's metadata under the names of the family's `config.json`; refuses keys that it does not know."""
    arch = file.metadata["general.architecture"]
    given = {key.removeprefix(f"{arch}."): value for key, value in file.metadata.items() if key.startswith(f"{arch}.")}
    if unknown := given.keys() - PLAIN_KEYS.keys() - SCALING_KEYS.keys() - DERIVED_KEYS:
        raise LoadError(f"The GGUF file {file.path} sets '{arch}.{min(unknown)}', which is not supported.")
    config = {name: plain(given[key]) for key, name in PLAIN_KEYS.items() if key in given}
    config["architectures"] = [family.architectures[0]]
    config |= from_tensors(file)
    if scaling := gguf_rope_scaling(file, given):
        config["rope_scaling"] = scaling
    check_head_sizes(file, given, config)
    if family.name == "gemma3":
        config |= gemma3_keys(given, config)
    return config


def plain(value: Any) -> Any:
    """A per-layer array whose values are all equal is one value."""
    if isinstance(value, np.ndarray) and len(set(value.tolist())) == 1:
        return value.tolist()[0]
    return round_f32(value) if isinstance(value, float) else value


def round_f32(value: float) -> float:
    """The shortest decimal that is this float32 (files store 1e-6 as 9.99999997e-07)."""
    return float(str(np.float32(value)))


def from_tensors(file: GgufFile) -> dict[str, Any]:
    """What GGUF states by the presence and shape of tensors only."""
    names = file.tensors
    keys: dict[str, Any] = {"tie_word_embeddings": "output.weight" not in names}
    if "token_embd.weight" in names:
        keys["vocab_size"] = names["token_embd.weight"].shape[0]
    if "blk.0.attn_output.bias" in names:
        keys["attention_bias"] = True
    if "blk.0.ffn_gate.bias" in names:
        keys["mlp_bias"] = True
    return keys


def gguf_rope_scaling(file: GgufFile, given: Mapping[str, Any]) -> dict[str, Any]:
    scaling = {name: plain(given[key]) for key, name in SCALING_KEYS.items() if key in given}
    if "rope.scale_linear" in given and "rope_type" not in scaling:
        scaling["rope_type"] = "linear" if given["rope.scale_linear"] != 1.0 else "none"
    if scaling.get("rope_type", "none") == "none":
        scaling = {}
    if ROPE_FACTORS in file.tensors:
        raw = file.raw(ROPE_FACTORS)
        factors = dequantise(raw.reshape(1, -1), file.tensors[ROPE_FACTORS].kind)[0]
        scaling = {"rope_type": "default"} | scaling | {"frequency_factors": [float(f) for f in factors]}
    return scaling


def check_head_sizes(file: GgufFile, given: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    """One head size for q, k and v, all of it rotated."""
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    for key in ("attention.value_length", "rope.dimension_count"):
        if given.get(key, head_dim) != head_dim:
            raise LoadError(f"The GGUF file {file.path} has {key} = {given[key]} but heads of {head_dim}, which is not "
                            f"supported.")  # fmt: skip
    factors = config.get("rope_scaling", {}).get("frequency_factors")
    if factors and len(factors) != head_dim // 2:
        raise LoadError(f"The GGUF file {file.path} has {len(factors)} {ROPE_FACTORS} for heads of {head_dim}.")


def gemma3_keys(given: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """What GGUF leaves to the reader: the attention scale (Gemma's 27B is the one exception) and the window pattern."""
    head_dim, heads = config["head_dim"], config["num_attention_heads"]
    large = config["num_hidden_layers"] == GEMMA_27B_LAYERS
    keys: dict[str, Any] = {"query_pre_attn_scalar": config["hidden_size"] / heads if large else head_dim}
    pattern = given.get("attention.sliding_window_pattern")
    if isinstance(pattern, np.ndarray):
        keys["layer_types"] = ["sliding_attention" if local else "full_attention" for local in pattern.tolist()]
    elif pattern is not None:
        keys["sliding_window_pattern"] = pattern
    return keys
