"""Reports from records; nothing here runs a model."""

from fuseboard.report.markdown import print_summary
from fuseboard.report.write import read_analysis, write_report

__all__ = ["print_summary", "read_analysis", "write_report"]
