"""Checkpoints: canonical names and order, and what does not fit the model refused by name."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf.quants import quantize

from fuseboard.core.errors import LoadError
from fuseboard.load import load_model
from fuseboard.load.tensors import dequantise

from .conftest import tiny_metadata, tiny_tensors, write_gguf

HEAD_DIM = 16
Change = Callable[[dict[str, Any]], object]


def interleave(weight: np.ndarray, head_dim: int = HEAD_DIM) -> np.ndarray:
    """What GGUF conversion does to q and k of a Llama: row j and row j + d/2 of each head become neighbours."""
    heads = weight.shape[0] // head_dim
    halves = weight.reshape(heads, 2, head_dim // 2, *weight.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(weight.shape))


def tiny(path: Path, tensors: dict[str, Any] | None = None, **metadata: Any) -> Path:
    return write_gguf(path / "tiny.gguf", tensors or tiny_tensors(), tiny_metadata(**metadata))


def test_gguf_rows_are_put_back_in_order(tmp_path: Path) -> None:
    tensors = tiny_tensors()
    original = {
        name: tensors[name][0] for name in ("blk.1.attn_q.weight", "blk.1.attn_k.weight", "blk.1.attn_v.weight")
    }
    for name in list(original)[:2]:
        tensors[name] = (interleave(original[name]), None)
    weights = load_model(str(tiny(tmp_path, tensors))).weights
    for part in "qkv":
        expected = original[f"blk.1.attn_{part}.weight"]
        np.testing.assert_array_equal(weights.f32(f"layers.1.{part}.weight"), expected)
        np.testing.assert_array_equal(weights.f32(f"layers.1.{part}.weight", slice(3, 21)), expected[3:21])


def test_blocks_are_in_canonical_order_too(tmp_path: Path) -> None:
    tensors: dict[str, Any] = tiny_tensors()
    weight = tensors["blk.0.attn_q.weight"][0]
    q4_0 = gguf.GGMLQuantizationType.Q4_0
    tensors["blk.0.attn_q.weight"] = (quantize(interleave(weight), q4_0), q4_0)
    tensors["blk.0.ffn_up.weight"] = (quantize(tensors["blk.0.ffn_up.weight"][0], q4_0), q4_0)
    weights = load_model(str(tiny(tmp_path, tensors))).weights
    blocks = weights.blocks("layers.0.q.weight")
    assert blocks is not None
    assert (blocks.kind, weights.storage("layers.0.q.weight"), blocks.rows.shape) == ("q4_0", "q4_0", (64, 36))
    np.testing.assert_array_equal(blocks.rows, quantize(weight, q4_0))
    np.testing.assert_array_equal(dequantise(blocks.rows, "q4_0"), weights.f32("layers.0.q.weight"))
    up = weights.blocks("layers.0.up.weight")
    assert up is not None
    assert not up.rows.flags.owndata, "rows that keep their order stay in the mapped file"
    assert weights.blocks("layers.0.gate.weight") is None


def test_biases_are_put_back_in_order(tmp_path: Path) -> None:
    tensors: dict[str, Any] = tiny_tensors()
    generator = np.random.default_rng(1)
    biases = {(i, p): generator.standard_normal(n, np.float32) for i in range(2) for p, n in zip("qkvo", (64, 32, 32, 64), strict=True)}  # fmt: skip  # noqa: E501
    for (i, part), bias in biases.items():
        name = "attn_output" if part == "o" else f"attn_{part}"
        tensors[f"blk.{i}.{name}.bias"] = (interleave(bias) if part in "qk" else bias, None)
    weights = load_model(str(tiny(tmp_path, tensors))).weights
    for (i, part), bias in biases.items():
        np.testing.assert_array_equal(weights.f32(f"layers.{i}.{part}.bias"), bias)


def test_names_and_shapes(tmp_path: Path) -> None:
    model = load_model(str(tiny(tmp_path)))
    assert model.spec.tied_head
    assert len(model.weights.names()) == 20
    assert model.weights.shape("layers.1.down.weight") == (64, 96)
    assert "lm_head.weight" not in model.weights.names()


def test_separate_head(tmp_path: Path) -> None:
    tensors: dict[str, Any] = tiny_tensors()
    tensors["output.weight"] = tensors["token_embd.weight"]
    model = load_model(str(tiny(tmp_path, tensors)))
    assert not model.spec.tied_head
    np.testing.assert_array_equal(model.weights.f32("lm_head.weight"), tensors["token_embd.weight"][0])


def test_rope_factors_become_part_of_the_specification(tmp_path: Path) -> None:
    factors = np.linspace(1, 8, HEAD_DIM // 2, dtype=np.float32)
    tensors: dict[str, Any] = tiny_tensors() | {"rope_freqs.weight": (factors, None)}
    model = load_model(str(tiny(tmp_path, tensors)))
    assert model.spec.rope.frequency_factors == tuple(factors.tolist())
    with pytest.raises(LoadError, match=r"4 rope_freqs\.weight for heads of 16"):
        load_model(str(tiny(tmp_path, tensors | {"rope_freqs.weight": (factors[:4].copy(), None)})))


def wrong_shape(tensors: dict[str, Any]) -> None:
    tensors["blk.1.ffn_up.weight"] = (np.zeros((95, 64), np.float32), None)


def left_over(*names: str) -> Change:
    return lambda tensors: tensors.update({name: (np.zeros(16, np.float32), None) for name in names})


REFUSED: dict[str, tuple[Change, str]] = {
    "missing": (lambda t: t.pop("blk.1.ffn_up.weight"), r"lacks the tensor 'blk\.1\.ffn_up\.weight'"),
    "shape": (wrong_shape, r"'blk\.1\.ffn_up\.weight' of shape \[95, 64\], .* calls for \[96, 64\]"),
    "extra": (left_over("blk.0.attn_q_norm.weight"), r"'blk\.0\.attn_q_norm\.weight' that"),
    "layers": (left_over("blk.2.attn_norm.weight", "z"), r"'blk\.2\.attn_norm\.weight' and 1 more"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_tensors_that_do_not_fit_are_refused(case: str, tmp_path: Path) -> None:
    change, message = REFUSED[case]
    tensors = tiny_tensors()
    change(tensors)
    with pytest.raises(LoadError, match=message):
        load_model(str(tiny(tmp_path, tensors)))


METADATA = {
    "arch": ({"general.architecture": "rwkv6"}, "'rwkv6', which is not supported; supported are llama"),
    "experts": ({"llama.expert_count": 8}, r"'llama\.expert_count', which is not supported"),
    "type": ({"general.type": "adapter"}, "part of type 'adapter'"),
    "split": ({"split.count": 3}, "one of 3 splits"),
    "partial rotation": ({"llama.rope.dimension_count": 8}, r"rope\.dimension_count = 8 but heads of 16"),
    "value heads": ({"llama.attention.value_length": 8}, r"attention\.value_length = 8"),
    "rope": ({"llama.rope.scaling.type": "longrope", "llama.rope.scaling.factor": 2.0}, "rope type 'longrope'"),
    "groups": ({"llama.attention.head_count_kv": 3}, "not a multiple of its 3 key-value heads"),
    "tokenizer": ({"tokenizer.ggml.model": "rwkv"}, "kind 'rwkv'"),
    "pre-tokenizer": ({"tokenizer.ggml.pre": "viking"}, "cuts text by 'viking'"),
}


@pytest.mark.parametrize("case", METADATA)
def test_metadata_that_is_not_understood_is_refused(case: str, tmp_path: Path) -> None:
    changes, message = METADATA[case]
    arch = str(changes.get("general.architecture", "llama"))
    metadata = tiny_metadata() | {k: v for k, v in changes.items() if k != "general.architecture"}
    path = write_gguf(tmp_path / "tiny.gguf", tiny_tensors(), metadata, arch)
    with pytest.raises(LoadError, match=message):
        load_model(str(path))


def test_rope_scaling_from_metadata(tmp_path: Path) -> None:
    scaling = {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 4.0,
               "llama.rope.scaling.original_context_length": 16}  # fmt: skip
    spec = load_model(str(tiny(tmp_path, **scaling))).spec
    assert (spec.rope.scaling, spec.rope.factor, spec.rope.original_max_position) == ("yarn", 4.0, 16)


def test_llama_file_with_a_window_is_mistral(tmp_path: Path) -> None:
    spec = load_model(str(tiny(tmp_path, **{"llama.attention.sliding_window": 8}))).spec
    assert (spec.family, spec.windows) == ("mistral", (8, 8))


def test_digest_follows_the_content(tmp_path: Path) -> None:
    path = tiny(tmp_path)
    first = load_model(str(path)).digest
    assert load_model(str(path)).digest == first
    write_gguf(path, tiny_tensors(seed=1), tiny_metadata())
    assert load_model(str(path)).digest != first
