"""The whole instrument on a tiny engine: launches, resuming, failures, bench."""

import dataclasses
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dummy_model import GEMMA, write_dummy
from fuseboard.core.errors import UserError
from fuseboard.measure import bench, budget, experiment, machine, record
from fuseboard.measure.analysis import analyse
from fuseboard.measure.launch import LaunchSpec, launch, run_child
from fuseboard.measure.options import AblateOptions, BenchOptions
from fuseboard.measure.record import LaunchRecord, QualityRecord
from fuseboard.measure.subject import EngineArgs, load_subject
from fuseboard.measure.workload import Prompts, Workload, grid_cell, warmup_rounds


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FUSEBOARD_CACHE", str(tmp_path / "cache"))
    return tmp_path


def spec(folder: Path, switches: dict[str, str], **engine: object) -> LaunchSpec:
    args = EngineArgs(
        model=write_dummy(folder), switches=switches, threads=1, max_model_len=128, max_num_seqs=2, load_format="dummy"
    )
    prompts = Prompts(load_subject(args).model.tokenizer, seed=0)
    cell = grid_cell(prompts, input_len=40, output_len=4, concurrency=2, count=3)
    work = Workload(name="test", cells=(cell,), warmup=warmup_rounds(prompts, [cell], rounds=2), warmup_s=20.0, seed=0)
    return LaunchSpec(
        arm="a",
        block=0,
        position=0,
        engine=dataclasses.replace(args, **engine),
        workload=work,
        code_digest="c",  # type: ignore[arg-type]
    )


def test_a_launch_measures(cache: Path) -> None:
    done = launch(spec(cache, {"graph": "captured"}), timeout_s=60)
    assert done.error is None
    (cell,) = done.cells
    assert [(r.n_in, r.n_out, r.error) for r in cell.requests] == [(40, 4, None)] * 3
    assert len(done.warmup_ns) == 2
    assert cell.counters["graph_replays"] == cell.decode.steps + cell.prefill.steps
    assert cell.prefill.tokens == 120
    assert done.memory_planned["weights"] > 0
    assert done.memory_measured["python and libraries"] > 10_000_000
    assert done.plan_switches["graph"] == "captured"
    assert record.from_line(record.to_line(done)) == done


def test_the_same_arm_gives_the_same_tokens_in_every_process(cache: Path) -> None:
    first, second = (launch(spec(cache, {}), timeout_s=60) for _ in range(2))
    assert first.plan_digest == second.plan_digest
    assert [r.token_ids for r in first.cells[0].requests] == [r.token_ids for r in second.cells[0].requests]


def test_every_end_of_a_launch_is_a_record(cache: Path) -> None:
    refused = launch(spec(cache, {"pd": "separate", "batching": "one"}), timeout_s=60)
    assert refused.error is not None
    assert refused.error.kind == "refused"
    too_small = launch(spec(cache, {}, kv_memory=1000), timeout_s=60)
    assert too_small.error is not None
    assert too_small.error.kind == "does_not_fit"
    assert "bytes" in too_small.error.message
    late = launch(spec(cache, {}), timeout_s=0.01)
    assert late.error is not None
    assert late.error.kind == "timeout"


def test_a_child_that_crashes_or_is_killed_says_how(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "crash_child.py").write_text("raise RuntimeError('broken')\n")
    (tmp_path / "killed_child.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")
    (tmp_path / "segv_child.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    problems = [run_child(f"{name}_child", {}, timeout_s=30)[1] for name in ("crash", "killed", "segv")]
    assert [p.kind for p in problems if p] == ["crashed", "killed", "crashed"]
    assert problems[0] is not None
    assert "broken" in problems[0].message
    assert problems[2] is not None
    assert "SIGSEGV" in problems[2].message


def test_a_child_ends_with_its_parent(tmp_path: Path) -> None:
    child = "import time\nfrom fuseboard.measure.launch import private_stdout\nprivate_stdout()\ntime.sleep(600)\n"
    (tmp_path / "sleeping_child.py").write_text(child)
    parent = (
        "import subprocess, sys, time\n"
        "p = subprocess.Popen([sys.executable, '-m', 'sleeping_child'], start_new_session=True)\n"
        "time.sleep(1.5)\nprint(p.pid, flush=True)\ntime.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", parent], cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        process.kill()
    deadline = time.monotonic() + 20
    while running(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not running(pid)


def running(pid: int) -> bool:
    """Whether the process lives; one that nobody waited for yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def options(folder: Path, **more: object) -> AblateOptions:
    chosen = {"design": "ladder", "only": ("graph",), "workload": "quick", "blocks": 2, "threads": 1} | more
    return AblateOptions(
        model=write_dummy(folder),
        load_format="dummy",
        out=folder / "out",
        **chosen,  # type: ignore[arg-type]
    )


def test_ablate_runs_and_resumes(cache: Path) -> None:
    reports: list[Path] = []
    path = experiment.run(options(cache), report=reports.append)
    lines = record.read(path)
    launches = [line for line in lines if isinstance(line, LaunchRecord)]
    arms = ("A/A", "all off", "all on")
    assert sorted((r.block, r.arm) for r in launches) == [(b, arm) for b in range(2) for arm in arms]
    assert reports == [path, path]
    analysis = analyse(lines)
    assert analysis.complete
    (step,) = analysis.of_kind("ladder")
    assert step.engaged["graph"] > 0
    assert step.gain("4 at a time") is not None

    def count() -> int:
        return sum(isinstance(line, LaunchRecord) for line in record.read(path))

    experiment.run(options(cache))
    assert count() == 6, "nothing is measured twice"
    kept = [line for line in lines if not (isinstance(line, LaunchRecord) and line == launches[-1])]
    path.write_text("".join(record.to_line(line) + "\n" for line in kept))
    experiment.run(options(cache))
    assert count() == 6, "only what is missing of a block of this boot is measured"


def test_an_interrupted_block_of_another_boot_is_measured_anew(cache: Path) -> None:
    made = experiment.prepare(options(cache, quality=False))
    settings = {arm.name: arm.switches for arm in made.design.arms}
    plans = {arm.name: arm.plan_digest for arm in made.design.arms}
    assert plans["A/A"] == plans["all off"] != plans["all on"]
    here = [
        LaunchRecord(
            arm=p.arm, block=p.block, position=p.position, switches=settings[p.arm], model=made.design.model,
            workload_digest=made.design.workload_digest, code_digest=made.design.code_digest,
            machine=made.design.machine, versions={}, seed=0, started_unix=0.0, plan_digest=plans[p.arm],
        )
        for p in made.places
    ]  # fmt: skip
    before = [dataclasses.replace(r, machine=dataclasses.replace(r.machine, boot="before")) for r in here]
    assert experiment.remaining(made, before) == [], "complete blocks count"
    assert experiment.remaining(made, here[:-1]) == [made.places[-1]]
    assert experiment.remaining(made, before[:-1]) == [p for p in made.places if p.block == 1]
    for changed in ({"code_digest": "x"}, {"plan_digest": "x"}, {"workload_digest": "x"}):
        assert len(experiment.remaining(made, [dataclasses.replace(r, **changed) for r in here])) == len(here)  # type: ignore[arg-type]


def test_quality_stands_beside_speed(cache: Path) -> None:
    path = experiment.run(options(cache, only=("weights",), on=("weights=w8a16",)))
    (record_,) = [line for line in record.read(path) if isinstance(line, QualityRecord)]
    assert record_.error is None
    assert 0 < record_.values["kl_mean"] < 0.01


def test_a_budget_adds_blocks(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = experiment.run(options(cache, blocks=None, budget="1s", quality=False, profile=False))
    assert "less than the two" in capsys.readouterr().err
    first = [line for line in record.read(path) if isinstance(line, LaunchRecord)]
    assert {r.block for r in first} == {0, 1}
    each = sum(budget.launch_s(r) for r in first) / 2
    path = experiment.run(options(cache, blocks=None, budget=f"{4.5 * each:.2f}s", quality=False, profile=False))
    assert "4 will run and find gains from" in capsys.readouterr().err
    launches = [line for line in record.read(path) if isinstance(line, LaunchRecord)]
    assert launches[:6] == first, "the blocks of before count"
    assert sorted((r.block, r.arm) for r in launches) == sorted(
        (b, a) for b in range(4) for a in ("A/A", "all off", "all on")
    )
    assert analyse(record.read(path)).complete


def test_a_switch_without_effect_is_left_out_and_said(cache: Path) -> None:
    """The projections of this family are followed by a norm: there is no residual to add."""
    chosen = {"only": (), "design": "quick", "quality": False, "profile": False}
    asked = options(cache, **chosen)
    write_dummy(cache, GEMMA)
    grouped = experiment.prepare(asked)
    assert not any("fuse.residual" in arm.switches for arm in grouped.design.arms)
    assert any("fuse.residual is left out" in note for note in grouped.design.notes)
    assert all(arm.plan_digest for arm in grouped.design.arms)
    single = dataclasses.replace(asked, design="alone")
    reasons = {c.name: c.unavailable for c in experiment.prepare(single).design.comparisons if c.unavailable}
    assert "cannot take effect" in reasons["fuse.residual"]
    held = dataclasses.replace(single, set=("fuse.residual=on",))
    with pytest.raises(UserError, match="cannot take effect"):
        experiment.prepare(held)


def test_an_interrupt_leaves_a_report_and_costs_one_launch(cache: Path) -> None:
    out = cache / "out"
    command = [
        sys.executable, "-m", "fuseboard", "ablate", write_dummy(cache), "--load-format", "dummy", "--threads", "1",
        "--out", str(out), "--design", "ladder", "--only", "graph", "--workload", "quick", "--blocks", "50",
        "--no-quality",
    ]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while len(launches_in(out)) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    kept = launches_in(out)
    assert 2 <= len(kept) < 150
    assert "stopped early" in (out / "report.html").read_text()
    assert json.loads((out / "summary.json").read_text())["complete"] is False
    blocks = len(kept) // 3 + 2
    experiment.run(options(cache, blocks=blocks, quality=False, profile=False))
    whole = launches_in(out)
    assert (len(whole), whole[: len(kept)]) == (3 * blocks, kept)


def launches_in(out: Path) -> list[LaunchRecord]:
    return [line for line in record.read(out / "records.jsonl") if isinstance(line, LaunchRecord)]


def test_dry_run_lists_and_starts_nothing(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = experiment.run(options(cache, dry_run=True))
    printed = capsys.readouterr().out
    assert "arm all on: graph=captured" in printed
    assert "6 launches of about 6.0 s" in printed
    assert not path.exists()


def test_bad_options_are_refused(cache: Path) -> None:
    for bad in ({"blocks": 1}, {"only": ("warp",)}, {"design": "odd"}, {"set": ("graph",)}):
        with pytest.raises(UserError):
            experiment.prepare(options(cache, **bad))


def test_bench_has_the_known_keys(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = cache / "bench.json"
    result = bench.run(
        BenchOptions(
            model=write_dummy(cache),
            load_format="dummy",
            input_len=30,
            output_len=5,
            concurrency=2,
            num_prompts=3,
            threads=1,
            json=out,
            set=("kv.block_size=32",),
        )
    )
    assert json.loads(out.read_text()) == json.loads(json.dumps(result))
    assert (result["completed"], result["failed"]) == (3, 0)
    assert (result["total_input_tokens"], result["total_output_tokens"]) == (90, 15)
    assert result["request_throughput"] == pytest.approx(3 / result["duration"])
    assert result["output_throughput"] == pytest.approx(15 / result["duration"])
    assert result["total_token_throughput"] == pytest.approx(105 / result["duration"])
    for key in ("ttft", "tpot", "itl", "e2el"):
        assert 0 <= result[f"median_{key}_ms"] <= result[f"p99_{key}_ms"]
        assert result[f"mean_{key}_ms"] > 0
    assert result["fuseboard"]["switches"]["kv.block_size"] == "32"
    assert "Time to first token" in capsys.readouterr().out


def test_bench_open_loop(cache: Path) -> None:
    result = bench.run(
        BenchOptions(
            model=write_dummy(cache),
            load_format="dummy",
            input_len=20,
            output_len=2,
            num_prompts=3,
            threads=1,
            request_rate=50.0,
        )
    )
    assert (result["completed"], result["request_rate"]) == (3, 50.0)
    with pytest.raises(UserError, match="--request-rate"):
        bench.run(BenchOptions(model=write_dummy(cache), load_format="dummy", request_rate=0.0))


def test_one_cache_size_holds_a_sequence_in_blocks_of_any_size(cache: Path) -> None:
    base = {"model": write_dummy(cache), "load_format": "dummy", "threads": 1, "design": "alone", "workload": "quick"}
    for size in ("64", "256"):
        asked = AblateOptions(out=cache / size, only=("kv.block_size",), on=(f"kv.block_size={size}",), **base)  # type: ignore[arg-type]
        made = experiment.prepare(asked)
        assert all(arm.plan_digest for arm in made.design.arms), "every arm has a plan under the one --kv-memory"


def test_the_code_digest_is_stable() -> None:
    assert machine.code_digest() == machine.code_digest()
    assert len(machine.code_digest()) == 64
