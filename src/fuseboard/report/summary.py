"""The findings as data: summary.json for programs, summary.csv for spreadsheets."""

import csv
import dataclasses
import io
import json
from typing import Any

from fuseboard.measure.analysis import Analysis, Finding, Gain
from fuseboard.measure.explained import Explanation, explained
from fuseboard.measure.metrics import METRICS
from fuseboard.report import profile, triage, view

SUMMARY_SCHEMA = 1
CSV_COLUMNS = (
    "kind", "comparison", "switches", "treatment", "reference", "cell", "metric", "verdict", "ratio", "low", "high",
    "p", "adjusted_p", "smallest_detectable", "engaged", "reason",
)  # fmt: skip


def as_dict(analysis: Analysis) -> dict[str, Any]:
    """Everything that was found, as plain JSON data; ratios above 1 are better."""
    design = analysis.design
    return {
        "schema": SUMMARY_SCHEMA,
        "model": design.model,
        "design": design.design,
        "blocks": design.blocks,
        "complete": analysis.complete,
        "workload": design.workload,
        "machine": dataclasses.asdict(design.machine),
        "digests": {"workload": design.workload_digest, "code": design.code_digest},
        "warnings": list(analysis.warnings),
        "method": view.method(analysis),
        "arms": [
            {
                "name": arm.name,
                "switches": arm.switches,
                "medians": {c: {m.key: analysis.median(arm.name, c, m) for m in METRICS} for c in analysis.cells},
            }
            for arm in design.arms
        ],
        "comparisons": [_comparison(analysis, finding) for finding in analysis.findings],
        "predictor": profile.predictor_sentence(analysis) or None,
        "quality": [
            {"arm": q.arm, "values": q.values, "standard_errors": q.errors, "tokens": q.tokens}
            for q in analysis.quality
            if q.error is None
        ],
    }


def _comparison(analysis: Analysis, finding: Finding) -> dict[str, Any]:
    return dataclasses.asdict(finding.comparison) | {
        "problem": finding.problem,
        "reason": finding.reason,
        "engaged": finding.engaged,
        "weights": finding.comparison.weights,
        "gains": [_gain(gain) for gain in finding.gains],
        "triage": {cell: why for cell in analysis.cells if (why := triage.sentence(analysis, finding, cell))},
        "explained": [_explained(e) for cell in analysis.cells if (e := explained(analysis, finding, cell))],
    }


def _explained(found: Explanation) -> dict[str, Any]:
    """The operators' part of a gain; `predictor_error` is the logarithm of the predicted over the measured ratio."""
    return {
        "cell": found.cell,
        "operators_ratio": found.measured,
        "predicted_ratio": found.predicted,
        "predictor_error": found.error,
        "changes": [dataclasses.asdict(change) for change in found.changes],
    }


def _gain(gain: Gain) -> dict[str, Any]:
    return {
        "cell": gain.cell,
        "metric": gain.metric.key,
        "verdict": gain.verdict,
        "log_ratio": gain.estimate.gain,
        "ratio": gain.estimate.ratio,
        "low": view.ratio_of(gain.estimate.low),
        "high": view.ratio_of(gain.estimate.high),
        "p": gain.estimate.p,
        "adjusted_p": gain.adjusted_p,
        "orders": [view.ratio_of(g) for g in gain.spread] if gain.spread else None,
        "smallest_detectable": None if gain.detectable != gain.detectable else view.ratio_of(gain.detectable),
    }


def to_json(analysis: Analysis) -> str:
    return json.dumps(as_dict(analysis), indent=2) + "\n"


def to_csv(analysis: Analysis) -> str:
    """One line for each comparison, cell and metric."""
    text = io.StringIO()
    writer = csv.DictWriter(text, CSV_COLUMNS)
    writer.writeheader()
    for finding in analysis.findings:
        compared = finding.comparison
        fixed = {
            "kind": compared.kind,
            "comparison": compared.name,
            "switches": " ".join(compared.switches),
            "treatment": compared.treatment,
            "reference": compared.reference,
            "engaged": view.engaged(finding),
            "reason": finding.reason,
        }
        for gain in map(_gain, finding.gains):
            verdict = finding.problem or gain["verdict"]
            writer.writerow(fixed | {k: v for k, v in gain.items() if k in CSV_COLUMNS} | {"verdict": verdict})
        if not finding.gains:
            writer.writerow(fixed | {"verdict": finding.problem})
    return text.getvalue()
