"""A simulation of Slurm on a cluster whose jobs share nodes, in Python. The compiled engine returns the same."""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any

from tracebed.orchestrator.scheduling.node_masks import mask_of
from tracebed.orchestrator.scheduling.policies.slurm import Slurm
from tracebed.orchestrator.scheduling.policies.slurm_backfill import first_of_users
from tracebed.orchestrator.scheduling.policies.wall_times import ROUNDING_S
from tracebed.orchestrator.scheduling.slurm.limits import Counters, Limits, amounts_of, billed
from tracebed.orchestrator.scheduling.slurm.multifactor import Associations, FairShare
from tracebed.orchestrator.scheduling.slurm.plan import Running, Waiting, backfill
from tracebed.orchestrator.scheduling.slurm.resources import Parts, Request, Resources
from tracebed.orchestrator.scheduling.state import Decision, Note, Wake

NEVER = math.nan


@dataclass(frozen=True)
class Inputs:
    """What a simulation needs, in arrays. Jobs are in the order of their submission.

    Attributes:
        submit: submission of each job, s.
        run_time: run time of each job, s; infinite: until its time limit.
        limit: time limit of each job, s.
        launch_s: time from the decision to the start of the processes, for each job, s.
        overrun_s: time that a job runs after its time limit, for each job, s.
        end_s: time from the end of the processes to the release of the nodes, for each job, s.
        requests: the resources that each job requests.
        partition: partition of each job.
        user: user of each job, for `bf_max_job_user`.
        fixed: part of the priority of each job that does not change.
        tier: tier of each partition.
        free: the resources of the empty cluster.
        associations: the tree of accounts and users.
        association: association of each job; -1: none.
        usage_factor: factor of the usage of each job.
        billing: weights of the amounts of a job in its usage (`limits.billed`), of each partition.
        billing_most: whether the largest weighted amount is billed, not the sum.
        limits: the limits of the jobs.
        reserve: whether backfill reserves nodes for each job.
        age, max_age_s, fairshare, period_s: of priority/multifactor, see `machine.Weights`.
        first_period_s: instant of the first computation of priorities, s.
        kill_wait_s: see `plan.backfill`.
        most_idle: instants at which no job runs, and none will be submitted, after which the simulation ends, although
            jobs wait: a limit holds them.
        begin_s: instant at which the simulation begins, s. Jobs that were submitted before it wait at this instant.
        held: of each job, the cores by node that it holds when the simulation begins; empty: no job runs then.
        since: start of each job that runs then, s; NaN: the job waits.
        usage: decayed, billed seconds of each association when the simulation begins; empty: 0.
        factors: fair-share factor of each association when the simulation begins; empty: as without usage.
        watched: the simulation ends when the first `watched` jobs have started; 0: when all jobs have ended.
    """

    submit: Sequence[float]
    run_time: Sequence[float]
    limit: Sequence[int]
    launch_s: Sequence[float]
    overrun_s: Sequence[float]
    end_s: Sequence[float]
    requests: Sequence[Request]
    partition: Sequence[int]
    user: Sequence[int]
    fixed: Sequence[float]
    tier: Sequence[int]
    free: Resources
    associations: Associations
    association: Sequence[int]
    usage_factor: Sequence[float]
    billing: Sequence[Sequence[float]]
    limits: Limits
    reserve: Sequence[bool]
    age: float
    max_age_s: float
    fairshare: float
    period_s: float
    first_period_s: float
    billing_most: bool = False
    kill_wait_s: int = 30
    most_idle: int = 100_000
    begin_s: float = -math.inf
    held: Sequence[Parts] = ()
    since: Sequence[float] = ()
    usage: Sequence[float] = ()
    factors: Sequence[float] = ()
    watched: int = 0


@dataclass
class Outcome:
    """What happened: times of each job, s (NaN: never), and the cores that each job held by node.

    `refused` is the limit of its group that refused a job at its submission; -1: none.
    """

    start: list[float]
    launched: list[float]
    end: list[float]
    parts: Sequence[Parts]
    refused: list[int]


class _Shared(Slurm):
    """The instants of the passes as in `Slurm`; the passes are those of the cluster."""

    def _main(self, state: Any, at: float) -> Generator[Decision, None, tuple[bool, bool]]:
        passed: tuple[bool, bool] = yield from state.main(self, at)
        return passed

    def _backfill(self, state: Any, at: float) -> Generator[Decision, None, tuple[bool, bool]]:
        passed: tuple[bool, bool] = yield from state.backfill(self, at)
        return passed

    def full(self, state: Any, at: float) -> bool:
        """Return whether a pass of the main loop goes through the whole queue."""
        return bool(at - state.notes.get("full_last", self.sched_phase_s) >= self.sched_interval)


SUBMIT, END, COMPUTE, WAKE = range(4)
"""Kinds of events."""


class Simulation:
    """The cluster in virtual time. The attributes without underscore are what `Slurm.decide` reads.

    Attributes:
        now: the instant, s.
        notes: notes of the policy.
        arrived: jobs that have been submitted since the last call of the policy, and wait.
        freed: whether another event has happened since then.
        queue: the waiting jobs, in the order of their submission.
    """

    def __init__(self, inputs: Inputs, policy: Slurm) -> None:
        """Start with the empty cluster."""
        self.now = 0.0
        self.notes: dict[str, float] = {}
        self.arrived: list[int] = []
        self.freed = False
        self.queue: list[int] = []
        self._in, self._policy = inputs, _Shared(**{**vars(policy), "cluster": ""})
        count = len(inputs.submit)
        self._free = inputs.free.copy()
        self._everything = mask_of(range(len(inputs.free.total)))
        self._running: list[Running] = []
        self._priority = [0] * count
        self._events: list[tuple[float, int, int, int]] = []
        self._sequence = 0
        self._left = count
        self._wake = math.inf
        self._fairness = FairShare(inputs.associations, self._second(max(inputs.begin_s, inputs.submit[0])))
        if inputs.usage:
            self._fairness.resume(inputs.usage, inputs.factors, self._second(inputs.begin_s))
        self._counters = Counters(inputs.limits)
        self._amounts: dict[int, Sequence[int]] = {}
        self._to_start = 0 if inputs.watched else -1
        nothing: list[Parts] = [{}] * count
        self._out = Outcome([NEVER] * count, [NEVER] * count, [NEVER] * count, nothing, [-1] * count)
        self._nodes_of: list[int] = [0] * len(inputs.tier)
        for request, partition in zip(inputs.requests, inputs.partition, strict=True):
            self._nodes_of[partition] |= request.eligible

    def run(self) -> Outcome:
        """Simulate until all jobs have ended, all watched ones have started, or no waiting job can start."""
        self.now = self._in.begin_s
        for job, submit in enumerate(self._in.submit):
            if self._in.held and self._in.held[job]:
                self._counters.count(job, None, 1)
                self._run(job, dict(self._in.held[job]), self._in.since[job])
            else:
                self._at(max(submit, self._in.begin_s), SUBMIT, job)
                self._to_start += job < self._in.watched
        if self._in.age or self._in.fairshare:
            self._at(self._in.first_period_s, COMPUTE, 0)
        idle = 0
        while self._left and self._to_start and self._events and idle < self._in.most_idle:
            self.now = self._events[0][0]
            idle = 0 if self._running or len(self.queue) < self._left else idle + 1
            if self._handle():
                self._decide()
        return self._out

    def _handle(self) -> bool:
        """Handle the events of this instant, and return whether the policy must be called."""
        call = False
        while self._events and self._events[0][0] == self.now:
            _, _, kind, job = heappop(self._events)
            if kind == COMPUTE:
                self._compute()
                self._at(self.now + self._in.period_s, COMPUTE, 0)
                self.freed = call = True
            elif kind == WAKE:
                call = call or self._wake == self.now
            else:
                (self._submit if kind == SUBMIT else self._end)(job)
                call = True
        return call

    def _decide(self) -> None:
        """Call the policy, and note when it must be called again."""
        self._wake = math.inf
        while True:
            again = math.inf
            for decision in self._policy.decide(self):  # type: ignore[arg-type]
                if isinstance(decision, Note):
                    self.notes[decision.name] = decision.value
                elif isinstance(decision, Wake):
                    again = decision.at
            self.arrived, self.freed = [], False
            if again > self.now:
                break
        if again < math.inf:
            self._wake = again
            self._at(again, WAKE, 0)

    def _at(self, instant: float, kind: int, job: int) -> None:
        heappush(self._events, (instant, self._sequence, kind, job))
        self._sequence += 1

    # -- events -------------------------------------------------------------------------------------------------------

    def _submit(self, job: int) -> None:
        """Add a job to the queue, unless a limit refuses it. As tried on Slurm 22.05.8, no batch job starts before
        the next pass."""
        self._out.refused[job] = self._counters.refused(job)
        if self._out.refused[job] >= 0:
            self._left -= 1
            self._to_start -= job < self._in.watched
            return
        self._counters.count(job, None, 1)
        self._rank(job)
        self.queue.append(job)
        self.arrived.append(job)

    def _end(self, job: int) -> None:
        """Release the nodes of a job."""
        parts = self._out.parts[job]
        self._free.release(self._in.requests[job], parts)
        self._running = [other for other in self._running if other.job != job]
        user, billing, start = self._use(job)
        self._fairness.use(user, billing, start, self._second(self.now))
        self._counters.count(job, self._amounts[job], -1)
        self._counters.count(job, None, -1)
        self._left -= 1
        self.freed = True

    def _compute(self) -> None:
        """Compute the usage and all priorities."""
        self._fairness.update((self._use(each.job) for each in self._running), self._second(self.now))
        for job in self.queue:
            self._rank(job)

    def _use(self, job: int) -> tuple[int, float, int]:
        """Return the association, the billing and the second of the start of a running job."""
        inputs = self._in
        billing = billed(self._amounts[job], inputs.billing[inputs.partition[job]], inputs.billing_most)
        return inputs.association[job], billing * inputs.usage_factor[job], self._second(self._out.start[job])

    def _amounts_of(self, job: int, parts: Parts | None) -> Sequence[int]:
        """Return the amounts of a job by kind: those that it gets with `parts`, or those that it requests."""
        inputs = self._in
        weights = inputs.billing[inputs.partition[job]]
        return amounts_of(inputs.requests[job], parts, self._free, weights, inputs.billing_most)

    def _held(self, job: int, parts: Parts | None) -> bool:
        """Return whether a limit of resources holds a job that would get `parts`, or that requests its amounts."""
        if not self._in.limits.counters:
            return False
        return self._counters.exceeded(job, self._amounts_of(job, parts)) >= 0

    def _rank(self, job: int) -> None:
        """Compute the priority of a waiting job. Priorities are whole numbers."""
        age = min(1.0, (self.now - self._in.submit[job]) / self._in.max_age_s)
        user = self._in.association[job]
        share = self._fairness.factors[user] if user >= 0 else 0.0
        self._priority[job] = math.floor(self._in.fixed[job] + self._in.age * age + self._in.fairshare * share)

    def _start(self, job: int, parts: dict[int, int]) -> None:
        """Start a job on the cores `parts`."""
        self.queue.remove(job)
        self._run(job, parts, self.now)
        if job < self._in.watched:
            self._to_start -= 1

    def _run(self, job: int, parts: dict[int, int], start: float) -> None:
        """Let a job run on the cores `parts` since `start`."""
        inputs, request, limit = self._in, self._in.requests[job], self._in.limit[job]
        self._free.take(request, parts)
        self._amounts[job] = self._amounts_of(job, parts)
        self._counters.count(job, self._amounts[job], 1)
        insort(self._running, Running(self._second(start) + limit, job, request, parts, mask_of(parts.keys())))
        self._out.start[job], self._out.parts[job] = start, parts
        self._out.launched[job] = launched = start + inputs.launch_s[job]
        over = inputs.run_time[job] > limit
        end = max(start + limit + inputs.overrun_s[job] if over else launched + inputs.run_time[job], self.now)
        self._out.end[job] = end
        self._at(end + inputs.end_s[job], END, job)

    # -- passes -------------------------------------------------------------------------------------------------------

    def _ordered(self) -> list[int]:
        """Return the waiting jobs by tier of the partition, priority and submission."""
        tier, partition = self._in.tier, self._in.partition
        return sorted(self.queue, key=lambda job: (-tier[partition[job]], -self._priority[job], job))

    def main(self, policy: _Shared, at: float) -> Generator[Decision, None, tuple[bool, bool]]:
        """Start jobs in order. A job that does not fit blocks its partition, and its nodes for other partitions, unless
        a limit holds the job."""
        depth = policy.default_queue_depth
        if policy.full(self, at):
            yield Note("full_last", at)
            depth = len(self._in.submit)
        started = tested = 0
        cut = False
        usable, blocked = self._everything, set[int]()
        for job in self._ordered():
            partition = self._in.partition[job]
            if partition in blocked or self._counters.held(job) >= 0:
                continue
            cut = tested == depth or (policy.sched_max_job_start > 0 and started == policy.sched_max_job_start)
            if cut:
                break
            tested += 1
            parts = self._free.choose(self._in.requests[job], usable)
            if self._held(job, parts):
                continue
            if parts is not None:
                self._start(job, parts)
                started += 1
            elif not self._young(policy, job):
                blocked.add(partition)
                usable &= ~self._nodes_of[partition]
        return started > 0, cut

    def backfill(self, policy: _Shared, at: float) -> Generator[Decision, None, tuple[bool, bool]]:
        """Make a backfill pass. Return whether any job started, and whether work is left without another event."""
        yield from ()
        second = self._second(at)
        plan = backfill(
            second,
            self._free,
            self._running,
            self._tested(policy),
            everything=self._everything,
            resolution=policy.bf_resolution,
            window=policy.bf_window * 60,
            table=policy.bf_node_space_size or policy.bf_max_job_test,
            reservations=policy.bf_job_part_count_reserve,
            kill_wait=self._in.kill_wait_s,
        )
        started = 0
        for planned in plan:
            if self._held(planned.job, planned.parts):
                continue
            self._start(planned.job, planned.parts)
            started += 1
            if started == policy.bf_max_job_start:
                return True, True
        return started > 0, policy.bf_min_age_reserve > 0 and bool(self.queue)

    def _tested(self, policy: _Shared) -> Iterator[Waiting]:
        """Yield the jobs that a backfill pass tests. A job that a limit holds now is not planned."""
        tested = 0
        for job in first_of_users(self._ordered(), self._in.user, policy.bf_max_job_user):
            if self._counters.held(job) >= 0:
                continue
            tested += 1
            if tested > policy.bf_max_job_test:
                return
            if not self._held(job, None):
                reserve = self._in.reserve[job] and not self._young(policy, job)
                yield Waiting(job, self._in.requests[job], self._in.limit[job], reserve)

    def _second(self, at: float) -> int:
        """Return the whole second of an instant, as Slurm's clock shows it."""
        return math.floor(at + self._policy.epoch_s + ROUNDING_S)

    def _young(self, policy: _Shared, job: int) -> bool:
        return self.now - self._in.submit[job] < policy.bf_min_age_reserve
