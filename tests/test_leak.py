"""The policy `leak`: jobs flow over the free nodes of a grid, start at once or are rejected, and expand later."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redecided import decided, decided_again, emulated
from tracebed.converters.workload import Workload
from tracebed.orchestrator.replay.options import Options
from tracebed.orchestrator.replay.session import replay
from tracebed.orchestrator.run import JOURNAL, Run
from tracebed.orchestrator.scheduling.jobs import Jobs
from tracebed.orchestrator.scheduling.policies import registry
from tracebed.orchestrator.scheduling.policies.leak import Leak
from tracebed.orchestrator.scheduling.shapes import flow
from tracebed.orchestrator.scheduling.state import Decision, State
from tracebed.orchestrator.simulation.prediction import predict
from tracebed.testing import check_policy
from tracebed.topology import Grid

COLUMNS = ["submit_time", "run_time", "nodes", "nodes_min", "deadline", "earliest_start"]


def jobs_that_leak(rows: list[tuple[float, ...]]) -> Workload:
    """Return jobs of (submission, run time, nodes, fewest nodes[, deadline[, earliest start]]), with linear speedup."""
    table = pd.DataFrame([(*row, *(math.nan,) * (6 - len(row))) for row in rows], columns=COLUMNS)
    kind = np.where(table["nodes_min"] < table["nodes"], "malleable", "rigid")
    ids = [str(job) for job in range(len(rows))]
    return Workload(table.assign(job_id=ids, cores_per_node=1, kind=kind, nodes_max=table["nodes"], speedup="linear"))


def stairs(run: Run, job: int) -> list[tuple[float, float, list[int]]]:
    """Return the (start, end, nodes) of a job, one for each size."""
    rows = run.allocations[(run.allocations["job_id"] == str(job)).to_numpy()]
    found = []
    instants = sorted({*rows["start"], *rows["end"]})
    for start, end in itertools.pairwise(instants):
        here = rows[(rows["start"] <= start) & (end <= rows["end"])]
        found.append(
            (start, end, sorted(n for row in here.itertuples() for n in range(row.node, row.node + row.count)))
        )
    return found


# -- the figures of the paper: the text describes the situations, the pictures are not in the text --------------------


def test_a_node_that_a_job_has_released_goes_to_another_as_in_figure_12() -> None:
    """The job of figure 11 holds 5, 9 and 8, has released 10, which a new job holds, and looks for another node.

    It searches beside all of its nodes. 13 and 12 are free, and it takes one of them.
    """
    assert flow(Grid((4, 4)), [12, 13, 15], 1, [5, 9, 8], 0) == [13]
    assert flow(Grid((4, 4)), [15], 1, [5, 9, 8], 0) == []


def test_a_job_without_free_neighbours_goes_on_elsewhere_as_in_figure_13() -> None:
    """A job holds the nodes 0 to 2 of the first row. Nothing beside them is free. The snake finds 7, then 11 below.

    It then loses node 7 to another job (tiles 8 and 9); the next node is beside 11.
    """
    grid = Grid((4, 4))
    assert flow(grid, [7, 11, 12], 2, [0, 1, 2], 0, contiguous=False) == [7, 11]
    assert flow(grid, [7, 11, 12], 2, [0, 1, 2], 0) == []
    assert flow(grid, [12, 15], 1, [0, 1, 2, 11], 0, contiguous=False) == [15]


def test_a_job_leaks_into_nodes_that_become_free() -> None:
    """A line of 4. Job 0 holds two nodes until 10. Job 1 (40 node-seconds) starts on the other two, and expands."""
    run = predict(jobs_that_leak([(0, 10, 2, 2, 99), (0, 10, 4, 1, 99)]), 4, "leak")
    assert stairs(run, 1) == [(0, 10, [2, 3]), (10, 15, [0, 1, 2, 3])]
    assert run.jobs["state"].tolist() == ["completed", "completed"]


@pytest.mark.parametrize(("contiguous", "nodes"), [("yes", [5, 6, 7]), ("no", [0, 1, 2, 5, 6, 7])])
def test_a_contiguous_job_takes_what_it_reaches(contiguous: str, nodes: list[int]) -> None:
    """A line of 8. The jobs enter at the nodes 0, 2, 4 and 6. Job 3, of 8 nodes, starts when 3 and 4 are held."""
    rows = [(0, 1, 1, 1), (0, 1, 1, 1), (0, 99, 2, 2), (5, 10, 8, 1)]
    run = predict(jobs_that_leak(rows), 8, registry.load("leak", {"contiguous": contiguous}))
    assert [stairs(run, job)[0][2] for job in range(4)] == [[0], [2], [3, 4], nodes]


def test_a_job_is_rejected_at_its_earliest_start_if_it_reaches_too_few_nodes() -> None:
    rows = [(0, 50, 2, 2, 99), (0, 5, 1, 1, 99, 20), (1, 5, 2, 1, 90), (2, 5, 1, 1, 90), (3, 5, 3, 2, 90, 60)]
    run = predict(jobs_that_leak(rows), 3, "leak")
    assert run.jobs["state"].tolist() == ["completed", "completed", "completed", "rejected", "completed"]
    assert run.jobs["reason"][3] == "no node is free at its earliest start"
    assert run.jobs["start"].tolist()[:3] == [0, 20, 1] and run.jobs["start"][4] == 60
    few = predict(jobs_that_leak([(0, 50, 2, 2, 99), (1, 5, 2, 2, 99)]), 3, "leak")
    assert few.jobs["reason"][1] == "fewer than 2 connected nodes are free at its earliest start"
    waits = predict(jobs_that_leak([(0, 50, 2, 2, 99), (1, 5, 2, 2)]), 3, "leak")
    assert waits.jobs["start"].tolist() == [0, 50], "without a deadline, the job waits"


def test_a_job_that_is_too_slow_on_few_nodes_is_cancelled_at_its_deadline() -> None:
    run = predict(jobs_that_leak([(0, 50, 3, 3, 99), (0, 10, 2, 1, 15)]), 4, "leak")
    assert run.jobs["state"].tolist() == ["completed", "cancelled"]
    assert (run.jobs["end"][1], run.jobs["reason"][1]) == (15, "deadline")


# -- drawn cases -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Watched(Leak):
    """Leak, with a check of the state after each call."""

    def decide(self, state: State) -> Iterator[Decision]:
        yield from super().decide(state)
        grid, jobs = state.cluster.grid, state.jobs
        for job in set(state.size) - state.cancelling:
            held, most = state.cluster.owned(job), max(jobs.low[job], min(jobs.nodes[job], jobs.high[job]))
            assert jobs.low[job] <= len(held) <= most
            if self.contiguous:
                assert len(grid.parts(held)) == 1
            if len(held) < most and jobs.malleable[job]:
                beside = {other for node in held for other in grid.neighbours[node]}
                assert beside.isdisjoint(state.cluster.idle) and (self.contiguous or not state.cluster.idle)
        for job in state.queue.jobs():
            assert jobs.earliest_of(job) > state.now or jobs.deadline_of(job) == math.inf


@st.composite
def cases(draw: st.DrawFn) -> tuple[Workload, Grid]:
    grid = Grid(draw(st.sampled_from([(3, 3), (4, 4), (2, 2, 3), (7,)])))
    rows, submit = [], 0.0
    for _ in range(draw(st.integers(1, 14))):
        submit += draw(st.sampled_from([0.0, 1.0, 2.5]))
        run_time, nodes = draw(st.sampled_from([1.0, 4.0, 9.5])), draw(st.integers(1, len(grid)))
        earliest = submit + draw(st.sampled_from([math.nan, 0.0, 3.0]))
        deadline = submit + run_time + draw(st.sampled_from([math.nan, 0.0, 4.0, 20.0]))
        rows.append((submit, run_time, nodes, draw(st.integers(1, nodes)), deadline, earliest))
    return jobs_that_leak(rows), grid


@settings(max_examples=200)
@given(cases(), st.booleans())
def test_jobs_take_all_nodes_that_they_reach_and_end_by_their_deadlines(
    case: tuple[Workload, Grid], contiguous: bool
) -> None:
    work, grid = case
    run = predict(work, len(grid), Watched(contiguous), placement=f"median@{grid}")
    rows = [(row.node + n, row.start, row.end) for row in run.allocations.itertuples() for n in range(row.count)]
    rows.sort()
    for (node, _, end), (other, start, _) in itertools.pairwise(rows):
        assert node != other or end <= start
    jobs = run.jobs
    assert set(jobs["state"]) <= {"completed", "cancelled", "rejected"}
    assert (jobs["deadline"].notna() | (jobs["state"] == "completed")).all()
    ran = jobs[jobs["start"].notna() & jobs["deadline"].notna()]
    assert (ran["end"] <= ran["deadline"]).all()
    assert (ran["end"][ran["state"] == "cancelled"] == ran["deadline"][ran["state"] == "cancelled"]).all()


def test_the_policy_keeps_the_invariants_of_policies() -> None:
    check_policy(Leak)


def test_the_journal_of_a_replay_gives_the_same_decisions_again(tmp_path: Path) -> None:
    """10 malleable jobs on 2 x 2 emulated nodes: they start on what they reach, expand, and some are cancelled."""
    rng = np.random.default_rng(3)
    sizes, times = rng.integers(2, 5, 10), rng.integers(40, 160, 10)
    rows = [(15.0 * job, times[job], sizes[job], 1, 15.0 * job + 2.0 * times[job]) for job in range(10)]
    work, nodes = jobs_that_leak(rows), emulated(4, cores=1)
    options = Options(300.0, placement="leak@2x2")
    run = replay(work, nodes, "leak", tmp_path / "run", options=options)
    path = tmp_path / "run" / JOURNAL
    assert decided_again(path, Jobs.of(work), nodes, Leak(), options) == decided(path)
    assert set(run.jobs["state"]) <= {"completed", "cancelled", "rejected"}
    assert (run.jobs["start"].notna() == (run.jobs["state"] != "rejected")).all()
