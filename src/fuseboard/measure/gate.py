"""The quality gate: which answers count as the baseline's, by the class of what an arm changed."""

from collections.abc import Mapping

from fuseboard.measure.record import QualityRecord
from fuseboard.plan.switches import BY_NAME

TIES_KL = 1e-4
"""Mean distance (nats) that reordered sums may bring; what they really bring is thousands of times less."""


def answer_key(switches: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """The settings that may change an answer: arms that agree in them share one quality run."""
    return tuple(sorted((k, v) for k, v in switches.items() if BY_NAME[k].kind != "exact"))


def fault(record: QualityRecord, switches: Mapping[str, str], max_kl: float) -> str:
    """Why an arm's answers do not pass, or an empty string. Arms with a lossy row may be `max_kl` away in the mean,
    others only as far as rounding goes."""
    if record.error is not None:
        return ""
    lossy = any(BY_NAME[name].kind == "lossy" for name in switches)
    limit = max_kl if lossy else TIES_KL
    found = record.values["kl_mean"]
    if found <= limit:
        return ""
    return f"the answers are {found:.2g} nats (mean KL) from the baseline's, more than {limit:g}"
