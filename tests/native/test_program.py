"""Programs: graph and eager runs, timing, labels, and what is refused when a program is built."""

import numpy as np
import pytest
from program_case import ISAS, Acts, make_step, matrix, random

from fuseboard import _native as native


def chain(n: int = 5) -> tuple[native.Program, np.ndarray]:
    """x <- x + 1, n times, in place over 4 tokens."""
    program, x = native.Program(), np.zeros((4, 6), np.float32)
    for i in range(n):
        index = program.add_affine(
            f"plus.{i}", x=x.ctypes.data, ldx=6, scale=1.0, shift=1.0, out=x.ctypes.data, ldo=6, n=6, rows="tokens"
        )
        assert index == i
    return program, x


def test_graph_mode_is_one_replay_and_eager_mode_one_call_a_node() -> None:
    program, x = chain()
    team, step = native.Team(2), make_step(4)
    program.run(team, step)
    assert (x == 5).all()
    assert team.counters()["graph_replays"] == 1
    assert team.counters()["eager_calls"] == 0
    for i in range(len(program)):
        program.run_one(team, i, step)
    program.run_range(team, 1, 4, step)
    assert (x == 13).all()
    assert (team.counters()["graph_replays"], team.counters()["eager_calls"]) == (1, 6)


def test_joined_instructions_need_no_barrier() -> None:
    """Three sums into columns of their own, then one over all of them; many times, so that a race would show."""
    x, parts, total = random(1, 37, 48), np.zeros((37, 144), np.float32), np.zeros((37, 48), np.float32)
    program, team, step = native.Program(), native.Team(3), make_step(37)
    for i in range(3):
        at = parts.ctypes.data + 4 * 48 * i
        program.add_affine(
            f"part.{i}", x=x.ctypes.data, ldx=48, scale=i + 1.0, shift=0.0, out=at, ldo=144, n=48, rows="tokens"
        )
    for a, b, out, lda, ldo in ((0, 48, 0, 144, 48), (None, 96, 0, 48, 48)):
        left = total.ctypes.data if a is None else parts.ctypes.data + 4 * a
        program.add_add(
            "sum", a=left, lda=lda, b=parts.ctypes.data + 4 * b, ldb=144, out=total.ctypes.data + out, ldo=ldo, n=48,
            rows="tokens",
        )  # fmt: skip
    program.join(0, 3)
    for _ in range(300):
        parts[:] = total[:] = 0
        program.run(team, step)
        np.testing.assert_array_equal(total, (x + x * np.float32(2)) + x * np.float32(3))
    assert team.counters()["barriers_saved"] == 600
    with pytest.raises(ValueError, match="outside the program"):
        program.join(3, 6)


def test_waiting_workers_pull_in_the_next_weights() -> None:
    """Worker 0 of two has the one row of a norm to do, so the other waits for it before the projection."""
    weight, x, normed = matrix(3, 512, 2048), random(4, 1, 2048), np.zeros((1, 2048), np.float32)
    program, team, out = native.Program(), native.Team(2), np.zeros((1, 512), np.float32)
    ones = np.ones(2048, np.float32)
    program.add_rms_norm(
        "norm", x=x.ctypes.data, ldx=2048, weight=ones.ctypes.data, eps=1e-5, out=normed.ctypes.data, ldo=2048,
        dim=2048, rows="tokens",
    )  # fmt: skip
    program.add_linear(
        "product", x=native.Act(type="f32", codes=normed.ctypes.data, ld=2048), rows="tokens",
        segments=[native.Segment(weight=weight.weight, out=out.ctypes.data, ldo=512)],
    )  # fmt: skip
    program.run(team, make_step(1))
    expected = out.copy()
    assert team.counters()["prefetched_bytes"] == 0
    program.prefetch_weights()
    for _ in range(50):
        program.run(team, make_step(1))
    np.testing.assert_array_equal(out, expected)
    assert 0 < team.counters()["prefetched_bytes"] <= 50 * 2 * 65536


def test_live_counts_are_set_step_by_step() -> None:
    program, x = chain(1)
    team, step = native.Team(2), make_step(4)
    for tokens in (1, 3, 0, 4):
        step.set(tokens, 1, 0)
        program.run(team, step)
    assert x[:, 0].tolist() == [3, 2, 2, 1]


def test_times_name_every_instruction() -> None:
    program, _ = chain(3)
    team, step = native.Team(2), make_step(4)
    program.run(team, step)
    assert program.times() == [(i, f"plus.{i}", 0, 0) for i in range(3)]
    program.profile(True)
    program.run(team, step)
    program.run_one(team, 1, step)
    program.profile(False)
    program.run(team, step)
    assert [(i, label, calls) for i, label, calls, _ in program.times()] == [
        (0, "plus.0", 1),
        (1, "plus.1", 2),
        (2, "plus.2", 1),
    ]
    assert all(ns > 0 for *_, ns in program.times())
    assert program.labels() == ["plus.0", "plus.1", "plus.2"]


def test_instruction_sets_by_name() -> None:
    assert native.Program().isa == native.isa() == ISAS[-1]
    for isa in ISAS:
        assert native.Program(isa).isa == isa
        assert native.has_tile("w8", "a16", isa)
    assert native.isa("none") == ""
    assert not native.has_tile("w8", "f32")
    with pytest.raises(ValueError, match="no kernels named 'none'"):
        native.Program("none")  # type: ignore[arg-type]


def test_steps_check_their_arrays() -> None:
    step = make_step(4)
    with pytest.raises(ValueError, match="exceed the arrays"):
        step.set(7, 1, 0)
    with pytest.raises(ValueError, match="exceed the arrays"):
        step.set(4, 2, 0)
    with pytest.raises(TypeError):
        step.set(-1, 0, 0)
    ints = np.zeros(4, np.int32)
    common = {"positions": ints, "seq_starts": ints, "context_lens": ints, "sample_rows": ints, "block_tables": []}
    with pytest.raises(TypeError):
        step.bind(token_ids=np.zeros(4, np.int64), kv_slots=[], **common)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        step.bind(token_ids=np.zeros(8, np.int32)[::2], kv_slots=[], **common)
    with pytest.raises(TypeError):
        step.bind(token_ids=ints, kv_slots=[np.zeros(4, np.int64)], **common)  # type: ignore[list-item]
    with pytest.raises(ValueError, match="block table for each"):
        step.bind(token_ids=ints, kv_slots=[ints], **common)


def test_a_step_keeps_its_arrays_alive() -> None:
    table = matrix(1, 5, 4)
    program, out = native.Program(), np.zeros((3, 4), np.float32)
    program.add_embed("e", weight=table.weight, out=out.ctypes.data, ldo=4)
    step = make_step(3, token_ids=[4, 0, 2])  # the arrays have no other owner
    _ = [np.full(5, 1 << 30, np.int32) for _ in range(1000)]
    program.run(native.Team(1), step)
    assert np.array_equal(out, table.values[[4, 0, 2]].astype(np.float32))


def test_what_cannot_work_is_refused_when_it_is_added() -> None:
    program, x = native.Program(), random(1, 4, 64)
    at = x.ctypes.data
    weight = matrix(2, 32, 64, "w8").weight
    with pytest.raises(ValueError, match="no product of w8 weights with f32 activations"):
        program.add_linear(
            "l", x=Acts(4, 64, "f32").act, rows="tokens", segments=[native.Segment(weight=weight, out=at, ldo=64)]
        )
    with pytest.raises(ValueError, match="shorter than the operation"):
        program.add_affine("a", x=at, ldx=63, scale=1, shift=0, out=at, ldo=64, n=64, rows="tokens")
    with pytest.raises(ValueError, match="no address"):
        program.add_add("a", a=0, lda=64, b=at, ldb=64, out=at, ldo=64, n=64, rows="tokens")
    with pytest.raises(ValueError, match="use one of one, tokens, seqs, rows"):
        program.add_affine("a", x=at, ldx=64, scale=1, shift=0, out=at, ldo=64, n=64, rows="all")  # type: ignore[arg-type]
    bad = native.Act(type="a8", codes=at, ld=64, scales=at, sums=at, group=16)
    with pytest.raises(ValueError, match="groups of 32 or 64"):
        program.add_quantise("q", x=at, ldx=64, k=64, out=bad, rows="tokens")
    with pytest.raises(ValueError, match="1 to 4 segments"):
        program.add_linear("l", x=Acts(4, 64, "a16g64").act, rows="tokens", segments=[])
    segment = native.Segment(weight=weight, out=at, ldo=64)
    with pytest.raises(ValueError, match="single segment"):
        program.add_linear("l", x=Acts(4, 64, "a16g64").act, rows="tokens", segments=[segment] * 2, residual=at, ldr=64)
    team, step = native.Team(1), make_step(4)
    with pytest.raises(ValueError, match="outside the program"):
        program.run_one(team, 0, step)
    assert len(program) == 0
