"""Conservative backfilling, in its original form and as in Slurm."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from tracebed.errors import InputError
from tracebed.orchestrator.scheduling.jobs import SHORTEST_S
from tracebed.orchestrator.scheduling.parameter_table import ParameterTable
from tracebed.orchestrator.scheduling.policies.fcfs import heads
from tracebed.orchestrator.scheduling.profile import Profile
from tracebed.orchestrator.scheduling.state import Decision, Reserve, Start, State, Wake
from tracebed.orchestrator.scheduling.ticks import next_multiple


@dataclass(frozen=True)
class Conservative(ParameterTable):
    """Every queued job has a reservation, and none is delayed by a later one (Mu'alem and Feitelson 2001).

    With `backfill_depth` or `backfill_interval_s` the policy models Slurm's sched/backfill: the jobs at the head of
    the queue start first come, first served, and a periodic pass re-plans the whole queue.

    Args:
        backfill_depth: number of queued jobs considered in a pass; 0: all.
        backfill_interval_s: interval of the passes, s; 0: a pass in every call.
    """

    malleable: ClassVar[bool] = False

    backfill_depth: int = 0
    backfill_interval_s: float = 0.0

    def __post_init__(self) -> None:
        """Raise InputError if a parameter is out of range."""
        if self.backfill_depth < 0:
            raise InputError("conservative.backfill_depth is below 0", hint="0 considers all jobs")
        if not 0.0 <= self.backfill_interval_s < math.inf:
            raise InputError("conservative.backfill_interval_s is invalid", hint="seconds; 0: a pass in every call")

    def decide(self, state: State) -> Iterator[Decision]:
        """Yield the starts, and the reservations to keep after this call."""
        if not (self.backfill_depth or self.backfill_interval_s):
            yield from _keep_reservations(state)
            return
        if (yield from slurm_call(state, self.backfill_interval_s)):
            yield from _replan(state, self.backfill_depth)


def slurm_call(state: State, interval_s: float) -> Generator[Start | Wake, None, bool]:
    """Yield the starts at the head of the queue. Return whether a backfill pass is due; if not, yield its `Wake`."""
    yield from heads(state)
    if state.woken or not interval_s:
        return True
    if len(state.queue):
        yield Wake(next_multiple(interval_s, state.now))
    return False


def _keep_reservations(state: State) -> Iterator[Decision]:
    """Yield starts and reservations. Reservations move to an earlier time if nodes have been released."""
    jobs, reserved = state.jobs, state.reserved
    held = {} if any(at < state.now for at in reserved.values()) else dict(reserved)
    profile = _profile(state, held)
    failed: dict[tuple[int, float], float] = {}  # (nodes, limit) -> earliest time at which such a job may fit
    for job in state.queue.jobs():
        nodes, limit = jobs.nodes[job], max(jobs.limit[job], SHORTEST_S)
        at, holds = held.get(job, math.inf), job in held
        if not holds or state.freed:
            tried = failed.get((nodes, limit), -math.inf)
            earlier = profile.earliest(nodes, limit, since=tried if tried <= at else -math.inf, until=at)
            if earlier < at:
                profile.occupy(earlier, limit, nodes)
            if holds and earlier < at:
                profile.occupy(at, limit, -nodes)
                failed.clear()  # another job may fit into the old reservation
            elif tried < earlier:
                failed[nodes, limit] = earlier
            at = earlier
        if at <= state.now and nodes <= state.idle:
            yield Start(job, nodes)
        elif reserved.get(job) != at < math.inf:  # a job that needs lost nodes has no reservation
            yield Reserve(job, at)


def _replan(state: State, depth: int) -> Iterator[Start]:
    """Plan the first `depth` queued jobs in order, without earlier reservations, and start those planned for now."""
    jobs, profile = state.jobs, _profile(state, {})
    for job in state.queue.jobs()[: depth or None]:
        if not state.idle:
            return  # no other job can start, and the plan is discarded after the call
        nodes, limit = jobs.nodes[job], max(jobs.limit[job], SHORTEST_S)
        at = profile.earliest(nodes, limit)
        profile.occupy(at, limit, nodes)
        if at <= state.now and nodes <= state.idle:
            yield Start(job, nodes)


def _profile(state: State, reserved: Mapping[int, float]) -> Profile:
    """Return the idle nodes over time if running jobs end at their expected ends and `reserved` jobs as planned."""
    jobs = state.jobs
    changes = [(state.expected_end[job], nodes) for job, nodes in state.size.items()]
    changes += [(at, -jobs.nodes[job]) for job, at in reserved.items()]
    changes += [(at + max(jobs.limit[job], SHORTEST_S), jobs.nodes[job]) for job, at in reserved.items()]
    return Profile(state.now, state.idle, changes)
