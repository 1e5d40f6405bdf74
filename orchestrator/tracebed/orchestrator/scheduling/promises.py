"""Nodes set aside for jobs that have been promised them, while running jobs are still to give them back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass
class Earmarked:
    """Nodes that serve certain promises only."""

    idle: int = 0
    """How many of them are idle already."""
    coming: dict[int, int] = field(default_factory=dict)
    """Shrinking job -> how many of its nodes are still to come, in the order in which they were taken."""


class Promises:
    """The waiting jobs that were promised nodes, the nodes still to come, and the jobs that can start.

    A promise is served from nodes earmarked for it alone (the source's `direct`: the nodes taken for it), from nodes
    earmarked for all promises of its kind (`steal`), or from any nodes that come free (`pool`). Promises count nodes;
    the cluster chooses the idle nodes on which the job then starts.
    """

    def __init__(self) -> None:
        """Start without promises."""
        self._nodes: dict[int, int] = {}  # promised job -> nodes, in the order of the promises
        self._served_from: dict[int, Earmarked] = {}  # promised job -> its nodes; none: any that come free
        self._common = Earmarked()
        self._shrinking: dict[int, int] = {}  # job -> nodes that its pending shrink will give back

    def __contains__(self, job: int) -> bool:
        """Return whether `job` waits for promised nodes."""
        return job in self._nodes

    def shrinking(self, job: int, nodes: int) -> None:
        """Note that `job` will release `nodes` nodes."""
        self._shrinking[job] = nodes

    def is_shrinking(self, job: int) -> bool:
        """Return whether `job` still has nodes to release."""
        return job in self._shrinking

    def gave_back(self, job: int) -> int:
        """Note that `job` has released the nodes of its shrink, and return how many (0: it was not shrinking)."""
        nodes = self._shrinking.pop(job, 0)
        if nodes:
            for earmarked in self._distinct():
                earmarked.idle += earmarked.coming.pop(job, 0)
        return nodes

    def make(self, job: int, nodes: int, coming: Mapping[int, int] | None, *, exchange: bool) -> None:
        """Promise nodes to `job`.

        Args:
            job: the waiting job.
            nodes: how many nodes.
            coming: shrinking job -> how many of its nodes; the rest are idle nodes. None: any nodes that come free.
            exchange: nodes may be exchanged with other such promises.
        """
        self._nodes[job] = nodes
        if coming is None:
            return
        earmarked = self._served_from[job] = self._common if exchange else Earmarked()
        earmarked.idle += nodes - sum(coming.values())
        for source, count in coming.items():
            earmarked.coming[source] = earmarked.coming.get(source, 0) + count

    def drop(self, job: int) -> bool:
        """Drop the promise to `job`, and return whether there was one. Of common nodes, idle ones are dropped first."""
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

    def serve(self, idle: int) -> list[tuple[int, int]]:
        """Remove the promises that `idle` idle nodes can serve, and return (job, nodes) in the order of the promises.

        A promise that cannot be served yet does not delay later ones.
        """
        served = []
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
        """Return how many of `idle` idle nodes, and how many of the nodes being released, are not promised."""
        if not (self._nodes or self._shrinking):
            return idle, 0
        owed = sum(nodes for job, nodes in self._nodes.items() if job not in self._served_from)
        coming = sum(self._shrinking.values()) - sum(sum(earmarked.coming.values()) for earmarked in self._distinct())
        return idle - self._earmarked_idle() - max(0, owed - coming), max(0, coming - owed)

    def _distinct(self) -> list[Earmarked]:
        own = [earmarked for earmarked in self._served_from.values() if earmarked is not self._common]
        return [*own, self._common]

    def _earmarked_idle(self) -> int:
        return sum(earmarked.idle for earmarked in self._distinct())
