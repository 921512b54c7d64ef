"""From canonical tensor names to the names in a checkpoint. `{i}` stands for the layer."""

import re
from collections.abc import Collection, Mapping

from fuseboard.load.config import ROPE_FACTORS
from fuseboard.models.family import Family

HF_NAMES = {
    "embed.weight": "embed_tokens.weight",
    "final_norm.weight": "norm.weight",
    "layers.{i}.attn_norm.weight": "layers.{i}.input_layernorm.weight",
    "layers.{i}.mlp_norm.weight": "layers.{i}.post_attention_layernorm.weight",
    "layers.{i}.q_norm.weight": "layers.{i}.self_attn.q_norm.weight",
    "layers.{i}.k_norm.weight": "layers.{i}.self_attn.k_norm.weight",
    "layers.{i}.q.*": "layers.{i}.self_attn.q_proj.*",
    "layers.{i}.k.*": "layers.{i}.self_attn.k_proj.*",
    "layers.{i}.v.*": "layers.{i}.self_attn.v_proj.*",
    "layers.{i}.o.*": "layers.{i}.self_attn.o_proj.*",
    "layers.{i}.gate.*": "layers.{i}.mlp.gate_proj.*",
    "layers.{i}.up.*": "layers.{i}.mlp.up_proj.*",
    "layers.{i}.down.*": "layers.{i}.mlp.down_proj.*",
}
HF_PREFIXES = ("model.", "language_model.model.", "model.language_model.", "language_model.", "")
HF_HEADS = ("lm_head.weight", "language_model.lm_head.weight")
HF_BUFFER = re.compile(r".*\.rotary_emb\.inv_freq")

GGUF_NAMES = {
    "embed.weight": "token_embd.weight",
    "final_norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    "layers.{i}.attn_norm.weight": "blk.{i}.attn_norm.weight",
    "layers.{i}.mlp_norm.weight": "blk.{i}.ffn_norm.weight",
    "layers.{i}.q_norm.weight": "blk.{i}.attn_q_norm.weight",
    "layers.{i}.k_norm.weight": "blk.{i}.attn_k_norm.weight",
    "layers.{i}.q.*": "blk.{i}.attn_q.*",
    "layers.{i}.k.*": "blk.{i}.attn_k.*",
    "layers.{i}.v.*": "blk.{i}.attn_v.*",
    "layers.{i}.o.*": "blk.{i}.attn_output.*",
    "layers.{i}.gate.*": "blk.{i}.ffn_gate.*",
    "layers.{i}.up.*": "blk.{i}.ffn_up.*",
    "layers.{i}.down.*": "blk.{i}.ffn_down.*",
}

LAYER = re.compile(r"layers\.(\d+)\.")


def stored_name(canonical: str, names: Mapping[str, str]) -> str:
    """The checkpoint's name of a canonical tensor under one name map."""
    found = LAYER.match(canonical)
    layer = found[1] if found else ""
    pattern = LAYER.sub("layers.{i}.", canonical)
    stem, _, leaf = pattern.rpartition(".")
    name = names.get(pattern) or names[f"{stem}.*"].replace("*", leaf)
    return name.replace("{i}", layer)


def hf_names(family: Family, canonical: Collection[str], stored: Collection[str]) -> dict[str, str]:
    """Canonical to stored names of a safetensors checkpoint, whichever prefix it uses."""
    names = HF_NAMES | dict(family.hf_names)
    embed = names["embed.weight"]
    prefix = next((p for p in HF_PREFIXES if p + embed in stored), HF_PREFIXES[0])
    head = next((name for name in HF_HEADS if name in stored), HF_HEADS[0])
    return {name: head if name == "lm_head.weight" else prefix + stored_name(name, names) for name in canonical}


def hf_ignored(family: Family, name: str, tied: bool) -> bool:
    """A stored tensor that the decoder knowingly leaves alone: a rotary buffer, a tied head's copy, other towers."""
    return bool(HF_BUFFER.fullmatch(name)) or (tied and name in HF_HEADS) or name.startswith(family.hf_ignored)


def gguf_names(family: Family, canonical: Collection[str]) -> dict[str, str]:
    """Canonical to stored names of a GGUF file."""
    names = GGUF_NAMES | dict(family.gguf_names)
    return {name: stored_name(name, names) for name in canonical}


def gguf_ignored(name: str) -> bool:
    """The rotary factors are read with the configuration."""
    return name == ROPE_FACTORS
