"""`Checkpoint`: the `WeightSource` over a GGUF file or safetensors files."""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fuseboard.core.errors import LoadError
from fuseboard.core.weights import StoredBlocks
from fuseboard.load.digest import file_sha256, files_sha256
from fuseboard.load.gguf_file import GgufFile
from fuseboard.load.names import gguf_ignored, gguf_names, hf_ignored, hf_names
from fuseboard.load.safetensors_file import SafetensorsFiles
from fuseboard.load.tensors import PLAIN, Bytes, TensorFile, dequantise
from fuseboard.models.family import Family
from fuseboard.models.spec import ModelSpec, tensor_shapes


class Checkpoint:
    """Tensors under canonical names, checked against the model's shapes when opened.

    `names` maps canonical to stored names; stored names for which `ignored` is true may be left over, any other raises
    `LoadError`, as does a missing tensor or one of another shape. `head_rows` gives, by canonical tensor, the rows of
    one head where the file interleaves a head's two rotary halves. `lm_head.weight` of a tied model is not a tensor.
    """

    def __init__(
        self,
        *,
        file: TensorFile,
        shapes: Mapping[str, tuple[int, ...]],
        names: Mapping[str, str],
        ignored: Callable[[str], bool],
        digest: str,
        head_rows: Mapping[str, int] | None = None,
    ) -> None:
        self.digest = digest
        self._file, self._shapes, self._names = file, dict(shapes), dict(names)
        self._head_rows = head_rows or {}
        check_tensors(file, shapes, names, ignored)

    def names(self) -> tuple[str, ...]:
        return tuple(self._shapes)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._shapes[name]

    def storage(self, name: str) -> str:
        return self._file.tensors[self._names[name]].kind

    def f32(self, name: str, rows: slice | None = None) -> NDArray[np.float32]:
        values_NC = dequantise(self._rows(name, rows or slice(None)), self.storage(name))
        return values_NC.reshape(-1, *self._shapes[name][1:])

    def blocks(self, name: str) -> StoredBlocks | None:
        kind = self.storage(name)
        return None if kind in PLAIN else StoredBlocks(kind=kind, rows=self._rows(name, slice(None)))

    def _rows(self, name: str, rows: slice) -> Bytes:
        """The stored bytes [N, B] of a tensor's rows in canonical order; a vector has one value a row."""
        count = self._shapes[name][0]
        raw_NB = self._file.raw(self._names[name]).reshape(count, -1)
        if (head_rows := self._head_rows.get(name)) is None:
            return raw_NB[rows]
        return raw_NB[deinterleaved_rows(count, head_rows)[rows]]


def deinterleaved_rows(count: int, head_rows: int) -> NDArray[np.intp]:
    """Stored row of each canonical row: files put the pair (j, j + d/2) of a head of d rows side by side."""
    return np.arange(count).reshape(-1, head_rows // 2, 2).swapaxes(1, 2).reshape(-1)


def check_tensors(
    file: TensorFile,
    shapes: Mapping[str, tuple[int, ...]],
    names: Mapping[str, str],
    ignored: Callable[[str], bool],
) -> None:
    """Every tensor of the model is there in its shape, and nothing else is."""
    for canonical, shape in shapes.items():
        stored = names[canonical]
        if stored not in file.tensors:
            raise LoadError(f"{file.path} lacks the tensor '{stored}', which its configuration calls for.")
        if file.tensors[stored].shape != shape:
            raise LoadError(f"{file.path} has the tensor '{stored}' of shape {list(file.tensors[stored].shape)}, but "
                            f"its configuration calls for {list(shape)}.")  # fmt: skip
    used = set(names.values())
    left = sorted(name for name in file.tensors if name not in used and not ignored(name))
    if left:
        more = f" and {len(left) - 1} more tensors" if len(left) > 1 else ""
        raise LoadError(f"{file.path} has the tensor '{left[0]}'{more} that the model does not use, so it is not the "
                        f"architecture its configuration names.")  # fmt: skip


def open_gguf(file: GgufFile, family: Family, spec: ModelSpec) -> Checkpoint:
    shapes = tensor_shapes(spec)
    permuted = family.gguf_permuted
    heads = {name: spec.head_dim for name in shapes if permuted and name.split(".")[-2] in ("q", "k")}
    return Checkpoint(
        file=file,
        shapes=shapes,
        names=gguf_names(family, shapes),
        ignored=gguf_ignored,
        digest=file_sha256(file.path),
        head_rows=heads,
    )


def open_safetensors(file: SafetensorsFiles, family: Family, spec: ModelSpec, config: Path) -> Checkpoint:
    shapes = tensor_shapes(spec)
    return Checkpoint(
        file=file,
        shapes=shapes,
        names=hf_names(family, shapes, file.tensors),
        ignored=lambda name: hf_ignored(family, name, spec.tied_head),
        digest=files_sha256([config, *file.files]),
    )
