"""The ranks of running jobs as the replayer knows them, and the messages to them.

A rank is a job's process on a node. On a node that two jobs share, a rank is launched, or its mask grows, only once no
rank of the other job works, or may still work, on those cores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tracebed.benchmarks.program import Program
from tracebed.cpus import format_cpus
from tracebed.orchestrator.scheduling.cluster import Cluster
from tracebed.orchestrator.scheduling.jobs import Jobs
from tracebed.orchestrator.testbeds.base import Testbed


@dataclass
class RunningJob:
    """A job that holds nodes: its processes, and the messages that are under way."""

    nodes: list[int]
    """The nodes of the job, after the pending resize if there is one; the leader's node first."""
    program: Program
    authkey: str
    cores: dict[int, range]
    """Node -> the cores that the job is to work on, as last decided. Nodes that the job gave back stay."""
    alive: dict[int, range] = field(default_factory=dict)
    """Node with a rank of the job, running or being launched -> the cores last sent to this rank."""
    leaving: dict[int, range] = field(default_factory=dict)
    """Node -> the cores that the rank there works on until it confirms its new cores."""
    to_launch: list[int] = field(default_factory=list)
    """Nodes whose ranks are to be launched: the leader's first, the others' once it listens."""
    address: Any = None
    """The address of the leader; None: not known yet."""
    started: bool = False
    request: int = 0
    """Number of the latest resize."""
    pending: bool = False
    dropped: set[int] = field(default_factory=set)
    """Nodes that the pending resize is to free and on which a rank lives."""
    applied: tuple[float, float] | None = None
    """When the pending resize was decided and applied, monotonic, once the leader has said so."""
    outcome: tuple[str, str] | None = None
    """State and reason, once the leader has ended or the job was killed."""
    orphaned: float | None = None
    """When the leader ended, monotonic, if its other ranks were not told to end."""

    def awaits(self, node: int) -> bool:
        """Return whether the leader may be waiting for the rank of `node` to join."""
        return not self.started or (self.pending and node in self.nodes)

    def works_on(self, node: int, cores: range) -> bool:
        """Return whether a rank of the job works, or may still work, on one of these cores of `node`."""
        ours = (self.alive.get(node, range(0)), self.leaving.get(node, range(0)))
        return any(max(own.start, cores.start) < min(own.stop, cores.stop) for own in ours)


class Ranks:
    """The ranks of all running jobs. Messages to them are collected, and leave with `send`.

    Args:
        jobs: the workload.
        testbed: where they run.
        cluster: the allocation of nodes and cores.
    """

    def __init__(self, jobs: Jobs, testbed: Testbed, cluster: Cluster) -> None:
        """Start without running jobs."""
        self.jobs, self.testbed, self.cluster = jobs, testbed, cluster
        self.running: dict[int, RunningJob] = {}
        self._held: dict[int, None] = {}  # jobs that wait for another's ranks to leave cores
        self._outbox: list[tuple[int, dict[str, Any]]] = []

    def cores(self, job: int, nodes: Sequence[int]) -> dict[int, range]:
        """Return the cores that the job is to work on, on each of `nodes`: as many of its cores as it requested."""
        return {node: self.cluster.part(job, node)[: self.jobs.cores[job]] for node in nodes}

    def names(self, nodes: Sequence[int]) -> list[str]:
        """Return the names of nodes, which are those of the ranks on them."""
        return [self.testbed.nodes[node].name for node in nodes]

    def launch(self, job: int) -> None:
        """Launch the ranks of the job that can start; a rank whose cores are not free yet is held back."""
        active = self.running[job]
        if active.outcome is not None:
            return  # it is ending
        held_back = []
        for node in active.to_launch:
            leader = node == active.nodes[0]
            if (leader or active.address is not None) and self._is_clear(job, node):
                self._launch(job, active, node, leader=leader)
            else:
                held_back.append(node)
        active.to_launch = held_back

    def change_masks(self, job: int) -> None:
        """Send the ranks of the job their new cores, where these are free; a rank has at most one pending change."""
        active = self.running[job]
        for node, now in active.alive.items():
            then = active.cores[node]
            if now != then and node not in active.leaving and active.outcome is None and self._is_clear(job, node):
                active.leaving[node], active.alive[node] = now, then
                change = {"job": self.jobs.ids[job], "cpus": self._cpus(node, then), "request": active.request}
                self._tell(node, {"type": "resize", **change})

    def tell_members(self, job: int) -> None:
        """Send the leader the members of the job."""
        active = self.running[job]
        members = {"job": self.jobs.ids[job], "members": self.names(active.nodes), "request": active.request}
        self._tell(active.nodes[0], {"type": "resize", **members})

    def kill(self, job: int, reason: str) -> None:
        """Kill all ranks of the job."""
        for node in self.running[job].alive:
            self._tell(node, {"type": "kill", "job": self.jobs.ids[job], "reason": reason})

    def try_held(self) -> None:
        """Launch and change what was held back, now that ranks have left cores."""
        held, self._held = self._held, {}
        for job in held:
            self.launch(job)
            self.change_masks(job)

    def forget(self, job: int) -> RunningJob:
        """Remove a job that has ended, and return it."""
        self._held.pop(job, None)
        return self.running.pop(job)

    def send(self) -> None:
        """Send the collected messages."""
        for node, message in self._outbox:
            self.testbed.send(node, message)
        self._outbox.clear()

    def _is_clear(self, job: int, node: int) -> bool:
        """Return whether no other job works on the cores that `job` is to have of `node`; if one does, hold `job`."""
        loan = self.cluster.loans.get(node)
        if loan is None:
            return True  # the node was idle before
        other = self.running.get(loan.owner if loan.guest == job else loan.guest)
        clear = other is None or not other.works_on(node, self.running[job].cores[node])
        if not clear:
            self._held[job] = None
        return clear

    def _cpus(self, node: int, cores: range) -> str:
        """Return the mask of these cores of `node`; the cores of an emulated one are its CPUs."""
        cpus = self.testbed.nodes[node].cpus
        return format_cpus(cores if cpus is None else cpus[cores.start : cores.stop])

    def _launch(self, job: int, active: RunningJob, node: int, *, leader: bool) -> None:
        cores = active.alive[node] = active.cores[node]
        self._tell(
            node,
            {
                "type": "launch",
                "job": self.jobs.ids[job],
                "rank": self.testbed.nodes[node].name,
                "leader": leader,
                "members": self.names(active.nodes),
                "address": active.address,
                "family": self.testbed.family,
                "authkey": active.authkey,
                "cpus": self._cpus(node, cores),
                "cores": len(cores),
                "program": active.program._asdict(),
            },
        )

    def _tell(self, node: int, message: dict[str, Any]) -> None:
        self._outbox.append((node, message))
