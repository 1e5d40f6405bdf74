"""A second, slow and simple implementation of docs/reference/policies/: the oracle for tests of the real scheduler.

It was written from that document alone and shares no code with the real scheduler. There is no event heap, no
index and no cached state: every step recomputes everything, in the order of the document's sentences. Where the
document is ambiguous, a comment beginning with "Reading:" states the chosen interpretation.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

from hypothesis.errors import UnsatisfiedAssumption

NEAR = 1e-9
"""Two events that are at one instant but for rounding are less than this apart, s."""


class NearTie(UnsatisfiedAssumption):
    """The order of two events depends on how sums are rounded, so that another program may rightly differ.

    Hypothesis leaves out an example that raises this error.
    """


@dataclass
class RefJob:
    """A submitted job. The three sizes default to `nodes` and apply only to malleable jobs."""

    id: int
    submit: float
    run_time: float
    limit: float | None
    nodes: int
    malleable: bool = False
    nodes_min: int = 0
    nodes_max: int = 0
    nodes_pref: int = 0
    parallel_fraction: float | None = None
    """Of Amdahl's law over nodes; None: linear speedup."""

    def __post_init__(self) -> None:
        self.nodes_min = self.nodes_min or self.nodes
        self.nodes_max = self.nodes_max or self.nodes
        self.nodes_pref = self.nodes_pref or self.nodes

    def speedup(self, n: int) -> float:
        """Return S(n), the speedup on n nodes."""
        if self.parallel_fraction is None:
            return float(n)
        return 1 / ((1 - self.parallel_fraction) + self.parallel_fraction / n)

    def rate(self, n: int) -> float:
        """Return r(n) = S(n) / S(requested), which is 1 for a rigid job."""
        return self.speedup(n) / self.speedup(self.nodes) if self.malleable else 1.0

    def expected_run_time(self) -> float:
        """Return the time limit in s, or the run time of a job without a limit."""
        return self.run_time if self.limit is None else self.limit


@dataclass
class RefResult:
    """The outcome of a job."""

    start: float | None
    end: float | None
    state: str
    """completed, killed or rejected."""
    sizes: list[tuple[float, int]] = field(default_factory=list)
    """(since when, nodes held), one entry a change."""
    resizes: list[tuple[float, int, int]] = field(default_factory=list)
    """(when decided, from, to), one entry a job and call."""
    nodes: list[int] = field(default_factory=list)
    """The node numbers, ascending, if the policy names nodes."""


@dataclass
class _Running:
    job: RefJob
    start: float
    call_started: int  # policy call that started the job; -1: started by a promise, outside a call
    held: int  # allocated nodes
    used: int  # nodes that set its speed; fewer than `held` while an expansion is pending
    decided: int  # current or decided size; smaller than `held` while a shrink is pending
    progress: float = 0.0  # integral of r: seconds of the run time at the requested size
    since: float = 0.0  # time of the last update of progress
    end: float = 0.0
    expected_end: float = 0.0
    limit: float = 0.0  # progress at which the limit is reached
    point: float | None = None  # malleability point of the pending resize; None: no resize is pending
    call_resized: int = -1


@dataclass
class _Promise:
    job: RefJob
    target: int
    expected_end: float
    own: int = 0  # idle nodes reserved for it; not used for `pool`
    missing: list[tuple[_Running, int]] = field(default_factory=list)  # (job, nodes that it still has to release)


_Plan = tuple[RefJob, float, list[int]]
"""A job, its planned start, and its nodes if the policy names nodes."""
MALLEABLE = ("avg", "min", "pref", "keep-pref")
"""The policies that decide sizes; to all others every job is rigid."""


def reference_schedule(
    jobs: list[RefJob],
    nodes: int,
    policy: str,
    *,
    interval_s: float = 0.0,
    malleability_interval_s: float = 0.0,
    over_limit: str = "extend",
    priority: str = "fcfs",
    **parameters: Any,
) -> dict[int, RefResult]:
    """Return the outcome of each job by id under `policy` with `parameters` on `nodes` nodes."""
    reference = _Reference(jobs, nodes, policy, malleability_interval_s, over_limit, priority, **parameters)
    reference.interval_s = interval_s
    reference.go()
    return reference.results


class _Reference:
    def __init__(
        self,
        jobs: list[RefJob],
        nodes: int,
        policy: str,
        malleability_interval_s: float,
        over_limit: str,
        priority: str,
        count_idle: str = "yes",
        grow_at_start: bool = False,
        promise: str = "pool",
        backfill: str = "easy",
        calls: str = "settle",
        expected_end: str = "scaled",
        narrow: bool = False,
        ties: str = "start",
        spread: bool = False,
        if_idle: bool = False,
        straight: bool = False,
        backfill_depth: int = 0,
        backfill_interval_s: float = 0.0,
        reserve: str = "counts",
    ) -> None:
        if over_limit == "extend":
            jobs = [replace(job, limit=max(job.expected_run_time(), job.run_time)) for job in jobs]
        self.policy = policy
        passes = backfill_depth or backfill_interval_s
        self.call = {
            ("fcfs", "counts"): self.fcfs,
            ("firstfit", "counts"): self.firstfit,
            ("easy", "counts"): self.easy,
            ("easy", "nodes"): self.easy_on_nodes,
            **dict.fromkeys(
                [("conservative", "counts"), ("conservative", "nodes")], self.slurm if passes else self.conservative
            ),
        }.get((policy, reserve), self.kassel)
        self.named = reserve == "nodes"
        self.nodes = nodes
        self.interval_s = 0.0
        self.malleability_interval_s = malleability_interval_s
        self.over_limit = over_limit
        self.priority_of_queue = priority
        self.count_idle = count_idle
        self.grow_at_start = grow_at_start
        self.promise = promise
        self.backfill = backfill
        self.calls_made = calls if policy in MALLEABLE else "event"
        self.by_limit = expected_end == "limit"
        self.narrow = narrow
        self.ties = ties
        self.spread = spread
        self.if_idle = if_idle
        self.straight = straight
        self.backfill_depth = backfill_depth
        self.backfill_interval_s = backfill_interval_s
        self.now = 0.0
        self.calls = 0
        self.decided = False  # whether the current call decided anything
        self.wake: float | None = None  # time of the next call that the policy requested
        self.woken = False  # whether the current call is the requested one
        self.to_come = sorted(jobs, key=lambda job: job.submit)  # stable: ties in workload order
        self.submission = {job.id: number for number, job in enumerate(self.to_come)}
        self.queue: list[RefJob] = []
        self.running: list[_Running] = []  # in order of start
        self.promises: list[_Promise] = []  # in order of creation
        self.reservations: dict[int, float] = {}  # conservative: job id -> planned start
        self.planned_nodes: dict[int, list[int]] = {}  # conservative on named nodes: job id -> the reserved nodes
        self.ended_since_call = False
        self.results: dict[int, RefResult] = {}

    # ---- sizes ---------------------------------------------------------------------------------------------

    def sizes_count(self, job: RefJob) -> bool:
        return job.malleable and self.policy in MALLEABLE

    def smallest(self, job: RefJob) -> int:
        """Return the minimum number of nodes."""
        if not self.sizes_count(job):
            return job.nodes
        return job.nodes_pref if self.policy == "keep-pref" else job.nodes_min

    def preferred(self, job: RefJob) -> int:
        """Return the number of nodes on which the job starts if they are idle."""
        if not self.sizes_count(job):
            return job.nodes
        return job.nodes_pref if self.policy in ("pref", "keep-pref") else job.nodes_min

    def largest(self, job: RefJob) -> int:
        return job.nodes_max if self.sizes_count(job) else job.nodes

    # ---- nodes ---------------------------------------------------------------------------------------------

    def idle(self) -> int:
        """Return the number of unallocated nodes."""
        return self.nodes - sum(run.held for run in self.running)

    def idle_less_promises(self) -> int:
        """Return idle nodes less nodes reserved by promises; pending shrinks can make this exceed the idle nodes."""
        promised = sum(promise.target for promise in self.promises)
        coming = sum(run.held - run.decided for run in self.running)
        return self.idle() - (promised - coming)

    def free(self) -> int:
        """Return the idle nodes that the policy sees: those not reserved by promises."""
        if self.promise != "pool":
            return self.idle() - sum(promise.own for promise in self.promises)
        # Reading: if more nodes are being released than promised, the surplus does not count as idle.
        return min(self.idle(), self.idle_less_promises())

    # ---- the loop ------------------------------------------------------------------------------------------

    def go(self) -> None:
        call_at: float | None = None
        while True:
            times = [run.end for run in self.running]
            times += [run.point for run in self.running if run.point is not None]
            times += self.arrivals()
            times += [at for at in (call_at, self.wake) if at is not None]
            if not times:
                break
            self.now = min(times)
            if any(self.now < run.end < self.now + NEAR for run in self.running):
                raise NearTie(f"a job ends within {NEAR} s after t = {self.now} s")
            if self.take_in() and call_at is None:
                # Reading: ticks are multiples from time 0. If a call causes a round at its own tick, another
                # call follows at that tick ("the first tick at or after the event").
                call_at = self.tick(self.now)
            # Reading: promises are served after all events of the instant, not between two ends.
            self.serve_promises()
            if self.now in (call_at, self.wake):
                self.woken = self.wake == self.now
                call_at = self.wake = None
                self.calls += 1
                self.queue.sort(key=self.queue_key)
                if self.over_limit == "again":
                    self.expect_again()
                self.decided = False
                self.call()
                self.serve_promises()
                if self.calls_made == "settle" and self.decided:
                    self.wake = self.now
                if self.calls_made == "tick" and self.running:
                    self.wake = self.tick(math.nextafter(self.now, math.inf))
                self.ended_since_call = False
        assert not self.queue and not self.promises, "a job was never started"

    def tick(self, instant: float) -> float:
        return _first_multiple(self.interval_s, instant) if self.interval_s > 0 else instant

    def queue_key(self, job: RefJob) -> tuple[float, int]:
        wait, limit = self.now - job.submit, job.expected_run_time()
        key = {
            "fcfs": 0.0,
            "largest-slowdown-first": -(wait / max(limit, 1.0)),
            "shortest-first": limit,
            "aging": -(min(wait / (7 * 24 * 3600), 1.0) + job.nodes / self.nodes),
        }[self.priority_of_queue]
        return key, self.submission[job.id]

    def take_in(self) -> bool:
        """Process the ends, malleability points and submissions at this instant; return whether there were any."""
        ended = [run for run in self.running if run.end == self.now]
        for run in ended:
            self.running.remove(run)
            self.results[run.job.id].end = self.now
            self.released(run)
            self.ended_since_call = True
        reached = [run for run in self.running if run.point == self.now]
        for run in reached:
            self.take_effect(run)
        # Reading: the submission of a rejected job is an event.
        return self.submit_due() or bool(ended or reached)

    def arrivals(self) -> list[float]:
        """Return instants at which jobs arrive, the next one among them."""
        return [job.submit for job in self.to_come[:1]]

    def submit_due(self) -> bool:
        """Take in the submissions at this instant; return whether there were any."""
        submitted = [job for job in self.to_come if job.submit == self.now]
        for job in submitted:
            self.to_come.remove(job)
            if self.smallest(job) > self.nodes:
                self.results[job.id] = RefResult(None, None, "rejected")
            else:
                self.queue.append(job)
        return bool(submitted)

    # ---- promises --------------------------------------------------------------------------------------------

    def make_promise(self, job: RefJob, target: int, taken: list[tuple[_Running, int]]) -> None:
        self.decided = True
        expected_end = self.now + job.expected_run_time() / self.planned_rate(job, target)
        promise = _Promise(job, target, expected_end)
        if self.promise != "pool":
            promise.missing = [(run, count) for run, count in taken if run.point is not None]
            promise.own = target - sum(count for _, count in promise.missing)
        self.promises.append(promise)

    def released(self, run: _Running) -> None:
        """Move the nodes that the job still had to release to the promises they were meant for."""
        for promise in self.promises:
            promise.own += sum(count for giver, count in promise.missing if giver is run)
            promise.missing = [(giver, count) for giver, count in promise.missing if giver is not run]

    def serve_promises(self, call: int = -1) -> None:
        for promise in list(self.promises):
            if self.promise == "steal":
                self.exchange(promise)
            there = self.idle() if self.promise == "pool" else promise.own
            if promise.target <= there:
                self.promises.remove(promise)
                self.start(promise.job, promise.target, call)

    def exchange(self, promise: _Promise) -> None:
        """Exchange nodes a promise still waits for against idle nodes of other promises, if it can then start."""
        others = [other for other in reversed(self.promises) if other is not promise]
        if promise.own + sum(other.own for other in others) < promise.target:
            return
        while promise.missing:
            giver, count = promise.missing.pop()
            for _ in range(count):  # node by node
                other = next(other for other in others if other.own)
                other.own -= 1
                other.missing.append((giver, 1))
                promise.own += 1

    # ---- jobs ----------------------------------------------------------------------------------------------

    def start(self, job: RefJob, n: int, call: int) -> None:
        run = _Running(job, self.now, call, held=n, used=n, decided=n, since=self.now, limit=job.expected_run_time())
        self.running.append(run)
        self.results[job.id] = RefResult(self.now, None, "completed", [(self.now, n)])
        self.set_ends(run)

    def planned_rate(self, job: RefJob, n: int) -> float:
        return 1.0 if self.by_limit else job.rate(n)

    def start_waiting(self, job: RefJob, n: int) -> None:
        self.decided = True
        self.queue.remove(job)
        self.start(job, n, self.calls)

    def set_ends(self, run: _Running) -> None:
        """Compute the end and the expected end from the progress so far and the current speed."""
        rate = run.job.rate(run.used)
        run.end = self.now + max(0.0, run.job.run_time - run.progress) / rate
        limit_end = self.now + max(0.0, run.limit - run.progress) / rate
        killed = self.over_limit == "kill" and limit_end < run.end
        run.end = limit_end if killed else run.end
        run.expected_end = run.start + run.limit if self.by_limit else limit_end
        self.results[run.job.id].state = "killed" if killed else "completed"

    def expect_again(self) -> None:
        """Expect each job past its limit to run for another limit, at least 1 s; drop all reservations."""
        for run in self.running:
            if run.expected_end <= self.now:
                rate = run.job.rate(run.used)
                limit = max(run.job.expected_run_time(), 1.0)
                run.limit = self.now - run.start if self.by_limit else run.progress + rate * (self.now - run.since)
                run.limit += limit
                run.expected_end = self.now + limit / (1.0 if self.by_limit else rate)
                self.reservations.clear()
                self.ended_since_call = True

    def resize(self, run: _Running, n: int) -> None:
        """Record the decision to resize `run` to n nodes; a second decision in a call replaces the first."""
        self.decided = True
        resizes = self.results[run.job.id].resizes
        before = run.decided
        if run.call_resized == self.calls:
            before = resizes.pop()[1]
        resizes.append((self.now, before, n))
        run.call_resized = self.calls
        run.decided = n
        if self.malleability_interval_s == 0:
            self.take_effect(run)  # at once, within the call
            return
        run.point = self.next_malleability_point(run)
        if n > run.held:
            self.hold(run, n)

    def next_malleability_point(self, run: _Running) -> float:
        k = 1
        while run.start + k * self.malleability_interval_s < self.now:
            k += 1
        return run.start + k * self.malleability_interval_s

    def take_effect(self, run: _Running) -> None:
        run.progress += run.job.rate(run.used) * (self.now - run.since)
        run.since = self.now
        run.point = None
        run.used = run.decided
        self.hold(run, run.decided)
        self.released(run)
        self.set_ends(run)

    def hold(self, run: _Running, n: int) -> None:
        run.held = n
        sizes = self.results[run.job.id].sizes
        if sizes[-1][0] == self.now:
            sizes.pop()  # a size held for zero time is not part of the staircase
        if not sizes or sizes[-1][1] != n:
            sizes.append((self.now, n))

    # ---- the policies --------------------------------------------------------------------------------------

    def fcfs(self) -> None:
        while self.queue and self.queue[0].nodes <= self.free():
            self.start_waiting(self.queue[0], self.queue[0].nodes)

    def firstfit(self) -> None:
        for job in list(self.queue):
            if job.nodes <= self.free():
                self.start_waiting(job, job.nodes)

    def easy(self) -> None:
        self.fcfs()
        if not self.queue:
            return
        shadow, extra = self.reservation(self.queue[0].nodes)
        for job in self.queue[1:]:
            if job.nodes > self.free():
                continue
            if self.now + job.expected_run_time() <= shadow:
                self.start_waiting(job, job.nodes)
            elif job.nodes <= extra:
                extra -= job.nodes
                self.start_waiting(job, job.nodes)

    def conservative(self) -> None:
        if any(at < self.now for at in self.reservations.values()):
            self.reservations.clear()
        idle, running = self.idle_nodes() if self.named else self.idle(), list(self.running)
        started: list[_Plan] = []
        waiting = {job.id: job for job in self.queue}
        for job in list(self.queue):
            at = self.reservations.pop(job.id, None)
            if at is None or self.ended_since_call:
                plans = [(waiting[id], other, self.planned_nodes[id]) for id, other in self.reservations.items()]
                earlier, self.planned_nodes[job.id] = self.plan(job, idle, running, plans + started)
                assert at is None or earlier <= at
                at = earlier
            nodes = self.planned_nodes[job.id]
            if self.start_as_planned(job, at, nodes):
                started.append((job, at, nodes))
            else:
                self.reservations[job.id] = at

    def slurm(self) -> None:
        (self.fcfs_on_nodes if self.named else self.fcfs)()
        if self.backfill_interval_s > 0 and not self.woken:
            if self.queue:
                self.wake = self.tick(_first_multiple(self.backfill_interval_s, self.now))
            return
        idle, running = self.idle_nodes() if self.named else self.idle(), list(self.running)
        plans: list[_Plan] = []
        for job in self.queue[: self.backfill_depth] if self.backfill_depth else list(self.queue):
            at, nodes = self.plan(job, idle, running, plans)
            plans.append((job, at, nodes))
            self.start_as_planned(job, at, nodes)

    def plan(
        self, job: RefJob, idle: set[int] | int, running: list[_Running], plans: list[_Plan]
    ) -> tuple[float, list[int]]:
        """Return the earliest start of the job, and its nodes if the policy names nodes."""
        if isinstance(idle, int):
            return self.earliest(job, idle, running, plans), []
        return self.earliest_on_nodes(job, idle, running, plans)

    def start_as_planned(self, job: RefJob, at: float, nodes: list[int]) -> bool:
        """Start the job if its plan is for now and its nodes are idle; return whether it started."""
        fits = self.idle_nodes().issuperset(nodes) if self.named else job.nodes <= self.idle()
        if at > self.now or not fits:
            return False
        self.start_waiting(job, job.nodes)
        self.results[job.id].nodes = nodes
        return True

    def earliest(self, job: RefJob, idle: int, running: list[_Running], plans: list[_Plan]) -> float:
        """Return the earliest time at which the job fits the profile of running and planned jobs."""
        releases = [(max(run.expected_end, self.now), run.held) for run in running]
        spans = [(at, at + max(other.expected_run_time(), 1.0), other.nodes) for other, at, _ in plans]
        instants = sorted({self.now, *(at for at, _ in releases), *(at for span in spans for at in span[:2])})

        def idle_at(instant: float) -> int:
            came_free = sum(n for at, n in releases if at <= instant)
            return idle + came_free - sum(n for start, end, n in spans if start <= instant < end)

        for start in instants:
            end = start + max(job.expected_run_time(), 1.0)
            if all(idle_at(at) >= job.nodes for at in instants if start <= at < end):
                return start
        raise AssertionError("the job is larger than the machine")

    def reservation(self, need: int) -> tuple[float, int]:
        """Return the shadow time of a head that needs `need` nodes, and the extra nodes at that time."""
        # Reading: a job with a pending shrink counts with its new size. The nodes it still has to release count
        # as idle unless they are promised. So each node of the machine counts exactly once.
        releases = [(max(run.expected_end, self.now), run.decided) for run in self.running]
        releases += [(max(promise.expected_end, self.now), promise.target) for promise in self.promises]
        for instant in sorted({self.now, *(time for time, _ in releases)}):
            idle_then = self.idle_less_promises() + sum(n for time, n in releases if time <= instant)
            if idle_then >= need:
                return instant, idle_then - need
        raise AssertionError("the head is larger than the machine")

    # ---- the policies on named nodes -----------------------------------------------------------------------

    def idle_nodes(self) -> set[int]:
        return set(range(self.nodes)) - {node for run in self.running for node in self.results[run.job.id].nodes}

    def start_on(self, job: RefJob, nodes: list[int]) -> None:
        self.start_waiting(job, len(nodes))
        self.results[job.id].nodes = nodes

    def fcfs_on_nodes(self) -> None:
        while self.queue and self.queue[0].nodes <= len(self.idle_nodes()):
            self.start_on(self.queue[0], sorted(self.idle_nodes())[: self.queue[0].nodes])

    def easy_on_nodes(self) -> None:
        self.fcfs_on_nodes()
        if not self.queue:
            return
        shadow, reserved = self.reservation_of_nodes(self.queue[0].nodes)
        for job in self.queue[1:]:
            ends_by_then = self.now + job.expected_run_time() <= shadow
            usable = sorted(self.idle_nodes() if ends_by_then else self.idle_nodes() - reserved)
            if job.nodes <= len(usable):
                self.start_on(job, usable[: job.nodes])

    def reservation_of_nodes(self, need: int) -> tuple[float, set[int]]:
        """Return the shadow time of a head that needs `need` nodes, and the lowest-numbered nodes idle then."""
        for instant in sorted({self.now, *(max(run.expected_end, self.now) for run in self.running)}):
            idle_then = self.idle_nodes()
            for run in self.running:
                if run.expected_end <= instant:
                    idle_then |= {*self.results[run.job.id].nodes}
            if len(idle_then) >= need:
                return instant, set(sorted(idle_then)[:need])
        raise AssertionError("the head is larger than the machine")

    def earliest_on_nodes(
        self, job: RefJob, idle: set[int], running: list[_Running], plans: list[_Plan]
    ) -> tuple[float, list[int]]:
        """Return the earliest time at which the same nodes stay free for the limit of the job, and the lowest ones."""
        releases = [(max(run.expected_end, self.now), self.results[run.job.id].nodes) for run in running]
        spans = [(at, at + max(other.expected_run_time(), 1.0), nodes) for other, at, nodes in plans]
        instants = sorted({self.now, *(at for at, _ in releases), *(at for span in spans for at in span[:2])})

        def free_at(instant: float) -> set[int]:
            came_free = {node for at, nodes in releases if at <= instant for node in nodes}
            return (idle | came_free) - {node for a, b, nodes in spans if a <= instant < b for node in nodes}

        for start in instants:
            end = start + max(job.expected_run_time(), 1.0)
            free = set.intersection(*(free_at(at) for at in instants if start <= at < end))
            if len(free) < job.nodes:
                continue
            idle_now = free & self.idle_nodes()
            if start <= self.now and len(idle_now) >= job.nodes:
                free = idle_now
            return start, sorted(free)[: job.nodes]
        raise AssertionError("the job is larger than the machine")

    def kassel(self) -> None:
        if self.backfill == "easy":
            self.start_by_easy()
        else:
            for job in list(self.queue):
                if self.free() >= self.smallest(job):
                    self.start_waiting(job, min(self.preferred(job), self.free()))
        if self.free() or not self.if_idle:
            self.shrink()
        self.serve_promises(self.calls)
        self.expand()

    def start_by_easy(self) -> None:
        while self.queue and self.free() >= self.smallest(self.queue[0]):
            self.start_waiting(self.queue[0], min(self.preferred(self.queue[0]), self.free()))
        if not self.queue:
            return
        shadow, extra = self.reservation(self.smallest(self.queue[0]))
        for job in self.queue[1:]:
            if self.free() < self.smallest(job):
                continue
            n = min(self.preferred(job), self.free())
            if self.now + job.expected_run_time() / self.planned_rate(job, n) <= shadow:
                self.start_waiting(job, n)
                continue
            if self.narrow and self.smallest(job) <= extra:
                n = min(n, extra)
            if n <= extra:
                extra -= n
                self.start_waiting(job, n)

    def priority(self, run: _Running) -> Fraction:
        job = run.job
        if self.policy == "avg":
            return Fraction(run.decided - job.nodes_min, job.nodes_max - job.nodes_min)
        if self.policy == "min":
            return Fraction(run.decided - job.nodes_min)
        return Fraction(run.decided - job.nodes_pref)

    def by_ties(self, runs: list[_Running]) -> list[_Running]:
        return sorted(runs, key=lambda run: self.submission[run.job.id]) if self.ties == "id" else runs

    def may_change(self, run: _Running) -> bool:
        return self.largest(run.job) > self.smallest(run.job) and run.point is None

    def shrink(self) -> None:
        # Computed once, before the first shrink of this call: a job may be shrunk again for the next waiting
        # job.
        eligible = [run for run in self.running if self.may_change(run) and run.call_started != self.calls]
        eligible = self.by_ties(eligible)
        # Reading: "idle" means the nodes idle before the first shrink, less those that later promises took. Nodes
        # being released without a promise do not count within the call.
        idle, fits, head = self.free(), self.free(), self.queue[0] if self.queue else None
        for job in list(self.queue):
            if self.count_idle == "head" and self.smallest(job) <= fits:
                continue
            counts = self.count_idle == "yes" or (self.count_idle == "head" and job is head)
            attempts = {
                "avg": [(job.nodes_min, self.smallest)],
                "min": [(job.nodes_min, self.smallest)],
                "keep-pref": [(job.nodes_pref, self.preferred)],
                "pref": [
                    (job.nodes_pref, self.preferred),
                    (job.nodes_min, self.preferred),
                    (job.nodes_min, self.smallest),
                ],
            }[self.policy]
            if not job.malleable:
                attempts = [(job.nodes, floor) for _, floor in attempts]
            for target, floor in attempts:
                need = target - idle if counts else target
                if need <= 0:
                    break
                if sum(max(0, run.decided - floor(run.job)) for run in eligible) < need:
                    continue
                idle -= target - need
                taken = self.take_by_nodes(eligible, need) if self.policy == "avg" else []
                taken = taken or self.take_by_jobs(eligible, floor, need)
                self.queue.remove(job)
                self.make_promise(job, target, taken)
                break

    def take_by_jobs(
        self, eligible: list[_Running], floor: Callable[[RefJob], int], need: int
    ) -> list[tuple[_Running, int]]:
        taken = []
        for run in sorted(eligible, key=self.priority, reverse=True):  # stable: earlier start first
            take = min(max(0, run.decided - floor(run.job)), need)
            if take:
                self.resize(run, run.decided - take)
                need -= take
                taken.append((run, take))
        return taken

    def take_by_nodes(self, eligible: list[_Running], need: int) -> list[tuple[_Running, int]]:
        taken = []
        for _ in range(need):
            above = [run for run in eligible if run.decided > self.smallest(run.job)]
            run = max(above, key=self.priority)  # the first of equals: earlier start first
            self.resize(run, run.decided - 1)
            taken.append((run, 1))
        return taken

    def expand(self) -> None:
        # Computed once as well: a job that grew to its preferred size in this call may grow further, as one
        # resize. Jobs shrunk in this call are excluded, whether their resize is pending or not.
        eligible = [
            run
            for run in self.running
            if self.may_change(run)
            and run.call_resized != self.calls
            and (self.grow_at_start or run.call_started != self.calls)
        ]
        eligible = self.by_ties(eligible)
        if self.policy == "avg":
            while self.free() and (below := [run for run in eligible if run.decided < run.job.nodes_max]):
                run = min(below, key=self.priority)
                self.resize(run, run.decided + 1)
            return
        ceilings = [self.largest] if self.policy == "min" or self.straight else [self.preferred, self.largest]
        for ceiling in ceilings:
            while self.spread and self.free():
                below = [run for run in eligible if run.decided < ceiling(run.job)]
                if not below:
                    break
                run = min(below, key=self.priority)  # the first of equals: earlier start first
                self.resize(run, run.decided + 1)
            for run in sorted(eligible, key=self.priority):  # stable: earlier start first
                grow = min(ceiling(run.job) - run.decided, self.free())
                if grow > 0:
                    self.resize(run, run.decided + grow)


def _first_multiple(interval: float, instant: float) -> float:
    """Return the first k * interval, k whole, at or after `instant`."""
    k = math.floor(instant / interval)
    while k * interval < instant:
        k += 1
    return k * interval
