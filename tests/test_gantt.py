"""Gantt charts of a run: all bars are present and labeled, and names are escaped."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest

from runs import NAN, by_node, fcfs_run, lending_run, make_run
from tracebed.orchestrator.run import Run
from tracebed.validation.report import gantt


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


def test_a_sampled_chart_shows_the_job_of_a_node_at_an_instant() -> None:
    run = fcfs_run(150, machine=8, seed=5)
    ids = pd.Index(run.jobs["job_id"])
    instants = np.linspace(0.0, float(run.jobs["end"].max()) + 50.0, 97)
    found = gantt.sample(run, ids, np.arange(8), instants - float(run.jobs["submit"].min()))
    rows = by_node(run).to_dict("records")
    for node in range(8):
        for column, instant in enumerate(instants):
            held = [r["job_id"] for r in rows if r["node"] == node and r["start"] <= instant < r["end"]]
            assert [ids[job] for job in [found[node, column]] if job >= 0] == held


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
    figure = gantt.gantt_figure(make_run([(0, 0, 10_000, 3), (0, 0, 5, 1)]))
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["n0", "n1", "n2", "n3"]
    assert axes.get_xlabel() == "time after the first submission (min)"
    assert len(axes.collections[0].get_paths()) == 2


@pytest.mark.parametrize("jobs", [[], [(0.0, NAN, NAN, 1)]])
def test_a_run_without_allocations_has_an_empty_chart(jobs: list[tuple[float, float, float, int]]) -> None:
    run = make_run(jobs)
    assert not gantt.gantt_figure(run).axes[0].collections
    assert "<title>" not in gantt.small_gantt_svg(run)
