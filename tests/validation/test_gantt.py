"""Gantt charts of a run, and staircases of malleable jobs: all bars are present and labeled, and names are escaped."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest

from tests.runs import NAN, by_node, fcfs_run, lending_run, make_run
from tracebed.orchestrator.run import Run
from tracebed.validation.report import gantt, resizes, sections
from tracebed.validation.verdict import compare
from tracebed.validation.verdict.resizing import allocations_of_jobs, areas_between, sizes_of

JOBS = [(0.0, 0.0, 100.0, 2), (10.0, 10.0, 60.0, 2), (20.0, 110.0, 150.0, 4)]


def parsed(svg: str) -> ElementTree.Element:
    return ElementTree.fromstring(svg.replace("xlink:href", "href"))


def test_neighboring_nodes_are_one_bar() -> None:
    run = make_run([(0, 0, 10, 3), (0, 0, 5, 1), (5, 10, 20, 2)])
    bars = gantt.blocks(run, pd.Index(run.jobs["job_id"]))
    assert bars[["job", "low", "high", "start", "end"]].to_numpy().tolist() == [
        [0, 0, 2, 0, 10],
        [1, 3, 3, 0, 5],
        [2, 0, 1, 10, 20],
    ]


def test_jobs_that_share_a_node_have_parts_of_its_row() -> None:
    """The job that came first is at the top. It keeps its place when the other one has inherited and lends again."""
    run = lending_run()
    bars = gantt.blocks(run, pd.Index(run.jobs["job_id"]))
    assert bars[["job", "low", "high", "start", "end", "upper", "lower"]].to_numpy().tolist() == [
        [0, 0, 1, 0, 20, 0, 1],
        [0, 0, 0, 20, 60, 0, 0.75],
        [0, 1, 1, 20, 60, 0, 0.75],
        [0, 0, 1, 60, 100, 0, 1],
        [1, 0, 0, 20, 60, 0.75, 1],
        [1, 1, 1, 20, 60, 0.75, 1],
    ]
    titles = [element.text or "" for element in parsed(gantt.small_gantt_svg(run)).iter("title")]
    assert "job 2, malleable, completed\nn1, 1 of 4 cores: 20.0 to 60.0 s" in titles
    heirs = pd.DataFrame(
        [("1", 0, 1, 0.0, 10.0, 1), ("2", 0, 1, 0.0, 10.0, 3), ("2", 0, 1, 10.0, 20.0, 1), ("3", 0, 1, 10.0, 20.0, 3)],
        columns=["job_id", "node", "count", "start", "end", "cores"],
    )
    run = Run(run.info, make_run([(0, 0, 10, 1), (0, 0, 20, 1), (0, 10, 20, 1)]).jobs, heirs)
    bars = gantt.blocks(run, pd.Index(run.jobs["job_id"]))
    assert bars[["upper", "lower"]].to_numpy().tolist() == [[0, 0.25], [0.25, 1], [0, 0.25], [0.25, 1]]


def test_the_density_of_a_run_is_its_busy_share_in_each_cell() -> None:
    """Against the sum over rectangles, with nodes and times that are no edges of the grid; nodes may be shared."""
    for run in (fcfs_run(150, machine=8, seed=5), fcfs_run(300, machine=100, seed=2), lending_run()):
        end = float(run.jobs["end"].max() - run.jobs["submit"].min()) * 0.9
        nodes, times, shares = gantt.density(run, end)
        wanted = np.zeros_like(shares)
        for row in by_node(run).to_dict("records"):
            start, until = (row[name] - run.jobs["submit"].min() for name in ("start", "end"))
            across = np.clip(np.minimum(times[1:], until) - np.maximum(times[:-1], start), 0, None) / np.diff(times)
            down = np.clip(np.minimum(nodes[1:], row["node"] + 1) - np.maximum(nodes[:-1], row["node"]), 0, None)
            share = row["cores"] / run.info.nodes[row["node"]].cores
            wanted += share * np.outer(down / np.diff(nodes), across)
        assert shares == pytest.approx(wanted, abs=1e-9)


def test_a_run_with_many_bars_has_a_density_chart_with_a_labeled_color_bar() -> None:
    picture = gantt.picture(fcfs_run(4000, machine=40))
    chart, bar = picture.figure().axes
    assert bar.get_ylabel() == "busy cores (%)"
    assert chart.get_legend() is None
    assert "More than 3,000 bars" in picture.caption
    assert len(picture.frame()) >= 4000


def test_the_largest_bar_of_a_job_has_its_number_and_a_legend_has_the_kinds() -> None:
    run = make_run([(0, 0, 100, 2), (0, 0, 100, 1), (0, 50, 50.001, 1)], staircases={"1": [(0, 90, 2), (90, 100, 1)]})
    (axes,) = gantt.picture(run).figure().axes
    assert {(text.get_text(), text.get_position()[0]) for text in axes.texts} == {("1", 45.0), ("2", 50.0)}
    legend = axes.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["malleable job", "rigid job"]


@pytest.mark.parametrize("count", [1, 2, 40])
def test_every_bar_has_a_tooltip(count: int) -> None:
    run = fcfs_run(count, machine=4, seed=1)
    svg = gantt.small_gantt_svg(run)
    titles = [element.text for element in parsed(svg).iter("title")]
    assert len(titles) == len(gantt.blocks(run, pd.Index(run.jobs["job_id"])))
    assert {re.match(r"job (\d+), rigid, completed\n", title)[1] for title in titles} == set(run.jobs["job_id"])  # type: ignore[index, arg-type]


def test_a_tooltip_has_job_nodes_start_end_and_state() -> None:
    run = make_run(
        [(5.0, 10.0, 40.5, 1), (5.0, 5.0, 25.0, 2)],
        staircases={"1": [(10.0, 30.0, 1), (30.0, 40.5, 3)]},
        states={"2": "killed"},
    )
    titles = [element.text for element in parsed(gantt.small_gantt_svg(run)).iter("title")]
    assert titles == [
        "job 1, malleable, completed\nn2: 5.0 to 25.0 s\nstart 5.0 s, end 35.5 s",
        "job 1, malleable, completed\nn0 to n2: 25.0 to 35.5 s\nstart 5.0 s, end 35.5 s",
        "job 2, rigid, killed\nn0 to n1: 0.0 to 20.0 s",
    ]


def test_names_are_escaped() -> None:
    evil = "<script>alert('x')</script>&\"$\\frac{1}{0}$"
    run = make_run([(0, 0, 10, 1)], ids=[evil], machine=1)
    run.info.nodes = [type(run.info.nodes[0])(evil, 1)]
    svg = gantt.small_gantt_svg(run)
    (title,) = [element.text for element in parsed(svg).iter("title")]
    assert title == f"job {evil}, rigid, completed\n{evil}: 0.0 to 10.0 s"
    assert "<a" not in svg and "http" not in svg


def test_a_small_chart_of_a_large_run_is_small() -> None:
    assert len(gantt.small_gantt_svg(fcfs_run(4000, machine=40))) < 200_000


def test_a_figure_has_the_nodes_of_the_run_and_its_time() -> None:
    figure = gantt.picture(make_run([(0, 0, 10_000, 3), (0, 0, 5, 1)])).figure()
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["n0", "n1", "n2", "n3"]
    assert axes.get_xlabel() == "time after the first submission (min)"
    assert len(axes.collections[0].get_paths()) == 2


@pytest.mark.parametrize("jobs", [[], [(0.0, NAN, NAN, 1)]])
def test_a_run_without_allocations_has_an_empty_chart(jobs: list[tuple[float, float, float, int]]) -> None:
    run = make_run(jobs)
    assert not gantt.picture(run).figure().axes[0].collections
    assert "<title>" not in gantt.small_gantt_svg(run)


def run(*, real: bool, grows_at: float = 60.0) -> Run:
    stairs = {"1": [(0.0, grows_at, 2), (grows_at, 100.0, 4)], "3": [(110.0, 150.0, 4)]}
    jobs = [JOBS[0], (10.0, 10.0, grows_at, 2), JOBS[2]]
    return make_run(jobs, real=real, staircases=stairs)


def many(count: int, *, real: bool) -> Run:
    """Return malleable jobs one after the other; job n of a prediction holds 2 nodes for its last n seconds."""
    starts = [100.0 * n for n in range(count)]
    jobs = [(start, start, start + 50.0, 1) for start in starts]
    stairs = {
        str(n + 1): [(s, s + 50.0, 1)] if real or not n else [(s, s + 50.0 - n, 1), (s + 50.0 - n, s + 50.0, 2)]
        for n, s in enumerate(starts)
    }
    return make_run(jobs, real=real, staircases=stairs)


def test_the_area_between_two_staircases_is_in_node_seconds() -> None:
    ids = pd.Index(["1", "2", "3"])
    real, predicted = allocations_of_jobs(run(real=True), ids), allocations_of_jobs(run(real=False, grows_at=65.0), ids)
    assert areas_between(real, predicted, 3).tolist() == [10.0, 10.0, 0.0]  # 5 s: 2 nodes later, and 2 nodes longer
    assert areas_between(real, real, 3).tolist() == [0.0, 0.0, 0.0]
    nothing = real[:0]
    assert areas_between(real, nothing, 3).tolist() == [280.0, 100.0, 160.0]


def test_times_are_relative_to_the_first_submission_of_each_run() -> None:
    late = make_run([(s + 7.0, a + 7.0, e + 7.0, n) for s, a, e, n in JOBS])
    ids = pd.Index(["1", "2", "3"])
    assert areas_between(allocations_of_jobs(make_run(JOBS), ids), allocations_of_jobs(late, ids), 3).tolist() == [
        0.0,
        0.0,
        0.0,
    ]


def test_the_jobs_that_differ_most_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    found = compare(many(20, real=True), many(20, real=False))
    picture = resizes.STAIRCASES.content(found)
    assert isinstance(picture, sections.Picture)
    assert "The 12 that differ most of 20 malleable jobs" in picture.caption
    assert "19 of 20 differ" in picture.caption
    for width in (4.6, 11.2):
        titles = [axes.get_title(loc="left") for axes in picture.draw(width).axes]
        assert titles == [f"job {n}" for n in range(20, 8, -1)]


def test_few_jobs_are_all_shown() -> None:
    picture = resizes.STAIRCASES.content(compare(run(real=True), run(real=False)))
    assert isinstance(picture, sections.Picture)
    assert "All 2 malleable jobs" in picture.caption
    assert "0 of 2 differ" in picture.caption
    assert len(picture.draw(11.2).axes) == 2


def test_rigid_jobs_have_no_staircases() -> None:
    assert resizes.STAIRCASES.content(compare(fcfs_run(20), fcfs_run(20, real=False))) is None


def test_unknown_allocations_have_no_staircases() -> None:
    """An imported prediction may not say which nodes its jobs held."""
    known = run(real=False)
    unknown = Run(known.info, known.jobs, known.allocations[:0], known.reconfigurations)
    assert resizes.STAIRCASES.content(compare(run(real=True), unknown)) is None


def test_shared_nodes_are_counted_in_cores() -> None:
    stairs = {"1": [(0.0, 60.0, 2), (60.0, 100.0, 3)]}
    runs = [make_run(JOBS, real=real, cores=4, staircases=stairs) for real in (True, False)]
    whole = resizes.STAIRCASES.content(compare(*runs))
    assert isinstance(whole, sections.Picture)
    assert whole.caption.startswith("Nodes held")
    shared = runs[1].allocations.assign(cores=np.where(runs[1].allocations["job_id"] == "1", 3, 4))
    runs[1] = Run(runs[1].info, runs[1].jobs, shared, runs[1].reconfigurations)
    found = compare(*runs)
    picture = resizes.STAIRCASES.content(found)
    assert isinstance(picture, sections.Picture)
    assert picture.caption.startswith("Cores held")
    ids = pd.Index(["1"])
    assert areas_between(
        allocations_of_jobs(runs[0], ids, cores=True), allocations_of_jobs(runs[1], ids, cores=True), 1
    ).tolist() == [240.0]


def test_runs_that_change_no_size_have_no_staircases() -> None:
    """Under a rigid policy, malleable jobs keep their size, which a restart does not change."""
    jobs = [(0.0, 0.0, 100.0, 2), (10.0, 10.0, 60.0, 2)]
    stairs = {"1": [(0.0, 100.0, 2)], "2": [(10.0, 30.0, 2), (40.0, 60.0, 2)]}
    rigid = make_run(jobs, staircases=stairs), make_run(jobs, real=False, staircases=stairs)
    assert resizes.STAIRCASES.content(compare(*rigid)) is None
    ids = pd.Index(["1", "2", "3"])
    least, most = sizes_of(allocations_of_jobs(rigid[0], ids), 3)
    assert (least.tolist(), most.tolist()) == ([2.0, 2.0, np.inf], [2.0, 2.0, 0.0])
    assert "steps are" not in gantt.about_bars(rigid, gantt.ids_of(*rigid))

    steps = {**stairs, "1": [(0.0, 60.0, 2), (60.0, 100.0, 3)]}
    found = resizes.STAIRCASES.content(compare(rigid[0], make_run(jobs, real=False, staircases=steps)))
    assert isinstance(found, sections.Picture)
    assert "Changed in size: 0 jobs of the real run, 1 of the prediction; a job that keeps its size" in found.caption
