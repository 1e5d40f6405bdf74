"""What a pass of Slurm looks at beside the nodes: advance reservations, and licences.

Source: "Advanced Resource Reservation Guide" of Slurm's documentation, and the recordings `reservation*` of Slurm
22.05.8. Instants are whole seconds of Slurm's clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from tracebed.slurm.rules.licenses import LicensePlan
from tracebed.slurm.rules.resources import Running


class Booked(NamedTuple):
    """An advance reservation."""

    begin: int
    end: int
    kill: int
    """When the jobs in the reservation are killed: its end, or `ResvOverRun` later."""
    nodes: int
    """Mask of its nodes."""
    flexible: bool = False
    """Whether its jobs may also run on other nodes, and outside of its time."""


@dataclass(frozen=True)
class Bookings:
    """The advance reservations.

    Attributes:
        booked: the reservations.
        inside: the reservation in which each job runs; -1: none.
        notices: instants at which slurmctld notices that a reservation has begun or ended, s of the simulation.
    """

    booked: Sequence[Booked]
    inside: Sequence[int]
    notices: Sequence[float] = ()

    @classmethod
    def none(cls, count: int) -> Bookings:
        """Return no reservations for `count` jobs."""
        return cls((), [-1] * count)

    def allowed(self, job: int, start: int, limit: int) -> int:
        """Return the mask of the nodes that a job may use from `start` to `start + limit`; -1: all nodes."""
        inside = self.inside[job]
        allowed = self.booked[inside].nodes if inside >= 0 and not self.booked[inside].flexible else -1
        for number, each in enumerate(self.booked):
            if number != inside and each.begin < start + limit and start < each.end:
                allowed &= ~each.nodes
        return allowed

    def next_begin(self, job: int, now: int, nodes: int) -> int:
        """Return when the next other reservation of some of `nodes` (mask) begins after `now`; 0: none."""
        others = (each for number, each in enumerate(self.booked) if number != self.inside[job])
        return min((each.begin for each in others if each.begin > now and each.nodes & nodes), default=0)

    def over(self, job: int, now: int) -> bool:
        """Return whether the reservation of a job has ended, so that the job never starts."""
        return self.inside[job] >= 0 and self.booked[self.inside[job]].end <= now

    def most(self, job: int, start: int, limit: int) -> int:
        """Return for how long a job may run from `start` on: its limit, or until the end of its reservation, s."""
        if self.inside[job] < 0 or self.booked[self.inside[job]].flexible:
            return limit
        return min(limit, max(0, self.booked[self.inside[job]].kill - start))


class Preemptor(Protocol):
    """What preempts running jobs for a waiting one."""

    def candidates(self, job: int) -> list[Running]:
        """Return the running jobs that `job` may preempt."""

    def preempt(self, job: int, usable: int, candidates: Sequence[Running]) -> tuple[bool, int]:
        """Preempt jobs for `job`; return whether it has started, and the nodes that it gets."""


@dataclass
class Outlook:
    """Reservations and licences in a backfill pass, and what preempts jobs for those that a pass starts."""

    bookings: Bookings
    licenses: LicensePlan
    preemptor: Preemptor | None = None

    def later(self, job: int, after: int, found: int) -> int:
        """Return the next start worth a trial: `found` (0: none), or the next end of a reservation or of licences."""
        ends = (each.end for each in self.bookings.booked if each.end > after)
        return min((each for each in (found, self.licenses.next_release(job, after), *ends) if each), default=0)

    def usable(self, job: int, start: int, limit: int, now: int) -> int:
        """Return the mask of the nodes that a job may use from `start` on; 0: licences are missing."""
        if not self.licenses.usable(job, start, start + limit, now):
            return 0
        return self.bookings.allowed(job, start, limit)
