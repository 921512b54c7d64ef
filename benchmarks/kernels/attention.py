"""Microseconds and GB/s of the attention kernels, by stored format, context and work.

    python benchmarks/kernels/attention.py [--isa avx2] [--threads 2] [--kv-heads 2] [--group 7] [--head-dim 64]

Decode: one query row over the context. Prefill: the last 128 rows of it. Times are medians (best in brackets); GB/s
counts the stored keys and values once. Blocks lie in shuffled order, as in a used pool.
"""

import argparse
import time
from collections.abc import Callable

import numpy as np

from fuseboard import _native as native
from fuseboard.formats.kv import KV_FORMATS, KvFormat, block_bytes

PREFILL_ROWS = 128


def make_step(context: int, rows: int, block_size: int) -> tuple[native.Step, int]:
    blocks = -(-context // block_size)
    table = np.random.default_rng(0).permutation(np.arange(1, blocks + 1)).astype(np.int32)
    positions = np.arange(context - rows, context, dtype=np.int32)
    step = native.Step()
    step.bind(
        token_ids=np.zeros(rows, np.int32),
        positions=positions,
        seq_starts=np.array([0, rows], np.int32),
        context_lens=np.array([context], np.int32),
        sample_rows=np.zeros(1, np.int32),
        kv_slots=[(table[positions // block_size] * block_size + positions % block_size).astype(np.int32)],
        block_tables=[table[None]],
    )
    step.set(rows, 1, 1)
    return step, blocks + 1


def measure(run: Callable[[], None], seconds: float) -> tuple[float, float]:
    """Median and best time of a call, in microseconds."""
    times, stop = [], time.perf_counter() + seconds
    run()
    while time.perf_counter() < stop or len(times) < 5:
        begin = time.perf_counter_ns()
        run()
        times.append((time.perf_counter_ns() - begin) / 1000)
    return float(np.median(times)), min(times)


def attention_call(args: argparse.Namespace, fmt: KvFormat, context: int, rows: int) -> Callable[[], None]:
    step, blocks = make_step(context, rows, args.block_size)
    heads, size = args.kv_heads * args.group, block_bytes(fmt, args.block_size, args.kv_heads, args.head_dim)
    memory = native.Region(blocks * size, huge=True)
    scales = np.full(2 * args.kv_heads, 0.03, np.float32)
    q = np.random.default_rng(1).standard_normal((rows, heads * args.head_dim), np.float32)
    out = np.zeros_like(q)
    workspace = native.Region(
        64
        + native.attention_workspace_bytes(
            max_tokens=rows,
            max_seqs=1,
            max_context=context,
            heads=heads,
            kv_heads=args.kv_heads,
            head_dim=args.head_dim,
            naive=args.kind == "naive",
            threads=args.threads,
        )
    )
    pool = native.KvPool(
        fmt=fmt.native,
        address=memory.address,
        block_bytes=size,
        block_size=args.block_size,
        kv_heads=args.kv_heads,
        head_dim=args.head_dim,
        head_scales=scales.ctypes.data,
    )
    program, team = native.Program(args.isa), native.Team(args.threads)
    program.add_attention(
        "attention",
        kind=args.kind,
        q=q.ctypes.data,
        ldq=q.shape[1],
        out=out.ctypes.data,
        ldo=q.shape[1],
        pool=pool,
        heads=heads,
        scale=args.head_dim**-0.5,
        window=args.window,
        workspace=workspace.address,
    )
    kept = (memory, scales, q, out, workspace)

    def call() -> None:
        assert kept
        program.run(team, step)

    return call


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--isa", default="")
    parser.add_argument("--kind", choices=("naive", "blockwise"), default="blockwise")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--kv-heads", type=int, default=2)
    parser.add_argument("--group", type=int, default=7)
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--block-size", type=int, default=64)
    parser.add_argument("--window", type=int, default=0)
    parser.add_argument("--contexts", type=int, nargs="+", default=[512, 2048, 8192, 32768])
    parser.add_argument("--formats", nargs="+", default=list(KV_FORMATS))
    parser.add_argument("--seconds", type=float, default=0.3)
    args = parser.parse_args()
    print(f"{native.isa(args.isa)}, {args.threads} threads, {args.kind}, block {args.block_size}")
    print(f"{'work':8}{'format':17}{'context':>8}{'us':>22}{'GB/s':>8}{'GFLOPS':>8}")
    for work, rows in (("decode", 1), ("prefill", PREFILL_ROWS)):
        for name in args.formats:
            fmt = KV_FORMATS[name]
            for context in args.contexts:
                median, best = measure(attention_call(args, fmt, context, rows), args.seconds)
                keys = min(context, args.window + rows - 1) if args.window else context
                per_key = 2 * args.kv_heads * args.head_dim * fmt.element_bytes + fmt.scale_bytes(args.kv_heads)
                seen = min(args.window, context) if args.window else context - (rows - 1) / 2
                operations = 4 * rows * seen * args.kv_heads * args.group * args.head_dim
                times = f"{median:.1f} [{best:.1f}]"
                gbps, gflops = keys * per_key / median / 1e3, operations / median / 1e3
                print(f"{work:8}{name:17}{context:8}{times:>22}{gbps:8.1f}{gflops:8.1f}", flush=True)


if __name__ == "__main__":
    main()
