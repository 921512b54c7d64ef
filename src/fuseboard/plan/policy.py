"""What the plan tells the scheduler, the cache manager and the executable: plain data, no switch names."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class CacheGroup:
    """Layers whose KV has the same shape and lifetime; they share one block table and one number of blocks.

    `window` is the sliding window in tokens or None. `block_bytes` is one layer's block; `num_blocks` counts the
    null block 0, which is never handed out.
    """

    layers: tuple[int, ...]
    window: int | None
    kv_heads: int
    head_dim: int
    block_bytes: int
    num_blocks: int

    @property
    def bytes(self) -> int:
        return self.num_blocks * self.block_bytes * len(self.layers)


@dataclass(frozen=True, kw_only=True)
class KvPolicy:
    """How KV memory is kept.

    `contiguous` reserves one consecutive run of blocks for the maximum length when a request is admitted; otherwise
    blocks are taken as they fill. `pooled` keeps the pages of a freed block; otherwise they go back to the system.
    """

    dtype: str
    contiguous: bool
    block_size: int
    pooled: bool
    prefix_cache: bool
    groups: tuple[CacheGroup, ...]

    @property
    def bytes(self) -> int:
        return sum(group.bytes for group in self.groups)


@dataclass(frozen=True, kw_only=True)
class SchedulePolicy:
    """How requests share steps.

    `batching` is one (a request at a time), static (a batch is filled and runs until its last request ends) or
    continuous. With `chunked` a prompt may be split over steps; otherwise it enters whole. A step holds at most
    `max_step_tokens` tokens. With `separate_steps` a step is either prefill or decode, never both.
    """

    batching: str
    chunked: bool
    separate_steps: bool
    max_step_tokens: int
    max_num_seqs: int
    max_model_len: int


@dataclass(frozen=True, kw_only=True)
class RunPolicy:
    """How the device runs a step.

    With `pinned` every thread stays on a processor of its own. `streams` is the most neighbouring nodes that run at
    the same time. With `prefetch_weights` threads that wait pull in the weights that come next. With `autotune` sizes
    that change no result are measured when the plan is compiled, unless that was done before. With `huge_weights`
    weights are read into huge pages instead of mapped. With `overlap` the device starts a step before the events of
    the one before are made.
    """

    pinned: bool = False
    streams: int = 1
    prefetch_weights: bool = False
    autotune: bool = False
    huge_weights: bool = False
    overlap: bool = False
