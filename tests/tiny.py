"""Tiny models with odd sizes, one case a family and feature, made and saved by transformers.

No size is a power of two, heads times head size is not the hidden size, and every weight is random, norms included,
so that a swapped or forgotten tensor cannot go unnoticed.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fuseboard.load.model import LoadedModel, load_model

PLAIN = {"rope_type": "default", "rope_theta": 10000.0}
COMMON: dict[str, Any] = {
    "vocab_size": 211,
    "hidden_size": 42,
    "intermediate_size": 58,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": None,
}
GEMMA_ROPES = {
    "full_attention": {"rope_type": "linear", "factor": 3.0, "rope_theta": 100000.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 7000.0},
}


def llama_rope(kind: str, **parameters: Any) -> tuple[str, dict[str, Any]]:
    return "Llama", {"rope_parameters": {"rope_type": kind, "rope_theta": 10000.0} | parameters}


CASES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "llama": ("Llama", {"attention_bias": True, "mlp_bias": True, "rope_parameters": PLAIN}),
    "llama_tied": (
        "Llama",
        {
            "num_attention_heads": 5,
            "num_key_value_heads": 5,
            "head_dim": 10,
            "hidden_size": 50,
            "tie_word_embeddings": True,
            "rope_parameters": PLAIN | {"rope_theta": 500000.0},
        },
    ),
    "llama_one_kv_head": ("Llama", {"num_attention_heads": 7, "num_key_value_heads": 1, "rope_parameters": PLAIN}),
    "llama_linear": llama_rope("linear", factor=2.5),
    "llama_dynamic": (
        "Llama",
        {"max_position_embeddings": 20, "rope_parameters": PLAIN | {"rope_type": "dynamic", "factor": 3.0}},
    ),
    "llama_llama3": llama_rope(
        "llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=24
    ),
    "llama_yarn": llama_rope("yarn", factor=4.0, original_max_position_embeddings=16),
    "llama_yarn_mscale": llama_rope(
        "yarn",
        factor=4.0,
        original_max_position_embeddings=16,
        mscale=1.0,
        mscale_all_dim=0.5,
        beta_fast=24.0,
        beta_slow=2.0,
        truncate=False,
    ),
    "llama_small_vocab": ("Llama", {"vocab_size": 37, "rope_parameters": PLAIN}),
    "qwen2": ("Qwen2", {"rope_parameters": PLAIN | {"rope_theta": 1000000.0}}),
    "qwen2_sliding": (
        "Qwen2",
        {
            "tie_word_embeddings": True,
            "use_sliding_window": True,
            "sliding_window": 6,
            "max_window_layers": 1,
            "rope_parameters": PLAIN,
        },
    ),
    "qwen3": ("Qwen3", {"rope_parameters": PLAIN, "tie_word_embeddings": True}),
    "qwen3_bias": (
        "Qwen3",
        {
            "rope_parameters": PLAIN,
            "attention_bias": True,
            "num_attention_heads": 9,
            "num_key_value_heads": 3,
            "head_dim": 14,
        },
    ),
    "mistral": ("Mistral", {"sliding_window": 7, "rope_parameters": PLAIN}),
    "gemma3": (
        "Gemma3Text",
        {
            "num_hidden_layers": 4,
            "sliding_window": 5,
            "query_pre_attn_scalar": 17,
            "tie_word_embeddings": True,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "sliding_attention"],
            "hidden_activation": "gelu_pytorch_tanh",
            "rope_parameters": GEMMA_ROPES,
        },
    ),
    "gemma3_capped": (
        "Gemma3Text",
        {
            "num_hidden_layers": 3,
            "sliding_window": 9,
            "query_pre_attn_scalar": 12,
            "attention_bias": True,
            "layer_types": ["full_attention", "sliding_attention", "full_attention"],
            "head_dim": 10,
            "attn_logit_softcapping": 3.0,
            "final_logit_softcapping": 5.0,
            "tie_word_embeddings": True,
            "hidden_activation": "gelu_pytorch_tanh",
            "rope_parameters": GEMMA_ROPES,
        },
    ),
    "llama_panels": ("Llama", {"head_dim": 16, "attention_bias": True, "mlp_bias": True, "rope_parameters": PLAIN}),
    "qwen3_panels": ("Qwen3", {"head_dim": 32, "intermediate_size": 150, "rope_parameters": PLAIN}),
    "gemma3_panels": (
        "Gemma3Text",
        {
            "num_hidden_layers": 3,
            "sliding_window": 5,
            "query_pre_attn_scalar": 17,
            "tie_word_embeddings": True,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "head_dim": 16,
            "hidden_activation": "gelu_pytorch_tanh",
            "rope_parameters": GEMMA_ROPES,
        },
    ),
}
"""transformers' class prefix and the settings that differ from `COMMON`; heads of `_panels` fit whole panels."""

FAMILY_CASES = ("llama", "qwen2_sliding", "qwen3", "mistral", "gemma3")
"""One case a family, for tests in which the rope method does not matter."""


@dataclass(frozen=True, kw_only=True)
class TinyModel:
    """A saved model, loaded by transformers (torch, eager attention, float32) and by us."""

    name: str
    folder: Path
    torch_model: Any
    loaded: LoadedModel

    def logits_TV(self, ids: np.ndarray) -> np.ndarray:
        """transformers' logits of every position of one sequence."""
        import torch

        # transformers reads Gemma 3's attention softcap but its layers apply it only when it comes as an argument.
        cap = getattr(self.torch_model.config, "attn_logit_softcapping", None)
        extra = {} if cap is None else {"softcap": cap}
        with torch.no_grad():
            return self.torch_model(torch.from_numpy(ids.astype(np.int64))[None], **extra).logits[0].numpy()


def make_tiny(name: str, folder: Path) -> TinyModel:
    """Saves the case `name` as a safetensors folder and loads it both ways."""
    import torch
    import transformers

    prefix, changes = CASES[name]
    config = getattr(transformers, f"{prefix}Config")(**(COMMON | dict(changes)))
    config._attn_implementation = "eager"
    kind = prefix.removesuffix("Text")
    model = getattr(transformers, f"{kind}ForCausalLM")(config).float().eval()
    _randomise(model, torch.Generator().manual_seed(sum(map(ord, name))))
    model.save_pretrained(folder)
    return TinyModel(name=name, folder=folder, torch_model=model, loaded=load_model(str(folder), need_tokenizer=False))


def _randomise(model: Any, generator: Any) -> None:
    """Matrices with unit gain, embeddings of unit size, norms spread around one, biases that matter."""
    import torch

    with torch.no_grad():
        for name, parameter in model.named_parameters():
            values = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() == 2:
                embedding = name.endswith("embed_tokens.weight")
                parameter.copy_(values * (0.5 if embedding else 1.5 / math.sqrt(parameter.shape[1])))
            elif name.endswith("bias"):
                parameter.copy_(values * 0.3)
            else:
                parameter.copy_(parameter + values * 0.3)


def random_ids(length: int, vocab: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, vocab, length).astype(np.int32)
