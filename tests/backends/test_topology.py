"""The order in which threads are bound to processors, on machines described by files."""

import os

import pytest

from fuseboard.backends.cpu.ceilings import memory_read_bytes
from fuseboard.backends.cpu.topology import last_cache, memory_nodes, pinning_order


def describe(root, nodes, siblings):
    """Writes what the system says of a machine: CPUs of every node, and of every core."""
    for index, cpus in enumerate(nodes):
        (root / f"node/node{index}").mkdir(parents=True)
        (root / f"node/node{index}/cpulist").write_text(cpus + "\n")
    for core in siblings:
        for cpu in core:
            (root / f"cpu/cpu{cpu}/topology").mkdir(parents=True)
            (root / f"cpu/cpu{cpu}/topology/thread_siblings_list").write_text(",".join(map(str, core)) + "\n")


@pytest.mark.parametrize(("nodes", "siblings", "allowed", "order"), [
    (["0-3"], [(0, 2), (1, 3)], {0, 1, 2, 3}, (0, 1, 2, 3)),
    (["0-3"], [(0, 1), (2, 3)], {0, 1, 2, 3}, (0, 2, 1, 3)),
    (["0-1", "2-5"], [(0,), (1,), (2,), (3,), (4,), (5,)], {0, 1, 2, 3, 4, 5}, (2, 3, 4, 5, 0, 1)),
    (["0-1", "2-5"], [(0,), (1,), (2,), (3,), (4,), (5,)], {0, 1, 4}, (0, 1, 4)),
    (["0-3"], [(0, 1), (2, 3)], {1, 3}, (1, 3)),
    (["", "0-1"], [], {0, 1}, (0, 1)),
])  # fmt: skip
def test_cores_first_and_one_node_after_the_other(tmp_path, monkeypatch, nodes, siblings, allowed, order):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: allowed)
    describe(tmp_path, nodes, siblings)
    assert pinning_order(tmp_path) == order


def test_a_system_that_says_nothing_is_one_node(tmp_path):
    assert memory_nodes(tmp_path) == [os.sched_getaffinity(0)]
    assert pinning_order(tmp_path) == tuple(sorted(os.sched_getaffinity(0)))
    assert set(pinning_order()) == os.sched_getaffinity(0)


def test_the_last_cache_is_the_outermost_one(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {2, 3})
    for index, (level, size) in enumerate([("1", "48K"), ("1", "32K"), ("2", "2048K"), ("3", "300M")]):
        folder = tmp_path / f"cpu/cpu2/cache/index{index}"
        folder.mkdir(parents=True)
        (folder / "level").write_text(level + "\n")
        (folder / "size").write_text(size + "\n")
    assert last_cache(tmp_path) == 300 << 20
    assert last_cache(tmp_path / "nothing") == 0


def test_memory_is_read_beyond_the_last_cache():
    assert memory_read_bytes(32 << 20, 64 << 30) == 1 << 30
    assert memory_read_bytes(300 << 20, 64 << 30) == 1200 << 20
    assert memory_read_bytes(300 << 20, 2 << 30) == 512 << 20, "a quarter of what is free"
