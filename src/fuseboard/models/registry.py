"""The families this engine knows, found by what a checkpoint says of itself."""

from collections.abc import Mapping
from typing import Any

from fuseboard.core.errors import LoadError
from fuseboard.models import gemma3, llama, mistral, qwen2, qwen3
from fuseboard.models.family import Family

FAMILIES: tuple[Family, ...] = (llama.FAMILY, mistral.FAMILY, qwen2.FAMILY, qwen3.FAMILY, gemma3.FAMILY)


def family_of_config(config: Mapping[str, Any]) -> Family:
    """The family of a `config.json`: by `architectures`, or by `model_type` where that is all there is."""
    architectures = config.get("architectures") or ()
    for family in FAMILIES:
        if any(name in family.architectures for name in architectures):
            return family
        if not architectures and config.get("model_type") in family.model_types:
            return family
    stated = ", ".join(architectures) or config.get("model_type") or "nothing"
    known = ", ".join(name for family in FAMILIES for name in family.architectures)
    raise LoadError(f"The model's architecture is {stated}, which is not supported; supported are {known}.")


def family_of_gguf(arch: str) -> Family:
    """The family of a GGUF file's `general.architecture`."""
    for family in FAMILIES:
        if arch in family.gguf_arch:
            return family
    known = ", ".join(name for family in FAMILIES for name in family.gguf_arch)
    raise LoadError(f"The GGUF architecture is '{arch}', which is not supported; supported are {known}.")
