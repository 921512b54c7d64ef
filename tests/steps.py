"""Step batches made by hand: sequences with scattered block tables, in any mix of prefill and decode.

Arrays are longer than their live part and the rest is garbage, as the contract of `StepBatch` allows.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from fuseboard.core.batch import StepBatch
from fuseboard.plan.plan import ExecutionPlan

GARBAGE = -12345
SPARE = 3


def padded(values: Sequence[int] | np.ndarray) -> np.ndarray:
    """Live int32 values with garbage behind them."""
    live = np.asarray(values, np.int32)
    return np.concatenate([live, np.full((SPARE, *live.shape[1:]), GARBAGE, np.int32)])


class Stepper:
    """Sequences that take their KV blocks in random order from a plan's cache groups.

    With `drop_dead`, blocks that left a group's window are replaced by the null block, as the cache manager does.
    """

    def __init__(
        self, plan: ExecutionPlan, sequences: Mapping[str, np.ndarray], *, seed: int = 0, drop_dead: bool = False
    ) -> None:
        self.plan, self.sequences, self.drop_dead = plan, dict(sequences), drop_dead
        self.done = dict.fromkeys(sequences, 0)
        rng = np.random.default_rng(seed)
        size = plan.kv.block_size
        self.tables: list[dict[str, np.ndarray]] = []
        for group in plan.kv.groups:
            free = rng.permutation(np.arange(1, group.num_blocks)).tolist()
            blocks = {name: -(-len(ids) // size) for name, ids in sequences.items()}
            self.tables.append({name: np.array([free.pop() for _ in range(n)]) for name, n in blocks.items()})

    def batch(self, parts: Sequence[tuple[str, int]], *, full_logits: bool = True) -> StepBatch:
        """The next `count` tokens of each named sequence; every token's row is sampled."""
        starts = [self.done[name] for name, _ in parts]
        ends = [start + count for start, (_, count) in zip(starts, parts, strict=True)]
        spans = [(name, start, end) for (name, _), start, end in zip(parts, starts, ends, strict=True)]
        positions = np.concatenate([np.arange(start, end) for _, start, end in spans])
        self.done |= {name: end for name, _, end in spans}
        tokens = len(positions)
        groups = range(len(self.plan.kv.groups))
        return StepBatch(
            num_tokens=tokens,
            num_seqs=len(parts),
            num_rows=tokens,
            token_ids_T=padded(np.concatenate([self.sequences[name][start:end] for name, start, end in spans])),
            positions_T=padded(positions),
            seq_starts_S1=padded(np.cumsum([0, *(count for _, count in parts)])),
            context_lens_S=padded(ends),
            state_slots_S=padded([0] * len(parts)),
            sample_rows_R=padded(np.arange(tokens)),
            kv_slots_GT=tuple(padded(self._slots(group, spans)) for group in groups),
            block_tables_GSB=tuple(padded(self._table(group, spans)) for group in groups),
            full_logits=full_logits,
        )

    def _slots(self, group: int, spans: Sequence[tuple[str, int, int]]) -> np.ndarray:
        size = self.plan.kv.block_size
        places = [(self.tables[group][name], np.arange(start, end)) for name, start, end in spans]
        return np.concatenate([table[at // size] * size + at % size for table, at in places])

    def _table(self, group: int, spans: Sequence[tuple[str, int, int]]) -> np.ndarray:
        size, window = self.plan.kv.block_size, self.plan.kv.groups[group].window
        widest = max(len(table) for table in self.tables[group].values())
        rows = np.zeros((len(spans), widest), np.int32)
        for row, (name, start, end) in zip(rows, spans, strict=True):
            used = -(-end // size)
            row[:used] = self.tables[group][name][:used]
            if self.drop_dead and window is not None:
                row[: max(0, start - window + 1) // size] = 0
        return rows
