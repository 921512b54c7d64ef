"""Options of `fuseboard bench --base-url`, named as in vLLM's `bench serve` where it has them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import UseAppendAction, arg


@dataclass(frozen=True, kw_only=True)
class HttpBenchOptions:
    """Load a running OpenAI-compatible server and measure what its clients see."""

    base_url: Annotated[str, arg(metavar="URL")]
    """The server, for example http://127.0.0.1:8000."""
    model: Annotated[str | None, arg(metavar="NAME", help_behavior_hint="(default: the only one listed)")] = None
    """The model to ask for."""
    tokenizer: Annotated[str | None, arg(metavar="NAME", help_behavior_hint="(default: --model)")] = None
    """Path, hub id or catalogue name of its tokenizer."""
    endpoint: Annotated[str, arg(metavar="PATH")] = "/v1/completions"
    """Where requests go."""
    header: Annotated[UseAppendAction[tuple[str, ...]], arg(metavar="NAME=VALUE")] = ()
    """A header of every request."""
    extra_body: Annotated[str | None, arg(metavar="JSON", help_behavior_hint="")] = None
    """Merged into every request; null takes a field out."""
    token_ids: Annotated[bool, arg(help_behavior_hint="")] = False
    """Send prompts as token ids instead of text."""
    ignore_eos: Annotated[bool, arg(help_behavior_hint="")] = False
    """Ask for all of --output-len."""
    num_prompts: Annotated[int, arg(metavar="N")] = 100
    """Requests in all."""
    num_warmups: Annotated[int, arg(metavar="N")] = 5
    """Requests before them that are not counted."""
    input_len: Annotated[int | None, arg(metavar="N", help_behavior_hint="(default: 512, or the log's)")] = None
    """Tokens of every prompt."""
    output_len: Annotated[int | None, arg(metavar="N", help_behavior_hint="(default: 128, or the log's)")] = None
    """Most tokens of every answer."""
    shared_prefix: Annotated[int, arg(metavar="N")] = 0
    """First tokens that all prompts share."""
    trace: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")] = None
    """Lengths and times from a log, as in `bench MODEL`."""
    time_scale: Annotated[float, arg(metavar="F")] = 1.0
    """Factor on the times of the log; 0 ignores them."""
    request_rate: Annotated[float, arg(metavar="R")] = float("inf")
    """Requests a second; replaces the times of a log."""
    burstiness: Annotated[float, arg(metavar="X")] = 1.0
    """Shape of its gamma gaps: 1 is Poisson, less is burstier."""
    max_concurrency: Annotated[int | None, arg(metavar="N", help_behavior_hint="(default: no limit)")] = None
    """Most requests in flight."""
    percentile_metrics: Annotated[str, arg(metavar="ttft,tpot,itl,icl,e2el", help_behavior_hint="(default: all)")] = (
        "ttft,tpot,itl,icl,e2el"
    )
    """Latencies to report; icl are the gaps between chunks."""
    metric_percentiles: Annotated[str, arg(metavar="LIST")] = "95,99"
    """Percentiles to report."""
    goodput: Annotated[tuple[str, ...], arg(metavar="ttft:MS|tpot:MS|e2el:MS", help_behavior_hint="")] = ()
    """Limits of a good request, such as ttft:500 tpot:50; failures are misses."""
    timeout: Annotated[float, arg(metavar="SECONDS")] = 600.0
    """A request that takes longer has failed."""
    ready_check_timeout_sec: Annotated[float, arg(metavar="SECONDS")] = 0.0
    """Wait for the server."""
    seed: Annotated[int, arg(metavar="N")] = 0
    """Seed of prompts and times."""
    json: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")] = None
    """File for the result, with the key names of vLLM's."""
    save_detailed: Annotated[bool, arg(help_behavior_hint="")] = False
    """Also write the times of every request."""
