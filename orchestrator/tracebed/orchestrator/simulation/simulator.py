"""The simulator: the scheduler in virtual time."""

from __future__ import annotations

import math
from collections.abc import Callable
from heapq import heapify, heappop, heappush

from tracebed.converters.workload import Kind
from tracebed.ground.states import JobState
from tracebed.machine.calendar import NodeChange, OutageKind
from tracebed.machine.pools import Pools
from tracebed.orchestrator.scheduling.cluster import Cluster
from tracebed.orchestrator.scheduling.dependencies import Arrivals
from tracebed.orchestrator.scheduling.jobs import Jobs
from tracebed.orchestrator.scheduling.names import SHRINK
from tracebed.orchestrator.scheduling.pools import scheduler_on
from tracebed.orchestrator.scheduling.record import NEVER_STARTED, ScheduleRecord
from tracebed.orchestrator.scheduling.sleeping import Sleeping, SleepingCluster, SwitchedCluster, end_stops, switch_off
from tracebed.orchestrator.scheduling.state import Policy, next_multiple, shares
from tracebed.orchestrator.scheduling.windows import MOST_WINDOWS, WindowedCluster, switch
from tracebed.orchestrator.setup import DEFAULT, Setup
from tracebed.orchestrator.simulation.cores_in_use import CoresInUse
from tracebed.orchestrator.simulation.delays import Delays, Drawn, Pauses
from tracebed.orchestrator.simulation.interference import Interference
from tracebed.orchestrator.simulation.outages import Outages

END, POINT, RELEASED, CORES, REQUEST = 0, 1, 2, 3, 4
"""Events, in their order at one instant: ends, malleability points, ends of releases, changes of cores, requests."""
REPORT_EVERY = 4096
"""Number of instants between two reports of the progress."""
ROUNDING = 1e-9
"""An iteration counts as complete if at most this part of its work is left, since sums of times are rounded."""


class Simulator:
    """Simulator of a workload under a policy. It is the executor of its scheduler.

    Args:
        cores: cores of each node.
        setup: the scheduling, except for its policy, and the timing.
        sockets: sockets of each node; None: one each.
        interference: how much jobs that share a node slow each other down; None: not at all. The scheduler plans with
            the nominal rates, as in a replay.
        drawn: the factors of the delays of each job (`delays.draw`); None: all delays are the overheads.
        pauses: the resizes of jobs whose application was measured; None: all resizes take the overheads.
        outages: the outages of the nodes; None: there are none.
        pools: which nodes can serve which jobs; None: all nodes can serve all jobs.
        sleeping: when nodes are switched off; None: never.

    Attributes:
        arrivals: the submissions, by default as planned, and the jobs that wait for other jobs.
        until: end of the simulation, s.
    """

    def __init__(
        self,
        jobs: Jobs,
        cores: list[int],
        policy: Policy,
        setup: Setup = DEFAULT,
        *,
        sockets: list[int] | None = None,
        interference: Interference | None = None,
        drawn: Drawn | None = None,
        pauses: Pauses | None = None,
        outages: Outages | None = None,
        pools: Pools | None = None,
        sleeping: Sleeping | None = None,
    ) -> None:
        """Start at time 0 with an idle cluster."""
        scheduling, timing = setup.scheduling, setup.timing
        self.jobs = jobs = jobs.listed()
        self.record = ScheduleRecord(jobs)
        self.cluster = Cluster(cores, sockets, scheduling.placed)
        self._sleeper: SwitchedCluster | None = None
        if sleeping is not None:
            kind = SleepingCluster if sleeping.rule.rule == "idle" else WindowedCluster
            self.cluster = self._sleeper = kind(
                cores, sockets, scheduling.placed, sleeping=sleeping, power=self.record.power, jobs=len(jobs)
            )
        self.record.unserved = pools.reasons if pools is not None else {}
        self.scheduler = scheduler_on(
            pools, jobs, self.cluster, policy, self, interval_s=scheduling.interval_s, priority=scheduling.priority
        )
        self._due, self._decide = self.scheduler.due, self.scheduler.decide
        self.runtime_model = timing.runtime_model
        self.overheads = timing.overheads.times(timing.speed)
        self.delays = Delays(self.overheads, drawn, pauses)
        self._delayed = not self.delays.none
        self.malleability_interval_s = timing.malleability_interval_s
        self.until = math.inf
        self.interference = interference
        self.outages = outages
        self._out: set[int] = set()  # nodes that are down or drained
        self.arrivals = Arrivals(jobs.submit, jobs.waits, jobs.ids)
        self._work = jobs.work
        self._checkpoints = outages.checkpoints if outages else None
        if self._checkpoints:
            self._work = [*jobs.work]  # up to its limit, which counts from the last checkpoint
        # job -> work at the checkpoints of its present run, and when each was or will be complete
        self._saved: dict[int, list[tuple[float, float]]] = {}
        # requeued job -> work at the checkpoint from which it continues; suspended job -> its work so far
        self._resumed: dict[int, float] = {}
        self._begins: dict[int, float] = {}  # running job that shares no nodes -> when its work began or continued
        self._cancelled: dict[int, str] = {}
        self._shares = shares(policy)
        self._uneven = min(cores, default=0) < max(jobs.cores, default=0)
        self._now = 0.0
        self._heap: list[tuple[float, int, int]] = []  # (time, event, job)
        self._ends: dict[int, float] = {}  # job -> its valid end; other ends in the heap are outdated
        # job whose rate may change -> work done at an instant, the instant, and the rate since then
        self._progress: dict[int, tuple[float, float, float]] = {}
        self._pending: dict[int, list[int]] = {}  # job -> nodes after its next malleability point
        self._pool = pools.of.tolist() if pools else [0] * len(jobs)
        self._resizes = [0] * (len(pools.pools) if pools else 1)  # number of the resizes in each pool
        self._draw: dict[int, int] = {}  # job -> number of its last resize in its pool, of which its delays are drawn
        self._releasing: dict[int, tuple[float, float]] = {}  # job -> when its shrink was decided and applied
        self._in_use = CoresInUse(jobs, self.cluster)
        self._ready: dict[int, float] = {}  # guest -> the end of its launch, if it then waits for its cores
        self._changing: dict[int, float] = {}  # job -> the malleability point at which it adopts its new cores
        self._requested: dict[int, int] = {}  # evolving job -> number of its requests so far
        # evolving job -> the instant and number of its next request
        self._next_requests: dict[int, tuple[float, int]] = {}

    def run(self, on_progress: Callable[[int], None] | None = None) -> ScheduleRecord:
        """Run until every job has ended, or until the instant `until`, and return the record.

        Args:
            on_progress: called periodically with the number of jobs submitted so far.
        """
        heap, scheduler, arrivals = self._heap, self.scheduler, self.arrivals
        submitted, call, instants = 0, math.inf, 0
        changes = iter(self.outages.changes if self.outages else ())
        change = next(changes, None)
        sleeper, windows = self._sleeper, 0
        serve, due, decide = scheduler.serve, self._due, self._decide
        while True:
            event = heap[0][0] if heap else math.inf
            if arrivals.next < event:
                event = arrivals.next
            now = event if event < call else call
            if change is not None and change.at < now and (now < math.inf or scheduler.waiting):
                now = change.at  # waiting jobs may need a node that returns
            if sleeper is not None:
                windows = sleeper.windows if event < math.inf else windows
                waits = scheduler.waiting and sleeper.windows - windows < MOST_WINDOWS
                if sleeper.next < now and (now < math.inf or waits):
                    now = sleeper.next
            if now == math.inf or now > self.until:
                break
            self._now = now
            event_occurred = False
            while heap and heap[0][0] == now:
                event_occurred |= self._process_event(*heappop(heap))
            while change is not None and change.at == now:
                self._change_node(change)
                change = next(changes, None)
                event_occurred = True
            if sleeper is not None:
                event_occurred |= self._switch(sleeper, now)
            while arrivals.next <= now:
                submitted += self._arrive(now)
                event_occurred = True
            if event_occurred:
                serve()
                call = min(call, due(now))
            if call <= now:
                call = decide(now)
            if isinstance(sleeper, SleepingCluster):
                switch_off(sleeper, scheduler, now)
            instants += 1
            if on_progress and instants % REPORT_EVERY == 0:
                on_progress(submitted)
        self._close()
        return self.record

    def _switch(self, sleeper: SwitchedCluster, now: float) -> bool:
        """Handle that nodes are off now, or on; return whether there are any."""
        if isinstance(sleeper, WindowedCluster):
            return switch(sleeper, self.scheduler, now)
        return end_stops(sleeper, self.scheduler, now)

    def _arrive(self, now: float) -> int:
        """Submit the jobs that are due, hand over those that wait no more, and return the number of submissions."""
        arrivals, record, scheduler = self.arrivals, self.record, self.scheduler
        due = arrivals.submissions(now)
        if arrivals.waits is None:  # most workloads
            for job in due:
                record.submit[job] = now
                scheduler.submit(job, now)
            return len(due)
        for job in due:
            record.submit[job] = now
            if arrivals.submitted(job, now):
                scheduler.submit(job, now)
            else:
                record.held.add(job)
                scheduler.hold(job, now)
        for job, never in arrivals.released(now):
            if never:
                record.refuse(job, JobState.CANCELLED, never)
                arrivals.ended(job, JobState.CANCELLED, now)
            else:
                record.held.remove(job)
                scheduler.submit(job, now)
        return len(due)

    def _close(self) -> None:
        """Record the final states of the jobs that have not ended."""
        lost = len(self.cluster.lost)
        while_lost = f"; {lost:,} of {len(self.cluster):,} nodes did not return" if lost else ""
        self.record.close(JobState.UNKNOWN, f"{NEVER_STARTED}{while_lost}")

    def _process_event(self, now: float, what: int, job: int) -> bool:
        """Handle an event of the heap; return whether the event was still valid."""
        if what == END:
            if self._ends.get(job) != now:
                return False
            self._forget(job)
            if job in self._cancelled:
                self.record.finish(job, now, JobState.CANCELLED, self._cancelled.pop(job))
                if self.record.launched[job] > now:
                    self.record.launched[job] = math.nan
            elif self._work[job] < self.jobs.run_time[job]:
                self.record.finish(job, now, JobState.KILLED, "time limit")
            else:
                self.record.finish(job, now)
            self._ended(job, now)
            if not self._shares:
                self.scheduler.end(job, now)
                return True
            guests = self._moldable_guests(job)
            self.scheduler.end(job, now)
            self._begin(self._in_use.end(job))
            self._update_guests(guests)
            return True
        if what == CORES:
            if self._changing.get(job) == now:
                del self._changing[job]
                self._adopt_cores(job)
            return False
        if what == REQUEST:
            if job not in self._next_requests or self._next_requests[job][0] != now:
                return False
            self._request(job)
            return True
        if what == POINT:
            if job not in self._pending:
                return False
            if not self._take_effect(job, self._pending.pop(job)):
                return False
        else:
            if job not in self._releasing:
                return False
            decided, applied = self._releasing.pop(job)
            self.record.resize_applied(job, decided, applied, max(applied, now))
        self.scheduler.resized(job, now)
        return True

    def _ended(self, job: int, now: float) -> None:
        """Handle that the end of the running `job` is recorded."""
        if self.arrivals.waits is not None:
            self.arrivals.ended(job, self.record.state[job], now)

    def _forget(self, job: int) -> None:
        """Forget the coming events of the running `job`."""
        if self._saved:
            self._saved.pop(job, None)
        self._begins.pop(job, None)
        self._ends.pop(job, None)  # the end of a guest that waits for its cores is unknown
        if self._progress.pop(job, None):
            for events in (self._pending, self._releasing, self._changing, self._ready, self._next_requests):
                if events:
                    events.pop(job, None)

    def _change_node(self, change: NodeChange) -> None:
        """Begin or end an outage of a node."""
        now, (_, node, kind, reason) = self._now, change
        was_lost = node in self._out  # a node that is busy in a window is lost for the cluster
        if was_lost:
            self.record.node_up(node, now)
        if kind is None:
            self._out.discard(node)
            self.scheduler.node_back(node, now)
            return
        self._out.add(node)
        if self._sleeper is not None:
            self._sleeper.fail(node, self.scheduler, now, down=kind is OutageKind.DOWN)
        self.record.node_down(node, now, reason, kind.value)
        if kind is OutageKind.DOWN:
            for job in self.scheduler.node_lost(node, now):
                self._lose(job, node, reason)
        elif not was_lost:
            self.scheduler.node_drained(node, now)

    def _lose(self, job: int, node: int, reason: str) -> None:
        """End the running `job` now, because its `node` is down, and its work is lost; or continue it on the others."""
        assert self.outages is not None
        now, record, outages = self._now, self.record, self.outages
        treatment = outages.on_node_failure
        if treatment == SHRINK:
            # A job that is being launched has no work to continue.
            if record.launched[job] <= now and self.scheduler.give_up(job, node, now):
                nodes = self.cluster.nodes_of(job)
                self._request_resize(job, len(nodes) + 1, len(nodes))
                self._take_effect(job, nodes)
                return
            treatment = "requeue"
        state, why = record.treat_loss(job, treatment, outages.names[node], reason)
        if self._checkpoints:
            self._save(job)
            if state == "requeued" and (saved := [each for each in self._saved.pop(job, []) if each[1] <= now]):
                self._resumed[job], instant = max(saved)
                self._work[job] = min(self.jobs.run_time[job], self._resumed[job] + self.jobs.work[job])
                record.saved(node, job, instant)
        else:
            self._resumed.pop(job, None)  # what a suspended job had done
        guests = self._moldable_guests(job)
        self._forget(job)
        self._requested.pop(job, None)
        self._heap[:] = [event for event in self._heap if event[2] != job]  # they would strike the next run of the job
        heapify(self._heap)
        if state == "requeued":
            record.requeue(job)
            self.scheduler.requeue(job, now)
        else:
            record.finish(job, now, JobState.FAILED, why)
            self.arrivals.ended(job, JobState.FAILED, now)
            if record.launched[job] > now:
                record.launched[job] = math.nan
            self.scheduler.end(job, now)
        if self._shares:
            self._begin(self._in_use.end(job))
            self._update_guests(guests)

    # -- the executor of the scheduler -----------------------------------------------------------------------------

    def start(self, job: int, nodes: list[int]) -> None:
        """Start `job` and compute its end, which a resize changes."""
        now, record, delays = self._now, self.record, self.delays if self._delayed else None
        begin = self.cluster.on_from(nodes, now)
        if delays:
            begin += delays.launch(job, len(nodes))
        continued = record.start[job] == record.start[job]  # after a suspension
        if not continued:
            record.start[job] = now
            if self.arrivals.waits is not None:
                self.arrivals.started(job, now)
        waits = self._shares and self._start_sharing(job, nodes)
        rate = self._rate(job, nodes)
        if waits:
            self._ready[job] = begin
            self._progress[job] = (0.0, math.inf, rate)
            return
        if not continued:
            record.launched[job] = begin
        self._begins[job] = begin
        done = self._resumed.get(job, 0.0) if self._resumed else 0.0
        if self.jobs.malleable[job] or self._shares or self._checkpoints:
            self._progress[job] = (done, begin, rate)
        if self.jobs.requests and self.jobs.requests_of(job):
            self._prepare_request(job)
        end = begin + self._seconds(done, self._work[job], rate)
        self._end_at(job, end + delays.end(job, len(nodes)) if delays else end)

    def resize(self, job: int, before: int, nodes: list[int]) -> bool:
        """Apply the resize at once, or at the first malleability point of the job when all new ranks have joined."""
        now = self._now
        self._request_resize(job, before, len(nodes))
        ready = self.cluster.on_from(nodes[before:], now)
        if self._delayed:
            ready += self.delays.expand(self._draw[job], len(nodes) - before)
        point = self._malleability_point(job, ready)
        if point <= now and not self.malleability_interval_s:
            return self._take_effect(job, nodes)
        self._pending[job] = nodes
        if point < math.inf:
            heappush(self._heap, (point, POINT, job))
        return False

    def deny(self, job: int, requested: int) -> None:
        """Record that the job does not get `requested` nodes."""
        self._resizes[self._pool[job]] += 1
        self.record.deny(job, self.scheduler.size_of(job), requested, self._now)

    def change_cores(self, job: int) -> None:
        """Continue the job with its new cores at once or, with a grain, at its next malleability point."""
        now, cores = self._now, self.record.cores
        changes = cores.differences(job, self.cluster, self.jobs.cores[job])
        cores.requested(job, self.scheduler.size_of(job), changes, now)
        if not self.overheads.grain_s or self._progress[job][1] >= now:  # or the job has not begun
            self._adopt_cores(job)
        elif job not in self._changing and (point := self._malleability_point(job, now)) < math.inf:
            self._changing[job] = point
            heappush(self._heap, (point, CORES, job))

    def reject(self, job: int, reason: str) -> None:
        """Record that `job` is rejected."""
        self.record.refuse(job, JobState.REJECTED, reason)
        self.arrivals.ended(job, JobState.REJECTED, self._now)

    def suspend(self, job: int) -> None:
        """Stop the rigid job now, and keep its work. What a launch or the end of the job had begun is lost."""
        done, rate = self._resumed.get(job, 0.0), self._rate(job, self.cluster.nodes_of(job))
        worked = self._after(done, max(0.0, self._now - self._begins[job]), rate)[0]
        self._resumed[job] = min(worked, self._work[job])
        if self.record.launched[job] > self._now:
            self.record.launched[job] = self._now
        self._forget(job)

    def cancel(self, job: int, reason: str) -> None:
        """End the job now."""
        self._cancelled[job] = reason
        self._end_at(job, self._now)

    # --------------------------------------------------------------------------------------------------------------

    def _request_resize(self, job: int, before: int, after: int) -> None:
        """Record that the policy decided a resize of `job` from `before` to `after` nodes."""
        self.record.resize_requested(job, before, after, self._now)
        self._draw[job] = self._resizes[self._pool[job]]
        self._resizes[self._pool[job]] += 1

    def _start_sharing(self, job: int, nodes: list[int]) -> bool:
        """Record the cores with which `job` starts on possibly shared nodes. Return whether the job waits for them."""
        self.record.cores.begin(job, self.cluster, self.jobs.cores[job])
        return self._in_use.start(job, nodes, begun=self._begun(job))

    def _begun(self, job: int) -> set[int]:
        """Return the owners on the nodes of the guest `job` that use their cores until a malleability point."""
        if not self.overheads.grain_s:
            return set()
        return {owner for owner in self.cluster.hosts(job) if self._progress[owner][1] < self._now}

    def _adopt_cores(self, job: int) -> None:
        """Continue the job with its new cores now, and begin the guests that waited for the other ones."""
        self.record.cores.adopted(job, self._now)
        self._continue(job, self.cluster.nodes_of(job), 0.0)
        self._begin(self._in_use.adopt(job))

    def _request(self, job: int) -> None:
        """Make the next request of the evolving `job`, and prepare the one after it."""
        _, number = self._next_requests[job]
        self._requested[job] = number + 1
        requested = self.jobs.requests[job][number].nodes
        self.record.request(job, requested, answered=self.scheduler.request(job, requested, self._now))
        self._prepare_request(job)

    def _prepare_request(self, job: int) -> None:
        """Compute the next request of the evolving `job`; a change of its rate moves the request."""
        self._next_requests[job] = at, _ = self._next_request(job)
        if at < math.inf:
            heappush(self._heap, (at, REQUEST, job))

    def _next_request(self, job: int) -> tuple[float, int]:
        """Return the instant of the next request of `job`, s, and its number. Infinite: there is none.

        With a grain, requests are made at malleability points. Of several requests at one point, only the last is made.
        """
        requests, number = self.jobs.requests[job], self._requested.get(job, 0)
        if number == len(requests):
            return math.inf, number
        share = requests[number].share
        if grain := self.overheads.grain_s:
            iterations = max(1, round(self.jobs.run_time[job] / grain))
            points = [request.point(iterations) for request in requests]
            number += points[number:].count(points[number]) - 1
            if points[number] == iterations:
                return math.inf, number
            share = points[number] / iterations
        done, since, rate = self._progress[job]
        return max(self._now, since + self._seconds(done, share * self.jobs.run_time[job], rate)), number

    def _begin(self, guests: list[int]) -> None:
        """Begin the work of `guests`, which have waited for their cores."""
        for job in guests:
            begin, rate = max(self._now, self._ready.pop(job)), self._progress[job][2]
            self.record.launched[job] = begin
            done = self._resumed.get(job, 0.0)
            self._progress[job] = (done, begin, rate)
            self._end_at(
                job, begin + self._seconds(done, self._work[job], rate) + self.delays.end(job, self.jobs.nodes[job])
            )

    def _malleability_point(self, job: int, ready: float) -> float:
        """Return the first malleability point of `job` at or after `ready`, s; infinite if the job ends before it.

        The first one is the beginning of its work: a program that is being launched accepts no resize.
        """
        if self.record.launched[job] > ready:  # NaN: a guest that waits for its cores
            ready = self.record.launched[job]
        if grain := self.overheads.grain_s:
            iterations = max(1, round(self.jobs.run_time[job] / grain))
            if iterations == 1:
                return math.inf
            done, since, rate = self._progress[job]
            step = self.jobs.run_time[job] / iterations
            number = math.floor(self._after(done, max(0.0, ready - since), rate)[0] / step + ROUNDING) + 1
            return max(ready, since + self._seconds(done, number * step, rate)) if number < iterations else math.inf
        if interval := self.malleability_interval_s:
            return next_multiple(interval, ready, origin=self.record.start[job], first=1)
        return ready

    def _take_effect(self, job: int, nodes: list[int]) -> bool:
        """Continue `job` on `nodes`. Return whether the resize is complete: not if nodes are still being released."""
        now, pause_s, release_s = self._now, 0.0, 0.0
        if self._delayed:
            row, draw = self.record.pending_row(job), self._draw[job]
            added = self.record.resizes.nodes_to[row] - self.record.resizes.nodes_from[row]
            release_s = self.delays.release(draw, job, added)
            pause_s = self.delays.reconfiguration(draw, job, added)
        begin = self._continue(job, nodes, pause_s)
        if release_s and len(nodes) < len(self.cluster.nodes_of(job)):
            self._releasing[job] = (now, begin)
            heappush(self._heap, (now + release_s, RELEASED, job))
            return False
        self.record.resize_applied(job, now, begin, begin)
        return True

    def _moldable_guests(self, job: int) -> dict[int, float]:
        """Return the moldable guests of `job`, and the factor of the interference on the rate of each."""
        if self.interference is None:
            return {}
        guests = (guest for guest in self.cluster.guests(job) if self.jobs.kind[guest] != Kind.MALLEABLE)
        return {guest: self.interference.factor(guest, self.jobs, self.cluster) for guest in guests}

    def _update_guests(self, guests: dict[int, float]) -> None:
        """Continue the moldable `guests` of an ended job: they keep their cores, but no longer share all nodes."""
        for job, before in guests.items():
            assert self.interference is not None
            factor = self.interference.factor(job, self.jobs, self.cluster)
            if factor != before:
                self._continue(job, self.cluster.nodes_of(job), 0.0, self._progress[job][2] / before * factor)

    def _continue(self, job: int, nodes: list[int], pause: float, rate: float | None = None) -> float:
        """Continue `job` after `pause` seconds at `rate`; None: the rate of its nodes. Return when it continues, s."""
        now = self._now
        if self._checkpoints:
            self._save(job)
        done, since, old = self._progress[job]
        done, writing_s = self._after(done, max(0.0, now - since), old)
        if writing_s:
            self._saved.setdefault(job, []).append((done, now + writing_s))
        begin = max(now, since) + writing_s + pause
        rate = self._rate(job, nodes) if rate is None else rate
        self._progress[job] = (done, begin, rate)
        if job in self._next_requests:
            self._prepare_request(job)
        end = begin + self._seconds(done, max(done, self._work[job]), rate)
        self._end_at(job, end + self.delays.end(job, len(nodes)) if self._delayed else end)
        return begin

    def _seconds(self, done: float, work: float, rate: float) -> float:
        """Return the time in which the work of a job grows from `done` to `work`, s."""
        return self._checkpoints.seconds(done, work, rate) if self._checkpoints else (work - done) / rate

    def _after(self, done: float, seconds: float, rate: float) -> tuple[float, float]:
        """Return the work `seconds` after it was `done`, and the time left of the checkpoint that is written, s."""
        return self._checkpoints.after(done, seconds, rate) if self._checkpoints else (done + seconds * rate, 0.0)

    def _save(self, job: int) -> None:
        """Note the last checkpoint of the running `job` since its rate changed."""
        assert self._checkpoints is not None
        if job not in self._progress:
            return
        done, since, rate = self._progress[job]
        if last := self._checkpoints.last(done, self._now - since, rate, self._work[job]):
            self._saved.setdefault(job, []).append((last[0], since + last[1]))

    def _rate(self, job: int, nodes: list[int]) -> float:
        share = 1.0
        if self._uneven or (self._shares and (self.cluster.loans or self._in_use.divided)):
            share = self.runtime_model.share(self._in_use.effective(job, nodes), self.jobs.cores[job])
        rate = self.jobs.rate(job, len(nodes), share)
        return rate * self.interference.factor(job, self.jobs, self.cluster) if self.interference else rate

    def _end_at(self, job: int, end: float) -> None:
        if end < math.inf:  # the end of a guest that waits for its cores is unknown
            self._ends[job] = end
            heappush(self._heap, (end, END, job))
