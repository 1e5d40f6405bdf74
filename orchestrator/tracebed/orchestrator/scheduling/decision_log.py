"""Decisions that a scheduler passed to its executor, for comparisons of a replay with a simulation of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tracebed.orchestrator.scheduling.cluster import Cluster
from tracebed.orchestrator.scheduling.jobs import Jobs

KINDS = ("call", "start", "resize", "deny", "cores", "reject", "cancel")
"""Kinds of `LoggedDecision`, which are also kinds of journal entries."""


class LoggedDecision(NamedTuple):
    """A call of the policy, or a decision that the scheduler passed to its executor."""

    time: float
    """Trace seconds."""
    kind: str
    """One of `KINDS`."""
    job: str = ""
    nodes: tuple[str, ...] = ()
    """Names of the nodes after a start or a resize."""
    cores: tuple[tuple[str, range], ...] = ()
    """Shared nodes and the cores of the job on each of them, in the order of the names."""
    reason: str = ""

    def __str__(self) -> str:
        """Return the decision as text: `start job 7 on n1, n2 at 120.5 s`."""
        job = f" job {self.job}" if self.job else " of the policy"
        nodes = f" on {', '.join(self.nodes)}" if self.nodes else ""
        parts = ", ".join(f"cores {part.start} to {part.stop - 1} of {node}" for node, part in self.cores)
        reason = f" ({self.reason})" if self.reason else ""
        return f"{self.kind}{job}{nodes}{f' ({parts})' if parts else ''}{reason} at {self.time:.6f} s"


class DecisionLog:
    """The decisions of a scheduler in the order in which its executor received them. `names`: of each node."""

    def __init__(self, jobs: Jobs, cluster: Cluster, names: Sequence[str]) -> None:
        """Start without decisions."""
        self.decisions: list[LoggedDecision] = []
        self._ids, self._cluster, self._names = jobs.ids, cluster, names

    def call(self, now: float) -> None:
        """Add a call of the policy."""
        self.decisions.append(LoggedDecision(now, "call"))

    def start(self, now: float, job: int, nodes: Sequence[int]) -> None:
        """Add the start of `job` on `nodes`."""
        self.decisions.append(LoggedDecision(now, "start", self._ids[job], self._named(nodes), self._shared(job)))

    def resize(self, now: float, job: int, nodes: Sequence[int]) -> None:
        """Add the resize of `job` to `nodes`."""
        self.decisions.append(LoggedDecision(now, "resize", self._ids[job], self._named(nodes)))

    def deny(self, now: float, job: int, requested: int) -> None:
        """Add the denial of the request of `job` for `requested` nodes."""
        self.decisions.append(LoggedDecision(now, "deny", self._ids[job], reason=f"{requested} nodes"))

    def change_cores(self, now: float, job: int) -> None:
        """Add the change of the cores of `job`."""
        self.decisions.append(LoggedDecision(now, "cores", self._ids[job], cores=self._shared(job)))

    def refuse(self, now: float, kind: str, job: int, reason: str) -> None:
        """Add the rejection or the cancellation of `job`; `kind`: reject or cancel."""
        self.decisions.append(LoggedDecision(now, kind, self._ids[job], reason=reason))

    def _named(self, nodes: Sequence[int]) -> tuple[str, ...]:
        return tuple(self._names[node] for node in nodes)

    def _shared(self, job: int) -> tuple[tuple[str, range], ...]:
        loans, part = self._cluster.loans, self._cluster.part
        if not loans:
            return ()
        shared = (node for node in self._cluster.nodes_of(job) if node in loans)
        return tuple(sorted((self._names[node], part(job, node)) for node in shared))
