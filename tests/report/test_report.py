"""The report's files from simulated records: complete, self-contained, and saying what was found."""

import csv
import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from rich.console import Console

import simulated
from fuseboard.measure import record
from fuseboard.measure.analysis import Analysis, analyse
from fuseboard.report import html, markdown, summary, view
from fuseboard.report.write import write_report

CELLS = ("one stream", "8 mixed streams")


@pytest.fixture(scope="module")
def quick() -> Analysis:
    return analyse(simulated.experiment(["quick"]))


@pytest.fixture(scope="module")
def full() -> Analysis:
    lines = simulated.experiment(["alone", "ladder", "without"], blocks=3, cells=CELLS, idle=("fold_constants",))
    return analyse(lines)


@pytest.fixture(scope="module")
def full_page(full: Analysis) -> str:
    return html.render(full)


class Page(HTMLParser):
    """Tags that are open, ids, links and plots of a page."""

    VOID = frozenset({"meta", "br", "hr", "link", "img", "input", "use", "path"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.plots = 0
        self.text: list[str] = []
        self.stack: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if given.get("id"):
            self.ids.append(str(given["id"]))
        self.links += [str(given[k]) for k in ("src", "href", "xlink:href") if given.get(k)]
        self.plots += tag == "svg"
        if tag not in self.VOID:
            self.stack.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.stack.pop()

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.stack.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def test_the_page_is_whole_and_needs_nothing_else(full_page: str) -> None:
    text = full_page
    page = Page(text)
    assert page.stack == []
    assert len(page.ids) == len(set(page.ids)), "plots must not share ids"
    assert all(link.startswith("#") and link[1:] in page.ids for link in page.links)
    assert "<script" not in text
    assert not re.search(r"@import|url\((?!#)", text)
    assert page.plots == 2 * 3 + 2, "ladder, gains, latency for both cells; quality for the first; memory"


def test_plots_take_their_colours_from_the_page(quick: Analysis) -> None:
    text = html.render(quick)
    plots = "".join(re.findall(r"<svg.*?</svg>", text, flags=re.DOTALL))
    assert "var(--good)" in plots
    assert "var(--ink)" in plots
    assert not re.search(r"#[0-9a-f]{6}\b", plots)
    variables = set(re.findall(r"var\(--(\w+)\)", plots))
    defined = set(re.findall(r"--(\w+):", text))
    assert variables <= defined


def test_the_page_says_what_was_found(full_page: str) -> None:
    text = " ".join(Page(full_page).text)
    for expected in (
        "simulated-135m", "one stream", "8 mixed streams", "faster", "slower", "equivalent", "not engaged",
        "fold_constants did not engage", "prefix_cache", "smallest gain this run finds", "python and libraries",
    ):  # fmt: skip
        assert expected in text, expected


def test_names_are_escaped() -> None:
    lines = simulated.experiment(["quick"])
    lines[0] = simulated.make_design(["quick"], 3, workload="<b>&", notes=("<script>x</script>",))
    text = html.render(analyse(lines))
    assert "<script" not in text
    assert "&lt;b&gt;&amp;" in text


def test_an_empty_run_still_gives_a_page() -> None:
    analysis = analyse(simulated.experiment(["quick"])[:1])
    page = Page(html.render(analysis))
    assert "stopped early" in " ".join(page.text)
    assert markdown.render(analysis).startswith("# simulated-135m")


def test_markdown_tables_are_well_formed(full: Analysis) -> None:
    text = markdown.render(full)
    for block in re.findall(r"(?:^\|.*\|\n)+", text, flags=re.MULTILINE):
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}) == 1
    assert "| weights=native |" in text
    assert "| not engaged |" in text


def test_summary_json_holds_the_estimates(quick: Analysis) -> None:
    data = json.loads(summary.to_json(quick))
    (total,) = [c for c in data["comparisons"] if c["kind"] == "total"]
    gain = next(g for g in total["gains"] if g["metric"] == "duration")
    planted = 1.0
    for name in simulated.PROFILE:
        planted *= simulated.SPEED.get(name, 1.0)
    assert gain["low"] < planted < gain["high"]
    assert gain["verdict"] == "faster"
    assert data["complete"]
    assert {q["arm"] for q in data["quality"]} == set(quick.design.quality_arms[1:])
    off = next(arm for arm in data["arms"] if arm["name"] == "all off")
    assert off["medians"]["4 at a time"]["tpot"] == pytest.approx(30, rel=0.2)


def test_csv_has_a_line_for_each_metric(quick: Analysis) -> None:
    rows = list(csv.DictReader(io.StringIO(summary.to_csv(quick))))
    ladder = [row for row in rows if row["kind"] == "ladder" and row["metric"] == "duration"]
    assert len(ladder) == 6
    assert all(float(row["low"]) < float(row["ratio"]) < float(row["high"]) for row in rows if row["ratio"])


def test_the_terminal_table(quick: Analysis) -> None:
    out = io.StringIO()
    markdown.print_summary(quick, Console(file=out, width=100))
    assert "+ weights" in out.getvalue()
    assert "A/A" in out.getvalue()


def test_all_files_are_written_from_records_alone(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    for line in simulated.experiment(["quick"], blocks=2):
        record.append(path, line)
    write_report(path)
    written = {p.name for p in tmp_path.iterdir()}
    assert written == {"records.jsonl", "summary.json", "summary.csv", "report.md", "report.html"}


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.0, "0"), (None, "n/a"), (12345.6, "12,346"), (1.2345, "1.23"), (0.01234, "0.0123"), (1.5e-6, "1.50e-06")],
)
def test_numbers(value: float | None, shown: str) -> None:
    assert view.number(value) == shown
