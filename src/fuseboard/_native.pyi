"""The native module: memory, thread team and static programs of CPU kernels.

Addresses are plain ints; whoever builds a program keeps the memory behind them alive as long as the program.
Sizes and leading dimensions (`ld...`) are elements. Activations are row-major float32 unless an `Act` says otherwise.
`rows` names the live count that an instruction follows. Every `add_*` returns the index of the new instruction and
raises ValueError for sizes that cannot work or a missing kernel. Counters move where the work happens.
"""

from collections.abc import Sequence
from typing import Literal, final

import numpy as np
from numpy.typing import NDArray

Isa = Literal["scalar", "avx2", "avx512", "amx", "neon", ""]
Axis = Literal["one", "tokens", "seqs", "rows"]
WeightFmt = Literal["f32", "f16", "bf16", "w8", "w8g", "w4", "w4a", "w5"]
ActType = Literal["f32", "a8", "a16"]
KvFmt = Literal["f32", "f16", "bf16", "i8_token", "i8_token_head", "i8_head"]
Activation = Literal["silu", "gelu_tanh"]
AngleIndex = Literal["row", "position"]

TOP_K: int
COUNTERS: tuple[str, ...]

def isa(name: Isa = "") -> str:
    """The kernel set of that name, or the best one for an empty name; empty if this machine cannot run it."""

def has_tile(fmt: WeightFmt, act: ActType, isa: Isa = "") -> bool:
    """Whether a matrix kernel exists for weights of `fmt` with activations of `act`."""

def lm_head_workspace_bytes(vocab: int, max_rows: int, threads: int) -> int:
    """Bytes that `add_lm_head` and `add_top_k` need for a team of `threads` and at most `max_rows` sample rows."""

def measure_bandwidth(threads: int, bytes: int, seconds: float) -> float:
    """Bytes a second that `threads` read from a buffer of `bytes` in huge pages."""

def measure_flops(threads: int, kind: Literal["fma", "int8"], seconds: float = 0.2) -> float:
    """Operations a second from registers; a multiply and an add are two."""

MAX_HEAD_DIM: int

def attention_workspace_bytes(
    *,
    max_tokens: int,
    max_seqs: int,
    max_context: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    naive: bool,
    threads: int,
) -> int:
    """Bytes that `add_attention` needs for every step within these sizes."""

@final
class Region:
    """Zero-filled private memory between two inaccessible guard pages, given physical pages as it is touched."""

    def __init__(self, bytes: int, *, huge: bool = False, name: str = "") -> None: ...
    @property
    def address(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    @property
    def name(self) -> str:
        """Shown as `[anon:name]` in smaps where the kernel has named mappings."""

    @property
    def huge(self) -> bool:
        """Huge pages were asked for."""

    @property
    def huge_advised(self) -> bool:
        """The kernel took the advice; smaps tells whether it followed it."""

    def release(self, offset: int, bytes: int) -> None:
        """Gives the whole pages inside the range back; they read as zero afterwards."""

    def view(self, offset: int = 0, bytes: int = -1) -> NDArray[np.uint8]:
        """A writable array over part of the region (the rest for -1), which it keeps alive."""

@final
class Team:
    """`threads` workers of which the calling thread is worker 0; the others spin briefly, then sleep.

    `cpus`, if given, holds one CPU for each worker; the calling thread stays on the first while a program runs and may
    go where it could before afterwards. ValueError for a CPU this process may not use. With `driven` a thread of the
    team's own is worker 0, so that `Program.start` can return at once.
    """

    def __init__(self, threads: int, *, cpus: Sequence[int] = (), driven: bool = False) -> None: ...
    @property
    def threads(self) -> int: ...
    @property
    def scratch(self) -> Region:
        """Private scratch memory of all workers."""

    def wait(self) -> None:
        """Until nothing runs that was started."""

    def counters(self) -> dict[str, int]: ...
    def reset_counters(self) -> None: ...

@final
class Step:
    """The StepBatch arrays as kernels see them; `bind` once a buffer, `set` once a step."""

    def __init__(self) -> None: ...
    def bind(
        self,
        *,
        token_ids: NDArray[np.int32],
        positions: NDArray[np.int32],
        seq_starts: NDArray[np.int32],
        context_lens: NDArray[np.int32],
        sample_rows: NDArray[np.int32],
        kv_slots: Sequence[NDArray[np.int32]],
        block_tables: Sequence[NDArray[np.int32]],
    ) -> None:
        """Takes C-contiguous int32 arrays, which it keeps alive; block tables are [S, B], the rest [capacity]."""

    def set(self, num_tokens: int, num_seqs: int, num_rows: int) -> None:
        """Sets the live counts; ValueError if they exceed what the bound arrays hold."""

@final
class Weight:
    """A packed matrix [n, k]; `bias` is the address of float32 [n] or 0."""

    def __init__(
        self,
        *,
        fmt: WeightFmt,
        address: int,
        n: int,
        k: int,
        k_pad: int,
        panel_bytes: int,
        group: int = 0,
        bias: int = 0,
    ) -> None: ...

@final
class Act:
    """Activations [rows, ld]; a8 and a16 have a scale and a sum for every `group` columns."""

    def __init__(
        self, *, type: ActType, codes: int, ld: int, scales: int = 0, sums: int = 0, group: int = 0
    ) -> None: ...

@final
class KvPool:
    """One layer's KV blocks; `group` is the index of its cache group in the step."""

    def __init__(
        self,
        *,
        fmt: KvFmt,
        address: int,
        block_bytes: int,
        block_size: int,
        kv_heads: int,
        head_dim: int,
        head_scales: int = 0,
        group: int = 0,
    ) -> None: ...

@final
class Segment:
    """A weight and where its product goes: float32 [rows, ldo]."""

    def __init__(self, *, weight: Weight, out: int, ldo: int) -> None: ...

@final
class Tiling:
    """Sizes that were measured: units of work for each worker at least, rows of a tile at most (1 to 256)."""

    def __init__(self, *, units: int, rows: int) -> None: ...

@final
class Program:
    """A list of instructions run by a team, with one barrier after each that is not joined with the next.

    `run` is graph mode: all instructions in one call (counter `graph_replays`). `run_range` and `run_one` are single
    native calls (counter `eager_calls` moves by one a call). All release the GIL.
    """

    def __init__(self, isa: Isa = "") -> None: ...
    @property
    def isa(self) -> str: ...
    def __len__(self) -> int: ...
    def labels(self) -> list[str]: ...
    def join(self, begin: int, end: int) -> None:
        """The instructions need nothing of each other, so there is no barrier between them; ValueError for over 8."""

    def prefetch_weights(self) -> None:
        """Workers that wait pull in the first weights of the instruction that comes; call it after the last `add_*`."""

    def run(self, team: Team, step: Step) -> None: ...
    def start(self, team: Team, step: Step) -> None:
        """`run` on a driven team, without waiting: program and step have to live until `team.wait()`."""

    def run_one(self, team: Team, index: int, step: Step) -> None: ...
    def run_range(self, team: Team, begin: int, end: int, step: Step) -> None: ...
    def profile(self, on: bool) -> None:
        """Switches per-instruction timing on or off and clears what was collected."""

    def times(self) -> list[tuple[int, str, int, int]]:
        """(index, label, calls, nanoseconds) of every instruction since profiling was switched on."""

    def add_embed(self, label: str, *, weight: Weight, out: int, ldo: int) -> int:
        """out[T, k] = rows token_ids of `weight`."""

    def add_rms_norm(
        self,
        label: str,
        *,
        x: int,
        ldx: int,
        weight: int,
        eps: float,
        out: int,
        ldo: int,
        dim: int,
        rows: Axis,
        chunks: int = 1,
    ) -> int:
        """RMSNorm of `chunks` consecutive vectors of `dim` a row, all with the same weight [dim]."""

    def add_affine(
        self,
        label: str,
        *,
        x: int,
        ldx: int,
        scale: float,
        shift: float,
        out: int,
        ldo: int,
        n: int,
        rows: Axis,
    ) -> int:
        """out = x * scale + shift."""

    def add_softcap(self, label: str, *, x: int, ldx: int, cap: float, out: int, ldo: int, n: int, rows: Axis) -> int:
        """out = cap * tanh(x / cap)."""

    def add_activation(
        self, label: str, *, kind: Activation, x: int, ldx: int, out: int, ldo: int, n: int, rows: Axis
    ) -> int: ...
    def add_mul(
        self, label: str, *, a: int, lda: int, b: int, ldb: int, out: int, ldo: int, n: int, rows: Axis
    ) -> int: ...
    def add_add(
        self, label: str, *, a: int, lda: int, b: int, ldb: int, out: int, ldo: int, n: int, rows: Axis
    ) -> int: ...
    def add_gather_rows(self, label: str, *, x: int, ldx: int, out: int, ldo: int, n: int) -> int:
        """out[R, n] = x[sample_rows]."""

    def add_rope_angles(self, label: str, *, inv_freq: int, factor: float, out: int, dim: int) -> int:
        """out[T, dim] = factor * (cos | sin) of positions times inv_freq[dim / 2]."""

    def add_rope(
        self,
        label: str,
        *,
        x: int,
        ldx: int,
        angles: int,
        index: AngleIndex,
        out: int,
        ldo: int,
        heads: int,
        dim: int,
    ) -> int:
        """Rotates pairs (i, i + dim / 2) of every head; `angles` [., dim] is read by row or by position."""

    def add_quantise(self, label: str, *, x: int, ldx: int, k: int, out: Act, rows: Axis) -> int:
        """Float32 rows to `out`, padded with zeros to its ld."""

    def add_norm_quantise(
        self, label: str, *, x: int, ldx: int, weight: int, eps: float, k: int, out: Act, rows: Axis
    ) -> int:
        """RMSNorm, then as `add_quantise`; the normalised row never leaves the worker."""

    def add_linear(
        self,
        label: str,
        *,
        x: Act,
        segments: Sequence[Segment],
        rows: Axis,
        residual: int = 0,
        ldr: int = 0,
        fused_qkv: bool = False,
        tiling: Tiling = ...,
    ) -> int:
        """out = x w^T + bias (+ residual, which may be `out`) for 1 to 4 segments that share x.

        A residual needs a single segment and counts `fused_residual`; `fused_qkv` counts `fused_qkv`.
        """

    def add_norm_qkv_rope(
        self,
        label: str,
        *,
        x: int,
        ldx: int,
        norm: int,
        eps: float,
        act: Act,
        q: Weight,
        k: Weight,
        v: Weight,
        angles: int,
        index: AngleIndex,
        q_out: int,
        ldq: int,
        pool: KvPool,
        q_norm: int = 0,
        k_norm: int = 0,
        qk_eps: float = 0.0,
        tiling: Tiling = ...,
    ) -> int:
        """Norm, QKV, bias, q/k norm, rope; q to `q_out` [T, H D], k and v into the pool. Needs head_dim % 16 == 0.

        `act` is the only buffer: the normalised input in the type the weights' kernel reads. `norm` may be 0.
        """

    def add_swiglu(
        self,
        label: str,
        *,
        x: int,
        ldx: int,
        norm: int,
        eps: float,
        act: Act,
        gate: Weight,
        up: Weight,
        activation: Activation,
        out: Act,
        tiling: Tiling = ...,
    ) -> int:
        """out[T, n] = activation(gate(norm x)) * up(norm x), as float32 or already quantised. `norm` may be 0."""

    def add_kv_write(self, label: str, *, k: int, ldk: int, v: int, ldv: int, pool: KvPool) -> int:
        """k, v [T, kv_heads head_dim] into the slots of the step."""

    def add_attention(
        self,
        label: str,
        *,
        kind: Literal["naive", "blockwise"],
        q: int,
        ldq: int,
        out: int,
        ldo: int,
        pool: KvPool,
        heads: int,
        scale: float,
        softcap: float = 0.0,
        window: int = 0,
        workspace: int = 0,
    ) -> int: ...
    def add_top_k(
        self, label: str, *, logits: int, ldl: int, vocab: int, ids: int, top: int, logsumexp: int, workspace: int
    ) -> int:
        """ids [R, 64] int32 and top [R, 64] by falling logit, ties by rising id; logsumexp [R].

        With fewer than 64 words the rest is id -1 and logit -inf.
        """

    def add_lm_head(
        self,
        label: str,
        *,
        x: int,
        ldx: int,
        norm: int,
        eps: float,
        act: Act,
        head: Weight,
        ids: int,
        top: int,
        logsumexp: int,
        workspace: int,
        softcap: float = 0.0,
        tiling: Tiling = ...,
    ) -> int:
        """`add_top_k` of the head's logits of the rows sample_rows of x, which are never stored. `norm` may be 0."""
