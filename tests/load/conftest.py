"""Small checkpoints written by the libraries that define their formats."""

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from fuseboard.load import LoadedModel, load_model

TINY = {
    "block_count": 2,
    "context_length": 64,
    "embedding_length": 64,
    "feed_forward_length": 96,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
}
VOCAB = 40


@pytest.fixture(autouse=True)
def own_cache(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Tests of small files leave the user's cache alone; tests of the real models use it."""
    if "models" not in request.keywords:
        patch = request.getfixturevalue("monkeypatch")
        patch.setenv("FUSEBOARD_CACHE", str(tmp_path_factory.mktemp("cache")))


@functools.cache
def real_model(name: str) -> LoadedModel:
    """A model of the catalogue, loaded once for all tests."""
    return load_model(name)


def write_gguf(
    path: Path,
    tensors: Mapping[str, tuple[np.ndarray, gguf.GGMLQuantizationType | None]],
    metadata: Mapping[str, Any] | None = None,
    arch: str = "llama",
) -> Path:
    """A GGUF file with these tensors (array, and its type when the array holds blocks) and metadata."""
    writer = gguf.GGUFWriter(path, arch)
    for key, value in (metadata or {}).items():
        add_value(writer, key, value)
    for name, (array, kind) in tensors.items():
        writer.add_tensor(name, array, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_value(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    adders: dict[type, Callable[[str, Any], None]] = {
        bool: writer.add_bool,
        int: writer.add_uint32,
        float: writer.add_float32,
        str: writer.add_string,
        list: writer.add_array,
    }
    adders[type(value)](key, value)


def tiny_metadata(arch: str = "llama", **changes: Any) -> dict[str, Any]:
    """Metadata of a decoder small enough for a test, with a byte-level vocabulary."""
    own = {f"{arch}.{key}": value for key, value in TINY.items()}
    own[f"{arch}.attention.layer_norm_rms_epsilon"] = 1e-5
    tokens = ["<s>", "</s>", "<|im_end|>", *(chr(ord("a") + n) for n in range(26)), "ab", "Ġ", "Ċ"]
    tokens += [f"[PAD{n}]" for n in range(VOCAB - len(tokens))]
    own |= {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3] * 3 + [1] * (VOCAB - 3),
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
    }
    return own | changes


def tiny_tensors(head_dim: int = 16, seed: int = 0) -> dict[str, tuple[np.ndarray, None]]:
    """Random float32 tensors of the tiny Llama under their GGUF names."""
    hidden, ff, q, kv = 64, 96, 4 * head_dim, 2 * head_dim
    shapes = {"token_embd.weight": (VOCAB, hidden), "output_norm.weight": (hidden,)}
    for i in range(2):
        shapes |= {
            f"blk.{i}.attn_norm.weight": (hidden,),
            f"blk.{i}.attn_q.weight": (q, hidden),
            f"blk.{i}.attn_k.weight": (kv, hidden),
            f"blk.{i}.attn_v.weight": (kv, hidden),
            f"blk.{i}.attn_output.weight": (hidden, q),
            f"blk.{i}.ffn_norm.weight": (hidden,),
            f"blk.{i}.ffn_gate.weight": (ff, hidden),
            f"blk.{i}.ffn_up.weight": (ff, hidden),
            f"blk.{i}.ffn_down.weight": (hidden, ff),
        }
    generator = np.random.default_rng(seed)
    return {name: (generator.standard_normal(shape, np.float32), None) for name, shape in shapes.items()}
