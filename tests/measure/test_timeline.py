"""The timeline against Chrome's trace event format."""

import itertools
import json

from fuseboard.execute.records import StepRecord
from fuseboard.measure.record import CellRecord, RequestRecord
from fuseboard.measure.timeline import TimedStep, timeline

START = 5_000_000_000
REQUIRED = {
    "X": {"name", "ph", "ts", "dur", "pid", "tid"},
    "M": {"name", "ph", "pid", "tid", "args"},
    "b": {"name", "ph", "ts", "pid", "tid", "cat", "id"},
    "n": {"name", "ph", "ts", "pid", "tid", "cat", "id"},
    "e": {"name", "ph", "ts", "pid", "tid", "cat", "id"},
}
"""Fields that the viewers need, by phase of the event."""


def step(at: int, *, decode: bool, nodes: tuple[tuple[str, int], ...] = ()) -> TimedStep:
    record = StepRecord(
        start_ns=START + at, schedule_ns=1000, prepare_ns=2000, execute_ns=50_000, sample_ns=3000, detokenise_ns=500,
        is_decode=decode, tokens=2, seqs=2, rows=2, context_tokens=40, cached_tokens=40,
    )  # fmt: skip
    return TimedStep(record=record, calls={"attention": 1}, ns={"attention": 20_000}, nodes=nodes)


def made() -> list[dict[str, object]]:
    request = RequestRecord(
        request_id="cell/0", n_in=10, n_out_wanted=2, sent_ns=START, token_ns=(START + 60_000, START + 120_000),
        token_ids=(1, 2), finish_reason="length",
    )  # fmt: skip
    cell = CellRecord(name="cell", concurrency=1, start_ns=START, end_ns=START + 130_000, requests=(request,))
    steps = [step(0, decode=False, nodes=(("norm", 10_000), ("attention", 20_000))), step(60_000, decode=True)]
    trace = json.loads(json.dumps(timeline([(cell, steps), (cell, steps)])))
    assert trace["displayTimeUnit"] in ("ms", "ns")
    events: list[dict[str, object]] = trace["traceEvents"]
    return events


def test_every_event_has_the_fields_of_its_kind() -> None:
    for event in made():
        assert REQUIRED[str(event["ph"])] <= set(event), event
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        assert all(isinstance(event[key], float | int) and event[key] >= 0 for key in ("ts", "dur") if key in event)


def test_tracks_are_named_and_cells_apart() -> None:
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in made() if e["name"] == "thread_name"}  # type: ignore[index]
    assert set(names.values()) == {"steps", "phases", "nodes of some steps"}
    assert {(e["pid"], e["tid"]) for e in made() if e["ph"] == "X"} <= set(names)
    assert {e["pid"] for e in made()} == {1, 2}


def test_spans_nest_and_never_overlap_on_a_track() -> None:
    events = [e for e in made() if e["ph"] == "X" and e["pid"] == 1]
    tracks: dict[object, list[tuple[float, float]]] = {}
    for e in events:
        tracks.setdefault(e["tid"], []).append((float(e["ts"]), float(e["dur"])))  # type: ignore[arg-type]
    for spans in tracks.values():
        ordered = sorted(spans)
        assert all(a + d <= b + 1e-6 for (a, d), (b, _) in itertools.pairwise(ordered))
    execute = next(e for e in events if e["name"] == "execute")
    nodes = [e for e in events if e["name"] in ("norm", "attention")]
    assert [e["ts"] for e in nodes] == [3.0, 13.0]
    assert all(float(e["ts"]) >= float(execute["ts"]) for e in nodes)  # type: ignore[arg-type]


def test_a_request_begins_gives_a_token_and_ends() -> None:
    phases = [(e["ph"], e["ts"]) for e in made() if e.get("cat") == "request" and e["pid"] == 1]
    assert phases == [("b", 0.0), ("n", 60.0), ("e", 120.0)]
