"""Builds a `tokenizers.Tokenizer` from GGUF metadata: byte-level BPE, and BPE of SentencePiece vocabularies."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from fuseboard.core.errors import LoadError

UNKNOWN, CONTROL, USER_DEFINED = 2, 3, 4
SPACE = "\u2581"

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


def build_tokenizer(metadata: Mapping[str, Any], name: str) -> Tokenizer:
    """The tokenizer that a GGUF file's metadata describes; `name` is the file's, for errors.

    A text's beginning and end tokens are added by its post-processor as the file says.
    """
    kind = metadata.get("tokenizer.ggml.model")
    if kind not in ("gpt2", "llama"):
        raise LoadError(f"The tokenizer of {name} is of the kind '{kind}'; gpt2 and llama are supported.")
    tokens = list(metadata["tokenizer.ggml.tokens"])
    types = [int(t) for t in metadata.get("tokenizer.ggml.token_type", [])]
    if types and len(types) != len(tokens):
        raise LoadError(f"The tokenizer of {name} has {len(tokens)} tokens but {len(types)} token types.")
    bytewise = kind == "gpt2"
    tokenizer = byte_level(metadata, tokens, name) if bytewise else sentencepiece(metadata, tokens, types)
    add_marked(tokenizer, tokens, types)
    add_ends(tokenizer, metadata, tokens)
    return tokenizer


def pre_tokenizer_of(metadata: Mapping[str, Any], name: str) -> PreTokenizer:
    pre = metadata.get("tokenizer.ggml.pre", "default")
    if pre not in PRE_TOKENIZERS:
        raise LoadError(f"The tokenizer of {name} cuts text by '{pre}'; known are {', '.join(PRE_TOKENIZERS)}.")
    return PRE_TOKENIZERS[pre]


def byte_level(metadata: Mapping[str, Any], tokens: list[str], name: str) -> Tokenizer:
    """GPT-2's byte-level BPE with the vocabulary's own way to cut text."""
    pre = pre_tokenizer_of(metadata, name)
    merges = [tuple(merge.split(" ", 1)) for merge in metadata["tokenizer.ggml.merges"]]
    vocab = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=pre.ignore_merges))
    if pre.nfc:
        tokenizer.normalizer = normalizers.NFC()
    steps: list[Any] = [pre_tokenizers.Digits(individual_digits=True)] if pre.single_digits else []
    steps.append(pre_tokenizers.Split(Regex(pre.pattern), behavior="isolated"))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def sentencepiece(metadata: Mapping[str, Any], tokens: list[str], types: list[int]) -> Tokenizer:
    """BPE over a SentencePiece vocabulary with byte fallback.

    Runs of spaces, which files spell with plain spaces, take their SentencePiece spelling. A vocabulary without space
    prefix is Gemma's: its merge order is the order of its tokens, where others give it by score.
    """
    prefixed = bool(metadata.get("tokenizer.ggml.add_space_prefix", True))
    tokens = [SPACE * len(token) if token and not token.strip(" ") else token for token in tokens]
    vocab = {token: index for index, token in enumerate(tokens)}
    if "tokenizer.ggml.merges" in metadata:
        merges = [tuple(merge.split(" ", 1)) for merge in metadata["tokenizer.ggml.merges"]]
    else:
        scores = metadata["tokenizer.ggml.scores"].tolist() if prefixed else range(0, -len(tokens), -1)
        merges = merges_of(vocab, scores)
    unknown = metadata.get("tokenizer.ggml.unknown_token_id", types.index(UNKNOWN) if UNKNOWN in types else None)
    unk_token = None if unknown is None else tokens[unknown]
    tokenizer = Tokenizer(
        models.BPE(vocab=vocab, merges=merges, unk_token=unk_token, fuse_unk=True, byte_fallback=True)
    )
    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if prefixed:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme="first", split=False)
        steps.append(decoders.Strip(content=" ", left=1))
    else:
        tokenizer.normalizer = normalizers.Replace(" ", SPACE)
    tokenizer.decoder = decoders.Sequence(steps)
    return tokenizer


def merges_of(vocab: Mapping[str, int], scores: Iterable[float]) -> list[tuple[str, str]]:
    """Every way to make a token of two others, best score first: the merges a SentencePiece vocabulary implies."""
    found: list[tuple[float, int, int, str, str]] = []
    for (token, _), score in zip(vocab.items(), scores, strict=True):
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in vocab and right in vocab:
                found.append((-score, vocab[left], vocab[right], left, right))
    found.sort(key=lambda merge: (merge[0], len(merge[3]), len(merge[4]), merge[1], merge[2]))
    return [(left, right) for *_, left, right in found]


def add_marked(tokenizer: Tokenizer, tokens: list[str], types: list[int]) -> None:
    """Control tokens become special tokens, user-defined ones are matched whole."""
    vocab = tokenizer.get_vocab(with_added_tokens=False)
    marked = [(token, kind) for token, kind in zip(tokens, types, strict=False) if token in vocab]
    special = [AddedToken(token, normalized=False, special=True) for token, kind in marked if kind == CONTROL]
    defined = [AddedToken(token, normalized=False, special=False) for token, kind in marked if kind == USER_DEFINED]
    tokenizer.add_special_tokens(special)
    tokenizer.add_tokens(defined)


def add_ends(tokenizer: Tokenizer, metadata: Mapping[str, Any], tokens: list[str]) -> None:
    """Begin and end of a text, where the file (or its kind of tokenizer) asks for them."""
    sentencepiece_kind = metadata["tokenizer.ggml.model"] == "llama"
    default = sentencepiece_kind or PRE_TOKENIZERS[metadata.get("tokenizer.ggml.pre", "default")].add_bos
    ids = {
        "bos": metadata.get("tokenizer.ggml.bos_token_id", 1 if sentencepiece_kind else None),
        "eos": metadata.get("tokenizer.ggml.eos_token_id", 2 if sentencepiece_kind else None),
    }
    wanted = {
        "bos": bool(metadata.get("tokenizer.ggml.add_bos_token", default)) and ids["bos"] is not None,
        "eos": bool(metadata.get("tokenizer.ggml.add_eos_token", False)) and ids["eos"] is not None,
    }
    used = [(end, tokens[ids[end]], int(ids[end])) for end in ("bos", "eos") if wanted[end]]
    if not used:
        return
    pieces = [*(token for end, token, _ in used if end == "bos"), "$A"]
    pieces += [token for end, token, _ in used if end == "eos"]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=pieces, special_tokens=[(token, number) for _, token, number in used]
    )
