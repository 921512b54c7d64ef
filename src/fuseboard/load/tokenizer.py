"""`Tokenizer`: text to token ids and back, and `TextStream`, which turns one token after the other into whole text."""

import codecs
import functools
import json
import re
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from pathlib import Path
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any

from fuseboard.core.env import cache_dir
from fuseboard.core.errors import LoadError, RequestError
from fuseboard.load.atomic import write_atomic
from fuseboard.load.gguf_file import GgufFile
from fuseboard.load.pre_tokenizers import check_gguf_tokenizer

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

CHAT_ENDS = (
    *("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<|eot|>", "<EOT>", "<end_of_turn>", "<end_of_utterance>"),
    *("<|endoftext|>", "<|end_of_text|>"),
)
"""Special tokens that end a turn in the common chat formats, whether or not the configuration lists them."""

CACHE_VERSION = 2
BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")
SPACE = "\u2581"


class Tokenizer:
    """A byte-level BPE or a SentencePiece-style tokenizer.

    `load` builds the `tokenizers` object on a thread of its own, so that a start does not wait for it before the first
    text; its errors appear at first use. `bos` is the begin token and `ends` are the end tokens that configuration
    files state, as ids or as text.
    """

    def __init__(
        self, load: Callable[[], "Backend"], *, bos: int | str | None = None, ends: Iterable[int | str] = ()
    ) -> None:
        self._bos, self._ends = bos, tuple(ends)
        self._pieces: dict[int, bytes] = {}
        self._loading = start_thread(load)
        self._lock = Lock()

    def encode(self, text: str, add_special: bool = True, parse_special: bool = False) -> list[int]:
        """Token ids of `text`.

        `add_special` adds the begin (and end) tokens that the model was trained with. With `parse_special`, special
        tokens written out in the text become those tokens, as a rendered chat template needs; without, they stay
        plain text, as a user's words should. Raises `RequestError` for text that is not Unicode.
        """
        with self._lock:
            self._backend.encode_special_tokens = not parse_special
            try:
                return list(self._backend.encode(text, add_special_tokens=add_special).ids)
            except (UnicodeEncodeError, TypeError):
                raise RequestError("The text holds half of a surrogate pair, which is no character.") from None

    def decode(self, ids: Iterable[int], skip_special: bool = True, *, continuation: bool = False) -> str:
        """Text of the tokens; bytes that are not UTF-8 become U+FFFD.

        A SentencePiece vocabulary puts a space before the first word, which is taken away unless the tokens are the
        `continuation` of other text.
        """
        stream = TextStream(self, skip_special=skip_special, continuation=continuation)
        return "".join(map(stream.push, ids)) + stream.finish()

    def piece(self, token_id: int) -> bytes:
        """The bytes that one token adds to the text; none for an id outside the vocabulary."""
        piece = self._pieces.get(token_id)
        if piece is None:
            piece = self._pieces[token_id] = self._spell(token_id)
        return piece

    @functools.cached_property
    def bos_id(self) -> int | None:
        """The token that begins a text, if the model has one."""
        return self._id(self._bos)

    @functools.cached_property
    def eos_ids(self) -> frozenset[int]:
        """Tokens that end a generation: those stated, and the chat end tokens of the vocabulary."""
        stated = {self._id(token) for token in self._ends} - {None}
        chat = {number for number, token in self._added.items() if token.special and token.content in CHAT_ENDS}
        return frozenset(number for number in stated | chat if number is not None)

    @functools.cached_property
    def vocab_size(self) -> int:
        return int(self._backend.get_vocab_size(with_added_tokens=True))

    @functools.cached_property
    def adds_bos(self) -> bool:
        """Whether `encode` with `add_special` begins the text with `bos_id`."""
        return self.bos_id is not None and self.encode("")[:1] == [self.bos_id]

    @functools.cached_property
    def special_ids(self) -> frozenset[int]:
        return frozenset(number for number, token in self._added.items() if token.special)

    @functools.cached_property
    def strips_space(self) -> bool:
        """Whether decoding drops the space before the first word."""
        return any(step.get("type") == "Strip" for step in self._decoders) or any(
            step.get("type") == "Metaspace" and step.get("prepend_scheme", "always") != "never"
            for step in self._decoders
        )

    @functools.cached_property
    def _backend(self) -> Any:
        return self._loading.result()

    @functools.cached_property
    def _added(self) -> dict[int, Any]:
        return dict(self._backend.get_added_tokens_decoder())

    @functools.cached_property
    def _decoders(self) -> list[dict[str, Any]]:
        decoder = self._backend.decoder
        state = json.loads(decoder.__getstate__()) if decoder is not None else {}
        return list(state.get("decoders", [state]))

    @functools.cached_property
    def _spell(self) -> Callable[[int], bytes]:
        kinds = {step.get("type") for step in self._decoders}
        if "ByteLevel" in kinds:
            return self._spell_bytes
        if kinds & {"ByteFallback", "Metaspace"}:
            return self._spell_sentencepiece
        raise LoadError(f"The tokenizer decodes by {sorted(map(str, kinds))}; byte-level and SentencePiece-style "
                        f"tokenizers are supported.")  # fmt: skip

    def _id(self, token: int | str | None) -> int | None:
        return self._backend.token_to_id(token) if isinstance(token, str) else token

    def _spell_bytes(self, token_id: int) -> bytes:
        if added := self._added.get(token_id):
            return str(added.content).encode()
        alphabet = byte_alphabet()
        token = self._backend.id_to_token(token_id) or ""
        return b"".join(alphabet.get(char) or char.encode() for char in token)

    def _spell_sentencepiece(self, token_id: int) -> bytes:
        token = self._backend.id_to_token(token_id) or ""
        if byte := BYTE_TOKEN.fullmatch(token):
            return bytes.fromhex(byte[1])
        return str(token.replace(SPACE, " ")).encode()


class TextStream:
    """Text of a growing list of tokens, in whole characters; amortised constant time a token.

    Everything pushed and `finish` together are exactly `Tokenizer.decode` of the tokens.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special: bool = True, continuation: bool = False) -> None:
        self._tokenizer = tokenizer
        self._skipped = tokenizer.special_ids if skip_special else frozenset()
        self._strip = tokenizer.strips_space and not continuation
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        """The characters that this token completes, often none."""
        if token_id in self._skipped:
            return ""
        piece = self._tokenizer.piece(token_id)
        if self._strip and piece:
            piece, self._strip = piece.removeprefix(b" "), False
        return self._decoder.decode(piece)

    def finish(self) -> str:
        """What is left of a character that never became whole."""
        return self._decoder.decode(b"", final=True)


def start_thread(load: Callable[[], "Backend"]) -> "Future[Backend]":
    future: Future[Backend] = Future()

    def work() -> None:
        try:
            future.set_result(load())
        except BaseException as error:
            future.set_exception(error)

    Thread(target=work, name="tokenizer", daemon=True).start()
    return future


@functools.cache
def byte_alphabet() -> dict[str, bytes]:
    """GPT-2's spelling of bytes: printable Latin-1 characters stand for themselves, the rest follow U+0100."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    spelled = [(chr(byte), byte) for byte in plain] + [(chr(0x100 + n), byte) for n, byte in enumerate(others)]
    return {char: bytes([byte]) for char, byte in spelled}


def read_backend(path: Path) -> "Backend":
    """A `tokenizer.json`; a file's truncation and padding settings are for training and are switched off."""
    from tokenizers import Tokenizer as Backend

    try:
        backend = Backend.from_file(str(path))
    except Exception as error:
        raise LoadError(f"The tokenizer {path} cannot be read ({error}); download it again.") from None
    backend.no_truncation()
    backend.no_padding()
    return backend


def gguf_backend(file: GgufFile, digest: str) -> "Backend":
    """The tokenizer of a GGUF file; once built it is kept as JSON in the cache, under the model's digest."""
    cached = cache_dir() / "tokenizers" / f"{digest[:32]}-{CACHE_VERSION}.json"
    if cached.is_file():
        return read_backend(cached)
    from fuseboard.load.gguf_tokenizer import build_tokenizer

    backend = build_tokenizer(file.metadata, str(file.path))
    write_atomic(cached, backend.to_str().encode())
    return backend


def gguf_tokenizer(file: GgufFile, digest: str) -> Tokenizer:
    metadata = file.metadata
    check_gguf_tokenizer(metadata, str(file.path))
    ends = (f"tokenizer.ggml.{end}_token_id" for end in ("eos", "eot", "eom"))
    return Tokenizer(
        functools.partial(gguf_backend, file, digest),
        bos=metadata.get("tokenizer.ggml.bos_token_id"),
        ends=[metadata[end] for end in ends if end in metadata],
    )


def folder_tokenizer(folder: Path, config: Mapping[str, Any], ends: Iterable[int]) -> Tokenizer:
    """The folder's `tokenizer.json`, with the names of its begin and end tokens from `tokenizer_config.json`."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise LoadError(f"{folder} has no tokenizer.json; convert the tokenizer to that format and put it there.")
    bos, eos = (token_text(config.get(f"{end}_token")) for end in ("bos", "eos"))
    return Tokenizer(functools.partial(read_backend, path), bos=bos, ends=[*ends, *([eos] if eos else [])])


def token_text(token: Any) -> str | None:
    """A token of a `tokenizer_config.json`, written as a string or as a dictionary."""
    return token.get("content") if isinstance(token, dict) else token
