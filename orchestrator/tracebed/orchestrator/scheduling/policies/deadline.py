"""Deadlines with advance reservations: a job is accepted with its nodes and its start, or rejected."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from heapq import merge
from itertools import islice
from typing import ClassVar

from tracebed.ground.errors import InputError
from tracebed.orchestrator.scheduling.jobs import SHORTEST_S
from tracebed.orchestrator.scheduling.node_masks import mask_of, nodes_of
from tracebed.orchestrator.scheduling.reservations import Hold
from tracebed.orchestrator.scheduling.state import Cancel, Decision, ParameterTable, Reject, Reserve, Start, State, Wake

PASSED = "its deadline has passed"


@dataclass(frozen=True)
class Deadline(ParameterTable):
    """Each job gets nodes and a start in advance so that it ends by its deadline, or is rejected (Linnert et al. 2024).

    The nodes have an admissible shape of the placement. The start is the earliest one at which such nodes are free for
    the whole time limit. A job that runs at its deadline is cancelled.

    Args:
        margin_s: time that a reservation is longer than the time limit, for launches, ends and delays, s.
    """

    malleable: ClassVar[bool] = False

    margin_s: float = 0.0

    def __post_init__(self) -> None:
        """Raise InputError if a parameter is out of range."""
        if not 0.0 <= self.margin_s < math.inf:
            raise InputError("deadline.margin_s is invalid", hint="seconds of at least 0")

    def decide(self, state: State) -> Iterator[Decision]:
        """Yield cancellations, starts of reserved jobs, rejections, reservations, and the time of the next call."""
        yield from late(state)
        yield from extensions(state, self.margin_s)
        yield from _start(state)
        for job in [job for job in state.queue.jobs() if job not in state.reservations.holds]:
            yield planned(state, job, state.cluster.shape, self.margin_s)
        yield from _start(state)
        if (at := next_date(state, self.margin_s)) < math.inf:
            yield Wake(at)


def planned(state: State, job: int, shape: Callable[..., Sequence[int] | None], margin_s: float) -> Reserve | Reject:
    """Return the reservation of `job` with the earliest start, or its rejection.

    Args:
        shape: choice of nodes of the reservation, as `Cluster.shape`.
        margin_s: time that the reservation is longer than the time limit, s.
    """
    jobs, out = state.jobs, mask_of(state.cluster.lost)
    deadline, length = jobs.deadline_of(job), jobs.limit[job] + margin_s
    since, nodes = max(state.now, jobs.earliest_of(job)), min(jobs.nodes[job], state.total)
    enough = False
    for at, bits in _openings(state, max(length, SHORTEST_S), since, deadline - length):
        free = bits & ~out & ~state.asleep(at)
        if at + length > deadline or free.bit_count() < nodes:
            continue
        enough = True
        chosen = shape(nodes_of(free), nodes, (), job)
        if chosen is not None:
            return Reserve(job, at, tuple(map(int, chosen)), at + max(length, SHORTEST_S))
    if deadline == math.inf:
        return Reserve(job, math.inf)  # lost nodes are needed
    if since + length > deadline:
        return Reject(job, f"{length:g} s from its earliest start are too long for its deadline")
    what = f"no admissible shape of {nodes} nodes is free" if enough else f"fewer than {nodes} nodes are free"
    return Reject(job, f"{what} for {length:g} s before its deadline")


def _openings(state: State, length: float, since: float, until: float) -> Iterator[tuple[float, int]]:
    """Yield the instants at which a job may start as `Reservations.openings`, and those at which nodes are on again."""
    openings = state.reservations.openings
    woken = sorted({at for at in state.stopping.values() if since < at <= until})
    return merge(openings(length, since, until), *(islice(openings(length, at, at), 1) for at in woken))


def late(state: State) -> Iterator[Cancel | Reject]:
    """Yield the cancellation of running jobs, and the rejection of waiting jobs, after their deadlines."""
    if not (passed := state.deadlines.passed(state.now)):
        return
    for job in [job for job in state.size if job in passed and job not in state.cancelling]:
        yield Cancel(job, "deadline")
    for job in state.queue.in_order(passed):
        yield Reject(job, PASSED)


def extensions(state: State, margin_s: float) -> Iterator[Cancel | Reserve]:
    """Yield extensions of reservations that have ended before their jobs. Withdraw reservations that cannot be kept.

    A job runs on until another job holds one of its nodes. It is then cancelled, unless it started late and its time
    limit has not ended. A job that has not started in time, or has reserved a lost node, needs another reservation.
    """
    jobs, reservations, now, lost = state.jobs, state.reservations, state.now, state.cluster.lost

    def lacks_nodes(hold: Hold) -> bool:
        if lost and not lost.isdisjoint(hold.nodes):
            return True
        return bool(state.stopping) and state.asleep(max(now, hold.start)) & mask_of(hold.nodes) != 0

    holds = reservations.holds.items()
    for job, hold in [(job, hold) for job, hold in holds if hold.end <= now or lacks_nodes(hold)]:
        if job in state.queue:
            yield Reserve(job, math.inf)
        elif hold.end <= state.now and job not in state.cancelling and job not in state.failing:
            longest = state.now + max(jobs.limit[job], SHORTEST_S)
            until = min(reservations.taken(hold.nodes, state.now), jobs.deadline_of(job), longest)
            if until > state.now:
                yield Reserve(job, state.now, hold.nodes, until)
            elif state.expected_end[job] + margin_s <= state.now:
                yield Cancel(job, "its reservation ended, and another job holds its nodes")


def _start(state: State) -> Iterator[Start]:
    """Yield the starts of the waiting jobs whose reservation has begun and whose nodes are idle."""
    holds, now, running = state.reservations.holds, state.now, state.size
    due = [job for job, hold in holds.items() if hold.start <= now and job not in running and job in state.queue]
    idle = set(state.cluster.idle) if due else set()
    for job in due:
        if idle.issuperset(holds[job].nodes):
            yield Start(job, state.jobs.nodes[job], on=holds[job].nodes)


def next_date(state: State, margin_s: float) -> float:
    """Return the next instant at which a job starts, its reservation or time ends, or its deadline passes, s.

    It is infinite if there is no such instant. A reservation ends after its start, and no later than the deadline.
    """
    now, ends, deadline_of, following = state.now, state.expected_end, state.jobs.deadline_of, math.inf
    for job, hold in state.reservations.holds.items():
        begun = hold.start <= now
        dates = (hold.end, ends.get(job, math.inf) + margin_s, deadline_of(job)) if begun else (hold.start,)
        for at in dates:
            if now < at < following:
                following = at
    return following
