"""Result files of other tools: every unit and total, and clear words for what is not understood."""

from pathlib import Path
from typing import Any

import pytest
import result_files as files

from fuseboard.core.errors import UserError
from fuseboard.measure import imports
from fuseboard.measure.runs import Run


def only_run(found: Any) -> Run:
    (arm,) = found.arms
    (run,) = arm.runs
    return run


def test_vllm(tmp_path: Path) -> None:
    found = imports.load(files.write(tmp_path / "a.json", files.vllm()))
    run = only_run(found)
    assert found.tool == "vLLM"
    assert run.cell == "rate inf, concurrency 4"
    assert (run.work.requests, run.work.tokens_in, run.work.tokens_out, run.work.failed) == (8, 4096, 1024, 0)
    assert run.values["duration"] == 10.0
    assert (run.values["ttft"], run.values["ttft_p50"], run.values["ttft_p99"]) == (200.0, 190.0, 260.0)
    assert (run.values["tpot"], run.values["itl_p99"]) == (30.0, 50.0)
    assert (run.values["throughput"], run.values["total_throughput"]) == (102.4, 512.0)
    assert "e2e" not in run.values
    assert found.arms[0].facts["model"] == "some/model"


def test_runs_appended_to_one_file_are_repetitions(tmp_path: Path) -> None:
    rows = [files.vllm(), files.vllm(duration=10.5)]
    (arm,) = imports.load(files.write(tmp_path / "a.jsonl", rows)).arms
    assert [run.values["duration"] for run in arm.runs] == [10.0, 10.5]


def test_a_vllm_sweep_has_an_arm_for_each_combination(tmp_path: Path) -> None:
    for seqs in (32, 64):
        folder = tmp_path / f"SERVE--max_num_seqs={seqs}"
        runs = [files.vllm(run_number=i, max_num_seqs=seqs, duration=10.0 + i) for i in range(2)]
        for i, row in enumerate(runs):
            files.write(folder / f"run={i}.json", row)
        files.write(folder / "summary.json", runs)
    found = imports.load(tmp_path)
    assert [arm.name for arm in found.arms] == ["SERVE--max_num_seqs=32", "SERVE--max_num_seqs=64"]
    assert [len(arm.runs) for arm in found.arms] == [2, 2]


def test_sglang(tmp_path: Path) -> None:
    found = imports.load(files.write(tmp_path / "a.jsonl", [files.sglang()]))
    run = only_run(found)
    assert found.tool == "SGLang"
    assert run.cell == "512 in, 128 out, rate inf, concurrency 4"
    assert (run.values["e2e"], run.values["e2e_p99"], run.values["itl_p95"]) == (3900.0, 4000.0, 31.0)
    assert (run.values["throughput"], run.values["total_throughput"]) == (128.0, 641.0)


def test_sglang_counts_errors(tmp_path: Path) -> None:
    row = files.sglang(completed=7, errors=["", "refused", ""])
    assert only_run(imports.load(files.write(tmp_path / "a.jsonl", [row]))).work.failed == 1


def test_aiperf(tmp_path: Path) -> None:
    found = imports.load(files.write(tmp_path / "profile_export_aiperf.json", files.aiperf()))
    run = only_run(found)
    assert found.tool == "AIPerf"
    assert (run.work.tokens_in, run.work.tokens_out) == (4096, 1024)
    assert (run.values["duration"], run.values["ttft"], run.values["tpot"]) == (9.0, 180.0, 28.0)
    assert run.values["e2e_p95"] == pytest.approx(4800.0)
    assert run.cell == "concurrency 4"


def test_aiperf_units_are_converted(tmp_path: Path) -> None:
    seconds = {"unit": "sec", "avg": 0.18, "p95": 0.2}
    row = {"records": files.aiperf(time_to_first_token=seconds, benchmark_duration={"unit": "ns", "avg": 9e9})}
    run = only_run(imports.load(files.write(tmp_path / "a.json", row)))
    assert run.values["ttft"] == pytest.approx(180.0)
    assert run.values["ttft_p95"] == pytest.approx(200.0)
    assert run.values["duration"] == pytest.approx(9.0)
    odd = files.aiperf(time_to_first_token={"unit": "fortnight", "avg": 1.0})
    with pytest.raises(UserError, match="time_to_first_token/unit"):
        imports.load(files.write(tmp_path / "b.json", odd))


def test_guidellm(tmp_path: Path) -> None:
    found = imports.load(files.write(tmp_path / "benchmarks.json", files.guidellm()))
    run = only_run(found)
    assert found.tool == "GuideLLM"
    assert run.cell == "concurrent 4"
    assert (run.work.requests, run.work.tokens_in, run.work.tokens_out) == (8, 4096, 1024)
    assert run.values["e2e"] == pytest.approx(4100.0), "its latencies of requests are seconds"
    assert (run.values["ttft"], run.values["tpot"]) == (190.0, 29.0)
    assert run.values["ttft_p95"] == pytest.approx(228.0)
    assert found.arms[0].facts["model"] == "some/model"


def test_llama_bench(tmp_path: Path) -> None:
    rows = [files.llama_bench(512, 0, 400.0), files.llama_bench(0, 128, 100.0)]
    for found in (
        imports.load(files.write(tmp_path / "a.json", rows)),
        imports.load(files.write(tmp_path / "a.jsonl", rows)),
    ):
        (arm,) = found.arms
        assert found.tool == "llama-bench"
        assert [(run.cell, run.values.get("prefill"), run.values.get("decode")) for run in arm.runs] == [
            ("pp512", 400.0, None),
            ("tg128", None, 100.0),
        ]
        assert arm.runs[0].values["duration"] == pytest.approx(1.28)
        assert arm.facts["threads"] == "2"


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("a.json", {"hello": 1}, "no result file that is known here"),
        ("a.json", [1, 2], "no JSON object"),
        ("a.json", {k: v for k, v in files.vllm().items() if k != "total_output_tokens"}, "'total_output_tokens'"),
        ("a.json", {k: v for k, v in files.sglang().items() if k != "duration"}, "'duration'"),
        ("a.json", {k: v for k, v in files.aiperf().items() if k != "request_count"}, "'request_count/avg'"),
        ("a.json", files.guidellm(request_totals={}), "'metrics/request_totals/successful'"),
        ("a.json", {"benchmarks": []}, "'benchmarks/0'"),
        ("a.json", [files.llama_bench(1, 0, 1.0, n_gen=None)], "'n_gen'"),
        ("a.json", files.vllm(completed=0), "no request succeeded"),
        ("a.json", files.vllm(duration="ten"), "cannot be read as one"),
    ],
)
def test_what_is_not_understood_is_named(tmp_path: Path, name: str, data: Any, words: str) -> None:
    path = files.write(tmp_path / name, data)
    with pytest.raises(UserError) as refused:
        imports.load(path)
    assert words in str(refused.value)
    assert str(path) in str(refused.value)


def test_bad_files_and_folders(tmp_path: Path) -> None:
    broken = tmp_path / "broken.json"
    broken.write_text('{"a": ')
    with pytest.raises(UserError, match="neither JSON nor JSON lines"):
        imports.load(broken)
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(UserError, match=r"neither records\.jsonl nor a result file"):
        imports.load(empty)
    mixed = tmp_path / "mixed"
    files.write(mixed / "a.json", files.vllm())
    files.write(mixed / "b.jsonl", [files.sglang()])
    with pytest.raises(UserError, match="mixes results of vLLM and SGLang"):
        imports.load(mixed)
