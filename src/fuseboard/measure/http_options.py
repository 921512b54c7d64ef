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
    model: Annotated[str | None, arg(metavar="NAME")] = None
    """The model to ask for; the only one the server lists when not given."""
    tokenizer: Annotated[str | None, arg(metavar="NAME")] = None
    """Whose tokenizer makes prompts of exact length: a path, hub id or catalogue name; --model when that is one."""
    endpoint: Annotated[str, arg(metavar="PATH")] = "/v1/completions"
    """Where requests go; a path that ends with chat/completions gets messages."""
    header: Annotated[UseAppendAction[tuple[str, ...]], arg(metavar="K=V")] = ()
    """A header of every request."""
    extra_body: Annotated[str | None, arg(metavar="JSON")] = None
    """An object merged into every request; null takes a field out."""
    token_ids: bool = False
    """Send prompts as token ids instead of text."""
    ignore_eos: bool = False
    """Ask for all of --output-len (vLLM, SGLang and llama-server understand it)."""
    num_prompts: Annotated[int, arg(metavar="N")] = 100
    """Requests in all."""
    num_warmups: Annotated[int, arg(metavar="N")] = 5
    """Requests with other prompts before them that are not counted."""
    input_len: Annotated[int, arg(metavar="N")] = 512
    """Tokens of every prompt."""
    output_len: Annotated[int, arg(metavar="N")] = 128
    """Most tokens of every answer."""
    shared_prefix: Annotated[int, arg(metavar="N")] = 0
    """Tokens at the start that all prompts have in common."""
    trace: Annotated[Path | None, arg(metavar="FILE")] = None
    """Lengths and times from a log (Azure, BurstGPT, Mooncake, ShareGPT, OpenAI messages, CSV)."""
    time_scale: Annotated[float, arg(metavar="F")] = 1.0
    """Factor on the times of the log; 0 ignores them."""
    request_rate: Annotated[float, arg(metavar="R")] = float("inf")
    """Requests a second of an open loop, also over the times of a log."""
    burstiness: Annotated[float, arg(metavar="X")] = 1.0
    """Shape of its gamma-distributed gaps: 1 is Poisson, less is burstier, more is steadier."""
    max_concurrency: Annotated[int | None, arg(metavar="N")] = None
    """Most requests in flight; alone it is a closed loop."""
    percentile_metrics: Annotated[str, arg(metavar="LIST")] = "ttft,tpot,itl,icl,e2el"
    """Latencies to report; icl are the gaps between chunks."""
    metric_percentiles: Annotated[str, arg(metavar="LIST")] = "95,99"
    """Percentiles to report."""
    goodput: Annotated[tuple[str, ...], arg(metavar="NAME:MS")] = ()
    """Limits of a good request, such as ttft:500 tpot:50 e2el:3000; failures are misses."""
    timeout: Annotated[float, arg(metavar="S")] = 600.0
    """A request that takes longer has failed."""
    ready_check_timeout_sec: Annotated[float, arg(metavar="S")] = 0.0
    """How long to wait for the server to be up."""
    seed: Annotated[int, arg(metavar="N")] = 0
    """Seed of prompts and times."""
    json: Annotated[Path | None, arg(metavar="FILE")] = None
    """File for the result, with the key names of vLLM's benchmark."""
    save_detailed: bool = False
    """Also write the raw times of every request there."""
