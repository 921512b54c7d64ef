"""How byte-level vocabularies cut text before merging, by the names that GGUF files use."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fuseboard.core.errors import LoadError

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True, kw_only=True)
class PreTokenizer:
    """How a byte-level vocabulary cuts text before merging.

    `ignore_merges` takes a piece that is a token whole; `add_bos` is what a file that does not say wants.
    """

    pattern: str
    single_digits: bool = False
    ignore_merges: bool = False
    nfc: bool = False
    add_bos: bool = False


LLAMA3_SPLIT = PreTokenizer(pattern=LLAMA3, ignore_merges=True, add_bos=True)
QWEN2_SPLIT = PreTokenizer(pattern=QWEN2, nfc=True)
GPT2_SPLIT = PreTokenizer(pattern=GPT2)
DIGITS_SPLIT = PreTokenizer(pattern=GPT2, single_digits=True)

PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    **dict.fromkeys(("default", "gpt-2", "olmo", "phi-2"), GPT2_SPLIT),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"), DIGITS_SPLIT),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "lfm2", "midm-2.0"), LLAMA3_SPLIT),
    **dict.fromkeys(("dbrx", "smaug-bpe"), PreTokenizer(pattern=LLAMA3)),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "megrez"), QWEN2_SPLIT),
    "tekken": PreTokenizer(pattern=TEKKEN, ignore_merges=True, add_bos=True),
}
"""By `tokenizer.ggml.pre`; a file without it uses `default`."""


def pre_tokenizer_of(metadata: Mapping[str, Any]) -> PreTokenizer:
    """The cutting rule of a checked GGUF file."""
    return PRE_TOKENIZERS[metadata.get("tokenizer.ggml.pre", "default")]


def check_gguf_tokenizer(metadata: Mapping[str, Any], name: str) -> None:
    """Refuses a tokenizer that cannot be built; `name` is the file's."""
    kind = metadata.get("tokenizer.ggml.model")
    needed = {"gpt2": ("tokens", "merges"), "llama": ("tokens", "scores")}
    if kind not in needed:
        raise LoadError(f"The tokenizer of {name} is of the kind '{kind}'; {' and '.join(needed)} are supported.")
    for key in needed[kind]:
        if f"tokenizer.ggml.{key}" not in metadata:
            raise LoadError(f"The tokenizer of {name} lacks its {key}.")
    pre = metadata.get("tokenizer.ggml.pre", "default")
    if kind == "gpt2" and pre not in PRE_TOKENIZERS:
        raise LoadError(f"The tokenizer of {name} cuts text by '{pre}'; known are {', '.join(PRE_TOKENIZERS)}.")
