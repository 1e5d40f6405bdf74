"""The scheduler in real time over a testbed.

The loop waits for events of the testbed or for the next due time (of a submission, a call of the policy, a time limit).
It writes the events to the journal and passes them to the scheduler. It writes the decisions to the journal before it
sends them. Due times are absolute times of the monotonic clock, so delays do not add up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tracebed.benchmarks.clock import Clock
from tracebed.benchmarks.program import WORK_S
from tracebed.ground import system
from tracebed.ground.states import JobState
from tracebed.machine.pools import Pools
from tracebed.orchestrator.replay.event_handler import EventHandler
from tracebed.orchestrator.replay.executor import Ranks, ReplayExecutor, Rounds
from tracebed.orchestrator.replay.journal import Entry, Journal
from tracebed.orchestrator.replay.monitor import LoopWatch, Monitor
from tracebed.orchestrator.replay.options import Options
from tracebed.orchestrator.replay.outages import Outages, lost
from tracebed.orchestrator.replay.pace import Pace, Timeline
from tracebed.orchestrator.replay.sleeping import Sleepers
from tracebed.orchestrator.scheduling.dependencies import Released
from tracebed.orchestrator.scheduling.jobs import Jobs
from tracebed.orchestrator.scheduling.limits import OverLimit
from tracebed.orchestrator.scheduling.pools import scheduler_on
from tracebed.orchestrator.scheduling.record import ScheduleRecord, cut_short
from tracebed.orchestrator.scheduling.sleeping import Sleeping
from tracebed.orchestrator.scheduling.state import Policy
from tracebed.orchestrator.scheduling.windows import Watched, watched_cluster
from tracebed.orchestrator.setup import Setup
from tracebed.orchestrator.testbeds.base import Event, Testbed
from tracebed.orchestrator.testbeds.nodes import Inventory

LEAD_S = 0.2  # wall time between the start of the clock and the first submission
LOOK_S = 0.2  # longest time between two checks for signals, wall s
# Time between two records of the facts of all agents after some have returned, wall s per node. A record takes some 2
# microseconds and 140 bytes per node, too much for each of thousands of agents that return one by one.
AGENTS_S = 1e-4
CALIBRATE_S = 5.0  # time in which agents must answer the request for the last samples, wall s

# Largest number of samples of nodes that are recorded in the planned duration of a replay. Each takes about 150 bytes
# of the journal and 80 bytes of memory. Heartbeats may be more frequent.
SAMPLES = 10_000_000


class SampleFilter:
    """The samples of nodes that a replay of `planned_s` (wall s) records: all, unless these are more than `SAMPLES`."""

    def __init__(self, nodes: int, heartbeat_s: float, planned_s: float) -> None:
        period_s = nodes * planned_s / SAMPLES
        self.period_s = period_s if period_s > heartbeat_s else 0.0  # between two samples of a node; 0: keep all
        self._due = [-math.inf] * nodes
        self._late_s = [0.0] * nodes

    def late_s(self, node: int, at: float, late_s: float) -> float | None:
        """Return the largest lateness of a heartbeat of `node` since its last recorded sample; None: none is due."""
        if not self.period_s:
            return late_s
        late_s = self._late_s[node] = max(self._late_s[node], late_s)
        if at < self._due[node]:
            return None
        self._due[node], self._late_s[node] = at + self.period_s, 0.0
        return late_s


class Replayer:
    """A replay on a testbed that has been started.

    Without a `secret`, the keys of connections are of a random one. Without `pools`, all nodes serve all jobs. Without
    `sleeping`, no node is switched off.
    """

    pace: Pace

    def __init__(
        self,
        jobs: Jobs,
        testbed: Testbed,
        inventory: Inventory,
        policy: Policy,
        setup: Setup,
        options: Options,
        journal: Journal,
        clock: Clock | None = None,
        secret: bytes | None = None,
        pools: Pools | None = None,
        sleeping: Sleeping | None = None,
    ) -> None:
        self.jobs = jobs
        self.testbed = testbed
        self.inventory = inventory
        self.options = options
        self.journal = journal
        self.clock = clock or Clock()
        nodes, scheduling, speed = testbed.nodes, setup.scheduling, setup.timing.speed
        self.number_of = {node.name: number for number, node in enumerate(nodes)}
        cores, sockets = [node.cores for node in nodes], [node.sockets for node in nodes]
        self.cluster = watched_cluster(cores, sockets, scheduling.placed, jobs, sleeping)
        self.record = ScheduleRecord(jobs)
        self.monitor = Monitor(jobs, nodes, speed)
        self.rounds = Rounds(journal, self.monitor, jobs.ids, [node.name for node in nodes])
        self.timeline = Timeline(self.clock, speed)
        self._samples = SampleFilter(len(nodes), inventory.heartbeat_s, (jobs.submit[-1] - jobs.submit[0]) / speed)
        work_s = max(WORK_S, inventory.heartbeat_s, self._samples.period_s)
        self.ranks = Ranks(jobs, testbed, self.cluster, self.clock, options.proposed_duty, work_s)
        key = secret or system.token_bytes(32)
        self.executor = ReplayExecutor(
            jobs, testbed, inventory, speed, options, self.ranks, self.record, self.rounds, key
        )
        self.event_handler = EventHandler(self.executor, self.timeline)
        self.outages = Outages(testbed, inventory.heartbeat_s, options.on_node_failure, self.ranks.not_on)
        self.arrivals = self.executor.arrivals
        intervals = {"interval_s": scheduling.interval_s, "priority": scheduling.priority}
        self.scheduler = scheduler_on(pools, jobs, self.cluster, policy, self.executor, **intervals)
        self.sleepers: Sleepers | None = None
        if isinstance(self.cluster, Watched) and sleeping:
            self.sleepers = Sleepers(
                testbed, self.ranks, self.record, self.rounds, self.scheduler, self.cluster, sleeping
            )
        self.interrupted: str | None = None
        self._kills = jobs.over_limit is OverLimit.KILL and jobs.limit != jobs.run_time
        self._watch = LoopWatch(inventory.heartbeat_s)
        self._call = math.inf  # time of the next call of the policy, trace s
        self._ended = 0
        self._returned = False  # whether an agent has returned since the facts of the agents were recorded
        self._agents_due = 0.0  # time from which they are recorded again, monotonic
        self._wall = 0.0  # monotonic time of the current round

    def interrupt(self, reason: str) -> None:
        """End the loop within `LOOK_S`. This method may be called from a signal handler."""
        self.interrupted = self.interrupted or reason

    def run(
        self, on_progress: Callable[[int], None] | None = None, *, begin: Callable[[Replayer], None] | None = None
    ) -> None:
        """Replay until all jobs have ended or the replay is interrupted.

        `on_progress` is called periodically with the number of ended jobs. `begin` starts the clock of a replay that is
        resumed. A TestbedError means that the loss of a node aborts the replay; the record has everything before the
        loss.
        """
        self.pace = Pace(self.clock, self.inventory.grain_s)
        self._wall = system.monotonic()
        self.outages.begin(self._wall + LEAD_S)
        (begin or Replayer._begin)(self)
        while not self._is_done() and not self.interrupted:
            due = min(self.arrivals.next, self._call, self._next_limit())
            if self.sleepers is not None:
                due = min(due, self.sleepers.due)
            wake = min(self.timeline.monotonic(due), self._wall + (0.0 if self._has_job_events() else LOOK_S))
            self.play(self.testbed.receive(wake), wake)
            if on_progress:
                on_progress(self._ended)
        self._note_loop(self._wall, self._wall, last=True)
        self._calibrate_again()

    def _begin(self) -> None:
        """Start the clock, and take the first samples."""
        self.timeline.start_at(self.jobs.submit[0], LEAD_S)
        boot = system.current().boot_id()
        self.journal.add_facts({"zero": self.timeline.zero, "boot": boot, "agents": self.testbed.agents})
        self.rounds.now = self.timeline.now()
        for node in self._available_nodes():
            self.testbed.send(node, {"type": "sample", "calibrate": False})
        if absent := [
            lost(self.number_of[name], f"did not start: {reason}") for name, reason in self.testbed.out.items()
        ]:
            self.play(absent, self._wall)

    def play(self, events: Sequence[Event], due: float, pause: Mapping[str, Any] | None = None) -> None:
        """Execute a round: process `events` and everything that is due, decide, and send the decisions.

        The round was to begin at `due` (monotonic s) at the latest. `pause` is the data of the journal entry of a pause
        that ends with this round (`Resumption`). The ranks that were held continue when the entry is written.
        """
        before, self._wall = self._wall, system.monotonic()
        self.rounds.advance(self.timeline.now())
        if pause is not None:
            self.rounds.write([self.rounds.entry("pause", None, None, dict(pause))])
            self.record.paused(pause)
            for name, left_out_s in pause["left_out"].items():
                self.testbed.send(self.number_of[name], {"type": "continue", "left_out_s": left_out_s})
        submitted = self.arrivals.submissions(self.rounds.now) if self.arrivals.next <= self.rounds.now else []
        if (times := self.pace.note()) is not None:  # may end the replay: before any event of the round counts
            self.rounds.note("clock", None, **times)
        self._journal_events(events, submitted)
        self._note_loop(max(due, before), self._wall)
        self.handle(events)
        self.outages.check_silence(self._wall)
        self.event_handler.end_overdue(self._wall)
        self.decide(submitted)
        self._send()
        for event in events:
            self._returned |= event.message["type"] == "back"
        if self._returned and self._wall >= self._agents_due:
            self._returned, self._agents_due = False, self._wall + AGENTS_S * len(self.testbed.nodes)
            self.journal.add_facts({"agents": self.testbed.agents})

    def _is_done(self) -> bool:
        """Return whether the replay is complete. Jobs that wait for lost nodes may interrupt the replay instead."""
        active = self.arrivals.next < math.inf or bool(self.ranks.running)
        if active and self.sleepers is not None:
            self.sleepers.note_progress()
        if active or self._call < math.inf:  # most rounds
            self.outages.note_progress()
            return False
        waiting = self.scheduler.waiting
        if waiting and self.sleepers is not None and self.sleepers.changing:
            return False
        if (reason := self.outages.stuck(waiting)) is not None:
            self.interrupt(reason)
        return not (waiting and self.outages.lost)

    def _available_nodes(self) -> list[int]:
        """Return the nodes that are on, and not lost."""
        out = self.outages.lost.keys() | self.ranks.not_on
        return [node for node in range(len(self.testbed.nodes)) if node not in out]

    def _calibrate_again(self) -> None:
        """Measure the speed of the cores once more, after the last job, and take the last samples."""
        self._samples.period_s = 0.0  # the last samples are recorded
        pending = set() if self.interrupted else self.monitor.sampled & set(self._available_nodes())
        for node in pending:
            self.testbed.send(node, {"type": "sample", "calibrate": True})
        until = system.monotonic() + CALIBRATE_S
        while pending and not self.interrupted and system.monotonic() < until:
            events = self.testbed.receive(min(until, system.monotonic() + LOOK_S))
            self.rounds.now = max(self.rounds.now, self.timeline.now())
            self._journal_events(events, [])
            pending -= {event.node for event in events if event.message["type"] in ("calibrated", "error", "lost")}
        self._send()

    def close(self) -> float:
        """Record the jobs that have not ended, and return the time in trace s. Call it after `testbed.stop`."""
        self.rounds.now = max(self.rounds.now, self.timeline.now())
        self.rounds.flush()
        cut_short(self.record, self.cluster, self.ranks.running, self.rounds.now, self.interrupted)
        return self.rounds.now

    # -- a round ---------------------------------------------------------------------------------------------------

    def _journal_events(self, events: Sequence[Event], submitted: Sequence[int]) -> None:
        """Write the events of this round to the journal before they are processed."""
        entries = [entry for event in events if (entry := self._entry(event)) is not None]
        entries += [self.rounds.entry("submit", job, None, {}) for job in submitted]
        self.rounds.write(entries)

    def _entry(self, event: Event) -> Entry | None:
        """Return the journal entry of an event; None: it needs no entry. A heartbeat has one if a sample is due."""
        message = event.message
        kind, data = message["type"], {key: value for key, value in message.items() if key not in ("type", "job")}
        if kind == "heartbeat" and "sample" in data:
            late_s = self._samples.late_s(event.node, event.time, data.get("late_s", 0.0))
            if late_s is None:
                return None
            kind, data = "sample", {"time": data["time"], "late_s": late_s, **data["sample"]}
        if kind in ("heartbeat", "progress"):
            return None
        return self.rounds.entry(kind, message.get("job"), event.node, data)

    def _note_loop(self, due: float, now: float, *, last: bool = False) -> None:
        """Add a sample of this loop to the journal if one is due."""
        if sample := self._watch.sample(due, now, last=last):
            self.rounds.note("loop", None, **sample)

    def handle(self, events: Sequence[Event]) -> None:
        """Process the messages of agents. Raises TestbedError if the loss of a node aborts the replay."""
        for event in events:
            if self.sleepers is None or not self.sleepers.handle(event):
                self.outages.handle(event)
                self.event_handler.handle(event)

    def decide(self, submitted: Sequence[int]) -> None:
        """Pass the events of this round to the scheduler, and call the policy while it is due."""
        now = self.rounds.now
        self._enforce_limits(now)
        if self._apply_events(submitted):
            self.scheduler.serve()
            self._call = min(self._call, self.scheduler.due(now))
        while self._call <= now:
            self.rounds.note("call")
            self._call = self.scheduler.decide(now)
        if self.sleepers is not None:
            self.sleepers.switch_off(now)

    def _has_job_events(self) -> bool:
        """Return whether an end, a completed resize or a request of a job has not been passed to the scheduler."""
        return bool(self.ranks.ended or self.ranks.resized or self.ranks.requested)

    def _apply_events(self, submitted: Sequence[int]) -> bool:
        """Pass the events of this round to the scheduler, in the order of `redecide`; return whether there are any."""
        now, ranks = self.rounds.now, self.ranks
        changed = self.outages.apply_changes(self.scheduler, self.event_handler, self.record, self.rounds)
        if self.sleepers is not None:
            changed |= self.sleepers.complete(now)
        due = self.arrivals.next if self.sleepers is None else min(self.arrivals.next, self.sleepers.cluster.next)
        if not (changed or submitted or self._has_job_events() or due <= now):  # most rounds
            return False
        ended, resized = sorted(ranks.ended), sorted(ranks.resized - ranks.ended)
        requested = sorted((job, nodes) for job, nodes in ranks.requested.items() if job not in ranks.ended)
        for events in (ranks.ended, ranks.resized, ranks.requested):
            events.clear()
        for job in ended:
            self._end(job)
        for job in resized:
            active = ranks.running[job]
            decided, applied = self.record.within_resize(job, *(active.applied or (now, now)), now)
            active.applied, measured, active.measured = None, active.measured, {}
            fields = {"measured": measured} if measured else {}
            self.rounds.note("effect", job, decided=decided, applied=applied, **fields)
            self.record.resize_applied(job, decided, applied, now, measured)
            self.scheduler.resized(job, now)
        for job, nodes in requested:
            self.rounds.note("request", job, nodes=nodes)
            self.record.request(job, nodes, answered=self.scheduler.request(job, nodes, now))
        if self.sleepers is not None:
            changed |= self.sleepers.follow_windows(now)
        for job in submitted:
            self.record.submit[job] = now
            if self.arrivals.submitted(job, now):
                self.scheduler.submit(job, now)
            else:
                self.rounds.note("hold", job)
                self.record.held.add(job)
                self.scheduler.hold(job, now)
        released = [*map(self._release, self.arrivals.released(now))]
        return bool(changed or ended or resized or requested or submitted or released)

    def _release(self, released: Released) -> None:
        """Pass a job that waits for no other job any more to the scheduler, unless it can never start."""
        (job, never), now = released, self.rounds.now
        if never:
            self.rounds.note("withdraw", job, reason=never)
            self.record.refuse(job, JobState.CANCELLED, never)
            self.arrivals.ended(job, JobState.CANCELLED, now)
        else:
            self.rounds.note("eligible", job)
            self.record.held.remove(job)
            self.scheduler.submit(job, now)

    def _end(self, job: int) -> None:
        """Pass the end of a job to the scheduler. A job that lost a node may return to the queue."""
        state, reason = self.ranks.forget(job).outcome or ("failed", "its processes ended without a message")
        now = self.rounds.now
        if state == "requeued":
            self.rounds.note("requeue", job, reason=reason)
            self.record.requeue(job)
            self.scheduler.requeue(job, now)
            return
        checksum = self.record.checksum[job]
        fields = {"checksum": checksum} if checksum else {}
        self.rounds.note("end", job, state=state, reason=reason, **fields)
        self.record.finish(job, now, JobState(state), reason)
        self.arrivals.ended(job, JobState(state), now)
        self.scheduler.end(job, now)
        self._ended += 1

    def _send(self) -> None:
        """Write the decisions of this round to the journal, then send them."""
        self.rounds.end()
        self.ranks.send()
        if self.sleepers is not None:
            self.sleepers.send()
        self.rounds.next()

    # -- time ------------------------------------------------------------------------------------------------------

    def _next_limit(self) -> float:
        """Return the earliest end of a limit, trace s. No limit ends before the expected end of its job."""
        found = math.inf
        for end, job in self.scheduler.expected_ends if self._kills else ():
            if end >= found:
                break
            if self._limited(job):
                found = min(found, self.scheduler.limit_end(job, self.rounds.now))
        return found

    def _enforce_limits(self, now: float) -> None:
        if not self._kills or not (passed := self.scheduler.overdue(now)):
            return
        due = {job for job in passed if self._limited(job) and self.scheduler.limit_end(job, now) <= now}
        for job in due if len(due) < 2 else [job for job in self.ranks.running if job in due]:  # in the order of start
            self.ranks.running[job].outcome = ("killed", "time limit")
            self.executor.kill(job, "time limit")

    def _limited(self, job: int) -> bool:
        """Return whether `job` runs and can be killed at its limit: not if the limit equals its run time."""
        active = self.ranks.running.get(job)
        return active is not None and active.outcome is None and self.jobs.limit[job] != self.jobs.run_time[job]
