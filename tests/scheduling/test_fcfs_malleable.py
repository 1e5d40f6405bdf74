"""The policy `fcfs-malleable`: each rule of the scheduler that it follows, and that scheduler's loop as an oracle."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import pytest

import tracebed.api as tb

NODES = 12


@dataclass
class J:
    """A job: its work in node s, and its bounds; a rigid job has equal ones."""

    work: float
    low: int
    high: int
    submit: float = 0.0

    @property
    def malleable(self) -> bool:
        return self.low < self.high


def rigid(nodes: int, seconds: float, submit: float = 0.0) -> J:
    return J(nodes * seconds, nodes, nodes, submit)


def simulated(jobs: Sequence[J], *, nodes: int = NODES, pause_s: float = 5.0, **overheads: float) -> tb.Run:
    """Return the run of jobs with linear speed-up."""
    table = {
        "job_id": [str(number) for number in range(len(jobs))],
        "submit_time": [job.submit for job in jobs],
        "run_time": [job.work / job.low for job in jobs],
        "nodes": [job.low for job in jobs],
        "kind": ["malleable" if job.malleable else "rigid" for job in jobs],
        "nodes_min": [job.low for job in jobs],
        "nodes_max": [job.high for job in jobs],
        "nodes_pref": [job.low for job in jobs],
    }
    settings: dict[str, Any] = {"policy_parameters": {"pause_s": pause_s}, "overheads": overheads}
    return tb.simulate(tb.Workload(pd.DataFrame(table)), "fcfs-malleable", nodes=nodes, **settings)


def starts(run: tb.Run) -> list[float]:
    return list(run.jobs["start"])


def resizes(run: tb.Run) -> list[tuple[float, str, int, int]]:
    """Return (when asked, job, nodes before, nodes after) of each resize."""
    table = run.reconfigurations.sort_values("asked", kind="stable")
    return list(zip(table["asked"], table["job_id"], table["nodes_from"], table["nodes_to"], strict=True))


PASSES: dict[str, tuple[list[J], list[float]]] = {
    "a pass starts one job though more fit": ([rigid(2, 100), rigid(2, 100), rigid(2, 100)], [0, 5, 10]),
    "no job starts before the head": ([rigid(8, 22), rigid(8, 20), rigid(2, 20)], [0, 25, 30]),
    "nodes of an ended job are used in the next pass": ([rigid(12, 21.5), rigid(12, 3.5), rigid(12, 1)], [0, 25, 30]),
    "passes go on at the same instants while nothing waits": (
        [rigid(2, 1), rigid(2, 1, submit=12.0), rigid(2, 1, submit=35.0)],
        [0, 15, 35],
    ),
    "a malleable job waits for its minimum": ([rigid(10, 52), J(40, 3, 12)], [0, 55]),
}


@pytest.mark.parametrize("rule", PASSES)
def test_jobs_start_in_passes(rule: str) -> None:
    jobs, expected = PASSES[rule]
    assert starts(simulated(jobs)) == expected


def test_a_malleable_job_starts_on_the_idle_nodes_up_to_its_maximum() -> None:
    run = simulated([rigid(6, 100), J(400, 2, 4), J(40, 1, 8)])
    assert starts(run) == [0, 5, 10]
    sizes = run.allocations.groupby(["job_id", "start"])["count"].sum()
    assert sizes["1", 5.0] == 4
    assert sizes["2", 10.0] == 2


def test_a_shrink_takes_what_the_head_lacks_and_the_head_starts_a_pass_later() -> None:
    run = simulated([J(6000, 2, 10), rigid(5, 10)])
    assert resizes(run)[0] == (5, "0", 10, 7)  # two nodes are idle
    assert starts(run) == [0, 10]


def test_the_job_that_started_first_shrinks_first_and_to_its_minimum() -> None:
    run = simulated([J(6000, 3, 6), J(6000, 1, 6), rigid(5, 10)])
    assert resizes(run)[:2] == [(10, "0", 6, 3), (10, "1", 6, 4)]
    assert starts(run)[2] == 15


def test_no_job_shrinks_if_all_together_release_too_few_nodes() -> None:
    run = simulated([J(120, 8, 12), rigid(5, 10)])
    assert resizes(run) == []
    assert starts(run) == [0, 10]  # the first job has ended


def test_the_pass_waits_for_the_nodes_of_a_shrink_and_then_pauses() -> None:
    run = simulated([J(6000, 2, 12), rigid(5, 10), rigid(1, 10)], release_s=3.5)
    assert starts(run) == [0, 13.5, 27]  # 5 + 3.5 + 5; for the third job the first one shrinks again: 18.5 + 3.5 + 5
    assert [each[0] for each in resizes(run)[:2]] == [5, 18.5]
    assert starts(simulated([J(6000, 2, 12), rigid(5, 10)], release_s=7.0)) == [0, 17]


def test_shrinks_of_a_pass_follow_each_other() -> None:
    run = simulated([J(6000, 3, 6), J(6000, 1, 6), rigid(5, 10)], release_s=2.0)
    assert resizes(run)[:2] == [(10, "0", 6, 3), (12, "1", 6, 4)]
    assert starts(run)[2] == 19


def test_a_job_that_ends_in_its_shrink_ends_the_shrink() -> None:
    run = simulated([J(12 * 6, 2, 12), rigid(8, 10)], release_s=30.0)
    (end,) = run.jobs["end"][:1]  # 60 node s are done at 5 s, and the others take 3 s on 4 nodes
    assert end == 8
    assert starts(run) == [0, 13]


def test_jobs_expand_only_if_no_job_waits() -> None:
    run = simulated([rigid(8, 40), J(400, 2, 12), rigid(12, 10)])
    assert resizes(run) == []  # four nodes for the second job, and later eight idle ones, but the third job waits
    assert starts(run)[:2] == [0, 5]
    assert starts(run)[2] == 105


def test_idle_nodes_go_to_the_job_that_started_first() -> None:
    run = simulated([rigid(8, 28), J(4000, 2, 9), J(4000, 1, 12)])
    # At 5 s the second job takes the four idle nodes, and shrinks by one for the third, which starts at 15 s.
    assert resizes(run)[:3] == [(10, "1", 4, 3), (30, "1", 3, 9), (30, "2", 1, 3)]


def test_an_expansion_does_not_delay_the_passes() -> None:
    run = simulated([rigid(8, 18), J(4000, 2, 12), rigid(2, 10, submit=21.0)], expand_s=30.0)
    assert resizes(run)[0] == (20, "1", 4, 12)
    assert resizes(run)[1][:2] == (50, "1")  # a job with a pending resize is not asked again


def test_without_a_pause_each_event_has_passes_until_nothing_is_decided() -> None:
    run = simulated([rigid(4, 10), J(6000, 2, 8), rigid(4, 10, submit=3.0)], pause_s=0.0)
    assert starts(run) == [0, 0, 3]
    assert resizes(run)[0] == (3, "1", 8, 4)


# -- the loop of the scheduler as an oracle


class Loop:
    """The scheduler as a thread that sleeps, starts, shrinks and expands, beside jobs that end at any instant."""

    def __init__(self, jobs: Sequence[J], nodes: int, pause_s: float, release_s: float) -> None:
        self.jobs, self.idle, self.pause_s, self.release_s = jobs, nodes, pause_s, release_s
        self.now = 0.0
        self.running: list[list[float]] = []  # job, nodes held, nodes that work, work left
        self.started: dict[int, float] = {}
        self.ended: dict[int, float] = {}
        self.asked: list[tuple[float, str, int, int]] = []

    def to(self, until: float, watched: int = -1) -> None:
        """Let the jobs run until an instant, or until the job `watched` ends."""
        while self.running and watched not in self.ended:
            ends = [(self.now + max(0.0, left) / works, int(job)) for job, _, works, left in self.running]
            end, job = min(ends)
            step = min(end, until)
            for each in self.running:
                each[3] -= (step - self.now) * each[2]
            self.now = step
            if end > until:
                return
            (gone,) = (each for each in self.running if each[0] == job)
            self.running.remove(gone)
            self.idle += int(gone[1])
            self.ended[job] = end
        if watched not in self.ended:
            self.now = until

    def resizable(self) -> list[list[float]]:
        return [each for each in self.running if self.jobs[int(each[0])].malleable]

    def shrink(self, missing: int) -> None:
        for each in self.resizable():
            job = self.jobs[int(each[0])]
            fewer = min(missing, int(each[1]) - job.low)
            if fewer <= 0 or each not in self.running:
                continue
            self.asked.append((self.now, str(int(each[0])), int(each[1]), int(each[1]) - fewer))
            each[2] = each[1] - fewer
            self.to(self.now + self.release_s, int(each[0]))
            if each in self.running:
                each[1] -= fewer
                self.idle += fewer
            missing -= fewer
            if missing <= 0:
                return

    def run(self) -> None:
        queue = list(range(len(self.jobs)))
        while queue or self.running:
            waiting = [job for job in queue if self.jobs[job].submit <= self.now]
            if waiting:
                number = waiting[0]
                job = self.jobs[number]
                if job.low <= self.idle:
                    nodes = min(job.high, self.idle)
                    self.idle -= nodes
                    queue.remove(number)
                    self.started[number] = self.now
                    self.running.append([number, nodes, nodes, job.work])
                else:
                    free = sum(int(each[1]) - self.jobs[int(each[0])].low for each in self.resizable())
                    if free >= job.low - self.idle:
                        self.shrink(job.low - self.idle)
            else:
                for each in self.resizable():
                    more = min(self.jobs[int(each[0])].high - int(each[1]), self.idle)
                    if more > 0:
                        self.asked.append((self.now, str(int(each[0])), int(each[1]), int(each[1]) + more))
                        self.idle -= more
                        each[1] += more
                        each[2] = each[1]
            self.to(self.now + self.pause_s)


@pytest.mark.parametrize("release_s", [0.0, 3.3])
@pytest.mark.parametrize("seed", range(10))
def test_the_policy_decides_as_the_loop_of_the_scheduler(seed: int, release_s: float) -> None:
    rng = random.Random(seed)
    jobs = []
    for submit in sorted(rng.choice([0.0, rng.uniform(0, 400)]) for _ in range(20)):
        low = rng.randint(1, 8)
        high = low if rng.random() < 0.4 else rng.randint(low, NODES)
        jobs.append(J(rng.uniform(50, 900), low, high, submit))
    loop = Loop(jobs, NODES, 5.0, release_s)
    loop.run()
    run = simulated(jobs, release_s=release_s)
    assert list(run.jobs["start"]) == pytest.approx([loop.started[number] for number in range(len(jobs))])
    assert list(run.jobs["end"]) == pytest.approx([loop.ended[number] for number in range(len(jobs))])
    assert [each[1:] for each in resizes(run)] == [each[1:] for each in loop.asked]
