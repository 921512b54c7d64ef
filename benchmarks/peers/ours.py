"""Fuseboard's side: one process, one engine, one timed repetition after a warm-up; prints one JSON object.

python -m benchmarks.peers.ours '{"model": ..., "preset": "on", "switches": {}, "threads": 2, "work": {...}}'
"""

import json
import random
import sys
from collections.abc import Sequence
from typing import Any

from benchmarks.peers.work import Row, Work

SLACK = 64
WARM_PROMPT, WARM_OUTPUT = 512, 16


def command(row: Row, model: str, threads: int, seed: int) -> list[str]:
    """The process that measures a row; `model` is a path."""
    spec = {
        "model": model,
        "preset": "off" if row.weights is None else "on",
        "switches": row.switches,
        "threads": threads,
        "work": vars(row.work),
        "seed": seed,
    }
    return [sys.executable, "-m", "benchmarks.peers.ours", json.dumps(spec)]


def measure(spec: dict[str, Any]) -> dict[str, Any]:
    """Tokens a second of the work, and the bytes that one decode step has to read."""
    from fuseboard import LLM
    from fuseboard.plan.cost import decode_sizes, step_cost

    work = Work(**spec["work"])
    random.seed(spec["seed"])
    llm = LLM(
        spec["model"],
        preset=spec["preset"],
        switches=spec["switches"],
        threads=spec["threads"],
        max_model_len=work.prompt + work.output + work.batch + SLACK,
        max_num_seqs=work.batch,
    )
    with llm:
        generate(llm, work, min(work.prompt, WARM_PROMPT), WARM_OUTPUT)
        llm.engine.reset_prefix_cache()
        llm.engine.step_log = []
        # Sequences of a batch may start some steps apart; all of them have to be there for `output` steps.
        extra = work.batch if work.batch > 1 else 0
        records = generate(llm, work, work.prompt, work.output + 1 + extra)
        cost = step_cost(llm.plan.graph, llm.plan.kv, decode_sizes(work.batch, work.prompt + work.output // 2))
        steps = list(llm.engine.step_log)
    if work.kind == "prefill":
        rate = work.prompt / (records[0].first_token_ns - records[0].arrival_ns) * 1e9
    else:
        rate = decode_rate(steps, work)
    return {
        "rate": rate,
        "step_bytes": cost.weight_bytes + cost.kv_bytes,
        "weight_bytes": cost.weight_bytes,
        "host_share": host_share(steps, work.kind == "decode"),
        "switches": llm.plan.switches,
    }


def generate(llm: Any, work: Work, prompt: int, output: int) -> list[Any]:
    """The records of a batch of requests with random prompts, which share no prefix."""
    from fuseboard import SamplingParams

    vocab = llm.plan.spec.vocab_size
    prompts = [[random.randrange(vocab) for _ in range(prompt)] for _ in range(work.batch)]
    params = SamplingParams(max_tokens=output, temperature=0.0, ignore_eos=True)
    return [done.metrics for done in llm.generate(prompts, params)]


def decode_rate(steps: Sequence[Any], work: Work) -> float:
    """Tokens a second over the first `output` decode steps in which the whole batch took part, host work included."""
    full = [step for step in steps if step.is_decode and step.seqs == work.batch][: work.output]
    if len(full) < work.output:
        raise ValueError(f"Only {len(full)} of {work.output} steps decoded all {work.batch} sequences together.")
    return work.batch * len(full) / (end_ns(full[-1]) - full[0].start_ns) * 1e9


def end_ns(step: Any) -> int:
    return int(step.start_ns + step.execute_ns + host_ns(step))


def host_ns(step: Any) -> int:
    return int(step.schedule_ns + step.prepare_ns + step.sample_ns + step.detokenise_ns)


def host_share(steps: Sequence[Any], decodes: bool) -> float:
    """Share of the steps' time that is not execution."""
    chosen = [step for step in steps if step.is_decode == decodes]
    host, native = sum(map(host_ns, chosen)), sum(step.execute_ns for step in chosen)
    return host / (host + native)


def bandwidth(threads: int) -> dict[str, float]:
    """Bytes a second read from a buffer that no cache holds, the one that `fuseboard doctor` reads."""
    from fuseboard import _native
    from fuseboard.backends.cpu.ceilings import SECONDS, memory_read_bytes
    from fuseboard.backends.cpu.topology import free_memory, last_cache

    return {"memory": _native.measure_bandwidth(threads, memory_read_bytes(last_cache(), free_memory()), SECONDS)}


def main() -> None:
    spec = json.loads(sys.argv[1])
    print(json.dumps(measure(spec) if "work" in spec else bandwidth(spec["threads"])))


if __name__ == "__main__":
    main()
