"""Rotary scaling methods against transformers' own functions."""

from typing import Any

import numpy as np
import pytest

from fuseboard.graph.rope import RopeSpec, inverse_frequencies
from fuseboard.models.read import ConfigReader, rope_from

METHODS: dict[str, dict[str, Any]] = {
    "default": {},
    "linear": {"factor": 3.5},
    "llama3": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": 512},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 512},
    "yarn_betas": {"factor": 16.0, "original_max_position_embeddings": 128, "beta_fast": 24.0, "beta_slow": 2.0},
    "yarn_exact": {"factor": 4.0, "original_max_position_embeddings": 512, "truncate": False},
    "yarn_attention": {"factor": 4.0, "original_max_position_embeddings": 512, "attention_factor": 1.25},
    "yarn_mscale": {"factor": 40.0, "original_max_position_embeddings": 64, "mscale": 1.0, "mscale_all_dim": 0.6},
    "dynamic": {"factor": 2.0},
}  # fmt: skip


def from_transformers(kind: str, parameters: dict[str, Any], theta: float, head_dim: int, length: int) -> Any:
    import torch
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    config = LlamaConfig(
        hidden_size=head_dim * 2,
        num_attention_heads=2,
        head_dim=head_dim,
        max_position_embeddings=2048,
        rope_parameters={"rope_type": kind, "rope_theta": theta} | parameters,
    )
    if kind == "default":
        inverse, factor = LlamaRotaryEmbedding.compute_default_rope_parameters(config)
    else:
        inverse, factor = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"), seq_len=length)
    return inverse.numpy(), factor


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("theta", "head_dim"), [(10000.0, 64), (500000.0, 128), (1000000.0, 22)])
def test_frequencies_are_those_of_transformers(method, theta, head_dim):
    pytest.importorskip("transformers")
    kind, parameters = method.partition("_")[0], METHODS[method]
    length = 5000 if kind == "dynamic" else 2048
    expected, factor = from_transformers(kind, parameters, theta, head_dim, length)
    reader = ConfigReader({"max_position_embeddings": 2048}, "llama")
    spec = rope_from(reader, {"rope_type": kind, "rope_theta": theta} | parameters)
    inverse, magnitude = inverse_frequencies(spec, head_dim, length)
    np.testing.assert_allclose(inverse, expected, rtol=1e-6)
    assert magnitude == pytest.approx(factor, rel=1e-12)


def test_dynamic_scaling_starts_beyond_the_trained_length():
    spec = RopeSpec(scaling="dynamic", factor=2.0, original_max_position=100)
    plain = inverse_frequencies(RopeSpec(), 16, 100)[0]
    np.testing.assert_array_equal(inverse_frequencies(spec, 16, 100)[0], plain)
    assert (inverse_frequencies(spec, 16, 101)[0][1:] < plain[1:]).all()


def test_frequency_factors_divide():
    spec = RopeSpec(frequency_factors=(1.0, 2.0, 4.0))
    plain = inverse_frequencies(RopeSpec(), 6, 10)[0]
    np.testing.assert_allclose(inverse_frequencies(spec, 6, 10)[0], plain / [1, 2, 4], rtol=1e-7)
