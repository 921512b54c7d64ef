"""When requests are sent: a rate replaces the times of a trace, as in vLLM's benchmark."""

from pathlib import Path

import pytest

from dummy_model import write_dummy
from fuseboard.core.errors import UserError
from fuseboard.measure import bench
from fuseboard.measure.options import BenchOptions
from fuseboard.measure.subject import EngineArgs, load_subject
from fuseboard.measure.workload import Workload


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FUSEBOARD_CACHE", str(tmp_path / "cache"))
    return tmp_path


def test_a_rate_replaces_the_times_of_a_trace(cache: Path, tmp_path: Path) -> None:
    model, log = write_dummy(cache), tmp_path / "log.csv"
    log.write_text("input_len,output_len,arrival_s\n" + "".join(f"{8 + i},2,{100 * i}\n" for i in range(40)))
    subject = load_subject(EngineArgs(model=model, switches={}, load_format="dummy"))

    def arrivals(**options: object) -> list[float | None]:
        asked = BenchOptions(model=model, load_format="dummy", trace=log, num_prompts=40, **options)  # type: ignore[arg-type]
        (cell,) = bench.make_workload(asked, subject).cells
        assert [len(r.token_ids) for r in cell.requests] == list(range(8, 48)), "the lengths stay those of the trace"
        return [r.arrival_s for r in cell.requests]

    assert arrivals()[-1] == 3900
    fixed = arrivals(request_rate=4.0, burstiness=float("inf"))
    assert fixed == pytest.approx([i / 4 for i in range(40)])
    poisson = arrivals(request_rate=4.0)
    assert poisson != fixed
    assert 5 < (poisson[-1] or 0) < 20
    assert arrivals(time_scale=0.0) == [None] * 40
    with pytest.raises(UserError, match="--time-scale"):
        arrivals(request_rate=4.0, time_scale=0.5)


def test_what_a_trace_has_no_use_for_is_refused(cache: Path, tmp_path: Path) -> None:
    model, log = write_dummy(cache), tmp_path / "log.csv"
    log.write_text("input_len,output_len,arrival_s\n" + "8,2,0\n" * 6)
    subject = load_subject(EngineArgs(model=model, switches={}, load_format="dummy"))

    def made(**options: object) -> Workload:
        return bench.make_workload(BenchOptions(model=model, load_format="dummy", **options), subject)  # type: ignore[arg-type]

    for name, value in (("input_len", 512), ("output_len", 128), ("shared_prefix", 4)):
        with pytest.raises(UserError, match=f"--trace brings its own lengths; leave out --{name.replace('_', '-')}"):
            made(trace=log, **{name: value})
    with pytest.raises(UserError, match="leave out --input-len and --output-len"):
        made(trace=log, input_len=1, output_len=1)
    for unused in ("time_scale", "burstiness"):
        with pytest.raises(UserError, match=f"--{unused.replace('_', '-')}"):
            made(input_len=8, **{unused: 0.5})
    for negative in ("num_warmups", "shared_prefix", "time_scale"):
        with pytest.raises(UserError, match="negative"):
            made(**{negative: -1})
    assert [len(made(trace=log, num_warmups=n).warmup) for n in (0, 2)] == [0, 2]
    assert [made(trace=log, **limit).cells[0].concurrency for limit in ({}, {"concurrency": 2})] == [None, 2]
    assert [r.arrival_s for r in made(trace=log, concurrency=2).cells[0].requests] == [0.0] * 6
    assert len(made(input_len=8, output_len=2).cells[0].requests[0].token_ids) == 8
