"""Screenshots of the pages that users see first, on a screen and on a phone, in the light and in the dark.

The pictures are left in the folder of the variable SCREENSHOTS, for a person to look at them, or in a temporary one.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from matplotlib.image import imread

from tests.documented import VERDICTS
from tests.pages import validated
from tests.runs import fcfs_run
from tests.servers import chromium
from tests.servers.chromium import Chromium, Page
from tracebed.cli import demo as demo_module
from tracebed.cli import tracebed
from tracebed.validation.report import html as report

SITE = Path(__file__).resolve().parents[2] / "docs/_build/html/index.html"
SWEEP = """\
workloads: {drawn: {model: cirne, options: {jobs: 30, nodes: 16}}}
malleable: {shares: [0, 1]}
policies: [fcfs, easy, pref]
seeds: 3
plots:
  bars: {kind: bars, figures: [mean_wait_s, utilization]}
  lines: {kind: lines, figures: mean_response_s}
  ecdf: {kind: ecdf, figures: wait}
"""
needs_chromium = pytest.mark.skipif(
    chromium.PROGRAM is None, reason="no chromium to open the pages with (apt-get install chromium)"
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    with Chromium(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture(scope="module", params=["demo", "sweep", "docs"])
def seen(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """Return the name and the file of the page of the demo, of a sweep, or the home of the documentation."""
    folder = tmp_path_factory.mktemp("pages")
    if request.param == "demo":
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(demo_module, "SPEED", 60000)
            result = CliRunner().invoke(tracebed, ["demo", "--on", "emulated", "-o", str(folder / "demo")])
        assert result.exit_code in VERDICTS, result.output
        return "demo", folder / "demo/verdict/tracebed.html"
    if request.param == "sweep":
        (folder / "sweep.yaml").write_text(SWEEP)
        result = CliRunner().invoke(tracebed, ["experiment", str(folder / "sweep.yaml"), "-o", str(folder / "sims")])
        assert result.exit_code == 0, result.output
        return "sweep", folder / "sims/sweep/index.html"
    if not SITE.exists():
        pytest.skip("no site of the docs (tox -e docs)")
    return "docs", SITE


@pytest.mark.slow
@needs_chromium
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 375])
def test_a_page_fits_and_has_its_colors(
    seen: tuple[str, Path], width: int, dark: bool, browser: Chromium, tmp_path: Path
) -> None:
    """No page scrolls sideways; its background is dark in the dark; no picture is empty, and no error is reported."""
    name, path = seen
    page = Page(browser, path, width=width, dark=dark, phone=width < 500)
    assert page.run("document.documentElement.scrollWidth") <= width
    folder = Path(os.environ.get("SCREENSHOTS") or tmp_path)
    folder.mkdir(exist_ok=True)
    shot = page.picture(folder / f"{name}-{width}-{'dark' if dark else 'light'}.png")
    pixels = imread(io.BytesIO(shot.read_bytes()), format="png")[:, :, :3]
    assert bool(np.median(pixels) < 0.3) == dark
    pictures = page.run(
        "[...document.querySelectorAll('main figure svg, main figure canvas, img')].filter(e => e.checkVisibility())"
        ".map(e => { const r = e.getBoundingClientRect(); return [r.x, r.y + scrollY, r.width, r.height] })"
    )
    assert pictures
    for x, y, across, down in pictures:
        shown = pixels[int(y) : int(y + down), max(int(x), 0) : int(x + across)]
        assert shown.size == 0 or shown.std() > 0.01, (x, y, across, down)
    assert page.errors() == []
    page.close()


@pytest.fixture
def opened(browser: Chromium, tmp_path: Path) -> Iterator[Page]:
    """Open a report whose downloads go to `tmp_path`."""
    path = tmp_path / "report.html"
    path.write_text(report.render(validated(fcfs_run(30, seed=1), fcfs_run(30, seed=1, stretch=1.2, real=False))))
    browser.send("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    page = Page(browser, path)
    yield page
    assert page.errors() == []
    page.close()


@pytest.mark.slow
@needs_chromium
def test_a_figure_is_saved_from_its_page(opened: Page, tmp_path: Path) -> None:
    """As SVG and PNG of the width of a column, as CSV, and as PDF, which is the printed page with the figure alone."""
    buttons = "document.querySelectorAll('figure[data-name=queue] .save button')"
    assert opened.run(f"[...{buttons}].map(e => e.textContent).join(' ')") == "SVG PNG PDF SVG PNG PDF CSV"
    files = {0: "queue-1-column.svg", 1: "queue-1-column.png", 6: "queue.csv"}
    for number, file in files.items():
        opened.run(f"{buttons}[{number}].click()")
        opened.until((tmp_path / file).exists)
    svg = (tmp_path / "queue-1-column.svg").read_text()
    assert 'width="3.5in"' in svg and "var(" not in svg
    assert imread(tmp_path / "queue-1-column.png").shape[1] == 1050
    assert (tmp_path / "queue.csv").read_text().startswith("panel,series,x,y,x_end,y_end\n")
    opened.run("window.print = () => {}")
    opened.run(f"{buttons}[5].click()")
    opened.media("print")
    shown = "[...document.body.children].filter(e => e.checkVisibility()).map(e => e.className).join()"
    assert opened.run(shown) == "paper"
    opened.media("screen")
    opened.run("window.dispatchEvent(new Event('afterprint'))")
    assert opened.run("document.querySelector('.paper') === null && document.body.className === ''")


@pytest.mark.slow
@needs_chromium
def test_a_table_sorts_and_filters(opened: Page) -> None:
    """The first long table: its rows in order of a column, upside down, as they were; and those with a text."""
    table = "document.querySelector('.filter').nextElementSibling.querySelector('table')"
    rows = f"[...{table}.tBodies[0].rows].filter(r => !r.hidden)"
    column = f"{rows}.map(r => parseFloat(r.cells[1].textContent.replaceAll(',', '')))"
    click = f"{table}.tHead.rows[0].cells[1].click()"
    unsorted = opened.run(column)
    opened.run(click)
    known = [value for value in opened.run(column) if value is not None]
    assert known == sorted(known) != [value for value in unsorted if value is not None]
    opened.run(click)
    assert [value for value in opened.run(column) if value is not None] == known[::-1]
    opened.run(click)
    assert opened.run(column) == unsorted
    wanted = str(opened.run(f"{rows}[2].cells[0].textContent.trim()"))
    event = f"e.value = {json.dumps(wanted.upper())}; e.dispatchEvent(new Event('input'))"
    opened.run(f"(e => {{ {event} }})(document.querySelector('.filter'))")
    assert 0 < opened.run(f"{rows}.length") < len(unsorted)
    assert opened.run(f"{rows}.every(r => r.textContent.includes({json.dumps(wanted)}))")
