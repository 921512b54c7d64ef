"""From prompts to completions on the reference backend: whatever the schedule, the tokens are those of transformers."""

import subprocess
import sys

import numpy as np
import pytest

import fuseboard
from fuseboard import LLM, SamplingParams
from fuseboard.core.errors import PlanError, RequestError
from fuseboard.models.decoder import cache_groups
from tiny import random_ids

LONGEST = 60
NEW = 8
GREEDY = SamplingParams(temperature=0, max_tokens=NEW, ignore_eos=True)
SCHEDULES = {
    "off": {},
    "static": {"batching": "static"},
    "continuous": {"batching": "continuous"},
    "chunked": {"prefill": "chunked:7"},
    "chunked continuous": {"prefill": "chunked:7", "batching": "continuous"},
    "separate": {"batching": "continuous", "pd": "separate", "prefill": "chunked:7"},
    "separate whole": {"batching": "continuous", "pd": "separate"},
    "paged": {"kv.layout": "paged", "batching": "continuous"},
    "paged pool": {"kv.layout": "paged", "kv.pool": "on", "prefill": "chunked:7", "batching": "continuous"},
    "block 32": {"kv.layout": "paged", "kv.block_size": "32", "batching": "static"},
    "prefix": {"prefix_cache": "on", "batching": "continuous", "prefill": "chunked:19"},
    "prefix separate": {"prefix_cache": "on", "batching": "continuous", "pd": "separate"},
}
COUNTERS = {
    "static": "batched_steps",
    "continuous": "batched_steps",
    "chunked": "prefill_chunks",
    "separate": "separated_steps",
    "paged": "blocks_on_demand",
    "paged pool": "blocks_reused",
    "block 32": "blocks_larger",
    "prefix": "prefix_tokens",
}


def prompts_of(vocab):
    """Prompts of many lengths, of which some begin alike."""
    shared = random_ids(34, vocab, seed=1).tolist()
    starts = [shared, shared[:33], shared[:20], [], []]
    return [
        [*start, *random_ids(length, vocab, seed=length).tolist()]
        for start, length in zip(starts, (1, 7, 4, 17, 3), strict=True)
    ]


def greedy(model, prompt):
    """transformers' greedy continuation; no choice may be close enough to a tie for rounding to decide it."""
    tokens = list(prompt)
    for _ in range(NEW):
        logits_V = model.logits_TV(np.array(tokens))[-1]
        best, second = np.sort(logits_V)[[-1, -2]]
        assert best - second > 1e-3
        tokens.append(int(logits_V.argmax()))
    return tokens[len(prompt) :]


@pytest.fixture(scope="module")
def case(tiny):
    """`case(name)` gives a tiny model, prompts for it and what transformers makes of them."""
    made = {}

    def get(name):
        if name not in made:
            model = tiny(name)
            prompts = prompts_of(model.loaded.spec.vocab_size)
            made[name] = (model.loaded, prompts, [greedy(model, prompt) for prompt in prompts])
        return made[name]

    return get


def llm_of(model, switches=None, **options):
    options = {"preset": "off", "max_model_len": LONGEST, "max_num_seqs": 3, "backend": "reference"} | options
    return LLM(model, switches=switches or {}, **options)


@pytest.mark.parametrize("name", ["llama", "qwen2_sliding", "gemma3"])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_schedule_gives_the_same_tokens(case, name, schedule, monkeypatch):
    monkeypatch.setenv("FUSEBOARD_DEBUG", "1")
    model, prompts, wanted = case(name)
    with llm_of(model, SCHEDULES[schedule]) as llm:
        for _ in range(2):
            completions = llm.generate(prompts, GREEDY)
            assert [c.token_ids for c in completions] == wanted
        if counter := COUNTERS.get(schedule):
            assert llm.engine.counters()[counter] > 0
    if schedule == "off":
        assert not any(llm.engine.counters()[counter] for counter in COUNTERS.values())


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_preempted_requests_give_the_same_tokens(tiny, name, monkeypatch):
    monkeypatch.setenv("FUSEBOARD_DEBUG", "1")
    model = tiny(name)
    # Three prompts of one block each grow to two blocks, and the cache has room for about four.
    prompts = [random_ids(14, 211, seed=n).tolist() for n in range(3)]
    wanted = [greedy(model, prompt) for prompt in prompts]
    switches = {"batching": "continuous", "kv.layout": "paged", "prefill": "chunked:16"}
    with llm_of(model.loaded, switches) as roomy:
        memory = roomy.plan.kv.bytes
    with llm_of(model.loaded, switches, kv_memory=memory * 2 // 5) as llm:
        assert [c.token_ids for c in llm.generate(prompts, GREEDY)] == wanted
        assert llm.engine.counters()["preemptions"] > 0


def test_the_groups_of_the_tiny_models_cover_windows(case):
    windows = {name: [w for w, _ in cache_groups(case(name)[0].spec)] for name in ("llama", "gemma3")}
    assert windows["llama"] == [None]
    assert set(windows["gemma3"]) == {5, None}


def test_seeds_make_sampling_repeatable_in_any_batch(case):
    model, prompts, _ = case("llama")
    each = [SamplingParams(max_tokens=NEW, seed=n, top_p=0.9) for n in range(len(prompts))]
    with llm_of(model) as alone, llm_of(model, {"batching": "continuous", "prefill": "chunked:7"}) as together:
        first = [c.token_ids for c in alone.generate(prompts, each)]
        assert [c.token_ids for c in together.generate(prompts, each)] == first
        assert [c.token_ids for c in together.generate(prompts[::-1], each[::-1])] == first[::-1]


def test_a_completion_tells_everything_about_its_prompt(case):
    model, prompts, wanted = case("llama")
    params = SamplingParams(temperature=0, max_tokens=NEW, ignore_eos=True, logprobs=3)
    with llm_of(model) as llm:
        (completion,) = llm.generate(prompts[4], params)
        assert completion.prompt_token_ids == prompts[4]
        assert completion.finish_reason == "length"
        assert completion.text == model.tokenizer.decode(completion.token_ids, continuation=True)
        assert [p.token_id for p in completion.logprobs] == completion.token_ids == wanted[4]
        assert completion.metrics.prompt_tokens == len(prompts[4])
        assert len(completion.metrics.token_ns) == NEW
        assert llm.generate([prompts[4]], GREEDY)[0].logprobs is None
        assert llm.generate([], GREEDY) == []


def test_logprobs_are_those_of_transformers(case, tiny):
    model, prompts, _ = case("qwen2_sliding")
    with llm_of(model) as llm:
        (completion,) = llm.generate(
            prompts[3], SamplingParams(temperature=0, max_tokens=1, logprobs=80, repetition_penalty=1.3)
        )
    logits_V = tiny("qwen2_sliding").logits_TV(np.array(prompts[3]))[-1].astype(np.float64)
    wanted_V = logits_V - np.log(np.exp(logits_V - logits_V.max()).sum()) - logits_V.max()
    (got,) = completion.logprobs
    assert len(got.top) == 80
    np.testing.assert_allclose([p for _, p in got.top], np.sort(wanted_V)[::-1][:80], atol=1e-4)
    assert got.logprob == pytest.approx(wanted_V[got.token_id], abs=1e-4)


def test_a_stop_string_ends_text_and_request(case):
    model, prompts, _ = case("llama")
    with llm_of(model) as llm:
        (whole,) = llm.generate(prompts[3], GREEDY)
        stop = next(whole.text[i : i + 2] for i in range(1, 9) if "\ufffd" not in whole.text[i : i + 2])
        (cut,) = llm.generate(prompts[3], SamplingParams(temperature=0, max_tokens=NEW, ignore_eos=True, stop=stop))
        assert cut.finish_reason == "stop"
        assert cut.text == whole.text[: whole.text.index(stop)]
        assert cut.token_ids == whole.token_ids[: len(cut.token_ids)]
        assert "".join(e.text for e in llm.stream(prompts[3], GREEDY)) == whole.text


def test_streams_may_be_read_in_turns_and_closed_early(case):
    model, prompts, wanted = case("llama")
    with llm_of(model, {"batching": "continuous"}) as llm:
        first, second, third = (llm.stream(prompt, GREEDY) for prompt in prompts[:3])
        pairs = list(zip(first, second, strict=True))
        assert [a.token_id for a, _ in pairs] == wanted[0]
        assert [b.token_id for _, b in pairs] == wanted[1]
        assert next(third).token_id == wanted[2][0]
        assert llm.engine.has_work
        third.close()
        assert not llm.engine.has_work
        assert [c.token_ids for c in llm.generate(prompts, GREEDY)] == wanted


def test_strings_are_taken_as_they_are(case):
    model, _, _ = case("llama")
    with llm_of(model) as llm:
        (text,) = llm.generate("some words", GREEDY)
        assert text.prompt_token_ids == model.tokenizer.encode("some words", parse_special=True)
        assert llm.generate([text.prompt_token_ids], GREEDY)[0].token_ids == text.token_ids


def test_chat_uses_the_template(case):
    from dataclasses import replace

    from fuseboard.load.chat import ChatTemplate

    model, _, _ = case("llama")
    template = ChatTemplate("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{{ tail }}")
    with llm_of(replace(model, chat_template=template)) as llm:
        answer = llm.chat([{"role": "user", "content": "hi"}], GREEDY, tail="!")
        assert answer.prompt_token_ids == model.tokenizer.encode("<user>hi!", add_special=False)
        assert len(answer.token_ids) == NEW


@pytest.mark.parametrize(
    ("prompts", "params", "words"),
    [
        ([[1], []], GREEDY, "empty"),
        ([[1], [1] * LONGEST], GREEDY, f"{LONGEST} prompt"),
        ([[1], [100_000]], GREEDY, "100000"),
        ([[1], [2]], [GREEDY], "2 prompts but 1"),
    ],
)
def test_one_bad_prompt_stops_the_call_before_anything_runs(case, prompts, params, words):
    model, good, wanted = case("llama")
    with llm_of(model) as llm:
        with pytest.raises(RequestError, match=words):
            llm.generate(prompts, params)
        assert not llm.engine.has_work
        assert llm.engine.counters()["steps"] == 0
        assert llm.generate(good[4], GREEDY)[0].token_ids == wanted[4]


def test_a_failed_request_raises_and_leaves_the_model_usable(case, monkeypatch):
    model, prompts, wanted = case("llama")
    with llm_of(model) as llm:
        with monkeypatch.context() as broken:
            broken.setattr(llm.engine._executable, "run", lambda batch: 1 / 0)
            with pytest.raises(RuntimeError, match="failed: division by zero"):
                llm.generate(prompts, GREEDY)
        assert not llm.engine.has_work
        assert [c.token_ids for c in llm.generate(prompts, GREEDY)] == wanted


def test_unknown_presets_are_refused(case):
    with pytest.raises(PlanError, match="off, on"):
        llm_of(case("llama")[0], preset="fast")


def test_importing_the_package_imports_nothing_else():
    code = "import fuseboard, sys; assert 'numpy' not in sys.modules; fuseboard.SamplingParams"
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(AttributeError, match="nothing"):
        _ = fuseboard.nothing
