"""Jobs that share nodes at once, as in the use cases of the DROM paper (in situ analytics, high-priority job)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import ClassVar, Literal

from tracebed.converters.workload import Kind
from tracebed.orchestrator.scheduling.state import Decision, Lend, Share, Start, State


@dataclass(frozen=True)
class DromShare:
    """First come, first served; who does not fit on idle nodes shares those of running malleable jobs.

    Args:
        mode: `serial`, the papers' baseline: nobody shares.
        split: `even`: equipartition, a guest gets half of a node at most, in whole sockets where possible, or what its
            owner does not use; `asked`: as many cores as it asked for.
    """

    malleable: ClassVar[bool] = False
    shares: ClassVar[bool] = True

    mode: Literal["share", "serial"] = "share"
    split: Literal["even", "asked"] = "even"

    def decide(self, state: State) -> Iterator[Decision]:
        """Yield starts, until a job fits nowhere."""
        while (head := state.queue.head) is not None:
            if state.jobs.nodes[head] <= state.idle:
                yield Start(head, state.jobs.nodes[head])
            elif self.mode == "share" and (share := self._share(state, head)) is not None:
                yield share
            else:
                return

    def _share(self, state: State, job: int) -> Share | None:
        """Return idle nodes, then nodes of running jobs by order of start, that `job` starts on; None: too few."""
        jobs, cluster = state.jobs, state.cluster
        if jobs.kind[job] not in (Kind.MALLEABLE, Kind.MOLDABLE):
            return None
        missing = jobs.nodes[job] - state.idle
        found: list[tuple[int, int, int]] = []  # owner, cores, node
        for owner in state.size:
            if jobs.kind[owner] == Kind.MALLEABLE and owner not in state.resizing:
                for node in cluster.owned(owner):
                    cores = self._part(state, job, owner, node)
                    if len(found) < missing and cores and node not in cluster.loans:
                        found.append((owner, cores, node))
            if len(found) == missing:
                loans = groupby(found, key=lambda loan: loan[:2])
                return Share(
                    job,
                    state.idle,
                    tuple(Lend(owner, tuple(node for *_, node in part), cores) for (owner, cores), part in loans),
                )
        return None

    def _part(self, state: State, job: int, owner: int, node: int) -> int:
        """Return the cores of `node` that `job` gets beside `owner`, which keeps one at least."""
        cores, sockets = state.cluster.cores[node], state.cluster.sockets[node]
        most = cores - 1
        if self.split == "even":
            half, socket = cores // 2, cores // sockets
            most = max(half // socket * socket if half >= socket else half, cores - state.jobs.cores[owner])
        return min(state.jobs.cores[job], most)
