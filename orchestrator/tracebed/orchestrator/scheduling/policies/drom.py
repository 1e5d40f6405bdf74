"""Node sharing without waiting, as in the use cases of the DROM paper (in situ analytics, high-priority job)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import ClassVar, Literal

from tracebed.converters.workload import Kind
from tracebed.ground.errors import InputError
from tracebed.orchestrator.scheduling.state import Decision, Lend, ParameterTable, Share, Start, State


@dataclass(frozen=True)
class DromShare(ParameterTable):
    """First come, first served. A job that does not fit on idle nodes shares nodes of running malleable jobs.

    Args:
        mode: `share`, or `serial` (no sharing, the baseline of the papers).
        split: cores for a guest. `even` (equipartition): at most half of a node, in whole sockets if possible, or the
            cores that the owner does not use. `asked`: the requested cores.
    """

    malleable: ClassVar[bool] = False
    shares: ClassVar[bool] = True

    mode: Literal["share", "serial"] = "share"
    split: Literal["even", "asked"] = "even"

    def __post_init__(self) -> None:
        """Raise InputError if a parameter has no effect."""
        if self.mode == "serial" and self.split != "even":
            raise InputError("drom-share.split has no effect if no jobs share nodes", hint="leave out split or mode")

    def decide(self, state: State) -> Iterator[Decision]:
        """Yield starts until a job does not fit."""
        while (head := state.queue.head) is not None:
            if state.jobs.nodes[head] <= state.idle:
                yield Start(head, state.jobs.nodes[head])
            elif self.mode == "share" and (share := self._share(state, head)) is not None:
                yield share
            else:
                return

    def _share(self, state: State, job: int) -> Share | None:
        """Return a share of all idle nodes and of nodes of running jobs in order of start; None: too few nodes."""
        jobs, cluster = state.jobs, state.cluster
        if jobs.kind[job] not in (Kind.MALLEABLE, Kind.MOLDABLE):
            return None
        missing = jobs.nodes[job] - state.idle
        lent: list[tuple[int, int, int]] = []  # owner, cores, node
        for owner in state.size:
            if jobs.kind[owner] == Kind.MALLEABLE and owner not in state.resizing:
                for node in cluster.owned(owner):
                    cores = self._part(state, job, owner, node)
                    if len(lent) < missing and cores and node not in cluster.loans:
                        lent.append((owner, cores, node))
            if len(lent) == missing:
                loans = groupby(lent, key=lambda loan: loan[:2])
                return Share(
                    job,
                    state.idle,
                    tuple(Lend(owner, tuple(node for *_, node in part), cores) for (owner, cores), part in loans),
                )
        return None

    def _part(self, state: State, job: int, owner: int, node: int) -> int:
        """Return the number of cores of `node` that `owner` lends to `job`. The owner keeps at least one core."""
        cores, sockets = state.cluster.cores[node], state.cluster.sockets[node]
        most = cores - 1
        if self.split == "even":
            half, socket = cores // 2, cores // sockets
            most = max(half // socket * socket if half >= socket else half, cores - state.jobs.cores[owner])
        return min(state.jobs.cores[job], most)
