"""Conservative backfilling, in its original form and as in Slurm."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Literal

from tracebed.ground.errors import InputError
from tracebed.orchestrator.scheduling.jobs import SHORTEST_S
from tracebed.orchestrator.scheduling.node_masks import lowest, mask_of, nodes_of
from tracebed.orchestrator.scheduling.policies.fcfs import heads
from tracebed.orchestrator.scheduling.profile import NodeProfile, Profile
from tracebed.orchestrator.scheduling.reservations import Hold
from tracebed.orchestrator.scheduling.state import Decision, ParameterTable, Reserve, Start, State, Wake, next_multiple


@dataclass(frozen=True)
class Conservative(ParameterTable):
    """Every queued job has a reservation, and none is delayed by a later one (Mu'alem and Feitelson 2001).

    With `backfill_depth` or `backfill_interval_s` the policy models Slurm's sched/backfill: the jobs at the head of
    the queue start first come, first served, and a periodic pass re-plans the whole queue.

    Args:
        backfill_depth: number of queued jobs considered in a pass; 0: all.
        backfill_interval_s: interval of the passes, s; 0: a pass in every call.
        reserve: a reservation: a number of nodes (`counts`), or named nodes (`nodes`), as in Batsim and OAR. Named
            nodes are the lowest-numbered ones of those that are free for the time limit from the start on.
    """

    malleable: ClassVar[bool] = False

    backfill_depth: int = 0
    backfill_interval_s: float = 0.0
    reserve: Literal["counts", "nodes"] = "counts"

    def __post_init__(self) -> None:
        """Raise InputError if a parameter is out of range."""
        if self.backfill_depth < 0:
            raise InputError("conservative.backfill_depth is below 0", hint="0 considers all jobs")
        if not 0.0 <= self.backfill_interval_s < math.inf:
            raise InputError("conservative.backfill_interval_s is invalid", hint="seconds; 0: a pass in every call")

    def decide(self, state: State) -> Iterator[Decision]:
        """Yield the starts, and the reservations to keep after this call."""
        named = self.reserve == "nodes"
        if not (self.backfill_depth or self.backfill_interval_s):
            yield from _keep_nodes(state) if named else _keep_reservations(state)
            return
        if (yield from slurm_call(state, self.backfill_interval_s, lowest=named)):
            yield from (_replan_nodes if named else _replan)(state, self.backfill_depth)


def slurm_call(state: State, interval_s: float, *, lowest: bool = False) -> Generator[Start | Wake, None, bool]:
    """Yield the starts at the head of the queue. Return whether a backfill pass is due; if not, yield its `Wake`.

    Args:
        interval_s: interval of the passes, s; 0: a pass in every call.
        lowest: as for `heads`.
    """
    yield from heads(state, lowest=lowest)
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
    changes = [*state.releases.steps]
    changes += [(at, -jobs.nodes[job]) for job, at in reserved.items()]
    changes += [(at + max(jobs.limit[job], SHORTEST_S), jobs.nodes[job]) for job, at in reserved.items()]
    return Profile(state.now, state.idle, changes)


def _keep_nodes(state: State) -> Iterator[Decision]:
    """Yield starts and reservations of named nodes. If nodes have been released, each job is planned again in turn."""
    jobs, reserved, holds = state.jobs, state.reserved, state.reservations.holds
    held = {} if any(at < state.now for at in reserved.values()) else {job: holds[job] for job in reserved}
    for job in [job for job in holds if job not in held]:
        yield Reserve(job, math.inf)
    profile, idle = _node_profile(state, held.values()), mask_of(state.cluster.idle)
    for job in state.queue.jobs():
        hold = planned = held.get(job)
        if hold is None or state.freed:
            if hold is not None:
                profile.release(hold.start, hold.end, _mask(hold.nodes))
            planned = _plan(state, profile, idle, job)
        if planned is None:
            continue  # the job needs lost nodes
        nodes = _mask(planned.nodes)
        if planned.start <= state.now and not nodes & ~idle:
            if hold is not None:
                yield Reserve(job, math.inf)  # the job holds its nodes for its limit, which may end earlier
            idle &= ~nodes
            yield Start(job, jobs.nodes[job], on=planned.nodes)
        elif planned != hold:
            yield Reserve(job, planned.start, planned.nodes, planned.end)


def _replan_nodes(state: State, depth: int) -> Iterator[Start]:
    """Plan named nodes for the first `depth` queued jobs as `_replan`, and start the jobs planned for now."""
    profile, idle = _node_profile(state, ()), mask_of(state.cluster.idle)
    for job in state.queue.jobs()[: depth or None]:
        if not idle:
            return  # no other job can start, and the plan is discarded after the call
        planned = _plan(state, profile, idle, job)
        if planned is not None and planned.start <= state.now and not (nodes := _mask(planned.nodes)) & ~idle:
            idle &= ~nodes
            yield Start(job, state.jobs.nodes[job], on=planned.nodes)


def _plan(state: State, profile: NodeProfile, idle: int, job: int) -> Hold | None:
    """Allocate nodes in `profile` to `job` for its earliest start; None: the job needs lost nodes.

    The nodes of running jobs that have exceeded their limits are free in the profile. They are not chosen for a start
    now if enough of the free nodes are `idle`.
    """
    nodes, limit = state.jobs.nodes[job], max(state.jobs.limit[job], SHORTEST_S)
    at, free = profile.earliest(nodes, limit)
    if at == math.inf:
        return None
    if at <= state.now and (free & idle).bit_count() >= nodes:
        free &= idle
    chosen = lowest(free, nodes)
    profile.occupy(at, at + limit, chosen)
    return Hold(at, at + limit, nodes_of(chosen))


def _node_profile(state: State, reserved: Iterable[Hold]) -> NodeProfile:
    """Return the named nodes that are idle over time, if running jobs end as expected and `reserved` are kept."""
    cluster = state.cluster
    usable = cluster.mask & ~mask_of(cluster.lost)
    changes = [(end, _mask(tuple(cluster.owned(job))) & usable, 0) for end, job in state.releases]
    for hold in reserved:
        nodes = _mask(hold.nodes)
        changes += [(hold.start, 0, nodes), (hold.end, nodes, 0)]
    return NodeProfile(state.now, mask_of(cluster.idle), changes)


@lru_cache(maxsize=65_536)
def _mask(nodes: tuple[int, ...]) -> int:
    """Return the mask of `nodes`. Each call of the policy needs the masks of all reservations again."""
    return mask_of(nodes)
