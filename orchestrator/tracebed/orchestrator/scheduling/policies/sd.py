"""SD-Policy, the Slowdown-Driven policy: waiting jobs start as guests on nodes of running jobs, the mates.

Source: the SD-Policy paper, sections 3.1 to 3.4.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import numpy as np

from tracebed.converters.workload import BoolArray, FloatArray, IntArray, Kind
from tracebed.ground.errors import InputError
from tracebed.orchestrator.scheduling.jobs import SHORTEST_S
from tracebed.orchestrator.scheduling.policies.conservative import slurm_call
from tracebed.orchestrator.scheduling.policies.easy import backfill_behind
from tracebed.orchestrator.scheduling.policies.fcfs import heads
from tracebed.orchestrator.scheduling.profile import Profile
from tracebed.orchestrator.scheduling.queue import first_of_users
from tracebed.orchestrator.scheduling.state import Decision, Lend, ParameterTable, Share, Start, State

MINUTE_S = 60.0


class ReservationMap:
    """The reservations made in one call of the policy, computed lazily.

    The limits correspond to the plan of Slurm's backfill, by number of nodes, not by node. 0: no limit.

    Args:
        state: the state, whose running jobs hold their nodes until their expected ends.
        window: `bf_window`, how far the plan looks ahead, minutes.
        resolution: `bf_resolution`; reservations begin and end at multiples of it, s.
        slots: `bf_node_space_size`, the largest number of slots: the first, and one for each other instant at which a
            reservation begins or ends.
    """

    def __init__(self, state: State, window: int = 0, resolution: int = 0, slots: int = 0) -> None:
        """Start with the expected ends of the running jobs."""
        ends, nodes, _ = state.releases.rows
        self._profile: Profile | None = None
        self._now, self._idle, self._ends, self._freed = state.now, state.idle + state.returning, ends, nodes
        self._to_come: list[tuple[float | None, float, int]] = []
        self._last = state.now + window * MINUTE_S if window else math.inf
        self._resolution, self._slots = resolution, slots
        self._bounds: set[float] = set()
        self._failed: list[tuple[int, float]] = []  # nodes, duration of jobs that do not start within the window
        self._planned: dict[int, tuple[float, float]] = {}  # nodes -> duration and start of the last job planned

    def add(self, start: float | None, duration: float, nodes: int) -> None:
        """Reserve `nodes` nodes for `duration` seconds from `start` (None: the earliest possible time)."""
        self._to_come.append((start, duration, nodes))

    def reserve(self, nodes: int, duration: float) -> bool:
        """Reserve the nodes from the earliest time, if within the window. Return False if the plan has no slot left."""
        if not self._slots:
            self.add(None, duration, nodes)
            return True
        return self._reserve(self._update(), nodes, duration)

    def start_of(self, nodes: int, duration: float) -> float:
        """Return the earliest instant from which `nodes` nodes are idle for `duration` s; inf: beyond the window."""
        return self._earliest(self._update(), nodes, duration)

    def has_room(self, taken: Sequence[tuple[float, float, int]]) -> bool:
        """Return whether nodes can be taken (start, duration, nodes) and no reservation lacks one."""
        profile, least = self._update(), 0
        for start, duration, nodes in taken:
            profile.occupy(start, duration, nodes)
        for start, duration, _ in taken:
            least = min(least, profile.least(start, duration))
        for start, duration, nodes in taken:
            profile.occupy(start, duration, -nodes)
        return least >= 0

    def _update(self) -> Profile:
        """Return the idle nodes over time, after all reservations added so far."""
        if self._profile is None:
            self._profile = Profile(self._now, self._idle, zip(self._ends.tolist(), self._freed.tolist(), strict=True))
        for start, duration, nodes in self._to_come:
            if start is None:
                self._reserve(self._profile, nodes, duration)
            else:
                self._profile.occupy(start, duration, nodes)
        self._to_come.clear()
        return self._profile

    def _reserve(self, profile: Profile, nodes: int, duration: float) -> bool:
        start = self._earliest(profile, nodes, duration)
        if start == math.inf:
            return True
        if self._slots and len(self._bounds) + 1 >= self._slots:
            return False
        end = start + duration
        if self._resolution and end < math.inf:
            start, end = (max(at // self._resolution * self._resolution, self._now) for at in (start, end))
        profile.occupy(start, end - start, nodes)
        if self._slots:
            self._bounds.update(at for at in (start, end) if self._now < at < self._last)
        return True

    def is_beyond(self, nodes: int, duration: float) -> bool:
        """Return whether an earlier search shows that the nodes do not fit within the window."""
        return any(nodes >= fewer and duration >= shorter for fewer, shorter in self._failed)

    def _earliest(self, profile: Profile, nodes: int, duration: float) -> float:
        if self.is_beyond(nodes, duration):
            return math.inf
        shorter, since = self._planned.get(nodes, (math.inf, -math.inf))
        # the idle nodes only decrease, so that a longer job starts no earlier than a shorter one
        start = profile.earliest(nodes, duration, since=since if duration >= shorter else -math.inf)
        self._planned[nodes] = duration, start
        if start <= self._last:
            return start
        longer = [(more, long) for more, long in self._failed if more < nodes or long < duration]
        self._failed = [*longer, (nodes, duration)]
        return math.inf


QUANTILES = {"median": 0.5, "p70": 0.7}
"""Value of `max_slowdown` -> quantile of the predicted slowdowns of the running jobs."""


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


class BestMates(NamedTuple):
    """The best mates of one waiting job."""

    duration: float
    """Run time of the job beside them, s."""
    share: Share
    taken: list[tuple[float, float, int]]
    """What the job takes of the plan (start, duration, nodes): idle nodes, and each mate's for as long as the delay."""


def slowdown_of_running(state: State, quantile: float | None = None) -> float:
    """Return DynAVGSD: the mean of (wait + expected run time) / limit of the running jobs; inf without such jobs.

    With a quantile q, return the least slowdown that at least a share q of these jobs does not exceed.
    """
    ends, _, running = state.releases.rows
    arrays = state.jobs.arrays
    limit = arrays.limit[running]
    response = np.maximum(ends, state.now) - arrays.submit[running]
    slowdown = response[limit > 0] / limit[limit > 0]
    if not len(slowdown):
        return math.inf
    if quantile is None:
        return in_order(slowdown) / len(slowdown)
    return float(np.sort(slowdown)[math.ceil(quantile * len(slowdown)) - 1])


def in_order(values: FloatArray) -> float:
    """Return the sum of `values` (not empty) from the first to the last, as other languages compute it to the bit."""
    return float(values.cumsum()[-1])


SLACK = 1e-9
"""Relative margin for rounding errors in comparisons of penalties."""
OF_A_PASS = ("bf_window", "bf_resolution", "bf_node_space_size", "bf_max_job_user")
"""Parameters of the passes of Slurm's backfill."""
Request = tuple[int, tuple[int, int], float]
"""Nodes, cores and ranks per node, and time limit of a waiting job, s."""


@dataclass(frozen=True)
class SlowdownDriven(ParameterTable):
    """EASY with sharing: a job that EASY does not start may share nodes of running malleable jobs to end earlier.

    Args:
        max_slowdown: MAX_SLOWDOWN, upper bound of the penalty of a mate: a number, `inf`, or `dynamic` (DynAVGSD, the
            average predicted slowdown of the running jobs), or their `median` or 70th percentile (`p70`).
        sharing_factor: SharingFactor, the largest share of its cores on a node that a mate can lose.
        mates: m, the largest number of mates of a job; 0: no job is a guest, which is static backfill.
        candidates: nm, the number of candidates for mates, chosen by the smallest penalties; 0: all.
        include_free_nodes: whether idle nodes may be used in addition to the nodes of mates.
        inside: whether a job must end before its mates, with the expected ends of the mates before (`before`) or after
            (`after`) it slows them down. `off`: it need not.
        depth: number of waiting jobs tried as guests in a call; 0: all.
        backfill_interval_s: > 0: interval of the passes of Slurm's backfill, s; each tries the first `depth` jobs. 0:
            EASY, and jobs are tried in every call.
        bf_window: how far a pass looks ahead, minutes; a job that would start later has no reservation. 0: no limit.
        bf_resolution: reservations of a pass begin and end at multiples of it, s; 0: anywhere.
        bf_node_space_size: largest number of slots of the plan of a pass; 0: no limit.
        bf_max_job_user: most jobs of one user in a pass; 0: any number.
        if_earlier: whether a guest must end before it would end if it waited for nodes of its own (listing 1).
        partial: whether a mate may share some of its nodes only.
        weighted: whether the penalty of a mate counts once for each of its nodes.
        keep_plan: whether a guest must not delay its mates into a place that the plan has for an earlier job.
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
    bf_window: int = 0
    bf_resolution: int = 0
    bf_node_space_size: int = 0
    bf_max_job_user: int = 0
    if_earlier: bool = True
    partial: bool = False
    weighted: bool = False
    keep_plan: bool = False

    def __post_init__(self) -> None:
        """Raise InputError if a parameter is out of range."""
        if not 0 < self.sharing_factor < 1:
            raise InputError(f"sd.sharing_factor cannot be {self.sharing_factor}", hint="above 0, below 1")
        for name in ("mates", "candidates", "depth", *OF_A_PASS):
            if getattr(self, name) < 0:
                raise InputError(f"sd.{name} cannot be {getattr(self, name)}", hint="use a number from 0 on")
        if not 0.0 <= self.backfill_interval_s < math.inf:
            raise InputError(f"sd.backfill_interval_s cannot be {self.backfill_interval_s}", hint="seconds; 0: EASY")
        for name in OF_A_PASS:
            if getattr(self, name) and not self.backfill_interval_s:
                raise InputError(f"sd.{name} needs passes of backfill", hint="set sd.backfill_interval_s above 0")
        if not self.follows_running_jobs:
            try:
                positive = float(self.max_slowdown) > 0.0
            except ValueError:
                positive = False
            if not positive:
                raise InputError(
                    f"sd.max_slowdown cannot be {self.max_slowdown!r}",
                    hint="a number above 0, inf, dynamic, median or p70",
                )

    @property
    def follows_running_jobs(self) -> bool:
        """Return whether MAX_SLOWDOWN follows from the predicted slowdowns of the running jobs."""
        return self.max_slowdown == "dynamic" or self.max_slowdown in QUANTILES

    @property
    def quantile(self) -> float | None:
        """Return the quantile of the predicted slowdowns that MAX_SLOWDOWN is; None: their mean, or a constant."""
        return QUANTILES.get(self.max_slowdown)

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
        considered = first_of_users(waiting, jobs.user, self.bf_max_job_user)[: self.depth or None]
        last = trial.last_candidate(considered) if in_slurm else len(considered)
        for at, job in enumerate(considered):
            if at > last:
                break  # the rest of the plan would be discarded
            nodes, limit = jobs.nodes[job], jobs.limit[job]
            if job not in refused and not trial.cannot_start(job):
                if trial.fits(job, head):
                    yield Start(job, nodes)
                    trial.started(job)
                    last = trial.last_candidate(considered) if in_slurm else last  # the job may be a mate
                    continue
                if jobs.kind[job] in (Kind.MALLEABLE, Kind.MOLDABLE) and (share := trial.share(job, head)) is not None:
                    yield share
                    trial.shared(share)
                    continue
            head = job if head is None else head
            if not trial.plan.reserve(nodes, max(limit, SHORTEST_S)):
                break
        if self.depth and len(waiting) > self.depth and not in_slurm:
            if head is None:
                yield from heads(state)
                if (head := state.queue.head) is None:
                    return
                job = head
            yield from backfill_behind(state, head, job)


class Trial:
    """The flexible scheduling trials of one call of the policy."""

    def __init__(self, policy: SlowdownDriven, state: State) -> None:
        """Compute the upper bound of the penalties for the call."""
        self.policy, self.state = policy, state
        self.plan = ReservationMap(state, policy.bf_window, policy.bf_resolution, policy.bf_node_space_size)
        self.cut_off = (
            slowdown_of_running(state, policy.quantile) if policy.follows_running_jobs else float(policy.max_slowdown)
        )
        self._best: dict[tuple[Request, int | None], BestMates | None] = {}
        self._hosts: Mates | None = None
        self._offered: dict[tuple[int, int], Mates] = {}  # cores and ranks per node -> the mates of such a guest
        self._sums: dict[tuple[int, int], tuple[list[float], list[int]]] = {}
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
        if any(getattr(self.policy, name) for name in (*OF_A_PASS, "keep_plan")):
            return ()  # later a pass may consider other jobs, or plan them elsewhere
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

    def cannot_start(self, job: int) -> bool:
        """Return whether `job` cannot start now for a reason that is known already. It saves the trials."""
        jobs = self.state.jobs
        return self.plan.is_beyond(jobs.nodes[job], max(jobs.limit[job], SHORTEST_S)) and not self._may_share(job)

    def last_candidate(self, waiting: Sequence[int]) -> int:
        """Return the index of the last of the jobs `waiting` that may start now; -1: none."""
        idle, nodes = self.state.idle, self.state.jobs.nodes
        for at in range(len(waiting) - 1, -1, -1):
            if nodes[waiting[at]] <= idle or self._may_share(waiting[at]):
                return at
        return -1

    def _may_share(self, job: int) -> bool:
        jobs = self.state.jobs
        if not self.policy.mates or jobs.kind[job] not in (Kind.MALLEABLE, Kind.MOLDABLE):
            return False
        return self._may_suffice((jobs.nodes[job], (jobs.cores[job], jobs.ranks[job]), jobs.limit[job]))

    def started(self, job: int) -> None:
        """Note that `job` started on idle nodes."""
        self._changed()
        self.plan.add(self.state.now, self.state.jobs.limit[job], self.state.jobs.nodes[job])

    def _changed(self) -> None:
        self._best.clear()
        self._hosts = None
        self._offered.clear()
        self._sums.clear()

    def share(self, job: int, head: int | None) -> Share | None:
        """Return the share that starts `job` as a guest now. None: impossible, or `job` would not end earlier."""
        state, jobs = self.state, self.state.jobs
        if not self.policy.mates:
            return None
        nodes, limit = jobs.nodes[job], jobs.limit[job]
        request = (nodes, (jobs.cores[job], jobs.ranks[job]), limit)
        if (request, head) not in self._best:
            self._best[request, head] = self._pick(request, head) if self._may_suffice(request) else None
        if (best := self._best[request, head]) is None:
            return None
        duration, share, taken = best
        if self.policy.if_earlier and not self._earlier(state.now + duration, nodes, limit):
            return None
        if self.policy.keep_plan and not self.plan.has_room(taken):
            return None
        self._ends = {loan.owner: state.expected_end[loan.owner] for loan in share.loans}
        return share._replace(job=job)

    def _earlier(self, mall_end: float, nodes: int, limit: float) -> bool:
        """Return whether `mall_end` is before the end of a job that waits for nodes of its own."""
        state = self.state
        no_earlier, _ = state.releases.reservation(nodes, state.idle + state.returning, state.now)
        return mall_end < no_earlier + limit or mall_end < self.plan.start_of(nodes, max(limit, SHORTEST_S)) + limit

    def shared(self, share: Share) -> None:
        """Note that `share` was carried out: its idle nodes are taken, and its mates end later."""
        state = self.state
        self._changed()
        if share.free:
            self.plan.add(state.now, state.expected_end[share.job] - state.now, share.free)
        for mate, end in self._ends.items():
            if (begin := max(end, state.now)) < state.expected_end[mate]:  # a mate may be overdue
                self.plan.add(begin, state.expected_end[mate] - begin, state.jobs.nodes[mate])

    def _pick(self, request: Request, head: int | None) -> BestMates | None:
        """Return the mates with the least sum of penalties (equations 1 to 3)."""
        policy, state = self.policy, self.state
        missing, _, limit = request
        mates = self._candidates(request)
        weights = mates.nodes if policy.weighted else np.ones(len(mates.nodes))
        penalties = (self._penalties(mates, limit / mates.guest_rate) * weights).tolist()
        nodes = mates.nodes.tolist()
        idle = state.idle if policy.include_free_nodes else 0
        shadow, extra = (math.inf, 0) if head is None else state.reservation(state.jobs.nodes[head])
        best: tuple[float, float, list[int]] = (math.inf, 0.0, [])

        def try_combination(chosen: list[int], free: int) -> None:
            nonlocal best
            some = mates.at(chosen)
            duration = limit / float(some.guest_rate.min())
            if free and free > extra and state.now + duration > shadow:
                return
            impact = self._penalties(some, np.full(len(chosen), duration))
            total = in_order(impact * weights[chosen])
            if total < best[0] and bool(self._fit(some, impact, duration).all()):
                best = (total, duration, chosen)

        alike: dict[int, list[int]] = defaultdict(list)  # nodes -> the mates that have as many
        for mate, count in enumerate(nodes):
            alike[count].append(mate)

        def extend(chosen: list[int], first: int, missing: int, impact: float) -> None:
            is_last = len(chosen) + 1 == policy.mates
            exact = is_last and not idle and not policy.partial
            for mate in alike.get(missing, ()) if exact else range(first, len(nodes)):
                if impact + penalties[mate] >= best[0]:
                    if policy.weighted:
                        continue  # the order is that of the penalties without weights
                    return
                rest = missing - nodes[mate]
                if mate >= first and rest <= idle and (rest >= 0 or policy.partial):
                    try_combination([*chosen, mate], max(rest, 0))
                if rest > 0 and not is_last:
                    extend([*chosen, mate], mate + 1, rest, impact + penalties[mate])

        if sum(sorted(nodes)[-policy.mates :]) + idle >= missing:
            extend([], 0, missing, 0.0)
        _, duration, chosen = best
        if not chosen:
            return None
        loans, taken = [], []
        for mate in chosen:
            owner = int(mates.job[mate])
            shared = tuple(state.cluster.owned(owner))[:missing]  # fewer than all only of the last mate, if `partial`
            loans.append(Lend(owner, shared, int(mates.cores[mate])))
            delay = duration * (1 - float(mates.rate[mate]))
            taken.append((max(state.expected_end[owner], state.now), delay, nodes[mate]))
            missing -= len(shared)
        taken.append((state.now, duration, missing))
        return BestMates(duration, Share(-1, missing, tuple(loans)), [one for one in taken if one[1] > 0 and one[2]])

    def _candidates(self, request: Request) -> Mates:
        """Return the possible mates, least penalty first; ties by start, then by submission."""
        nodes, cores, limit = request
        mates = self._offers(cores)
        if not self.policy.partial:
            mates = mates.at(mates.nodes <= nodes)
        duration = limit / mates.guest_rate
        penalty = self._penalties(mates, duration)
        fit = self._fit(mates, penalty, duration).nonzero()[0]
        order = np.lexsort((mates.job[fit], self.state.started[mates.job[fit]], penalty[fit]))
        return mates.at(fit[order[: self.policy.candidates or None]])

    def _offers(self, cores: tuple[int, int]) -> Mates:
        """Return what each running job can lend to a guest with these requested cores and ranks per node."""
        if cores not in self._offered:
            hosts = self._hosts = self._hosts or self._all_hosts()
            requested, ranks = (np.minimum(count, hosts.cores) for count in cores)
            used = hosts.cores - hosts.spare
            lost = np.minimum(np.maximum(requested - hosts.spare, 0), hosts.can_lose)
            given = np.minimum(requested, hosts.spare + lost)
            there = (given >= ranks).nonzero()[0]
            self._offered[cores] = hosts.at(there)._replace(
                cores=given[there],
                guest_rate=given[there] / requested[there],
                rate=(used - lost)[there] / used[there],
            )
        return self._offered[cores]

    def _may_suffice(self, request: Request) -> bool:
        """Return whether one or two mates that end late enough have as many nodes as the job: a necessary condition.

        It saves the search for mates. It is computed once for all jobs that request as many cores per node.
        """
        nodes, cores, limit = request
        policy = self.policy
        if policy.partial or policy.include_free_nodes or policy.mates > 2:
            return True
        if cores not in self._sums:
            mates = self._offers(cores)
            work = mates.guest_rate / (1.0 if policy.inside == "before" else mates.rate)
            longest = np.full(len(work), math.inf) if policy.inside == "off" else mates.left * work * (1 + SLACK)
            order = np.argsort(-longest)
            singles, sums = 0, [0]  # bit n: one mate, or one or two, of the first mates have n nodes
            for count in mates.nodes[order].tolist():
                pairs = singles << count if policy.mates == 2 else 0
                singles |= 1 << count
                sums.append(sums[-1] | 1 << count | pairs)
            self._sums[cores] = (-longest[order]).tolist(), sums
        longest_first, sums = self._sums[cores]
        return bool(sums[bisect_right(longest_first, -limit)] >> nodes & 1)

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
            can_lose=self._can_lose(used, cores // state.can_host_sockets[job], arrays.ranks[job]),
            cores=cores,
            guest_rate=whole,
            rate=whole,
        )

    def _can_lose(self, used: IntArray, socket: IntArray, ranks: IntArray) -> IntArray:
        """Return the cores that a mate can lose on a node: whole sockets if at least one, but one core a rank."""
        most: IntArray = (used * self.policy.sharing_factor + SLACK).astype(np.int64)
        most = np.minimum(most, np.maximum(used - ranks, 0))
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
