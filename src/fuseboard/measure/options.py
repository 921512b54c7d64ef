"""Options of the measuring commands; the command line is generated from them."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """What every measured engine is made with."""

    threads: int | None = None
    """Compute threads; all cores that this process may use when not given."""
    max_model_len: int | None = None
    """Longest sequence in tokens; what the workload needs when not given."""
    max_num_seqs: int | None = None
    """Most sequences at once; what the workload needs when not given."""
    kv_memory: int | None = None
    """Bytes for the KV cache, the same in every arm; what the baseline needs for these limits when not given."""
    load_format: str = "auto"
    """auto, or dummy: random weights, for a shape whose weights are not at hand."""
    timeout: float = 600.0
    """Seconds after which a launch is ended and recorded as timed out."""


@dataclass(frozen=True, kw_only=True)
class AblateOptions(EngineOptions):
    """Options of `fuseboard ablate`."""

    model: str
    """A path, a hub id or a name of the catalogue."""
    out: Path = Path("out/ablate")
    """Folder of the records and the report; a run that was stopped goes on from the records it finds there."""
    design: str = "quick"
    """quick (a ladder of six groups), or some of alone, ladder and without joined by '+'."""
    blocks: int | None = None
    """Repetitions of every arm, each in a fresh process; 3 for quick, else 5."""
    switches: tuple[str, ...] = ()
    """Only these switches are studied; all of the catalogue when not given."""
    on: tuple[str, ...] = ()
    """NAME=VALUE: the value at which a switch is studied, instead of the backend's own."""
    set: tuple[str, ...] = ()
    """NAME=VALUE: held at this value in every arm."""
    workload: str = "auto"
    """auto (fits the design), quick, full, or a trace file."""
    seed: int = 0
    """Seed of the prompts and of the order of launches."""
    margin: float = 0.02
    """Two arms closer than this share are called equivalent."""
    quality: bool = True
    """Also compare the answers of the arms with those of the baseline."""
    resume: bool = True
    """Reuse the blocks in the records that were measured under the same plan, workload, machine and code."""
    dry_run: bool = False
    """Only list the launches and the time they will take."""


@dataclass(frozen=True, kw_only=True)
class BenchOptions(EngineOptions):
    """Options of `fuseboard bench`."""

    model: str
    """A path, a hub id or a name of the catalogue."""
    input_len: int = 512
    """Tokens of every prompt."""
    output_len: int = 128
    """Tokens generated for every prompt; end tokens are ignored."""
    concurrency: int = 1
    """Requests in flight at most."""
    num_prompts: int = 8
    """Requests in all."""
    shared_prefix: int = 0
    """Tokens at the start that all prompts have in common."""
    request_rate: float = float("inf")
    """Requests a second of an open loop with Poisson arrivals; inf sends as soon as the concurrency allows."""
    trace: Path | None = None
    """A trace file (Azure CSV, Mooncake JSONL, BurstGPT CSV, ShareGPT JSON, OpenAI messages JSONL) for the requests."""
    time_scale: float = 1.0
    """Factor on the arrival times of a trace; 0.5 is twice as fast; 0 ignores them and keeps --concurrency busy."""
    num_warmups: int = 1
    """Rounds of other prompts of the same shapes before the measurement."""
    preset: str = "on"
    """on or off: the switches to start from."""
    set: tuple[str, ...] = ()
    """NAME=VALUE: a switch to change."""
    seed: int = 0
    """Seed of the prompts."""
    json: Path | None = None
    """File for the result, with the key names of vLLM's benchmark."""
