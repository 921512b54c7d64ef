"""Fuseboard: an LLM inference engine in which every optimisation is a switch, and the laboratory that measures them."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fuseboard.execute.llm import LLM, Completion
    from fuseboard.execute.sampling_params import SamplingParams

__version__ = "0.1.0"
__all__ = ["LLM", "Completion", "SamplingParams", "__version__"]

_HOMES = {
    "LLM": "fuseboard.execute.llm",
    "Completion": "fuseboard.execute.llm",
    "SamplingParams": "fuseboard.execute.sampling_params",
}


def __getattr__(name: str) -> Any:
    """Imports the public names when they are first used, so that `import fuseboard` itself is quick."""
    if name not in _HOMES:
        raise AttributeError(f"module 'fuseboard' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
