"""Builds a `tokenizers.Tokenizer` from GGUF metadata: byte-level BPE, and BPE of SentencePiece vocabularies."""

from collections.abc import Mapping
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from fuseboard.core.errors import LoadError
from fuseboard.load.pre_tokenizers import pre_tokenizer_of

NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4
SPACE = "\u2581"


def build_tokenizer(metadata: Mapping[str, Any], name: str) -> Tokenizer:
    """The tokenizer that a GGUF file's metadata describes; `name` is the file's, for errors.

    A text's beginning and end tokens are added by its post-processor as the file says.
    """
    tokens = list(metadata["tokenizer.ggml.tokens"])
    types = [int(t) for t in metadata.get("tokenizer.ggml.token_type", [])]
    if types and len(types) != len(tokens):
        raise LoadError(f"The tokenizer of {name} has {len(tokens)} tokens but {len(types)} token types.")
    bytewise = metadata["tokenizer.ggml.model"] == "gpt2"
    if not bytewise:
        tokens = [token if token.strip(" ") else token.replace(" ", SPACE) for token in tokens]
    tokenizer = byte_level(metadata, tokens) if bytewise else sentencepiece(metadata, tokens, types)
    add_marked(tokenizer, tokens, types, normalised=not bytewise)
    add_ends(tokenizer, metadata, tokens)
    return tokenizer


def byte_level(metadata: Mapping[str, Any], tokens: list[str]) -> Tokenizer:
    """GPT-2's byte-level BPE with the vocabulary's own way to cut text."""
    pre = pre_tokenizer_of(metadata)
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
    """BPE over a SentencePiece vocabulary with byte fallback, with the space prefix that the file asks for."""
    scores = metadata["tokenizer.ggml.scores"].tolist()
    vocab = {token: index for index, token in enumerate(tokens)}
    unknown = metadata.get("tokenizer.ggml.unknown_token_id", types.index(UNKNOWN) if UNKNOWN in types else None)
    model = models.BPE(
        vocab=vocab,
        merges=merges_of(tokens, scores, types or [NORMAL] * len(tokens)),
        unk_token=None if unknown is None else tokens[unknown],
        fuse_unk=True,
        byte_fallback=True,
    )
    tokenizer = Tokenizer(model)
    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if metadata.get("tokenizer.ggml.add_space_prefix", True):
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme="first", split=False)
        steps.append(decoders.Strip(content=" ", left=1))
    else:
        tokenizer.normalizer = normalizers.Replace(" ", SPACE)
    tokenizer.decoder = decoders.Sequence(steps)
    return tokenizer


def merges_of(tokens: list[str], scores: list[float], types: list[int]) -> list[tuple[str, str]]:
    """The merges that a SentencePiece vocabulary implies: every way to make a normal token of two, best score first."""
    vocab = {token: index for index, (token, kind) in enumerate(zip(tokens, types, strict=True)) if kind == NORMAL}
    found: list[tuple[float, int, int, str, str]] = []
    for token, index in vocab.items():
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in vocab and right in vocab:
                found.append((-scores[index], cut, vocab[left], left, right))
    found.sort(key=lambda merge: merge[:3])
    return [(left, right) for *_, left, right in found]


def add_marked(tokenizer: Tokenizer, tokens: list[str], types: list[int], *, normalised: bool) -> None:
    """Control tokens become special tokens; user-defined ones, such as runs of spaces, are matched whole."""
    marked = list(zip(tokens, types, strict=False))
    special = [AddedToken(token, normalized=False, special=True) for token, kind in marked if kind == CONTROL]
    defined = [
        AddedToken(token, normalized=normalised, special=False) for token, kind in marked if kind == USER_DEFINED
    ]
    tokenizer.add_special_tokens(special)
    tokenizer.add_tokens(defined)


def add_ends(tokenizer: Tokenizer, metadata: Mapping[str, Any], tokens: list[str]) -> None:
    """Begin and end of a text, where the file (or its kind of tokenizer) asks for them."""
    sentencepiece_kind = metadata["tokenizer.ggml.model"] == "llama"
    default = sentencepiece_kind or pre_tokenizer_of(metadata).add_bos
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
