"""The scheduler against a fake executor: its promises hold for any mix of requests, policies and aborts."""

import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from policies import kv_policy, schedule_policy

from fuseboard.core.errors import RequestError
from fuseboard.execute.kv_cache import make_cache
from fuseboard.execute.prefix import PrefixChain
from fuseboard.execute.scheduler import Request, Scheduler


class Harness:
    """A scheduler with an executor that writes down what it computes and checks every step."""

    def __init__(self, kv, policy):
        self.kv, self.policy = kv, policy
        self.cache = make_cache(kv, policy, track_freed=False)
        self.scheduler = Scheduler(policy, self.cache)
        self.live: dict[str, Request] = {}
        self.done: dict[str, list[int]] = {}
        self.slots: dict[tuple[int, int], tuple[int, ...]] = {}
        self.steps = []

    def add(self, name, prompt, new):
        request = Request(name, prompt, new, PrefixChain(self.kv.block_size))
        self.scheduler.add(request)
        self.live[name] = request
        return request

    def abort(self, name):
        self.scheduler.remove(self.live.pop(name))
        self.cache.check()

    def step(self, abort_in_flight=None):
        step = self.scheduler.schedule()
        if step is None:
            return None
        self.steps.append([(seq.request.request_id, seq.start, seq.num_tokens, seq.samples) for seq in step.seqs])
        self.check_step(step)
        for seq in step.seqs:
            self.compute(seq)
        sampled = [token_after(seq.request.tokens) for seq in step.seqs if seq.samples]
        if abort_in_flight in self.live:
            self.abort(abort_in_flight)
        self.scheduler.complete(step, sampled)
        for seq in step.seqs:
            request = seq.request
            if request.request_id in self.live and len(request.tokens) - request.prompt_len == request.max_tokens:
                self.scheduler.remove(self.live.pop(request.request_id))
                self.done[request.request_id] = request.tokens[request.prompt_len :]
        self.cache.check()
        return step

    def check_step(self, step):
        policy = self.policy
        assert 0 < step.num_tokens <= policy.max_step_tokens
        assert len({seq.request.request_id for seq in step.seqs}) == len(step.seqs) <= policy.max_num_seqs
        assert self.scheduler.num_running <= (1 if policy.batching == "one" else policy.max_num_seqs)
        for seq in step.seqs:
            assert seq.num_tokens > 0
            assert seq.samples == (seq.start + seq.num_tokens == len(seq.request.tokens))
            if not policy.chunked and seq.start + seq.num_tokens < len(seq.request.tokens):
                assert len(seq.request.tokens) > policy.max_step_tokens
        if policy.separate_steps:
            assert len({seq.request.decoding for seq in step.seqs}) == 1
        written = Counter(slot for seq in step.seqs for slot in self.slots_of(seq, seq.start))
        assert not written or max(written.values()) == 1
        for seq in step.seqs:
            for group, slot in self.slots_of(seq, seq.start):
                assert slot >= self.kv.block_size, "the null block is written"
                holders = [
                    r for r in self.live.values() if r.table and slot // self.kv.block_size in r.table.ids[group]
                ]
                assert holders == [seq.request], "a block that is written belongs to one sequence"

    def slots_of(self, seq, first):
        size = self.kv.block_size
        for group in range(len(self.kv.groups)):
            for at in range(first, seq.start + seq.num_tokens):
                yield group, seq.table.ids[group][at // size] * size + at % size

    def compute(self, seq):
        """Stores in every slot all tokens up to its own, and checks that what a token reads is its own past."""
        tokens, size = seq.request.tokens, self.kv.block_size
        for group, slot in self.slots_of(seq, seq.start):
            self.slots[group, slot] = ()
        for at in range(seq.start, seq.start + seq.num_tokens):
            for group, ids in enumerate(seq.table.ids):
                self.slots[group, ids[at // size] * size + at % size] = tuple(tokens[: at + 1])
        for group, ids in enumerate(seq.table.ids):
            window = self.kv.groups[group].window
            for at in range(0 if window is None else max(0, seq.start - window + 1), seq.start + seq.num_tokens):
                assert self.slots[group, ids[at // size] * size + at % size] == tuple(tokens[: at + 1])


def token_after(tokens):
    return (sum(tokens) * 31 + len(tokens)) % 97


def expected(prompt, new):
    tokens = list(prompt)
    for _ in range(new):
        tokens.append(token_after(tokens))
    return tokens[len(prompt) :]


POLICIES = st.builds(
    schedule_policy,
    batching=st.sampled_from(["one", "static", "continuous"]),
    chunked=st.booleans(),
    separate_steps=st.booleans(),
    max_step_tokens=st.sampled_from([4, 7, 24]),
    max_num_seqs=st.integers(1, 4),
    max_model_len=st.just(24),
)
LAYOUTS = st.builds(
    lambda windows, blocks, contiguous, prefix: kv_policy(
        *windows, blocks=blocks, contiguous=contiguous, prefix_cache=prefix and not contiguous
    ),
    st.sampled_from([(None,), (5,), (None, 5)]),
    st.sampled_from([6, 8, 13, 30]),
    st.booleans(),
    st.booleans(),
)
# Few different tokens, so that prefixes are shared.
PROMPTS = st.lists(st.integers(0, 1), min_size=1, max_size=20)
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), PROMPTS, st.integers(1, 12)),
        st.tuples(st.just("step"), st.integers(0, 9)),
        st.tuples(st.just("abort"), st.integers(0, 9)),
        st.tuples(st.just("abort in flight"), st.integers(0, 9)),
    ),
    max_size=30,
)


@settings(max_examples=400, deadline=None)
@given(kv=LAYOUTS, policy=POLICIES, actions=ACTIONS)
def test_every_request_gets_its_tokens_and_every_block_comes_back(kv, policy, actions):
    harness = Harness(kv, policy)
    wanted = {}
    for number, (action, *arguments) in enumerate(actions):
        name = str(number)
        if action == "add":
            try:
                harness.add(name, *arguments)
                wanted[name] = expected(*arguments)
            except RequestError:
                assert name not in harness.live
        elif action == "step":
            for _ in range(arguments[0]):
                harness.step()
        elif harness.live:
            victim = list(harness.live)[arguments[0] % len(harness.live)]
            if action == "abort":
                harness.abort(victim)
            else:
                harness.step(abort_in_flight=victim)
            if victim not in harness.done:
                wanted.pop(victim)
    # However often requests are preempted, each step computes a token of the oldest one or of a whole batch before it.
    most = sum(len(r.tokens) + r.max_tokens for r in harness.live.values()) * 40 + 10
    while harness.step() is not None:
        most -= 1
        assert most, "requests starve"
    assert harness.done == wanted
    assert not harness.scheduler.has_work
    harness.cache.forget_prefixes()
    harness.cache.check()
    for pool in harness.cache._pools:
        assert pool.available == pool.size


def finish(harness):
    while harness.step() is not None:
        pass
    return harness.steps


def test_continuous_batching_lets_requests_join_and_leave():
    harness = Harness(kv_policy(), schedule_policy(max_num_seqs=2))
    for name, new in (("a", 4), ("b", 2), ("c", 2)):
        harness.add(name, [1, 2], new)
    assert [[seq[0] for seq in step] for step in finish(harness)] == [
        ["a", "b"],
        ["a", "b"],
        ["a", "c"],
        ["a", "c"],
    ]
    assert harness.scheduler.counters()["batched_steps"] == 4


def test_a_static_batch_runs_to_its_end_before_the_next():
    harness = Harness(kv_policy(), schedule_policy(batching="static", max_num_seqs=2))
    for name, new in (("a", 3), ("b", 1), ("c", 1)):
        harness.add(name, [1, 2], new)
    assert [[seq[0] for seq in step] for step in finish(harness)] == [["a", "b"], ["a"], ["a"], ["c"]]


def test_one_at_a_time():
    harness = Harness(kv_policy(), schedule_policy(batching="one"))
    harness.add("a", [1, 2], 2)
    harness.add("b", [1, 2], 1)
    assert [[seq[0] for seq in step] for step in finish(harness)] == [["a"], ["a"], ["b"]]
    assert harness.scheduler.counters()["batched_steps"] == 0


def test_a_chunked_prompt_shares_the_budget_with_decoding_requests():
    harness = Harness(kv_policy(), schedule_policy(max_step_tokens=4))
    harness.add("a", [1], 4)
    harness.step()
    harness.add("b", list(range(7)), 1)
    assert finish(harness)[1:] == [
        [("a", 1, 1, True), ("b", 0, 3, False)],
        [("a", 2, 1, True), ("b", 3, 3, False)],
        [("a", 3, 1, True), ("b", 6, 1, True)],
    ]
    assert harness.scheduler.counters()["prefill_chunks"] == 2


def test_a_whole_prompt_enters_alone_when_it_does_not_fit_beside_the_others():
    harness = Harness(kv_policy(), schedule_policy(chunked=False, max_step_tokens=8))
    harness.add("a", [1], 3)
    harness.step()
    harness.add("b", list(range(8)), 2)
    assert finish(harness)[1:] == [
        [("b", 0, 8, True)],
        [("a", 1, 1, True), ("b", 8, 1, True)],
        [("a", 2, 1, True)],
    ]
    counters = harness.scheduler.counters()
    assert counters["prefill_chunks"] == 0
    assert counters["separated_steps"] == 0


def test_separate_steps_take_turns():
    harness = Harness(kv_policy(), schedule_policy(separate_steps=True, max_step_tokens=4))
    harness.add("a", [1], 4)
    harness.step()
    harness.add("b", list(range(7)), 1)
    assert finish(harness)[1:] == [
        [("a", 1, 1, True)],
        [("b", 0, 4, False)],
        [("a", 2, 1, True)],
        [("b", 4, 3, True)],
        [("a", 3, 1, True)],
    ]
    # b's two prefill steps kept a waiting, and a's step between them kept b waiting.
    assert harness.scheduler.counters()["separated_steps"] == 3


def test_the_latest_request_is_preempted_and_resumes_with_its_tokens():
    harness = Harness(kv_policy(blocks=4), schedule_policy(max_num_seqs=3))
    first = harness.add("a", [1] * 7, 6)
    second = harness.add("b", [2] * 7, 6)
    third = harness.add("c", [3], 1)
    finish(harness)
    assert harness.scheduler.counters()["preemptions"] == second.preemptions == 1
    assert first.preemptions == third.preemptions == 0
    resumed = next(step for step in harness.steps[2:] if ("b", 0) in [seq[:2] for seq in step])
    assert [seq[0] for seq in resumed] == ["b", "c"]
    for request in (first, second, third):
        assert harness.done[request.request_id] == expected(request.tokens[: request.prompt_len], request.max_tokens)


def test_nobody_overtakes_the_head_of_the_queue():
    harness = Harness(kv_policy(blocks=6), schedule_policy())
    harness.add("a", [1] * 14, 3)
    harness.add("large", [2] * 14, 1)
    harness.add("small", [3], 1)
    firsts = [step[0][0] for step in finish(harness) if step[0][1] == 0]
    assert firsts == ["a", "large"]


@pytest.mark.parametrize(
    ("kv", "policy", "prompt", "new", "numbers"),
    [
        (kv_policy(), schedule_policy(), 60, 5, ("60", "5", "65", "64")),
        (kv_policy(blocks=5), schedule_policy(), 15, 7, ("21", "20")),
        (kv_policy(), schedule_policy(chunked=False), 17, 1, ("17", "16")),
        (kv_policy(blocks=15, contiguous=True), schedule_policy(), 1, 1, ("1", "0")),
    ],
)
def test_a_request_that_can_never_fit_is_refused_with_the_numbers(kv, policy, prompt, new, numbers):
    harness = Harness(kv, policy)
    with pytest.raises(RequestError) as error:
        harness.add("big", [1] * prompt, new)
    assert all(number in str(error.value) for number in numbers)
    assert not harness.scheduler.has_work
    most = harness.scheduler.most_new_tokens(prompt)
    assert most < new or not policy.chunked


def test_the_largest_request_that_fits_alone_is_served():
    harness = Harness(kv_policy(blocks=5), schedule_policy())
    harness.add("a", [1] * 15, harness.scheduler.most_new_tokens(15))
    finish(harness)
    assert len(harness.done["a"]) == 6


def test_scheduling_needs_no_arrays():
    code = "import fuseboard.execute.scheduler, sys; assert 'numpy' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
