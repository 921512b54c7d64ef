"""Single linear kernels on NumPy arrays, for the tests of csrc/linear."""

from dataclasses import dataclass

import numpy as np

from fuseboard import _native
from fuseboard.formats.panels import pack, padded_k
from fuseboard.formats.quantise import Quantised
from fuseboard.formats.weights import act_format

ISAS = [isa for isa in ("scalar", "avx2", "avx512", "amx") if _native.isa(isa) == isa]


@dataclass(frozen=True, kw_only=True)
class Activations:
    """Rows in the layout that the kernels read; codes are raw bytes [rows, ld * bytes an element]."""

    type: str
    group: int
    codes: np.ndarray
    scales: np.ndarray
    sums: np.ndarray

    def codes_in_order(self) -> np.ndarray:
        if self.type == "a8":
            return self.codes.view(np.int8)
        quads = self.codes.view(np.int16).reshape(len(self.codes), -1, 4)
        return quads[..., [0, 2, 1, 3]].reshape(len(self.codes), -1)


def empty_activations(rows: int, ld: int, name: str) -> Activations:
    fmt = act_format(name)
    groups = ld // fmt.group if fmt.group else 0
    # Poison: whatever a kernel leaves unwritten must not be read.
    return Activations(
        type=name.split("g")[0],
        group=fmt.group,
        codes=np.full((rows, ld * fmt.bits // 8), 0x7F, np.uint8),
        scales=np.full((rows, groups), np.nan, np.float32),
        sums=np.full((rows, groups), 1 << 30, np.int32),
    )


def quantise(isa: str, x: np.ndarray, ld: int, name: str) -> Activations:
    a = empty_activations(len(x), ld, name)
    _native.quantise(isa, a.type, a.group, x, a.codes, a.scales, a.sums)
    return a


def tile(
    isa: str,
    q: Quantised,
    a: Activations,
    m: tuple[int, int],
    p: tuple[int, int] | None = None,
    packed: np.ndarray | None = None,
) -> np.ndarray:
    """Rows m of the activations times panels p (default all) of the matrix: [rows, 16 * panels]."""
    (n, k), fmt = q.shape, q.format
    p = p or (0, -(-n // 16))
    out = np.full((m[1] - m[0], 16 * (p[1] - p[0]) + 3), np.nan, np.float32)
    _native.linear_tile(
        isa,
        fmt.native,
        pack(q) if packed is None else packed,
        n,
        k,
        padded_k(fmt, k),
        fmt.group,
        a.type,
        a.group,
        a.codes,
        a.scales,
        a.sums,
        *m,
        *p,
        out,
    )
    assert np.isnan(out[:, -3:]).all()
    return out[:, :-3]
