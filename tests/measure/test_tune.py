"""From a model and limits to a configuration file, on a tiny engine; speed decides nothing here."""

import json
from collections import Counter
from pathlib import Path

import pytest

from dummy_model import write_dummy
from fuseboard import cli
from fuseboard.measure import budget, compare, record
from fuseboard.measure.record import LaunchRecord
from fuseboard.measure.tuning import Study

SHAPE = "input_len=40,output_len=3,concurrency=2,num_prompts=3,shared_prefix=16"
EASY = "ttft_p95=60s,tpot_p95=60s"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FUSEBOARD_CACHE", str(tmp_path / "cache"))
    return tmp_path


@pytest.fixture(autouse=True)
def _steady_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A launch takes a second by the budget's clock, so that what fits does not depend on the machine."""
    monkeypatch.setattr(Study, "elapsed", property(lambda study: float(sum(map(len, study.launches.values())))))
    monkeypatch.setattr(budget, "launch_s", lambda launched: 1.0)


def tune(folder: Path, *more: str, slo: str = EASY, workload: str = SHAPE) -> int:
    files = ("--out", str(folder / "out"), "--write", str(folder / "fuseboard.toml"))
    base = ("--load-format", "dummy", "--threads", "1", "--workload", workload, "--slo", slo)
    return cli.main(["tune", write_dummy(folder), *base, *files, *more])


def launches(folder: Path, stage: str) -> list[LaunchRecord]:
    return [r for r in record.read(folder / "out" / stage / "records.jsonl") if isinstance(r, LaunchRecord)]


def summary(folder: Path) -> dict:  # type: ignore[type-arg]
    return json.loads((folder / "out" / "summary.json").read_text())


def test_a_configuration_is_measured_and_written(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tune(folder, "--budget", "12s", "--finalists", "2") == 0
    printed = capsys.readouterr().out
    for words in ("Finalists", "Recommended", "Risk: the next launch breaks", "Rejected", "The configuration:"):
        assert words in printed
    found = summary(folder)
    assert found["finalists"][0]["name"] == "preset on"
    winner = found["winner"]
    assert winner["launches"] >= 3
    assert 0.9 <= winner["probability"] <= 1
    assert set(winner["limits"]) == {"ttft_p95", "tpot_p95"}
    by_arm: dict[str, set[int]] = {}
    for launched in launches(folder, "finalists"):
        assert launched.error is None
        by_arm.setdefault(launched.arm, set()).add(launched.block)
    assert len(by_arm) == 2
    assert all(blocks >= {0, 1, 2} for blocks in by_arm.values()), "three launches at least"
    assert 'preset = "on"' in (folder / "fuseboard.toml").read_text().splitlines()
    capsys.readouterr()
    assert cli.main(["plan", "--config", str(folder / "fuseboard.toml"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["digest"] == winner["plan_digest"], "what is served is what was measured"
    assert compare.load(str(folder / "out" / "finalists")).arms


def test_switches_of_the_winner_are_weighed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fixed = [f"--set={name}" for name in ("weights=native", "kv.dtype=f16", "kv.block_size=64", "prefill=chunked")]
    assert tune(folder, "--budget", "21s", "--finalists", "1", *fixed) == 0
    found = summary(folder)
    assert [one["name"] for one in found["finalists"]] == ["preset on"]
    weighed = {one["switches"][0] for one in found["worth"]}
    left_over = {name.partition("=")[0] for name in found["unmeasured"]}
    assert weighed | left_over >= {"graph", "fuse.qkv", "prefix_cache", "memory_reuse"}
    assert weighed == {"fuse.qkv"}, "17.8 s, the finalist took 8: three launches of the winner and of two neighbours"
    arms = Counter(r.arm for r in launches(folder, "neighbours"))
    assert arms == {"preset on": 3, "max_num_seqs=1": 3, "fuse.qkv=off": 3}


def test_the_quality_gate_rejects_with_the_number(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fixed = ("--set=kv.dtype=f32", "--also=weights=w4a8:g32")
    assert tune(folder, "--budget", "5s", "--max-kl", "0", "--finalists", "3", *fixed) == 0
    found = summary(folder)
    assert [one["switches"].get("weights", "f32") for one in found["finalists"]] <= ["native"]
    gated = [one for one in found["rejected"] if "mean KL" in one["reason"]]
    assert any("w4a8" in one["name"] for one in gated)
    assert all("more than 0" in one["reason"] for one in gated)


def test_limits_that_nothing_keeps(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tune(folder, "--budget", "3s", "--finalists", "1", slo="e2e_p95=1us") == 2
    captured = capsys.readouterr()
    assert "No configuration that was measured keeps e2e_p95=0.001ms" in captured.err.splitlines()[-1]
    assert "Finalists" in captured.out
    assert not (folder / "fuseboard.toml").exists()


def test_dry_run_measures_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tune(folder, "--dry-run") == 0
    assert "Would be measured in this order" in capsys.readouterr().out
    assert not (folder / "out").exists()
    assert not (folder / "fuseboard.toml").exists()


def test_clipped_rows_of_a_trace_are_said(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = folder / "log.csv"
    trace.write_text("input_len,output_len,arrival_s\n30,4,0\n5000,8,0.5\n")
    assert tune(folder, "--dry-run", workload=str(trace)) == 0
    assert "1 of 2 requests of log.csv were clipped" in capsys.readouterr().out
    options = ("--load-format", "dummy", "--max-model-len", "64", "--time-scale", "0", "--threads", "1")
    assert cli.main(["bench", write_dummy(folder), "--trace", str(trace), *options]) == 0
    assert "1 of 2 requests of log.csv were clipped to 64 tokens" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--slo", "fast"), "is not a limit"),
        (("--budget", "soon"), "--budget"),
        (("--memory", "lots"), "is not a size"),
        (("--memory", "1MB"), "No configuration can be measured, all"),
        (("--confidence", "2"), "--confidence"),
        (("--finalists", "0"), "--finalists"),
        (("--workload", "input_len=many"), "takes a number"),
        (("--workload", "inputs=3"), "no 'inputs'"),
        (("--workload", "no-such-file"), "There is no workload"),
        (("--workload", "output_len=0"), "at least 1"),
        (("--set", "warp=on"), "There is no switch"),
        (("--also", "kv.dtype=f4"), "no value"),
        (("--max-model-len", "99999"), "must be from 1"),
    ],
)
def test_bad_input_is_one_sentence_and_code_2(
    folder: Path, capsys: pytest.CaptureFixture[str], more: tuple[str, ...], words: str
) -> None:
    assert tune(folder, *more, "--dry-run") == 2
    said = capsys.readouterr().err.strip()
    assert words in said
    assert "\n" not in said


def test_a_run_goes_on_from_its_records(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("--budget", "1s", "--finalists", "2")
    assert tune(folder, *asked) == 0
    first = launches(folder, "finalists")
    assert len(first) == 6
    path = folder / "out" / "finalists" / "records.jsonl"
    path.write_text("\n".join(path.read_text().splitlines()[:-2]) + "\n")
    capsys.readouterr()
    assert tune(folder, *asked) == 0
    said = capsys.readouterr().err.splitlines()
    again = launches(folder, "finalists")
    assert [r.started_unix for r in again[:5]] == [r.started_unix for r in first[:5]]
    assert [line for line in said if "block 3" in line] == [f"finalists, block 3, {first[5].arm}"]
    assert not any(line.startswith(("finalists, block 1", "finalists, block 2", "answers")) for line in said)
    assert summary(folder)["finalists"][0]["launches"] >= 3
    assert tune(folder, *asked, "--no-resume") == 0
    anew = launches(folder, "finalists")
    assert not {r.started_unix for r in anew} & {r.started_unix for r in again}


def test_time_that_is_left_goes_into_certainty(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tune(folder, "--budget", "8s", "--finalists", "1", slo="e2e_p95=1us") == 2
    made = launches(folder, "finalists")
    assert len(made) == 7, "three in the half that is the finalists', the rest up to the budget"
    assert summary(folder)["finalists"][0]["launches"] == len(made) == len({r.started_unix for r in made})
