"""One timed repetition on transformers, with weights from the GGUF file; runs in that peer's environment."""

import json
import sys
import time
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

WARM_PROMPT, WARM_OUTPUT = 512, 4


def main() -> None:
    spec = json.loads(sys.argv[1])
    work, file = spec["work"], Path(spec["file"])
    torch.set_num_threads(spec["threads"])
    model = AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=getattr(torch, spec["dtype"])
    ).eval()
    with torch.inference_mode():
        generate(model, min(work["prompt"], WARM_PROMPT), WARM_OUTPUT)
        print(json.dumps({"token_s": generate(model, work["prompt"], work["output"] + 1)}))


def generate(model: torch.nn.Module, prompt: int, output: int) -> list[float]:
    """Seconds from the request to each of its tokens, greedy."""
    ids = torch.randint(model.config.vocab_size, (1, prompt))
    cache, times = None, []
    start = time.perf_counter()
    for _ in range(output):
        result = model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
        cache, ids = result.past_key_values, result.logits[:, -1].argmax(-1, keepdim=True)
        ids.item()
        times.append(time.perf_counter() - start)
    return times


if __name__ == "__main__":
    main()
