"""Promises: nodes that running jobs will release, reserved for waiting jobs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass
class Earmarked:
    """Nodes reserved for certain promises."""

    idle: int = 0
    """Number of these nodes that are already idle."""
    coming: dict[int, int] = field(default_factory=dict)
    """Shrinking job -> number of its nodes that it has yet to release, in the order of the decisions."""


class Promises:
    """The waiting jobs that were promised nodes, and the nodes reserved for them.

    A promise is served from nodes reserved for one job (`direct` in the Kassel study), from nodes reserved for all jobs
    with exchange (`steal`), or from any released nodes (`pool`). Promises are numbers of nodes; the cluster chooses the
    idle nodes on which the job starts.
    """

    def __init__(self) -> None:
        """Start without promises."""
        self._nodes: dict[int, int] = {}  # promised job -> nodes, in the order of the promises
        self._served_from: dict[int, Earmarked] = {}  # promised job -> its reserved nodes; without an entry: any
        self._common = Earmarked()
        self._shrinking: dict[int, int] = {}  # job -> number of nodes that its pending shrink will release

    def __contains__(self, job: int) -> bool:
        """Return whether `job` waits for promised nodes."""
        return job in self._nodes

    def shrinking(self, job: int, nodes: int) -> None:
        """Record that `job` will release `nodes` nodes."""
        self._shrinking[job] = nodes

    def is_shrinking(self, job: int) -> bool:
        """Return whether `job` still has nodes to release."""
        return job in self._shrinking

    def released(self, job: int) -> int:
        """Record that `job` has released the nodes of its shrink, and return their number (0: no pending shrink)."""
        nodes = self._shrinking.pop(job, 0)
        if nodes:
            for earmarked in self._distinct():
                earmarked.idle += earmarked.coming.pop(job, 0)
        return nodes

    def make(self, job: int, nodes: int, coming: Mapping[int, int] | None, *, exchange: bool) -> None:
        """Promise nodes to `job`.

        Args:
            job: the waiting job.
            nodes: number of nodes.
            coming: shrinking job -> number of its nodes; the other nodes are idle nodes. None: any released nodes.
            exchange: whether the nodes may be exchanged with other promises that have `exchange`.
        """
        self._nodes[job] = nodes
        if coming is None:
            return
        earmarked = self._served_from[job] = self._common if exchange else Earmarked()
        earmarked.idle += nodes - sum(coming.values())
        for source, count in coming.items():
            earmarked.coming[source] = earmarked.coming.get(source, 0) + count

    def drop(self, job: int) -> bool:
        """Drop the promise to `job`, and return whether there was one. Idle common nodes are dropped first."""
        nodes = self._nodes.pop(job, 0)
        earmarked = self._served_from.pop(job, None)
        if earmarked is self._common:
            idle = min(nodes, earmarked.idle)
            earmarked.idle -= idle
            rest = nodes - idle
            for source in reversed(earmarked.coming):
                fewer = min(rest, earmarked.coming[source])
                earmarked.coming[source] -= fewer
                rest -= fewer
        return nodes > 0

    @property
    def last(self) -> int | None:
        """The job with the most recent promise; None: there are no promises."""
        return next(reversed(self._nodes), None)

    def serve(self, idle: int) -> list[tuple[int, int]]:
        """Remove the promises that `idle` idle nodes can serve, and return (job, nodes) in the order of the promises.

        A promise that cannot be served yet does not delay later ones.
        """
        served: list[tuple[int, int]] = []
        if not self._nodes:
            return served
        for job, nodes in list(self._nodes.items()):
            earmarked = self._served_from.get(job)
            if nodes <= (idle - self._earmarked_idle() if earmarked is None else earmarked.idle):
                if earmarked is not None:
                    earmarked.idle -= nodes
                    del self._served_from[job]
                del self._nodes[job]
                idle -= nodes
                served.append((job, nodes))
        return served

    def left_over(self, idle: int) -> tuple[int, int]:
        """Return the numbers of idle nodes (of `idle`) and of nodes being released that are not promised."""
        if not (self._nodes or self._shrinking):
            return idle, 0
        outstanding = sum(nodes for job, nodes in self._nodes.items() if job not in self._served_from)
        coming = sum(self._shrinking.values()) - sum(sum(earmarked.coming.values()) for earmarked in self._distinct())
        return idle - self._earmarked_idle() - max(0, outstanding - coming), max(0, coming - outstanding)

    def _distinct(self) -> list[Earmarked]:
        own = [earmarked for earmarked in self._served_from.values() if earmarked is not self._common]
        return [*own, self._common]

    def _earmarked_idle(self) -> int:
        return sum(earmarked.idle for earmarked in self._distinct())
