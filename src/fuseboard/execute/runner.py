"""From a scheduled step to the arrays a backend reads.

T tokens of the step, S sequences, B blocks of the longest table. The arrays are made
once and written in place: a decode step costs a few short lists and a dozen NumPy calls, whatever S is.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fuseboard.core.batch import StepBatch
from fuseboard.execute.kv_cache import BlockTable
from fuseboard.execute.scheduler import ScheduledSeq, ScheduledStep
from fuseboard.plan.policy import KvPolicy, SchedulePolicy


class _Row:
    """What a row of the block tables holds at the moment."""

    __slots__ = ("dead", "filled", "table", "version")

    def __init__(self, groups: int) -> None:
        self.table: BlockTable | None = None
        self.version = -1
        self.filled = [0] * groups
        self.dead = [0] * groups


class Runner:
    """Owns the step's arrays. The batch that `prepare` returns is valid until the next call."""

    def __init__(self, kv: KvPolicy, schedule: SchedulePolicy) -> None:
        tokens, seqs = schedule.max_step_tokens, min(schedule.max_num_seqs, schedule.max_step_tokens)
        groups = len(kv.groups)
        self._block_size = kv.block_size
        self._width = -(-schedule.max_model_len // kv.block_size)
        self._count_up = np.arange(max(tokens, seqs) + 1, dtype=np.int32)
        self._row_starts_S = self._count_up[:seqs].astype(np.int64) * self._width
        self._rows = [_Row(groups) for _ in range(seqs)]
        self._batch = StepBatch(
            num_tokens=0,
            num_seqs=0,
            num_rows=0,
            token_ids_T=np.zeros(tokens, np.int32),
            positions_T=np.zeros(tokens, np.int32),
            seq_starts_S1=np.zeros(seqs + 1, np.int32),
            context_lens_S=np.zeros(seqs, np.int32),
            state_slots_S=np.zeros(seqs, np.int32),
            sample_rows_R=np.zeros(seqs, np.int32),
            kv_slots_GT=tuple(np.zeros(tokens, np.int32) for _ in range(groups)),
            block_tables_GSB=tuple(np.zeros((seqs, self._width), np.int32) for _ in range(groups)),
        )

    def prepare(self, step: ScheduledStep, *, full_logits: bool) -> StepBatch:
        """The step as a batch; `full_logits` when one of its rows needs more than the first candidates."""
        batch, seqs = self._batch, step.seqs
        batch.num_tokens = step.num_tokens
        batch.num_seqs = len(seqs)
        batch.full_logits = full_logits
        for index, (row, seq) in enumerate(zip(self._rows, seqs, strict=False)):
            if row.table is not seq.table or row.version != seq.table.version:
                self._copy_table(index, seq.table)
        if step.is_decode:
            self._fill_decode(seqs)
        else:
            self._fill_ragged(seqs)
        return batch

    def _fill_decode(self, seqs: list[ScheduledSeq]) -> None:
        batch, n = self._batch, len(seqs)
        requests, _, starts, _, samples = zip(*seqs, strict=True)
        batch.token_ids_T[:n] = [request.tokens[start] for request, start in zip(requests, starts, strict=True)]
        batch.positions_T[:n] = starts
        np.add(batch.positions_T[:n], 1, out=batch.context_lens_S[:n])
        batch.seq_starts_S1[: n + 1] = self._count_up[: n + 1]
        self._fill_rows(range(n) if all(samples) else [i for i, last in enumerate(samples) if last])
        self._fill_slots(n, self._row_starts_S[:n])

    def _fill_ragged(self, seqs: list[ScheduledSeq]) -> None:
        batch = self._batch
        rows: list[int] = []
        end = 0
        for i, (request, _, start, count, samples) in enumerate(seqs):
            begin, end = end, end + count
            batch.token_ids_T[begin:end] = request.tokens[start : start + count]
            np.add(self._count_up[:count], start, out=batch.positions_T[begin:end])
            batch.seq_starts_S1[i + 1] = end
            batch.context_lens_S[i] = start + count
            if samples:
                rows.append(end - 1)
        self._fill_rows(rows)
        self._fill_slots(end, np.repeat(self._row_starts_S[: len(seqs)], [seq.num_tokens for seq in seqs]))

    def _fill_rows(self, rows: Sequence[int]) -> None:
        self._batch.sample_rows_R[: len(rows)] = rows
        self._batch.num_rows = len(rows)

    def _fill_slots(self, n: int, row_starts_T: NDArray[np.int64]) -> None:
        """The slot of every token in every group; `row_starts_T` is where its sequence's table starts."""
        blocks_T, offsets_T = np.divmod(self._batch.positions_T[:n], self._block_size)
        entries_T = row_starts_T + blocks_T
        for slots_T, table_SB in zip(self._batch.kv_slots_GT, self._batch.block_tables_GSB, strict=True):
            np.multiply(table_SB.ravel()[entries_T], self._block_size, out=slots_T[:n])
            slots_T[:n] += offsets_T

    def _copy_table(self, index: int, table: BlockTable) -> None:
        """Brings a row up to date; of the table it already holds only what changed is written."""
        row = self._rows[index]
        known = row.table is table
        for group, ids in enumerate(table.ids):
            row_B = self._batch.block_tables_GSB[group][index]
            filled = row.filled[group] if known else 0
            row_B[filled : len(ids)] = ids[filled:]
            if known:
                row_B[row.dead[group] : table.dead[group]] = 0
            row.filled[group], row.dead[group] = len(ids), table.dead[group]
        row.table, row.version = table, table.version
