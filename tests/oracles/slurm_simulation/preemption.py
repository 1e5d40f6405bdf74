"""Which running jobs a waiting job may preempt, and which of them it does.

Source: slurm.conf(5) (`PreemptType`, `PreemptMode`, `PreemptExemptTime`, `GraceTime`), and the recordings `preempt*` of
Slurm 22.05.8.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import or_
from typing import NamedTuple

from tests.oracles.slurm_simulation.nodes import Nodes, Running
from tracebed.orchestrator.scheduling.node_masks import mask_of
from tracebed.slurm.simulation.inputs import SUSPEND, Preemption
from tracebed.slurm.simulation.resources import Request

REQUEUED_S = 121.0
"""A requeued job waits at least this long, s: as tried on Slurm 22.05.8, its begin time is that much later."""


@dataclass(frozen=True)
class Preempting(Preemption):
    """Classes of jobs, and which running jobs each waiting job may preempt."""

    @property
    def levels(self) -> list[int]:
        """Number of classes whose jobs a job of each class may preempt."""
        return [may.bit_count() for may in self.may]

    def candidates(
        self, job: int, running: Sequence[Running], start: Sequence[float], now: float, clock: Callable[[float], int]
    ) -> list[Running]:
        """Return the running jobs that `job` may preempt, in the order in which they are preempted.

        `clock` returns the whole second of Slurm's clock at an instant.
        """
        may = self.may[self.of[job]]
        if not may:
            return []
        found = [
            self._yielding(each)
            for each in running
            if may >> self.of[each.job] & 1 and self._exposed(each.job, clock(now) - clock(start[each.job]))
        ]

        def key(each: Running) -> tuple[float, int, int]:
            if self.youngest:
                return -start[each.job], 0, each.job
            return self.rank[self.of[each.job]], len(each.parts), each.job

        return sorted(found, key=key)

    def _yielding(self, each: Running) -> Running:
        """Return what a preempted job releases: a suspended one keeps its memory and generic resources."""
        if self.mode[self.of[each.job]] != SUSPEND:
            return each
        nothing = (0,) * len(each.request.gres)
        return each._replace(request=each.request._replace(whole=False, memory=0, by_core=False, gres=nothing))

    def _exposed(self, job: int, seconds: int) -> bool:
        """Return whether a job that has run for so many seconds may be preempted."""
        return seconds >= self.exempt_of(job)

    def exempt_of(self, job: int) -> float:
        """Return the time after its start in which a job is not preempted, s."""
        of = self.of[job]
        return 0.0 if self.mode[of] == SUSPEND else self.exempt_s[of]

    @cached_property
    def yielding(self) -> int:
        """Mask of the classes whose jobs may be preempted."""
        return reduce(or_, self.may)


class Choice(NamedTuple):
    """The jobs that are preempted, and the cores by node that the other job gets."""

    victims: list[Running]
    parts: dict[int, int]


def choose(request: Request, usable: int, free: Nodes, candidates: Sequence[Running], again: int) -> Choice | None:
    """Choose the jobs to preempt among `candidates`; None: the job does not fit in place of all of them.

    The candidates are taken one after another until the job fits. Then they are sorted again, the last one first and
    the others by the number of nodes that the job would use, and taken again. Only jobs on the nodes of the job are
    preempted.
    """
    order = [each for each in candidates if each.nodes & usable]
    while True:
        taken, parts, expected = list[Running](), None, free.copy()
        for each in order:
            expected.release(each.request, each.parts)
            taken.append(each)
            parts = expected.choose(request, usable)
            if parts is not None:
                break
        if parts is None:
            return None
        nodes = mask_of(parts.keys())
        if again == 0 or len(taken) == 1:
            return Choice([each for each in taken if each.nodes & nodes], parts)
        again -= 1
        last = taken[-1]
        order = sorted(taken, key=lambda each: (each is not last, -(each.nodes & nodes).bit_count()))
