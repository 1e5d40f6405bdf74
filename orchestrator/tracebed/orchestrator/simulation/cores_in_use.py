"""The cores that jobs use on shared nodes: a change of the allocated cores applies at the next malleability point."""

from __future__ import annotations

import math
from functools import cache

from tracebed.benchmarks.program import TASKS, deal
from tracebed.ground.errors import InputError
from tracebed.orchestrator.scheduling.cluster import Cluster
from tracebed.orchestrator.scheduling.jobs import Jobs


class CoresInUse:
    """The cores that jobs use on shared nodes, and the guests that wait for cores still in use.

    A job adopts a change of its cores at a malleability point. Until then, an owner uses the cores that it lends, and
    the guest waits for them.
    """

    def __init__(self, jobs: Jobs, cluster: Cluster) -> None:
        """Start without shared nodes."""
        self.jobs, self.cluster = jobs, cluster
        self._used: dict[int, dict[int, int]] = {}  # job that has shared nodes -> node -> cores; other jobs use all
        self._first: dict[int, dict[int, int]] = {}  # job whose data are divided by its first cores -> node -> cores
        self._waits: dict[int, set[int]] = {}  # guest -> owners that still use its cores

    def start(self, job: int, nodes: list[int], *, begun: set[int]) -> bool:
        """Note that `job` starts on `nodes`, and return whether it must wait for cores.

        Args:
            begun: the owners on its nodes that have begun to work. Others adopt a change of their cores at once.
        """
        cluster = self.cluster
        if cluster.shares(job):
            self.adopt(job)
        if self._is_divided(job):
            self._first[job] = dict(zip(nodes, self._requested_cores(job, cluster.cores_of(job)), strict=True))
        waits = set()
        for node in nodes:
            loan = cluster.loans.get(node)
            if loan is not None and loan.guest == job and loan.owner in begun:
                used = self._used.get(loan.owner, {}).get(node, cluster.cores[node])
                if used > cluster.cores[node] - loan.cores:
                    waits.add(loan.owner)
        if waits:
            self._waits[job] = waits
        return bool(waits)

    @property
    def divided(self) -> bool:
        """Whether the data of a running job are divided by its first cores."""
        return bool(self._first)

    def clear_wait(self, job: int) -> None:
        """Record that `job` begins to work, regardless of the cores in use."""
        self._waits.pop(job, None)

    def adopt(self, job: int) -> list[int]:
        """Note that `job` uses the cores allocated to it from now on, and return the guests that need not wait now."""
        self._used[job] = dict(zip(self.cluster.nodes_of(job), self.cluster.cores_of(job), strict=True))
        return self._released_by(job)

    def end(self, job: int) -> list[int]:
        """Note that `job` has ended, and return the guests that need not wait now."""
        self._used.pop(job, None)
        self._first.pop(job, None)
        self._waits.pop(job, None)
        return self._released_by(job)

    def _released_by(self, owner: int) -> list[int]:
        for owners in self._waits.values():
            owners.discard(owner)
        ready = [guest for guest, owners in self._waits.items() if not owners]
        for guest in ready:
            del self._waits[guest]
        return ready

    def effective(self, job: int, nodes: list[int]) -> list[float]:
        """Return the cores by which `job` progresses on each of `nodes`.

        These are its allocated cores. If the data of a rank are divided into P parts, `TASKS` for each of its first
        cores, T cores do them in ceil(P / T) rounds, as fast as P / ceil(P / T) cores (DROM paper, figure 5).
        """
        cluster = self.cluster
        has = cluster.cores_of(job) if cluster.shares(job) else [cluster.cores[node] for node in nodes]
        first = self._first.get(job)
        if first is None:
            return [*map(float, has)]
        now = self._requested_cores(job, has)
        parts = [first.get(node, cores) for node, cores in zip(nodes, now, strict=True)]
        return [TASKS * count / math.ceil(TASKS * count / cores) for count, cores in zip(parts, now, strict=True)]

    def _requested_cores(self, job: int, cores: list[int]) -> list[int]:
        return [min(has, self.jobs.cores[job]) for has in cores]

    def _is_divided(self, job: int) -> bool:
        return bool(self.jobs.application) and is_divided(self.jobs.application[job], self.jobs.parameters[job])


@cache
def is_divided(application: str, parameters: str) -> bool:
    """Return whether the data of each rank are divided by its first cores.

    A simulation accepts every application: the data of an application that cannot run are not divided.
    """
    from tracebed.benchmarks.applications.base import load_application, parse_parameters

    try:
        return load_application(application, parse_parameters(parameters)).partition == "static"
    except InputError:
        return False


def tasks_of_threads(cores: int, threads: int) -> list[int]:
    """Return the number of tasks of each thread, of data that were divided for `cores` (DROM paper, figure 5)."""
    tasks = TASKS * cores
    return [len(share) for share in deal(range(tasks), threads, tasks)]
