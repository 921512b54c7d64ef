"""What the tests of programs share: instruction sets, steps, packed weights, activation buffers.

Shape suffixes: T tokens, S sequences, R sample rows, N and K a matrix.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fuseboard import _native as native
from fuseboard.formats.panels import pack, padded_k, panel_bytes
from fuseboard.formats.quantise import Quantised, dequantise, quantise
from fuseboard.formats.weights import act_format

ISAS = tuple(name for name in ("scalar", "avx2", "avx512", "amx") if native.isa(name) == name)
THREADS = (1, 2, 3)
Floats = NDArray[np.float32]


def random(seed: int, *shape: int, scale: float = 1.0) -> Floats:
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


def padded(x: Floats, extra: int = 3) -> Floats:
    """The same rows in a longer buffer whose tail is NaN: nobody may read or write it."""
    return np.pad(x, ((0, 0), (0, extra)), constant_values=np.nan)


def make_step(
    tokens: int,
    *,
    token_ids: Sequence[int] = (),
    positions: Sequence[int] = (),
    sample_rows: Sequence[int] = (),
    slots: Sequence[int] = (),
) -> native.Step:
    """One sequence of `tokens` tokens; the arrays are longer than the live counts."""

    def ints(values: Sequence[int], length: int) -> NDArray[np.int32]:
        return np.array([*values, *[0] * (length - len(values))], np.int32)

    step = native.Step()
    step.bind(
        token_ids=ints(token_ids, tokens + 2),
        positions=ints(positions or range(tokens), tokens + 2),
        seq_starts=np.array([0, tokens], np.int32),
        context_lens=np.array([tokens], np.int32),
        sample_rows=ints(sample_rows, max(len(sample_rows), 1)),
        kv_slots=[ints(slots, tokens + 2)],
        block_tables=[np.zeros((1, 1), np.int32)],
    )
    step.set(tokens, 1, len(sample_rows))
    return step


def run(add: Callable[[native.Program], Any], step: native.Step, *, isa: str = "", threads: int = 1) -> dict[str, int]:
    """Builds a program, runs it once, returns the counters that moved."""
    program, team = native.Program(isa), native.Team(threads)
    add(program)
    program.run(team, step)
    return {name: value for name, value in team.counters().items() if value}


@dataclass(kw_only=True)
class Matrix:
    """A packed matrix and the values that it stands for."""

    quantised: Quantised
    bias: Floats | None = None
    packed: NDArray[np.uint8] = field(init=False)

    def __post_init__(self) -> None:
        size = len(pack(self.quantised))
        self.region = native.Region(size)
        self.packed = self.region.view()
        self.packed[:] = pack(self.quantised)

    @property
    def weight(self) -> native.Weight:
        fmt, (n, k) = self.quantised.format, self.quantised.shape
        return native.Weight(
            fmt=fmt.native,
            address=self.region.address,
            n=n,
            k=k,
            k_pad=padded_k(fmt, k),
            group=fmt.group,
            panel_bytes=panel_bytes(fmt, k),
            bias=self.bias.ctypes.data if self.bias is not None else 0,
        )

    @property
    def values(self) -> NDArray[np.float64]:
        return dequantise(self.quantised).astype(np.float64)

    def __len__(self) -> int:
        return len(self.packed)


def matrix(seed: int, n: int, k: int, fmt: str = "f32", *, bias: bool = False) -> Matrix:
    return Matrix(
        quantised=quantise(random(seed, n, k, scale=k**-0.5), fmt), bias=random(seed + 1, n) if bias else None
    )


class Acts:
    """An activation buffer of `rows` rows for inputs of `k` columns, poisoned."""

    def __init__(self, rows: int, k: int, name: str) -> None:
        fmt = act_format(name)
        self.type, self.group = name.split("g")[0], fmt.group
        self.ld = k + -k % 128 if fmt.group else k
        groups = self.ld // fmt.group if fmt.group else 0
        self.codes = np.full((rows, self.ld * fmt.bits // 8), 0x7F, np.uint8)
        self.scales = np.full((rows, groups), np.nan, np.float32)
        self.sums = np.full((rows, groups), 1 << 30, np.int32)

    @property
    def act(self) -> native.Act:
        return native.Act(
            type=self.type,
            codes=self.codes.ctypes.data,
            ld=self.ld,
            group=self.group,
            scales=self.scales.ctypes.data if self.group else 0,
            sums=self.sums.ctypes.data if self.group else 0,
        )

    def values(self) -> NDArray[np.float64]:
        """What the codes stand for: [rows, ld]."""
        if self.type == "f32":
            return self.codes.view(np.float32).astype(np.float64)
        codes = self.codes.view(np.int8 if self.type == "a8" else np.int16)
        if self.type == "a16":
            codes = codes.reshape(len(codes), -1, 4)[..., [0, 2, 1, 3]].reshape(len(codes), -1)
        return codes * np.repeat(self.scales.astype(np.float64), self.group, axis=1)

    def same_as(self, other: "Acts") -> bool:
        return all(
            np.array_equal(a, b)
            for a, b in ((self.codes, other.codes), (self.scales, other.scales), (self.sums, other.sums))
        )


def rms_norm(x: Floats, weight: Floats, eps: float) -> NDArray[np.float64]:
    wide = x.astype(np.float64)
    return wide / np.sqrt((wide**2).mean(axis=-1, keepdims=True) + eps) * weight
