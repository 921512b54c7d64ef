"""What is measured: the rows of the comparison, as data."""

from dataclasses import dataclass
from typing import Literal

MODELS = {"SmolLM2": "smollm2-135m", "Qwen": "qwen2.5-coder-0.5b"}
"""Short name: entry of the model catalogue."""

QUALITY_CHUNKS = {"SmolLM2": 16, "Qwen": 8}
"""Chunks of 512 tokens over which the divergence from float32 is measured."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """Token work of one process. `prefill` computes a prompt, `decode` counts `output` steps after it.

    `batch` sequences run at once, each with `prompt` tokens in.
    """

    kind: Literal["prefill", "decode"]
    prompt: int
    output: int = 0
    batch: int = 1

    @property
    def label(self) -> str:
        if self.kind == "prefill":
            return f"prefill {self.prompt}"
        return f"decode {self.batch} x {self.output} after {self.prompt}"


@dataclass(frozen=True, kw_only=True)
class Row:
    """Work on a model: `weights` is our switch (None: all switches off), `file` the format of the peers' GGUF file.

    `bar` is the ratio to llama.cpp that is asked for: at least, or with `as_time` at most, ours over theirs.
    """

    key: str
    model: str
    work: Work
    weights: str | None
    file: str
    bar: float | None = None
    as_time: bool = False
    peers: tuple[str, ...] = ("llama.cpp", "openvino")

    @property
    def switches(self) -> dict[str, str]:
        return {} if self.weights is None else {"weights": self.weights}


W4, W4_FINE, W4_PAIRS, W8 = "w4a8:g64", "w4a8:g32", "w4a8:g32a", "w8a16"
ONE = Work(kind="decode", prompt=128, output=128)
PROMPT = Work(kind="prefill", prompt=512)
TRANSFORMERS = ("transformers-f32", "transformers-bf16")


def _batch(model: str, batch: int, bar: float) -> Row:
    work = Work(kind="decode", prompt=128, output=64, batch=batch)
    return Row(
        key=f"decode-{batch}-{model}", model=model, work=work, weights=W4, file="Q4_0", bar=bar, peers=("llama.cpp",)
    )


def _both(key: str, work: Work, weights: str | None, file: str, bars: tuple[float | None, float | None]) -> list[Row]:
    """The same work on both models."""
    return [
        Row(key=f"{key}-{model}", model=model, work=work, weights=weights, file=file, bar=bar)
        for model, bar in zip(MODELS, bars, strict=True)
    ]


def _context(length: int) -> Row:
    work = Work(kind="decode", prompt=length, output=32)
    return Row(key=f"context-{length}-Qwen", model="Qwen", work=work, weights=W4, file="Q4_0", bar=1.7)


def _first_token(model: str) -> Row:
    work = Work(kind="prefill", prompt=2000)
    return Row(key=f"ttft-2000-{model}", model=model, work=work, weights=W4, file="Q4_0", bar=0.5, as_time=True)


def _frameworks() -> list[Row]:
    """Against transformers: the default settings, and all switches off in float32."""
    rows = []
    for key, work in (("decode", ONE), ("prefill", PROMPT)):
        rows.append(
            Row(key=f"{key}-transformers", model="SmolLM2", work=work, weights="native", file="F32", peers=TRANSFORMERS)
        )
        rows.append(Row(key=f"{key}-off", model="SmolLM2", work=work, weights=None, file="F32", peers=TRANSFORMERS[:1]))
    return rows


ROWS: tuple[Row, ...] = (
    *_both("decode-native", ONE, "native", "shipped", (2.3, 1.4)),
    *_both("decode-w4", ONE, W4, "Q4_0", (1.8, 1.7)),
    *_both("decode-w4g32", ONE, W4_FINE, "Q4_0", (None, None)),
    *_both("decode-w4g32a", ONE, W4_PAIRS, "Q4_0", (None, None)),
    *_both("decode-w8", ONE, W8, "Q8_0", (1.5, 1.5)),
    *_both("prefill-native", PROMPT, "native", "shipped", (None, None)),
    *_both("prefill-w4", PROMPT, W4, "Q4_0", (2.2, 2.2)),
    *_both("prefill-w8", PROMPT, W8, "Q8_0", (1.8, 1.8)),
    _batch("SmolLM2", 8, 3.0),
    _batch("SmolLM2", 32, 3.5),
    _batch("Qwen", 8, 2.8),
    _batch("Qwen", 32, 2.7),
    _context(4096),
    _context(8192),
    _first_token("SmolLM2"),
    _first_token("Qwen"),
    *_frameworks(),
)

QUALITY_FORMATS = ("native", W4, W4_FINE, W4_PAIRS, W8)
QUALITY_FILES = ("shipped", "Q4_0", "Q8_0")
