"""Options of the measuring commands; the command line is generated from them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from fuseboard.execute.options import EngineOptions, ServingOptions

LAUNCH_S = 600.0


@dataclass(frozen=True, kw_only=True)
class AblateOptions(EngineOptions):
    """Measure what every switch is worth: launches in counterbalanced blocks, verdicts, and a report."""

    out: Annotated[Path, arg(metavar="FOLDER")] = Path("out/ablate")
    """Records and report; a stopped run goes on from them."""
    design: Annotated[str, arg(metavar="DESIGN")] = "auto"
    """quick, or alone, ladder, without, pairs, orders[:N], joined by '+'; auto is quick or the workload's own."""
    blocks: Annotated[int | None, arg(metavar="N", help_behavior_hint="(default: 3 for quick, else 5)")] = None
    """Launches of every arm."""
    budget: Annotated[str | None, arg(metavar="TIME", help_behavior_hint="")] = None
    """Time for all launches, such as 20m, instead of --blocks."""
    only: Annotated[tuple[str, ...], arg(metavar="NAME")] = ()
    """A switch to study instead of all."""
    on: Annotated[tuple[str, ...], arg(metavar="NAME=VALUE")] = ()
    """The value at which a switch is studied."""
    set: Annotated[tuple[str, ...], arg(metavar="NAME=VALUE")] = ()
    """A switch held at this value in every arm."""
    workload: Annotated[str, arg(metavar="NAME|FILE")] = "auto"
    """auto (by design), quick, full, report-a, report-b, or a trace."""
    scale: Annotated[float, arg(metavar="FACTOR")] = 1.0
    """Factor on the lengths of report-a and report-b."""
    seed: Annotated[int, arg(metavar="N")] = 0
    """Seed of prompts and order."""
    margin: Annotated[float, arg(metavar="SHARE")] = 0.02
    """Arms closer than this are equivalent."""
    max_kl: Annotated[float, arg(metavar="NATS")] = 0.1
    """Mean KL to the baseline beyond which a lossy arm fails."""
    quality: Annotated[bool, arg(help_behavior_hint="")] = True
    """Do not compare answers with the baseline's."""
    profile: Annotated[bool, arg(help_behavior_hint="")] = True
    """Do not time the operators of every arm."""
    timeout: Annotated[float, arg(metavar="SECONDS")] = LAUNCH_S
    """A launch that takes longer is ended."""
    resume: Annotated[bool, arg(help_behavior_hint="")] = True
    """Measure anew what the records already hold."""
    dry_run: Annotated[bool, arg(help_behavior_hint="")] = False
    """Only list the launches and their time."""


@dataclass(frozen=True, kw_only=True)
class ProfileOptions(ServingOptions):
    """Show where the time goes: phases, operators, and how far each is from what this machine can do."""

    input_len: Annotated[int, arg(metavar="N")] = 512
    """Tokens of every prompt."""
    output_len: Annotated[int, arg(metavar="N")] = 64
    """Tokens generated for each; end tokens are ignored."""
    concurrency: Annotated[int, arg(metavar="N")] = 1
    """Requests in flight at most."""
    num_prompts: Annotated[int | None, arg(metavar="N", help_behavior_hint="(default: --concurrency)")] = None
    """Requests in all."""
    seed: Annotated[int, arg(metavar="N")] = 0
    """Seed of the prompts."""
    timeout: Annotated[float, arg(metavar="SECONDS")] = LAUNCH_S
    """A run that takes longer is ended."""
    json: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")] = None
    """File for everything that was measured."""
    trace: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")] = None
    """File for the timeline; ui.perfetto.dev opens it."""


@dataclass(frozen=True, kw_only=True)
class BenchOptions(ServingOptions):
    """Measure one configuration under one load, in a fresh process.

    `fuseboard bench --base-url URL` measures a running server instead; add --help for its options.
    """

    input_len: Annotated[int | None, arg(metavar="N", help_behavior_hint="(default: 512, or the trace's)")] = None
    """Tokens of every prompt."""
    output_len: Annotated[int | None, arg(metavar="N", help_behavior_hint="(default: 128, or the trace's)")] = None
    """Tokens generated for each; end tokens are ignored."""
    concurrency: Annotated[int | None, arg(metavar="N", help_behavior_hint="(default: 1; trace: no limit)")] = None
    """Requests in flight at most."""
    num_prompts: Annotated[int, arg(metavar="N")] = 8
    """Requests in all."""
    shared_prefix: Annotated[int, arg(metavar="N")] = 0
    """First tokens that all prompts share."""
    request_rate: Annotated[float, arg(metavar="RATE")] = float("inf")
    """Requests a second; replaces the times of a trace."""
    burstiness: Annotated[float, arg(metavar="X")] = 1.0
    """1 is Poisson, less is burstier."""
    trace: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")] = None
    """Requests of a log (Azure, BurstGPT, Mooncake, ShareGPT, ...)."""
    time_scale: Annotated[float, arg(metavar="FACTOR")] = 1.0
    """Factor on the times of a trace; 0 keeps --concurrency busy."""
    num_warmups: Annotated[int | None, arg(metavar="N", help_behavior_hint="(default: 1; trace: 5)")] = None
    """Rounds with other prompts before the measurement."""
    seed: Annotated[int, arg(metavar="N")] = 0
    """Seed of the prompts."""
    timeout: Annotated[float, arg(metavar="SECONDS")] = LAUNCH_S
    """A launch that takes longer is ended."""
    json: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")] = None
    """File for the result, with the key names of vLLM's."""


@dataclass(frozen=True, kw_only=True)
class CompareOptions:
    """Compare two measurements: what changed between them, what that did, and which part of the steps moved.

    A side is a folder or records.jsonl of ablate or tune (PATH#ARM for one arm), or a result file of bench, vLLM's
    bench serve or bench sweep, SGLang's bench_serving, AIPerf, GuideLLM or llama-bench; a folder of them is repeated
    runs.
    """

    a: Annotated[Positional[str], arg(metavar="A")]
    """The side to start from."""
    b: Annotated[Positional[str], arg(metavar="B")]
    """The side that is judged against it."""
    margin: Annotated[float, arg(metavar="SHARE")] = 0.02
    """Sides closer than this share are called equivalent."""
    html: Annotated[Path | None, arg(metavar="FILE")] = None
    """Also write all of it as one page that opens offline."""
