"""Small policies for tests that need no model."""

from fuseboard.plan.policy import CacheGroup, KvPolicy, SchedulePolicy


def kv_policy(
    *windows: int | None,
    blocks: int = 20,
    block_size: int = 4,
    contiguous: bool = False,
    pooled: bool = True,
    prefix_cache: bool = False,
) -> KvPolicy:
    """One cache group a window (none at all: one full group), each with `blocks` blocks that can be handed out."""
    groups = tuple(
        CacheGroup(layers=(i,), window=window, kv_heads=1, head_dim=4, block_bytes=64, num_blocks=blocks + 1)
        for i, window in enumerate(windows or (None,))
    )
    return KvPolicy(
        dtype="f32",
        contiguous=contiguous,
        block_size=block_size,
        pooled=pooled,
        prefix_cache=prefix_cache,
        groups=groups,
    )


def schedule_policy(
    *,
    batching: str = "continuous",
    chunked: bool = True,
    separate_steps: bool = False,
    max_step_tokens: int = 16,
    max_num_seqs: int = 4,
    max_model_len: int = 64,
) -> SchedulePolicy:
    return SchedulePolicy(
        batching=batching,
        chunked=chunked,
        separate_steps=separate_steps,
        max_step_tokens=max_step_tokens,
        max_num_seqs=max_num_seqs,
        max_model_len=max_model_len,
    )
