"""The state that a policy reads, and the decisions that it can yield."""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Container, Iterator, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import numpy as np

from tracebed.ground.display import facts_html
from tracebed.ground.extension_errors import checked, of_extension
from tracebed.orchestrator.scheduling.jobs import Jobs
from tracebed.orchestrator.scheduling.node_masks import mask_of, nodes_of

if TYPE_CHECKING:
    from tracebed.orchestrator.scheduling.cluster import Cluster
    from tracebed.orchestrator.scheduling.queue import Queue


class Start(NamedTuple):
    """Start `job` on `nodes` nodes. If fewer nodes are idle, promise the job nodes that pending shrinks will release.

    Args:
        job: the waiting job.
        nodes: number of nodes.
        taken: (shrinking job, number of its nodes) reserved for this job; the other nodes are idle nodes. The job
            starts when exactly these nodes are idle. Empty: the job starts on any nodes.
        exchange: with `taken`: nodes may be exchanged with other promises that have `exchange`.
        on: the `nodes` idle nodes on which the job starts; empty: the lowest-numbered idle nodes.
    """

    job: int
    nodes: int
    taken: tuple[tuple[int, int], ...] = ()
    exchange: bool = False
    on: tuple[int, ...] = ()


class Resize(NamedTuple):
    """Shrink or expand the running `job` to `nodes` nodes, at its next malleability point.

    Args:
        job: the running job.
        nodes: number of nodes.
        on: the idle nodes that an expansion adds; empty: the placement chooses them.
    """

    job: int
    nodes: int
    on: tuple[int, ...] = ()


class Lend(NamedTuple):
    """Cores for a guest: `cores` cores of each of `nodes`, which `owner` holds. The owner keeps the other cores."""

    owner: int
    nodes: tuple[int, ...]
    cores: int


class Share(NamedTuple):
    """Start the waiting `job` now, on `free` idle nodes and as a guest on nodes of running jobs."""

    job: int
    free: int
    loans: tuple[Lend, ...]


class Reject(NamedTuple):
    """Reject the waiting `job`; `reason` is recorded in the run."""

    job: int
    reason: str


class Cancel(NamedTuple):
    """Cancel the running `job`; `reason` is recorded in the run."""

    job: int
    reason: str


class Suspend(NamedTuple):
    """Suspend the running rigid `job`: it releases its nodes, waits, and its next start continues its work.

    Only simulations suspend jobs.
    """

    job: int


class Reserve(NamedTuple):
    """Reserve the start of the waiting `job` at the instant `at`, s. See `State.reserved`.

    Args:
        job: the waiting job; with `on` also a running job, to extend its reservation.
        at: the start, s; infinite: the reservation is deleted.
        on: nodes that are reserved for the job, see `State.reservations`; empty: the start only.
        until: with `on`: the end of the reservation, s.
    """

    job: int
    at: float
    on: tuple[int, ...] = ()
    until: float = math.inf


class Wake(NamedTuple):
    """Call the policy again at the instant `at`, s, even without an event. The decision is valid for one call.

    If `at` is now, the next call is at the same instant, after the executed decisions.
    """

    at: float


class Note(NamedTuple):
    """Keep `value` under `name` in `State.notes` for later calls of the policy."""

    name: str
    value: float


Decision = Start | Resize | Share | Reject | Cancel | Suspend | Reserve | Wake | Note


def decision_in_words(
    decision: Start | Resize | Share | Reject | Cancel | Suspend | Reserve, ids: Sequence[str]
) -> str:
    """Return what a decision does, as text with the id of its job: `start job 17 on 4 nodes`."""
    verb = {Share: "start", Reserve: "reserve nodes for"}.get(type(decision), type(decision).__name__.lower())
    text = f"{verb} job {ids[decision.job]}"
    if isinstance(decision, Share):
        return f"{text} on shared nodes"
    if isinstance(decision, Start | Resize):
        text += f" {'on' if verb == 'start' else 'to'} {decision.nodes} node{'' if decision.nodes == 1 else 's'}"
    return text


class Policy(Protocol):
    """A scheduling policy.

    A policy is a dataclass; its fields are its parameters. It is pure: it has no clock, no I/O and no memory between
    calls except `State.notes`. Its decisions depend on `state` alone.
    """

    malleable: ClassVar[bool]
    """Whether the policy decides the sizes of jobs. If not, it sees every job as rigid, with the requested size."""
    # Optional: `shares`, `evolving` and `dispatches`, each a `ClassVar[bool]`. See the functions `shares`,
    # `handles_requests` and `dispatches`.

    def decide(self, state: State) -> Iterator[Decision]:
        """Yield decisions. The scheduler executes each decision and updates `state` before the generator continues."""
        ...


@runtime_checkable
class HasView(Protocol):
    """A policy that changes the sizes of jobs before it reads them."""

    def view(self, jobs: Jobs) -> Jobs:
        """Return `jobs` as the policy and its scheduler see them."""
        ...


def shares(policy: Policy) -> bool:
    """Return whether `policy` shares nodes between jobs (decides `Share`): its `shares: ClassVar[bool]`."""
    return bool(getattr(policy, "shares", False))


def handles_requests(policy: Policy) -> bool:
    """Return whether `policy` answers requests of evolving jobs (`State.requested`): its `evolving: ClassVar[bool]`.

    Under any other policy, evolving jobs are rigid.
    """
    return bool(getattr(policy, "evolving", False))


@runtime_checkable
class HasWallTimes(Protocol):
    """A policy with parameters in wall seconds, which the speed of the run converts to trace seconds."""

    def at_speed(self, speed: float) -> Policy:
        """Return the policy in a run at `speed`, trace seconds per wall second.

        Raises:
            InputError: a parameter of the policy is another speed.
        """
        ...


def dispatches(policy: Policy) -> bool:
    """Return whether `policy` models a batch system, with its latencies: its `dispatches: ClassVar[bool]`.

    A batch system counts a job from its first instruction to its last. The latency before the first instruction delays
    the start. The latency after the last instruction delays the next job on the nodes.
    """
    return bool(getattr(policy, "dispatches", False))


def visible_jobs(policy: Policy, jobs: Jobs) -> Jobs:
    """Return `jobs` as `policy` sees them: all rigid if the policy does not decide sizes."""
    if isinstance(policy, HasView):
        with of_extension():
            view = policy.view(jobs)
        seen: Jobs = checked(view, Jobs, f"policy {type(policy).__name__}: view", policy.view)
        return seen
    return jobs if policy.malleable else jobs.as_rigid()


class State:
    """The state of the cluster and the queue. Policies read it; only the scheduler changes it.

    Attributes:
        jobs: the requests, indexed by job number.
        now: the current time, s.
        cluster: the allocation of the nodes.
        total: number of nodes that can serve these jobs, including lost ones.
        idle: idle nodes that are not promised to a job.
        returning: nodes that pending shrinks will release and that are not promised.
        queue: the waiting jobs, without the jobs that were promised nodes.
        size: running job -> its number of nodes, in the order of start; during a resize the new number.
        started: start time of each job, s, shape (jobs,); NaN: not started. Only for policies that share nodes.
        can_host: cores per node of each job that can lend cores, shape (jobs,); 0: the job cannot. A job can lend
            cores if it is running and malleable, its nodes are alike, and none is shared or drained. Only for policies
            that share nodes.
        can_host_sockets: sockets per node of these jobs, shape (jobs,).
        expected_end: running or promised job -> time at which its time limit ends at its current rate, s.
        resizable: the running malleable jobs with several possible sizes, in the order of start (keys of a dictionary).
        resizing: running jobs that cannot be resized: those with a pending resize, and the `failing` and `draining`
            jobs.
        failing: running jobs that have lost a node. They hold their nodes until their other processes have ended, and
            can be neither resized nor shared with.
        drained: nodes on which no other job may start. They are `cluster.lost`, too.
        draining: running job -> number of its nodes that are drained, and will not be idle when the job ends. A
            policy can neither resize such a job nor share its nodes.
        requested: running evolving job -> the number of nodes that it requests. The next call of the policy answers
            with `Resize`. Without an answer, the job continues with its nodes. A request of a job with a pending resize
            waits until the resize has taken effect.
        cancelling: running jobs that the policy has cancelled and that have not ended yet.
        stopping: nodes that are being switched off, or are off in a window: the number that holds them in the cluster,
            beyond those of the jobs -> the instant at which they are idle, s.
        since: running job that shares no nodes -> instant of its last start, s.
        ran: suspended or continued job -> time for which it ran before it was last suspended, s.
        reserved: waiting job -> reserved start time, s, in the order of the reservations.
        reservations: waiting or running job -> its reserved nodes and time. The reservation of a job ends with it.
        starts: the earliest starts of the waiting jobs.
        deadlines: the deadlines of the waiting, promised and running jobs.
        notes: the values of the decisions `Note`, by name.
        woken: whether the policy requested this call with `Wake`.
        arrived: jobs submitted, requeued, or eligible after other jobs since the last call of the policy, in the order
            of their numbers. Some of them may have started since.
        settled: whether the last call decided nothing, and no nodes have been released, lost or restored since.
        freed: whether the last call decided a resize, or nodes have been released, lost or restored or a resize has
            taken effect since.
    """

    def __init__(self, jobs: Jobs, cluster: Cluster, queue: Queue | None = None) -> None:
        """Start with an idle cluster and an empty queue (None: in submit order)."""
        # Each policy imports this module. Only the scheduler makes a state; the compiled engine has its own.
        from tracebed.orchestrator.scheduling.queue import Dates, Queue
        from tracebed.orchestrator.scheduling.reservations import Releases, Reservations

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
        self.failing: set[int] = set()
        self.drained: set[int] = set()
        self.draining: dict[int, int] = {}
        self.requested: dict[int, int] = {}
        self.cancelling: set[int] = set()
        self.stopping: dict[int, float] = {}
        self.since: dict[int, float] = {}
        self.ran: dict[int, float] = {}
        self.reserved: dict[int, float] = {}
        self.reservations = Reservations(len(cluster.cores), cluster.mask)
        self.starts = Dates(len(jobs), jobs.earliest_of, self.queue.__contains__)
        self.deadlines = Dates(len(jobs), jobs.deadline_of, lambda job: job in self.queue or job in self.expected_end)
        self.notes: dict[str, float] = {}
        self.woken = False
        self.arrived: list[int] = []
        self.freed = False
        self.settled = False
        self.releases = Releases()
        self._reservation_key: tuple[int, int, int] | None = None  # the last reservation
        self._reservation = (0.0, 0)

    def wait(self, job: int) -> None:
        """Add `job` to the waiting jobs."""
        self.queue.append(job)
        insort(self.arrived, job)
        for dates in (self.starts, self.deadlines):
            if dates.is_read:
                dates.add(job)

    def service(self, job: int) -> float:
        """Return the time for which `job` has run until now, s, without that in which it was suspended."""
        return self.ran.get(job, 0.0) + self.now - self.since.get(job, self.now)

    def eligible(self, job: int) -> tuple[int, ...]:
        """Return the nodes that can ever serve `job`: all nodes of this state, in ascending order.

        On a machine with partitions or resources, the scheduler has a state for the jobs of each pool of nodes, and
        calls the policy for one after the other.
        """
        return nodes_of(self.cluster.mask)

    def asleep(self, at: float) -> int:
        """Return the mask of the nodes that are being switched off, or off in a window, and not idle at `at`, s."""
        asleep = 0
        for number, until in self.stopping.items():
            if until > at:
                asleep |= mask_of(self.cluster.owned(number))
        return asleep

    def fits(self, job: int) -> bool:
        """Return whether the waiting `job` can start now, on its minimum size."""
        return self.jobs.low[job] <= self.idle

    def earliest_start(self, job: int) -> tuple[float, tuple[int, ...]]:
        """Return the earliest instant at which the waiting `job` fits, s, and the nodes that are idle then.

        Running jobs release their nodes at their expected ends, or now if these have passed. The instant is infinite if
        the job needs lost nodes.
        """
        at, free = self.shadow(self.jobs.low[job])
        return at, nodes_of(free)

    def shadow(self, need: int) -> tuple[float, int]:
        """Return the earliest instant at which `need` nodes are idle, as `earliest_start`, and the mask of all these.

        The number of these nodes is that of `reservation` on the same state.
        """
        at, free, usable = self.now, mask_of(self.cluster.idle), self.cluster.mask & ~mask_of(self.cluster.lost)
        for end, job in self.releases:
            if end > at:
                if free.bit_count() >= need:
                    break
                at = end
            free |= mask_of(self.cluster.owned(job)) & usable
        return (at, free) if free.bit_count() >= need else (math.inf, 0)

    def free_to_resize(self, besides: Container[int] = ()) -> list[int]:
        """Return the `resizable` jobs without a pending resize, except `besides`, in the order of their starts."""
        if not (self.resizing or besides):
            return [*self.resizable]
        return [job for job in self.resizable if job not in self.resizing and job not in besides]

    def reservation(self, need: int) -> tuple[float, int]:
        """Return the shadow time and the extra nodes for a waiting job that needs `need` > `idle` nodes (Lifka 1995).

        The shadow time is the earliest time at which `need` nodes are idle if every running job ends at its expected
        end, or now if the expected end has passed. The extra nodes are those idle at the shadow time beyond `need`. If
        lost nodes are needed, the shadow time is infinite, so that a job of any length may be backfilled.
        """
        key = (need, self.idle + self.returning, self.releases.changes)
        if self._reservation_key != key or self._reservation[0] <= self.now:
            self._reservation_key = key
            self._reservation = self.releases.reservation(need, self.idle + self.returning, self.now)
        return self._reservation


class ParameterTable:
    """Mixin for policies: a small HTML table of name, parameters and kind. A policy works without it, too."""

    def _repr_html_(self) -> str:
        policy: Any = self
        facts = {field.name: str(getattr(policy, field.name)) for field in fields(policy)}
        facts["malleable"] = "yes" if policy.malleable else "no"
        return facts_html(f"Policy {type(self).__name__}", facts)


COUNTABLE = 2.0**53
"""Largest number of steps that a float represents exactly. Above it, every instant counts as a multiple."""


def next_multiple(step: float, at: float, *, origin: float = 0.0, first: int | None = None) -> float:
    """Return the smallest `origin + k * step` >= `at`, with a whole number k >= `first`."""
    if (at - origin) / step >= COUNTABLE:
        return at
    k = math.ceil((at - origin) / step) - 1  # one less, in case the division was rounded up
    k = k if first is None else max(first, k)
    while origin + k * step < at:
        k += 1
    return origin + k * step
