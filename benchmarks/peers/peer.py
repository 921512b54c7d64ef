"""The peers: what each is run with, and how its answer is read."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers.install import Home
from benchmarks.peers.process import PeerError
from benchmarks.peers.work import Work

HERE = Path(__file__).parent


@dataclass(frozen=True, kw_only=True)
class Job:
    """Work for a peer's process: a GGUF file, threads, and the setting under trial."""

    work: Work
    file: Path
    threads: int
    setting: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Peer:
    """`settings` are the candidates for work, of which the fastest is measured; `rate` reads tokens a second from the
    process's output."""

    environment: str
    settings: Callable[[Work], list[tuple[str, ...]]]
    command: Callable[[Home, Job], list[str]]
    rate: Callable[[str, Work], float]


def llama_settings(work: Work) -> list[tuple[str, ...]]:
    """Attention with and without the fused kernel; for prompts the size of a computed piece, for batches the layout."""
    fused = [("-fa", "on"), ("-fa", "off")]
    if work.kind == "prefill":
        sizes = ("128", "512") if work.prompt <= 512 else ("512", "2048")
        return [(*f, "-ub", size) for f in fused for size in sizes]
    if work.batch > 1:
        return [(*f, kv) for f in fused for kv in ("-kvu", "-no-kvu")]
    return fused


def llama_command(at: Home, job: Job) -> list[str]:
    work, threads = job.work, str(job.threads)
    model = ["-m", str(job.file), "-t", threads, *job.setting]
    if work.batch == 1:
        amount = ["-p", "0", "-n", str(work.output), "-d", str(work.prompt)]
        if work.kind == "prefill":
            amount = ["-p", str(work.prompt), "-n", "0"]
        return [str(at.tool("llama-bench")), *model, *amount, "-r", "1", "-o", "json"]
    context = str(work.batch * (work.prompt + work.output))
    amount = ["-npp", str(work.prompt), "-ntg", str(work.output), "-npl", str(work.batch), "-c", context]
    tool = str(at.tool("llama-batched-bench"))
    return [tool, *model, "-tb", threads, *amount, "--output-format", "jsonl"]


def llama_rate(out: str, work: Work) -> float:
    if work.batch == 1:
        (test,) = json.loads(out[out.index("[") :])
        return float(test["samples_ts"][0])
    for line in out.splitlines():
        if line.startswith("{"):
            return float(json.loads(line)["speed_tg"])
    raise PeerError("llama-batched-bench printed no result.")


def child(environment: str, script: str, **fixed: Any) -> Callable[[Home, Job], list[str]]:
    """A peer that is a Python library: a script in its own environment that takes JSON and prints JSON."""

    def command(at: Home, job: Job) -> list[str]:
        spec = {"file": str(job.file), "threads": job.threads, "work": vars(job.work), **fixed}
        spec |= dict(pair.split("=", 1) for pair in job.setting)
        return [str(at.python(environment)), str(HERE / script), json.dumps(spec)]

    return command


def child_rate(out: str, work: Work) -> float:
    """Tokens a second from the times at which tokens came, in seconds since the request: the rows of a batch."""
    times = json.loads(out.strip().splitlines()[-1])["token_s"]
    if work.kind == "prefill":
        return float(work.prompt / times[0])
    if len(times) != work.output + 1:
        raise PeerError(f"It made {len(times)} tokens instead of {work.output + 1}.")
    return float(work.batch * work.output / (times[-1] - times[0]))


def only(*setting: str) -> Callable[[Work], list[tuple[str, ...]]]:
    """One setting for every work."""
    return lambda _: [setting]


def _transformers(dtype: str) -> Peer:
    return Peer(
        environment="transformers",
        settings=only(f"dtype={dtype}"),
        command=child("transformers", "run_transformers.py"),
        rate=child_rate,
    )


PEERS: dict[str, Peer] = {
    "llama.cpp": Peer(environment="llama", settings=llama_settings, command=llama_command, rate=llama_rate),
    "openvino": Peer(
        environment="openvino",
        settings=only("kv=f16"),
        command=child("openvino", "run_openvino.py"),
        rate=child_rate,
    ),
    "transformers-f32": _transformers("float32"),
    "transformers-bf16": _transformers("bfloat16"),
}
