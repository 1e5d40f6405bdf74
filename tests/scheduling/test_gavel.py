"""Gavel's rounds: a slow twin of the two policies, written from the page, and what the scheduler does to suspend."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tracebed.api as tb
from tests.oracles.reference_scheduler import NearTie
from tracebed.ground.errors import InputError, TracebedError
from tracebed.orchestrator.scheduling.scheduler import PolicyError
from tracebed.orchestrator.scheduling.state import Decision, Start, State, Suspend, Wake
from tracebed.testing import check_policy

NEAR = 1e-9


@dataclass
class Job:
    """A job of the twin; times are whole seconds."""

    submit: int
    run: int
    limit: int
    nodes: int
    done: int = 0
    start: int | None = None
    end: int | None = None
    held: list[tuple[int, int]] = field(default_factory=list)


def shares(policy: str, jobs: list[Job], nodes: int, round_s: int) -> list[Fraction]:
    """Return the share of each job, exactly, as the page states it."""
    if policy == "max-min-fairness":
        level, small = Fraction(nodes, len(jobs)), list[Job]()
        while more := [job for job in jobs if job.nodes <= level and job not in small]:
            small += more
            if len(small) == len(jobs):
                return [Fraction(1)] * len(jobs)
            level = Fraction(nodes - sum(job.nodes for job in small), len(jobs) - len(small))
        return [min(Fraction(1), level / job.nodes) for job in jobs]
    left = [Fraction(max(job.limit - job.done, round_s)) for job in jobs]
    candidates = [*left, sum((job.nodes * rest for job, rest in zip(jobs, left, strict=True)), Fraction(0)) / nodes]
    fitting = [
        total
        for total in candidates
        if all(rest <= total for rest in left)
        and sum(job.nodes * rest / total for job, rest in zip(jobs, left, strict=True)) <= nodes
    ]
    return [rest / min(fitting) for rest in left]


def twin(policy: str, jobs: list[Job], nodes: int, round_s: int) -> None:
    """Run the jobs second by second."""
    running: list[Job] = []
    now = 0
    while any(job.end is None for job in jobs):
        for job in [job for job in running if job.done == job.run]:
            job.end = now
            running.remove(job)
        present = [job for job in jobs if job.submit <= now and job.end is None]
        if now % round_s == 0 and present:
            running = chosen(policy, present, nodes, round_s, now)
        for job in running:
            job.start = now if job.start is None else job.start
            job.done += 1
            job.held.append((now, now + 1))
        now += 1
        assert now < 1_000_000


def chosen(policy: str, present: list[Job], nodes: int, round_s: int, now: int) -> list[Job]:
    """Return the jobs that run in the round that begins now."""
    of = dict(zip(map(id, present), shares(policy, present, nodes, round_s), strict=True))

    def before(one: Job, other: Job) -> bool:
        """Return whether a job is before another one that was submitted later."""
        if (one.done == 0) != (other.done == 0):
            return one.done == 0
        keys = [of[id(job)] * (Fraction(now - job.submit, job.done) if job.done else 1) for job in (one, other)]
        same = all(getattr(one, name) == getattr(other, name) for name in ("done", "limit", "nodes", "submit"))
        if not same and abs(keys[0] - keys[1]) <= NEAR * max(keys) and one.done:
            raise NearTie
        if one.done and keys[0] == keys[1]:
            return of[id(one)] >= of[id(other)]
        return keys[0] >= keys[1]

    order: list[Job] = []
    for job in present:
        place = next((at for at, other in enumerate(order) if not before(other, job)), len(order))
        order.insert(place, job)
    found, free = list[Job](), nodes
    for job in order:
        if job.nodes <= free:
            found.append(job)
            free -= job.nodes
    return found


def workload(jobs: list[Job]) -> tb.Workload:
    return tb.Workload(
        pd.DataFrame(
            {
                "job_id": [str(number) for number in range(len(jobs))],
                "submit_time": [float(job.submit) for job in jobs],
                "run_time": [float(job.run) for job in jobs],
                "time_limit": [float(job.limit) for job in jobs],
                "nodes": [job.nodes for job in jobs],
                "kind": "rigid",
            }
        )
    )


@st.composite
def drawn(draw: st.DrawFn) -> list[Job]:
    submits = sorted(draw(st.lists(st.integers(0, 60), min_size=1, max_size=8)))
    jobs = []
    for submit in submits:
        run = draw(st.integers(1, 60))
        jobs.append(Job(submit, run, run + draw(st.integers(0, 30)), draw(st.integers(1, 4))))
    return jobs


@pytest.mark.parametrize("policy", ["max-min-fairness", "min-total-duration"])
@given(jobs=drawn(), round_s=st.integers(1, 20))
def test_the_policies_are_their_slow_twin(policy: str, jobs: list[Job], round_s: int) -> None:
    twin(policy, jobs, 4, round_s)
    run = tb.simulate(workload(jobs), policy, nodes=4, policy_parameters={"round_s": float(round_s)})
    assert run.jobs["start"].tolist() == [job.start for job in jobs]
    assert run.jobs["end"].tolist() == [job.end for job in jobs]
    spans = run.allocations.assign(area=(run.allocations["end"] - run.allocations["start"]) * run.allocations["count"])
    area = spans.groupby("job_id")["area"].sum()
    assert area.reindex(run.jobs["job_id"]).tolist() == [job.nodes * len(job.held) for job in jobs]


@pytest.mark.parametrize("policy", ["max-min-fairness", "min-total-duration"])
def test_the_policies_keep_the_invariants(policy: str) -> None:
    check_policy(policy, {"round_s": 11.0}, cases=20)


def test_two_jobs_take_turns_on_one_node() -> None:
    """By hand: at 10 s the second job has never run; at 20 s the first has run half of its 20 s, the other all 10."""
    run = tb.simulate(
        workload([Job(0, 25, 25, 1), Job(5, 10, 10, 1)]), "max-min-fairness", nodes=1, policy_parameters={"round_s": 10}
    )
    held = run.allocations.sort_values("start")[["job_id", "start", "end"]].to_numpy().tolist()
    assert held == [["0", 0, 10], ["1", 10, 20], ["0", 20, 35]]
    assert run.jobs["start"].tolist() == [0, 10] and run.jobs["restarts"].tolist() == [0, 0]


def test_a_round_needs_a_length() -> None:
    with pytest.raises(InputError, match="round_s is 0"):
        tb.simulate(workload([Job(0, 1, 1, 1)]), "max-min-fairness", nodes=1, policy_parameters={"round_s": 0})


@dataclass(frozen=True)
class Pause:
    """Suspends the job from 10 to 30 s, and notes its expected end when it continues."""

    malleable: ClassVar[bool] = False
    ends: ClassVar[list[float]] = []

    def decide(self, state: State) -> Iterator[Decision]:
        if state.now < 10 and state.queue.jobs():
            yield Start(0, 1)
            yield Wake(10)
        elif state.now == 10:
            assert state.service(0) == 10
            yield Suspend(0)
            assert state.idle == 1 and state.service(0) == 10 and [*state.queue.jobs()] == [0]
            yield Wake(30)
        elif state.now >= 30 and state.queue.jobs() and state.idle:
            yield Start(0, 1)
            self.ends.append(state.expected_end[0])


@pytest.mark.parametrize(
    ("job", "settings", "end", "state", "expected"),
    [
        (Job(0, 25, 40, 1), {}, 45, "completed", 60),
        (Job(0, 25, 15, 1), {"over_limit": "kill"}, 35, "killed", 35),  # its limit does not count the suspension
        (Job(0, 25, 40, 1), {"overheads": {"launch_s": 4}}, 30 + 4 + 19, "completed", 60),  # the second launch, too
        (Job(0, 25, 40, 1), {"overheads": {"launch_s": 12}}, 30 + 12 + 25, "completed", 60),  # it had not begun
    ],
)
def test_a_suspended_job_keeps_its_work(
    job: Job, settings: dict[str, Any], end: float, state: str, expected: float
) -> None:
    Pause.ends.clear()
    run = tb.simulate(workload([job]), Pause(), nodes=1, **settings)
    assert (run.jobs["start"][0], run.jobs["end"][0], run.jobs["state"][0]) == (0, end, state)
    assert run.allocations[["start", "end"]].to_numpy().tolist() == [[0, 10], [30, end]]
    assert Pause.ends == [expected]


def test_a_job_that_loses_its_node_after_a_suspension_starts_again_without_its_work(tmp_path: Path) -> None:
    (tmp_path / "outages.csv").write_text("node,from,to\nn1,32,50\n")
    run = tb.simulate(workload([Job(0, 25, 40, 1)]), Pause(), nodes=1, outages=str(tmp_path / "outages.csv"))
    assert run.jobs["end"][0] == 75 and run.jobs["restarts"][0] == 1


@dataclass(frozen=True)
class Early:
    """Suspends a job that waits."""

    malleable: ClassVar[bool] = False

    def decide(self, state: State) -> Iterator[Decision]:
        for job in state.queue.jobs():
            yield Suspend(job)


def test_impossible_suspensions_are_refused() -> None:
    with pytest.raises(PolicyError, match="cannot suspend job 0: the job is not running"):
        tb.simulate(workload([Job(0, 1, 1, 1)]), Early(), nodes=1)


def test_a_replay_suspends_no_job() -> None:
    with pytest.raises(TracebedError, match="can be suspended in a simulation only"):
        tb.replay(
            workload([Job(0, 25, 25, 4), Job(5, 10, 10, 4)]),
            "max-min-fairness",
            "emulated-4",
            policy_parameters={"round_s": 10.0},
            speed=50,
        )
