"""Rigid jobs on pools of nodes that overlap, slow and obvious: the oracle for tests of the scheduler of pools.

It follows docs/reference/machines.md, "Pools", and shares no code with the scheduler. Each step looks at all jobs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field


@dataclass(eq=False)  # two jobs may be alike
class PoolJob:
    """A rigid job. Its limit is at least its run time."""

    submit: float
    run_time: float
    limit: float
    nodes: int
    pool: int
    start: float = math.nan
    held: list[int] = field(default_factory=list)

    @property
    def waits(self) -> bool:
        return math.isnan(self.start)


def schedule(jobs: list[PoolJob], pools: list[tuple[set[int], int]], policy: str) -> None:
    """Set the start and the nodes of each job. A pool is its nodes and its tier. `jobs` are in submit order."""
    machine = _Machine(jobs, pools, policy)
    instants = {job.submit for job in jobs}
    while instants:
        machine.now = now = min(instants)
        instants.remove(now)
        for job in machine.at(now):
            instants.add(now + job.run_time)  # now again, for a job without a run time


class _Machine:
    def __init__(self, jobs: list[PoolJob], pools: list[tuple[set[int], int]], policy: str) -> None:
        self.jobs, self.pools = jobs, pools
        self.policy = {"fcfs": self.fcfs, "firstfit": self.firstfit, "easy": self.easy}.get(policy, self.conservative)
        self.now = 0.0
        self.submitted: list[PoolJob] = []
        self.ended: set[PoolJob] = set()
        self.kept: list[tuple[float, int]] = []  # until when nodes are kept from the pool that decides, and how many

    def at(self, now: float) -> list[PoolJob]:
        """Decide at an instant, and return the jobs that start."""
        new = [job for job in self.jobs[len(self.submitted) :] if job.submit == now]
        ended = [job for job in self.running() if job.start + job.run_time == now]
        self.submitted += new
        self.ended.update(ended)
        events = {job.pool for job in (*new, *ended)}
        called = set(events)
        for _ in self.pools:  # pools connected with those of the events
            nodes = set().union(*(self.pools[p][0] for p in called))
            called |= {p for p, (own, _) in enumerate(self.pools) if own & nodes}
        started = []
        for pool in sorted(called, key=self.key):
            idle = self.offer(pool)
            for job in self.policy(pool, list(idle)):
                job.start, job.held = now, idle[: job.nodes]
                idle = idle[job.nodes :]
                started.append(job)
        return started

    def key(self, pool: int) -> tuple[int, float, int]:
        waiting = self.waiting(pool)
        return -self.pools[pool][1], self.jobs.index(waiting[0]) if waiting else math.inf, pool

    def waiting(self, pool: int) -> list[PoolJob]:
        return [job for job in self.submitted if job.pool == pool and job.waits]

    def running(self) -> list[PoolJob]:
        return [job for job in self.submitted if not job.waits and job not in self.ended]

    def free(self, pool: int) -> set[int]:
        return self.pools[pool][0] - {node for job in self.running() for node in job.held}

    def releases(self, pool: int) -> list[tuple[float, int]]:
        """Return the expected ends of the jobs on the nodes of a pool, with the numbers of these nodes."""
        of_pool = self.pools[pool][0]
        return sorted((job.start + job.limit, len(of_pool.intersection(job.held))) for job in self.running())

    def offer(self, pool: int) -> list[int]:
        """Return the idle nodes that earlier pools leave to a pool, and note until when they keep the others."""
        idle = self.free(pool)
        self.kept = []
        for other in range(len(self.pools)):
            if other == pool or not self.pools[other][0] & self.pools[pool][0] or self.key(other) > self.key(pool):
                continue
            free = self.free(other)
            if not self.waiting(other):
                continue
            need = self.waiting(other)[0].nodes
            shadow, extra = self.shadow(other, need, len(free))
            common = sorted(free & self.pools[pool][0])
            if shadow < math.inf and len(common) > extra:
                idle -= set(common[extra:])
                self.kept.append((shadow + self.waiting(other)[0].limit, len(common) - extra))
        return sorted(idle)

    def shadow(self, pool: int, need: int, idle: int) -> tuple[float, int]:
        """Return when `need` nodes of a pool will be idle, and how many more will be idle then."""
        ends = [self.now, *(end for end, _ in self.releases(pool) if end > self.now)]
        for instant in ends:
            there = idle + sum(count for end, count in self.releases(pool) if end <= instant)
            if there >= need and (instant > self.now or idle >= need or there > idle):
                return instant, there - need
        return math.inf, 0

    def fcfs(self, pool: int, idle: list[int]) -> list[PoolJob]:
        chosen: list[PoolJob] = []
        for job in self.waiting(pool):
            if job.nodes > len(idle) - sum(other.nodes for other in chosen):
                break
            chosen.append(job)
        return chosen

    def firstfit(self, pool: int, idle: list[int]) -> list[PoolJob]:
        chosen: list[PoolJob] = []
        for job in self.waiting(pool):
            if job.nodes <= len(idle) - sum(other.nodes for other in chosen):
                chosen.append(job)
        return chosen

    def easy(self, pool: int, idle: list[int]) -> list[PoolJob]:
        chosen = self.fcfs(pool, idle)
        free = len(idle) - sum(job.nodes for job in chosen)
        rest = [job for job in self.waiting(pool) if job not in chosen]
        if not rest:
            return chosen
        ends = sorted([*self.releases(pool), *self.kept, *((self.now + job.limit, job.nodes) for job in chosen)])
        there, shadow = free, math.inf
        for end, count in ends:
            there += count
            if there >= rest[0].nodes:
                shadow = end
                break
        there = free + sum(count for end, count in ends if end <= shadow)
        extra = there - rest[0].nodes if shadow < math.inf else 0
        for job in rest[1:]:
            in_time = self.now + job.limit <= shadow
            if job.nodes <= free and (in_time or job.nodes <= extra):
                chosen.append(job)
                free -= job.nodes
                extra -= 0 if in_time else job.nodes
        return chosen

    def conservative(self, pool: int, idle: list[int]) -> list[PoolJob]:
        chosen = []
        planned = [(self.now, len(idle)), *self.releases(pool), *self.kept]  # changes of the number of idle nodes

        def idle_at(instant: float) -> int:
            return sum(count for at, count in planned if at <= instant)

        for job in self.waiting(pool):
            for start in sorted({at for at, _ in planned}):
                instants = [start, *(at for at, _ in planned if start < at < start + job.limit)]
                if min(map(idle_at, instants)) >= job.nodes:
                    planned += [(start, -job.nodes), (start + job.limit, job.nodes)]
                    chosen += [job] if start == self.now else []
                    break
        return chosen
