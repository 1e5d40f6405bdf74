"""The scheduler while nodes are lost and come back: each policy, against invariants and an obvious reference."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.oracles.reference_scheduler import RefJob
from tests.scheduling.test_scheduling import workload_of
from tracebed.orchestrator.calibrating import probes
from tracebed.orchestrator.scheduling.cluster import Cluster
from tracebed.orchestrator.scheduling.jobs import Jobs
from tracebed.orchestrator.scheduling.limits import OverLimit
from tracebed.orchestrator.scheduling.policies import registry
from tracebed.orchestrator.scheduling.policies.deadline import Deadline
from tracebed.orchestrator.scheduling.scheduler import Scheduler
from tracebed.orchestrator.scheduling.state import Policy, shares
from tracebed.orchestrator.testbeds.nodes import Inventory, Node

VARIANTS: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in registry.names()),
    ("conservative", {"backfill_depth": 3, "backfill_interval_s": 5.0}),
    ("easy", {"reserve": "nodes"}),
    ("conservative", {"reserve": "nodes"}),
    ("conservative", {"reserve": "nodes", "backfill_depth": 3, "backfill_interval_s": 5.0}),
    ("pref", {"promise": "direct"}),
    ("pref", {"promise": "steal"}),
    ("avg", {"promise": "steal", "backfill": "firstfit"}),
    ("sd", {"max_slowdown": "inf", "include_free_nodes": True}),
    ("sd", {"backfill_interval_s": 5.0}),
]
CORES = 4


class Executor:
    """An executor that launches at once, and applies resizes and ends failing jobs when the test says so."""

    def __init__(self, jobs: Jobs, nodes: int, policy: Policy, priority: str = "fcfs") -> None:
        self.jobs = jobs
        self.cluster = Cluster([CORES] * nodes)
        self.scheduler = Scheduler(jobs, self.cluster, policy, self, priority=priority)
        self.state = self.scheduler.state
        self.running: dict[int, None] = {}
        self.pending: dict[int, None] = {}
        self.failing: dict[int, None] = {}
        self.drained: set[int] = set()
        self.submitted: set[int] = set()
        self.rejected: set[int] = set()
        self.ends: Counter[int] = Counter()
        self.restarts: Counter[int] = Counter()
        self.started: list[int] = []
        self.suspensions = 0
        self.now = 0.0
        self.call = math.inf

    # -- orders of the scheduler

    def start(self, job: int, nodes: list[int]) -> None:
        assert job in self.submitted
        assert job not in self.running
        assert not self.ends[job]
        assert not self.cluster.lost.intersection(nodes)
        assert nodes == self.cluster.nodes_of(job)
        self.running[job] = None
        self.started.append(job)

    def resize(self, job: int, before: int, nodes: list[int]) -> bool:
        assert job in self.running
        assert job not in self.failing
        assert not self.cluster.lost.intersection(nodes)
        self.pending[job] = None
        return False

    def change_cores(self, job: int) -> None:
        assert job in self.running

    def suspend(self, job: int) -> None:
        assert job not in self.failing
        del self.running[job]
        self.suspensions += 1

    def reject(self, job: int, reason: str) -> None:
        self.rejected.add(job)

    def cancel(self, job: int, reason: str) -> None:
        assert job in self.running
        assert type(self.scheduler.policy) is Deadline, "no other policy cancels jobs without a deadline"

    # -- events

    def submit(self, *jobs: int) -> None:
        for job in jobs:
            self.submitted.add(job)
            self.scheduler.submit(job, self.now)

    def end(self, job: int, *, requeue: bool) -> None:
        del self.running[job]
        self.pending.pop(job, None)
        if job in self.failing and requeue:
            self.restarts[job] += 1
            self.scheduler.requeue(job, self.now)
        else:
            self.ends[job] += 1
            self.scheduler.end(job, self.now)
        self.failing.pop(job, None)

    def apply(self, job: int) -> None:
        del self.pending[job]
        self.scheduler.resized(job, self.now)

    def lose(self, node: int) -> None:
        holders = [job for job in self.running if node in self.cluster.nodes_of(job)]
        failing = self.scheduler.node_lost(node, self.now)
        assert sorted(failing) == sorted(holders)
        self.failing |= dict.fromkeys(failing)
        self.drained.discard(node)

    def drain(self, node: int) -> None:
        self.scheduler.node_drained(node, self.now)
        self.drained.add(node)

    def bring_back(self, node: int) -> None:
        self.scheduler.node_back(node, self.now)
        self.drained.discard(node)

    def decide(self) -> None:
        self.scheduler.serve()
        self.check()
        self.call = self.scheduler.decide(self.now)
        self.check()

    # -- invariants

    def check(self) -> None:
        cluster, state = self.cluster, self.state
        holders = Counter(node for job in self.running for node in cluster.owned(job))
        holders.update(cluster.idle)
        unused = cluster.lost - set(holders)
        assert all(count == 1 for count in holders.values())
        assert len(holders) + len(unused) == len(cluster)
        assert not cluster.lost.intersection(cluster.idle)
        assert cluster.idle == sorted(cluster.idle)
        for loan in cluster.loans.values():
            assert loan.owner in self.running
            assert loan.guest in self.running
        assert 0 <= state.idle <= len(cluster.idle)
        assert state.returning >= 0
        assert state.failing == set(self.failing)
        waiting, promises = {job for job in self.submitted if job in state.queue}, self.scheduler._promises
        for job in self.submitted - self.rejected:
            places = [job in waiting, job in promises, job in self.running, self.ends[job] > 0]
            assert sum(places) == 1, f"job {job} is in {places}"
            assert self.ends[job] <= 1
        assert set(state.size) == set(self.running)
        rows = state.releases.rows
        expected = set(state.expected_end)
        assert set(rows[2].tolist()) == expected == set(self.running) | {job for job in expected if job in promises}
        for job in self.running:
            drained = len(self.drained.intersection(cluster.nodes_of(job)))
            assert state.draining.get(job, 0) == drained or job in self.failing
        if not (self.pending or self.failing or cluster.loans):
            kept = [nodes for _, nodes, job in zip(*map(list, rows), strict=True) if job in self.running]
            assert sum(kept) == sum(state.size.values()) - sum(state.draining.values())
        assert all(math.isfinite(at) for at in state.reserved.values())
        assert set(state.reserved) <= waiting


def jobs_of(raw: list[RefJob], over_limit: OverLimit = OverLimit.EXTEND) -> Jobs:
    return Jobs.of(workload_of(raw, cores_per_node=CORES // 2), over_limit=over_limit)


@st.composite
def some_jobs(draw: st.DrawFn, nodes: int) -> list[RefJob]:
    jobs = []
    for number in range(draw(st.integers(2, 12))):
        size = draw(st.integers(1, nodes))
        job = RefJob(number, float(number), draw(st.sampled_from([1.0, 5.0, 20.0])), None, size)
        if draw(st.booleans()):
            job.malleable = True
            job.nodes_pref = size
            job.nodes_min = draw(st.integers(1, size))
            job.nodes_max = draw(st.integers(size, nodes))
        jobs.append(job)
    return jobs


STEPS = ("submit", "submit", "end", "apply", "lose", "drain", "back", "decide", "decide", "wait")


@pytest.mark.parametrize(("policy", "parameters"), VARIANTS, ids=str)
@settings(max_examples=12)  # of each policy
@given(data=st.data())
def test_every_job_ends_exactly_once_whatever_nodes_are_lost(
    policy: str, parameters: dict[str, Any], data: st.DataObject
) -> None:
    nodes = data.draw(st.integers(1, 7), "nodes")
    jobs = jobs_of(data.draw(some_jobs(nodes), "jobs"), data.draw(st.sampled_from(list(OverLimit)), "over limit"))
    priority = data.draw(st.sampled_from(["fcfs", "fcfs", "shortest-first"]), "priority")
    executor = Executor(jobs, nodes, registry.load(policy, parameters), priority)
    coming = iter(range(len(jobs)))
    for step in data.draw(st.lists(st.sampled_from(STEPS), max_size=60), "steps"):
        executor.now += data.draw(st.sampled_from([0.0, 1.0]), "pause")
        if step == "submit" and (job := next(coming, None)) is not None:
            executor.submit(job)
        elif step == "end" and executor.running:
            executor.end(
                data.draw(st.sampled_from(list(executor.running)), "ending"),
                requeue=data.draw(st.booleans(), "requeue"),
            )
        elif step == "apply" and executor.pending:
            executor.apply(data.draw(st.sampled_from(list(executor.pending)), "applied"))
        elif step == "lose" and (there := sorted(set(range(nodes)) - executor.cluster.lost)):
            executor.lose(data.draw(st.sampled_from(there), "lost"))
        elif step == "drain" and (there := sorted(set(range(nodes)) - executor.cluster.lost)):
            executor.drain(data.draw(st.sampled_from(there), "drained"))
        elif step == "back" and executor.cluster.lost:
            executor.bring_back(data.draw(st.sampled_from(sorted(executor.cluster.lost)), "back"))
        elif step == "wait":
            executor.now += 10.0
        executor.check()
        executor.decide()
    executor.submit(*coming)
    for node in sorted(executor.cluster.lost):
        executor.bring_back(node)
    for _ in range(20 * len(jobs) + 20):
        executor.decide()
        executor.now = executor.call if executor.call < math.inf and not executor.running else executor.now + 1.0
        for job in list(executor.pending):
            executor.apply(job)
        for job in list(executor.running):
            executor.end(job, requeue=True)
            break
    assert sorted(executor.ends) == sorted(executor.submitted - executor.rejected)
    assert set(executor.ends.values()) == {1}
    assert len(executor.started) == len(executor.ends) + sum(executor.restarts.values()) + executor.suspensions
    assert not executor.rejected
    assert executor.cluster.idle == list(range(nodes))


def test_a_promise_of_a_node_that_is_lost_before_its_job_releases_it_is_withdrawn() -> None:
    """Job 0 shrinks for job 3. The released node is lost before the shrink takes effect, so job 3 waits again."""
    raw = [RefJob(0, 0.0, 5.0, None, 1, True, 1, 2, 1), RefJob(1, 1.0, 5.0, None, 3), RefJob(2, 2.0, 5.0, None, 1)]
    executor = Executor(jobs_of([*raw, RefJob(3, 3.0, 5.0, None, 1)]), 3, registry.load("min", {}), "fcfs")
    for job in range(4):
        executor.submit(job)
        executor.decide()
    assert list(executor.running) == [0, 2] and list(executor.pending) == [0]
    executor.apply(0)
    executor.decide()
    assert list(executor.pending) == [0] and 3 in executor.scheduler._promises
    executor.lose(1)
    executor.decide()
    executor.apply(0)
    executor.decide()
    assert 3 in executor.state.queue and executor.state.idle == 0


# -- an obvious reference ----------------------------------------------------------------------------------------------


def expected_starts(
    policy: str, waiting: list[int], jobs: Jobs, idle: int, ends: list[tuple[float, int]], now: float
) -> list[int]:
    """Return the jobs that a rigid policy starts: everything is computed from the beginning, job by job."""
    started: list[int] = []

    def start(job: int) -> None:
        nonlocal idle
        started.append(job)
        idle -= jobs.nodes[job]
        ends.append((now + jobs.limit[job], jobs.nodes[job]))

    waiting = list(waiting)
    if policy != "firstfit":
        while waiting and jobs.nodes[waiting[0]] <= idle:
            start(waiting.pop(0))
        if policy == "fcfs" or not waiting:
            return started
        shadow, extra, there = math.inf, 0, idle
        for instant in sorted({now, *(max(now, end) for end, _ in ends)}):
            there = idle + sum(nodes for end, nodes in ends if max(now, end) <= instant)
            if there >= jobs.nodes[waiting[0]]:
                shadow, extra = instant, there - jobs.nodes[waiting[0]]
                break
        for job in waiting[1:]:
            in_time = now + jobs.limit[job] <= shadow
            if jobs.nodes[job] <= idle and (in_time or jobs.nodes[job] <= extra):
                extra -= 0 if in_time else jobs.nodes[job]
                start(job)
        return started
    for job in waiting:
        if jobs.nodes[job] <= idle:
            start(job)
    return started


@pytest.mark.parametrize("policy", ["fcfs", "firstfit", "easy"])
@given(data=st.data())
def test_rigid_policies_decide_as_the_obvious_reference_while_nodes_are_lost(policy: str, data: st.DataObject) -> None:
    nodes = data.draw(st.integers(1, 6), "nodes")
    raw = [
        RefJob(number, float(number), run_time, None, size)
        for number, (run_time, size) in enumerate(
            data.draw(
                st.lists(st.tuples(st.sampled_from([2.0, 5.0, 30.0]), st.integers(1, nodes)), min_size=2, max_size=14)
            )
        )
    ]
    jobs = jobs_of(raw)
    executor = Executor(jobs, nodes, registry.load(policy))
    coming = iter(range(len(jobs)))
    for step in data.draw(st.lists(st.sampled_from(STEPS), max_size=80), "steps"):
        executor.now += data.draw(st.sampled_from([0.0, 1.0, 4.0]), "pause")
        if step == "submit" and (job := next(coming, None)) is not None:
            executor.submit(job)
        elif step == "end" and executor.running:
            executor.end(data.draw(st.sampled_from(list(executor.running)), "ending"), requeue=True)
        elif step == "lose" and (there := sorted(set(range(nodes)) - executor.cluster.lost)):
            executor.lose(data.draw(st.sampled_from(there), "lost"))
        elif step == "drain" and (there := sorted(set(range(nodes)) - executor.cluster.lost)):
            executor.drain(data.draw(st.sampled_from(there), "drained"))
        elif step == "back" and executor.cluster.lost:
            executor.bring_back(data.draw(st.sampled_from(sorted(executor.cluster.lost)), "back"))
        waiting, idle = executor.state.queue.jobs(), len(executor.cluster.idle)
        assert waiting == sorted(executor.submitted - set(executor.running) - set(executor.ends))
        ends = [
            (executor.state.expected_end[job], len({*executor.cluster.nodes_of(job)} - executor.drained))
            for job in executor.running
        ]
        before = len(executor.started)
        executor.decide()
        assert executor.started[before:] == expected_starts(policy, waiting, jobs, idle, ends, executor.now)


# -- cases by hand -----------------------------------------------------------------------------------------------------


def rigid(*rows: tuple[int, float]) -> Jobs:
    return jobs_of(
        [RefJob(number, float(number), run_time, None, size) for number, (size, run_time) in enumerate(rows)]
    )


def test_a_requeued_job_keeps_its_place_in_the_queue() -> None:
    executor = Executor(rigid((2, 10), (2, 10), (1, 10)), 2, registry.load("fcfs"))
    executor.submit(0, 1, 2)
    executor.decide()
    executor.lose(1)
    executor.end(0, requeue=True)
    assert executor.state.queue.jobs() == [0, 1, 2]
    executor.decide()
    assert list(executor.running) == []  # the head needs the lost node
    executor.bring_back(1)
    executor.decide()
    assert list(executor.running) == [0]


def test_a_failing_job_holds_its_other_nodes_until_its_processes_have_ended() -> None:
    executor = Executor(rigid((3, 10), (2, 10)), 3, registry.load("firstfit"))
    executor.submit(0)
    executor.decide()
    executor.lose(0)
    executor.submit(1)
    executor.decide()
    assert list(executor.running) == [0]
    executor.end(0, requeue=True)
    executor.decide()
    assert list(executor.running) == [1]
    assert executor.cluster.nodes_of(1) == [1, 2]


def test_a_node_that_returns_before_its_job_has_ended_is_idle_only_afterwards() -> None:
    executor = Executor(rigid((2, 10), (1, 10)), 2, registry.load("firstfit"))
    executor.submit(0, 1)
    executor.decide()
    executor.lose(1)
    executor.bring_back(1)
    executor.decide()
    assert executor.cluster.idle == []
    executor.end(0, requeue=False)
    executor.decide()
    assert executor.cluster.nodes_of(1) == [0]
    assert executor.cluster.idle == [1]


def test_easy_backfills_any_job_behind_a_head_that_needs_lost_nodes() -> None:
    executor = Executor(rigid((3, 10), (1, 1000), (2, 500)), 3, registry.load("easy"))
    executor.lose(2)
    executor.submit(0, 1, 2)
    executor.decide()
    assert executor.started == [1]  # one node is left, and the third job needs two
    executor.end(1, requeue=False)
    executor.decide()
    assert executor.started == [1, 2]


def test_a_calibration_continues_with_the_nodes_that_are_left() -> None:
    nodes = tuple(Node(f"n{number}", CORES, emulated=True) for number in range(4))
    jobs = Jobs.of(probes.ladder(Inventory("four", "agents", nodes), 1.0))
    executor, last = Executor(jobs, 4, probes.Ladder()), len(jobs.ids) - 1
    for node in (0, 1):
        executor.lose(node)
    executor.submit(last - 1)  # a rigid job of four nodes
    executor.decide()
    assert executor.started == []
    for node in (0, 1):
        executor.bring_back(node)
    executor.decide()
    executor.end(last - 1, requeue=False)
    executor.submit(last)
    executor.decide()
    sizes = [executor.state.size[last]]
    for step in range(4):
        if step == 1:
            for node in executor.cluster.idle[:2]:
                executor.lose(node)
        executor.now += probes.Ladder.pause_s
        executor.decide()
        executor.apply(last)
        executor.decide()
        sizes.append(executor.state.size[last])
    assert sizes == [4, 1, 2, 1, 2]


def test_conservative_plans_again_when_a_node_is_lost_and_when_it_returns() -> None:
    executor = Executor(rigid((2, 100), (3, 10), (2, 50)), 3, registry.load("conservative"))
    executor.submit(0, 1, 2)
    executor.decide()
    assert executor.state.reserved == {1: 100.0, 2: 110.0}
    executor.now = 1.0
    executor.lose(2)
    executor.decide()
    assert executor.state.reserved == {2: 100.0}  # the second job needs the lost node
    executor.now = 2.0
    executor.bring_back(2)
    executor.decide()
    assert executor.state.reserved == {1: 100.0, 2: 110.0}


def shrinking(promise: str) -> Executor:
    """Return a cluster of eight nodes on which one job shrinks from eight nodes to four for a second job of four."""
    raw = [RefJob(0, 0.0, 100.0, None, 8, True, nodes_min=1, nodes_pref=8, nodes_max=8), RefJob(1, 1.0, 10.0, None, 4)]
    executor = Executor(jobs_of(raw), 8, registry.load("pref", {"promise": promise}))
    executor.submit(0)
    executor.decide()
    executor.submit(1)
    executor.decide()
    assert list(executor.pending) == [0]
    assert executor.scheduler._promises.last == 1
    return executor


@pytest.mark.parametrize("promise", ["pool", "direct", "steal"])
@pytest.mark.parametrize("lost", range(8))
def test_a_promise_survives_the_loss_of_a_node_of_the_shrinking_job(promise: str, lost: int) -> None:
    executor = shrinking(promise)
    executor.lose(lost)
    executor.end(0, requeue=True)  # seven nodes are left: enough for the promise
    executor.scheduler.serve()
    assert list(executor.running) == [1]
    executor.decide()
    assert executor.state.size[0] == 3  # the first job starts again, on the others


@pytest.mark.parametrize("promise", ["pool", "direct", "steal"])
def test_a_promise_that_the_nodes_left_cannot_keep_is_withdrawn(promise: str) -> None:
    executor = shrinking(promise)
    for node in range(5):
        executor.lose(node)
    executor.end(0, requeue=True)
    assert executor.state.queue.jobs() == [0, 1]
    assert executor.state.expected_end == {}
    executor.decide()
    assert list(executor.running) == [0]
    assert executor.state.size[0] == 3
    for node in range(5):
        executor.bring_back(node)
    executor.decide()
    assert list(executor.running) == [0, 1]


def test_owner_and_guest_of_a_lost_node_fail_and_the_others_go_on() -> None:
    raw = [
        RefJob(number, float(number), 50.0, None, nodes, True, nodes_min=1, nodes_pref=nodes, nodes_max=4)
        for number, nodes in enumerate((2, 2, 1))
    ]
    executor = Executor(jobs_of(raw), 4, registry.load("drom-share"))
    executor.submit(0, 1, 2)
    executor.decide()
    assert shares(executor.scheduler.policy)
    (shared,) = executor.cluster.loans
    owner, guest = executor.cluster.loans[shared][:2]
    executor.lose(shared)
    assert set(executor.failing) == {owner, guest}
    executor.decide()
    for job in (owner, guest):
        executor.end(job, requeue=True)
        executor.check()
    executor.decide()
    assert not executor.failing
    assert len(executor.running) == 3  # the owner and the guest share the nodes that are left, or wait
    assert not executor.cluster.lost.intersection(itertools.chain(*map(executor.cluster.nodes_of, executor.running)))
