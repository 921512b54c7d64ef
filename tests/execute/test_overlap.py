"""Steps that overlap: the engine gives the same events, word for word, while the next step runs already."""

import pytest

from fuseboard import LLM, SamplingParams
from tiny import random_ids

CAPTURED = {"graph": "captured", "batching": "continuous", "prefill": "chunked:9", "buckets": "list"}


def llm_of(model, overlap):
    switches = CAPTURED | {"overlap": overlap}
    return LLM(model, preset="off", switches=switches, threads=2, max_model_len=64, max_num_seqs=3)


def params_of(llm, prompts):
    """Requests that end in every way: length, a string in the text, a token, and sampling with penalties."""
    plain = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, logprobs=3)
    _, second, third, *_ = llm.generate(prompts, plain)
    middle = second.text[len(second.text) // 2 :][:2]
    return [
        plain,
        SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, stop=[middle]),
        SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, stop_token_ids=third.token_ids[5:6]),
        SamplingParams(temperature=1.0, seed=7, max_tokens=9, presence_penalty=0.5),
        SamplingParams(temperature=0, max_tokens=1),
    ]


def prompts_of(vocab):
    return [random_ids(length, vocab, seed=seed).tolist() for seed, length in enumerate((21, 5, 5, 13, 2))]


def events_of(llm, prompts, params, *, abort_after=None):
    """What is seen of every request; request 0 is given up after so many steps."""
    engine, seen = llm.engine, {}
    for number, (prompt, own) in enumerate(zip(prompts, params, strict=True)):
        engine.add_request(f"{number}", prompt, own)
    steps = 0
    while engine.has_work:
        for event in engine.step():
            seen.setdefault(event.request_id, []).append(
                (event.token_id, event.text, event.logprobs, event.finish_reason)
            )
        steps += 1
        if steps == abort_after:
            assert engine.abort("0").finish_reason == "abort"
    return seen


@pytest.fixture(scope="module")
def pair(tiny):
    model = tiny("llama_panels").loaded
    with llm_of(model, "off") as off, llm_of(model, "on") as on:
        yield off, on


def test_events_are_the_same(pair):
    off, on = pair
    prompts = prompts_of(off.plan.spec.vocab_size)
    params = params_of(off, prompts)
    expected, got = (events_of(llm, prompts, params) for llm in pair)
    assert got == expected
    ends = {name: own[-1][3] for name, own in expected.items()}
    assert (ends["0"], ends["1"], ends["2"], ends["4"]) == ("length", "stop", "stop", "length")
    assert on.engine.counters()["overlapped_steps"] > 5
    assert off.engine.counters()["overlapped_steps"] == 0


@pytest.mark.parametrize("steps", [1, 4, 7])
def test_an_aborted_request_leaves_the_others_alone(pair, steps):
    off, on = pair
    prompts = prompts_of(off.plan.spec.vocab_size)
    params = params_of(off, prompts)
    whole = events_of(off, prompts, params)
    got = events_of(on, prompts, params, abort_after=steps)
    own = got.pop("0", [])
    assert own == whole.pop("0")[: len(own)]
    assert got == whole


def test_a_step_that_cannot_start_ends_its_requests_and_no_others(pair, monkeypatch):
    _, on = pair
    engine = on.engine
    prompts = prompts_of(on.plan.spec.vocab_size)
    engine.add_request("a", prompts[1], SamplingParams(temperature=0, max_tokens=5, ignore_eos=True))
    assert [e.request_id for e in engine.step()] == ["a"]
    with monkeypatch.context() as broken:
        broken.setattr(engine._executable, "start", lambda batch: 1 / 0)
        (second,) = engine.step()  # ran already; the one after it fails
    assert second.finish_reason is None
    engine.add_request("b", prompts[2], SamplingParams(temperature=0, max_tokens=5, ignore_eos=True))
    (failed,) = engine.step()
    assert (failed.request_id, failed.finish_reason, type(failed.error)) == ("a", "error", ZeroDivisionError)
    seen = []
    while engine.has_work:
        seen += engine.step()
    assert [e.request_id for e in seen] == ["b"] * 5


def test_nodes_are_timed_while_steps_overlap(pair):
    _, on = pair
    engine, executable = on.engine, on.engine._executable
    engine.step_log = []
    executable.profile(True)
    tokens = on.generate(prompts_of(on.plan.spec.vocab_size)[1], SamplingParams(temperature=0, max_tokens=6))
    times = executable.node_times()
    executable.profile(False)
    assert len(tokens[0].token_ids) == 6
    assert {calls for _, calls, _ in times} == {6}
    assert all(ns > 0 for *_, ns in times)
    starts = [record.start_ns for record in engine.step_log]
    assert starts == sorted(starts)
    assert all(
        min(r.schedule_ns, r.prepare_ns, r.execute_ns, r.sample_ns, r.detokenise_ns) >= 0 for r in engine.step_log
    )
