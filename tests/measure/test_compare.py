"""Two sets of runs: what changed, whether they may be compared, and what moved."""

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
import result_files as files

import simulated
from fuseboard import cli
from fuseboard.core.errors import UserError
from fuseboard.measure import compare, record, stats
from fuseboard.measure.record import DesignRecord, LaunchRecord, Line
from fuseboard.report.compare import render


def save(folder: Path, lines: list[Line]) -> str:
    for line in lines:
        record.append(folder / "records.jsonl", line)
    return str(folder)


def slowed(lines: list[Line], factor: float, **changed: object) -> list[Line]:
    """The same experiment of other code, every time `factor` times as long."""

    def times(cell: record.CellRecord) -> record.CellRecord:
        requests = tuple(
            dataclasses.replace(r, token_ns=tuple(round(t * factor) for t in r.token_ns)) for r in cell.requests
        )
        decode = dataclasses.replace(cell.decode, execute_ns=round(cell.decode.execute_ns * factor))
        return dataclasses.replace(cell, requests=requests, decode=decode)

    found: list[Line] = []
    for line in lines:
        if isinstance(line, LaunchRecord):
            line = dataclasses.replace(line, cells=tuple(times(c) for c in line.cells), **changed)  # type: ignore[arg-type]
        elif isinstance(line, DesignRecord):
            line = dataclasses.replace(line, created_unix=line.created_unix + 1, **changed)  # type: ignore[arg-type]
        found.append(line)
    return found


def test_a_slow_down_between_two_versions_is_found(tmp_path: Path) -> None:
    lines = simulated.experiment(["quick"], blocks=4)
    a = save(tmp_path / "a", lines)
    b = save(tmp_path / "b", slowed(simulated.experiment(["quick"], blocks=4, seed=1), 1.5, code_digest="other"))
    found = compare.compare(compare.load(f"{a}#all on"), compare.load(f"{b}#all on"))
    (arm,) = found.arms
    (cell,) = arm.cells
    assert [(c.name, c.a, c.b) for c in arm.changes] == [("code digest", "c", "other")]
    assert cell.refusal == ""
    assert cell.headline is not None
    assert cell.headline.verdict == "slower"
    estimate = cell.headline.estimate
    assert estimate is not None
    assert estimate.low < -math.log(1.5) < estimate.high
    assert cell.phases[0].name == "decode steps: execute"
    assert cell.phases[0].moved > 0
    assert any("different times" in note for note in found.notes)


def test_the_operator_that_moved_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def profiled(factor: float) -> list[Line]:
        lines = slowed(simulated.experiment(["quick"]), factor)
        launched = next(r for r in lines if isinstance(r, LaunchRecord) and r.arm == "all on")
        times = {"linear": 80.0 * factor, "attention": 20.0}
        operators = tuple(record.OperatorRecord(name=n, calls=1, ns=round(ms * 1e6)) for n, ms in times.items())
        cell = record.CellProfile(
            name="4 at a time", wall_ns=1, idle_ns=0, instrument_ns=0, decode=record.StepsProfile(operators=operators)
        )
        profile = record.ProfileRecord(
            arm="all on", switches=launched.switches, model=launched.model, workload_digest=launched.workload_digest,
            code_digest=launched.code_digest, machine=launched.machine, plan_digest=launched.plan_digest, cells=(cell,),
        )  # fmt: skip
        return [*lines, profile]

    a, b = (save(tmp_path / name, profiled(factor)) for name, factor in (("a", 1.0), ("b", 1.5)))
    sides = [compare.load(f"{side}#all on") for side in (a, b)]
    (cell,) = compare.compare(*sides).arms[0].cells
    assert [(p.name, p.a, p.moved) for p in cell.operators] == [
        ("decode steps: linear", 80.0, 40.0),
        ("decode steps: attention", 20.0, 0.0),
    ]
    assert cli.main(["compare", f"{a}#all on", f"{b}#all on"]) == 0
    assert "Moved most: decode steps: linear, +40.0 ms of +40.0 ms." in capsys.readouterr().out


def test_arms_of_one_experiment_are_paired_by_block(tmp_path: Path) -> None:
    folder = save(tmp_path / "a", simulated.experiment(["quick"], blocks=3, noise=0.002))
    found = compare.compare(compare.load(f"{folder}#all off"), compare.load(f"{folder}#all on"))
    (cell,) = found.arms[0].cells
    assert cell.headline is not None
    assert cell.headline.verdict == "faster"
    estimate = cell.headline.estimate
    assert estimate is not None
    assert estimate.high - estimate.low < 0.05, "the blocks differ by 5 % and cancel"
    assert not any("different times" in note for note in found.notes)
    changed = {c.name for c in found.arms[0].changes}
    assert "switch weights" in changed
    assert "code digest" not in changed


def test_all_arms_of_two_sets_are_matched_by_name(tmp_path: Path) -> None:
    a = save(tmp_path / "a", simulated.experiment(["quick"]))
    b = save(tmp_path / "b", simulated.experiment(["alone"], seed=2))
    found = compare.compare(compare.load(a), compare.load(b))
    assert {arm.a for arm in found.arms} >= {"all off", "all on", "A/A"}
    assert any(note.startswith("Only in") for note in found.notes)


def test_identical_arms_are_rarely_told_apart() -> None:
    rng = np.random.default_rng(0)
    wrong = covered = 0
    trials = 1000
    for _ in range(trials):
        a, b = rng.normal(0, 0.03, 4), rng.normal(0, 0.03, 4)
        estimate = compare.unpaired(a.tolist(), b.tolist(), lower_is_better=True)
        assert estimate is not None
        wrong += estimate.p < stats.ALPHA
        covered += estimate.low < 0 < estimate.high
    assert wrong / trials <= 0.05 + 2 * (0.05 * 0.95 / trials) ** 0.5
    assert covered / trials >= 0.93


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"workload_digest": "another"}, "the workloads are not the same"),
        ({"cells": "shorter"}, "unequal work"),
        ({"cells": "failed"}, "requests failed"),
    ],
)
def test_unequal_work_gets_no_verdict_but_numbers(tmp_path: Path, changed: dict[str, str], words: str) -> None:
    a = save(tmp_path / "a", simulated.experiment(["quick"]))
    lines = slowed(simulated.experiment(["quick"], seed=1), 1.5)
    if "workload_digest" in changed:
        lines = slowed(lines, 1.0, **changed)
    else:
        lines = [_broken(line, changed["cells"]) for line in lines]
    b = save(tmp_path / "b", lines)
    (arm,) = compare.compare(compare.load(f"{a}#all on"), compare.load(f"{b}#all on")).arms
    (cell,) = arm.cells
    assert words in cell.refusal
    assert cell.headline is not None
    assert cell.headline.a > 0
    assert {ratio.verdict for ratio in cell.ratios} == {""}


def _broken(line: Line, how: str) -> Line:
    if not isinstance(line, LaunchRecord):
        return line
    cell = line.cells[0]
    first = cell.requests[0]
    changed = (
        dataclasses.replace(first, token_ns=first.token_ns[:-1])
        if how == "shorter"
        else dataclasses.replace(first, error="it stopped")
    )
    return dataclasses.replace(
        line, cells=(dataclasses.replace(cell, requests=(changed, *cell.requests[1:])), *line.cells[1:])
    )


def test_one_run_a_side_has_a_ratio_and_no_verdict(tmp_path: Path) -> None:
    a = files.write(tmp_path / "a.json", files.vllm())
    b = files.write(tmp_path / "b.jsonl", [files.sglang()])
    found = compare.compare(compare.load(str(a)), compare.load(str(b)))
    (cell,) = found.arms[0].cells
    assert cell.refusal == "", "a token more a prompt is another tokenizer, not other work"
    assert cell.headline is not None
    assert math.exp(cell.headline.gain) == pytest.approx(10 / 8)
    assert (cell.headline.estimate, cell.headline.verdict) == (None, "")
    assert any("No interval" in note for note in found.notes)


def test_repeated_results_of_two_tools_get_a_verdict(tmp_path: Path) -> None:
    for i, noise in enumerate((1.0, 1.01, 0.99)):
        files.write(tmp_path / "a" / f"{i}.json", files.vllm(duration=10.0 * noise))
        files.write(tmp_path / "b" / f"{i}.json", files.sglang(duration=8.0 * noise))
    found = compare.compare(compare.load(str(tmp_path / "a")), compare.load(str(tmp_path / "b")))
    (cell,) = found.arms[0].cells
    assert cell.headline is not None
    assert cell.headline.verdict == "faster"
    other = files.write(tmp_path / "c.json", files.aiperf())
    more = compare.compare(compare.load(str(tmp_path / "a")), compare.load(str(other)))
    assert more.arms[0].cells[0].refusal == ""


def test_work_of_other_tools_must_still_be_equal(tmp_path: Path) -> None:
    a = files.write(tmp_path / "a.json", files.vllm())
    b = files.write(tmp_path / "b.json", files.vllm(total_output_tokens=900))
    (cell,) = compare.compare(compare.load(str(a)), compare.load(str(b))).arms[0].cells
    assert cell.refusal == "unequal work: 1,024 and 900 tokens out"


def test_the_command_prints_and_writes_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = save(tmp_path / "a", simulated.experiment(["quick"]))
    b = save(tmp_path / "b", slowed(simulated.experiment(["quick"], seed=1), 1.5, code_digest="other"))
    page = tmp_path / "page.html"
    assert cli.main(["compare", f"{a}#all on", f"{b}#all on", "--html", str(page)]) == 0
    printed = capsys.readouterr().out
    assert "code digest" in printed
    assert "slower" in printed
    assert "Moved most: decode steps: execute" in printed
    text = page.read_text()
    assert "slower" in text
    assert "<script" not in text
    assert "http" not in text.replace("http-equiv", "")
    assert cli.main(["compare", a, b]) == 0
    assert "Choose one arm with PATH#ARM" in capsys.readouterr().out


def test_the_page_names_what_it_refuses(tmp_path: Path) -> None:
    a = files.write(tmp_path / "a.json", files.vllm())
    b = files.write(tmp_path / "b.json", files.vllm(total_output_tokens=900))
    page = render(compare.compare(compare.load(str(a)), compare.load(str(b))))
    assert "Not comparable, so no verdict: unequal work" in page
    assert "time for the work" in page


def test_bad_input_is_one_sentence_and_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = save(tmp_path / "a", simulated.experiment(["quick"]))
    other = str(files.write(tmp_path / "b.json", files.vllm()))
    odd = str(files.write(tmp_path / "odd.json", {"hello": 1}))
    for arguments, words in (
        ([a, str(tmp_path / "none")], "There is no"),
        ([a, f"{a}#nobody"], "has no arm 'nobody'"),
        ([a, other], "no arm in common"),
        ([a, odd], "no result file that is known here"),
        ([a, a, "--margin", "2"], "--margin"),
    ):
        assert cli.main(["compare", *arguments]) == 2
        said = capsys.readouterr().err.strip()
        assert words in said
        assert "\n" not in said
    with pytest.raises(UserError, match="no launch"):
        compare.load(save(tmp_path / "c", simulated.experiment(["quick"])[:1]))
