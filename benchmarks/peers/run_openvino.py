"""One timed repetition on OpenVINO GenAI, which reads the GGUF file itself; runs in that peer's environment."""

import json
import random
import sys
import time

import numpy as np
import openvino as ov
import openvino_genai as genai

WARM_PROMPT, WARM_OUTPUT = 512, 16
VOCAB = 40000
"""Random prompt tokens stay below this, which every measured model has."""


def main() -> None:
    spec = json.loads(sys.argv[1])
    work = spec["work"]
    pipeline = genai.LLMPipeline(
        spec["file"], "CPU", INFERENCE_NUM_THREADS=spec["threads"], KV_CACHE_PRECISION=spec["kv"]
    )
    generate(pipeline, min(work["prompt"], WARM_PROMPT), WARM_OUTPUT)
    print(json.dumps({"token_s": generate(pipeline, work["prompt"], work["output"] + 1)}))


def generate(pipeline: genai.LLMPipeline, prompt: int, output: int) -> list[float]:
    """Seconds from the request to each of its tokens."""
    ids = np.array([[random.randrange(VOCAB) for _ in range(prompt)]], np.int64)
    inputs = genai.TokenizedInputs(ov.Tensor(ids), ov.Tensor(np.ones_like(ids)))
    config = genai.GenerationConfig(max_new_tokens=output, ignore_eos=True, do_sample=False)
    times: list[float] = []
    start = time.perf_counter()

    class Clock(genai.StreamerBase):
        def write(self, token: int | list[int]) -> genai.StreamingStatus:
            count = len(token) if isinstance(token, list) else 1
            times.extend([time.perf_counter() - start] * count)
            return genai.StreamingStatus.RUNNING

        def end(self) -> None:
            pass

    pipeline.generate(inputs, config, streamer=Clock())
    return times


if __name__ == "__main__":
    main()
