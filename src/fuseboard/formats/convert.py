"""From a checkpoint's tensor to packed panels, a block of rows at a time, so that no second copy is ever held."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from fuseboard.core.errors import LoadError
from fuseboard.core.weights import StoredBlocks, WeightSource
from fuseboard.formats.panels import pack_into, panel_bytes, row_blocks
from fuseboard.formats.quantise import Quantised, quantise
from fuseboard.formats.stored import from_blocks
from fuseboard.formats.weights import PANEL, weight_format


def converted_rows(source: WeightSource, name: str, format_name: str, *, clip_search: int = 0) -> Iterator[Quantised]:
    """Consecutive rows of a matrix in a weight format, a multiple of 16 rows at a time.

    Raises `LoadError`, naming the tensor, for values that the format cannot hold.
    """
    n, k = source.shape(name)
    stored = source.blocks(name)
    values = None if stored else source.f32(name)
    for start, stop in row_blocks(n, k):
        try:
            if stored:
                yield from_blocks(StoredBlocks(kind=stored.kind, rows=stored.rows[start:stop]), format_name)
            elif values is not None:
                yield quantise(values[start:stop], format_name, clip_search=clip_search)
        except LoadError as error:
            raise LoadError(f"tensor {name} cannot be stored as {format_name}: {error}") from None


def convert(source: WeightSource, name: str, format_name: str, *, clip_search: int = 0) -> Iterator[NDArray[np.uint8]]:
    """The packed panels of a matrix as consecutive chunks [P, panel_bytes].

    A chunk's memory is reused by the next one: write it out or copy it before asking for more.
    """
    size = panel_bytes(weight_format(format_name), source.shape(name)[1])
    buffer = np.zeros((0, size), np.uint8)
    for rows in converted_rows(source, name, format_name, clip_search=clip_search):
        panels = -(-rows.shape[0] // PANEL)
        if panels > len(buffer):
            buffer = np.zeros((panels, size), np.uint8)
        pack_into(buffer[:panels], rows)
        yield buffer[:panels]
