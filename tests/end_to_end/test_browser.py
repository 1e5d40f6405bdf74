"""The interactive charts of the report in headless Chromium, and the encoding of their data."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import matplotlib.image
import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from tests.documented import VERDICTS
from tests.pages import validated, without_pictures
from tests.runs import NAN, fcfs_run, large_run, lending_run, make_run
from tests.servers import chromium
from tests.servers.chromium import Chromium, Page
from tracebed.cli import demo as demo_module
from tracebed.cli import tracebed
from tracebed.validation.report import html as report
from tracebed.validation.report import interactive
from tracebed.validation.report.interactive import ALWAYS, FOLDER, SCRIPTS, PackedColumn
from tracebed.validation.verdict import Comparison, compare
from tracebed.validation.verdict.cases import Case
from tracebed.validation.verdict.validate import validate

ROOT = Path(__file__).resolve().parents[2]
EVIL = "<img src=x onerror=alert(1)>"
CHARTS = ("gantt", "utilization", "queue", "differences", "scatter")
needs_chromium = pytest.mark.skipif(
    chromium.PROGRAM is None, reason="no chromium to open the report with (apt-get install chromium)"
)


def unpacked(text: str) -> dict[str, Any]:
    """Return the facts and columns of `interactive.pack`, as columns.js decodes them."""
    raw = zlib.decompress(base64.b64decode(text))
    start = 4 + int.from_bytes(raw[:4], "little")
    found = json.loads(raw[4:start])
    for name, length, base, rows in found["columns"]:
        planes = np.frombuffer(raw, np.uint8, 4 * length, start).reshape(4, length).astype(np.uint32)
        zigzag = sum((planes[n] << (8 * n) for n in range(4)), np.zeros(length, np.uint32))
        steps = (zigzag >> 1).astype(np.int32) ^ -(zigzag & 1).astype(np.int32)
        found[name] = np.cumsum(steps, dtype=np.int32)
        if base:
            added = found[base][found[rows]] if rows else found[base]
            found[name] += np.where((found[name] == interactive.MISSING) | (added == interactive.MISSING), 0, added)
        start += 4 * length
    assert start == len(raw)
    return found


TIMES = st.integers(0, 2**30) | st.just(interactive.MISSING)


@given(st.lists(st.tuples(st.integers(-(2**31), 2**31 - 1), TIMES, TIMES)))
def test_columns_survive_their_encoding(rows: list[tuple[int, int, int]]) -> None:
    x, y, z = (np.array([row[n] for row in rows], dtype=np.int32) for n in range(3))
    order = np.arange(len(rows))[::-1]
    packed = {
        "x": PackedColumn(x),
        "y": PackedColumn(y),
        "rows": PackedColumn(order),
        "z": PackedColumn(z, "y"),
        "w": PackedColumn(z, "y", "rows"),
    }
    found = unpacked(interactive.pack({"a": "ä"}, packed))
    assert found["a"] == "ä"
    assert {name: found[name].tolist() for name in packed} == {name: c.values.tolist() for name, c in packed.items()}


def test_missing_times_are_marked() -> None:
    assert interactive.ticks(np.array([0.0, NAN, 1.2345]), 0.001).tolist() == [0, interactive.MISSING, 1234]


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    """Two runs of 300 jobs on 16 nodes; the prediction is 2 % slower. The last job never ends and has a hostile id."""
    ids = [f"job-{n + 1}" for n in range(299)] + [EVIL]
    runs = [fcfs_run(300, stretch=stretch, real=real, ids=ids) for real, stretch in ((True, 1.0), (False, 1.02))]
    for run in runs:
        run.jobs["user"] = EVIL
    return compare(*runs)


def test_the_data_have_all_jobs_and_bars(comparison: Comparison) -> None:
    found = unpacked(interactive.chart_data(comparison))
    real = comparison.real.jobs
    assert found["ids"] == real["job_id"].tolist()
    for name in ("submit", "start", "end"):
        expected = real[name] - real["submit"].min()
        assert found[f"{name}_real"] * found["tick"] == pytest.approx(expected.to_numpy(), abs=0.001)
    held = comparison.predicted.allocations
    sizes = found["bar_high_predicted"] - found["bar_low_predicted"] + 1
    area = sizes @ ((found["bar_end_predicted"] - found["bar_start_predicted"]) * found["tick"])
    assert area == pytest.approx(((held["end"] - held["start"]) * held["count"]).sum(), rel=1e-5)
    assert np.all(np.diff(found["bar_start_real"]) >= 0)  # searched by bisection
    assert found["user_names"] == [EVIL]
    assert found["omitted"] == [0, 0]


def test_the_data_have_the_parts_of_shared_nodes() -> None:
    found = unpacked(interactive.chart_data(compare(lending_run(), lending_run(real=False))))
    bars = zip(*(found[f"bar_{name}_real"] for name in ("job", "low", "high", "upper", "lower")), strict=True)
    assert {tuple(map(int, bar)) for bar in bars} == {
        *[(0, 0, 1, 0, 1000), (0, 0, 0, 0, 750), (0, 1, 1, 0, 750)],
        *[(1, 0, 0, 750, 1000), (1, 1, 1, 750, 1000)],
    }
    assert found["parts"] == 1000


def test_the_smallest_bars_and_steps_are_omitted(comparison: Comparison, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = unpacked(interactive.chart_data(comparison))
    monkeypatch.setattr(interactive, "BARS", 100)
    monkeypatch.setattr(interactive, "STEPS", 50)
    found = unpacked(interactive.chart_data(comparison))
    assert len(found["bar_job_real"]) == 100
    assert found["omitted"][0] == len(whole["bar_job_real"]) - 100
    assert len(found["queue_real"]) == 26

    def areas(each: dict[str, Any]) -> np.ndarray:
        sizes = each["bar_high_real"] - each["bar_low_real"] + 1
        return np.sort(sizes * (each["bar_end_real"] - each["bar_start_real"]))

    assert areas(found).tolist() == areas(whole)[-100:].tolist()


def test_a_job_that_is_missing_in_one_run_is_in_the_data() -> None:
    real = make_run([(0.0, 0.0, 5.0, 1), (1.0, NAN, NAN, 1)])
    predicted = make_run([(0.0, 0.0, 6.0, 1), (2.0, 6.0, 8.0, 1)], real=False, ids=["1", "3"])
    found = unpacked(interactive.chart_data(compare(real, predicted)))
    assert found["ids"] == ["1", "2", "3"]
    assert found["start_real"].tolist() == [0, interactive.MISSING, interactive.MISSING]
    assert found["end_predicted"].tolist() == [6000, interactive.MISSING, 8000]


def test_the_policy_of_the_page_allows_its_script_only(file: Path) -> None:
    page = file.read_text(encoding="utf-8")
    policy = re.findall(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)">', page)[0].replace("&#39;", "'")
    (script,) = re.findall(r"(?s)<script>(.*?)</script>", page)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy
    assert "Permission is hereby granted, free of charge" in script  # the license of the library


def test_every_script_is_in_the_page() -> None:
    assert sorted([*ALWAYS, *SCRIPTS]) == sorted(path.name for path in FOLDER.glob("*.js"))


def test_the_documented_version_of_the_library_is_the_shipped_one() -> None:
    version = re.search(r"uPlot \(v([\d.]+)\)", (FOLDER / "uplot" / "uPlot.iife.min.js").read_text(encoding="utf-8"))
    assert version
    assert f"| uPlot {version[1]} (MIT) |" in (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8")


# --- in the browser


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    with Chromium(tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture(scope="module")
def file(comparison: Comparison, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return report.write(
        validated(comparison.real, comparison.predicted), tmp_path_factory.mktemp("report") / "report.html"
    )


@pytest.fixture
def opened(browser: Chromium, file: Path) -> Iterator[Callable[..., Page]]:
    """Return a function that opens the report. At the end of the test, no page has shown an error."""
    pages: list[Page] = []

    def open_page(path: Path = file, **options: Any) -> Page:
        page = Page(browser, path, **options)
        pages.append(page)
        if options.get("script", True):
            page.wait_for("document.documentElement.dataset.charts === 'ready'")
        return page

    yield open_page
    for page in pages:
        assert page.errors() == []
        page.close()


def text(page: Page, selector: str) -> str:
    return str(page.run(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"))


def shown(page: Page, selector: str) -> bool:
    """Return whether an element is displayed (also when script is disabled in the page)."""
    return bool(
        page.run(f"[...document.querySelectorAll({json.dumps(selector)})].some(e => e.getClientRects().length)")
    )


def middle(page: Page, selector: str) -> tuple[float, float]:
    """Return the center of an element after scrolling to it, CSS pixels."""
    page.run(f"document.querySelector({json.dumps(selector)}).scrollIntoView({{block: 'center'}})")
    box = f"document.querySelector({json.dumps(selector)}).getBoundingClientRect()"
    found = page.run(f"(({{x, y, width, height}}) => [x + width / 2, y + height / 2])({box})")
    return found[0], found[1]


def search(page: Page, words: str) -> None:
    page.run("document.querySelector('.toolbar input').focus(), document.querySelector('.toolbar input').select()")
    page.type(words)
    page.key("Enter", "\r")


def painted(page: Page, selector: str) -> str:
    """Return the content of a canvas as a PNG image."""
    return str(page.run(f"document.querySelector({json.dumps(selector)}).toDataURL()"))


def settled(page: Page) -> None:
    """Wait for two frames: a change is drawn in the next one."""
    page.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")


GANTT = "[data-chart=gantt] .u-over"
GANTT_PIXELS = "[data-chart=gantt] canvas"


@needs_chromium
def test_charts_replace_the_figures(opened: Callable[..., Page]) -> None:
    page = opened()
    for name in CHARTS:
        assert shown(page, f"[data-chart={name}] canvas")
        assert not shown(page, f"[data-chart={name}] > .wide, [data-chart={name}] > .narrow")
    assert page.run("document.querySelectorAll('[data-chart=gantt] canvas').length") == 2
    assert page.run("[typeof uPlot, typeof State, typeof SIDES]") == ["undefined"] * 3


@needs_chromium
def test_a_search_finds_a_job(opened: Callable[..., Page]) -> None:
    page = opened()
    before = painted(page, GANTT_PIXELS)
    search(page, "job-123")
    page.wait_for("document.querySelector('.card').innerText.includes('job-123')")
    settled(page)
    top = page.run("document.querySelector('[data-chart=gantt] .panel').getBoundingClientRect().top")
    assert 0 < top < 900  # the chart is in the window
    assert "response" in text(page, ".card")
    assert text(page, ".range") != ""
    assert painted(page, GANTT_PIXELS) != before
    search(page, "job-29")
    page.wait_for("document.querySelector('.card strong').innerText === 'job job-29'")
    search(page, "job-1234")
    assert text(page, "output") == "no job job-1234"
    settled(page)
    assert text(page, ".card") == ""


@needs_chromium
def test_a_search_steps_through_the_ids_with_the_same_start(opened: Callable[..., Page]) -> None:
    page = opened()
    for place in (1, 2):
        search(page, "job-")
        assert text(page, "output") == f"{place} of 299 ids with this start"
        settled(page)
        assert text(page, ".card strong") == f"job job-{place}"


@needs_chromium
def test_the_charts_name_the_repetition(opened: Callable[..., Page], tmp_path: Path) -> None:
    real = [fcfs_run(20, stretch=stretch) for stretch in (0.9, 1.0, 1.1)]
    case = Case.of(real, [fcfs_run(20, real=False)])
    with without_pictures():
        page = opened(report.write(validate([case]), tmp_path / "report.html"))
    assert re.fullmatch(r"real: .*2, one of 3 repetitions", text(page, ".toolbar span.message"))


@needs_chromium
def test_names_of_users_are_text_in_the_charts(opened: Callable[..., Page]) -> None:
    page = opened()
    search(page, EVIL)
    page.wait_for("document.querySelector('.card strong')")
    assert text(page, ".card strong") == f"job {EVIL}"
    assert page.run("document.querySelectorAll('img').length") == 0


@needs_chromium
def test_keys_wheel_and_mouse_change_the_visible_range(opened: Callable[..., Page]) -> None:
    page = opened()
    x, y = middle(page, GANTT)

    def changed(act: Callable[[], None]) -> bool:
        before = text(page, ".range"), painted(page, GANTT_PIXELS)
        act()
        settled(page)
        return bool((text(page, ".range"), painted(page, GANTT_PIXELS)) != before)

    def drag(down: float = 3, **more: Any) -> None:
        page.mouse("Pressed", x, y, button="left", clickCount=1, **more)
        page.mouse("Moved", x + 100, y + down, button="left", **more)
        page.mouse("Moved", x + 200, y + down, button="left", **more)
        page.mouse("Released", x + 200, y + down, button="left", clickCount=1, **more)

    def wheel(**more: Any) -> None:
        page.mouse("Wheel", x, y, deltaX=0, deltaY=-300, **more)

    assert not changed(wheel)  # without the focus, the wheel scrolls the page
    x, y = middle(page, GANTT)
    page.run("document.querySelector('[data-chart=gantt] .panel').focus({preventScroll: true})")
    for key in ("+", "ArrowRight", "ArrowLeft", "-"):
        assert changed(lambda key=key: page.key(key, key if len(key) == 1 else "")), key
    page.key("0", "0")
    settled(page)
    assert text(page, ".range") == ""
    assert changed(wheel)
    assert changed(drag)
    assert changed(lambda: drag(modifiers=8))  # Shift: pan
    page.key("0", "0")
    settled(page)
    assert changed(lambda: drag(down=80))  # nodes, too
    page.key("0", "0")
    settled(page)
    assert text(page, ".range") == ""


@needs_chromium
def test_fingers_pan_and_zoom(opened: Callable[..., Page]) -> None:
    page = opened(width=375, height=700, phone=True)
    x, y = middle(page, GANTT)

    def touch(kind: str, *places: float) -> None:
        points = [{"x": place, "y": y, "id": n} for n, place in enumerate(places)]
        page.send("Input.dispatchTouchEvent", type=f"touch{kind}", touchPoints=points)

    touch("Start", x - 30, x + 30)
    touch("Move", x - 60, x + 60)
    touch("Move", x - 90, x + 90)
    touch("End")
    settled(page)
    pinched = text(page, ".range")
    assert pinched != ""
    touch("Start", x)
    for step in (20, 40, 60):
        touch("Move", x + step)
    touch("End")
    settled(page)
    assert text(page, ".range") not in ("", pinched)


@needs_chromium
def test_the_pointer_shows_the_facts_of_a_job(opened: Callable[..., Page], comparison: Comparison) -> None:
    page = opened()
    assert not shown(page, ".tooltip")
    x, y = middle(page, GANTT)
    page.mouse("Moved", x, y)
    page.wait_for("!document.querySelector('.tooltip').hidden")
    job = re.match(r"job (\S+)", text(page, ".tooltip"))
    assert job
    row = comparison.real.jobs.set_index("job_id").loc[job[1]]
    assert f"{row['start'] - comparison.real.jobs['submit'].min():,.1f}".rstrip("0").rstrip(".") in text(
        page, ".tooltip"
    )
    for kind in ("Pressed", "Released"):
        page.mouse(kind, x, y, button="left", clickCount=1)
    settled(page)
    assert f"job {job[1]}" in text(page, ".card")
    x, y = middle(page, "[data-chart=utilization] .u-over")
    page.mouse("Moved", x, y)
    page.wait_for("/real: [\\d.]+ %/.test(document.querySelector('.tooltip').innerText)")
    page.mouse("Moved", 2, 2)
    assert not shown(page, ".tooltip")


@needs_chromium
@pytest.mark.parametrize("width", [375, 1280])
def test_without_script_the_figures_are_visible(opened: Callable[..., Page], width: int) -> None:
    page = opened(script=False, width=width)
    page.send("Emulation.setScriptExecutionDisabled", value=False)  # allows the inspection, and starts no script
    for name in CHARTS:
        assert shown(page, f"[data-chart={name}] > .{'wide' if width > 640 else 'narrow'} svg")
    assert not shown(page, ".toolbar, canvas")


@needs_chromium
def test_a_browser_that_cannot_decompress_shows_the_figures(browser: Chromium, file: Path) -> None:
    page = Page(browser, file, first="delete window.DecompressionStream")
    page.until(lambda: len(page.errors()) > 0)
    assert "DecompressionStream" in json.dumps(page.errors())
    for name in CHARTS:
        assert shown(page, f"[data-chart={name}] > .wide svg")
    assert not shown(page, ".toolbar, canvas")
    page.close()


@needs_chromium
def test_a_phone_shows_the_page_without_horizontal_scrolling(opened: Callable[..., Page]) -> None:
    page = opened(width=375, height=700, phone=True)
    search(page, "job-7")
    page.wait_for("document.querySelector('.card').innerText.includes('job-7')")
    assert page.run("document.documentElement.scrollWidth") <= 375
    assert page.run("Math.max(...[...document.querySelectorAll('.panel')].map(e => e.scrollWidth))") <= 375


@needs_chromium
def test_the_charts_follow_dark_mode(opened: Callable[..., Page]) -> None:
    page = opened()
    light = painted(page, GANTT_PIXELS)
    page.media("screen", dark=True)
    settled(page)
    page.until(lambda: painted(page, GANTT_PIXELS) != light)
    assert page.run("getComputedStyle(document.body).backgroundColor") == "rgb(21, 24, 28)"
    dark = opened(dark=True)
    assert painted(dark, GANTT_PIXELS) == painted(page, GANTT_PIXELS)


@needs_chromium
@pytest.mark.parametrize("width", [375, 1280])
def test_a_picture_of_the_page_in_the_dark_has_no_light_areas(
    opened: Callable[..., Page], tmp_path: Path, width: int
) -> None:
    for dark in (False, True):
        page = opened(width=width, dark=dark, phone=width == 375)
        assert page.run("document.documentElement.scrollWidth") <= width
        pixels = matplotlib.image.imread(page.picture(tmp_path / f"page-{width}-{dark}.png"))[..., :3].mean(axis=-1)
        light = float((pixels > 0.8).mean())
        assert light < 0.05 if dark else light > 0.7


@needs_chromium
def test_print_shows_the_figures(opened: Callable[..., Page]) -> None:
    page = opened()
    page.media("print")
    for name in CHARTS:
        assert shown(page, f"[data-chart={name}] > .wide svg")
    assert not shown(page, ".charts, .toolbar, .tooltip")


@pytest.mark.slow
@needs_chromium
def test_runs_without_allocations_are_drawn_by_job(opened: Callable[..., Page], tmp_path: Path) -> None:
    runs = [fcfs_run(300, stretch=stretch, real=real) for real, stretch in ((True, 1.0), (False, 1.02))]
    runs[0].allocations = runs[0].allocations.iloc[:0]
    page = opened(report.write(validated(*runs), tmp_path / "report.html"))
    search(page, "77")
    page.wait_for("document.querySelector('.card').innerText.includes('job 77')")
    labels = page.run("[...document.querySelectorAll('.panel')].slice(0, 2).map(each => each.ariaLabel.split('. ')[0])")
    assert labels == ["Gantt chart, real, by job", "Gantt chart, predicted, by node"]


@needs_chromium
@pytest.mark.slow
def test_a_report_of_200_000_jobs_opens(opened: Callable[..., Page], tmp_path: Path) -> None:
    """The page has less than 10 MB and opens; `tox -e bench` measures the time."""
    found = validated(large_run(200_000, real=True, noise=0.02), large_run(200_000, real=False))
    path = report.write(found, tmp_path / "report.html")
    assert path.stat().st_size < 10_000_000
    page = opened(path)
    search(page, "123456")
    page.wait_for("document.querySelector('.card').innerText.includes('job 123456')")
    assert page.run("document.querySelectorAll('.charts *').length") < 1000


# -- pages that users see first, on a screen and on a phone, in the light and in the dark ------------------------------

SITE = ROOT / "docs/_build/html/index.html"
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
    """No page scrolls sideways; its background is dark in the dark; no picture is empty, and no error is reported.

    The pictures are left in the folder of the variable SCREENSHOTS, for a person to look at them.
    """
    name, path = seen
    page = Page(browser, path, width=width, dark=dark, phone=width < 500)
    assert page.run("document.documentElement.scrollWidth") <= width
    folder = Path(os.environ.get("SCREENSHOTS") or tmp_path)
    folder.mkdir(exist_ok=True)
    shot = page.picture(folder / f"{name}-{width}-{'dark' if dark else 'light'}.png")
    pixels = matplotlib.image.imread(io.BytesIO(shot.read_bytes()), format="png")[:, :, :3]
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
def saving(browser: Chromium, tmp_path: Path) -> Iterator[Page]:
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
def test_a_figure_is_saved_from_its_page(saving: Page, tmp_path: Path) -> None:
    """As SVG and PNG of the width of a column, as CSV, and as PDF, which is the printed page with the figure alone."""
    buttons = "document.querySelectorAll('figure[data-name=queue] .save button')"
    assert saving.run(f"[...{buttons}].map(e => e.textContent).join(' ')") == "SVG PNG PDF SVG PNG PDF CSV"
    files = {0: "queue-1-column.svg", 1: "queue-1-column.png", 6: "queue.csv"}
    for number, file in files.items():
        saving.run(f"{buttons}[{number}].click()")
        saving.until((tmp_path / file).exists)
    svg = (tmp_path / "queue-1-column.svg").read_text()
    assert 'width="3.5in"' in svg and "var(" not in svg
    assert matplotlib.image.imread(tmp_path / "queue-1-column.png").shape[1] == 1050
    assert (tmp_path / "queue.csv").read_text().startswith("panel,series,x,y,x_end,y_end\n")
    saving.run("window.print = () => {}")
    saving.run(f"{buttons}[5].click()")
    saving.media("print")
    shown = "[...document.body.children].filter(e => e.checkVisibility()).map(e => e.className).join()"
    assert saving.run(shown) == "paper"
    saving.media("screen")
    saving.run("window.dispatchEvent(new Event('afterprint'))")
    assert saving.run("document.querySelector('.paper') === null && document.body.className === ''")


@pytest.mark.slow
@needs_chromium
def test_a_table_sorts_and_filters(saving: Page) -> None:
    """The first long table: its rows in order of a column, upside down, as they were; and those with a text."""
    table = "document.querySelector('.filter').nextElementSibling.querySelector('table')"
    rows = f"[...{table}.tBodies[0].rows].filter(r => !r.hidden)"
    column = f"{rows}.map(r => parseFloat(r.cells[1].textContent.replaceAll(',', '')))"
    click = f"{table}.tHead.rows[0].cells[1].click()"
    unsorted = saving.run(column)
    saving.run(click)
    known = [value for value in saving.run(column) if value is not None]
    assert known == sorted(known) != [value for value in unsorted if value is not None]
    saving.run(click)
    assert [value for value in saving.run(column) if value is not None] == known[::-1]
    saving.run(click)
    assert saving.run(column) == unsorted
    wanted = str(saving.run(f"{rows}[2].cells[0].textContent.trim()"))
    event = f"e.value = {json.dumps(wanted.upper())}; e.dispatchEvent(new Event('input'))"
    saving.run(f"(e => {{ {event} }})(document.querySelector('.filter'))")
    assert 0 < saving.run(f"{rows}.length") < len(unsorted)
    assert saving.run(f"{rows}.every(r => r.textContent.includes({json.dumps(wanted)}))")
