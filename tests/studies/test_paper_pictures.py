"""Pictures for papers: files in each format and width, their data, pages of several runs, histories of baselines."""

from __future__ import annotations

import csv
import os
import re
import subprocess
from itertools import product
from pathlib import Path
from xml.etree import ElementTree

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
import yaml
from click.testing import CliRunner
from matplotlib.figure import Figure

import tracebed.api as tb
from tests.executables import write_program
from tests.oracles.validations import make_validation
from tests.pages import Outline, validated, without_pictures
from tests.recorders import gallery
from tests.runs import fcfs_run
from tracebed.cli import tracebed
from tracebed.ground.errors import InputError
from tracebed.orchestrator.run import Run
from tracebed.validation.pictures import COLUMN, PAGE, STYLE, Picture, columns_of, drawn_in, legend, panels
from tracebed.validation.report import runs as page_of_runs
from tracebed.validation.verdict.baseline import Baseline


def test_the_gallery_has_the_pictures_of_its_page_and_is_small() -> None:
    assert {path.name for path in gallery.FOLDER.iterdir()} == set(gallery.shown())
    assert sum(path.stat().st_size for path in gallery.FOLDER.iterdir()) < 2**20


def three_runs() -> dict[str, Run]:
    return {f"run {seed}": fcfs_run(30, machine=4, seed=seed) for seed in range(3)}


def test_a_picture_is_written_in_both_widths_and_all_formats_with_its_data(tmp_path: Path) -> None:
    """Each file is the same twice; SVG and PDF have the width of a column and of a page; PDF has no fonts of type 3."""
    runs = dict(list(three_runs().items())[:2])
    tb.save_pictures(runs, tmp_path / "a")
    names = {path.name for path in (tmp_path / "a").iterdir()}
    kinds = [f"-{width}.{form}" for width in ("column", "page") for form in ("svg", "png", "pdf")]
    assert names == {
        f"{name}{kind}" for name in ("distributions", "gantt", "queue", "utilization") for kind in [*kinds, ".csv"]
    }
    again = tb.pictures(runs)["queue"]
    for form in ("svg", "png", "pdf", "csv"):
        path = again.save(tmp_path / f"again.{form}", width=COLUMN)
        first = "queue.csv" if form == "csv" else f"queue-column.{form}"
        assert path.read_bytes() == (tmp_path / "a" / first).read_bytes()
    for called, width in (("column", COLUMN), ("page", PAGE)):
        tree = ElementTree.parse(tmp_path / "a" / f"queue-{called}.svg").getroot()
        assert float(tree.attrib["width"].removesuffix("pt")) == pytest.approx(72 * width)
        pdf = (tmp_path / "a" / f"queue-{called}.pdf").read_bytes()
        box = re.search(rb"/MediaBox \[ 0 0 ([\d.]+) ", pdf)
        assert box is not None and float(box[1]) == pytest.approx(72 * width, abs=0.1)
        assert b"/Type3" not in pdf
    with (tmp_path / "a" / "queue.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["series"] for row in rows} == {"run 0", "run 1"}
    assert len(pd.read_csv(tmp_path / "a" / "gantt.csv")) >= 60


def test_other_formats_and_files_of_others_are_errors(tmp_path: Path) -> None:
    found = tb.pictures(three_runs()["run 0"])
    with pytest.raises(InputError, match=r"unsupported picture format"):
        found["queue"].save(tmp_path / "queue.gif")
    (tmp_path / "notes.svg").write_text("my own notes")
    with pytest.raises(InputError, match="exists and is not a picture of tracebed"):
        found["queue"].save(tmp_path / "notes.svg")
    with pytest.raises(InputError, match="is a file, not a folder"):
        tb.save_pictures(three_runs(), tmp_path / "notes.svg")


def test_the_data_of_a_figure_without_a_table_are_what_it_shows() -> None:
    figure = Figure()
    left, right = figure.subplots(1, 2)
    left.plot([1, 2], [3, 4], label="a line")
    left.scatter([5], [6], label="marks")
    left.set(title="first", xlabel="time (s)", ylabel="jobs")
    right.bar(["p", "q"], [7, 8], 0.5, label="bars")
    right.vlines([1], 0, [2])
    rows = drawn_in(figure).to_numpy().tolist()
    assert rows[:3] == [
        [
            "first: jobs over time (s)",
            series,
            x,
            y,
            pytest.approx(np.nan, nan_ok=True),
            pytest.approx(np.nan, nan_ok=True),
        ]
        for series, x, y in (("a line", 1, 3), ("a line", 2, 4), ("marks", 5, 6))
    ]
    assert rows[3:] == [
        ["", "bars", -0.25, 0, 0.25, 7],
        ["", "bars", 0.75, 0, 1.25, 8],
        ["", "", 1, 0, 1, 2],
    ]


def test_pictures_of_a_comparison_are_those_of_its_report() -> None:
    found = tb.pictures(validated(fcfs_run(20, seed=1), fcfs_run(20, seed=1, stretch=1.1, real=False)))
    assert {"gantt", "utilization", "queue", "differences", "distributions", "agreement-1"} <= found.keys()
    with mpl.rc_context():
        assert found["agreement-1"].figure(COLUMN).get_figwidth() == COLUMN
    assert list(found["gantt"].frame()["run"].unique()) == ["real", "predicted"]


def test_no_text_is_cut_off(tmp_path: Path) -> None:
    """Titles, labels, ticks and legends lie within the figure."""
    found = {
        **tb.pictures(three_runs()),
        **tb.pictures(validated(fcfs_run(20, seed=1), fcfs_run(20, seed=1, stretch=1.1, real=False))),
        "history": tb.history(*versions(tmp_path)).picture,
    }
    outside = []
    for (name, picture), width in product(found.items(), (COLUMN, PAGE)):
        figure = picture.figure(width)
        figure.draw_without_rendering()
        drawn, room = figure.get_tightbbox(), figure.bbox_inches
        if min(drawn.x0, drawn.y0) < -0.02 or drawn.x1 > room.x1 + 0.02 or drawn.y1 > room.y1 + 0.02:
            outside.append((name, width, drawn.extents.round(2).tolist(), room.max.round(2).tolist()))
    assert outside == []


def test_a_legend_has_as_many_columns_as_fit() -> None:
    assert columns_of(["a", "b", "c"], PAGE) == 3
    assert columns_of(["a" * 30, "b" * 30], COLUMN) == 1
    assert columns_of(["a" * 40, "b", "c"], COLUMN) == 2
    with mpl.rc_context(STYLE):
        figure, axes_of = panels(1, "", wide=True)
        for number in range(6):
            axes_of[0].plot([0], [0], label=f"share {number}, fcfs")
        axes_of[0].plot([0], [0], label="95 % interval of the mean over seeds")
        legend(figure, axes_of)
        figure.draw_without_rendering()
    box = figure.legends[0].get_window_extent()
    assert box.x0 >= 0 and box.x1 <= figure.bbox.x1


def test_a_page_of_several_runs_names_each_once_in_its_legends(tmp_path: Path) -> None:
    runs = three_runs()
    page = page_of_runs.render(runs)
    outline = Outline(page)
    assert all(reference.startswith("#") for reference in outline.references)
    assert len(outline.ids) == len(set(outline.ids))
    assert page.count("<figure ") == 4
    assert "3 runs" in page
    for name in runs:
        assert len(re.findall(rf"<text[^>]*>{name}</text>", page)) >= 6  # three legends and a Gantt chart, two widths
    assert page_of_runs.render(runs) == page
    with without_pictures():
        assert tb.runs_page(runs, tmp_path / "runs.html").read_text().startswith("<!doctype html>")
    with pytest.raises(InputError, match=r"must end in .html"):
        tb.runs_page(runs, tmp_path / "runs.json")


def test_many_runs_have_distinct_lines_and_a_legend_inside_the_figure() -> None:
    runs = {f"a run with a long name, number {number}": fcfs_run(5, seed=number) for number in range(9)}
    figure = page_of_runs.pictures(runs)["queue"].figure(COLUMN)
    (axes,) = figure.axes
    assert len({(line.get_color(), str(line._dash_pattern)) for line in axes.lines}) == 9  # type: ignore[attr-defined]
    legend = axes.get_legend()
    assert legend is not None
    figure.draw_without_rendering()
    box = legend.get_window_extent()
    assert box.y1 <= figure.bbox.y1 + 1 and box.x0 >= 0


def versions(folder: Path) -> list[Path]:
    """Write baselines of a simulator that becomes worse."""
    paths = []
    for number, factor in enumerate((1.0, 1.01, 1.2)):
        found = make_validation({"w1-fcfs": factor, "w2-fcfs": factor})
        paths.append(Baseline.of([found.to_json()]).save(folder / f"v{number}.yaml"))
    return paths


def test_the_history_of_a_baseline_is_that_of_its_commits(tmp_path: Path) -> None:
    """Also after the file was deleted and made again; a change that is not committed is the last version."""

    def git(*command: str) -> None:
        own = ("-c", "user.name=n", "-c", "user.email=e@example.org", "-c", "commit.gpgsign=false")
        subprocess.run(["git", "-C", str(tmp_path), *own, *command], check=True, capture_output=True)

    git("init", "-q")
    first, second, third = versions(tmp_path)
    baseline = tmp_path / "baseline.yaml"
    for content in (first, None, second):
        if content is None:
            git("rm", "-q", baseline.name)
        else:
            baseline.write_bytes(content.read_bytes())
            git("add", baseline.name)
        git("commit", "-q", "-m", "a change")
    baseline.write_bytes(third.read_bytes())
    table, picture = tb.history(baseline)
    found = table.drop_duplicates("version")
    assert list(found["verdict"]) == ["accurate", "accurate", "inaccurate"]
    assert list(found["version"])[2] == "now"
    assert all(re.fullmatch(r"[0-9a-f]{7,}", name) for name in found["version"][:2])
    files = tb.history(first, second, third).table
    assert files["z"].equals(table["z"])
    assert list(dict.fromkeys(files["version"])) == ["v0", "v1", "v2"]
    figure = picture.figure()
    lines = {line.get_label(): line for line in figure.axes[0].lines}
    waits = table[table["metric"] == "mean_wait_s"]["z"]
    assert np.asarray(lines["wait, mean"].get_ydata()).tolist() == pytest.approx(list(waits))

    result = CliRunner().invoke(tracebed, ["metrics", str(baseline), "--report", str(tmp_path / "history.svg")])
    assert result.exit_code == 0, result.output
    assert "inaccurate" in result.output and "<svg" in (tmp_path / "history.svg").read_text()


def test_a_history_without_git_is_an_error(tmp_path: Path) -> None:
    (path, *_) = versions(tmp_path)
    with pytest.raises(InputError, match=r"git log: .*not a git repository"):
        tb.history(path)


def test_an_error_of_git_is_told_without_its_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (path, *_) = versions(tmp_path)
    told = "fatal: no repository up to mount point /tmp\nStopping at filesystem boundary"
    git = write_program(tmp_path / "bin" / "git", f"#!/bin/sh\necho '{told}' >&2; exit 128")
    monkeypatch.setenv("PATH", str(git.parent), prepend=os.pathsep)
    with pytest.raises(InputError, match=r"git log: fatal: no repository up to mount point /tmp \(give"):
        tb.history(path)


def test_a_picture_of_means_has_the_width_that_is_asked() -> None:
    table = pd.DataFrame(
        [
            {
                **{"workload": "w", "policy": name, "seed": seed, "perturbation": 0, "share": None, "window": "all"},
                **{"priority": "fcfs", "runtime_model": "ideal", "interval_s": 0.0},
                **dict.fromkeys(("processes", "outages"), "none"),
                **{"malleability_interval_s": 0.0, "mean_wait_s": 10.0 + seed},
            }
            for name in ("a", "b")
            for seed in range(3)
        ]
    )
    picture = tb.plot_means(table, "mean_wait_s")
    assert isinstance(picture, Picture)
    assert picture.figure(5.0).get_figwidth() == 5.0
    assert list(picture.frame()["value"]) == [11.0, 11.0]
    with pytest.raises(InputError, match="no row has mean_wait_s"):
        tb.plot_means(table, "mean_wait_s", at={"policy": "c"})


# The paper about tracebed: its citations exist, and its figures are those of the documentation.

ROOT = Path(__file__).resolve().parents[2]
PAPER = (ROOT / "paper.md").read_text(encoding="utf-8")


def test_each_citation_is_an_entry_and_each_entry_is_cited() -> None:
    entries = re.findall(r"^@\w+\{(\w+),", (ROOT / "paper.bib").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(entries) == sorted(set(re.findall(r"@(\w+)", PAPER)))


def test_the_figures_are_those_of_the_page_on_accuracy() -> None:
    page = (ROOT / "docs/accuracy.md").read_text(encoding="utf-8")
    computed = page.partition("<!-- COMPUTED -->")[2].partition("<!-- end -->")[0]
    figures = re.findall(r"[+-]\d+\.\d+ %", PAPER)
    assert len(figures) == 4
    assert [figure for figure in figures if figure not in computed] == []


def test_the_paper_has_the_form_of_the_journal() -> None:
    _, header, body = PAPER.split("---\n", 2)
    assert {"title", "tags", "authors", "affiliations", "date", "bibliography"} <= set(yaml.safe_load(header))
    headings = re.findall(r"^# (.*)$", body, re.MULTILINE)
    required = ["Summary", "Statement of need", "State of the field", "Software design", "Research impact statement"]
    assert headings[:5] == required
    assert headings[-1] == "References"
    assert 750 <= len(body.split()) <= 1750
