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
    """Limits such as ttft_p95=500ms,tpot_p95=50ms on ttft, tpot, itl, e2e; mean or a percentile, in every cell."""
    workload: Annotated[str, arg(metavar="NAME|FILE|SPEC")] = "quick"
    """quick, full, a trace file, or input_len=512,output_len=128,concurrency=4,num_prompts=16."""
    memory: Annotated[str | None, arg(metavar="SIZE")] = None
    """Most memory of the whole process, for example 4GiB."""
    max_kl: Annotated[float, arg(metavar="NATS")] = 0.02
    """Mean distance of the answers from float32's beyond which lossy formats are rejected."""
    budget: Annotated[str, arg(metavar="TIME")] = "10m"
    """Time for everything; finalists get their three launches even when it is too short."""
    finalists: Annotated[int, arg(metavar="N")] = 4
    """Formats to measure, the preset among them."""
    confidence: Annotated[float, arg(metavar="P")] = 0.9
    """Least probability that the limits hold."""
    set: Annotated[tuple[str, ...], arg(metavar="NAME=VALUE")] = ()
    """A switch that is not up for choice."""
    also: Annotated[tuple[str, ...], arg(metavar="NAME=VALUE")] = ()
    """A value to try beside the catalogue's, for example weights=w4a8:g32a."""
    num_prompts: Annotated[int, arg(metavar="N")] = 64
    """Requests of a trace to take."""
    time_scale: Annotated[float, arg(metavar="FACTOR")] = 1.0
    """Factor on the arrival times of a trace."""
    out: Annotated[Path, arg(metavar="FOLDER")] = Path("out/tune")
    """Folder of the records."""
    write: Annotated[Path, arg(metavar="FILE")] = Path("fuseboard.toml")
    """The configuration, for --config of run, plan and bench."""
    seed: Annotated[int, arg(metavar="N")] = 0
    """Seed of prompts, order and resampling."""
    timeout: Annotated[float, arg(metavar="SECONDS")] = LAUNCH_S
    """A launch that takes longer is ended."""
    dry_run: bool = False
    """Only list what would be measured and what is ruled out."""
