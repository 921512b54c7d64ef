"""Writes the report's files beside the records. Nothing here runs a model."""

from pathlib import Path

from fuseboard.load.atomic import write_atomic
from fuseboard.measure import record
from fuseboard.measure.analysis import Analysis, analyse
from fuseboard.report import html, markdown, summary


def read_analysis(records: Path) -> Analysis:
    """The analysis of a record file."""
    return analyse(record.read(records))


def write_report(records: Path) -> Analysis:
    """Write summary.json, summary.csv, report.md and report.html beside `records`; each file appears whole."""
    analysis = read_analysis(records)
    folder = records.parent
    files = {
        "summary.json": summary.to_json(analysis),
        "summary.csv": summary.to_csv(analysis),
        "report.md": markdown.render(analysis),
        "report.html": html.render(analysis),
    }
    for name, text in files.items():
        write_atomic(folder / name, text.encode())
    return analysis
