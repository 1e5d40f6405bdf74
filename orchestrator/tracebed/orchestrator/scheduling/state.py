"""What a policy sees, and what it can decide."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, NamedTuple, Protocol, runtime_checkable

import numpy as np

from tracebed.converters.workload import FloatArray, IntArray
from tracebed.orchestrator.scheduling.cluster import Cluster
from tracebed.orchestrator.scheduling.jobs import Jobs
from tracebed.orchestrator.scheduling.queue import Queue


class Start(NamedTuple):
    """Start `job` on `nodes` nodes; where fewer are idle, as soon as running shrinks have freed them (a promise).

    Args:
        job: who.
        nodes: how many.
        taken: (shrunk job, how many of its nodes) that are meant for this job, the others being idle ones; it then
            waits for just these. Nothing: any nodes that come free will do.
        exchange: with `taken`: promised nodes may be exchanged with other promises of this kind.
    """

    job: int
    nodes: int
    taken: tuple[tuple[int, int], ...] = ()
    exchange: bool = False


class Resize(NamedTuple):
    """Shrink or expand the running `job` to `nodes` nodes, at its next malleability point."""

    job: int
    nodes: int


class Lend(NamedTuple):
    """Of what `owner` holds, `nodes`: on each of them a guest gets `cores` cores, and the owner keeps the others."""

    owner: int
    nodes: tuple[int, ...]
    cores: int


class Share(NamedTuple):
    """Start the waiting `job` now, on `free` idle nodes and as a guest on nodes of running jobs."""

    job: int
    free: int
    loans: tuple[Lend, ...]


class Reject(NamedTuple):
    """Refuse the waiting `job`; `reason` goes into the run."""

    job: int
    reason: str


class Cancel(NamedTuple):
    """End the running `job`; `reason` goes into the run."""

    job: int
    reason: str


class Reserve(NamedTuple):
    """Plan the waiting `job` for the instant `at`; it stands in `State.reserved` until it starts or is planned anew."""

    job: int
    at: float


class Wake(NamedTuple):
    """Call the policy again at the instant `at`, whether or not something happens; each call says so for itself."""

    at: float


Decision = Start | Resize | Share | Reject | Cancel | Reserve | Wake


class Policy(Protocol):
    """A scheduling policy.

    Its parameters are the fields of a dataclass. It is pure: no clock, no I/O, no memory of its own; what it decides
    depends on `state` alone.
    """

    malleable: ClassVar[bool]
    """Whether it decides sizes. To one that does not, every job is rigid, at its requested size."""

    def decide(self, state: State) -> Iterator[Decision]:
        """Yield decisions; each is carried out, and `state` is up to date, before the next is asked for."""
        ...


@runtime_checkable
class HasView(Protocol):
    """A policy that reads sizes in its own way."""

    def view(self, jobs: Jobs) -> Jobs:
        """Return `jobs` as the policy, and with it the scheduler, is to see them."""
        ...


def shares(policy: Policy) -> bool:
    """Return whether `policy` has jobs share nodes (decides `Share`), which it says with `shares: ClassVar[bool]`."""
    return bool(getattr(policy, "shares", False))


def seen_by(policy: Policy, jobs: Jobs) -> Jobs:
    """Return `jobs` as `policy` sees them: to one that does not decide sizes they are all rigid."""
    if isinstance(policy, HasView):
        return policy.view(jobs)
    return jobs if policy.malleable else jobs.as_rigid()


LOOK = 64


class Releases:
    """The running jobs by expected end, as arrays, for the one question of when enough nodes will be idle."""

    def __init__(self, capacity: int) -> None:
        """Make room for `capacity` jobs (there cannot be more than two a node)."""
        self._rows = np.zeros((3, max(capacity, LOOK) + 1))  # expected end, nodes, job
        self._count = 0
        self.changes = 0

    def add(self, job: int, end: float, nodes: int) -> None:
        """Enter `job`, expected to give back `nodes` nodes at `end`."""
        rows, count = self._rows, self._count
        at = int(rows[0, :count].searchsorted(end, "right"))
        rows[:, at + 1 : count + 1] = rows[:, at:count]
        rows[0, at] = end
        rows[1, at] = nodes
        rows[2, at] = job
        self._count = count + 1
        self.changes += 1

    def remove(self, job: int, end: float) -> None:
        """Strike out `job`, which was entered with `end`."""
        rows, count = self._rows, self._count
        at = int(rows[0, :count].searchsorted(end))
        if rows[2, at] != job:  # equal ends: jobs of one script, hundreds at times
            at += int((rows[2, at:count] == job).argmax())
        rows[:, at : count - 1] = rows[:, at + 1 : count]
        self._count = count - 1
        self.changes += 1

    def due(self, now: float) -> list[int]:
        """Return the jobs whose expected end is not after `now`, in the order of these ends."""
        passed = int(self._rows[0, : self._count].searchsorted(now, "right"))
        return [int(job) for job in self._rows[2, :passed]]

    @property
    def rows(self) -> tuple[FloatArray, IntArray, IntArray]:
        """Expected ends, ascending; the nodes that come free by then; and the jobs."""
        ends, nodes, jobs = self._rows[:, : self._count]
        return ends.copy(), nodes.astype(np.int64), jobs.astype(np.int64)

    def reservation(self, need: int, idle: int, now: float) -> tuple[float, int]:
        """Return the shadow time at which `need` nodes will be idle, and how many are so beyond the need."""
        if idle < need:
            ends, freed = self._rows[0, : self._count], self._rows[1, :LOOK].cumsum()  # the nearest ends mostly do
            at = int(freed[: self._count].searchsorted(need - idle))
            if at + 1 < min(LOOK, self._count) and now < ends[at] < ends[at + 1]:
                return float(ends[at]), idle + int(freed[at]) - need
            at = int(self._rows[1, : self._count].cumsum().searchsorted(need - idle))
            shadow = max(now, float(ends[at]))
        else:
            shadow = now
        ended = int(self._rows[0, : self._count].searchsorted(shadow, "right"))
        return shadow, idle + int(self._rows[1, :ended].sum()) - need


class State:
    """The cluster's state and the queue. Policies read it; only the scheduler changes it.

    Attributes:
        jobs: what was asked for, by job number.
        now: the instant, s.
        cluster: who holds which nodes, and who is a guest there.
        total: nodes of the machine.
        idle: idle nodes that are not promised to a job.
        returning: nodes that pending shrinks will give back and nobody is promised.
        queue: the waiting jobs; a promised job is not among them.
        size: job -> nodes of each running job, by order of start; after a pending resize those to come.
        started: [job] when it started; NaN: not yet. Kept for policies that share nodes only, as is:
        can_host: [job] the cores of each of its nodes if it may lend some: it is malleable, runs, shares nothing, and
            its nodes are alike; else 0.
        can_host_sockets: [job] the sockets of each of its nodes if so.
        expected_end: job -> when its limit ends at the speed it has, of running and promised jobs.
        resizable: the running malleable jobs that have more than one size, by order of start (keys of a dictionary).
        resizing: running jobs with a pending resize.
        reserved: waiting job -> the instant for which the policy has planned it, by order of planning.
        woken: whether this call is one that the policy has asked for with `Wake`.
        arrived: jobs submitted since the policy was last called, in order (some may have been started since).
        settled: whether the last call decided nothing and nothing has come free since.
        freed: whether since then nodes came free or a resize took effect, or one was decided in that very call.
    """

    def __init__(self, jobs: Jobs, cluster: Cluster, queue: Queue | None = None) -> None:
        """Start with an idle machine and nobody waiting; `queue`, by submission if none is given, is empty."""
        self.jobs = jobs
        self.now = 0.0
        self.cluster = cluster
        self.total = len(cluster)
        self.idle = self.total
        self.returning = 0
        self.queue = Queue(jobs) if queue is None else queue
        self.size: dict[int, int] = {}
        self.started = np.full(len(jobs), np.nan)
        self.can_host = np.zeros(len(jobs), dtype=np.int64)
        self.can_host_sockets = np.ones(len(jobs), dtype=np.int64)
        self.expected_end: dict[int, float] = {}
        self.resizable: dict[int, None] = {}
        self.resizing: set[int] = set()
        self.reserved: dict[int, float] = {}
        self.woken = False
        self.arrived: list[int] = []
        self.freed = False
        self.settled = False
        self.releases = Releases(2 * self.total)
        self._question: tuple[int, int, int] | None = None  # of the last reservation, and its answer
        self._answer = (0.0, 0)

    def reservation(self, need: int) -> tuple[float, int]:
        """Return the shadow time and the extra nodes of a waiting job that needs `need` > `idle` nodes (Lifka 1995).

        Shadow time: the earliest instant at which `need` nodes will be idle if every running job ends at its expected
        end, or now where that is past. Extra: the nodes that will then be idle beyond the need.
        """
        question = (need, self.idle + self.returning, self.releases.changes)
        if self._question != question or self._answer[0] <= self.now:
            self._question = question
            self._answer = self.releases.reservation(need, self.idle + self.returning, self.now)
        return self._answer
