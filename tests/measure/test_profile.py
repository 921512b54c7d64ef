"""Where the time goes: the account closes, costs are the cost model's, an experiment profiles every plan once."""

import dataclasses
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dummy_model import CONFIG, write_dummy
from fuseboard.backends.registry import get_backend
from fuseboard.cli import main
from fuseboard.execute.records import StepRecord
from fuseboard.measure import experiment, record
from fuseboard.measure.analysis import analyse
from fuseboard.measure.ceilings import ensure_ceilings
from fuseboard.measure.launch import LaunchSpec
from fuseboard.measure.operators import CLASSES, OTHER, OperatorCosts, class_of_labels, label_class, step_sizes
from fuseboard.measure.options import AblateOptions
from fuseboard.measure.profile_pass import ProfileSpec, profile, run
from fuseboard.measure.record import CellProfile, DesignRecord, LaunchRecord, ProfileRecord
from fuseboard.measure.subject import EngineArgs, load_subject
from fuseboard.measure.workload import Prompts, Workload, grid_cell, warmup_rounds
from fuseboard.plan.cost import step_cost

PARTS = ("schedule_ns", "prepare_ns", "sample_ns", "detokenise_ns")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FUSEBOARD_CACHE", str(tmp_path / "cache"))
    return tmp_path


def small_model(folder: Path) -> str:
    """A dummy model whose steps take milliseconds."""
    path = folder / "small"
    path.mkdir(exist_ok=True)
    sizes = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4, "vocab_size": 2000, "head_dim": 64}
    (path / "config.json").write_text(json.dumps(CONFIG | sizes))
    return str(path)


def profile_spec(model: str, preset: str, *, load_format: str = "dummy", output_len: int = 12) -> ProfileSpec:
    args = EngineArgs(model=model, switches={}, threads=1, max_model_len=192, max_num_seqs=2, load_format=load_format)
    subject = load_subject(args)
    args = replace(args, preset=dict(subject.profile) if preset == "on" else {})
    prompts = Prompts(subject.model.tokenizer, seed=0)
    cell = grid_cell(prompts, input_len=40, output_len=output_len, concurrency=2, count=2)
    work = Workload(name="t", cells=(cell,), warmup=warmup_rounds(prompts, [cell], rounds=1), warmup_s=20.0, seed=0)
    launch = LaunchSpec(arm=preset, block=0, position=0, engine=args, workload=work, code_digest="c")
    return ProfileSpec(launch=launch, plain=True)


def closes(cell: CellProfile) -> None:
    """Every part is there and they add up to the wall time within 3 %."""
    steps = (cell.decode, cell.prefill)
    execute = sum(s.operators_ns + s.dispatch_ns for s in steps)
    others = sum(getattr(s.sums, part) for s in steps for part in PARTS)
    accounted = execute + others + cell.idle_ns + cell.instrument_ns
    assert abs(cell.wall_ns - accounted) <= 0.03 * cell.wall_ns
    assert cell.residual_ns == cell.wall_ns - accounted
    for s in steps:
        assert s.operators_ns > 0
        assert s.dispatch_ns > 0
        assert all(getattr(s.sums, part) > 0 for part in PARTS)
        assert {o.name for o in s.operators} <= set(CLASSES) - {OTHER}


def least_disturbed(spec: ProfileSpec, *, runs: int) -> CellProfile:
    """Of several runs the one with the least residual: another process may take the core at any moment."""
    return min((run(spec).cells[0] for _ in range(runs)), key=lambda cell: abs(cell.residual_ns) / cell.wall_ns)


@pytest.mark.parametrize("preset", ["off", "on"])
def test_the_account_of_a_run_closes(cache: Path, preset: str) -> None:
    spec = profile_spec(small_model(cache), preset)
    cell = least_disturbed(spec, runs=3)
    closes(cell)
    assert cell.plain_ns > 0
    assert cell.decode.sums.steps == (11 if preset == "on" else 22)
    assert cell.prefill.sums.tokens == 80
    calls = {o.name: o.calls for o in cell.decode.operators}
    assert calls["attention"] == 4 * cell.decode.sums.steps
    assert ("norms" in calls) == (preset == "off"), "fused nodes count under their projection"


@pytest.mark.models
@pytest.mark.usefixtures("alone")
def test_the_account_of_a_real_model_closes(real_model: Callable[[str], str]) -> None:
    done = run(profile_spec(real_model("smollm2-135m"), "on", load_format="auto", output_len=6))
    (cell,) = done.cells
    closes(cell)
    assert sum(o.weight_bytes for o in cell.decode.operators) / cell.decode.sums.steps == pytest.approx(97e6, rel=0.05)


@pytest.mark.parametrize("preset", ["off", "on"])
def test_costs_of_classes_add_up_to_those_of_the_steps(cache: Path, preset: str) -> None:
    spec = profile_spec(write_dummy(cache), preset)
    subject = load_subject(spec.launch.engine)
    plan = subject.plan(spec.launch.engine)
    caps = replace(subject.caps, read_bytes_per_s=1e9, flops_per_s=1e9, integer_ops_per_s=4e9)
    step = StepRecord(
        start_ns=0, schedule_ns=1, prepare_ns=1, execute_ns=1, sample_ns=1, detokenise_ns=1, is_decode=False,
        tokens=41, seqs=2, rows=2, context_tokens=40 * 41 // 2 + 90, cached_tokens=130,
    )  # fmt: skip
    found = OperatorCosts(plan, caps).total([step, step])
    cost = step_cost(plan.graph, plan.kv, step_sizes(step))
    for key in ("weight_bytes", "kv_bytes", "activation_bytes", "operations", "integer_operations"):
        assert sum(getattr(o, key) for o in found.values()) == 2 * getattr(cost, key), key
    limit = cost.seconds(caps)
    assert limit is not None
    assert sum(o.limit_ns for o in found.values()) >= 2e9 * limit * 0.99, "nodes have limits of their own"
    assert all(o.limit_ns >= o.streamed_limit_ns > 0 for o in found.values() if o.weight_bytes)


def test_a_step_that_a_cache_holds_has_the_limits_of_the_cache(cache: Path) -> None:
    spec = profile_spec(write_dummy(cache), "on")
    subject = load_subject(spec.launch.engine)
    plan = subject.plan(spec.launch.engine)
    step = StepRecord(
        start_ns=0, schedule_ns=1, prepare_ns=1, execute_ns=1, sample_ns=1, detokenise_ns=1, is_decode=True,
        tokens=1, seqs=1, rows=1, context_tokens=20, cached_tokens=20,
    )  # fmt: skip
    cost = step_cost(plan.graph, plan.kv, step_sizes(step))
    touched = cost.weight_bytes + cost.kv_bytes
    slow = replace(subject.caps, read_bytes_per_s=1e6, flops_per_s=1e15, integer_ops_per_s=1e15)

    def limit(held: int) -> int:
        caps = replace(slow, cache_bytes=held, cache_read_bytes_per_s=4e6)
        return sum(o.streamed_limit_ns for o in OperatorCosts(plan, caps).total([step]).values())

    assert limit(touched - 1) == pytest.approx(1e9 * touched / 1e6, rel=1e-3), "memory, whatever a node alone takes"
    assert limit(touched) == pytest.approx(1e9 * touched / 4e6, rel=1e-3)


def test_every_instruction_belongs_to_a_class(cache: Path) -> None:
    spec = profile_spec(write_dummy(cache), "on")
    plan = load_subject(spec.launch.engine).plan(spec.launch.engine)
    classes = class_of_labels(plan)
    assert OTHER not in classes.values()
    assert label_class(classes, "layers.0.attn.residual:residual") == "attention output"
    assert label_class(classes, "layers.0.attn.residual:residual:quantise") == "attention output"
    assert label_class(classes, "top:lm_head") == "head"
    assert label_class(classes, "final_norm") == "norms", "a fused head is opened when all logits are wanted"
    assert label_class(classes, "unheard of") == OTHER


def test_ceilings_are_measured_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = get_backend()
    assert backend.capabilities(threads=1).read_bytes_per_s == 0
    caps = ensure_ceilings(backend, 1)
    assert min(caps.read_bytes_per_s, caps.flops_per_s, caps.integer_ops_per_s) > 0
    assert backend.capabilities(threads=2).read_bytes_per_s == 0, "another number of threads has other ceilings"
    monkeypatch.setattr(type(backend), "examine", lambda *_: pytest.fail("measured again"))
    assert ensure_ceilings(backend, 1) == caps
    assert ensure_ceilings(get_backend("reference"), 1).read_bytes_per_s == 0


def test_ceilings_of_an_older_version_are_measured_anew(cache: Path) -> None:
    backend = get_backend()
    file = cache / "cache" / "ceilings.json"
    ensure_ceilings(backend, 1)
    stored = json.loads(file.read_text())
    assert stored["1"]["read_bytes"] >= min(1 << 30, 4 * stored["1"]["cache_bytes"])
    file.write_text(json.dumps({"1": stored["1"]}))
    assert backend.capabilities(threads=1).read_bytes_per_s == 0, "a file without a version"
    file.write_text(json.dumps(stored | {"version": stored["version"] - 1}))
    assert backend.capabilities(threads=1).read_bytes_per_s == 0
    assert ensure_ceilings(backend, 1).read_bytes_per_s > 0
    assert json.loads(file.read_text())["version"] == stored["version"]


def test_the_command_prints_tables_and_writes_files(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, trace = cache / "p.json", cache / "t.json"
    words = ["profile", write_dummy(cache), "--load-format", "dummy", "--threads", "1", "--input-len", "30"]
    words += ["--output-len", "5", "--concurrency", "2", "--set", "kv.block_size=32"]
    assert main([*words, "--json", str(out), "--trace", str(trace)]) == 0
    printed = capsys.readouterr().out
    for expected in ("wall time", "residual", "dispatch", "attention", "of limit", "GB/s from memory"):
        assert expected in printed, expected
    (cell,) = json.loads(out.read_text())["cells"]
    assert cell["residual_ns"] < cell["wall_ns"]
    assert cell["decode"]["dispatch_ns"] > 0
    assert cell["decode"]["sums"]["steps"] == 4
    events = json.loads(trace.read_text())["traceEvents"]
    assert sum(e["name"] == "decode" for e in events) == 4
    assert main(["profile", write_dummy(cache), "--load-format", "dummy", "--output-len", "0"]) == 2


def test_a_refused_pass_is_a_record(cache: Path) -> None:
    spec = profile_spec(write_dummy(cache), "off")
    wrong = replace(spec.launch.engine, switches={"pd": "separate", "batching": "one"})
    done = profile(replace(spec, launch=replace(spec.launch, engine=wrong)), timeout_s=60)
    assert done.error is not None
    assert done.error.kind == "refused"
    assert record.from_line(record.to_line(done)) == done


def test_an_experiment_profiles_every_plan_once(cache: Path) -> None:
    options = AblateOptions(
        model=write_dummy(cache), load_format="dummy", out=cache / "out", design="ladder", only=("graph",),
        workload="quick", blocks=2, threads=1, quality=False,
    )  # fmt: skip
    path = experiment.run(options)
    lines = record.read(path)
    done = [line for line in lines if isinstance(line, ProfileRecord)]
    assert [p.arm for p in done] == ["all off", "all on"]
    design = next(line for line in lines if isinstance(line, DesignRecord))
    launch = next(line for line in lines if isinstance(line, LaunchRecord))
    for where in (design.machine, launch.machine, done[0].machine):
        assert min(where.read_bytes_per_s, where.flops_per_s, where.integer_ops_per_s) > 0
    analysis = analyse(lines)
    cell = analysis.profile_of("A/A", "4 at a time")
    assert cell is not None
    assert cell is analysis.profile_of("all off", "4 at a time"), "arms with the same plan share its profile"
    assert record.from_line(record.to_line(done[0])) == done[0]
    experiment.run(options)
    assert sum(isinstance(line, ProfileRecord) for line in record.read(path)) == 2
    path.unlink()
    experiment.run(dataclasses.replace(options, profile=False))
    assert not any(isinstance(line, ProfileRecord) for line in record.read(path))
