"""Families: configurations read as transformers reads them, and what they ask beyond us refused by name."""

from typing import Any

import pytest
import transformers

from fuseboard.core.errors import LoadError
from fuseboard.models.family import Family
from fuseboard.models.registry import FAMILIES, family_of_config, family_of_gguf
from fuseboard.models.spec import ModelSpec

SIZES = {
    "vocab_size": 99,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 7,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "max_position_embeddings": 512,
}
CONFIGS: dict[str, type[transformers.PreTrainedConfig]] = {
    "LlamaForCausalLM": transformers.LlamaConfig,
    "MistralForCausalLM": transformers.MistralConfig,
    "Qwen2ForCausalLM": transformers.Qwen2Config,
    "Qwen3ForCausalLM": transformers.Qwen3Config,
    "Gemma3ForCausalLM": transformers.Gemma3TextConfig,
}


def spec_of(architecture: str, **config: Any) -> ModelSpec:
    full = {"architectures": [architecture]} | SIZES | config
    return family_of_config(full).spec_from_config(full)


@pytest.mark.parametrize("architecture", CONFIGS)
def test_sizes_and_saved_configuration_agree_with_transformers(architecture: str) -> None:
    """What transformers saves reads the same as the few keys it was made from, and as its own attributes."""
    theirs = CONFIGS[architecture](**SIZES)
    saved = theirs.to_dict() | {"architectures": [architecture]}
    spec = family_of_config(saved).spec_from_config(saved)
    if architecture != "MistralForCausalLM":
        assert spec == spec_of(architecture)
    assert spec.head_dim == getattr(theirs, "head_dim", None) or spec.head_dim == 8
    assert (spec.vocab_size, spec.q_size, spec.kv_size) == (99, 6 * spec.head_dim, 3 * spec.head_dim)
    assert spec.norm_eps == theirs.rms_norm_eps
    assert spec.tied_head == theirs.tie_word_embeddings
    layer_types = getattr(theirs, "layer_types", None)
    if layer_types:
        assert [w is not None for w in spec.windows] == [kind == "sliding_attention" for kind in layer_types]


def test_families_differ_where_they_should() -> None:
    llama, qwen2, qwen3 = (spec_of(f"{name}ForCausalLM") for name in ("Llama", "Qwen2", "Qwen3"))
    assert (llama.qkv_bias, llama.out_bias, llama.mlp_bias, llama.qk_norm) == (False,) * 4
    assert (qwen2.qkv_bias, qwen2.out_bias, qwen2.qk_norm) == (True, False, False)
    assert (qwen3.qkv_bias, qwen3.qk_norm, qwen3.head_dim) == (False, True, 128)
    biased = spec_of("LlamaForCausalLM", attention_bias=True, mlp_bias=True)
    assert (biased.qkv_bias, biased.out_bias, biased.mlp_bias) == (True, True, True)
    assert spec_of("Qwen3ForCausalLM", attention_bias=True).out_bias


def test_gemma3() -> None:
    spec = spec_of("Gemma3ForCausalLM", sliding_window=16, query_pre_attn_scalar=64, final_logit_softcapping=30.0,
                   attn_logit_softcapping=50.0, rope_local_base_freq=5000.0, rope_theta=2e6,
                   rope_scaling={"rope_type": "linear", "factor": 8.0})  # fmt: skip
    assert spec.windows == (16, 16, 16, 16, 16, None, 16)
    assert (spec.attn_scale, spec.embed_scale, spec.norm_shift) == (1 / 8, 48**0.5, 1.0)
    assert (spec.attn_softcap, spec.final_softcap, spec.activation) == (50.0, 30.0, "gelu_tanh")
    assert spec.rope_local is not None
    assert (spec.rope.theta, spec.rope.scaling, spec.rope.factor) == (2e6, "linear", 8.0)
    assert (spec.rope_local.theta, spec.rope_local.scaling) == (5000.0, "none")
    assert (spec.tied_head, spec.post_norms, spec.qk_norm, spec.head_dim) == (True, True, True, 256)
    assert spec_of("Gemma3ForCausalLM", sliding_window_pattern=2, sliding_window=8).windows[:3] == (8, None, 8)
    types = ["full_attention"] * 6 + ["sliding_attention"]
    assert spec_of("Gemma3ForCausalLM", layer_types=types, sliding_window=8).windows == (None,) * 6 + (8,)


def test_text_part_of_a_multimodal_gemma3() -> None:
    config = {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "vision_config": {"hidden_size": 7},
        "text_config": {
            "hidden_size": 2560,
            "intermediate_size": 10240,
            "num_hidden_layers": 34,
            "sliding_window": 1024,
        },
    }
    spec = family_of_config(config).spec_from_config(config)
    assert (spec.hidden_size, spec.num_heads, spec.num_kv_heads, spec.vocab_size) == (2560, 8, 4, 262208)


def test_qwen_windows() -> None:
    used = {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 4}
    for name in ("Qwen2ForCausalLM", "Qwen3ForCausalLM"):
        assert spec_of(name, **used).windows == (None,) * 4 + (9,) * 3
        assert spec_of(name, **used | {"use_sliding_window": False}).windows == (None,) * 7
        types = ["sliding_attention"] * 2 + ["full_attention"] * 5
        assert spec_of(name, **used, layer_types=types).windows == (9, 9) + (None,) * 5


def test_mistral_window() -> None:
    assert spec_of("MistralForCausalLM", sliding_window=5).windows == (5,) * 7
    assert spec_of("MistralForCausalLM", sliding_window=None).windows == (None,) * 7


ROPE = {
    "linear": {"factor": 2.0},
    "dynamic": {"factor": 2.0},
    "llama3": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 128, "beta_fast": 16.0, "attention_factor": 1.1},
}


@pytest.mark.parametrize("kind", ROPE)
def test_rope_spellings_of_both_transformers_generations(kind: str) -> None:
    old = spec_of("LlamaForCausalLM", rope_theta=5e5, rope_scaling={"type": kind} | ROPE[kind])
    newer = spec_of("LlamaForCausalLM", rope_theta=5e5, rope_scaling={"rope_type": kind} | ROPE[kind])
    new = spec_of("LlamaForCausalLM", rope_parameters={"rope_type": kind, "rope_theta": 5e5} | ROPE[kind])
    assert old == newer == new
    assert (new.rope.scaling, new.rope.theta, new.rope.factor) == (kind, 5e5, ROPE[kind]["factor"])


def test_rope_parameters_and_reach() -> None:
    yarn = spec_of("Qwen3ForCausalLM", rope_scaling={"rope_type": "yarn"} | ROPE["yarn"])
    assert (yarn.rope.beta_fast, yarn.rope.attention_factor, yarn.max_position) == (16.0, 1.1, 512)
    dynamic = spec_of("LlamaForCausalLM", rope_scaling={"rope_type": "dynamic", "factor": 2.0})
    assert (dynamic.rope.original_max_position, dynamic.max_position) == (512, 1024)
    implied = spec_of("LlamaForCausalLM", rope_scaling={"rope_type": "yarn", "original_max_position_embeddings": 128})
    assert implied.rope.factor == 4.0


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "rope type": ("Llama", {"rope_scaling": {"rope_type": "longrope", "factor": 2.0}}, "rope type 'longrope'"),
    "rope key": ("Llama", {"rope_scaling": {"factor": 2.0, "rope_type": "linear", "mrope": [1]}}, "'mrope'"),
    "rope factor": ("Llama", {"rope_scaling": {"rope_type": "linear"}}, "lacks 'factor'"),
    "partial": ("Llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5"),
    "experts": ("Qwen2", {"num_experts": 8}, "'num_experts'"),
    "quantised": ("Llama", {"quantization_config": {"quant_method": "gptq"}}, "quantised safetensors"),
    "activation": ("Llama", {"hidden_act": "relu2"}, "activation 'relu2'"),
    "window": ("Llama", {"sliding_window": 64}, "'sliding_window'"),
    "unknown": ("Mistral", {"logits_scaling": 8.0}, "'logits_scaling'"),
    "bidirectional": ("Gemma3", {"use_bidirectional_attention": True}, "use_bidirectional_attention = True"),
    "layer types": ("Gemma3", {"layer_types": ["linear_attention"] * 7}, "layer_types"),
    "layer count": ("Qwen2", {"layer_types": ["full_attention"] * 3}, "for 3 of 7 layers"),
    "groups": ("Llama", {"num_key_value_heads": 4}, "not a multiple of its 4"),
    "odd head": ("Llama", {"head_dim": 7}, "odd head size 7"),
    "no size": ("Llama", {"hidden_size": None}, "lacks 'hidden_size'"),
    "zero": ("Llama", {"num_hidden_layers": 0}, "num_hidden_layers = 0"),
    "text": ("Llama", {"rms_norm_eps": "1e-5"}, "rms_norm_eps = '1e-5'"),
    "flag": ("Llama", {"attention_bias": 1}, "attention_bias = 1"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_implemented_is_refused_by_name(case: str) -> None:
    family, change, message = REFUSED[case]
    with pytest.raises(LoadError) as error:
        spec_of(f"{family}ForCausalLM", **change)
    assert message in str(error.value)


def test_unknown_architectures_are_refused_with_the_known_ones() -> None:
    with pytest.raises(LoadError, match=r"architecture is BertModel, .* supported are LlamaForCausalLM"):
        family_of_config({"architectures": ["BertModel"]})
    with pytest.raises(LoadError, match="architecture is nothing"):
        family_of_config({})
    with pytest.raises(LoadError, match="'rwkv6', which is not supported; supported are llama"):
        family_of_gguf("rwkv6")


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_registry_finds_every_family(family: Family) -> None:
    for architecture in family.architectures:
        assert family_of_config({"architectures": [architecture]}) is family
    for model_type in family.model_types:
        assert family_of_config({"model_type": model_type}) is family
    for arch in family.gguf_arch:
        assert family_of_gguf(arch) is family


def test_harmless_keys_are_passed_over() -> None:
    extra = {"torch_dtype": "bfloat16", "use_cache": True, "_name_or_path": "x", "transformers.js_config": {"a": 1},
             "rope_interleaved": False, "is_llama_config": True, "pad_token_id": 2}  # fmt: skip
    assert spec_of("LlamaForCausalLM", **extra) == spec_of("LlamaForCausalLM")
