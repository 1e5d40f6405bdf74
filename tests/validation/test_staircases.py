"""Staircases of malleable jobs: which differ most, and what the report shows of them."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from tests.runs import fcfs_run, make_run
from tracebed.orchestrator.run import Run
from tracebed.validation.report import gantt, sections, staircases
from tracebed.validation.report.staircases import allocations_of_jobs, areas_between
from tracebed.validation.verdict import compare

JOBS = [(0.0, 0.0, 100.0, 2), (10.0, 10.0, 60.0, 2), (20.0, 110.0, 150.0, 4)]


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
    picture = staircases.STAIRCASES.content(found)
    assert isinstance(picture, sections.Picture)
    assert "The 12 that differ most of 20 malleable jobs" in picture.caption
    assert "19 of 20 differ" in picture.caption
    for width in (4.6, 11.2):
        titles = [axes.get_title(loc="left") for axes in picture.draw(width).axes]
        assert titles == [f"job {n}" for n in range(20, 8, -1)]


def test_few_jobs_are_all_shown() -> None:
    picture = staircases.STAIRCASES.content(compare(run(real=True), run(real=False)))
    assert isinstance(picture, sections.Picture)
    assert "All 2 malleable jobs" in picture.caption
    assert "0 of 2 differ" in picture.caption
    assert len(picture.draw(11.2).axes) == 2


def test_rigid_jobs_have_no_staircases() -> None:
    assert staircases.STAIRCASES.content(compare(fcfs_run(20), fcfs_run(20, real=False))) is None


def test_unknown_allocations_have_no_staircases() -> None:
    """An imported prediction may not say which nodes its jobs held."""
    known = run(real=False)
    unknown = Run(known.info, known.jobs, known.allocations[:0], known.reconfigurations)
    assert staircases.STAIRCASES.content(compare(run(real=True), unknown)) is None


def test_shared_nodes_are_counted_in_cores() -> None:
    stairs = {"1": [(0.0, 60.0, 2), (60.0, 100.0, 3)]}
    runs = [make_run(JOBS, real=real, cores=4, staircases=stairs) for real in (True, False)]
    whole = staircases.STAIRCASES.content(compare(*runs))
    assert isinstance(whole, sections.Picture)
    assert whole.caption.startswith("Nodes held")
    shared = runs[1].allocations.assign(cores=np.where(runs[1].allocations["job_id"] == "1", 3, 4))
    runs[1] = Run(runs[1].info, runs[1].jobs, shared, runs[1].reconfigurations)
    found = compare(*runs)
    picture = staircases.STAIRCASES.content(found)
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
    assert staircases.STAIRCASES.content(compare(*rigid)) is None
    ids = pd.Index(["1", "2", "3"])
    least, most = staircases.sizes_of(allocations_of_jobs(rigid[0], ids), 3)
    assert (least.tolist(), most.tolist()) == ([2.0, 2.0, np.inf], [2.0, 2.0, 0.0])
    assert "steps are" not in gantt.about_bars(rigid, ids)

    steps = {**stairs, "1": [(0.0, 60.0, 2), (60.0, 100.0, 3)]}
    found = staircases.STAIRCASES.content(compare(rigid[0], make_run(jobs, real=False, staircases=steps)))
    assert isinstance(found, sections.Picture)
    assert "Changed in size: 0 jobs of the real run, 1 of the prediction; a job that keeps its size" in found.caption
