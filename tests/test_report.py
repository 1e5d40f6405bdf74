"""The report: one file that needs nothing else, trusts no name, and shows what it must."""

from __future__ import annotations

import html.parser
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from runs import NAN, by_node, fcfs_run, make_run
from tracebed.errors import InputError
from tracebed.orchestrator.run import Run
from tracebed.validation.report import console, figures, words
from tracebed.validation.report import html as report
from tracebed.validation.verdict import Comparison, compare

EVIL = "<script>alert('x')</script>&\"$\\frac{1}{0}$"
VOID = {"meta", "br", "rect", "circle", "path", "image", "use", "line", "polyline", "polygon"}


def malleable(*, real: bool, shift: float = 0.0) -> Run:
    jobs = [(0.0, 0.0, 100.0, 2), (10.0, 10.0, 60.0 + shift, 2), (20.0, 110.0, 150.0, 4)]
    return make_run(
        jobs,
        real=real,
        staircases={"1": [(0.0, 60.0 + shift, 2), (60.0 + shift, 100.0, 4)]},
        reconfigurations=[("1", "expand", 2, 4, 55.0, 58.0, 60.0 + shift, 61.0, "applied")],
        speed=200.0,
        lateness_ms={"p50": 0.31, "p99": 2.17, "max": 4.4, "count": 3} if real else {},
    )


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    return compare(malleable(real=True), malleable(real=False, shift=5.0))


@pytest.fixture(scope="module")
def page(comparison: Comparison) -> str:
    return report.render(comparison)


class Outline(html.parser.HTMLParser):
    """Collects what a browser would fetch or run, and whether tags are balanced."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.references: list[str] = []
        self.tags: set[str] = set()
        self.ids: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for name, value in attrs:
            if name in ("src", "href", "xlink:href", "srcset", "action", "data", "poster"):
                self.references.append(value or "")
            if name == "id":
                self.ids.append(value or "")
            assert not name.startswith("on")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag


def test_page_needs_nothing_else(page: str) -> None:
    outline = Outline(page)
    assert not outline.open
    assert all(reference.startswith(("#", "data:image/png")) for reference in outline.references)
    assert not {"script", "link", "iframe", "object", "embed", "base"} & outline.tags
    assert not re.search(r"https?:|//[a-z]|@import|url\((?!#)", page)
    assert len(outline.ids) == len(set(outline.ids))
    targets = {reference[1:] for reference in outline.references if reference.startswith("#")}
    assert targets | set(re.findall(r"url\(#([^)]+)\)", page)) <= set(outline.ids)


def test_page_says_what_it_must(page: str) -> None:
    for what in (
        "Inconclusive",
        "no accuracy claim",
        "too_few_repeats",
        "emulated: real processes that slept",
        "simulated: virtual time",
        "p50 0.31 ms, p99 2.17 ms, max 4.4 ms",
        "200 trace seconds a wall second",
        "within-run stability",
        "Two Gantt charts",
        "<details>",
        "Largest differences of waits",
        "expand, decision",
        "a" * 64,
    ):
        assert what in page
    assert page.count("jobs emulated, not computed") >= 6  # at the top, and beside every picture
    assert "computed: real processes that burnt" not in page


def test_names_of_users_are_shown_and_never_obeyed() -> None:
    ids = [EVIL, "b", "c"]
    runs = [
        make_run(
            [(0.0, 0.0, 5.0, 1), (1.0, 9.0 + shift, 19.0 + shift, 1), (2.0, 2.0 + shift, 9.0, 1)],
            ids=ids,
            real=real,
            machine=2,
            workload={"name": EVIL, "sha256": "", "jobs": 3, "provenance": {}},
            policy=EVIL,
            warnings=[EVIL],
            parameters={EVIL: EVIL},
        )
        for real, shift in ((True, 0.0), (False, 3.0))
    ]
    for run in runs:
        run.info.nodes = [type(node)(EVIL, node.cores) for node in run.info.nodes]
    page = report.render(compare(*runs))
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    Outline(page)


def test_a_page_is_a_function_of_its_comparison(comparison: Comparison, page: str) -> None:
    assert report.render(comparison) == page


@pytest.mark.parametrize("execution", ["computed", "logged", "computed+emulated"])
def test_every_kind_of_execution_is_named(execution: str) -> None:
    page = report.render(compare(make_run([(0, 0, 5, 1)], execution=execution), make_run([(0, 0, 5, 1)], real=False)))
    for part in execution.split("+"):
        assert words.execution(make_run([], execution=part).info) in page


def test_a_run_in_which_nothing_ended_still_has_a_report() -> None:
    nothing = [(0.0, NAN, NAN, 1)]
    page = report.render(compare(make_run(nothing), make_run(nothing, real=False)))
    assert "Fewer than two jobs ended in both runs" in page
    Outline(page)


def test_gantt_merges_neighbouring_nodes() -> None:
    run = make_run([(0, 0, 10, 3), (0, 0, 5, 1), (5, 10, 20, 2)])
    blocks = figures._blocks(run, pd.Index(run.jobs["job_id"]))
    assert blocks[["job", "low", "high", "start", "end"]].to_numpy().tolist() == [
        [0, 0, 2, 0, 10],
        [1, 3, 3, 0, 5],
        [2, 0, 1, 10, 20],
    ]


def test_sampled_gantt_shows_who_holds_a_node_at_an_instant() -> None:
    run = fcfs_run(150, machine=8, seed=5)
    ids = pd.Index(run.jobs["job_id"])
    instants = np.linspace(0.0, float(run.jobs["end"].max()) + 50.0, 97)
    found = figures._sample(run, ids, np.arange(8), instants - float(run.jobs["submit"].min()))
    rows = by_node(run).to_dict("records")
    for node in range(8):
        for column, instant in enumerate(instants):
            held = [r["job_id"] for r in rows if r["node"] == node and r["start"] <= instant < r["end"]]
            assert [ids[job] for job in [found[node, column]] if job >= 0] == held


def test_many_rectangles_stay_small(monkeypatch: pytest.MonkeyPatch) -> None:
    found = compare(fcfs_run(300), fcfs_run(300, stretch=1.02, real=False))
    drawn = len(report.render(found))
    monkeypatch.setattr(figures, "RECTANGLES", 100)
    sampled = report.render(found)
    assert sampled.count("data:image/png") == 2
    assert len(sampled) < drawn + 300_000
    Outline(sampled)


def test_console_shows_verdict_and_reason(comparison: Comparison, capsys: pytest.CaptureFixture[str]) -> None:
    console.show(comparison)
    out, _ = capsys.readouterr()
    assert "makespan (s)" in out
    assert "too_few_repeats" in out
    assert "emulated" in out
    assert "* advisory" in out
    assert "inconclusive: one real run: no accuracy claim" in out


def test_console_fits_the_usual_terminal(
    comparison: Comparison, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    console.show(comparison)
    out, err = capsys.readouterr()
    _, _, *table, _, _ = re.sub("\\x1b[^m]*m", "", out).splitlines()  # without bold and dim
    assert max(map(len, table)) <= 80
    assert "…" not in out
    assert {"error", "margin", "verdict"} <= set(table[0].split())  # the margin is never left out
    assert [line for line in table if "makespan" in line and "±" in line and "inconclusive" in line]
    assert "columns shows stability, reason, difference too" in err


def test_a_place_that_cannot_be_written_is_said(comparison: Comparison, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        report.write(comparison, tmp_path / "file" / "report.html")
    with pytest.raises(InputError, match=r"end it in \.html"):
        report.write(comparison, tmp_path / "file")
    assert (tmp_path / "file").read_text() == ""


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium to render the report with (apt-get install chromium)")
def test_a_browser_renders_the_page_without_complaint(comparison: Comparison, tmp_path: Path) -> None:
    path = report.write(comparison, tmp_path / "report.html")
    command = [
        str(CHROMIUM),
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        f"--user-data-dir={tmp_path / 'profile'}",
        "--enable-logging=stderr",
        "--window-size=1280,3000",
        f"--screenshot={tmp_path / 'page.png'}",
        "--dump-dom",
        path.as_uri(),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert "CONSOLE" not in done.stderr
    assert (tmp_path / "page.png").stat().st_size > 20_000
    assert done.stdout.count("<svg") >= 5
