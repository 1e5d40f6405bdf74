"""Nodes set aside for jobs that have been promised them, while running jobs are still to give them back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass
class Pot:
    """Nodes for certain promises only."""

    there: int = 0
    """How many of them are idle already."""
    coming: dict[int, int] = field(default_factory=dict)
    """Shrinking job -> how many it is still to give back, in the order in which they were taken."""


class Promises:
    """Who was promised how many nodes, which of them are on their way, and who can start.

    A promise is served from a pot of its own (the source's `direct`: the nodes taken for it and no others), from the
    pot that it shares with all others of its kind (`steal`), or from any nodes that come free (`pool`). What counts is
    how many nodes are there; on which of the idle nodes the job then starts is for the cluster to say.
    """

    def __init__(self) -> None:
        """Nobody was promised anything."""
        self._nodes: dict[int, int] = {}  # promised job -> nodes, in the order of the promises
        self._pots: dict[int, Pot] = {}  # promised job -> the pot it is served from; none: any nodes that come free
        self._common = Pot()
        self._shrinking: dict[int, int] = {}  # job -> nodes that its pending shrink will give back

    def __contains__(self, job: int) -> bool:
        """Return whether `job` was promised nodes that it has not got yet."""
        return job in self._nodes

    def shrinking(self, job: int, nodes: int) -> None:
        """Take in that `job` will give back `nodes` nodes."""
        self._shrinking[job] = nodes

    def is_shrinking(self, job: int) -> bool:
        """Return whether `job` has nodes still to give back."""
        return job in self._shrinking

    def gave_back(self, job: int) -> int:
        """Take in that `job` has given back what it had to, and return how many nodes that is (0: it had none to)."""
        nodes = self._shrinking.pop(job, 0)
        if nodes:
            for pot in self._distinct_pots():
                pot.there += pot.coming.pop(job, 0)
        return nodes

    def make(self, job: int, nodes: int, coming: Mapping[int, int] | None, *, exchange: bool) -> None:
        """Promise `job` as many nodes.

        Args:
            job: for whom.
            nodes: how many.
            coming: shrinking job -> how many of its nodes; the others are idle. None: any nodes that come free.
            exchange: nodes may be exchanged with other such promises.
        """
        self._nodes[job] = nodes
        if coming is None:
            return
        pot = self._pots[job] = self._common if exchange else Pot()
        pot.there += nodes - sum(coming.values())
        for source, count in coming.items():
            pot.coming[source] = pot.coming.get(source, 0) + count

    def drop(self, job: int) -> bool:
        """Forget the promise made to `job`, and return whether there was one. Of a shared pot, idle nodes go first."""
        nodes = self._nodes.pop(job, 0)
        pot = self._pots.pop(job, None)
        if pot is self._common:
            idle = min(nodes, pot.there)
            pot.there -= idle
            rest = nodes - idle
            for source in reversed(pot.coming):
                fewer = min(rest, pot.coming[source])
                pot.coming[source] -= fewer
                rest -= fewer
        return nodes > 0

    def serve(self, idle: int) -> list[tuple[int, int]]:
        """Strike out the promises that `idle` idle nodes can serve; return (job, nodes) in the order they were made.

        One that cannot be served yet does not hold up those behind it.
        """
        served = []
        for job, nodes in list(self._nodes.items()):
            pot = self._pots.get(job)
            if nodes <= (idle - self._in_pots() if pot is None else pot.there):
                if pot is not None:
                    pot.there -= nodes
                    del self._pots[job]
                del self._nodes[job]
                idle -= nodes
                served.append((job, nodes))
        return served

    def left_over(self, idle: int) -> tuple[int, int]:
        """Return how many of `idle` idle nodes are promised to nobody, and how many of those on their way."""
        if not (self._nodes or self._shrinking):
            return idle, 0
        owed = sum(nodes for job, nodes in self._nodes.items() if job not in self._pots)
        coming = sum(self._shrinking.values()) - sum(sum(pot.coming.values()) for pot in self._distinct_pots())
        return idle - self._in_pots() - max(0, owed - coming), max(0, coming - owed)

    def _distinct_pots(self) -> list[Pot]:
        own = [pot for pot in self._pots.values() if pot is not self._common]
        return [*own, self._common]

    def _in_pots(self) -> int:
        return sum(pot.there for pot in self._distinct_pots())
