"""A second, slow and obvious implementation of docs/policies.md: the oracle for tests of the real scheduler.

It was written from that document alone and shares no line with the real one. There is no event heap, no index
and no cached state: every step looks at everything anew, in the order of the document's sentences. Where the
document can be read in more than one way, a comment beginning with "Reading:" says which way was taken.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field


@dataclass
class RefJob:
    """A job as it is submitted; the three sizes default to `nodes` and count only for a malleable job."""

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
        """S(n)."""
        if self.parallel_fraction is None:
            return float(n)
        return 1 / ((1 - self.parallel_fraction) + self.parallel_fraction / n)

    def rate(self, n: int) -> float:
        """r(n) = S(n) / S(requested), 1 for a rigid job."""
        return self.speedup(n) / self.speedup(self.nodes) if self.malleable else 1.0

    def expected_run_time(self) -> float:
        """The limit; a job without one is expected to take its run time."""
        return self.run_time if self.limit is None else self.limit


@dataclass
class RefResult:
    """What became of a job."""

    start: float | None
    end: float | None
    state: str
    """completed, killed or rejected."""
    sizes: list[tuple[float, int]] = field(default_factory=list)
    """(since when, nodes held), one entry a change."""
    resizes: list[tuple[float, int, int]] = field(default_factory=list)
    """(when decided, from, to), one entry a job and call."""


@dataclass
class _Running:
    job: RefJob
    start: float
    call_started: int  # in which call of the policy it was started; -1: not in a call (a promise)
    held: int  # nodes it holds
    used: int  # nodes it runs on, which set its speed; fewer than it holds while an expansion is pending
    decided: int  # the size it has or will have; smaller than it holds while a shrink is pending
    progress: float = 0.0  # integral of r, seconds of the run time at the requested size
    since: float = 0.0  # when progress was last brought up to date
    end: float = 0.0
    expected_end: float = 0.0
    point: float | None = None  # the malleability point that the pending resize waits for; None: none pending
    call_resized: int = -1


@dataclass
class _Promise:
    job: RefJob
    target: int
    expected_end: float


def reference_schedule(
    jobs: list[RefJob],
    nodes: int,
    policy: str,
    *,
    interval_s: float = 0.0,
    malleability_interval_s: float = 0.0,
    count_idle: bool = True,
    grow_at_start: bool = False,
    kill_at_limit: bool = False,
) -> dict[int, RefResult]:
    """Return what becomes of each job, by id, under `policy` (fcfs, easy or pref) on `nodes` nodes."""
    reference = _Reference(jobs, nodes, policy, malleability_interval_s, count_idle, grow_at_start, kill_at_limit)
    reference.go(interval_s)
    return reference.results


class _Reference:
    def __init__(
        self,
        jobs: list[RefJob],
        nodes: int,
        policy: str,
        malleability_interval_s: float,
        count_idle: bool,
        grow_at_start: bool,
        kill_at_limit: bool,
    ) -> None:
        self.policy = {"fcfs": self.fcfs, "easy": self.easy, "pref": self.pref}[policy]
        self.sizes_count = policy == "pref"  # to fcfs and easy every job is rigid
        self.nodes = nodes
        self.malleability_interval_s = malleability_interval_s
        self.count_idle = count_idle
        self.grow_at_start = grow_at_start
        self.kill_at_limit = kill_at_limit
        self.now = 0.0
        self.calls = 0
        self.to_come = sorted(jobs, key=lambda job: job.submit)  # stable: ties in workload order
        self.queue: list[RefJob] = []
        self.running: list[_Running] = []  # in the order in which they started
        self.promises: list[_Promise] = []  # in the order in which they were made
        self.results: dict[int, RefResult] = {}

    # ---- sizes ---------------------------------------------------------------------------------------------

    def smallest(self, job: RefJob) -> int:
        return job.nodes_min if self.sizes_count and job.malleable else job.nodes

    def preferred(self, job: RefJob) -> int:
        return job.nodes_pref if self.sizes_count and job.malleable else job.nodes

    def largest(self, job: RefJob) -> int:
        return job.nodes_max if self.sizes_count and job.malleable else job.nodes

    # ---- nodes ---------------------------------------------------------------------------------------------

    def idle(self) -> int:
        """Nodes that nobody holds."""
        return self.nodes - sum(run.held for run in self.running)

    def idle_less_promises(self) -> int:
        """Idle nodes less those set aside for promises; may be more than are idle if shrinks are pending."""
        promised = sum(promise.target for promise in self.promises)
        coming = sum(run.held - run.decided for run in self.running)
        return self.idle() - (promised - coming)

    def free(self) -> int:
        """What the policy sees: idle nodes that are not promised to anybody."""
        # Reading: more nodes to come than promised do not make more nodes idle than there are.
        return min(self.idle(), self.idle_less_promises())

    # ---- the loop ------------------------------------------------------------------------------------------

    def go(self, interval_s: float) -> None:
        call_at: float | None = None
        while True:
            times = [run.end for run in self.running]
            times += [run.point for run in self.running if run.point is not None]
            times += [job.submit for job in self.to_come[:1]]
            times += [call_at] if call_at is not None else []
            if not times:
                break
            self.now = min(times)
            if self.take_in() and call_at is None:
                # Reading: multiples count from time 0, and a round that a call brings about at its own tick
                # is followed by another call at that tick ("the first tick at or after the event").
                call_at = _first_multiple(interval_s, self.now) if interval_s > 0 else self.now
            # Reading: promises are looked at when everything of the instant has been taken in, not between
            # two ends.
            self.serve_promises()
            if call_at == self.now:
                call_at = None
                self.calls += 1
                self.policy()
                self.serve_promises()
        assert not self.queue and not self.promises, "a job was never started"

    def take_in(self) -> bool:
        """Take in what happens now: ends, malleability points, submissions; return whether anything did."""
        ended = [run for run in self.running if run.end == self.now]
        for run in ended:
            self.running.remove(run)
            self.results[run.job.id].end = self.now
        reached = [run for run in self.running if run.point == self.now]
        for run in reached:
            self.take_effect(run)
        submitted = [job for job in self.to_come if job.submit == self.now]
        for job in submitted:
            self.to_come.remove(job)
            if self.smallest(job) > self.nodes:
                self.results[job.id] = RefResult(None, None, "rejected")
            else:
                self.queue.append(job)
        # Reading: the submission of a job that is rejected is something that happened.
        return bool(ended or reached or submitted)

    def serve_promises(self, call: int = -1) -> None:
        for promise in list(self.promises):
            if promise.target <= self.idle():
                self.promises.remove(promise)
                self.start(promise.job, promise.target, call)

    # ---- what happens to a job -----------------------------------------------------------------------------

    def start(self, job: RefJob, n: int, call: int) -> None:
        run = _Running(job, self.now, call, held=n, used=n, decided=n, since=self.now)
        self.running.append(run)
        self.results[job.id] = RefResult(self.now, None, "completed", [(self.now, n)])
        self.set_ends(run)

    def start_waiting(self, job: RefJob, n: int) -> None:
        self.queue.remove(job)
        self.start(job, n, self.calls)

    def set_ends(self, run: _Running) -> None:
        """Reckon the end and the expected end from the progress so far and the speed from now on."""
        rate = run.job.rate(run.used)
        run.end = self.now + max(0.0, run.job.run_time - run.progress) / rate
        run.expected_end = self.now + max(0.0, run.job.expected_run_time() - run.progress) / rate
        killed = self.kill_at_limit and run.expected_end < run.end
        run.end = run.expected_end if killed else run.end
        self.results[run.job.id].state = "killed" if killed else "completed"

    def resize(self, run: _Running, n: int) -> None:
        """Note the decision that `run` is to have n nodes; a second one in one call changes the first."""
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
        self.set_ends(run)

    def hold(self, run: _Running, n: int) -> None:
        run.held = n
        sizes = self.results[run.job.id].sizes
        if sizes[-1][0] == self.now:
            sizes.pop()  # what was held for no time is no step of the staircase
        if not sizes or sizes[-1][1] != n:
            sizes.append((self.now, n))

    # ---- the policies --------------------------------------------------------------------------------------

    def fcfs(self) -> None:
        while self.queue and self.queue[0].nodes <= self.free():
            self.start_waiting(self.queue[0], self.queue[0].nodes)

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

    def reservation(self, need: int) -> tuple[float, int]:
        """Return the shadow time of a head that needs `need` nodes, and the extra nodes at that time."""
        # Reading: a job whose shrink is pending counts with the size it will have, and what it is still to
        # give back is idle already as far as nobody was promised it; so all nodes of the machine are
        # counted exactly once.
        releases = [(max(run.expected_end, self.now), run.decided) for run in self.running]
        releases += [(max(promise.expected_end, self.now), promise.target) for promise in self.promises]
        for instant in sorted({self.now, *(time for time, _ in releases)}):
            idle_then = self.idle_less_promises() + sum(n for time, n in releases if time <= instant)
            if idle_then >= need:
                return instant, idle_then - need
        raise AssertionError("the head is larger than the machine")

    def pref(self) -> None:
        self.pref_start()
        self.pref_shrink()
        self.serve_promises(self.calls)
        self.pref_expand()

    def pref_start(self) -> None:
        while self.queue and self.free() >= self.smallest(self.queue[0]):
            self.start_waiting(self.queue[0], min(self.preferred(self.queue[0]), self.free()))
        if not self.queue:
            return
        shadow, extra = self.reservation(self.smallest(self.queue[0]))
        for job in self.queue[1:]:
            if self.free() < self.smallest(job):
                continue
            n = min(self.preferred(job), self.free())
            if self.now + job.expected_run_time() / job.rate(n) <= shadow:
                self.start_waiting(job, n)
            elif n <= extra:
                extra -= n
                self.start_waiting(job, n)

    def priority(self, run: _Running) -> int:
        return run.decided - self.preferred(run.job)

    def may_change(self, run: _Running) -> bool:
        return self.largest(run.job) > self.smallest(run.job) and run.point is None

    def pref_shrink(self) -> None:
        # Taken once, before the first shrink of this call: a job may be shrunk again for the next waiting
        # job.
        eligible = [run for run in self.running if self.may_change(run) and run.call_started != self.calls]
        for job in list(self.queue):
            attempts = [
                (self.preferred(job), self.preferred),
                (self.smallest(job), self.preferred),
                (self.smallest(job), self.smallest),
            ]
            for target, floor in attempts:
                need = target - self.free() if self.count_idle else target
                if need <= 0:
                    break
                surplus = {run.job.id: max(0, run.decided - floor(run.job)) for run in eligible}
                if sum(surplus.values()) < need:
                    continue
                for run in sorted(eligible, key=self.priority, reverse=True):  # stable: earlier start first
                    take = min(surplus[run.job.id], need)
                    if take:
                        self.resize(run, run.decided - take)
                        need -= take
                self.queue.remove(job)
                expected_end = self.now + job.expected_run_time() / job.rate(target)
                self.promises.append(_Promise(job, target, expected_end))
                break

    def pref_expand(self) -> None:
        # Taken once as well: a job that grew to its preferred size in this call may grow on, as one resize;
        # a job shrunk in this call is not among them, whether its resize is still pending or not.
        eligible = [
            run
            for run in self.running
            if self.may_change(run)
            and run.call_resized != self.calls
            and (self.grow_at_start or run.call_started != self.calls)
        ]
        for ceiling in (self.preferred, self.largest):
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
