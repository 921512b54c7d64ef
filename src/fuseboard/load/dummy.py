"""Stand-ins for a model that is only a `config.json`: weights of the right shapes, and a tokenizer of bytes."""

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fuseboard.core.weights import StoredBlocks
from fuseboard.load.tokenizer import Tokenizer, byte_alphabet
from fuseboard.models.spec import ModelSpec, tensor_shapes

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

PERIOD = 65_521
"""Random values a tensor has before they repeat; a prime, so that no two rows of a usual matrix are equal."""
SPREAD = 0.02


class DummyWeights:
    """A `WeightSource` of reproducible random values, made tensor by tensor when asked for and never kept.

    Matrices are normal with a standard deviation of 0.02, norms multiply by one, biases are zero.
    """

    def __init__(self, spec: ModelSpec, config: Mapping[str, Any]) -> None:
        self._shapes, self._spec = tensor_shapes(spec), spec
        self.digest = hashlib.sha256(b"dummy" + json.dumps(config, sort_keys=True).encode()).hexdigest()

    def names(self) -> tuple[str, ...]:
        return tuple(self._shapes)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._shapes[name]

    def storage(self, name: str) -> str:
        return "f32"

    def f32(self, name: str, rows: slice | None = None) -> NDArray[np.float32]:
        start, stop, step = (rows or slice(None)).indices(self._shapes[name][0])
        assert step == 1, "rows are read in order"
        shape = (stop - start, *self._shapes[name][1:])
        if len(shape) == 1:
            return np.full(shape, 0.0 if name.endswith(".bias") else 1.0 - self._spec.norm_shift, np.float32)
        seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
        tile = np.random.default_rng(seed).standard_normal(PERIOD, np.float32) * np.float32(SPREAD)
        return np.resize(np.roll(tile, -start * shape[1]), math.prod(shape)).reshape(shape)

    def blocks(self, name: str) -> StoredBlocks | None:
        return None


def byte_tokenizer(vocab_size: int, ends: Iterable[int] = ()) -> Tokenizer:
    """One token a byte; a vocabulary of fewer tokens gives its first one for the bytes beyond it."""
    return Tokenizer(lambda: byte_backend(min(vocab_size, 256)), ends=ends)


def byte_backend(size: int) -> "Backend":
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models, pre_tokenizers

    spelled = sorted(byte_alphabet(), key=lambda char: byte_alphabet()[char])[:size]
    vocab = {char: number for number, char in enumerate(spelled)}
    backend = Backend(models.BPE(vocab=vocab, merges=[], unk_token=spelled[0]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    return backend
