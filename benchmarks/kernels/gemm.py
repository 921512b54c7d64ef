"""Linear kernels against ceilings measured in the same run: GB/s where memory binds, GOPS where arithmetic does.

    python benchmarks/kernels/gemm.py [--isa avx2] [--formats w4g32,w8] [--threads 2] [--seconds 0.2]

A multiply and an add are two operations. `limit` is the larger share of the two ceilings: bytes over the measured read
rate, operations over the measured peak (int8 for quantised activations of 8 bits, half of it for 16, else float32
FMA). One-row calls use a matrix far larger than the caches, blocks of rows one that fits.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from fuseboard import _native
from fuseboard.formats.panels import pack, padded_k
from fuseboard.formats.quantise import quantise
from fuseboard.formats.weights import WEIGHT_FORMATS, act_format, weight_format

ROW_BLOCK = 64
SMALL = (4864, 896)
ROWS = (1, 2, 3, 4, 6, 8, 16, 64)


def activations(isa: str, act: str, rows: int, k: int, ld: int) -> tuple:
    fmt = act_format(act)
    groups = ld // fmt.group if fmt.group else 0
    codes = np.zeros((rows, ld * fmt.bits // 8), np.uint8)
    scales, sums = np.zeros((rows, groups), np.float32), np.zeros((rows, groups), np.int32)
    x = np.random.default_rng(1).standard_normal((rows, k), np.float32)
    _native.quantise(isa, act.split("g")[0], fmt.group, x, codes, scales, sums)
    return act.split("g")[0], fmt.group, codes, scales, sums


def seconds_of(work: Callable[[int], None], threads: int, budget: float) -> float:
    """Median time of `work(thread)` on all threads together."""
    times: list[float] = []
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, range(threads)))
        end = time.perf_counter() + budget
        while time.perf_counter() < end or len(times) < 3:
            start = time.perf_counter()
            list(pool.map(work, range(threads)))
            times.append(time.perf_counter() - start)
    return statistics.median(times)


def measure(name: str, act: str, rows: int, args: argparse.Namespace) -> tuple[float, float]:
    """(bytes a second, operations a second) of one product."""
    n, k = SMALL if rows > 8 else (int(96e6 / 896 / weight_format(name).bits * 8), 896)
    isa = args.isa
    fmt = weight_format(name)
    ld = padded_k(fmt, k)
    # Contents do not change the speed, so a small matrix is quantised and repeated.
    packed = np.tile(pack(quantise(np.random.default_rng(0).standard_normal((256, k), np.float32), name)), -(-n // 256))
    n = -(-n // 256) * 256
    panels, inputs = n // 16, activations(isa, act, rows, k, ld)
    cuts = [panels * t // args.threads for t in range(args.threads + 1)]
    tiles = [np.zeros((min(rows, ROW_BLOCK), panels * 16), np.float32) for _ in range(args.threads)]

    def work(t: int) -> None:
        for m in range(0, rows, ROW_BLOCK):
            _native.linear_tile(
                isa,
                fmt.native,
                packed,
                n,
                k,
                ld,
                fmt.group,
                *inputs,
                m,
                min(rows, m + ROW_BLOCK),
                cuts[t],
                cuts[t + 1],
                tiles[t],
            )

    seconds = seconds_of(work, args.threads, args.seconds)
    return packed.nbytes / seconds, 2 * rows * n * k / seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--isa", default=_native.isa())
    parser.add_argument("--formats", default=",".join(WEIGHT_FORMATS))
    parser.add_argument("--rows", default=",".join(map(str, ROWS)))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=0.2)
    args = parser.parse_args()
    read = _native.measure_bandwidth(args.threads, 256 << 20, args.seconds)
    fma, int8 = (_native.measure_flops(args.threads, kind, args.seconds) for kind in ("fma", "int8"))
    print(
        f"{args.isa}, {args.threads} threads: read {read / 1e9:.1f} GB/s, peaks of the best instruction set "
        f"{fma / 1e9:.0f} (fma) and {int8 / 1e9:.0f} (int8) GOPS"
    )
    print(f"{'weights':8} {'input':6} {'rows':>4} {'GB/s':>7} {'GOPS':>7} {'limit':>6}")
    for name in args.formats.split(","):
        for act in weight_format(name).acts:
            peak = {"a8": int8, "a1": int8 / 2}.get(act[:2], fma)
            for rows in map(int, args.rows.split(",")):
                rate, operations = measure(name, act, rows, args)
                share = max(rate / read if rows <= 8 else 0, operations / peak)
                print(f"{name:8} {act:6} {rows:4} {rate / 1e9:7.1f} {operations / 1e9:7.0f} {share:6.0%}", flush=True)


if __name__ == "__main__":
    main()
