"""The catalogue's real models: the reference backend continues prompts as transformers does in float32.

transformers reads the same GGUF file and continues each prompt greedily. The reference then runs prompt and
continuation in one prefill a prompt (teacher-forced, every row sampled): the argmax before each of the 64 tokens has to
be that token, except where transformers' own two best logits are closer than `MARGIN`: rounding may choose either.
"""

import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fuseboard.backends.reference.backend import ReferenceBackend
from fuseboard.load.model import LoadedModel, load_model
from fuseboard.plan.build import Limits, build_plan
from steps import Stepper

MARGIN = 0.02
NEW_TOKENS = 64
LONGEST = 128
LOGIT_TOLERANCE = 5e-3
"""Largest difference of a logit, a quarter of the margin: 30 layers of float32 sums in another order, on logits up to
50, and q4 blocks dequantised by two libraries."""

PROMPTS = (
    "The capital of France is",
    "Once upon a time there was a small robot who",
    "def fibonacci(n):\n    ",
    "The three most important facts about the ocean are:\n1.",
    "Water boils at a lower temperature on a mountain because",
)


def continuations(path: str, prompts: list[list[int]]) -> list[tuple[np.ndarray, np.ndarray]]:
    """For every prompt transformers' tokens (prompt and continuation) and its logits of every position."""
    import torch
    from transformers import AutoModelForCausalLM

    file = Path(path)
    model: Any = AutoModelForCausalLM.from_pretrained(
        str(file.parent), gguf_file=file.name, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    longest = max(map(len, prompts))
    padded = torch.tensor([[0] * (longest - len(tokens)) + tokens for tokens in prompts])
    mask = torch.tensor([[0] * (longest - len(tokens)) + [1] * len(tokens) for tokens in prompts])
    with torch.inference_mode():
        made = model.generate(
            padded,
            attention_mask=mask,
            do_sample=False,
            max_new_tokens=NEW_TOKENS,
            min_new_tokens=NEW_TOKENS,
            eos_token_id=None,
            pad_token_id=0,
        )
        whole = [row[longest - len(tokens) :] for row, tokens in zip(made, prompts, strict=True)]
        return [(row.numpy().astype(np.int32), model(row[None, :-1]).logits[0].numpy()) for row in whole]


def reference_logits(loaded: LoadedModel, sequences: list[np.ndarray]) -> list[np.ndarray]:
    backend = ReferenceBackend()
    plan = build_plan(
        loaded,
        backend.capabilities(),
        backend.workspace,
        preset={},
        chosen={},
        limits=Limits(max_model_len=LONGEST, max_num_seqs=1),
    )
    executable = backend.compile(plan, loaded.weights)
    logits = []
    for tokens in sequences:
        out = executable.run(Stepper(plan, {"a": tokens}).batch([("a", len(tokens))]))
        assert out.logits_RV is not None
        logits.append(out.logits_RV)
    return logits


def clear_rows(logits_TV: np.ndarray) -> np.ndarray:
    """The rows whose best logit leads by the margin."""
    best = np.partition(logits_TV, -2, axis=1)[:, -2:]
    return np.flatnonzero(best[:, 1] - best[:, 0] >= MARGIN)


@pytest.mark.models
@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("name", ["smollm2-135m", "gemma3-270m", "qwen2.5-coder-0.5b"])
def test_greedy_continuations_are_those_of_transformers(name, real_model):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    path = real_model(name)
    loaded = load_model(path)
    prompts = [loaded.tokenizer.encode(text, add_special=True, parse_special=False) for text in PROMPTS]
    theirs = continuations(path, prompts)
    gc.collect()
    ours = reference_logits(loaded, [tokens[:-1] for tokens, _ in theirs])
    compared = 0
    for prompt, (tokens, logits_TV), own_TV in zip(prompts, theirs, ours, strict=True):
        np.testing.assert_allclose(own_TV, logits_TV, rtol=0, atol=LOGIT_TOLERANCE)
        first = len(prompt) - 1
        clear = first + clear_rows(logits_TV[first:])
        np.testing.assert_array_equal(own_TV[clear].argmax(axis=1), tokens[clear + 1])
        compared += len(clear)
    assert compared > 0.9 * NEW_TOKENS * len(PROMPTS), f"only {compared} positions had a clear margin"
