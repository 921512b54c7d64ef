"""A published report's ladder beside ours: claims, gains, product and total."""

import pytest

import simulated
from fuseboard.measure import studies
from fuseboard.measure.analysis import Analysis, analyse
from fuseboard.report import html, markdown, source, view

CELLS = ("one request", "a full cache")


@pytest.fixture(scope="module")
def report_a() -> Analysis:
    return analyse(simulated.study(studies.REPORT_A, cells=CELLS))


def test_steps_product_and_total(report_a: Analysis) -> None:
    rows = source.rows(report_a, CELLS[0])
    assert [len(row) for row in rows] == [len(source.COLUMNS)] * (len(studies.REPORT_A.steps) + 3)
    names, claims, measured = zip(*(row[:3] for row in rows), strict=True)
    assert names[0] == "before"
    assert names[-2:] == ("product of the steps", "total, before to after")
    assert claims[1:] == tuple(map(view.times, (1.6, 1.25, 1.15, 1.22, 1.6 * 1.25 * 1.15 * 1.22, 2.8)))
    assert measured[-1] == measured[-2] != "", "the fitted steps multiply to the fitted total"
    before, after = rows[0], rows[-1]
    assert float(before[3]) > float(after[3]), "seconds fall"
    assert float(before[4]) > float(after[4]), "TPOT falls"


def test_a_step_without_a_claim_says_so() -> None:
    rows = source.rows(analyse(simulated.study(studies.REPORT_B, cells=("batch 1",))), "batch 1")
    claims = {row[0]: row[1] for row in rows}
    assert claims["+ INT8 weights"] == "not stated"
    assert claims["+ graph mode and fusion"] == view.times(11.8 / 9.9)
    assert claims["total, before to after"] == view.times(22.3 / 9.2)


def test_the_pages_tell_it(report_a: Analysis) -> None:
    text = markdown.render(report_a)
    page = html.render(report_a)
    for words in ("As report-a tells it", "105 s to 37 s end to end", "product of the steps", "Sequences at once"):
        assert words in text
        assert words in page
    assert "weights=bf16 batching=continuous" in page


def test_other_experiments_have_no_such_section() -> None:
    analysis = analyse(simulated.experiment(["quick"]))
    assert source.rows(analysis, "4 at a time") == []
    assert "tells it" not in html.render(analysis)


def test_pairs_and_orders_are_told() -> None:
    analysis = analyse(simulated.experiment(["orders:3"]))
    assert "Worth of every step" in html.render(analysis)
    assert "; orders " in markdown.render(analysis)
    pairs = analyse(simulated.experiment(["pairs"], only=("graph", "attention")))
    assert "beyond the product" in html.render(pairs)
