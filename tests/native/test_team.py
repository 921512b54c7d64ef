"""Regions of memory and the thread team."""

import os
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from program_case import make_step, random

from fuseboard import _native as native


def tasks() -> set[int]:
    return {int(path.name) for path in Path("/proc/self/task").iterdir()}


def state_of(task: int) -> str:
    """R for running, S for sleeping, ..."""
    return Path(f"/proc/self/task/{task}/stat").read_text().rsplit(")", 1)[1].split()[0]


def smaps_of(address: int) -> dict[str, int]:
    """Figures in kB of the mapping that holds the address."""
    inside, figures = False, {}
    for line in Path("/proc/self/smaps").read_text().splitlines():
        head = line.split()
        if "-" in head[0] and not head[0].endswith(":"):
            low, high = (int(part, 16) for part in head[0].split("-"))
            inside = low <= address < high
        elif inside and head[-1] == "kB":
            figures[head[0].rstrip(":")] = int(head[1])
    return figures


def doubling(rows: int, n: int) -> tuple[native.Program, np.ndarray, np.ndarray]:
    program, x = native.Program(), random(1, rows, n)
    out = np.zeros_like(x)
    program.add_affine(
        "double", x=x.ctypes.data, ldx=n, scale=2.0, shift=0.0, out=out.ctypes.data, ldo=n, n=n, rows="tokens"
    )
    return program, x, out


def test_region_is_zero_writable_and_lives_as_long_as_its_views() -> None:
    region = native.Region(100_000, name="test")
    assert (region.bytes, region.name, region.huge, region.huge_advised) == (100_000, "test", False, False)
    view = region.view(64, 256)
    assert view.ctypes.data == region.address + 64
    assert not view.any()
    view[:] = 7
    assert region.view()[64:320].sum() == 7 * 256
    del region
    assert view.sum() == 7 * 256


def test_region_takes_memory_when_touched_and_gives_it_back() -> None:
    region = native.Region(1 << 20)
    view = region.view()
    before = smaps_of(region.address)["Rss"]
    view[:] = 1
    assert smaps_of(region.address)["Rss"] - before == 1024
    region.release(4095, 2 * 4096 + 1)  # one whole page and the ends of two others
    assert smaps_of(region.address)["Rss"] - before == 1024 - 8
    assert view[4095] == 1
    assert not view[4096:12288].any()
    assert view[12288] == 1


def test_huge_region_starts_on_a_huge_page_and_says_what_the_kernel_answered() -> None:
    region = native.Region(5 << 20, huge=True)
    assert region.huge
    assert region.address % (2 << 20) == 0
    assert region.huge_advised == Path("/sys/kernel/mm/transparent_hugepage").exists()


@pytest.mark.parametrize(("offset", "length"), [(101, 0), (0, 101), (100, 1)])
def test_region_refuses_ranges_outside(offset: int, length: int) -> None:
    region = native.Region(100)
    with pytest.raises(ValueError, match="outside the region"):
        region.view(offset, length)
    with pytest.raises(ValueError, match="outside the region"):
        region.release(offset, length)


def test_region_needs_bytes() -> None:
    with pytest.raises(ValueError, match="at least one byte"):
        native.Region(0)


@pytest.mark.parametrize("threads", [1, 2, 3, 9])
def test_every_row_is_done_once_with_any_number_of_threads(threads: int) -> None:
    program, x, out = doubling(37, 33)
    team = native.Team(threads)
    assert team.threads == threads
    for _ in range(50):
        out[:] = 0
        program.run(team, make_step(37))
        assert np.array_equal(out, 2 * x)
    assert team.counters()["graph_replays"] == 50


def test_idle_workers_sleep_and_wake_again() -> None:
    before = tasks()
    program, x, out = doubling(8, 16)
    team = native.Team(3)
    workers = tasks() - before
    assert len(workers) == 2
    program.run(team, make_step(8))
    asleep: set[int] = set()
    for _ in range(2000):
        asleep = {t for t in workers if state_of(t) == "S"}
        if asleep == workers:
            break
        time.sleep(0.001)
    assert asleep == workers
    out[:] = 0
    program.run(team, make_step(8))
    assert np.array_equal(out, 2 * x)


def test_workers_end_with_their_team() -> None:
    before = tasks()
    team = native.Team(4)
    assert len(tasks() - before) == 3
    del team
    assert tasks() <= before


def test_workers_are_pinned_and_the_caller_only_while_it_runs() -> None:
    cpus, before = sorted(os.sched_getaffinity(0)), tasks()
    team = native.Team(3, cpus=[cpus[0], cpus[-1], cpus[0]])
    program, x, out = doubling(64, 64)
    for _ in range(20):
        program.run(team, make_step(64))
    assert np.array_equal(out, 2 * x)
    assert team.counters()["pinned_runs"] == 60
    pinned = [os.sched_getaffinity(t) for t in sorted(tasks() - before)]
    assert sorted(map(sorted, pinned)) == sorted([[cpus[0]], [cpus[-1]]])
    assert sorted(os.sched_getaffinity(0)) == cpus


def test_a_cpu_that_cannot_be_used_is_refused_and_leaves_no_thread() -> None:
    before = tasks()
    with pytest.raises(ValueError, match="CPU 1023 is not one this process may use"):
        native.Team(2, cpus=[min(os.sched_getaffinity(0)), 1023])
    assert tasks() <= before


def test_bad_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="1 to 256 threads"):
        native.Team(0)
    with pytest.raises(ValueError, match="one CPU for each thread"):
        native.Team(3, cpus=[0, 0])


def test_counters_reset_and_scratch_is_accounted() -> None:
    program, _, _ = doubling(4, 4)
    team = native.Team(2)
    program.run(team, make_step(4))
    assert tuple(team.counters()) == native.COUNTERS
    team.reset_counters()
    assert not any(team.counters().values())
    assert team.scratch.bytes == 2 << 20


def test_callers_from_several_threads_take_turns() -> None:
    team, step = native.Team(2), make_step(16)
    cases = [doubling(16, 64) for _ in range(3)]

    def many(program: native.Program) -> None:
        for _ in range(100):
            program.run(team, step)

    threads = [threading.Thread(target=many, args=(program,)) for program, _, _ in cases]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(np.array_equal(out, 2 * x) for _, x, out in cases)
    assert team.counters()["graph_replays"] == 300


@pytest.mark.parametrize("threads", [1, 3])
def test_a_driven_team_runs_while_the_caller_goes_on(threads: int) -> None:
    before, step = tasks(), make_step(64)
    team = native.Team(threads, driven=True, cpus=[min(os.sched_getaffinity(0))] * threads)
    assert len(tasks() - before) == threads
    cases = [doubling(64, 64 + i) for i in range(4)]
    for _ in range(50):
        for program, x, out in cases:
            program.start(team, step)  # the one before ends first
            team.wait()
            assert np.array_equal(out, 2 * x)
            out[:] = 0
            program.run(team, step)
            assert np.array_equal(out, 2 * x)
    assert team.counters()["graph_replays"] == 400
    assert team.counters()["pinned_runs"] == 400 * threads
    for program, _, _ in cases:
        program.start(team, step)
    team.wait()
    assert team.counters()["graph_replays"] == 404
    cases[0][0].start(team, step)
    del team  # waits for what runs
    assert tasks() <= before


def test_only_a_driven_team_starts_without_taking_part() -> None:
    program, _, _ = doubling(4, 4)
    with pytest.raises(ValueError, match="driven team"):
        program.start(native.Team(2), make_step(4))
