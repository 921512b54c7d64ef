"""The report looked at in a real browser: nothing on its console, every plot drawn, readable at every width."""

import html as html_text
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import simulated
import simulated_profiles
from fuseboard.measure.analysis import analyse
from fuseboard.report import html

pytestmark = pytest.mark.skipif(shutil.which("chromium") is None, reason="needs Chromium")

CELLS = ("one stream", "8 mixed streams")
BROWSER = (
    "chromium",
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--enable-logging=stderr",
    "--virtual-time-budget=10000",
    "--dump-dom",
)
PROBE = """
<script>
addEventListener("load", () => {
  document.querySelectorAll("details").forEach(d => { d.open = true; });
  const all = (what) => [...document.querySelectorAll(what)];
  const size = (box, least) => box.width > least || box.height > least;
  const drawn = (plot) => size(plot.getBoundingClientRect(), 50) &&
    [...plot.querySelectorAll("path")].some(path => size(path.getBBox(), 5));
  const width = document.documentElement.clientWidth;
  const outside = (e) => !e.closest(".scroll") && e.getBoundingClientRect().right > width + 1;
  const style = getComputedStyle(document.body);
  parent.postMessage(JSON.stringify({
    plots: all("svg").length,
    drawn: all("svg").filter(drawn).length,
    width: width,
    needed: document.documentElement.scrollWidth,
    outside: all("main *").filter(outside).map(e => e.tagName),
    small: all("td, th, p, li").filter(e => parseFloat(getComputedStyle(e).fontSize) < 11).length,
    ink: style.color,
    page: style.backgroundColor,
  }), "*");
});
</script>
"""
FRAME = """
<body style="margin:0">
<script>addEventListener("message", (event) => { document.body.dataset.found = event.data; });</script>
<iframe src="page.html" style="border:0; width:WIDTHpx; height:4000px"></iframe>
</body>
"""
"""A frame can be as narrow as a phone; a window of a headless browser cannot."""


@pytest.fixture(scope="module")
def page() -> str:
    lines = simulated.experiment(["ladder", "alone", "without"], cells=CELLS, idle=("fold_constants",))
    return html.render(analyse([*lines, *simulated_profiles.profiles(lines, CELLS)]))


def looked_at(page: str, folder: Path, *, width: int, dark: bool) -> dict[str, Any]:
    """What a browser makes of the page in a frame of that width; nothing may reach its console."""
    (folder / "page.html").write_text(page.replace("</body>", PROBE + "</body>"), encoding="utf-8")
    frame = folder / "frame.html"
    frame.write_text(FRAME.replace("WIDTH", str(width)), encoding="utf-8")
    words = [*BROWSER, f"--user-data-dir={folder / 'profile'}", f"--window-size={max(width, 500)},4000"]
    words += ["--force-dark-mode"] if dark else []
    done = subprocess.run([*words, frame.as_uri()], capture_output=True, text=True, timeout=120, check=True)
    assert not [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    match = re.search(r'data-found="([^"]*)"', done.stdout)
    assert match, done.stdout[-2000:]
    found: dict[str, Any] = json.loads(html_text.unescape(match[1]))
    return found


def brightness(color: str) -> float:
    """Mean of red, green and blue of a computed colour."""
    return sum(map(float, re.findall(r"[\d.]+", color)[:3])) / 3


@pytest.mark.parametrize(("width", "dark"), [(1200, False), (390, False), (1200, True)])
def test_the_report_is_drawn_and_readable(page: str, tmp_path: Path, width: int, dark: bool) -> None:
    found = looked_at(page, tmp_path, width=width, dark=dark)
    assert found["drawn"] == found["plots"] == page.count("<svg") > 8
    assert width - 20 <= found["width"] <= width
    assert found["needed"] <= found["width"], "only plots and tables scroll sideways, each in a box of its own"
    assert found["outside"] == []
    assert found["small"] == 0
    ink, paper = brightness(found["ink"]), brightness(found["page"])
    assert (ink > 200 and paper < 60) if dark else (ink < 60 and paper > 200)
