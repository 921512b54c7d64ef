"""Every log format gives its lengths, times and shared blocks; what was clipped is said."""

import json
from pathlib import Path

import pytest

from fuseboard.core.errors import UserError
from fuseboard.load.dummy import byte_tokenizer
from fuseboard.measure import traces
from fuseboard.measure.workload import Prompts


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_azure(tmp_path: Path) -> None:
    path = write(
        tmp_path / "azure.csv",
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:47.1805900,3000,109\n",
    )
    trace = traces.load(path, max_len=1000)
    assert [(r.input_len, r.output_len) for r in trace.rows] == [(374, 44), (891, 109)]
    assert [r.arrival_s for r in trace.rows] == pytest.approx([0, 0.5])
    assert trace.notes == ("1 of 2 requests of azure.csv were clipped to 1000 tokens.",)


def test_burstgpt_drops_failed_requests_and_says_so(tmp_path: Path) -> None:
    path = write(
        tmp_path / "burst.csv",
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "5,ChatGPT,472,18,490,Conversation log\n45,ChatGPT,1087,0,1087,Conversation log\n",
    )
    trace = traces.load(path, max_len=4096)
    assert [(r.input_len, r.output_len, r.arrival_s) for r in trace.rows] == [(472, 18, 0.0)]
    assert "1 requests of burst.csv without tokens" in trace.notes[0]


def test_mooncake_blocks_become_shared_prefixes(tmp_path: Path) -> None:
    rows = [
        {"timestamp": 0, "input_length": 700, "output_length": 5, "hash_ids": [0, 1]},
        {"timestamp": 1500, "input_length": 1300, "output_length": 7, "hash_ids": [0, 2, 3]},
    ]
    path = write(tmp_path / "moon.jsonl", "\n".join(map(json.dumps, rows)))
    made = traces.workload(traces.load(path, max_len=4096), Prompts(byte_tokenizer(300, [1]), seed=0), seed=0)
    first, second = made.cells[0].requests
    assert (len(first.token_ids), len(second.token_ids)) == (700, 1300)
    assert first.token_ids[:512] == second.token_ids[:512]
    assert first.token_ids[512:700] != second.token_ids[512:700]
    assert (first.arrival_s, second.arrival_s) == (0.0, 1.5)


def test_texts_are_sized_and_not_kept(tmp_path: Path) -> None:
    sharegpt = [{"conversations": [{"value": "x" * 40}, {"value": "y" * 80}]}, {"conversations": [{"value": "z"}]}]
    path = write(tmp_path / "share.json", json.dumps(sharegpt))
    assert [(r.input_len, r.output_len) for r in traces.load(path, max_len=99).rows] == [(10, 20)]
    chat = {"messages": [{"role": "user", "content": "x" * 40}], "max_tokens": 6}
    path = write(tmp_path / "chat.jsonl", json.dumps(chat))
    assert [(r.input_len, r.output_len) for r in traces.load(path, max_len=99).rows] == [(10, 6)]


def test_mapped_csv_scaled_and_closed(tmp_path: Path) -> None:
    path = write(tmp_path / "own.csv", "input_len,output_len,arrival_s\n20,3,2\n30,4,1\n")
    trace = traces.load(path, max_len=99)
    prompts = Prompts(byte_tokenizer(300, [1]), seed=0)
    scaled = traces.workload(trace, prompts, seed=0, time_scale=0.5).cells[0]
    assert [(len(r.token_ids), r.n_out, r.arrival_s) for r in scaled.requests] == [(30, 4, 0.0), (20, 3, 0.5)]
    closed = traces.workload(trace, prompts, seed=0, count=1, closed=2).cells[0]
    assert (closed.concurrency, len(closed.requests), closed.requests[0].arrival_s) == (2, 1, None)


@pytest.mark.parametrize(
    ("name", "text"),
    [("a.csv", "one,two\n1,2\n"), ("a.txt", "x"), ("a.jsonl", "{}"), ("a.jsonl", "nonsense"), ("a.csv", "")],
)
def test_what_is_not_understood_is_refused(tmp_path: Path, name: str, text: str) -> None:
    with pytest.raises(UserError, match="trace"):
        traces.load(write(tmp_path / name, text), max_len=99)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no workload"):
        traces.load(tmp_path / "none.csv", max_len=99)
