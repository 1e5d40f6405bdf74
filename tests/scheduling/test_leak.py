"""The policy `leak`: jobs flow over the free nodes of a grid, start at once or are rejected, and expand later."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tracebed.api as tb
from tests.oracles.redecided import decided, decided_again, virtual
from tests.runs import replaying
from tracebed.converters.malleability import Thresholds, to_malleable
from tracebed.converters.workload import Workload
from tracebed.ground.topology import Grid
from tracebed.orchestrator.replay.session import replay
from tracebed.orchestrator.run import JOURNAL, Run
from tracebed.orchestrator.scheduling.jobs import Jobs
from tracebed.orchestrator.scheduling.policies import registry
from tracebed.orchestrator.scheduling.policies.leak import Leak
from tracebed.orchestrator.scheduling.shapes import flow
from tracebed.orchestrator.scheduling.state import Decision, State
from tracebed.orchestrator.simulation.overheads import Overheads
from tracebed.orchestrator.simulation.prediction import predict

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


def test_a_job_may_wait_for_its_first_nodes_until_its_deadline() -> None:
    """A line of 3. Job 2 finds no node at its start, and one at 50, before job 1 expands. Job 3 finds none."""
    rows = [(0, 50, 2, 2, 99), (0, 80, 3, 1, 300), (1, 5, 1, 1, 90), (2, 5, 1, 1, 40)]
    work = jobs_that_leak(rows)
    assert predict(work, 3, "leak").jobs["state"].tolist() == ["completed", "completed", "rejected", "rejected"]
    run = predict(work, 3, Leak(waits=True))
    assert run.jobs["state"].tolist() == ["completed", "completed", "completed", "rejected"]
    assert stairs(run, 2) == [(50, 55, [1])]
    assert stairs(run, 1)[:1] == [(0, 55, [2])] and stairs(run, 1)[1][2] == [0, 1, 2]


def test_with_advance_reservation_a_job_needs_an_interval_with_enough_nodes_by_number() -> None:
    """A line of 4. Job 1 fits by number after job 0, job 2 not before its deadline, job 3 beside job 1."""
    rows = [(0, 50, 3, 3, 99), (1, 10, 2, 2, 99), (2, 10, 2, 2, 55), (3, 10, 2, 2, 99), (4, 10, 4, 1, 99)]
    run = predict(jobs_that_leak(rows), 4, Leak(reserve=True))
    assert run.jobs["state"].tolist() == ["completed", "completed", "rejected", "completed", "completed"]
    assert run.jobs["reason"][2] == "fewer than 2 nodes are free for 10 s before its deadline"
    assert run.jobs["start"].tolist()[:2] == [0, 50] and run.jobs["start"].tolist()[3:] == [50, 60]
    assert predict(jobs_that_leak(rows), 4, "leak").jobs["state"].tolist()[1] == "rejected", "one node is free at 1"


def test_a_job_that_is_too_slow_on_few_nodes_is_cancelled_at_its_deadline() -> None:
    run = predict(jobs_that_leak([(0, 50, 3, 3, 99), (0, 10, 2, 1, 15)]), 4, "leak")
    assert run.jobs["state"].tolist() == ["completed", "cancelled"]
    assert (run.jobs["end"][1], run.jobs["reason"][1]) == (15, "deadline")


def test_jobs_that_leak_core_by_core_are_nearly_all_accepted() -> None:
    """A process on each node of one core: a job begins with one, and takes others as they come free.

    On whole nodes jobs hold four times as many cores, and a heavy load is accepted in part, without waiting less of it.
    """
    accepted = {}
    for cores, nodes, grid in ((1, 512, "8x16x4"), (4, 128, "8x16")):
        rigid = tb.generate("deadline-heavy", jobs=300, seed=12, cores_per_node=cores)
        work = to_malleable(rigid, 1.0, seed=12, thresholds=Thresholds(least=0.001))
        for waits in (False, True):
            run = predict(work, nodes, Leak(waits=waits), placement="first", grid=grid)
            accepted[cores, waits] = run.jobs["start"].notna().mean()
    assert accepted[1, True] >= 0.95 > accepted[4, True] > accepted[4, False] + 0.1


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


@dataclass(frozen=True)
class Dated(Leak):
    """Leak, with a check of the dates and of the order of the queue in each call."""

    def decide(self, state: State) -> Iterator[Decision]:
        waiting, jobs, now = state.queue.jobs(), state.jobs, state.now
        assert state.queue.in_order({*waiting, *state.size}) == waiting
        starts = {job: jobs.earliest_of(job) for job in waiting}
        deadlines = {job: jobs.deadline_of(job) for job in [*waiting, *state.size]}
        for dates, expected in ((state.starts, starts), (state.deadlines, deadlines)):
            assert dates.passed(now) == {job for job, at in expected.items() if at <= now}
            assert dates.following(now) == min((at for at in expected.values() if at > now), default=math.inf)
        yield from super().decide(state)


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


@given(cases(), st.booleans(), st.sampled_from([0.0, 0.25, 2.0]), st.sampled_from([0.0, 3.0]))
def test_no_node_is_held_twice_and_contiguous_jobs_are_contiguous(
    case: tuple[Workload, Grid], contiguous: bool, launch_s: float, interval_s: float
) -> None:
    work, grid = case
    policy, late = Watched(contiguous), Overheads(launch_s=launch_s)
    run = predict(work, len(grid), policy, placement="median", grid=str(grid), overheads=late, interval_s=interval_s)
    rows = [(row.node + n, row.start, row.end) for row in run.allocations.itertuples() for n in range(row.count)]
    rows.sort()
    for (node, _, end), (other, start, _) in itertools.pairwise(rows):
        assert node != other or end <= start
    if contiguous:
        assert all(len(grid.parts(nodes)) == 1 for job in range(len(work)) for _, _, nodes in stairs(run, job))


@given(cases(), *[st.booleans()] * 3, st.sampled_from([0.0, 0.25, 2.0]), st.sampled_from([0.0, 3.0]))
def test_every_accepted_job_ends_or_is_cancelled_at_its_deadline(
    case: tuple[Workload, Grid], contiguous: bool, waits: bool, reserve: bool, launch_s: float, interval_s: float
) -> None:
    """Also where jobs are launched late, or are scheduled at ticks."""
    work, grid = case
    policy, late = Leak(contiguous, waits, reserve), Overheads(launch_s=launch_s)
    jobs = predict(
        work, len(grid), policy, placement="first", grid=str(grid), overheads=late, interval_s=interval_s
    ).jobs
    assert set(jobs["state"]) <= {"completed", "cancelled", "rejected"}
    assert (jobs["deadline"].notna() | (jobs["state"] == "completed")).all()
    assert (jobs["start"].notna() == (jobs["state"] != "rejected")).all()
    until = np.ceil(jobs["deadline"] / interval_s) * interval_s if interval_s else jobs["deadline"]
    cancelled = jobs["state"] == "cancelled"
    assert (jobs["end"][cancelled] == until[cancelled]).all()
    assert not (jobs["end"] > until).any()


@given(cases(), st.sampled_from(["fcfs", "shortest-first", "aging"]), st.sampled_from([0.0, 3.0]))
def test_dates_and_queues_are_those_of_a_look_at_all_jobs(
    case: tuple[Workload, Grid], priority: str, interval_s: float
) -> None:
    work, grid = case
    predict(work, len(grid), Dated(), placement="first", grid=str(grid), priority=priority, interval_s=interval_s)


# -- the policy against a slow twin ------------------------------------------------------------------------------------


def poured(grid: Grid, free: set[int], job: int, wanted: int, held: list[int], contiguous: bool) -> list[list[int]]:
    """Return the nodes to which a job flows, by figure 10, from each first node in turn; `held`: from these nodes."""
    width = grid.sides[-1]
    forth_and_back = sorted(
        range(len(grid)), key=lambda node: (node // width, node % width if node // width % 2 == 0 else -(node % width))
    )
    entry = len(grid) * (job % 4) // 4
    snake = [*forth_and_back[entry:], *forth_and_back[:entry]]

    def spread(mapped: list[int]) -> list[int]:
        while len(mapped) < wanted + len(held):
            selected = [node for mine in mapped for node in grid.neighbours[mine]]
            if not contiguous and not free & set(selected) - set(mapped):
                selected = [node for node in snake if node in free and node not in mapped][:1]
            found = [node for node in dict.fromkeys(selected) if node in free and node not in mapped]
            if not found:
                break
            mapped = [*mapped, *found][: wanted + len(held)]
        return mapped[len(held) :]

    return [spread(held)] if held else [spread([first]) for first in snake if first in free]


@dataclass
class Flowing:
    """A running job of the twin."""

    periods: list[tuple[float, list[int]]]
    done: float
    since: float
    rate: float
    end: float

    @property
    def nodes(self) -> list[int]:
        return [node for _, nodes in self.periods for node in nodes]


def twin(jobs: Jobs, grid: Grid, contiguous: bool) -> tuple[dict[int, tuple[str, float, float]], set[tuple[int, ...]]]:
    """Return (state, start, end) of each job, and who held which node: (job, node, start, end).

    At each instant, all jobs are read, and everything is computed from the nodes that jobs hold.
    """
    found: dict[int, tuple[str, float, float]] = {}
    held: set[tuple[Any, ...]] = set()
    running: dict[int, Flowing] = {}
    cancelled: set[int] = set()
    now = -math.inf
    while len(found) < len(jobs):
        dates = [each.end for each in running.values()]
        for job in set(range(len(jobs))) - set(found):
            dates += [at for at in (jobs.submit[job], jobs.earliest_of(job), jobs.deadline_of(job)) if at > now]
        now = min(dates)
        for job in [job for job, each in running.items() if each.end == now]:
            each = running.pop(job)
            held |= {(job, node, since, now) for since, nodes in each.periods for node in nodes}
            found[job] = ("cancelled" if job in cancelled else "completed", each.periods[0][0], now)
        for job in [job for job in running if jobs.deadline_of(job) <= now]:
            cancelled.add(job)
            running[job].end = now  # its nodes are free when this instant is repeated
        for job in [job for job in running if job not in cancelled and jobs.malleable[job]]:
            each, free = running[job], set(range(len(grid))).difference(*(other.nodes for other in running.values()))
            (more,) = poured(grid, free, job, jobs.nodes[job] - len(each.nodes), each.nodes, contiguous)
            if more:
                each.periods.append((now, sorted(more)))
                each.done += (now - each.since) * each.rate
                each.since, each.rate = now, len(each.nodes) / jobs.nodes[job]
                each.end = now + (jobs.work[job] - each.done) / each.rate
        for job in range(len(jobs)):
            if job in found or job in running or jobs.submit[job] > now:
                continue
            free = set(range(len(grid))).difference(*(other.nodes for other in running.values()))
            reached = poured(grid, free, job, jobs.nodes[job], [], contiguous)
            enough = [nodes for nodes in reached if len(nodes) >= jobs.low[job]]
            if jobs.deadline_of(job) <= now:
                found[job] = ("rejected", math.nan, math.nan)
            elif jobs.earliest_of(job) <= now and enough:
                rate = len(enough[0]) / jobs.nodes[job]
                running[job] = Flowing([(now, sorted(enough[0]))], 0.0, now, rate, now + jobs.work[job] / rate)
            elif jobs.earliest_of(job) <= now and jobs.deadline_of(job) < math.inf:
                found[job] = ("rejected", math.nan, math.nan)
    return found, held


@given(cases(), st.booleans())
def test_the_schedule_is_that_of_a_slow_twin(case: tuple[Workload, Grid], contiguous: bool) -> None:
    work, grid = case
    run = predict(work, len(grid), Leak(contiguous), placement="first", grid=str(grid))
    found, held = twin(Jobs.of(work), grid, contiguous)
    jobs = run.jobs.itertuples()
    assert [f"{job.state} {job.start} {job.end}" for job in jobs] == [
        "{} {} {}".format(*found[job]) for job in range(len(work))
    ]
    rows = run.allocations.itertuples()
    assert {(int(row.job_id), row.node + n, row.start, row.end) for row in rows for n in range(row.count)} == held


@pytest.mark.parametrize("options", [{}, {"waits": True}, {"reserve": True}])
def test_the_journal_of_a_replay_gives_the_same_decisions_again(tmp_path: Path, options: dict[str, bool]) -> None:
    """10 malleable jobs on 2 x 2 emulated nodes: they start on what they reach, expand, and some are cancelled."""
    rng = np.random.default_rng(3)
    sizes, times = rng.integers(2, 5, 10), rng.integers(40, 160, 10)
    rows = [(15.0 * job, times[job], sizes[job], 1, 15.0 * job + 2.0 * times[job]) for job in range(10)]
    work, nodes = jobs_that_leak(rows), virtual(4, cores=1)
    policy, settings = Leak(**options), replaying(300.0, placement="leak", grid="2x2")
    run = replay(work, nodes, policy, tmp_path / "run", **settings)
    path = tmp_path / "run" / JOURNAL
    assert decided_again(path, Jobs.of(work), nodes, policy, settings) == decided(path)
    assert set(run.jobs["state"]) <= {"completed", "cancelled", "rejected"}
    assert (run.jobs["start"].notna() == (run.jobs["state"] != "rejected")).all()
