"""A model that is only a configuration: small, odd sizes, bytes as tokens."""

import json
from pathlib import Path

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 300, "hidden_size": 64,
    "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 16, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
    "tie_word_embeddings": True, "bos_token_id": 0, "eos_token_id": 1, "hidden_act": "silu",
}  # fmt: skip


GEMMA = {
    "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "head_dim": 16, "sliding_window": 64,
    "sliding_window_pattern": 2, "query_pre_attn_scalar": 16, "rope_local_base_freq": 10000.0,
    "hidden_activation": "gelu_pytorch_tanh",
}  # fmt: skip
"""What makes it a model with a norm between a projection and its residual."""


def write_dummy(folder: Path, changes: dict[str, object] | None = None) -> str:
    """The model's name: a folder with nothing but a config.json."""
    path = folder / "dummy"
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(CONFIG | (changes or {})))
    return str(path)
