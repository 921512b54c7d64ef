"""`load_model` on folders that transformers wrote, on the real files, and on a bare configuration."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers

from fuseboard.core.errors import LoadError
from fuseboard.load import LoadedModel, load_model
from fuseboard.load.catalogue import CATALOGUE
from fuseboard.load.names import HF_NAMES, stored_name
from fuseboard.models.registry import FAMILIES
from fuseboard.models.spec import tensor_shapes

from .conftest import real_model, tiny_metadata, tiny_tensors, write_gguf

SIZES: dict[str, Any] = {
    "vocab_size": 101,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "max_position_embeddings": 128,
}
Config = transformers.PreTrainedConfig
MODELS: dict[str, Callable[[], Config]] = {
    "llama": lambda: transformers.LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True),
    "llama-tied": lambda: transformers.LlamaConfig(**SIZES, tie_word_embeddings=True, head_dim=10),
    "mistral": lambda: transformers.MistralConfig(**SIZES, sliding_window=16),
    "qwen2": lambda: transformers.Qwen2Config(**SIZES),
    "qwen3": lambda: transformers.Qwen3Config(**SIZES | {"head_dim": 16}),
    "gemma3": lambda: transformers.Gemma3TextConfig(**SIZES | {"head_dim": 16}, sliding_window=16),
}


def save(folder: Path, config: Config, dtype: torch.dtype = torch.float32, **settings: Any) -> dict[str, np.ndarray]:
    """A random model's folder, and its tensors in float32 under their stored names."""
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).to(dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    model.save_pretrained(folder, **settings)
    return {name: value.float().numpy() for name, value in model.state_dict().items()}


def load(folder: Path) -> LoadedModel:
    return load_model(str(folder), need_tokenizer=False)


def expected_name(model: LoadedModel, canonical: str) -> str:
    family = next(family for family in FAMILIES if family.name == model.spec.family)
    return canonical if canonical == "lm_head.weight" else "model." + stored_name(canonical, HF_NAMES | family.hf_names)


@pytest.mark.parametrize("name", MODELS)
def test_folder_that_transformers_wrote(name: str, tmp_path: Path) -> None:
    tensors = save(tmp_path, MODELS[name]())
    model = load(tmp_path)
    assert model.spec.family == name.removesuffix("-tied")
    for canonical in model.weights.names():
        np.testing.assert_array_equal(model.weights.f32(canonical), tensors[expected_name(model, canonical)])
    unused = tensors.keys() - {expected_name(model, canonical) for canonical in model.weights.names()}
    assert unused == ({"lm_head.weight"} if model.spec.tied_head else set())


def test_half_precision_shards(tmp_path: Path) -> None:
    tensors = save(tmp_path, MODELS["qwen2"](), torch.bfloat16, max_shard_size="50KB")
    assert (tmp_path / "model.safetensors.index.json").is_file()
    model = load(tmp_path)
    assert model.weights.storage("layers.1.q.weight") == "bf16"
    for canonical in model.weights.names():
        np.testing.assert_array_equal(model.weights.f32(canonical), tensors[expected_name(model, canonical)])


def rewrite(folder: Path, rename: Callable[[str], str], extra: dict[str, np.ndarray] | None = None) -> None:
    from safetensors.numpy import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    save_file({rename(name): value for name, value in tensors.items()} | (extra or {}), folder / "model.safetensors")


@pytest.mark.parametrize("prefix", ["", "language_model.model.", "model.language_model."])
def test_other_prefixes_of_the_same_tensors(prefix: str, tmp_path: Path) -> None:
    tensors = save(tmp_path, MODELS["llama-tied"]())
    rewrite(tmp_path, lambda name: name.replace("model.", prefix, 1))
    np.testing.assert_array_equal(load(tmp_path).weights.f32("embed.weight"), tensors["model.embed_tokens.weight"])


def test_known_extras_are_left_alone_and_others_refused(tmp_path: Path) -> None:
    save(tmp_path, MODELS["llama-tied"]())
    buffer, head = np.ones(5, np.float32), np.ones((101, 48), np.float32)
    known = {"model.layers.0.self_attn.rotary_emb.inv_freq": buffer, "lm_head.weight": head}
    rewrite(tmp_path, str, known)
    assert "lm_head.weight" not in load(tmp_path).weights.names()
    rewrite(tmp_path, str, {"model.layers.0.mlp.router.weight": buffer})
    with pytest.raises(LoadError, match=r"'model\.layers\.0\.mlp\.router\.weight' that the model does not use"):
        load(tmp_path)


def test_end_tokens_and_sampling_defaults(tmp_path: Path) -> None:
    save(tmp_path, transformers.LlamaConfig(**SIZES, eos_token_id=7))
    generation = {"eos_token_id": [5, 9], "temperature": 0.7, "top_p": 0.9, "do_sample": True, "_from": 1}
    (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    model = load(tmp_path)
    assert model.eos_ids == {5, 7, 9}
    assert model.generation_defaults == {"temperature": 0.7, "top_p": 0.9, "do_sample": True}


def test_incomplete_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=r"no config\.json"):
        load(tmp_path)
    save(tmp_path, MODELS["qwen2"]())
    with pytest.raises(LoadError, match=r"no tokenizer\.json"):
        load_model(str(tmp_path))
    with pytest.raises(LoadError, match="no chat template"):
        load(tmp_path).chat_prompt([{"role": "user", "content": "hi"}])
    with pytest.raises(LoadError, match="load format 'fast' is unknown"):
        load_model(str(tmp_path), load_format="fast")
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(LoadError, match=r"config\.json is not valid JSON"):
        load(tmp_path)


def test_folder_with_one_gguf_file(tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf", tiny_tensors(), tiny_metadata())
    model = load_model(str(tmp_path))
    assert model.path == tmp_path / "tiny.gguf"
    assert model.tokenizer.eos_ids == {1, 2}


def gemma_file(path: Path) -> tuple[Path, dict[str, Any]]:
    own = {"block_count": 2, "context_length": 64, "embedding_length": 64, "feed_forward_length": 96,
           "attention.head_count": 4, "attention.head_count_kv": 2, "attention.key_length": 32,
           "attention.value_length": 32, "attention.sliding_window": 16}  # fmt: skip
    metadata = {f"gemma3.{key}": value for key, value in own.items()} | {
        key: value for key, value in tiny_metadata().items() if key.startswith("tokenizer")
    }
    tensors: dict[str, Any] = tiny_tensors(head_dim=32)
    for i in range(2):
        for name, size in (
            ("attn_q_norm", 32),
            ("attn_k_norm", 32),
            ("post_attention_norm", 64),
            ("post_ffw_norm", 64),
        ):
            tensors[f"blk.{i}.{name}.weight"] = (np.full(size, 1.5 + i, np.float32), None)
    return write_gguf(path / "gemma.gguf", tensors, metadata, "gemma3"), tensors


def test_gemma_file_already_holds_the_norm_shift(tmp_path: Path) -> None:
    path, tensors = gemma_file(tmp_path)
    model = load_model(str(path))
    assert (model.spec.norm_shift, model.spec.windows, model.spec.tied_head) == (0.0, (16, 16), True)
    assert (model.spec.attn_scale, model.spec.head_dim) == (32**-0.5, 32)
    for canonical, stored in {
        "layers.1.attn_post_norm.weight": "blk.1.post_attention_norm.weight",
        "layers.1.mlp_norm.weight": "blk.1.ffn_norm.weight",
        "layers.1.mlp_post_norm.weight": "blk.1.post_ffw_norm.weight",
        "layers.1.q.weight": "blk.1.attn_q.weight",
    }.items():
        np.testing.assert_array_equal(model.weights.f32(canonical), tensors[stored][0])


def test_dummy_weights_follow_the_configuration(tmp_path: Path) -> None:
    config = SIZES | {"vocab_size": 300, "architectures": ["Qwen2ForCausalLM"], "tie_word_embeddings": True}
    (tmp_path / "config.json").write_text(json.dumps(config))
    model, again = (load_model(str(path), load_format="dummy") for path in (tmp_path, tmp_path / "config.json"))
    assert model.digest == again.digest
    assert {name: model.weights.shape(name) for name in model.weights.names()} == tensor_shapes(model.spec)
    for name in model.weights.names():
        values = model.weights.f32(name)
        assert values.shape == model.weights.shape(name)
        np.testing.assert_array_equal(values, again.weights.f32(name))
        np.testing.assert_array_equal(values[5:31], model.weights.f32(name, slice(5, 31)))
    embed = model.weights.f32("embed.weight")
    assert 0.015 < embed.std() < 0.025
    assert len(np.unique(embed, axis=0)) == len(embed)
    assert model.tokenizer.decode(model.tokenizer.encode("dummy")) == "dummy"


@pytest.mark.models
def test_real_files() -> None:
    """The shipped files: family, storage, and values as the gguf library reads them."""
    expected = {
        "smollm2-135m": ("llama", "q8_0", "q4_1", True),
        "qwen2.5-coder-0.5b": ("qwen2", "q5_0", "q5_0", False),
        "gemma3-270m": ("gemma3", "q8_0", "q5_0", True),
    }
    for name, (family, embed, gate, tied) in expected.items():
        model = real_model(name)
        assert (model.spec.family, model.spec.tied_head) == (family, tied)
        assert (model.weights.storage("embed.weight"), model.weights.storage("layers.0.gate.weight")) == (embed, gate)
        assert model.digest == CATALOGUE[name].sha256
        blocks = model.weights.blocks("layers.0.gate.weight")
        assert blocks is not None
        values = gguf.quants.dequantize(blocks.rows, gguf.GGMLQuantizationType[gate.upper()])
        np.testing.assert_array_equal(model.weights.f32("layers.0.gate.weight"), values)
