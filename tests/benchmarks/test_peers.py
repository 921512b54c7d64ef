"""The comparison with peers: reading what tools print, bounded processes, ratios and the table."""

import itertools
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from benchmarks.peers import ours, quality, table
from benchmarks.peers.install import Home
from benchmarks.peers.peer import PEERS, Job, llama_rate, llama_settings
from benchmarks.peers.process import PeerError, run
from benchmarks.peers.table import AGAIN, OURS, Outcome, Sample
from benchmarks.peers.work import ROWS, Row, Work

DECODE = Work(kind="decode", prompt=128, output=4)
PROMPT = Work(kind="prefill", prompt=2000)
BATCH = Work(kind="decode", prompt=128, output=4, batch=8)


def make_row(work: Work = DECODE, bar: float | None = 1.8, as_time: bool = False) -> Row:
    return Row(key="r", model="SmolLM2", work=work, weights="w4a8:g64", file="Q4_0", bar=bar, as_time=as_time)


def make_outcome(row: Row, mine: list[float], again: list[float], peer: list[float]) -> Outcome:
    def samples(rates: list[float], peak: int) -> list[Sample]:
        return [Sample(rate=rate, peak_bytes=peak) for rate in rates]

    found = {OURS: samples(mine, 150), AGAIN: samples(again, 150), "llama.cpp": samples(peer, 200)}
    return Outcome(row=row, samples=found, settings={"llama.cpp": "-fa on"}, step_bytes=100, read_bytes_per_s=40_000)


def test_rows_have_keys_of_their_own_and_known_peers() -> None:
    assert len({row.key for row in ROWS}) == len(ROWS)
    assert {peer for row in ROWS for peer in row.peers} <= set(PEERS)


def test_ratio_is_paired_by_repetition_and_the_floor_is_ours_over_ours() -> None:
    outcome = make_outcome(make_row(), [100.0, 200.0, 90.0], [100.0, 200.0, 360.0], [50.0, 50.0, 90.0])
    found = table.ratio(outcome, "llama.cpp")
    assert (found.median, found.low, found.high) == pytest.approx((2.0, 2.0, 4.0))
    assert (table.floor(outcome).low, table.floor(outcome).high) == pytest.approx((0.25, 1.0))
    assert table.meets(outcome, "llama.cpp") is True
    assert table.meets(outcome, "openvino") is None


def test_a_row_of_times_turns_the_ratio_and_the_bar_around() -> None:
    outcome = make_outcome(make_row(PROMPT, bar=0.5, as_time=True), [300.0], [300.0], [100.0])
    assert table.ratio(outcome, "llama.cpp").median == pytest.approx(1 / 3)
    assert table.meets(outcome, "llama.cpp") is True
    assert table.limit_share(outcome) is None
    assert "<= 0.5 met" in table.markdown([outcome])


def test_share_of_the_memory_limit_counts_steps_not_tokens() -> None:
    assert table.limit_share(make_outcome(make_row(), [200.0], [200.0], [50.0])) == pytest.approx(0.5)
    assert table.limit_share(make_outcome(make_row(BATCH), [1600.0], [1600.0], [50.0])) == pytest.approx(0.5)


def test_table_has_a_line_a_peer_and_says_why_a_number_is_missing() -> None:
    outcome = make_outcome(make_row(), [100.0], [100.0], [80.0])
    outcome.failures["openvino"] = "not installed: no wheel | here"
    head, rule, llama, openvino = table.markdown([outcome]).splitlines()
    assert head.count("|") == rule.count("|") == llama.count("|")
    assert "Q4_0 -fa on" in llama
    assert ">= 1.8 missed" in llama
    assert "| 0.75 |" in llama
    assert "no wheel / here" in openvino
    outcome.failures[AGAIN] = "It was killed because it ran too long."
    assert "killed" in table.markdown([outcome]).splitlines()[2]


def test_llama_output_is_read() -> None:
    bench = 'warning: something\n[{"n_prompt": 0, "n_gen": 4, "avg_ts": 3.0, "samples_ts": [2.5]}]\n'
    assert llama_rate(bench, DECODE) == 2.5
    assert llama_rate('\n{"pp": 128, "pl": 8, "speed_pp": 9.0, "speed_tg": 21.5}\n', BATCH) == 21.5
    with pytest.raises(PeerError, match="no result"):
        llama_rate("failed to load", BATCH)


@pytest.mark.parametrize("work", [DECODE, PROMPT, BATCH])
def test_llama_commands_ask_for_the_work(work: Work) -> None:
    settings = llama_settings(work)
    assert len(set(settings)) == len(settings)
    job = Job(work=work, file=Path("m.gguf"), threads=2, setting=settings[0])
    command = PEERS["llama.cpp"].command(Home(root=Path("peers")), job)
    pairs = dict(itertools.pairwise(command))
    assert (pairs["-m"], pairs["-t"], pairs["-fa"]) == ("m.gguf", "2", "on")
    expected = {
        DECODE: {"-p": "0", "-n": "4", "-d": "128", "-r": "1"},
        PROMPT: {"-p": "2000", "-n": "0", "-r": "1"},
        BATCH: {"-npp": "128", "-ntg": "4", "-npl": "8", "-c": "1056", "-tb": "2"},
    }[work]
    assert expected.items() <= pairs.items()


def test_token_times_of_a_library_give_rates() -> None:
    line = 'noise\n{"token_s": [2.0, 2.5, 3.0, 3.5, 4.0]}\n'
    assert PEERS["openvino"].rate(line, DECODE) == 2.0
    assert PEERS["openvino"].rate(line, PROMPT) == 1000.0
    with pytest.raises(PeerError, match="made 5 tokens instead of 3"):
        PEERS["openvino"].rate(line, Work(kind="decode", prompt=128, output=2))


def test_only_steps_of_the_whole_batch_count_in_our_decode_rate() -> None:
    def step(start: int, seqs: int, is_decode: bool = True) -> SimpleNamespace:
        parts = dict.fromkeys(("schedule_ns", "prepare_ns", "sample_ns", "detokenise_ns"), 0)
        return SimpleNamespace(start_ns=start, execute_ns=9, seqs=seqs, is_decode=is_decode, **parts)

    steps = [step(0, 8, False), step(10, 1), *(step(20 + 10 * i, 8) for i in range(6)), step(90, 3)]
    assert ours.decode_rate(steps, BATCH) == pytest.approx(8 * 4 / 39 * 1e9)
    with pytest.raises(ValueError, match="Only 2 of 4"):
        ours.decode_rate(steps[:4], BATCH)


def test_perplexity_output_is_read() -> None:
    text = """
Mean    KLD:   0.263847 +/-   0.004
99.9%   KLD:   2.270000
Mean ln(PPL(Q)/PPL(base))     :   0.191000 ± 0.006
Same top p: 69.200 +/- 0.7 %
"""
    found = quality.parse(text)
    assert found == pytest.approx({"kl_mean": 0.263847, "kl_p999": 2.27, "same_top_1": 0.692, "ln_ppl_ratio": 0.191})
    with pytest.raises(PeerError, match="kl_mean"):
        quality.parse("")


def test_processes_are_bounded_and_their_peak_memory_is_known() -> None:
    size = 200 << 20
    done = run([sys.executable, "-c", f"x = b'1' * {size}; print(len(x))"], timeout_s=60)
    assert done.out.strip() == str(size)
    assert done.peak_bytes >= size
    with pytest.raises(PeerError, match="code 3: no room"):
        run([sys.executable, "-c", "import sys; print('no room', file=sys.stderr); sys.exit(3)"], timeout_s=60)
    with pytest.raises(PeerError, match="killed"):
        run([sys.executable, "-c", "import time; time.sleep(60)"], timeout_s=0.2)
