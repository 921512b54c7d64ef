"""`Family`: what a model family states, which is only where it differs from the generic decoder."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fuseboard.models.spec import ModelSpec


@dataclass(frozen=True, kw_only=True)
class Family:
    """One model family.

    `architectures` and `model_types` are the names in a Hugging Face `config.json`, `gguf_arch` the values of GGUF's
    `general.architecture`. `spec_from_config` reads a `config.json` dictionary (GGUF metadata is first rewritten into
    the same keys). The name maps give the checkpoint's name of a canonical tensor where the family does not follow
    the common scheme; `{i}` stands for the layer. Tensors that begin with one of `hf_ignored` belong to parts of a
    larger model that the decoder does not use. `gguf_permuted` says that GGUF files interleave the q/k rows, and
    `gguf_norm_shifted` that they already contain `norm_shift`.
    """

    name: str
    architectures: tuple[str, ...]
    model_types: tuple[str, ...]
    gguf_arch: tuple[str, ...]
    spec_from_config: Callable[[Mapping[str, Any]], ModelSpec]
    hf_names: Mapping[str, str] = field(default_factory=dict)
    gguf_names: Mapping[str, str] = field(default_factory=dict)
    hf_ignored: tuple[str, ...] = ()
    gguf_permuted: bool = False
    gguf_norm_shifted: bool = False
