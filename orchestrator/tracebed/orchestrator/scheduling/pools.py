"""The scheduler of a machine with several pools of nodes: a scheduler of each pool, on one cluster.

A policy decides on one pool after the other, with a state that has the jobs and the nodes of this pool alone. On pools
without a common node, this is the same as a machine for each pool.

If pools overlap, they are served by descending tier, then by their first waiting jobs, in the order of submission. A
pool is offered the idle nodes that earlier pools can spare: each of them keeps those of the common nodes that its first
waiting job and its promised jobs need at their shadow time, as in EASY, until this job is expected to end. The jobs of
other pools on its nodes count as releases at their expected ends. Reservations of waiting jobs are made again in each
call.

A job never shrinks for a job of another pool: the nodes that a promise counts on are kept for it from all other pools,
as if the promised job had started. Otherwise, the first waiting job of an earlier pool would get a released node, and
the job that released it would expand and shrink again, for ever.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import numpy as np

from tracebed.converters.workload import MAX_EXACT, BoolArray, IntArray, Workload
from tracebed.machine.machine import Machine
from tracebed.machine.pools import Pools
from tracebed.orchestrator.scheduling.cluster import Cluster, Part
from tracebed.orchestrator.scheduling.jobs import Jobs
from tracebed.orchestrator.scheduling.scheduler import Executor, Scheduler
from tracebed.orchestrator.scheduling.state import Policy, State, visible_jobs

SHARED = "jobs share nodes on this machine: they hold whole nodes here"
"""Assumption about jobs that ask for a part of a node."""
Ends: TypeAlias = dict[int, tuple[float, int]]
"""Job -> its expected end, s, and a number of nodes."""


def on_pools(workload: Workload, machine: Machine, jobs: Jobs, policy: Policy) -> tuple[Jobs, Pools]:
    """Return jobs of a workload as a machine allows them, and its pools.

    Each job has at most the nodes that its partitions allow, and the cores of the nodes that serve it: those that a log
    of Slurm counts may be threads. The counts of the jobs say how many of them would share nodes.
    """
    least = np.asarray(visible_jobs(policy, jobs).column("low"))
    pools = Pools.on(machine, workload.runnable()[0], least)
    most = np.minimum(pools.most_nodes, MAX_EXACT).astype(np.int64)
    bounds = {name: np.asarray(jobs.column(name)) for name in ("low", "high", "pref", "workload_pref")}
    allowed = jobs.with_columns(
        cores=np.minimum(jobs.column("cores"), pools.least_cores),
        ranks=np.minimum(jobs.column("ranks"), pools.least_cores),
        **{name: np.minimum(values, np.maximum(most, bounds["low"])) for name, values in bounds.items()},
    )
    allowed.speedups = jobs.speedups
    if pools.shared:
        allowed.counts = jobs.counts | {SHARED: pools.shared}
    return allowed, pools


def scheduler_on(
    pools: Pools | None, jobs: Jobs, cluster: Cluster, policy: Policy, executor: Executor, **settings: Any
) -> AnyScheduler:
    """Return the scheduler of a machine with `pools`. None: all nodes serve all jobs. `settings`: as `Scheduler`."""
    if pools is None:
        return Scheduler(jobs, cluster, policy, executor, **settings)
    return PooledScheduler(pools, jobs, cluster, policy, executor, **settings)


class PooledScheduler:
    """A scheduler for each pool of a machine. Its methods are those of `Scheduler`, for the pool of the job."""

    def __init__(
        self, pools: Pools, jobs: Jobs, cluster: Cluster, policy: Policy, executor: Executor, **settings: Any
    ) -> None:
        """Start with idle nodes and without waiting jobs."""
        self.policy, self.executor, self.pools, self._whole = policy, executor, pools, cluster
        self.jobs = seen = visible_jobs(policy, jobs).listed()
        weights = pools.weights.tolist()
        self._clusters = [cluster.add_part(pool.nodes, weights) for pool in pools.pools]
        self._parts = [Scheduler(jobs, part, policy, executor, visible=seen, **settings) for part in self._clusters]
        self._of: list[int] = pools.of.tolist()
        self._changed: set[int] = set()  # the pools with an event since the last call of the policy
        self._wakes = [math.inf] * len(self._parts)
        # Of each pool: the jobs of other pools with the nodes of the pool that they hold, and that are kept for them.
        self._foreign: list[Ends] = [{} for _ in self._parts]
        self._kept: list[Ends] = [{} for _ in self._parts]
        self._versions: list[tuple[int, ...]] = [()] * len(self._parts)
        self._joins = [0] * len(self._parts)
        self._affected: set[int] = set()  # the pools whose idle nodes or releases others have changed since their call
        self._again = (-math.inf, 0)  # an instant, and the number of further calls at it

    @property
    def waiting(self) -> int:
        """Number of waiting jobs."""
        return sum(part.waiting for part in self._parts)

    @property
    def running(self) -> list[int]:
        """The running jobs, by pool, then in the order of start."""
        return [job for part in self._parts for job in part.running]

    @property
    def expected_ends(self) -> list[tuple[float, int]]:
        """See `Scheduler.expected_ends`."""
        return sorted({end for part in self._parts for end in part.expected_ends})  # pools that overlap have some twice

    def overdue(self, now: float) -> list[int]:
        """See `Scheduler.overdue`."""
        return [job for end, job in self.expected_ends if end <= now]

    def size_of(self, job: int) -> int:
        """See `Scheduler.size_of`."""
        return self._parts[self._of[job]].size_of(job)  # a question is no event: the policy is not called for it

    def state_of(self, job: int) -> State:
        """Return the state of the pool of a job that nodes can serve."""
        return self._parts[self._of[job]].state

    def is_free(self, job: int, nodes: Iterable[int]) -> bool:
        """See `Scheduler.is_free`."""
        if self._of[job] < 0:
            return False
        cluster = self._clusters[self._of[job]]
        return bool((cluster.free & cluster.members)[[*nodes]].all())

    def hold(self, job: int, now: float) -> None:
        """See `Scheduler.hold`. A job that no nodes can serve is rejected."""
        if self._is_served(job):
            self._part(job).hold(job, now)

    def submit(self, job: int, now: float) -> None:
        """See `Scheduler.submit`. A job that no nodes can serve is rejected."""
        if self._is_served(job):
            self._part(job).submit(job, now)

    def _is_served(self, job: int) -> bool:
        """Return whether nodes can serve a job, which arrives. Else the job is rejected."""
        if self._of[job] < 0:
            self.executor.reject(job, self.pools.reasons[job])
        return self._of[job] >= 0

    def is_held(self, job: int) -> bool:
        """See `Scheduler.is_held`."""
        return self._of[job] >= 0 and self._parts[self._of[job]].is_held(job)

    def end(self, job: int, now: float) -> None:
        """See `Scheduler.end`."""
        self._part(job).end(job, now)

    def requeue(self, job: int, now: float) -> None:
        """See `Scheduler.requeue`."""
        self._part(job).requeue(job, now)

    def resized(self, job: int, now: float) -> None:
        """See `Scheduler.resized`."""
        self._part(job).resized(job, now)

    def refused(self, job: int, nodes: int, now: float) -> None:
        """See `Scheduler.refused`."""
        self._part(job).refused(job, nodes, now)

    def withdraw(self, job: int, now: float) -> None:
        """See `Scheduler.withdraw`."""
        if self._of[job] >= 0:
            self._part(job).withdraw(job, now)

    def adopt(self, job: int, nodes: Sequence[int], now: float) -> None:
        """See `Scheduler.adopt`."""
        part, cluster = self._part(job), self._clusters[self._of[job]]
        cluster.idle = cluster.available
        part.adopt(job, nodes, now)

    def request(self, job: int, nodes: int, now: float) -> bool:
        """See `Scheduler.request`."""
        return self._part(job).request(job, nodes, now)

    def limit_end(self, job: int, now: float) -> float:
        """See `Scheduler.limit_end`."""
        return self._parts[self._of[job]].limit_end(job, now)

    def needed(self, now: float) -> list[int]:
        """See `Scheduler.needed`."""
        return [need for part in self._parts for need in part.needed(now)]

    def stopping(self, number: int, nodes: int, until: float, now: float, *, calls: bool = False) -> None:
        """See `Scheduler.stopping`."""
        for part in self._with(number - len(self.jobs), calls=calls):
            part.stopping(number, nodes, until, now, calls=calls)

    def stopped(self, number: int, now: float) -> None:
        """See `Scheduler.stopped`."""
        for part in self._with(number - len(self.jobs)):
            part.stopped(number, now)

    def began(self, job: int, now: float) -> None:
        """See `Scheduler.began`."""
        self._parts[self._of[job]].began(job, now)

    def leave(self, job: int, below: int, now: float) -> bool:
        """See `Scheduler.leave`."""
        return self._parts[self._of[job]].leave(job, below, now)

    def node_lost(self, node: int, now: float) -> list[int]:
        """See `Scheduler.node_lost`."""
        self._change_others([node], self._whole.lose)
        return [job for part in self._with(node) for job in part.node_lost(node, now)]

    def give_up(self, job: int, node: int, now: float) -> bool:
        """See `Scheduler.give_up`."""
        return self._part(job).give_up(job, node, now)

    def node_drained(self, node: int, now: float) -> None:
        """See `Scheduler.node_drained`."""
        self.nodes_drained([node], now)

    def nodes_drained(self, nodes: Collection[int], now: float) -> None:
        """See `Scheduler.nodes_drained`."""
        self._change_others(nodes, self._whole.lose)
        for part, own in self._with_any(nodes):
            part.nodes_drained(own, now)

    def node_back(self, node: int, now: float) -> None:
        """See `Scheduler.node_back`."""
        self.nodes_back([node], now)

    def nodes_changed(self, nodes: Collection[int]) -> None:
        """See `Scheduler.nodes_changed`."""
        for part, own in self._with_any(nodes):
            part.nodes_changed(own)

    def nodes_back(self, nodes: Collection[int], now: float) -> None:
        """See `Scheduler.nodes_back`."""
        self._change_others(nodes, self._whole.restore)
        for part, own in self._with_any(nodes):
            part.nodes_back(own, now)

    def due(self, now: float) -> float:
        """See `Scheduler.due`."""
        return self._parts[0].due(now) if self._parts else math.inf

    def serve(self) -> None:
        """See `Scheduler.serve`."""
        for number in self._in_order(self._changed):
            self._share(number)
            self._parts[number].serve()

    def decide(self, now: float) -> float:
        """Call the policy for each pool with an event, or with a wake that is due, or that these affect.

        See `Scheduler.decide`. Also a pool that shares nodes over another pool may be affected: a job that starts in
        between no longer keeps nodes. If a job has released nodes at once that pools have in common, they are called
        again at the same instant.
        """
        due = self._changed | {number for number, wake in enumerate(self._wakes) if wake <= now}
        others = {other for number in due for other in self.pools.connected[number]}
        self._changed = set()
        for number in self._in_order(due | others):
            part, cluster = self._parts[number], self._clusters[number]
            part.state.now = now
            self._share(number)
            if number not in due and number not in self._affected:
                continue
            self._affected.discard(number)
            part.serve()
            released = cluster.released
            with self._keeping(number):
                self._wakes[number] = part.decide(now)
            if cluster.released > released:
                self._changed.update(self.pools.overlapping[number])
        if self._changed:
            instant, times = self._again
            self._again = (now, times + 1 if instant == now else 1)
            if self._again[1] <= len(self._parts):
                return now
        return min(self._wakes, default=math.inf)

    # -- the pools of jobs and nodes ------------------------------------------------------------------------------

    def _part(self, job: int) -> Scheduler:
        """Return the scheduler of a job. Its policy is called next."""
        self._changed.add(self._of[job])
        return self._parts[self._of[job]]

    def _with(self, node: int, *, calls: bool = True) -> list[Scheduler]:
        """Return the schedulers of the pools with a node. With `calls`, their policies are called next."""
        numbers = [number for number, part in enumerate(self._clusters) if part.members[node]]
        if calls:
            self._changed.update(numbers)
        return [self._parts[number] for number in numbers]

    def _change_others(self, nodes: Collection[int], change: Callable[[int], None]) -> None:
        """Let those of the nodes that are in no pool be lost, or return."""
        for node in nodes:
            if not any(part.members[node] for part in self._clusters):
                change(node)

    def _with_any(self, nodes: Collection[int]) -> Iterator[tuple[Scheduler, list[int]]]:
        """Yield the schedulers of the pools with some of the nodes, and these. Their policies are called next."""
        for number, part in enumerate(self._clusters):
            if own := [node for node in nodes if part.members[node]]:
                self._changed.add(number)
                yield self._parts[number], own

    # -- pools that overlap ---------------------------------------------------------------------------------------

    def _in_order(self, numbers: Iterable[int]) -> list[int]:
        """Return pools in the order in which they are served."""
        return sorted(numbers) if self.pools.disjoint else sorted(numbers, key=self._key)

    def _key(self, number: int) -> tuple[int, float, int]:
        """Return the place of a pool: by its tier, then its first job that waits."""
        return -self.pools.pools[number].tier, self._parts[number].needs[0], number

    def _share(self, number: int) -> None:
        """Give a pool the idle nodes that other pools do not keep."""
        others = self.pools.overlapping[number]
        if not others:
            return
        self._join(number)
        cluster, key = self._clusters[number], self._key(number)
        promised = self._parts[number].set_aside
        kept: Ends = {}
        idle = cluster.free & cluster.members
        for other in others:
            ahead = self._key(other) < key
            if not ahead and not self._parts[other].set_aside:
                continue
            self._join(other)
            end, nodes = self._keeps(other, cluster, self._parts[number].state.now, ahead=ahead)
            if promised:  # jobs of this pool have released these nodes for its promises
                nodes = nodes[max(0, len(nodes) - max(0, int(idle.sum()) - promised)) :]
            if len(nodes):
                kept[int(self._parts[other].needs[0])] = (end, len(nodes))
                idle[nodes] = False
        available = np.flatnonzero(idle).tolist()
        if available != cluster.idle or kept != self._kept[number]:
            cluster.idle, self._kept[number] = available, kept
            self._affect(number)
        self._parts[number].state.reserved.clear()  # the other pools do not keep them

    def _keeps(self, number: int, other: Part, now: float, *, ahead: bool) -> tuple[float, IntArray]:
        """Return until when, s, a pool keeps idle nodes in common with `other`, and which.

        A pool keeps the nodes that are set aside for its promised jobs. A pool that is `ahead` of `other` also keeps
        those that its first waiting job needs.
        """
        own, part = self._clusters[number], self._parts[number]
        free = own.free & own.members
        idle, common = int(free.sum()), np.flatnonzero(free & other.members)
        first, need = part.needs
        shadow, extra = part.state.releases.reservation(need, idle, now) if need and ahead else (math.inf, 0)
        if shadow < math.inf:
            end = shadow + self.jobs.limit[int(first)]
        else:
            end, extra = max((part.state.expected_end[job] for job in part.promised), default=math.inf), idle
        # Nodes that are not common are kept first.
        return end, common[max(0, min(extra, idle - part.set_aside)) :]

    def _join(self, number: int) -> None:
        """Add the jobs of other pools on the nodes of a pool to its releases."""
        releases = self._parts[number].state.releases
        others = self.pools.overlapping[number]
        version = tuple(self._clusters[other].changes + self._ends_changed(other) for other in others)
        if version == self._versions[number]:
            return
        self._versions[number] = version
        before, members = self._foreign[number], self._clusters[number].members & ~self._lost()
        jobs = {}
        for other in others:
            state = self._parts[other].state
            for job in state.size:
                if count := int(members[self._clusters[other].owned(job)].sum()):
                    jobs[job] = (state.expected_end[job], count)
        changes = releases.changes
        for job, (end, count) in before.items():
            if jobs.get(job) != (end, count):
                releases.remove(job, end)
        for job, (end, count) in jobs.items():
            if before.get(job) != (end, count):
                releases.add(job, end, count)
        self._foreign[number] = jobs
        if releases.changes > changes:
            self._joins[number] += releases.changes - changes
            self._affect(number)

    def _affect(self, number: int) -> None:
        """Note that other pools have changed what a pool has."""
        self._affected.add(number)
        self._parts[number].nodes_changed()

    @contextmanager
    def _keeping(self, number: int) -> Iterator[None]:
        """Count the nodes that earlier pools keep as releases of a pool during a call of its policy."""
        releases, kept = self._parts[number].state.releases, self._kept[number]
        for job, (end, count) in kept.items():
            releases.add(job, end, count)
        yield
        for job, (end, _) in kept.items():
            releases.remove(job, end)
        self._joins[number] += 2 * len(kept)

    def _ends_changed(self, number: int) -> int:
        """Return how often the expected ends of the jobs of a pool itself have changed."""
        return self._parts[number].state.releases.changes - self._joins[number]

    def _lost(self) -> BoolArray:
        """Return whether each node is lost, shape (nodes,)."""
        lost = np.zeros(len(self._clusters[0].members), dtype=bool)
        lost[[*self._clusters[0].lost]] = True
        return lost


AnyScheduler: TypeAlias = Scheduler | PooledScheduler
