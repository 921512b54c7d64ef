"""Options of `tune`; the command line is generated from them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import arg

from fuseboard.execute.options import EngineOptions
from fuseboard.measure.options import LAUNCH_S


@dataclass(frozen=True, kw_only=True)
class TuneOptions(EngineOptions):
    """Find the configuration for a workload under limits on latency and memory, by measurement, and write it down."""

    slo: Annotated[str, arg(metavar="LIMITS")]
    """On ttft, tpot, itl, e2e: ttft_p95=500ms,tpot_mean=50ms."""
    workload: Annotated[str, arg(metavar="WORK")] = "quick"
    """quick, full, a trace, or input_len=512,output_len=128,concurrency=4,num_prompts=16."""
    memory: Annotated[str | None, arg(metavar="SIZE", help_behavior_hint="")] = None
    """Most memory of the whole process, such as 4GiB."""
    max_kl: Annotated[float, arg(metavar="NATS")] = 0.02
    """Mean KL to float32 beyond which a format is rejected."""
    budget: Annotated[str, arg(metavar="TIME")] = "10m"
    """Time for everything; finalists get 3 launches."""
    finalists: Annotated[int, arg(metavar="N")] = 4
    """Formats to measure, with the preset."""
    confidence: Annotated[float, arg(metavar="P")] = 0.9
    """Least probability that the limits hold."""
    set: Annotated[tuple[str, ...], arg(metavar="NAME=VALUE")] = ()
    """A switch that is not up for choice."""
    also: Annotated[tuple[str, ...], arg(metavar="NAME=VALUE")] = ()
    """A value to try, such as weights=w4a8:g32a."""
    num_prompts: Annotated[int, arg(metavar="N")] = 64
    """Requests of a trace to take."""
    time_scale: Annotated[float, arg(metavar="FACTOR")] = 1.0
    """Factor on the arrival times of a trace."""
    out: Annotated[Path, arg(metavar="FOLDER")] = Path("out/tune")
    """Folder of the records; a stopped run goes on from them."""
    write: Annotated[Path, arg(metavar="FILE")] = Path("fuseboard.toml")
    """The configuration for --config."""
    seed: Annotated[int, arg(metavar="N")] = 0
    """Seed of prompts, order and resampling."""
    timeout: Annotated[float, arg(metavar="SECONDS")] = LAUNCH_S
    """A launch that takes longer is ended."""
    resume: Annotated[bool, arg(help_behavior_hint="")] = True
    """Measure anew what the records already hold."""
    dry_run: Annotated[bool, arg(help_behavior_hint="")] = False
    """Only list what would be measured and what is ruled out."""
