"""Faults planted in a tiny engine are noticed. What they do to the speed is for the self-check itself to measure."""

import json
from pathlib import Path

import numpy as np
import pytest

from dummy_model import write_dummy
from fuseboard.core.batch import StepOutput
from fuseboard.measure import plants, record, selfcheck
from fuseboard.measure.workload import Request

SIZE = selfcheck.Size(
    runs=1, allowed=1, run_blocks=2, plant_blocks=2, most_blocks=4, slower_by=0.5, requests=((40, 6),) * 2
)


def test_faults_are_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FUSEBOARD_CACHE", str(tmp_path / "cache"))
    options = selfcheck.SelfcheckOptions(
        model=write_dummy(tmp_path), load_format="dummy", threads=1, out=tmp_path / "out"
    )
    checks = {c.name: c for c in selfcheck.run(options, SIZE)}
    for name in (selfcheck.IDLE, selfcheck.SWAPPED, selfcheck.SHORT, "identical arms"):
        assert checks[name].passed, checks[name]
    assert checks[selfcheck.SWAPPED].numbers["same_top_1"] == 0.0
    written = json.loads((tmp_path / "out" / "selfcheck.json").read_text())
    assert [c["name"] for c in written["checks"]] == list(checks)
    assert len(written["checks"][-1]["numbers"]["runs"]) == 1
    assert "| does nothing | not engaged |" in (tmp_path / "out" / "selfcheck.md").read_text()
    slow = checks["every step takes 50 % longer"].numbers
    assert slow["blocks"] == (2 if slow["detectable"] <= np.log(1.5) else 4), (
        "more blocks where the noise asks for them"
    )
    _goes_on_from_its_records(options, tmp_path / "out", slow["blocks"], capsys)


def _goes_on_from_its_records(
    options: selfcheck.SelfcheckOptions, out: Path, plant_blocks: int, capsys: pytest.CaptureFixture[str]
) -> None:
    plants_file, run_file = out / "plants.jsonl", out / "identical-01.jsonl"
    whole = plants_file.read_text()
    stopped = run_file.read_text().splitlines()[:-1]
    run_file.write_text("\n".join(stopped) + "\n")
    assert selfcheck.run(options, SIZE)
    assert plants_file.read_text() == whole, "neither launches nor answers are measured again"
    assert run_file.read_text().splitlines()[:-1] == stopped
    assert len(record.read(run_file)) == 1 + 2 * SIZE.run_blocks, "one design, and the one launch that was missing"
    assert json.loads((out / "selfcheck.json").read_text())["launches_resumed"] == plant_blocks * 6 + 2 * 2 - 1
    assert "measured anew" not in capsys.readouterr().err

    code = record.read(run_file)[0].code_digest  # type: ignore[union-attr]
    run_file.write_text(run_file.read_text().replace(code, "0" * 64))
    selfcheck.run(options, SIZE)
    assert "identical-01.jsonl is of another version, machine or size and is measured anew." in capsys.readouterr().err
    assert {line.code_digest for line in record.read(run_file)} == {code}
    assert plants_file.read_text() == whole


class Steps:
    """Gives the same step again and again, and counts."""

    calls = 0

    def run(self, batch: object) -> StepOutput:
        self.calls += 1
        return StepOutput(
            top_ids_RK=np.array([[2, 0, 1], [1, 2, 0]], np.int32),
            top_logits_RK=np.array([[5, 4, 3], [9, 8, 7]], np.float32),
            logsumexp_R=np.zeros(2, np.float32),
            logits_RV=np.array([[4, 3, 5], [7, 9, 8]], np.float32),
        )

    def counters(self) -> dict[str, int]:
        return {"calls": self.calls}


def test_swap_exchanges_the_best_two_everywhere() -> None:
    planted = plants.in_steps(Steps(), "swap")  # type: ignore[arg-type]
    output = planted.run(None)  # type: ignore[arg-type]
    assert output.top_ids_RK.tolist() == [[0, 2, 1], [2, 1, 0]]
    assert output.logits_RV is not None
    assert output.logits_RV.argmax(axis=1).tolist() == [0, 2]
    assert planted.counters() == {"calls": 1}, "everything else is the executable's own"


def test_no_plant_leaves_things_alone() -> None:
    steps, sent = Steps(), []
    assert plants.in_steps(steps, "") is steps  # type: ignore[arg-type, comparison-overlap]
    plants.in_requests(lambda name, request: sent.append((name, request.n_out)), "short")(
        "a", Request(token_ids=(1,), n_out=5)
    )
    assert sent == [("a", 4)]
