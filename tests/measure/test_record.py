"""Records survive the round trip, and a torn write loses one line only."""

from pathlib import Path

import pytest

import simulated
from fuseboard.measure import record


def test_every_kind_of_record_comes_back_equal() -> None:
    lines = simulated.experiment(["quick"], blocks=2)
    assert {type(line) for line in lines} == {record.DesignRecord, record.LaunchRecord, record.QualityRecord}
    assert [record.from_line(record.to_line(line)) for line in lines] == lines


def test_append_and_read(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "records.jsonl"
    lines = simulated.experiment(["quick"], blocks=2)[:4]
    for line in lines:
        record.append(path, line)
    assert record.read(path) == lines
    assert record.read(tmp_path / "none.jsonl") == []


def test_a_torn_line_is_warned_of_and_does_not_swallow_the_next(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    first, second, third = simulated.experiment(["quick"], blocks=2)[:3]
    record.append(path, first)
    with path.open("a") as file:
        file.write(record.to_line(second)[:100])
    record.append(path, third)
    with pytest.warns(UserWarning, match="line 2 was left out"):
        assert record.read(path) == [first, third]


def test_another_schema_is_refused() -> None:
    line = record.to_line(simulated.make_design(["quick"], 2)).replace('"schema":1', '"schema":99')
    with pytest.raises(ValueError, match="schema 1"):
        record.from_line(line)
    with pytest.raises(ValueError, match="no field 'surprise'"):
        record.from_line(record.to_line(simulated.make_design(["quick"], 2)).replace('"seed"', '"surprise"'))
