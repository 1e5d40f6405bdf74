"""Jobs with deadlines: reservations of nodes, and the policy that accepts a job with a reservation or rejects it."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import tracebed.api as tb
from tests.oracles.redecided import decided, decided_again, noting, virtual
from tests.runs import replaying
from tracebed.cli import tracebed
from tracebed.converters.workload import Workload
from tracebed.ground.errors import InputError
from tracebed.ground.topology import Grid
from tracebed.orchestrator.replay.session import replay
from tracebed.orchestrator.run import JOURNAL, Run
from tracebed.orchestrator.scheduling.jobs import Jobs
from tracebed.orchestrator.scheduling.node_masks import nodes_of
from tracebed.orchestrator.scheduling.policies import registry
from tracebed.orchestrator.scheduling.policies.deadline import Deadline
from tracebed.orchestrator.scheduling.reservations import Hold, Reservations
from tracebed.orchestrator.scheduling.state import Decision, Reject, Reserve, Start
from tracebed.orchestrator.setup import Setup
from tracebed.orchestrator.simulation.overheads import Overheads
from tracebed.orchestrator.simulation.prediction import predict
from tracebed.orchestrator.simulation.simulator import Simulator

# -- reservations ----------------------------------------------------------------------------------------------------


@dataclass
class EveryInterval:
    """The obvious reference of `Reservations`: a list of (job, start, end, nodes)."""

    rows: list[tuple[int, float, float, set[int]]] = field(default_factory=list)

    def free(self, nodes: int, start: float, end: float) -> set[int]:
        held = [on for _, begin, until, on in self.rows if begin < end and start < until]
        return set(range(nodes)).difference(*held)


INSTANTS = st.integers(0, 12).map(float)


@given(st.integers(1, 70), st.data())
def test_reservations_are_those_of_a_list_of_intervals(nodes: int, data: st.DataObject) -> None:
    found, expected = Reservations(nodes), EveryInterval()
    numbers = st.sets(st.integers(0, nodes - 1), min_size=1, max_size=4)
    for job in data.draw(st.lists(st.integers(0, 9), max_size=25)):
        others = [row for row in expected.rows if row[0] != job]
        start, length, chosen = data.draw(INSTANTS), data.draw(st.integers(1, 6)), data.draw(numbers)
        if data.draw(st.booleans()):
            found.remove(job)
            expected.rows = others
        elif chosen <= EveryInterval(others).free(nodes, start, start + length):
            found.add(job, Hold(start, start + length, tuple(chosen)))
            expected.rows = [*others, (job, start, start + length, chosen)]
        else:
            with pytest.raises(ValueError, match="another job holds"):
                found.add(job, Hold(start, start + length, tuple(chosen)))
            expected.rows = others
        assert {job: set(hold.nodes) for job, hold in found.holds.items()} == {row[0]: row[3] for row in expected.rows}
        since, until, duration = data.draw(INSTANTS), data.draw(INSTANTS), float(data.draw(st.integers(1, 6)))
        free = expected.free(nodes, since, since + duration)
        assert set(np.flatnonzero(found.free(since, since + duration)).tolist()) == free
        ends = {end for _, _, end, _ in expected.rows if since < end <= until}
        all_free = {at: expected.free(nodes, at, at + duration) for at in sorted({since, *ends}) if at <= until}
        openings = {at: set(nodes_of(bits)) for at, bits in found.openings(duration, since, until)}
        assert openings.items() <= all_free.items()
        for at in all_free.keys() - openings.keys():  # an end at which other jobs hold the nodes from then on
            assert any(all_free[at] <= free for before, free in openings.items() if before < at)
        taken = [max(since, begin) for _, begin, end, on in expected.rows if on & chosen and end > since]
        assert found.taken(chosen, since) == min(taken, default=math.inf)


def test_a_reservation_leaves_nothing_behind() -> None:
    reservations = Reservations(6)
    for job in range(100):
        reservations.add(job, Hold(float(job), job + 2.0, (job % 4, 4 + job % 2)))
        if job:
            reservations.remove(job - 1)
    reservations.remove(99)
    assert (reservations._times, reservations._held) == ([-math.inf], [0])


def test_an_empty_interval_is_refused() -> None:
    for end in (5.0, math.inf):
        with pytest.raises(ValueError, match="not an interval"):
            Reservations(1).add(0, Hold(5.0, end, (0,)))


# -- the policy against a slow twin ------------------------------------------------------------------------------------


PLACEMENTS = ["first", "hilbert", "median", "median-strict"]


def jobs_with_deadlines(rows: list[tuple[float, ...]]) -> Workload:
    """Return jobs of (submission, run time, nodes, deadline[, earliest start[, time limit]])."""
    full = [(*row, *(math.nan, row[1])[len(row) - 4 :]) for row in rows]
    table = pd.DataFrame(full, columns=["submit_time", "run_time", "nodes", "deadline", "earliest_start", "time_limit"])
    return Workload(table.assign(job_id=[str(job) for job in range(len(rows))], cores_per_node=1, kind="rigid"))


def admissible(grid: Grid, placement: str, free: set[int], count: int) -> list[int] | None:
    """Return the nodes of figures 6 and 8, written as the figures say."""
    if placement == "first":
        return sorted(free)[:count] if len(free) >= count else None
    if placement == "hilbert":
        segments = (grid.curve[begin : begin + count].tolist() for begin in range(len(grid) - count + 1))
        return next((segment for segment in segments if free.issuperset(segment)), None)
    for node in sorted(free):
        part = [node]
        while len(part) < count:
            beside = {other for mine in part for other in grid.neighbours[mine]} - set(part)
            if placement == "median":
                beside &= free
            added = {other: sum(grid.distance(other, mine) for mine in part) for other in beside}
            selected = {other for other in beside if added[other] == min(added.values())} & free
            if not selected:
                break
            part.append(min(selected))
        if len(part) == count:
            return part
    return None


def twin(jobs: Jobs, grid: Grid, placement: str) -> dict[int, tuple[float, list[int]]]:
    """Return the start and the nodes of each accepted job: every start is tried, over all jobs that have not ended."""
    accepted: dict[int, tuple[float, list[int]]] = {}
    for job in range(len(jobs)):
        now, count, limit = jobs.submit[job], jobs.nodes[job], jobs.limit[job]
        present = {
            other: (at, at + max(1.0, jobs.limit[other]), set(nodes))
            for other, (at, nodes) in accepted.items()
            if at + jobs.work[other] > now
        }
        since, deadline = jobs.earliest_of(job), jobs.deadline_of(job)
        for at in sorted({since, *(end for _, end, _ in present.values() if end > since)}):
            end = at + max(1.0, limit)
            held = [on for begin, until, on in present.values() if begin < end and at < until]
            nodes = admissible(grid, placement, set(range(len(grid))).difference(*held), count)
            if nodes is not None and at + limit <= deadline:
                accepted[job] = (at, nodes)
                break
    return accepted


@st.composite
def cases(draw: st.DrawFn) -> tuple[Workload, Grid, str]:
    grid = Grid(draw(st.sampled_from([(2, 3), (3, 3), (4, 4), (2, 2, 2), (7,)])))
    rows = []
    submit = 0.0
    for _ in range(draw(st.integers(1, 14))):
        submit += draw(st.sampled_from([0.0, 1.0, 2.5]))
        run_time = draw(st.sampled_from([0.5, 1.0, 2.0, 4.0, 5.5]))
        limit = run_time + draw(st.sampled_from([0.0, 0.0, 1.0, 3.0]))
        earliest = submit + draw(st.sampled_from([math.nan, 0.0, 3.0, 7.5]))
        deadline = submit + limit + draw(st.sampled_from([math.nan, -1.0, 0.0, 2.0, 5.0, 20.0]))
        rows.append((submit, run_time, draw(st.integers(1, len(grid))), deadline, earliest, limit))
    return jobs_with_deadlines(rows), grid, draw(st.sampled_from(PLACEMENTS))


@given(cases())
def test_accepted_jobs_starts_and_nodes_are_those_of_a_slow_twin(case: tuple[Workload, Grid, str]) -> None:
    work, grid, placement = case
    jobs = Jobs.of(work)
    said: list[tuple[float, Decision]] = []
    simulator = Simulator(
        jobs, [1] * len(grid), noting(Deadline(), said), Setup.of("deadline", placement=placement, grid=str(grid))
    )
    record = simulator.run()
    expected = twin(jobs, grid, placement)
    started = {each.job: (at, sorted(each.on)) for at, each in said if isinstance(each, Start)}
    assert started == {job: (at, sorted(nodes)) for job, (at, nodes) in expected.items()}
    reserved = [each for _, each in said if isinstance(each, Reserve)]
    assert len(reserved) == len(expected), "a reservation is never moved"
    for job, state in enumerate(record.state):
        assert state == ("completed" if job in expected else "rejected")
        if job in expected:
            assert record.end[job] <= jobs.deadline_of(job)
            assert jobs.earliest_of(job) <= record.start[job] == {each.job: each.at for each in reserved}[job]


def held_at_once(run: Run) -> Iterator[tuple[Any, Any]]:
    """Yield pairs of allocations that have a node in common at the same time."""
    rows = list(run.allocations.itertuples())
    for one, other in itertools.combinations(rows, 2):
        on_one_node = one.node < other.node + other.count and other.node < one.node + one.count
        if on_one_node and one.start < other.end and other.start < one.end:
            yield one, other


@given(cases(), st.sampled_from([0.0, 0.25, 2.0]), st.sampled_from([0.0, 0.25, 4.0]), st.sampled_from([0.0, 3.0]))
def test_every_accepted_job_ends_or_is_cancelled_by_its_deadline(
    case: tuple[Workload, Grid, str], launch_s: float, margin_s: float, interval_s: float
) -> None:
    """Also where jobs are launched late, take longer than reserved, or are scheduled at ticks."""
    work, grid, placement = case
    run = predict(
        work,
        len(grid),
        Deadline(margin_s),
        placement=placement,
        grid=str(grid),
        overheads=Overheads(launch_s=launch_s),
        interval_s=interval_s,
    )
    assert not list(held_at_once(run))
    jobs = run.jobs
    assert set(jobs["state"]) <= {"completed", "cancelled", "rejected"}
    ran = jobs[jobs["start"].notna()]
    at_tick = ran["deadline"] if not interval_s else np.ceil(ran["deadline"] / interval_s) * interval_s
    assert (ran["end"].le(at_tick) | ran["deadline"].isna()).all()
    if launch_s <= margin_s and not interval_s:
        assert not (jobs["state"] == "cancelled").any()


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_no_job_of_the_study_is_cancelled_if_all_run_as_planned(placement: str) -> None:
    work = tb.generate("deadline-very-heavy", jobs=40, seed=2)
    run = predict(work, 128, "deadline", placement=placement, grid="8x16")
    assert run.jobs["state"].isin(["completed", "rejected"]).all()


# -- by hand -----------------------------------------------------------------------------------------------------------


def outcome(rows: list[tuple[float, ...]], nodes: int, policy: Deadline | None = None, **options: Any) -> list[str]:
    """Return for each job: the state, the interval, and the reason."""
    run = predict(jobs_with_deadlines(rows), nodes, policy or Deadline(), **options)
    return [
        f"{job.state}{'' if math.isnan(job.start) else f' {job.start:g} {job.end:g}'} {job.reason}".strip()
        for job in run.jobs.itertuples()
    ]


def test_a_job_is_reserved_at_the_first_change_of_occupancy_that_allows_it_and_else_rejected() -> None:
    """2 nodes. Jobs 0 and 1 hold one node each, until 10 and 20. Job 2 needs both and starts at 20; job 3 cannot."""
    rows = [(0, 10, 1, 100), (0, 20, 1, 100), (1, 5, 2, 25), (2, 6, 2, 29), (3, 6, 1, 18), (3, 9, 1, 18), (3, 9, 1, 11)]
    assert outcome(rows, 2) == [
        "completed 0 10",
        "completed 0 20",
        "completed 20 25",
        "rejected fewer than 2 nodes are free for 6 s before its deadline",
        "completed 10 16",
        "rejected fewer than 1 nodes are free for 9 s before its deadline",
        "rejected 9 s from its earliest start are too long for its deadline",
    ]


def test_a_reason_says_that_only_the_shape_is_missing() -> None:
    """A line of 4; jobs hold the nodes 0 and 2, so that two nodes are free, but not side by side."""
    rows = [(0, 10, 1, 99), (0, 1, 1, 99), (0, 10, 1, 99), (2, 5, 2, 12)]
    reason = "rejected no admissible shape of 2 nodes is free for 5 s before its deadline"
    for placement in ("hilbert", "median"):
        assert outcome(rows, 4, placement=placement, grid="4")[3] == reason
    assert outcome(rows, 4)[3] == "completed 2 7"


def test_an_early_end_releases_the_rest_of_the_reservation_for_later_jobs() -> None:
    """The limit of job 0 is 50, and job 1 reserves 50. Job 0 ends at 10; job 2 then fits before job 1, which stays."""
    rows = [(0, 10, 1, 99, math.nan, 50), (1, 5, 1, 99), (10, 40, 1, 60), (11, 1, 1, 55)]
    assert outcome(rows, 1)[:3] == ["completed 0 10", "completed 50 55", "completed 10 50"]
    assert outcome(rows, 1)[3].startswith("rejected")


def test_a_job_waits_for_its_earliest_start_also_on_an_idle_machine() -> None:
    assert outcome([(0, 10, 1, 99, 30), (5, 10, 1, math.nan)], 1) == ["completed 30 40", "completed 5 15"]


def test_a_job_without_a_deadline_is_never_rejected() -> None:
    rows = [(0, 10, 2, math.nan), (0, 10, 2, math.nan), (0, 10, 2, 15)]
    assert outcome(rows, 2)[:2] == ["completed 0 10", "completed 10 20"] and outcome(rows, 2)[2].startswith("rejected")


def test_a_job_that_overruns_its_reservation_runs_on_until_its_nodes_are_needed_or_its_deadline() -> None:
    """A launch takes 3 s, so that a job of 10 s takes 13. Reservations are 10 s long, or 13 with a margin of 3."""
    slow: dict[str, Any] = {"overheads": Overheads(launch_s=3.0)}
    assert outcome([(0, 10, 1, 99)], 1, **slow) == ["completed 0 13"]
    assert outcome([(0, 10, 1, 12)], 1, **slow) == ["cancelled 0 12 deadline"]
    both = [(0, 10, 1, 99), (0, 10, 1, 99)]
    cancelled = "cancelled 0 10 its reservation ended, and another job holds its nodes"
    assert outcome(both, 1, **slow) == [cancelled, "completed 10 23"]
    assert outcome(both, 1, Deadline(margin_s=3.0), **slow) == ["completed 0 13", "completed 13 26"]
    # Job 1 arrives while job 0 overruns: the extended reservation of job 0 is kept.
    assert outcome([(0, 10, 1, 99), (11, 10, 1, 99)], 1, **slow) == ["completed 0 13", "completed 20 33"]


def test_a_job_that_starts_late_keeps_the_time_of_its_limit() -> None:
    """At ticks of 4 s, job 0 starts at 0 and job 1 at 12, 2 s late; job 2 waits for the end of job 1."""
    rows = [(0, 10, 1, 99), (0, 10, 1, 99), (0, 10, 1, 99)]
    assert outcome(rows, 1, interval_s=4.0) == ["completed 0 10", "completed 12 22", "completed 24 34"]


def test_median_grows_as_in_figure_9() -> None:
    """The picture is not in the text. Here, jobs hold the nodes 1 and 4 of 4 x 4, so that node 0 has no neighbour.

    The part of job 4 begins at node 2, and takes 3 (1 link), 6 (1 + 2), 7 (2 + 1 + 1).
    """
    rows = [(0, 1, 1, 99), (0, 50, 1, 99), (0, 1, 2, 99), (0, 50, 1, 99), (1, 5, 4, 99)]
    run = predict(jobs_with_deadlines(rows), 16, "deadline", placement="median", grid="4x4")
    of_job = {str(job): rows for job, rows in run.allocations.groupby("job_id")}
    assert [of_job[job]["node"].tolist() for job in "0123"] == [[0], [1], [2], [4]]
    assert [(row.node, row.count) for row in of_job["4"].itertuples()] == [(2, 2), (6, 2)]
    assert run.jobs["start"].tolist() == [0, 0, 0, 0, 1]


@pytest.mark.parametrize("margin_s", ["-1", "inf", "nan"])
def test_an_invalid_margin_is_an_error(margin_s: str) -> None:
    with pytest.raises(InputError, match="margin_s"):
        registry.load("deadline", {"margin_s": margin_s})


# -- nodes that are lost, and replays ----------------------------------------------------------------------------------


def test_a_reservation_of_a_lost_node_is_replaced_or_its_job_is_rejected() -> None:
    from tests.scheduling.test_outages import Executor

    work = jobs_with_deadlines([(0, 10, 1, 99), (0, 10, 1, 40), (0, 10, 2, 40), (0, 10, 1, math.nan, 5)])
    executor = Executor(Jobs.of(work), 2, Deadline())
    executor.submit(0, 1, 2, 3)
    executor.decide()
    holds = executor.state.reservations.holds
    assert {job: (hold.start, hold.nodes) for job, hold in holds.items()} == {
        **{0: (0.0, (0,)), 1: (0.0, (1,)), 2: (10.0, (0, 1))},
        3: (20.0, (0,)),
    }
    executor.now = 1.0
    executor.lose(1)
    executor.decide()
    assert executor.rejected == {2} and holds[3].start == 20.0
    executor.end(1, requeue=True)
    executor.decide()
    assert holds[1] == Hold(10.0, 20.0, (0,)), "the job that lost its node is reserved anew"
    executor.bring_back(1)
    executor.decide()
    assert holds[1] == Hold(10.0, 20.0, (0,)), "a reservation does not move"


def test_a_replay_accepts_the_jobs_of_its_simulation_at_the_same_times_on_the_same_nodes(tmp_path: Path) -> None:
    """14 jobs on 2 x 2 emulated nodes, which may start 2 s after the replay begins, so that no plan depends on delays.

    A busy machine may take longer to launch a job than the margin; the job is cancelled if the next one needs its
    nodes. The journal gives the same decisions again in any case.
    """
    rng = np.random.default_rng(5)
    run_times, sizes = rng.integers(40, 120, 14).astype(float), rng.integers(1, 4, 14).astype(float)
    rows = [
        (10.0 * job, run_time, size, 900.0 + run_time * 3, 900.0 + 5.0 * job)
        for job, (run_time, size) in enumerate(zip(run_times, sizes, strict=True))
    ]
    work, nodes, placed = jobs_with_deadlines(rows), virtual(4, cores=1), {"placement": "hilbert", "grid": "2x2"}
    said: dict[str, list[tuple[float, Decision]]] = {"real": [], "simulated": []}
    options = replaying(400.0, **placed)
    real = replay(work, nodes, noting(Deadline(20.0), said["real"]), tmp_path / "run", **options)
    simulated = predict(work, 4, noting(Deadline(20.0), said["simulated"]), **placed)
    plans: dict[str, dict[int, Decision]] = {"real": {}, "simulated": {}}
    for name, decisions in said.items():
        for _, decision in decisions:
            if isinstance(decision, Reserve | Reject):
                plans[name].setdefault(decision.job, decision)
    assert plans["real"] == plans["simulated"]
    assert set(simulated.jobs["state"]) == {"completed", "rejected"}
    assert ((real.jobs["state"] == "rejected") == (simulated.jobs["state"] == "rejected")).all()
    assert set(real.jobs["state"]) <= {"completed", "cancelled", "rejected"}
    done = decided(tmp_path / "run" / JOURNAL)
    assert decided_again(tmp_path / "run" / JOURNAL, Jobs.of(work), nodes, Deadline(20.0), options) == done
    on = {int(each.job): sorted(int(name[1:]) - 1 for name in each.nodes) for each in done if each.kind == "start"}
    reserved = {job: sorted(each.on) for job, each in plans["simulated"].items() if isinstance(each, Reserve)}
    assert on == {job: reserved[job] for job in on} and on


# -- rates by behavior -------------------------------------------------------------------------------------------------


def test_rates_by_behavior_are_in_metrics_and_in_the_table_of_the_command(tmp_path: Path) -> None:
    """1 node. Of the jobs bsp, one of two is accepted and in time; of forks one is cancelled; one has no deadline."""
    work = jobs_with_deadlines([(0, 10, 1, 99), (0, 10, 1, 15), (20, 10, 1, 33), (50, 5, 1, math.nan)])
    work.table["behaviour"] = ["bsp", "bsp", "forks", "forks"]
    run = tb.Run.of(predict(work, 1, Deadline(), overheads=Overheads(launch_s=4.0)))
    assert run.jobs["state"].tolist() == ["completed", "rejected", "cancelled", "completed"]
    found = run.metrics()
    assert (found["accepted_cancel_rate"], found["in_time_rate"]) == (1 / 2, 1 / 3)
    assert found["deadlines_by_behaviour"] == {
        "bsp": {
            **{"jobs": 2, "acceptance_rate": 0.5, "guarantee_rate": 1.0, "cancel_rate": 0.0},
            **{"accepted_cancel_rate": 0.0, "in_time_rate": 0.5},
        },
        "forks": {
            **{"jobs": 1, "acceptance_rate": 1.0, "guarantee_rate": 0.0, "cancel_rate": 1.0},
            **{"accepted_cancel_rate": 1.0, "in_time_rate": 0.0},
        },
    }
    reason = run.jobs["reason"][1]
    assert f"1 job rejected by the policy: {reason}; the table jobs has the reasons" in run.info.warnings
    run.save(tmp_path / "run")
    shown = CliRunner().invoke(tracebed, ["metrics", str(tmp_path / "run")]).output
    assert re.search(r"behavior forks, cancel rate of accepted jobs +1", shown)
    other = tb.Run.of(predict(work, 1, Deadline()))
    run.info.source = "replay"
    by = tb.compare(run, other).breakdown()
    assert set(by.loc[by["by"] == "behaviour", "class"]) == {"bsp", "forks"}


def test_rates_by_behavior_are_missing_where_no_behavior_is_known() -> None:
    run = tb.Run.of(predict(jobs_with_deadlines([(0, 10, 1, 99)]), 1, Deadline()))
    assert run.metrics()["deadlines_by_behaviour"] == {}
