"""How far an arm's answers are from the all-off baseline's: teacher-forced distributions and greedy continuations.

Both run through the arm's own executable and engine, in a process of its own (`python -m fuseboard.measure.quality`);
the baseline's logits wait in a file meanwhile. Suffixes: N rows of the text, V vocabulary, C runs of rows.
"""

import dataclasses
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fuseboard.core.batch import StepBatch
from fuseboard.core.errors import UserError
from fuseboard.measure.launch import answer, failure, private_stdout, run_child
from fuseboard.measure.record import ArmRecord, Failure, QualityRecord, decode, from_line, to_line
from fuseboard.measure.subject import EngineArgs, Opened, load_subject
from fuseboard.measure.workload import Prompts

CHUNKS, CHUNK_LEN = 4, 128
PROMPTS, PROMPT_LEN, ANSWER_LEN = 4, 64, 32
RUN_LEN = 16
"""Rows of the text that the standard errors treat as one draw: neighbours are not independent."""
RESAMPLES = 200
TIMEOUT_S = 600.0

Floats = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class QualitySpec:
    """What a quality process does; `folder` keeps the baseline's results, which `is_reference` says to write."""

    arm: str
    engine: EngineArgs
    code_digest: str
    folder: str
    is_reference: bool
    plant: str = ""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A greedy continuation: its tokens and the gap between the two best logits at each."""

    token_ids: tuple[int, ...]
    margins: tuple[float, ...]


def compare(
    engine: EngineArgs,
    baseline: ArmRecord,
    arms: Sequence[ArmRecord],
    code_digest: str,
    plants: Mapping[str, str] | None = None,
) -> Iterator[QualityRecord | None]:
    """The baseline first, which gives None, then a record for each arm; a process that fails gives its failure.

    `plants` are faults of the self-check by arm.
    """
    limits = replace(engine, max_model_len=2 * CHUNK_LEN, max_num_seqs=1, kv_memory=None)
    with tempfile.TemporaryDirectory(prefix="fuseboard-quality-") as folder:
        for arm in (baseline, *arms):
            spec = QualitySpec(
                arm=arm.name,
                engine=replace(limits, preset=arm.switches),
                code_digest=code_digest,
                folder=folder,
                is_reference=arm is baseline,
                plant=(plants or {}).get(arm.name, ""),
            )
            record = _in_child(spec)
            if not spec.is_reference:
                yield record
            elif record.error is not None:
                yield from (replace(record, arm=a.name, switches=a.switches) for a in arms)
                return
            else:
                yield None


def _in_child(spec: QualitySpec) -> QualityRecord:
    line, problem = run_child("fuseboard.measure.quality", dataclasses.asdict(spec), timeout_s=TIMEOUT_S)
    if problem is not None:
        return _blank(spec, problem)
    record = from_line(line)
    assert isinstance(record, QualityRecord)
    return record


def _blank(spec: QualitySpec, error: Failure | None = None) -> QualityRecord:
    return QualityRecord(arm=spec.arm, switches=spec.engine.settings, code_digest=spec.code_digest, error=error)


def run(spec: QualitySpec) -> QualityRecord:
    """Run the fixed text and prompts on an arm; compare with the baseline unless this is the baseline."""
    subject = load_subject(spec.engine)
    prompts = Prompts(subject.model.tokenizer, seed=1)
    chunks = [prompts.take(CHUNK_LEN) for _ in range(CHUNKS)]
    questions = [prompts.take(PROMPT_LEN) for _ in range(PROMPTS)]
    opened = subject.open(spec.engine, spec.plant)
    answers = [greedy_answer(opened, ids, ANSWER_LEN) for ids in questions]
    record = replace(_blank(spec), model_digest=subject.model.digest, tokens=CHUNKS * CHUNK_LEN)
    stored = Path(spec.folder)
    if spec.is_reference:
        logits = np.lib.format.open_memmap(
            stored / "logits.npy", "w+", np.float32, (CHUNKS, CHUNK_LEN, opened.plan.spec.vocab_size)
        )
        for i, ids in enumerate(chunks):
            logits[i] = text_logits(opened, ids)
        (stored / "answers.json").write_text(json.dumps([dataclasses.asdict(a) for a in answers]))
        return record
    reference = np.load(stored / "logits.npy", mmap_mode="r")
    rows = [row_scores(reference[i], text_logits(opened, ids), ids) for i, ids in enumerate(chunks)]
    values, errors = summarise({key: np.concatenate([r[key] for r in rows]) for key in rows[0]})
    expected = [decode(Answer, a) for a in json.loads((stored / "answers.json").read_text())]
    greedy, greedy_errors = agreement(expected, answers)
    return replace(record, values=values | greedy, errors=errors | greedy_errors)


def text_logits(opened: Opened, token_ids: Sequence[int]) -> Floats:
    """Logits [N, V] after every token of a text, in steps of the plan's size, on blocks of the idle engine."""
    assert not opened.engine.has_work
    opened.engine.reset_prefix_cache()
    most = opened.plan.schedule.max_step_tokens
    logits_NV = np.empty((len(token_ids), opened.plan.spec.vocab_size), np.float32)
    for start in range(0, len(token_ids), most):
        ids = token_ids[start : start + most]
        output = opened.executable.run(text_step(opened, ids, start))
        assert output.logits_RV is not None
        logits_NV[start : start + len(ids)] = output.logits_RV[: len(ids)]
    return logits_NV


def text_step(opened: Opened, ids: Sequence[int], start: int) -> StepBatch:
    """Tokens `start` and on of one sequence that owns the blocks 1, 2, ...; every row is sampled."""
    kv = opened.plan.kv
    count, end = len(ids), start + len(ids)
    positions_T = np.arange(start, end, dtype=np.int32)
    blocks_B = np.arange(1, -(-end // kv.block_size) + 1, dtype=np.int32)
    slots_T = (blocks_B[positions_T // kv.block_size] * kv.block_size + positions_T % kv.block_size).astype(np.int32)
    width = -(-opened.plan.schedule.max_model_len // kv.block_size)
    table_SB = np.zeros((1, width), np.int32)
    table_SB[0, : len(blocks_B)] = blocks_B
    return StepBatch(
        num_tokens=count,
        num_seqs=1,
        num_rows=count,
        token_ids_T=np.array(ids, np.int32),
        positions_T=positions_T,
        seq_starts_S1=np.array([0, count], np.int32),
        context_lens_S=np.array([end], np.int32),
        state_slots_S=np.zeros(1, np.int32),
        sample_rows_R=np.arange(count, dtype=np.int32),
        kv_slots_GT=tuple(slots_T.copy() for _ in kv.groups),
        block_tables_GSB=tuple(table_SB.copy() for _ in kv.groups),
        full_logits=True,
    )


def greedy_answer(opened: Opened, token_ids: Sequence[int], count: int) -> Answer:
    """The greedy continuation of a prompt, through the engine."""
    from fuseboard.execute.sampling_params import SamplingParams

    params = SamplingParams(max_tokens=count, temperature=0.0, ignore_eos=True, logprobs=2)
    opened.engine.add_request("answer", list(token_ids), params, want_text=False)
    tokens: list[int] = []
    margins: list[float] = []
    while opened.engine.has_work:
        for event in opened.engine.step():
            if event.error is not None:
                raise event.error
            if event.token_id is not None and event.logprobs is not None:
                tokens.append(event.token_id)
                (_, best), (_, second) = event.logprobs.top[:2]
                margins.append(best - second)
    return Answer(token_ids=tuple(tokens), margins=tuple(margins))


def log_softmax(logits_NV: Floats) -> NDArray[np.float64]:
    """Log-probabilities [N, V] in float64."""
    shifted_NV = logits_NV.astype(np.float64) - logits_NV.max(axis=1, keepdims=True)
    return np.asarray(shifted_NV - np.log(np.exp(shifted_NV).sum(axis=1, keepdims=True)))


def row_scores(reference_NV: Floats, other_NV: Floats, token_ids: Sequence[int]) -> dict[str, NDArray[np.float64]]:
    """By row: KL(reference || other) in nats, whether the best token is the same, and how much worse the next token's
    log-likelihood is (nan in the last row, which has none)."""
    kl, same, worse = [], [], []
    for begin in range(0, len(token_ids), RUN_LEN):
        rows = slice(begin, begin + RUN_LEN)
        p_NV, q_NV = log_softmax(reference_NV[rows]), log_softmax(other_NV[rows])
        kl.append(np.maximum((np.exp(p_NV) * (p_NV - q_NV)).sum(axis=1), 0.0))
        same.append((p_NV.argmax(axis=1) == q_NV.argmax(axis=1)).astype(np.float64))
        targets = np.array([*token_ids[begin + 1 : begin + RUN_LEN + 1]], dtype=np.intp)
        of = np.arange(len(targets))
        gap = np.full(len(p_NV), np.nan)
        gap[of] = p_NV[of, targets] - q_NV[of, targets]
        worse.append(gap)
    return {"kl": np.concatenate(kl), "same": np.concatenate(same), "worse": np.concatenate(worse)}


STATISTICS: dict[str, Callable[[dict[str, NDArray[np.float64]]], float]] = {
    "kl_mean": lambda r: float(r["kl"].mean()),
    "kl_median": lambda r: float(np.median(r["kl"])),
    "kl_p99": lambda r: float(np.percentile(r["kl"], 99)),
    "kl_max": lambda r: float(r["kl"].max()),
    "perplexity_ratio": lambda r: float(np.exp(np.nanmean(r["worse"]))),
    "same_top_1": lambda r: float(r["same"].mean()),
}


def summarise(rows: dict[str, NDArray[np.float64]]) -> tuple[dict[str, float], dict[str, float]]:
    """The statistics of all rows and their standard errors, by resampling runs of rows."""
    values = {key: of(rows) for key, of in STATISTICS.items()}
    n = len(rows["kl"]) // RUN_LEN * RUN_LEN
    runs = {key: row[:n].reshape(-1, RUN_LEN) for key, row in rows.items()}
    rng = np.random.default_rng(0)
    draws: dict[str, list[float]] = {key: [] for key in STATISTICS}
    for _ in range(RESAMPLES):
        chosen_C = rng.integers(n // RUN_LEN, size=n // RUN_LEN)
        sample = {key: run[chosen_C].ravel() for key, run in runs.items()}
        for key, of in STATISTICS.items():
            draws[key].append(of(sample))
    return values, {key: float(np.std(drawn, ddof=1)) for key, drawn in draws.items()}


def agreement(expected: Sequence[Answer], found: Sequence[Answer]) -> tuple[dict[str, float], dict[str, float]]:
    """Greedy agreement: the share of tokens before the first difference, its mean place, and the largest gap between
    the baseline's two best logits at a first difference (0 where there is none)."""
    places = [first_difference(e.token_ids, f.token_ids) for e, f in zip(expected, found, strict=True)]
    lengths = [len(e.token_ids) for e in expected]
    shares = np.array(places) / np.array(lengths)
    gaps = [e.margins[i] for e, i in zip(expected, places, strict=True) if i < len(e.margins)]
    root_n = len(places) ** 0.5
    values = {
        "greedy_agreement": float(shares.mean()),
        "first_divergence": float(np.mean(places)),
        "divergence_margin": max(gaps, default=0.0),
    }
    errors = {
        "greedy_agreement": float(shares.std(ddof=1) / root_n),
        "first_divergence": float(np.std(places, ddof=1) / root_n),
        "divergence_margin": float(np.std(gaps, ddof=1) / len(gaps) ** 0.5) if len(gaps) > 1 else 0.0,
    }
    return values, errors


def first_difference(a: Sequence[int], b: Sequence[int]) -> int:
    """Index of the first differing token; the length when there is none."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def main() -> None:
    """Entry of the child process."""
    out = private_stdout()
    spec = decode(QualitySpec, json.load(sys.stdin))
    try:
        record = run(spec)
    except (UserError, MemoryError) as error:
        record = _blank(spec, failure(error))
    answer(to_line(record), out)


if __name__ == "__main__":
    main()
