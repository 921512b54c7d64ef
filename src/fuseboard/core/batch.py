"""`StepBatch` and `StepOutput`: the one contract between the scheduler and the backends.

Shape suffixes: T tokens of the step, S sequences, R rows to sample, G cache groups, B blocks of the longest table,
K candidates kept a row, V vocabulary.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int32]
Floats = NDArray[np.float32]

TOP_K = 64
"""Candidates that a fused head returns a row; sampling that needs more asks for full logits."""


@dataclass(slots=True, kw_only=True)
class StepBatch:
    """A ragged batch of T tokens from S sequences, any mix of prefill and decode.

    Sequence s owns the tokens `seq_starts_S1[s] : seq_starts_S1[s + 1]`. `context_lens_S[s]` is the length of its
    context once this step's tokens are written. A KV slot is `block_id * block_size + offset` and block 0 is the null
    block, which is never read. Arrays may be longer than the live counts; only the live part has a meaning.
    All arrays are C-contiguous int32.
    """

    num_tokens: int
    num_seqs: int
    num_rows: int
    token_ids_T: Ints
    positions_T: Ints
    seq_starts_S1: Ints
    context_lens_S: Ints
    state_slots_S: Ints
    sample_rows_R: Ints
    kv_slots_GT: tuple[Ints, ...]
    block_tables_GSB: tuple[Ints, ...]
    full_logits: bool = False
    """Some row needs more than the top `TOP_K` candidates: the step must return `logits_RV`."""

    @property
    def is_decode(self) -> bool:
        """Every sequence brings exactly one token."""
        return self.num_tokens == self.num_seqs

    @property
    def max_context(self) -> int:
        return int(self.context_lens_S[: self.num_seqs].max()) if self.num_seqs else 0


@dataclass(slots=True, kw_only=True)
class StepOutput:
    """What a step gives for its R sample rows; the arrays are valid until the next step.

    `top_ids_RK` and `top_logits_RK` are sorted by falling logit, ties by rising id; `logsumexp_R` is over the whole
    vocabulary. `logits_RV` is there when the batch asked for full logits.
    """

    top_ids_RK: Ints
    top_logits_RK: Floats
    logsumexp_R: Floats
    logits_RV: Floats | None = None
