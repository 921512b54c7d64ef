"""Ragged batches for the attention kernels: paged memory full of NaN, a native run, and a float64 reference.

Shape suffixes: T tokens, H query heads, K KV heads, D head size, S sequences, B blocks.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fuseboard import _native as native
from fuseboard.formats.kv import KV_FORMATS, KvFormat, block_bytes, fake_quantise

ISAS = tuple(name for name in ("scalar", "avx2", "avx512", "amx") if native.isa(name) == name)
Floats = NDArray[np.float32]
GUARD_BYTES = 1 << 16


@dataclass(frozen=True, kw_only=True)
class Shape:
    kv_heads: int = 2
    group: int = 3
    head_dim: int = 64
    window: int = 0
    softcap: float = 0.0

    @property
    def heads(self) -> int:
        return self.kv_heads * self.group

    @property
    def scale(self) -> float:
        return float(np.float32(self.head_dim**-0.5))


@dataclass(kw_only=True)
class Cache:
    """One layer's pool in which blocks are handed out in shuffled order; everything never written is NaN."""

    fmt: KvFormat
    shape: Shape
    block_size: int
    blocks: int
    head_scales: Floats | None = None
    free: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.block_bytes = block_bytes(self.fmt, self.block_size, self.shape.kv_heads, self.shape.head_dim)
        self.region = native.Region(self.block_bytes * self.blocks)
        self.memory_B = self.region.view().reshape(self.blocks, self.block_bytes)
        self.memory_B[:] = 0xFF
        if not self.free:
            self.free = [int(b) for b in np.random.default_rng(7).permutation(np.arange(1, self.blocks))]

    def table(self, tokens: int) -> list[int]:
        return [self.free.pop() for _ in range(-(-tokens // self.block_size))]

    def pool(self) -> native.KvPool:
        scales = self.head_scales.ctypes.data if self.head_scales is not None else 0
        return native.KvPool(
            fmt=self.fmt.native,
            address=self.region.address,
            block_bytes=self.block_bytes,
            block_size=self.block_size,
            kv_heads=self.shape.kv_heads,
            head_dim=self.shape.head_dim,
            head_scales=scales,
        )


@dataclass(kw_only=True)
class Batch:
    """Sequences of a step: (context before, tokens now, block table)."""

    sequences: list[tuple[int, int, list[int]]]

    @property
    def tokens(self) -> int:
        return sum(new for _, new, _ in self.sequences)

    def step(self, block_size: int) -> native.Step:
        T, S = self.tokens, len(self.sequences)
        starts = np.cumsum([0] + [new for _, new, _ in self.sequences])
        positions = np.concatenate([np.arange(old, old + new) for old, new, _ in self.sequences])
        tables = np.zeros((S, max(len(t) for *_, t in self.sequences) + 1), np.int32)
        for row, (_, _, table) in zip(tables, self.sequences, strict=True):
            row[: len(table)] = table
        owner = np.repeat(np.arange(S), [new for _, new, _ in self.sequences])
        slots = tables[owner, positions // block_size] * block_size + positions % block_size
        zeros = np.zeros(max(T, S), np.int32)
        step = native.Step()
        step.bind(
            token_ids=zeros,
            positions=positions.astype(np.int32),
            seq_starts=starts.astype(np.int32),
            context_lens=np.array([old + new for old, new, _ in self.sequences], np.int32),
            sample_rows=zeros,
            kv_slots=[slots.astype(np.int32)],
            block_tables=[tables],
        )
        step.set(T, S, 1)
        return step


def write(cache: Cache, batch: Batch, k_TKD: Floats, v_TKD: Floats, *, isa: str = "", threads: int = 1) -> int:
    """Stores the batch's keys and values; returns how many values a static scale clipped."""
    width = cache.shape.kv_heads * cache.shape.head_dim
    k, v = np.ascontiguousarray(k_TKD), np.ascontiguousarray(v_TKD)
    program, team = native.Program(isa), native.Team(threads)
    program.add_kv_write("write", k=k.ctypes.data, ldk=width, v=v.ctypes.data, ldv=width, pool=cache.pool())
    program.run(team, batch.step(cache.block_size))
    return team.counters()["kv_clipped"]


def attend(
    cache: Cache,
    batch: Batch,
    q_THD: Floats,
    *,
    kind: str = "blockwise",
    isa: str = "",
    threads: int = 1,
    max_seqs: int = 0,
) -> tuple[Floats, dict[str, int]]:
    """Output [T, H, D] and the counters; fails if the workspace is used beyond its planned size."""
    shape = cache.shape
    ldq, ldo = shape.heads * shape.head_dim + 5, shape.heads * shape.head_dim + 3
    q = np.full((batch.tokens, ldq), np.nan, np.float32)
    q[:, : shape.heads * shape.head_dim] = q_THD.reshape(batch.tokens, -1)
    out = np.full((batch.tokens, ldo), np.nan, np.float32)
    planned = workspace_bytes(shape, batch, kind, threads, max_seqs or len(batch.sequences))
    workspace = native.Region(planned + GUARD_BYTES)
    workspace.view()[:] = 0xFF
    program, team = native.Program(isa), native.Team(threads)
    program.add_attention(
        "attention",
        kind=kind,
        q=q.ctypes.data,
        ldq=ldq,
        out=out.ctypes.data,
        ldo=ldo,
        pool=cache.pool(),
        heads=shape.heads,
        scale=shape.scale,
        softcap=shape.softcap,
        window=shape.window,
        workspace=workspace.address,
    )
    program.run(team, batch.step(cache.block_size))
    assert np.isnan(out[:, shape.heads * shape.head_dim :]).all(), "wrote beyond a row"
    assert (workspace.view()[planned:] == 0xFF).all(), "wrote beyond the workspace"
    return out[:, : shape.heads * shape.head_dim].reshape(batch.tokens, shape.heads, shape.head_dim), team.counters()


def workspace_bytes(shape: Shape, batch: Batch, kind: str, threads: int, max_seqs: int) -> int:
    return native.attention_workspace_bytes(
        max_tokens=batch.tokens,
        max_seqs=max_seqs,
        max_context=max(old + new for old, new, _ in batch.sequences),
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        naive=kind == "naive",
        threads=threads,
    )


def reference(shape: Shape, q_THD: Floats, k_TKD: Floats, v_TKD: Floats, first: int) -> NDArray[np.float64]:
    """Attention of the queries at positions first, first + 1, ... over all keys, in float64: [T, H, D]."""
    k = np.repeat(k_TKD.astype(np.float64), shape.group, axis=1)
    v = np.repeat(v_TKD.astype(np.float64), shape.group, axis=1)
    scores = np.einsum("thd,shd->hts", q_THD.astype(np.float64), k) * shape.scale
    if shape.softcap:
        scores = shape.softcap * np.tanh(scores / shape.softcap)
    at, key = np.arange(first, first + len(q_THD))[:, None], np.arange(len(k))[None, :]
    hidden = (key > at) | ((key <= at - shape.window) if shape.window else False)
    scores = np.where(hidden, -np.inf, scores)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return np.einsum("hts,shd->thd", weights / weights.sum(axis=-1, keepdims=True), v)


@dataclass(kw_only=True)
class Filled:
    """A cache that holds earlier contexts, the batch that comes next, its queries and the stored keys and values."""

    cache: Cache
    batch: Batch
    q_THD: Floats
    keys: list[Floats]
    values: list[Floats]

    def expected(self) -> NDArray[np.float64]:
        rows, start = [], 0
        for (old, new, _), k, v in zip(self.batch.sequences, self.keys, self.values, strict=True):
            rows.append(reference(self.cache.shape, self.q_THD[start : start + new], k, v, old))
            start += new
        return np.concatenate(rows)


def blocks_for(block_size: int, lengths: list[int]) -> int:
    """What the sequences need, the null block and one more."""
    return 2 + sum(-(-n // block_size) for n in lengths)


def filled(
    shape: Shape,
    contexts: list[tuple[int, int]],
    *,
    fmt: str = "f32",
    block_size: int = 64,
    isa: str = "",
    seed: int = 0,
) -> Filled:
    """Stores sequences of (context before, tokens now); sequence i has the same data whatever comes with it."""
    kv = KV_FORMATS[fmt]
    cache = Cache(
        fmt=kv, shape=shape, block_size=block_size, blocks=blocks_for(block_size, [a + b for a, b in contexts])
    )
    data = [sequence_data(shape, old + new, seed + i) for i, (old, new) in enumerate(contexts)]
    if kv.calibrated:
        cache.head_scales = np.linspace(0.03, 0.05, 2 * shape.kv_heads, dtype=np.float32).reshape(2, shape.kv_heads)
    tables = [cache.table(old + new) for old, new in contexts]
    everything = Batch(sequences=[(0, old + new, table) for (old, new), table in zip(contexts, tables, strict=True)])
    write(cache, everything, np.concatenate([d[1] for d in data]), np.concatenate([d[2] for d in data]), isa=isa)
    scales = cache.head_scales if cache.head_scales is not None else (None, None)
    return Filled(
        cache=cache,
        batch=Batch(sequences=[(old, new, table) for (old, new), table in zip(contexts, tables, strict=True)]),
        q_THD=np.concatenate([d[0][old:] for d, (old, _) in zip(data, contexts, strict=True)]),
        keys=[fake_quantise(d[1], kv, scales[0]) for d in data],
        values=[fake_quantise(d[2], kv, scales[1]) for d in data],
    )


def sequence_data(shape: Shape, tokens: int, seed: int) -> tuple[Floats, Floats, Floats]:
    rng = np.random.default_rng(seed)
    q = 2 * rng.standard_normal((tokens, shape.heads, shape.head_dim), np.float32)
    k = rng.standard_normal((tokens, shape.kv_heads, shape.head_dim), np.float32)
    v = rng.standard_normal((tokens, shape.kv_heads, shape.head_dim), np.float32)
    return q, k + np.float32(0.5), v
