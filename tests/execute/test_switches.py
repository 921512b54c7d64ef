"""Every row of the switch catalogue, off and on, through the whole engine on the CPU: its counters move and its class
of equivalence holds."""

import pytest

from fuseboard import LLM, SamplingParams
from fuseboard.core.errors import PlanError
from fuseboard.plan.switches import CATALOGUE, all_off, parse_settings, resolve, switch
from tiny import random_ids

NEW = 10
CANDIDATES = 20
TIES = 2e-5
"""Two float32 orders of the same sums differ by this share of the largest logit."""
LOSSY = 0.25
"""Largest share of the largest logit by which a lossy value may move a logit of this tiny model."""
HELD = {
    "pd": {"batching": "continuous", "prefill": "chunked:9"},
    "prefix_cache": {"kv.layout": "paged", "kv.pool": "on"},
    "fuse.norm_qkv_rope": {"fuse.qkv": "on"},
    "prefill": {"batching": "continuous"},
    "streams": {"graph": "captured"},
    "weight_prefetch": {"graph": "captured"},
    "overlap": {"graph": "captured"},
}
"""What a switch is studied against, besides everything off: its needs, and company that gives it work."""
ARGUMENTS = {"prefill": {"chunked": "chunked:9"}}
CASES = [(row.name, value) for row in CATALOGUE for value in row.values[1:]]


def prompts(vocab):
    """Prompts of several lengths, two of which begin alike, more than fit in one chunk."""
    shared = random_ids(36, vocab, seed=1).tolist()
    others = [random_ids(length, vocab, seed=seed).tolist() for seed, length in ((2, 19), (3, 3))]
    return [[*shared, 5], [*shared, 6, 7], *others]


def generate(model, switches):
    """Completions of the prompts and the counters of one engine; later prompts come when earlier ones are known."""
    params = SamplingParams(temperature=0, max_tokens=NEW, ignore_eos=True, logprobs=CANDIDATES)
    with LLM(model, preset="off", switches=switches, threads=2, max_model_len=64, max_num_seqs=3) as llm:
        first = llm.generate(prompts(model.spec.vocab_size)[:1], params)
        rest = llm.generate(prompts(model.spec.vocab_size)[1:], params)
        return [*first, *rest], llm.engine.counters()


def same_up_to_ties(off, on, share):
    """The tokens agree to the first place where the best two candidates are closer than rounding can decide."""
    for a, b in zip(off, on, strict=True):
        for step, (left, right) in enumerate(zip(a.logprobs, b.logprobs, strict=True)):
            was, now = dict(left.top), dict(right.top)
            scale = max(map(abs, was.values()))
            assert max(abs(was[token] - now[token]) for token in was.keys() & now.keys()) <= share * scale
            if a.token_ids[step] != b.token_ids[step]:
                best, second = sorted(was.values(), reverse=True)[:2]
                assert best - second <= 2 * share * scale
                break


@pytest.mark.parametrize(("name", "value"), CASES)
def test_switch_engages_and_keeps_its_class(tiny, name, value):
    model = tiny("llama_panels").loaded
    held = HELD.get(name, {})
    off, before = generate(model, held)
    on, after = generate(model, held | {name: ARGUMENTS.get(name, {}).get(value, value)})
    row = switch(name)
    moved = [c for c in row.counters if after.get(c, 0) > before.get(c, 0)]
    # The f32 file is stored in f32 by `native` too: there is nothing that could move.
    assert moved or (name, value) == ("weights", "native"), f"none of {row.counters} moved"
    if row.kind == "exact":
        assert [c.token_ids for c in on] == [c.token_ids for c in off]
    same_up_to_ties(off, on, LOSSY if row.kind == "lossy" else TIES)


def test_everything_on_gives_the_tokens_of_everything_off(tiny):
    model = tiny("llama_panels").loaded
    off, _ = generate(model, {})
    # Once everything is fused, no two neighbouring nodes are independent.
    rows = [row for row in CATALOGUE if row.kind != "lossy" and row.name != "streams"]
    on_values = {row.name: row.values[-1] for row in rows}
    on, counters = generate(model, on_values | {"prefill": "chunked:9", "kv.block_size": "32"})
    same_up_to_ties(off, on, TIES)
    assert not [row.name for row in rows if not any(counters.get(c) for c in row.counters)]


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (["nosuch=1"], "There is no switch 'nosuch'"),
        (["graph"], "NAME=VALUE"),
        (["graph=maybe"], "choose one of: eager, captured"),
        (["graph=eager:2"], "choose one of"),
        (["graph=eager", "graph=captured"], "set twice"),
    ],
)
def test_bad_settings_say_what_is_wrong(settings, reason):
    with pytest.raises(PlanError, match=reason):
        parse_settings(settings)


def test_needs_come_along_and_contradictions_are_refused():
    values = resolve({}, {"prefix_cache": "on"})
    assert values == all_off() | {"prefix_cache": "on", "kv.layout": "paged", "kv.pool": "on"}
    with pytest.raises(PlanError, match=r"prefix_cache=on needs kv.layout=paged"):
        resolve({}, {"prefix_cache": "on", "kv.layout": "contiguous"})
    assert resolve({"fuse.norm_qkv_rope": "on", "fuse.qkv": "on"}, {"fuse.qkv": "off"})["fuse.norm_qkv_rope"] == "off"
