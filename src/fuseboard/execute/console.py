"""`fuseboard run`: one answer, streamed or as JSON, or a chat at the terminal."""

import json
import sys
from typing import TYPE_CHECKING

from fuseboard.core.errors import UserError
from fuseboard.execute.options import RunOptions
from fuseboard.execute.sampling_params import SamplingParams

if TYPE_CHECKING:
    from fuseboard.execute.llm import LLM

Message = dict[str, str]


def run(options: RunOptions) -> None:
    """Answers the prompt, or opens a chat when there is none."""
    from fuseboard.execute.llm import LLM

    params = SamplingParams(
        max_tokens=options.max_tokens,
        temperature=options.temperature,
        top_p=options.top_p,
        top_k=options.top_k,
        seed=options.seed,
    )
    with LLM(
        options.model,
        preset=options.preset,
        switches=options.switches,
        threads=options.threads,
        max_model_len=options.max_model_len,
        max_num_seqs=options.max_num_seqs or 1,
        kv_memory=options.kv_bytes,
        load_format=options.load_format,
        revision=options.revision,
        backend=options.backend,
    ) as llm:
        if options.prompt is None:
            _chat(llm, params, raw=options.raw)
        elif options.json:
            _print_json(llm, _tokens(llm, options), params)
        else:
            _stream(llm, _tokens(llm, options), params)


def _tokens(llm: "LLM", options: RunOptions) -> list[int]:
    assert options.prompt is not None
    if options.raw or llm.model.chat_template is None:
        return llm.model.tokenizer.encode(options.prompt, add_special=True, parse_special=True)
    return llm.chat_tokens([{"role": "user", "content": options.prompt}])


def _stream(llm: "LLM", tokens: list[int], params: SamplingParams) -> str:
    pieces = []
    for event in llm.stream(tokens, params):
        print(event.text, end="", flush=True)
        pieces.append(event.text)
    print()
    return "".join(pieces)


def _print_json(llm: "LLM", tokens: list[int], params: SamplingParams) -> None:
    (done,) = llm.generate([tokens], params)
    times = done.metrics
    count = len(done.token_ids)
    ttft = (times.first_token_ns - times.arrival_ns) / 1e6
    tpot = (times.token_ns[-1] - times.token_ns[0]) / (count - 1) / 1e6 if count > 1 else None
    result = {
        "model": llm.model.name,
        "plan": llm.plan.digest,
        "text": done.text,
        "token_ids": done.token_ids,
        "prompt_tokens": len(tokens),
        "finish_reason": done.finish_reason,
        "ttft_ms": ttft,
        "tpot_ms": tpot,
    }
    print(json.dumps(result, ensure_ascii=False))


def _chat(llm: "LLM", params: SamplingParams, *, raw: bool) -> None:
    """Reads lines until an empty one or the end of input; the conversation so far goes with every question."""
    if not raw and llm.model.chat_template is None:
        raise UserError(f"The model {llm.model.name} has no chat template; use --raw to complete plain text.")
    if sys.stdin.isatty():
        print("An empty line ends the chat.")
    messages: list[Message] = []
    while question := _ask():
        if raw:
            _stream(llm, llm.model.tokenizer.encode(question, add_special=True, parse_special=True), params)
            continue
        messages.append({"role": "user", "content": question})
        answer = _stream(llm, llm.chat_tokens(messages), params)
        messages.append({"role": "assistant", "content": answer})


def _ask() -> str:
    try:
        return input("> " if sys.stdin.isatty() else "").strip()
    except EOFError:
        return ""
