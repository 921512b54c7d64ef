"""The command line: one dataclass of options a command, one function that carries it out."""

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fuseboard.core.errors import UserError

COMMANDS = {
    "run": "generate text, or chat",
    "plan": "show what would run: decisions, memory, cost and limits, before anything is loaded",
    "bench": "measure one configuration, or with --base-url any OpenAI-compatible server",
    "profile": "show where the time goes: phases, operators, and how far each is from the machine's limits",
    "ablate": "measure what every switch is worth, with evidence, and write a report",
    "tune": "find the configuration for a workload under limits on latency and memory",
    "compare": "say what changed between two measurements, of whatever tool, and what that did",
    "doctor": "show what this machine offers, measured",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command; the exit code is 0, or 2 with one sentence on stderr when the input was bad."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_overview())
        return 0
    if arguments[0] == "--version":
        from fuseboard import __version__

        print(__version__)
        return 0
    command, *rest = arguments
    if command not in COMMANDS:
        print(f"There is no command {command!r}; the commands are {', '.join(COMMANDS)}.", file=sys.stderr)
        return 2
    try:
        _HANDLERS[command](rest)
    except UserError as error:
        print(f"fuseboard {command}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader (such as head) went away; what it wanted it has.
        sys.stderr.close()
        return 0
    return 0


def _overview() -> str:
    lines = [f"  {name:<8} {what}" for name, what in COMMANDS.items()]
    return "\n".join(["usage: fuseboard COMMAND [options]", "", *lines, "", "fuseboard COMMAND --help tells more."])


def _parse(
    options: type[Any],
    command: str,
    arguments: list[str],
    *,
    lists_by_repeating: bool = True,
    default: Any = None,
) -> Any:
    import tyro

    config = (tyro.conf.FlagCreatePairsOff, *([tyro.conf.UseAppendAction] if lists_by_repeating else []))
    return tyro.cli(options, args=arguments, prog=f"fuseboard {command}", config=config, default=default)


def _parse_serving(options: type[Any], command: str, arguments: list[str]) -> Any:
    """The options of an engine, those that were not given from the file of `--config`."""
    from tyro import MISSING

    from fuseboard.execute.config_file import read_config

    path = _config_path(arguments)
    if path is None:
        return _parse(options, command, arguments)
    file = read_config(path)
    default = options(**({"model": MISSING} | dict(file.options)))
    return file.under(_parse(options, command, arguments, default=default))


def _config_path(arguments: list[str]) -> Path | None:
    """The last value of `--config`, in one word or two."""
    found = None
    for word, following in zip(arguments, [*arguments[1:], ""], strict=True):
        name, equals, value = word.partition("=")
        if name == "--config":
            found = value if equals else following
    return Path(found) if found else None


def _run(arguments: list[str]) -> None:
    from fuseboard.execute import console
    from fuseboard.execute.options import RunOptions

    console.run(_parse_serving(RunOptions, "run", arguments))


def _plan(arguments: list[str]) -> None:
    from fuseboard.backends.registry import get_backend
    from fuseboard.execute.llm import plan_model
    from fuseboard.execute.options import PlanOptions
    from fuseboard.load.model import load_model
    from fuseboard.plan.explain import explain, plan_report

    options: PlanOptions = _parse_serving(PlanOptions, "plan", arguments)
    model = load_model(options.model, revision=options.revision, load_format=options.load_format)
    plan = plan_model(
        model,
        get_backend(options.backend),
        preset=options.preset,
        switches=options.switches,
        threads=options.threads,
        limits=options.limits(),
    )
    measured = _measured_memory(options) if options.measure else None
    if options.json:
        report = plan_report(plan, batch=options.batch, context=options.context)
        print(json.dumps(report | ({"measured": measured} if measured else {}), indent=1))
        return
    print(explain(plan, measured=measured, batch=options.batch, context=options.context))
    if options.graph:
        print("\nGraph\n" + plan.graph.dump())


def _measured_memory(options: Any) -> dict[str, int]:
    """Physical memory by component after a short generation."""
    from fuseboard.execute.llm import LLM
    from fuseboard.execute.sampling_params import SamplingParams

    limits = options.limits()
    with LLM(
        options.model,
        preset=options.preset,
        switches=options.switches,
        threads=options.threads,
        max_model_len=limits.max_model_len,
        max_num_seqs=limits.max_num_seqs,
        kv_memory=limits.kv_memory,
        load_format=options.load_format,
        revision=options.revision,
        backend=options.backend,
    ) as llm:
        llm.generate([[1] * 8], SamplingParams(max_tokens=8, temperature=0, ignore_eos=True))
        return llm.engine.memory()


def _bench(arguments: list[str]) -> None:
    if any(word.partition("=")[0] in ("--base-url", "--base_url") for word in arguments):
        return _bench_server(arguments)
    from fuseboard.measure import bench
    from fuseboard.measure.options import BenchOptions

    bench.run(_parse_serving(BenchOptions, "bench", arguments))


def _bench_server(arguments: list[str]) -> None:
    from fuseboard.measure import http_bench
    from fuseboard.measure.http_options import HttpBenchOptions

    words = ["--help"] if {"-h", "--help"} & set(arguments) else arguments
    http_bench.run(_parse(HttpBenchOptions, "bench --base-url URL", words, lists_by_repeating=False))


def _ablate(arguments: list[str]) -> None:
    from fuseboard.measure import experiment
    from fuseboard.measure.options import AblateOptions
    from fuseboard.report import print_summary, read_analysis, write_report

    options: AblateOptions = _parse(AblateOptions, "ablate", arguments)
    records = experiment.run(options, report=write_report)
    if not options.dry_run:
        print_summary(read_analysis(records))
        print(f"The report: {records.with_name('report.html')}")


def _profile(arguments: list[str]) -> None:
    from fuseboard.measure import profile
    from fuseboard.measure.options import ProfileOptions
    from fuseboard.report.profile import print_profile

    options: ProfileOptions = _parse_serving(ProfileOptions, "profile", arguments)
    print_profile(profile.run(options))
    if options.trace:
        print(f"The timeline: {options.trace}")


def _tune(arguments: list[str]) -> None:
    from fuseboard.measure import tune
    from fuseboard.measure.tune_options import TuneOptions
    from fuseboard.report.tune import failure, print_tuning, write_summary

    options: TuneOptions = _parse(TuneOptions, "tune", arguments)
    found = tune.run(options)
    print_tuning(found)
    if not options.dry_run:
        write_summary(found)
        if reason := failure(found):
            raise UserError(reason)
        print(f"The configuration: {options.write}")


def _compare(arguments: list[str]) -> None:
    from fuseboard.load.atomic import write_atomic
    from fuseboard.measure import compare
    from fuseboard.measure.options import CompareOptions
    from fuseboard.report.compare import print_comparison, render

    options: CompareOptions = _parse(CompareOptions, "compare", arguments)
    if not 0 < options.margin < 1:
        raise UserError(f"--margin is a share between 0 and 1, not {options.margin}.")
    found = compare.compare(compare.load(options.a), compare.load(options.b), margin=options.margin)
    print_comparison(found)
    if options.html:
        write_atomic(options.html, render(found).encode())
        print(f"The page: {options.html}")


def _doctor(arguments: list[str]) -> None:
    from fuseboard.backends.registry import get_backend
    from fuseboard.execute.options import DoctorOptions

    options: DoctorOptions = _parse(DoctorOptions, "doctor", arguments)
    findings = get_backend().examine(options.threads)
    if options.json:
        print(json.dumps(findings, indent=1))
        return
    width = max(map(len, findings))
    for name, value in findings.items():
        print(f"{name:<{width}} {_readable(name, value)}")


def _readable(name: str, value: Any) -> str:
    if name.endswith("/s"):
        return f"{value / 1e9:.1f} G{name.split()[-1]}"
    if name.endswith("bytes"):
        return f"{value / 2**30:.1f} GiB"
    if isinstance(value, float):
        return f"{value:.2f}"
    if isinstance(value, dict):
        return ", ".join(f"{key} {part}" for key, part in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


_HANDLERS: dict[str, Callable[[list[str]], None]] = {
    "run": _run,
    "plan": _plan,
    "bench": _bench,
    "profile": _profile,
    "ablate": _ablate,
    "tune": _tune,
    "compare": _compare,
    "doctor": _doctor,
}
