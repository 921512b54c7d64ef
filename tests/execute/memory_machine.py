"""An executable for engine tests whose tokens depend on nothing but what it reads back from its KV memory."""

import numpy as np

from fuseboard.core.batch import TOP_K, StepOutput

VOCAB = 101
NOTHING = -1


def next_token(context):
    """The token after a context, whose last tokens count most."""
    state = 7
    for token in context:
        state = (state * 31 + token + 1) % 1009
    return state % VOCAB


def continuation(prompt, new, window=None):
    tokens = list(prompt)
    for _ in range(new):
        tokens.append(next_token(tokens if window is None else tokens[-window:]))
    return tokens[len(prompt) :]


def step_output(logits_RV, *, full):
    """A step's output for given logits."""
    logits_RV = np.asarray(logits_RV, dtype=np.float32)
    order_RK = np.argsort(-logits_RV, axis=1, kind="stable")[:, :TOP_K]
    double_RV = logits_RV.astype(np.float64)
    highest_R1 = double_RV.max(axis=1, keepdims=True)
    logsumexp_R = np.log(np.exp(double_RV - highest_R1).sum(axis=1)) + highest_R1[:, 0]
    return StepOutput(
        top_ids_RK=order_RK.astype(np.int32),
        top_logits_RK=np.take_along_axis(logits_RV, order_RK, axis=1),
        logsumexp_R=logsumexp_R.astype(np.float32),
        logits_RV=logits_RV if full else None,
    )


class MemoryMachine:
    """Keeps a token in every KV slot; row r's best token is `next_token` of what its last group's window shows."""

    def __init__(self, plan):
        self.plan = plan
        self.kv = [np.full(g.num_blocks * plan.kv.block_size, NOTHING) for g in plan.kv.groups]
        self.batches = 0
        self.fail = None
        self.not_finite = ()
        self.released = []

    def run(self, batch):
        self.batches += 1
        if self.fail is not None:
            raise self.fail
        for array in (batch.token_ids_T, batch.positions_T, *batch.kv_slots_GT, *batch.block_tables_GSB):
            assert array.dtype == np.int32
            assert array.flags.c_contiguous
        t, s = batch.num_tokens, batch.num_seqs
        starts = batch.seq_starts_S1[: s + 1].tolist()
        assert starts[0] == 0
        assert starts[-1] == t
        seen = [self._context(batch, i, starts) for i in range(s)]
        ends = {end - 1: i for i, end in enumerate(starts[1:])}
        rows = [ends[row] for row in batch.sample_rows_R[: batch.num_rows].tolist()]
        logits_RV = np.zeros((len(rows), VOCAB))
        for r, i in enumerate(rows):
            logits_RV[r] = -np.arange(VOCAB) * 0.01
            logits_RV[r, next_token(seen[i])] = 4.0
        output = step_output(logits_RV, full=batch.full_logits)
        for row in self.not_finite:
            output.logsumexp_R[row] = np.nan
        return output

    def start(self, batch):
        self.started = batch

    def wait(self):
        return self.run(self.started)

    def _context(self, batch, i, starts):
        size = self.plan.kv.block_size
        own = slice(starts[i], starts[i + 1])
        context = int(batch.context_lens_S[i])
        assert batch.positions_T[own].tolist() == list(range(context - (starts[i + 1] - starts[i]), context))
        contexts = []
        for group, memory in enumerate(self.kv):
            table = batch.block_tables_GSB[group][i]
            slots = batch.kv_slots_GT[group][own]
            positions = batch.positions_T[own]
            assert (slots == table[positions // size] * size + positions % size).all()
            memory[slots] = batch.token_ids_T[own]
            window = self.plan.kv.groups[group].window
            first = 0 if window is None else max(0, context - window)
            places = np.arange(first, context)
            read = memory[table[places // size] * size + places % size].tolist()
            assert NOTHING not in read, "freed memory is read"
            contexts.append(read)
        return contexts[-1]

    def counters(self):
        return {"machine_steps": self.batches}

    def release_blocks(self, group, block_ids):
        self.released.append((group, list(block_ids)))
        self.poison_blocks(group, block_ids)

    def poison_blocks(self, group, block_ids):
        size = self.plan.kv.block_size
        for block in block_ids:
            self.kv[group][block * size : (block + 1) * size] = NOTHING

    def close(self):
        self.kv = []
