"""Conservative backfilling as in the textbook and as in Slurm."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from tracebed.errors import InputError
from tracebed.orchestrator.scheduling.jobs import SHORTEST_S
from tracebed.orchestrator.scheduling.policies.fcfs import heads
from tracebed.orchestrator.scheduling.profile import Profile
from tracebed.orchestrator.scheduling.scheduler import next_multiple
from tracebed.orchestrator.scheduling.shown import Shown
from tracebed.orchestrator.scheduling.state import Decision, Reserve, Start, State, Wake


@dataclass(frozen=True)
class Conservative(Shown):
    """Every queued job has a reservation, and none is delayed by a later one (Mu'alem and Feitelson 2001).

    With `backfill_depth` or `backfill_interval_s` it is Slurm's sched/backfill: heads start first come, first served,
    and a periodic pass re-plans the whole queue.

    Args:
        backfill_depth: how many queued jobs a pass looks at; 0: all.
        backfill_interval_s: > 0: passes are made at multiples of it; 0: at every call.
    """

    malleable: ClassVar[bool] = False

    backfill_depth: int = 0
    backfill_interval_s: float = 0.0

    def __post_init__(self) -> None:
        """Raise InputError where a parameter is out of its range."""
        if self.backfill_depth < 0:
            raise InputError("conservative.backfill_depth is below 0", hint="0 looks at all jobs")
        if not 0.0 <= self.backfill_interval_s < math.inf:
            raise InputError("conservative.backfill_interval_s is not an interval", hint="seconds; 0: at every call")

    def decide(self, state: State) -> Iterator[Decision]:
        """Yield the starts, and the reservations that hold beyond this call."""
        if not (self.backfill_depth or self.backfill_interval_s):
            yield from _keep_reservations(state)
            return
        if (yield from slurm_call(state, self.backfill_interval_s)):
            yield from _plan_anew(state, self.backfill_depth)


def slurm_call(state: State, interval_s: float) -> Generator[Start | Wake, None, bool]:
    """Yield what Slurm does in every call: heads start. Return whether a backfill pass is to follow, or ask for one."""
    yield from heads(state)
    if state.woken or not interval_s:
        return True
    if len(state.queue):
        yield Wake(next_multiple(interval_s, state.now))
    return False


def _keep_reservations(state: State) -> Iterator[Decision]:
    """Plan jobs without a reservation; when nodes came free, move the others forward. Start the jobs that are due."""
    jobs, reserved = state.jobs, state.reserved
    held = {} if any(at < state.now for at in reserved.values()) else dict(reserved)
    profile = _profile(state, held)
    in_vain: dict[tuple[int, float], float] = {}  # (nodes, limit) -> no such job fits before that instant
    for job in state.queue.jobs():
        nodes, limit = jobs.nodes[job], max(jobs.limit[job], SHORTEST_S)
        at, holds = held.get(job, math.inf), job in held
        if not holds or state.freed:
            tried = in_vain.get((nodes, limit), -math.inf)
            earlier = profile.earliest(nodes, limit, since=tried if tried <= at else -math.inf, until=at)
            if earlier < at:
                profile.occupy(earlier, limit, nodes)
            if holds and earlier < at:
                profile.occupy(at, limit, -nodes)
                in_vain.clear()  # another job may fit into the place that it leaves
            elif tried < earlier:
                in_vain[nodes, limit] = earlier
            at = earlier
        if at <= state.now and nodes <= state.idle:
            yield Start(job, nodes)
        elif reserved.get(job) != at:
            yield Reserve(job, at)


def _plan_anew(state: State, depth: int) -> Iterator[Start]:
    """Plan the first `depth` queued jobs from nothing, in order, and start whose time is now."""
    jobs, profile = state.jobs, _profile(state, {})
    for job in state.queue.jobs()[: depth or None]:
        if not state.idle:
            return  # no other job can start, and the plan is not kept
        nodes, limit = jobs.nodes[job], max(jobs.limit[job], SHORTEST_S)
        at = profile.earliest(nodes, limit)
        profile.occupy(at, limit, nodes)
        if at <= state.now and nodes <= state.idle:
            yield Start(job, nodes)


def _profile(state: State, reserved: Mapping[int, float]) -> Profile:
    """Return the idle nodes over time if running jobs end when they are expected to and `reserved` is kept."""
    jobs = state.jobs
    changes = [(state.expected_end[job], nodes) for job, nodes in state.size.items()]
    changes += [(at, -jobs.nodes[job]) for job, at in reserved.items()]
    changes += [(at + max(jobs.limit[job], SHORTEST_S), jobs.nodes[job]) for job, at in reserved.items()]
    return Profile(state.now, state.idle, changes)
