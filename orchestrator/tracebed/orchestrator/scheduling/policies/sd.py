"""SD-Policy, the Slowdown-Driven policy: waiting jobs start as guests on nodes of running jobs, the mates.

Source: the SD-Policy paper, sections 3.1 to 3.4.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import numpy as np

from tracebed.converters.workload import BoolArray, FloatArray, IntArray, Kind
from tracebed.errors import InputError
from tracebed.orchestrator.scheduling.jobs import SHORTEST_S
from tracebed.orchestrator.scheduling.policies.conservative import slurm_call
from tracebed.orchestrator.scheduling.policies.fcfs import heads
from tracebed.orchestrator.scheduling.profile import Profile
from tracebed.orchestrator.scheduling.shown import Shown
from tracebed.orchestrator.scheduling.state import Decision, Lend, Share, Start, State

SLACK = 1e-9
"""Relative margin for rounding errors in comparisons of penalties."""
Request = tuple[int, int, float]
"""Nodes, cores per node, and time limit of a waiting job, s."""


@dataclass(frozen=True)
class SlowdownDriven(Shown):
    """EASY with sharing: a job that EASY does not start may share nodes of running malleable jobs to end earlier.

    Args:
        max_slowdown: MAX_SLOWDOWN, upper bound of the penalty of a mate: a number, `inf`, or `dynamic` (DynAVGSD, the
            average predicted slowdown of the running jobs).
        sharing_factor: SharingFactor, the largest share of its cores on a node that a mate can lose.
        mates: m, the largest number of mates of a job.
        candidates: nm, the number of candidates for mates, those with the smallest penalties; 0: all.
        include_free_nodes: whether idle nodes may be used in addition to the nodes of mates.
        inside: whether a job must end before its mates, with the expected ends of the mates before (`before`) or after
            (`after`) it slows them down. `off`: it need not.
        depth: number of waiting jobs tried as guests in a call; 0: all.
        backfill_interval_s: > 0: interval of the passes of Slurm's backfill, s; each tries the first `depth` jobs. 0:
            EASY, and jobs are tried in every call.
    """

    malleable: ClassVar[bool] = False
    shares: ClassVar[bool] = True

    max_slowdown: str = "dynamic"
    sharing_factor: float = 0.5
    mates: int = 2
    candidates: int = 64
    include_free_nodes: bool = False
    inside: Literal["before", "after", "off"] = "after"
    depth: int = 100
    backfill_interval_s: float = 0.0

    def __post_init__(self) -> None:
        """Raise InputError if a parameter is out of range."""
        if not 0 < self.sharing_factor < 1:
            raise InputError(f"sd.sharing_factor cannot be {self.sharing_factor}", hint="above 0, below 1")
        if self.mates < 1 or self.candidates < 0 or self.depth < 0:
            raise InputError("sd.mates must be at least 1, sd.candidates and sd.depth at least 0", hint="0: all")
        if not 0.0 <= self.backfill_interval_s < math.inf:
            raise InputError(f"sd.backfill_interval_s cannot be {self.backfill_interval_s}", hint="seconds; 0: EASY")
        if self.max_slowdown != "dynamic":
            try:
                positive = float(self.max_slowdown) > 0.0
            except ValueError:
                positive = False
            if not positive:
                raise InputError(
                    f"sd.max_slowdown cannot be {self.max_slowdown!r}", hint="a number above 0, inf or dynamic"
                )

    def decide(self, state: State) -> Iterator[Decision]:
        """Yield starts and shares, job by job in queue order (listing 1)."""
        in_slurm = self.backfill_interval_s > 0
        if in_slurm and not (yield from slurm_call(state, self.backfill_interval_s)):
            return
        jobs, waiting = state.jobs, state.queue.jobs()
        if not waiting:
            return
        trial = Trial(self, state)
        refused = trial.refused_before()
        head, job = None, -1
        for job in waiting[: self.depth or None]:
            nodes, limit = jobs.nodes[job], jobs.limit[job]
            if job not in refused:
                if trial.fits(job, head):
                    yield Start(job, nodes)
                    trial.started(job)
                    continue
                if jobs.kind[job] in (Kind.MALLEABLE, Kind.MOLDABLE) and (share := trial.share(job, head)) is not None:
                    yield share
                    trial.shared(share)
                    continue
            head = job if head is None else head
            trial.plan.add(None, max(limit, SHORTEST_S), nodes)
        if self.depth and len(waiting) > self.depth and not in_slurm:
            yield from backfill_behind(state, job, head)


class Plan:
    """The reservations made in one call of the policy, computed lazily."""

    def __init__(self, state: State) -> None:
        """Start with the expected ends of the running jobs."""
        ends, nodes, _ = state.releases.rows
        self._profile: Profile | None = None
        self._begin = (state.now, state.idle + state.returning, ends, nodes)
        self._to_come: list[tuple[float | None, float, int]] = []

    def add(self, start: float | None, duration: float, nodes: int) -> None:
        """Reserve `nodes` nodes for `duration` seconds from `start` (None: the earliest possible time)."""
        self._to_come.append((start, duration, nodes))

    def start_of(self, nodes: int, duration: float) -> float:
        """Return the earliest instant from which `nodes` nodes are idle for `duration` seconds."""
        if self._profile is None:
            now, idle, ends, freed = self._begin
            self._profile = Profile(now, idle, zip(ends.tolist(), freed.tolist(), strict=True))
        profile = self._profile
        for start, long, count in self._to_come:
            profile.occupy(profile.earliest(count, long) if start is None else start, long, count)
        self._to_come.clear()
        return profile.earliest(nodes, duration)


class Mates(NamedTuple):
    """Running jobs that may be mates of one waiting job, in order of penalty: one array per column."""

    job: IntArray
    nodes: IntArray
    wait: FloatArray
    """Wait time plus the delay caused by earlier guests, s."""
    limit: FloatArray
    left: FloatArray
    """Expected remaining run time, s."""
    spare: IntArray
    """Unused cores per node."""
    can_lose: IntArray
    """Used cores per node that the mate can lose."""
    cores: IntArray
    """Cores per node for the guest."""
    guest_rate: FloatArray
    """Rate of the guest on the nodes of the mate."""
    rate: FloatArray
    """Rate of the mate while it shares its nodes."""

    def at(self, rows: BoolArray | IntArray | list[int]) -> Mates:
        """Return the given rows."""
        return Mates._make(column[rows] for column in self)


class Trial:
    """The flexible scheduling trials of one call of the policy."""

    def __init__(self, policy: SlowdownDriven, state: State) -> None:
        """Compute the upper bound of the penalties for the call."""
        self.policy, self.state = policy, state
        self.plan = Plan(state)
        self.cut_off = average_slowdown(state) if policy.max_slowdown == "dynamic" else float(policy.max_slowdown)
        self._found: dict[tuple[Request, int | None], tuple[float, Share] | None] = {}
        self._hosts: Mates | None = None
        self._ends: dict[int, float] = {}  # mate of the last share -> its expected end before

    def refused_before(self) -> Collection[int]:
        """Return the waiting jobs that need no trial, because the last call did not start them and only time passed.

        With time, the remaining run times of mates and the remaining wait of a job decrease, so that no share becomes
        possible, unless a running job is overdue.
        """
        state = self.state
        ends, _, _ = state.releases.rows
        if not state.settled or not state.queue.by_submission or (len(ends) and ends[0] <= state.now):
            return ()
        return set(state.queue.jobs()) - set(state.arrived)

    def fits(self, job: int, head: int | None) -> bool:
        """Return whether `job` can start on idle nodes without delaying `head` (in Slurm passes: any earlier job)."""
        state, nodes, limit = self.state, self.state.jobs.nodes[job], self.state.jobs.limit[job]
        if nodes > state.idle:
            return False
        if self.policy.backfill_interval_s:
            return self.plan.start_of(nodes, max(limit, SHORTEST_S)) <= state.now
        if head is None:
            return True
        shadow, extra = state.reservation(state.jobs.nodes[head])
        return nodes <= extra or state.now + limit <= shadow

    def started(self, job: int) -> None:
        """Note that `job` started on idle nodes."""
        self._changed()
        self.plan.add(self.state.now, self.state.jobs.limit[job], self.state.jobs.nodes[job])

    def _changed(self) -> None:
        self._found.clear()
        self._hosts = None

    def share(self, job: int, head: int | None) -> Share | None:
        """Return the share that starts `job` as a guest now. None: impossible, or `job` would not end earlier."""
        state, jobs = self.state, self.state.jobs
        nodes, limit = jobs.nodes[job], jobs.limit[job]
        request = (nodes, jobs.cores[job], limit)
        if (request, head) not in self._found:
            self._found[request, head] = self._pick(request, head)
        if (found := self._found[request, head]) is None:
            return None
        duration, share = found
        mall_end = state.now + duration
        no_earlier, _ = state.releases.reservation(nodes, state.idle + state.returning, state.now)
        if mall_end >= no_earlier + limit and mall_end >= self.plan.start_of(nodes, max(limit, SHORTEST_S)) + limit:
            return None
        self._ends = {loan.owner: state.expected_end[loan.owner] for loan in share.loans}
        return share._replace(job=job)

    def shared(self, share: Share) -> None:
        """Note that `share` was carried out: its idle nodes are taken, and its mates end later."""
        state = self.state
        self._changed()
        if share.free:
            self.plan.add(state.now, state.expected_end[share.job] - state.now, share.free)
        for mate, end in self._ends.items():
            self.plan.add(end, state.expected_end[mate] - end, state.jobs.nodes[mate])

    def _pick(self, request: Request, head: int | None) -> tuple[float, Share] | None:
        """Return the run time beside the mates with the least sum of penalties (equations 1 to 3), and the share."""
        policy, state = self.policy, self.state
        wanted, _, limit = request
        mates = self._candidates(request)
        penalties = self._penalties(mates, limit / mates.guest_rate).tolist()
        nodes = mates.nodes.tolist()
        idle = state.idle if policy.include_free_nodes else 0
        shadow, extra = (math.inf, 0) if head is None else state.reservation(state.jobs.nodes[head])
        best: tuple[float, float, list[int]] = (math.inf, 0.0, [])

        def try_out(chosen: list[int], free: int) -> None:
            nonlocal best
            some = mates.at(chosen)
            duration = limit / float(some.guest_rate.min())
            if free and free > extra and state.now + duration > shadow:
                return
            impact = self._penalties(some, np.full(len(chosen), duration))
            if impact.sum() < best[0] and bool(self._fit(some, impact, duration).all()):
                best = (float(impact.sum()), duration, chosen)

        alike: dict[int, list[int]] = defaultdict(list)  # nodes -> the mates that have as many
        for mate, count in enumerate(nodes):
            alike[count].append(mate)

        def extend(chosen: list[int], first: int, missing: int, impact: float) -> None:
            is_last = len(chosen) + 1 == policy.mates
            for mate in alike.get(missing, ()) if is_last and not idle else range(first, len(nodes)):
                if impact + penalties[mate] >= best[0]:
                    return
                rest = missing - nodes[mate]
                if mate >= first and 0 <= rest <= idle:
                    try_out([*chosen, mate], rest)
                if rest > 0 and not is_last:
                    extend([*chosen, mate], mate + 1, rest, impact + penalties[mate])

        if sum(sorted(nodes)[-policy.mates :]) + idle >= wanted:
            extend([], 0, wanted, 0.0)
        _, duration, chosen = best
        if not chosen:
            return None
        loans = tuple(
            Lend(int(mates.job[mate]), tuple(state.cluster.owned(int(mates.job[mate]))), int(mates.cores[mate]))
            for mate in chosen
        )
        return duration, Share(-1, wanted - sum(nodes[mate] for mate in chosen), loans)

    def _candidates(self, request: Request) -> Mates:
        """Return the possible mates, least penalty first; ties by start, then by submission."""
        nodes, cores, limit = request
        hosts = self._hosts = self._hosts or self._all_hosts()
        wanted = np.minimum(cores, hosts.cores)
        used = hosts.cores - hosts.spare
        lost = np.minimum(np.maximum(wanted - hosts.spare, 0), hosts.can_lose)
        given = np.minimum(wanted, hosts.spare + lost)
        there = ((given > 0) & (hosts.nodes <= nodes)).nonzero()[0]
        mates = hosts.at(there)._replace(
            cores=given[there],
            guest_rate=given[there] / wanted[there],
            rate=(used - lost)[there] / used[there],
        )
        duration = limit / mates.guest_rate
        penalty = self._penalties(mates, duration)
        fit = self._fit(mates, penalty, duration).nonzero()[0]
        order = np.lexsort((mates.job[fit], self.state.started[mates.job[fit]], penalty[fit]))
        return mates.at(fit[order[: self.policy.candidates or None]])

    def _all_hosts(self) -> Mates:
        """Return the running jobs that can lend cores, before any loan."""
        state, arrays = self.state, self.state.jobs.arrays
        ends, _, running = state.releases.rows
        there = (state.can_host[running] > 0) & (arrays.limit[running] > 0)
        job = running[there]
        cores, whole = state.can_host[job], np.ones(len(job))
        used = np.minimum(arrays.cores[job], cores)
        delayed = ends[there] - (state.started[job] + arrays.limit[job])
        return Mates(
            job=job,
            nodes=arrays.nodes[job],
            wait=state.started[job] - arrays.submit[job] + delayed,
            limit=arrays.limit[job],
            left=ends[there] - state.now,
            spare=cores - used,
            can_lose=self._can_lose(used, cores // state.can_host_sockets[job]),
            cores=cores,
            guest_rate=whole,
            rate=whole,
        )

    def _can_lose(self, used: IntArray, socket: IntArray) -> IntArray:
        """Return the cores that a mate can lose on a node: whole sockets if at least one, and never the last core."""
        most = np.minimum((used * self.policy.sharing_factor + SLACK).astype(np.int64), used - 1)
        return np.where(most >= socket, most // socket * socket, most)

    def _penalties(self, mates: Mates, duration: FloatArray) -> FloatArray:
        """Return the penalty of each mate (equation 4) if it shares for `duration` seconds (equation 6)."""
        return (mates.wait + duration * (1 - mates.rate) + mates.limit) / mates.limit

    def _fit(self, mates: Mates, penalty: FloatArray, duration: FloatArray | float) -> BoolArray:
        """Return whether each mate stays below MAX_SLOWDOWN, and ends after the job."""
        good = penalty < self.cut_off * (1 - SLACK)
        if self.policy.inside == "off":
            return good
        work = duration if self.policy.inside == "before" else duration * mates.rate
        return good & (mates.left >= work)


def average_slowdown(state: State) -> float:
    """Return DynAVGSD: the mean of (wait + expected run time) / limit of the running jobs."""
    ends, _, running = state.releases.rows
    arrays = state.jobs.arrays
    limit = arrays.limit[running]
    response = np.maximum(ends, state.now) - arrays.submit[running]
    return float((response[limit > 0] / limit[limit > 0]).mean()) if (limit > 0).any() else math.inf


def backfill_behind(state: State, after: int, head: int | None) -> Iterator[Start]:
    """Yield the starts of EASY backfilling of the jobs behind `after`; without a head, of all waiting jobs."""
    jobs = state.jobs
    if head is None:
        yield from heads(state)
        if (head := state.queue.head) is None:
            return
        after = head
    shadow, extra = state.reservation(jobs.nodes[head])
    while state.idle:
        job = state.queue.first_fit(after, state.idle, shadow - state.now, extra)
        if job is None:
            return
        after = job
        in_time = state.now + jobs.limit[job] <= shadow
        if in_time or jobs.nodes[job] <= extra:
            yield Start(job, jobs.nodes[job])
            extra -= 0 if in_time else jobs.nodes[job]
