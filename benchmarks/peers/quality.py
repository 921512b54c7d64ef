"""How far the formats are from float32: ours through our own engine, llama.cpp's through its own tool.

Both score the second half of chunks of 512 tokens of one text, against float32 weights of the same file.

    python -m benchmarks.peers.quality '{"model": ..., "text": ..., "chunks": 16, "formats": ["native"], "threads": 2}'
"""

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers.install import Home, gguf
from benchmarks.peers.process import PeerError, run
from benchmarks.peers.work import QUALITY_CHUNKS, QUALITY_FILES, QUALITY_FORMATS

Divergence = dict[str, dict[str, float]]
"""Statistics by format."""

CHUNK = 512
TIMEOUT_S = 1800.0
PATTERNS = {
    "kl_mean": r"Mean\s+KLD:\s+(\S+)",
    "kl_p999": r"99\.9%\s+KLD:\s+(\S+)",
    "same_top_1": r"Same top p:\s+(\S+)",
    "ln_ppl_ratio": r"Mean ln\(PPL\(Q\)/PPL\(base\)\)\s*:\s+(\S+)",
}


def both(at: Home, model: str, shipped: Path, text: Path, threads: int, share: float) -> Divergence:
    """Divergence by format; `share` of the usual number of chunks is scored."""
    chunks = max(1, round(QUALITY_CHUNKS[model] * share))
    return ours(shipped, text, chunks, threads) | llama(at, shipped, text, chunks, threads)


def ours(shipped: Path, text: Path, chunks: int, threads: int) -> Divergence:
    spec = {
        "model": str(shipped),
        "text": str(text),
        "chunks": chunks,
        "formats": QUALITY_FORMATS,
        "threads": threads,
    }
    command = [sys.executable, "-m", "benchmarks.peers.quality", json.dumps(spec)]
    found: Divergence = json.loads(run(command, timeout_s=TIMEOUT_S).out)
    return {f"ours {name}": values for name, values in found.items()}


def llama(at: Home, shipped: Path, text: Path, chunks: int, threads: int) -> Divergence:
    base = at.models / f"{shipped.stem}.base.{chunks}"
    common = ["-f", str(text), "-c", str(CHUNK), "--chunks", str(chunks), "-t", str(threads)]
    tool = str(at.tool("llama-perplexity"))
    if not base.exists():
        part = base.with_suffix(".part")
        reference = ["-m", str(gguf(at, shipped, "F32")), "--kl-divergence-base", str(part)]
        run([tool, *reference, *common], timeout_s=TIMEOUT_S)
        part.replace(base)
    found = {}
    for kind in QUALITY_FILES:
        compared = ["-m", str(gguf(at, shipped, kind)), "--kl-divergence-base", str(base), "--kl-divergence"]
        done = run([tool, *compared, *common], timeout_s=TIMEOUT_S)
        found[f"llama.cpp {kind}"] = parse(done.out + done.err)
    return found


def parse(text: str) -> dict[str, float]:
    """The statistics that llama-perplexity prints; shares instead of percentages."""
    found = {}
    for key, pattern in PATTERNS.items():
        match = re.search(pattern, text)
        if match is None:
            raise PeerError(f"llama-perplexity printed no {key}.")
        found[key] = float(match[1].rstrip("%"))
    return found | {"same_top_1": found["same_top_1"] / 100}


def measure(spec: dict[str, Any]) -> Divergence:
    """Ours: all formats against float32 weights and cache, chunk by chunk."""
    from fuseboard.measure.subject import EngineArgs, load_subject

    def args(weights: str, cache: str) -> EngineArgs:
        switches = subject_args | {"weights": weights, "kv.dtype": cache}
        return EngineArgs(
            model=spec["model"], switches=switches, threads=spec["threads"], max_model_len=CHUNK, max_num_seqs=1
        )

    subject = load_subject(EngineArgs(model=spec["model"], switches={}, threads=spec["threads"]))
    subject_args = dict(subject.profile)
    tokenizer = subject.model.tokenizer
    ids = tokenizer.encode(Path(spec["text"]).read_text(encoding="utf-8"), add_special=True)
    pieces = [ids[i * CHUNK : (i + 1) * CHUNK] for i in range(spec["chunks"])]
    base = subject.open(args("f32", "f32"))
    expected = [scored_logits(base, piece) for piece in pieces]
    base.engine.close()
    return {weights: score(subject.open(args(weights, "f16")), pieces, expected) for weights in spec["formats"]}


def scored_logits(opened: Any, piece: Sequence[int]) -> Any:
    """Logits [N, V] of the rows that count."""
    from fuseboard.measure.quality import text_logits

    return text_logits(opened, piece)[CHUNK // 2 : -1].copy()


def score(opened: Any, pieces: Sequence[Sequence[int]], expected: Sequence[Any]) -> dict[str, float]:
    import numpy as np

    from fuseboard.measure.quality import row_scores

    parts = []
    for piece, logits_NV in zip(pieces, expected, strict=True):
        rows = row_scores(logits_NV, scored_logits(opened, piece), piece[CHUNK // 2 : -1])
        parts.append(rows)
    opened.engine.close()
    kl, same, worse = (np.concatenate([part[key] for part in parts]) for key in ("kl", "same", "worse"))
    return {
        "kl_mean": float(kl.mean()),
        "kl_p999": float(np.percentile(kl, 99.9)),
        "same_top_1": float(same.mean()),
        "ln_ppl_ratio": float(np.nanmean(worse)),
    }


if __name__ == "__main__":
    print(json.dumps(measure(json.loads(sys.argv[1]))))
