"""`bench --base-url` from the command line to the file it writes, against a scripted server."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import scripted_server as say
from scripted_server import Reply, ScriptedServer, Served

from fuseboard.cli import main
from fuseboard.measure import arrivals, http_bench
from fuseboard.measure.workload import Cell, Request


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other measurements of this machine are not waited for."""
    monkeypatch.setenv("FUSEBOARD_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer.json whose tokens are bytes, with a begin token before every text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE({letter: i for i, letter in enumerate([*letters, "<s>"])}, []))
    made.add_special_tokens(["<s>"])
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", len(letters))])
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    made.save(str(path))
    return path


def good(served: Served, n: int) -> Reply:
    """As many tokens as were asked for."""
    prompt = served.body.get("prompt") or served.body["messages"][0]["content"]
    return say.completion(len(prompt) + isinstance(prompt, str), served.body["max_tokens"], first_s=0.005, gap_s=0.002)


def bench(url: str, tokenizer: Path, out: Path, *flags: str) -> dict[str, Any]:
    command = ["bench", "--base-url", url, "--tokenizer", str(tokenizer), "--json", str(out / "result.json")]
    lengths = () if "--trace" in flags else ("--input-len", "40", "--output-len", "5")
    assert main([*command, *lengths, *flags]) == 0
    return json.loads((out / "result.json").read_text())  # type: ignore[no-any-return]


def test_a_closed_loop_of_completions(tokenizer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with ScriptedServer(good, models=say.models("tiny")) as server:
        flags = ("--num-prompts", "8", "--num-warmups", "2", "--max-concurrency", "2", "--ignore-eos")
        result = bench(server.url, tokenizer, tmp_path, *flags)
    assert len(server.served) == 10
    body = server.served[-1].body
    assert (body["model"], body["max_tokens"], body["ignore_eos"], body["stream"]) == ("tiny", 5, True, True)
    assert [len(s.body["prompt"]) for s in server.served] == [39] * 10, "40 tokens with the begin token"
    assert len({s.body["prompt"] for s in server.served}) == 10, "no prompt twice, so that no cache helps"
    assert (result["completed"], result["failed"], result["total_input_tokens"]) == (8, 0, 320)
    assert (result["model_id"], result["total_output_tokens"], result["max_concurrent_requests"]) == ("tiny", 40, 2)
    assert 0 < result["mean_tpot_ms"] < result["mean_ttft_ms"] < result["mean_e2el_ms"] <= result["p99_e2el_ms"]
    own = result["fuseboard"]
    assert own["n"] == {"ttft": 8, "tpot": 8, "itl": 32, "icl": own["n"]["icl"], "e2el": 8}
    assert "p99_ttft_ms" in own["flagged"]
    assert all("its own" in note or "lag" in note for note in own["notes"]), "a busy machine is said, nothing else"
    printed = capsys.readouterr().out
    assert "tiny: 8 requests done, 0 failed" in printed
    assert "too few for this percentile" in printed


def test_chat_with_headers_extra_fields_and_token_limits(tokenizer: Path, tmp_path: Path) -> None:
    with ScriptedServer(good) as server:
        flags = ("--endpoint", "/v1/chat/completions", "--model", "m", "--num-prompts", "2", "--num-warmups", "0")
        extra = '{"temperature": null, "top_k": 3, "max_completion_tokens": 5}'
        headers = ("--header", "Authorization=Bearer a=b", "--header", "X-Tenant=t")
        result = bench(server.url + "/v1/", tokenizer, tmp_path, *flags, *headers, "--extra-body", extra)
    (first, _) = server.served
    assert first.path == "/v1/chat/completions"
    assert (first.headers["authorization"], first.headers["x-tenant"]) == ("Bearer a=b", "t")
    assert (first.body["top_k"], first.body["max_completion_tokens"]) == (3, 5)
    assert "temperature" not in first.body
    assert first.body["messages"][0]["role"] == "user"
    assert result["endpoint_type"] == "openai-chat"
    assert "Bearer" not in json.dumps(result)


def test_an_open_loop_reports_lag_goodput_and_raw_times(tokenizer: Path, tmp_path: Path) -> None:
    def script(served: Served, n: int) -> Reply:
        return say.failure("500 Internal Server Error", b"no") if n == 2 else good(served, n)

    with ScriptedServer(script) as server:
        flags = ("--model", "m", "--num-prompts", "6", "--num-warmups", "0", "--request-rate", "100")
        limits = ("--burstiness", "2", "--goodput", "ttft:60000", "tpot:60000", "--save-detailed", "--token-ids")
        result = bench(server.url, tokenizer, tmp_path, *flags, *limits, "--percentile-metrics", "ttft", "--seed", "3")
    assert [len(s.body["prompt"]) for s in server.served] == [40] * 6, "token ids"
    assert (result["completed"], result["failed"]) == (5, 1)
    assert result["request_goodput"] == result["request_throughput"]
    assert result["fuseboard"]["errors"] == {"HTTP 500: no": 1}
    assert result["fuseboard"]["client_lag_ms"]["n"] == 6
    assert "mean_tpot_ms" not in result
    assert result["ttfts"].count(None) == 1
    record = next(r for r in result["records"] if not r["error"])
    assert record["due_ns"] <= record["sent_ns"] <= record["first_byte_ns"] <= record["chunk_ns"][0]


def test_a_trace_gives_lengths_and_times(tokenizer: Path, tmp_path: Path) -> None:
    trace = tmp_path / "log.csv"
    trace.write_text("input_len,output_len,arrival_s\n30,2,10\n35,3,10.5\n20,4,11\n")
    with ScriptedServer(good) as server:
        flags = ("--model", "m", "--trace", str(trace), "--time-scale", "0.1", "--num-warmups", "1", "--save-detailed")
        result = bench(server.url, tokenizer, tmp_path, *flags)
    assert result["input_lens"] == [30, 35, 20]
    assert result["output_lens"] == [2, 3, 4]
    assert [t - result["start_times"][0] for t in result["start_times"]] == pytest.approx([0, 0.05, 0.1])


def test_another_length_and_a_template_are_said(tokenizer: Path, tmp_path: Path) -> None:
    with ScriptedServer(lambda served, n: say.completion(52, 3)) as server:
        result = bench(server.url, tokenizer, tmp_path, "--model", "m", "--num-prompts", "2", "--num-warmups", "0")
    assert (result["total_input_tokens"], result["total_output_tokens"]) == (104, 6)
    notes = result["fuseboard"]["notes"]  # a busy machine adds one about the client's own lag
    assert any("+12 prompt tokens" in note for note in notes)
    assert any("2 answers have another length" in note for note in notes)


def test_when_all_requests_fail_the_result_is_written_all_the_same(
    tokenizer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "r.json"
    with ScriptedServer(lambda served, n: say.failure("404 Not Found", b'{"detail": "no m"}')) as server:
        command = ["bench", "--base-url", server.url, "--model", "m", "--tokenizer", str(tokenizer), "--json", str(out)]
        assert main([*command, "--num-prompts", "2", "--num-warmups", "0"]) == 2
        assert "None of the 2 requests succeeded; the first failed with: HTTP 404: no m." in capsys.readouterr().err
        assert json.loads(out.read_text())["failed"] == 2
        assert main([*command, "--num-prompts", "2", "--num-warmups", "1"]) == 2
        assert "every warm-up" in capsys.readouterr().err


BAD = {
    "is not the address of a server": ("--base-url", "ftp://h"),
    "write for example http": ("--base-url", "http://h:99999"),
    "is not JSON": ("--extra-body", "{"),
    "must be a JSON object": ("--extra-body", "[]"),
    "cannot turn the stream off": ("--extra-body", '{"stream": false}'),
    "--header takes KEY=VALUE": ("--header", "nonsense"),
    "--percentile-metrics knows": ("--percentile-metrics", "ttft,speed"),
    "numbers from 0 to 100": ("--metric-percentiles", "101"),
    "--metric-percentiles takes numbers": ("--metric-percentiles", "high"),
    "--goodput takes ttft, tpot, e2el": ("--goodput", "itl:3"),
    "--request-rate must be above 0": ("--request-rate", "0"),
    "--burstiness must be above 0": ("--request-rate", "1", "--burstiness", "-1"),
    "--burstiness shapes the gaps": ("--burstiness", "2"),
    "leave out --input-len": ("--trace", "log.csv", "--input-len", "512"),
    "--max-concurrency must be at least 1": ("--max-concurrency", "0"),
    "must be at least 1": ("--num-prompts", "0"),
    "cannot be negative": ("--num-warmups", "-1"),
    "--timeout must be": ("--timeout", "nan"),
    "--endpoint must end with": ("--endpoint", "/v1/embeddings"),
    "say with --json": ("--save-detailed",),
    "give --tokenizer": ("--tokenizer", ""),
    "There is no tokenizer": ("--tokenizer", "no-such-model"),
    "There is no workload": ("--trace", "no-such-file"),
}


@pytest.mark.parametrize("message", BAD)
def test_bad_input_is_one_sentence(
    message: str, tokenizer: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with ScriptedServer(good) as server:
        command = ["bench", "--base-url", server.url, "--model", "m", "--tokenizer", str(tokenizer)]
        assert main([*command, "--num-prompts", "1", *BAD[message]]) == 2
        assert not server.served
    said = capsys.readouterr().err
    assert message in said
    assert len(said.strip().splitlines()) == 1


def test_the_model_must_be_clear(tokenizer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["--tokenizer", str(tokenizer), "--num-prompts", "1"]
    with ScriptedServer(good, models=say.models("a", "b")) as server:
        assert main(["bench", "--base-url", server.url, *command]) == 2
        assert "The server offers a, b; choose one with --model." in capsys.readouterr().err
    with ScriptedServer(good) as server:
        assert main(["bench", "--base-url", server.url, *command]) == 2
        assert "does not list its models (HTTP 404: Not Found)" in capsys.readouterr().err
    assert main(["bench", "--base-url", server.url, *command]) == 2
    assert "No server answers" in capsys.readouterr().err


def test_a_server_that_is_loading_is_waited_for(tokenizer: Path, tmp_path: Path) -> None:
    class Loading(ScriptedServer):
        """Not ready at the first question."""

        asked = 0

        @property
        def models(self) -> Reply:
            self.asked += 1
            return say.failure("503 Service Unavailable", b"loading") if self.asked == 1 else say.models("tiny")

    with Loading(good) as server:
        flags = ("--num-prompts", "1", "--num-warmups", "0", "--ready-check-timeout-sec", "20")
        assert bench(server.url, tokenizer, tmp_path, *flags)["completed"] == 1
        assert server.asked == 2


@pytest.mark.parametrize(
    ("base", "endpoint", "url"),
    [
        ("http://h:8000", "/v1/completions", "http://h:8000/v1/completions"),
        ("http://h:8000/", "v1/completions", "http://h:8000/v1/completions"),
        ("https://h/v1", "/v1/chat/completions", "https://h/v1/chat/completions"),
        ("http://h/proxy", "/v1/completions", "http://h/proxy/v1/completions"),
        ("http://[::1]:80", "/completions", "http://[::1]:80/completions"),
    ],
)
def test_the_address_of_the_endpoint(base: str, endpoint: str, url: str) -> None:
    assert http_bench.url_of(base, endpoint) == url


def test_gaps_of_an_open_loop_have_the_rate_and_the_burstiness_asked_for() -> None:
    cell = Cell(name="c", requests=(Request(token_ids=(1,), n_out=1),) * 4000, concurrency=None)

    def gaps(burstiness: float) -> list[float]:
        times = [r.arrival_s or 0.0 for r in arrivals.paced(cell, 50, burstiness=burstiness, seed=1).requests]
        assert times[0] == 0
        return [b - a for a, b in itertools.pairwise(times)]

    for burstiness in (0.5, 1, 4):
        found = gaps(burstiness)
        mean = sum(found) / len(found)
        variation = (sum((g - mean) ** 2 for g in found) / len(found)) ** 0.5 / mean
        assert mean == pytest.approx(0.02, rel=0.1)
        assert variation == pytest.approx(burstiness**-0.5, rel=0.1), "the gamma distribution's"
    assert gaps(float("inf")) == pytest.approx([0.02] * 3999)
    assert arrivals.paced(cell, float("inf"), seed=1) is cell
