"""The engine against an executable that computes tokens from its KV memory alone."""

import random
from collections import deque
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_machine import VOCAB, MemoryMachine, continuation
from policies import kv_policy, schedule_policy

from fuseboard.core.errors import RequestError
from fuseboard.execute.engine import Engine
from fuseboard.execute.sampling_params import SamplingParams
from fuseboard.plan.policy import RunPolicy

GREEDY = SamplingParams(temperature=0, max_tokens=6)


RUN = {"overlap": False}


@pytest.fixture(autouse=True, params=[False, True], ids=["in turn", "overlapping"])
def _overlap(request, monkeypatch):
    """Every test runs with steps one after the other and with steps that overlap: there is no difference."""
    monkeypatch.setitem(RUN, "overlap", request.param)


def engine_of(kv=None, policy=None, **options):
    spec = SimpleNamespace(vocab_size=VOCAB)
    run_policy = RunPolicy(**RUN)
    plan = SimpleNamespace(kv=kv or kv_policy(), schedule=policy or schedule_policy(), spec=spec, run=run_policy)
    machine = MemoryMachine(plan)
    return Engine(machine, plan, **options), machine


def run(engine):
    """All events until there is no work, by request."""
    events = {}
    while engine.has_work:
        for event in engine.step():
            events.setdefault(event.request_id, []).append(event)
    return events


def tokens_of(events):
    return {name: [e.token_id for e in own if e.token_id is not None] for name, own in events.items()}


POLICIES = st.builds(
    schedule_policy,
    batching=st.sampled_from(["one", "static", "continuous"]),
    chunked=st.booleans(),
    separate_steps=st.booleans(),
    max_step_tokens=st.sampled_from([8, 24]),
    max_num_seqs=st.integers(1, 4),
    max_model_len=st.just(24),
)
LAYOUTS = st.builds(
    lambda windows, blocks, contiguous, prefix, pooled: kv_policy(
        *windows,
        blocks=blocks,
        contiguous=contiguous,
        prefix_cache=prefix and pooled and not contiguous,
        pooled=pooled,
    ),
    st.sampled_from([(None,), (None, 5), (5,)]),
    st.sampled_from([6, 9, 30]),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)


@settings(max_examples=150, deadline=None)
@given(kv=LAYOUTS, policy=POLICIES, seed=st.integers(0, 1 << 16))
def test_tokens_do_not_depend_on_policy_neighbours_or_aborts(kv, policy, seed):
    rng = random.Random(seed)
    engine, machine = engine_of(kv, policy)
    machine.plan.kv, window = kv, kv.groups[-1].window
    wanted, events = {}, {}
    for number in range(12):
        prompt = [rng.randrange(2) for _ in range(rng.randrange(1, 12))]
        new = rng.randrange(1, 10)
        try:
            engine.add_request(f"{number}", prompt, SamplingParams(temperature=0, max_tokens=new))
            wanted[f"{number}"] = continuation(prompt, new, window)
        except RequestError:
            continue
        for _ in range(rng.randrange(4)):
            for event in engine.step():
                events.setdefault(event.request_id, []).append(event)
        if rng.random() < 0.2:
            aborted = engine.abort(f"{rng.randrange(12)}")
            if aborted is not None:
                assert aborted.finish_reason == "abort"
                own = events.pop(aborted.request_id, [])
                expected = wanted.pop(aborted.request_id)
                assert [e.token_id for e in own] == expected[: len(own)]
    for name, own in run(engine).items():
        events.setdefault(name, []).extend(own)
    assert tokens_of(events) == wanted
    assert all(own[-1].finish_reason == "length" for own in events.values())
    assert not any(e.finish_reason for own in events.values() for e in own[:-1])


def test_unpooled_blocks_are_given_back_when_a_request_ends():
    engine, machine = engine_of(kv_policy(pooled=False))
    engine.add_request("a", [1, 2, 3, 4, 5], GREEDY)
    engine.add_request("b", [1, 2, 3, 4, 5], SamplingParams(temperature=0, max_tokens=8))
    run(engine)
    engine.add_request("c", [1], SamplingParams(temperature=0, max_tokens=1))
    run(engine)
    assert sorted(len(blocks) for _, blocks in machine.released) == [3, 3]


def test_freed_blocks_are_poisoned_in_debug_mode(monkeypatch):
    monkeypatch.setenv("FUSEBOARD_DEBUG", "1")
    engine, machine = engine_of(kv_policy(None, 5))
    for name in "abc":
        engine.add_request(name, [3] * 9, GREEDY)
    events = run(engine)
    assert tokens_of(events) == dict.fromkeys("abc", continuation([3] * 9, 6, 5))
    engine.add_request("d", [1], SamplingParams(temperature=0, max_tokens=1))
    run(engine)
    assert (machine.kv[1] != -1).sum() == 1


def test_a_request_keeps_its_times():
    engine, _ = engine_of()
    engine.add_request("a", [1, 2], GREEDY, arrival_ns=5)
    events = run(engine)["a"]
    record = events[-1].record
    assert [e.record for e in events[:-1]] == [None] * 5
    assert record.arrival_ns == 5
    assert record.prompt_tokens == 2
    assert record.token_ns == [e.time_ns for e in events] == sorted(record.token_ns)
    assert 5 < record.first_scheduled_ns <= record.first_token_ns <= record.token_ns[-1] <= record.finish_ns
    assert record.finish_reason == "length"


def test_the_step_log_accounts_for_the_whole_step():
    engine, _ = engine_of()
    engine.step_log = deque(maxlen=5)
    engine.add_request("a", [1, 2], GREEDY)
    engine.add_request("b", [1], GREEDY)
    run(engine)
    assert len(engine.step_log) == 5
    engine.step_log = []
    engine.add_request("c", [1, 2], GREEDY)
    run(engine)
    assert [(r.is_decode, r.tokens, r.seqs) for r in engine.step_log] == [(False, 2, 1)] + [(True, 1, 1)] * 5
    for record in engine.step_log:
        phases = (record.schedule_ns, record.prepare_ns, record.execute_ns, record.sample_ns, record.detokenise_ns)
        assert min(phases) >= 0
    starts = [r.start_ns for r in engine.step_log]
    assert starts == sorted(starts)


def test_a_first_token_of_a_one_token_prompt_is_not_a_decode_step():
    engine, _ = engine_of()
    engine.step_log = []
    engine.add_request("a", [1], SamplingParams(temperature=0, max_tokens=2))
    run(engine)
    assert [r.is_decode for r in engine.step_log] == [False, True]


def test_counters_of_all_parts():
    engine, _ = engine_of(kv_policy(prefix_cache=True))
    for _ in range(2):
        engine.add_request("a", [1] * 10, GREEDY)
        run(engine)
    assert engine.counters()["prefix_tokens"] == 8
    engine.reset_prefix_cache()
    engine.add_request("a", [1] * 10, GREEDY)
    record = run(engine)["a"][-1].record
    assert record.cached_tokens == 0
    counters = engine.counters()
    assert counters["prefix_tokens"] == 8
    assert counters["steps"] == counters["machine_steps"]
    assert {"preemptions", "evictions", "blocks_on_demand", "batched_steps"} <= counters.keys()


def test_prefixes_of_different_salts_stay_apart():
    engine, _ = engine_of(kv_policy(prefix_cache=True))
    records = []
    for salt in (b"one", b"two", b"one"):
        engine.add_request("a", [1] * 10, GREEDY, cache_salt=salt)
        records.append(run(engine)["a"][-1].record)
    assert [record.cached_tokens for record in records] == [0, 0, 8]


def test_end_tokens_end_a_request():
    answer = continuation([1, 2], 10)
    end = answer[3]
    first = answer.index(end)
    engine, _ = engine_of(eos_ids=[end])
    engine.add_request("a", [1, 2], SamplingParams(temperature=0, max_tokens=10))
    engine.add_request("b", [1, 2], SamplingParams(temperature=0, max_tokens=10, ignore_eos=True))
    engine.add_request(
        "c", [1, 2], SamplingParams(temperature=0, max_tokens=10, ignore_eos=True, stop_token_ids=(answer[1],))
    )
    events = run(engine)
    assert tokens_of(events)["a"] == answer[: first + 1]
    assert tokens_of(events)["b"] == answer
    assert events["a"][-1].finish_reason == events["c"][-1].finish_reason == "stop"
    assert tokens_of(events)["c"][-1] == answer[1]


def test_an_end_token_waits_for_min_tokens():
    end = continuation([1, 2], 1)[0]
    engine, _ = engine_of(eos_ids=[end])
    engine.add_request("a", [1, 2], SamplingParams(temperature=0, max_tokens=9, min_tokens=3))
    tokens = tokens_of(run(engine))["a"]
    assert end not in tokens[:3]
    assert len(tokens) >= 3


def test_max_tokens_none_is_as_many_as_fit():
    engine, _ = engine_of(policy=schedule_policy(max_model_len=20))
    engine.add_request("a", [1, 2, 3], SamplingParams(temperature=0))
    assert len(tokens_of(run(engine))["a"]) == 17
    with pytest.raises(RequestError, match="20 prompt"):
        engine.add_request("b", [1] * 20, SamplingParams(temperature=0))


def test_a_failing_step_ends_its_requests_and_no_others():
    engine, machine = engine_of(policy=schedule_policy(max_num_seqs=2))
    for name in "abc":
        engine.add_request(name, [1, 2], GREEDY)
    engine.step()
    machine.fail = RuntimeError("no memory")
    events = engine.step()
    assert {(e.request_id, e.finish_reason, e.token_id, str(e.error)) for e in events} == {
        ("a", "error", None, "no memory"),
        ("b", "error", None, "no memory"),
    }
    machine.fail = None
    assert tokens_of(run(engine)) == {"c": continuation([1, 2], 6)}


def test_a_row_that_is_not_finite_leaves_its_neighbours_alone():
    engine, machine = engine_of()
    for name, token in (("a", 1), ("b", 2), ("c", 3)):
        engine.add_request(name, [token], GREEDY)
    machine.not_finite = (1,)
    first = engine.step()
    assert [e.finish_reason for e in first if e.request_id == "b"] == ["error"]
    machine.not_finite = ()
    rest = tokens_of(run(engine))
    for name, token in (("a", 1), ("c", 3)):
        own = [e.token_id for e in first if e.request_id == name]
        assert own + rest[name] == continuation([token], 6)


def test_an_interrupted_step_is_done_again():
    engine, machine = engine_of()
    engine.add_request("a", [1, 2], GREEDY)
    first = engine.step()
    machine.fail = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    machine.fail = None
    assert [e.token_id for e in first] + tokens_of(run(engine))["a"] == continuation([1, 2], 6)


def test_abort_gives_the_last_event_once():
    engine, _ = engine_of()
    engine.add_request("a", [1, 2], GREEDY)
    engine.step()
    event = engine.abort("a")
    assert (event.token_id, event.finish_reason) == (None, "abort")
    assert len(event.record.token_ns) == 1
    assert engine.abort("a") is None
    assert not engine.has_work
    assert engine.step() == []


def test_logprobs_come_with_their_tokens():
    engine, _ = engine_of()
    engine.add_request("a", [1, 2], SamplingParams(temperature=0, max_tokens=3, logprobs=2))
    engine.add_request("b", [1, 2], GREEDY)
    events = run(engine)
    assert [e.logprobs for e in events["b"]] == [None] * 6
    for event in events["a"]:
        assert event.logprobs.token_id == event.token_id == event.logprobs.top[0][0]
        assert event.logprobs.logprob == event.logprobs.top[0][1] < 0
        assert len(event.logprobs.top) == 2


@pytest.mark.parametrize(
    ("prompt", "params", "words"),
    [
        ([], {}, "empty"),
        ([1, VOCAB], {}, f"Token id {VOCAB} of prompt"),
        ([-1], {}, "Token id -1 of prompt"),
        ([[1, 2]], {}, "flat list"),
        (["a"], {}, "flat list"),
        ([1.5], {}, "flat list"),
        ([True], {}, "flat list"),
        ([1], {"logit_bias": {VOCAB: 1.0}}, "logit_bias"),
        ([1], {"stop_token_ids": (VOCAB,)}, "stop_token_ids"),
        ([1], {"stop": "x"}, "tokenizer"),
        ([1], {"max_tokens": 64}, "65 tokens"),
        (np.array([1, 200]), {}, "Token id 200"),
    ],
)
def test_bad_requests_are_refused_and_leave_nothing_behind(prompt, params, words):
    engine, _ = engine_of()
    with pytest.raises(RequestError, match=words):
        engine.add_request("a", prompt, SamplingParams(temperature=0, **params))
    assert not engine.has_work
    engine.add_request("a", np.array([1, 2]), GREEDY)
    with pytest.raises(RequestError, match="own id"):
        engine.add_request("a", [1], GREEDY)
