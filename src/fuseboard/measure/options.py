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
    """Folder of the records and the report; a run that was stopped goes on from the records it finds there."""
    design: Annotated[str, arg(metavar="DESIGN")] = "auto"
    """quick (a ladder of six groups), or alone, ladder, without, pairs, orders[:N], joined by '+'; auto is quick, or
    the ladder of the report that the workload names."""
    blocks: Annotated[int | None, arg(metavar="N")] = None
    """Repetitions of every arm, each in a fresh process; 3 for quick, else 5."""
    budget: Annotated[str | None, arg(metavar="TIME")] = None
    """Time for all launches, such as 20m: as many blocks as fit by the times of the first two."""
    only: Annotated[tuple[str, ...], arg(metavar="NAME")] = ()
    """A switch to study; all of the catalogue when not given."""
    on: Annotated[tuple[str, ...], arg(metavar="NAME=VALUE")] = ()
    """The value at which a switch is studied, instead of the backend's own."""
    set: Annotated[tuple[str, ...], arg(metavar="NAME=VALUE")] = ()
    """A switch that is held at this value in every arm."""
    workload: Annotated[str, arg(metavar="NAME|FILE")] = "auto"
    """auto (fits the design), quick, full, report-a or report-b (a published report's experiment), or a trace file."""
    scale: Annotated[float, arg(metavar="FACTOR")] = 1.0
    """Factor on the lengths of report-a and report-b, to run them in limited time."""
    seed: Annotated[int, arg(metavar="N")] = 0
    """Seed of the prompts and of the order of launches."""
    margin: Annotated[float, arg(metavar="SHARE")] = 0.02
    """Two arms closer than this share are called equivalent."""
    max_kl: Annotated[float, arg(metavar="NATS")] = 0.1
    """Mean distance from the baseline's answers beyond which a lossy arm has failed."""
    quality: bool = True
    """Also compare the answers of the arms with those of the baseline."""
    profile: bool = True
    """Also run every arm once with its operators timed, apart from the launches, to explain the gains."""
    timeout: Annotated[float, arg(metavar="SECONDS")] = LAUNCH_S
    """A launch that takes longer is ended and recorded as timed out."""
    resume: bool = True
    """Reuse the blocks in the records that were measured under the same plan, workload, machine and code."""
    dry_run: bool = False
    """Only list the launches and the time they will take."""


@dataclass(frozen=True, kw_only=True)
class ProfileOptions(ServingOptions):
    """Show where the time goes: phases, operators, and how far each is from what this machine can do."""

    input_len: Annotated[int, arg(metavar="N")] = 512
    """Tokens of every prompt."""
    output_len: Annotated[int, arg(metavar="N")] = 64
    """Tokens generated for every prompt; end tokens are ignored."""
    concurrency: Annotated[int, arg(metavar="N")] = 1
    """Requests in flight at most."""
    num_prompts: Annotated[int | None, arg(metavar="N")] = None
    """Requests in all; as many as are in flight when not given."""
    seed: Annotated[int, arg(metavar="N")] = 0
    """Seed of the prompts."""
    timeout: Annotated[float, arg(metavar="SECONDS")] = LAUNCH_S
    """A run that takes longer is ended."""
    json: Annotated[Path | None, arg(metavar="FILE")] = None
    """File for everything that was measured, as JSON."""
    trace: Annotated[Path | None, arg(metavar="FILE")] = None
    """File for the timeline; ui.perfetto.dev and chrome://tracing open it."""


@dataclass(frozen=True, kw_only=True)
class BenchOptions(ServingOptions):
    """Measure one configuration under one load, in a fresh process.

    `fuseboard bench --base-url URL` measures a running server instead; add --help for its options.
    """

    input_len: Annotated[int, arg(metavar="N")] = 512
    """Tokens of every prompt."""
    output_len: Annotated[int, arg(metavar="N")] = 128
    """Tokens generated for every prompt; end tokens are ignored."""
    concurrency: Annotated[int, arg(metavar="N")] = 1
    """Requests in flight at most."""
    num_prompts: Annotated[int, arg(metavar="N")] = 8
    """Requests in all."""
    shared_prefix: Annotated[int, arg(metavar="N")] = 0
    """Tokens at the start that all prompts have in common."""
    request_rate: Annotated[float, arg(metavar="RATE")] = float("inf")
    """Requests a second of an open loop; inf sends as soon as the concurrency allows."""
    burstiness: Annotated[float, arg(metavar="X")] = 1.0
    """Shape of its gamma-distributed gaps: 1 is Poisson, less is burstier, more is steadier."""
    trace: Annotated[Path | None, arg(metavar="FILE")] = None
    """A trace file (Azure CSV, Mooncake JSONL, BurstGPT CSV, ShareGPT JSON, OpenAI messages JSONL) for the requests."""
    time_scale: Annotated[float, arg(metavar="FACTOR")] = 1.0
    """Factor on the arrival times of a trace; 0.5 is twice as fast; 0 ignores them and keeps --concurrency busy."""
    num_warmups: Annotated[int, arg(metavar="N")] = 1
    """Rounds of other prompts of the same shapes before the measurement."""
    seed: Annotated[int, arg(metavar="N")] = 0
    """Seed of the prompts."""
    timeout: Annotated[float, arg(metavar="SECONDS")] = LAUNCH_S
    """A launch that takes longer is ended and recorded as timed out."""
    json: Annotated[Path | None, arg(metavar="FILE")] = None
    """File for the result, with the key names of vLLM's benchmark."""


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
