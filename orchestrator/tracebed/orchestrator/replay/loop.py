"""The scheduler in real time over a testbed.

The loop waits for events of the testbed or for the next due time (of a submission, a call of the policy, a time limit).
It writes the events to the journal and passes them to the scheduler. It writes the decisions to the journal before it
sends them. Due times are absolute times of the monotonic clock, so delays do not add up.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tracebed import bounds
from tracebed.benchmarks.clock import Clock
from tracebed.cpus import format_cpus
from tracebed.errors import TestbedError
from tracebed.orchestrator.replay.journal import Entry, Journal
from tracebed.orchestrator.replay.pace import CLOCKS, Pace
from tracebed.orchestrator.replay.programs import program_of
from tracebed.orchestrator.replay.ranks import Ranks, RunningJob
from tracebed.orchestrator.replay.witness import LoopWatch, Witness
from tracebed.orchestrator.scheduling.cluster import Cluster
from tracebed.orchestrator.scheduling.jobs import Jobs
from tracebed.orchestrator.scheduling.limits import OverLimit
from tracebed.orchestrator.scheduling.priorities import FCFS
from tracebed.orchestrator.scheduling.priorities import NAMES as PRIORITY_NAMES
from tracebed.orchestrator.scheduling.record import Record, cut_short
from tracebed.orchestrator.scheduling.scheduler import Scheduler
from tracebed.orchestrator.scheduling.state import Policy
from tracebed.orchestrator.testbeds.base import EMULATED_RATE, Event, Testbed
from tracebed.orchestrator.testbeds.nodes import Inventory
from tracebed.registry import one_of
from tracebed.states import JobState

BALANCES = ("static", "dynamic")
"""How the work of a job is divided among its ranks: in equal shares, or in chunks from a common pool."""
LEAD_S = 0.2
"""Wall time between the start of the clock and the first submission."""
LOOK_S = 0.2
"""Longest time between two checks for signals, wall s."""
OUTLIVE_S = 10.0
"""Time after which ranks are killed that outlive the leader of their job, wall s. Ranks usually end within ms."""
CALIBRATE_S = 5.0
"""Time in which agents must answer the request for the last samples, wall s."""
SILENCE = 10.0
"""Number of heartbeats that an agent may miss before it counts as lost."""


@dataclass
class Options:
    """The options of a replay.

    Attributes:
        speed: trace seconds per wall second.
        interval_s: scheduling interval, trace seconds: the policy is called only at its multiples. 0: no interval.
        over_limit: treatment of jobs that exceed their time limit. `KILL` ends a job at its limit, computed with the
            nominal speed of the job. All other values affect only the end times that the scheduler expects.
        balance: distribution of work over the ranks of a job, `static` or `dynamic`.
        priority: order of the queue, a name of `priorities`.
        clock: `wall` or `steady` (see `pace.CLOCKS`).
        proposed_duty: the duty that a calibration proposes, for nodes without a duty; None: `DEFAULT_DUTY`.
    """

    speed: float = 1.0
    interval_s: float = 0.0
    over_limit: OverLimit = OverLimit.EXTEND
    balance: str = "static"
    priority: str = FCFS
    clock: str = "wall"
    proposed_duty: float | None = None

    def __post_init__(self) -> None:
        """Raise InputError if a name is unknown or a number is out of its range (`tracebed.bounds`)."""
        bounds.check("speed", self.speed, bounds.MIN_SPEED, bounds.MAX_SPEED)
        bounds.check("interval_s", self.interval_s, 0, bounds.MAX_SECONDS)
        one_of("balance", self.balance, BALANCES)
        one_of("priority", self.priority, PRIORITY_NAMES)
        one_of("clock", self.clock, CLOCKS)


class Replayer:
    """The executor of a scheduler on a testbed that has been started.

    Args:
        jobs: the workload.
        testbed: the nodes.
        inventory: the description of the nodes.
        policy: the scheduling policy.
        options: the options of the replay.
        journal: the journal of the replay.
        clock: the clock of the replay and of its jobs.

    Attributes:
        pace: how fast the clock runs; set by `run`.
    """

    pace: Pace

    def __init__(
        self,
        jobs: Jobs,
        testbed: Testbed,
        inventory: Inventory,
        policy: Policy,
        options: Options,
        journal: Journal,
        clock: Clock | None = None,
    ) -> None:
        """Prepare the replay without starting it."""
        self.jobs = jobs
        self.testbed = testbed
        self.inventory = inventory
        self.options = options
        self.journal = journal
        self.clock = clock or Clock()
        self.cluster = Cluster([node.cores for node in testbed.nodes], [node.sockets for node in testbed.nodes])
        self.record = Record(jobs)
        self.scheduler = Scheduler(
            jobs, self.cluster, policy, self, interval_s=options.interval_s, priority=options.priority
        )
        self.witness = Witness(jobs, testbed.nodes, options.speed)
        self.interrupted: str | None = None
        self.rate: float | None = None
        """Units per second of a core by which the work of jobs is sized; None: the rate that the testbed measured."""
        self._watch = LoopWatch(inventory.heartbeat_s)
        self._numbers = {name: number for number, name in enumerate(jobs.ids)}
        self._ranks = Ranks(jobs, testbed, self.cluster, self.clock, options.proposed_duty)
        self._entries: list[Entry] = []
        self._round = 0
        self._ended = 0
        self._now = 0.0
        self._zero = 0.0  # time of trace time 0, by the clock
        self._heard = [0.0] * len(testbed.nodes)
        self._done: list[tuple[int, str]] = []  # of this round: (job, "ended" or "resized")

    def interrupt(self, reason: str) -> None:
        """End the loop within `LOOK_S`. This method may be called from a signal handler."""
        self.interrupted = self.interrupted or reason

    def run(self, on_progress: Callable[[int], None] | None = None) -> None:
        """Replay until all jobs have ended or the replay is interrupted.

        Args:
            on_progress: called periodically with the number of jobs that have ended so far.

        Raises:
            TestbedError: a node was lost. The record has everything before the loss.
        """
        submit, count = self.jobs.submit, len(self.jobs)
        self.pace = Pace(self.clock, self.inventory.grain_s)
        self._zero = self.clock.now() + LEAD_S - submit[0] / self.options.speed
        self._now = self._trace(self.clock.now())
        self._heard = [time.monotonic() + LEAD_S] * len(self._heard)
        for node in range(len(self._heard)):
            self.testbed.send(node, {"type": "sample", "calibrate": False})
        next_job, call, wall = 0, math.inf, time.monotonic()
        while (next_job < count or self._ranks.running or call < math.inf) and not self.interrupted:
            due = min(submit[next_job] if next_job < count else math.inf, call, self._next_limit())
            before = wall
            wake = min(self._monotonic(due), before + (0.0 if self._done else LOOK_S))
            events = self.testbed.receive(wake)
            wall = time.monotonic()
            # A steady clock may stand still. No two rounds have the same time, so that times give the order of rounds.
            self._now = now = max(math.nextafter(self._now, math.inf), self._trace(self.clock.now()))
            submitted = []
            while next_job < count and submit[next_job] <= now:
                submitted.append(next_job)
                next_job += 1
            if (times := self.pace.note()) is not None:  # may end the replay: before any event of the round counts
                self._note("clock", None, **times)
            self._journal_events(events, submitted)
            self._note_loop(max(wake, before), wall)
            for event in events:
                self._hear(event)
            self._check_silence(wall)
            self._end_orphans(wall)
            self._enforce_limits(now)
            happened = self._take_in(submitted)
            if happened:
                self.scheduler.serve()
                call = min(call, self.scheduler.due(now))
            if call <= now:
                self._note("call")
                call = self.scheduler.decide(now)
            self._send()
            if on_progress:
                on_progress(self._ended)
        self._note_loop(wall, wall, last=True)
        self._calibrate_again()

    def _calibrate_again(self) -> None:
        """Measure the speed of the cores once more, after the last job, and take the last samples."""
        asked = set() if self.interrupted else self.witness.sampled
        for node in asked:
            self.testbed.send(node, {"type": "sample", "calibrate": True})
        until = time.monotonic() + CALIBRATE_S
        while asked and not self.interrupted and time.monotonic() < until:
            events = self.testbed.receive(min(until, time.monotonic() + LOOK_S))
            self._now = max(self._now, self._trace(self.clock.now()))
            self._journal_events(events, [])
            asked -= {event.node for event in events if event.message["type"] in ("calibrated", "error", "lost")}
        self._send()

    def close(self) -> float:
        """Record the jobs that have not ended, and return the time in trace s. Call it after `testbed.stop`."""
        self._now = max(self._now, self._trace(self.clock.now()))
        cut_short(self.record, self.cluster, self._ranks.running, self._now, self.interrupted)
        return self._now

    # -- events ----------------------------------------------------------------------------------------------------

    def _journal_events(self, events: Sequence[Event], submitted: Sequence[int]) -> None:
        """Write the events of this round to the journal before they are processed."""
        entries = list(filter(None, map(self._entry, events)))
        entries += [Entry(self._round, self._now, "submit", self.jobs.ids[job], None, {}) for job in submitted]
        self._write(entries)

    def _entry(self, event: Event) -> Entry | None:
        """Return the journal entry of an event; None: it needs no entry. Of a heartbeat, the sample is kept."""
        message = event.message
        kind, data = message["type"], {key: value for key, value in message.items() if key not in ("type", "job")}
        if kind == "heartbeat" and "sample" in data:
            kind, data = "sample", {"time": data["time"], "late_s": data.get("late_s", 0.0), **data["sample"]}
        if kind in ("heartbeat", "progress"):
            return None
        return Entry(self._round, self._now, kind, message.get("job"), self.testbed.nodes[event.node].name, data)

    def _note_loop(self, due: float, now: float, *, last: bool = False) -> None:
        """Add a sample of this loop to the journal if one is due."""
        if sample := self._watch.woke(due, now, last=last):
            self._note("loop", None, **sample)

    def _write(self, entries: Sequence[Entry]) -> None:
        """Write entries to the journal, and show them to the witness."""
        self.journal.write(entries)
        for entry in entries:
            self.witness.take_in(entry)

    def _hear(self, event: Event) -> None:
        """Process one message of the agent of a node."""
        self._heard[event.node] = event.time
        message = event.message
        kind = message["type"]
        name = self.testbed.nodes[event.node].name
        if kind == "lost":
            raise TestbedError(f"its agent {message['reason']}", where=f"node {name}", hint="the run so far is kept")
        job = self._numbers.get(message.get("job", ""))
        active = self._ranks.running.get(job) if job is not None else None
        if kind == "error":
            if job is None:
                raise TestbedError(message["what"], where=f"node {name}", hint="the run so far is kept")
            return  # the job ended while a message to it was in transit; the journal has the error
        if job is None or active is None:
            return
        if kind == "listening":
            active.address = message["address"]
            self._ranks.launch(job)
        elif kind == "started":
            active.started = True
            launched = min(self._now, self._trace(self.clock.at(event.time)))  # the job may end in this round
            self.record.launched[job] = launched
            self._note("launched", job, at=launched)
            if active.pending:
                self._ranks.tell_members(job)
        elif kind == "resized" and "cpus" in message:
            active.leaving.pop(event.node, None)
            self._ranks.change_masks(job)
            self._ranks.try_held()
        elif kind == "resized" and message["request"] == active.request:
            active.applied = (message["decided"], message["applied"])
            self._resize_done(job, active)
        elif kind == "ended":
            self._rank_ended(job, active, event.node, message)

    def _rank_ended(self, job: int, active: RunningJob, node: int, message: Mapping[str, Any]) -> None:
        active.alive.pop(node, None)
        active.leaving.pop(node, None)
        active.dropped.discard(node)
        state = message["state"]
        if message["leader"]:
            if active.outcome is None or state == "completed" or active.outcome[0] == state == "failed":
                active.outcome = (state, message["reason"] or "")
            if state == "completed":
                active.orphaned = time.monotonic()
            else:
                self._kill_ranks(job, active, "the leader has ended")
        elif state != "completed" and not active.outcome and active.awaits(node):
            # The leader may still be waiting for this rank to join, and would wait forever.
            active.outcome = ("failed", f"on {message['rank']}: {message['reason']}")
            self._kill_ranks(job, active, active.outcome[1])
        if not active.alive:
            self._done.append((job, "ended"))
        elif active.applied is not None:
            self._resize_done(job, active)
        self._ranks.try_held()

    def _resize_done(self, job: int, active: RunningJob) -> None:
        """Complete the resize of a job if the leader has applied it and the ranks on the released nodes have ended."""
        if active.pending and active.applied is not None and not active.dropped:
            active.pending = False
            self._done.append((job, "resized"))

    def _take_in(self, submitted: Sequence[int]) -> bool:
        """Pass the ends, resizes and submissions of this round to the scheduler. Return whether there were any."""
        now = self._now
        ended = sorted({job for job, what in self._done if what == "ended"})
        resized = sorted(job for job, what in self._done if what == "resized" and job not in ended)
        self._done.clear()
        for job in ended:
            state, reason = self._ranks.forget(job).outcome or ("failed", "its processes ended without a message")
            self._note("end", job, state=state, reason=reason)
            self.record.finish(job, now, JobState(state), reason)
            self.scheduler.end(job, now)
            self._ended += 1
        for job in resized:
            active = self._ranks.running[job]
            decided, applied = map(self._trace, active.applied) if active.applied else (now, now)
            active.applied = None
            self._note("effect", job, decided=decided, applied=applied)
            self.record.resize_applied(job, decided, applied, now)
            self.scheduler.resized(job, now)
        for job in submitted:
            self.record.submit[job] = now
            self.scheduler.submit(job, now)
        return bool(ended or resized or submitted)

    def _check_silence(self, wall: float) -> None:
        """Raise TestbedError if an agent has been silent for too long."""
        patience = max(SILENCE, SILENCE * self.inventory.heartbeat_s)
        quietest = min(range(len(self._heard)), key=self._heard.__getitem__)
        if wall - self._heard[quietest] > patience:
            name, what = self.testbed.nodes[quietest].name, f"its agent has been silent for {patience:g} s"
            self._write([Entry(self._round, self._now, "lost", None, name, {"reason": what})])
            raise TestbedError(what, where=f"node {name}", hint="the run so far is kept")

    def _end_orphans(self, wall: float) -> None:
        """Kill the ranks of ended jobs that have not ended after `OUTLIVE_S`: a job holds its nodes until they end."""
        for job, active in self._ranks.running.items():
            if active.orphaned is not None and wall - active.orphaned > OUTLIVE_S:
                active.orphaned = None
                self._kill_ranks(job, active, "the leader has ended")

    # -- time ------------------------------------------------------------------------------------------------------

    def _monotonic(self, trace: float) -> float:
        return self.clock.monotonic(self._zero + trace / self.options.speed)

    def _trace(self, time: float) -> float:
        return (time - self._zero) * self.options.speed

    def _next_limit(self) -> float:
        if self.jobs.over_limit is not OverLimit.KILL:
            return math.inf
        ends = (self.scheduler.limit_end(job, self._now) for job in self._ranks.running if self._limited(job))
        return min(ends, default=math.inf)

    def _enforce_limits(self, now: float) -> None:
        if self.jobs.over_limit is not OverLimit.KILL:
            return
        for job, active in self._ranks.running.items():
            if self._limited(job) and self.scheduler.limit_end(job, now) <= now:
                active.outcome = ("killed", "time limit")
                self._kill_ranks(job, active, "time limit")

    def _limited(self, job: int) -> bool:
        """Return whether the running `job` can still be killed at its limit: not if the limit equals its run time."""
        return self._ranks.running[job].outcome is None and self.jobs.limit[job] != self.jobs.run_time[job]

    # -- the executor of the scheduler -----------------------------------------------------------------------------

    def start(self, job: int, nodes: list[int]) -> None:
        """Launch the leader. The other ranks are launched once the leader is listening."""
        self.record.start[job] = self._now
        cores = self._ranks.cores(job, nodes)
        program = program_of(
            self.jobs,
            job,
            EMULATED_RATE if self.testbed.nodes[nodes[0]].emulated else self.rate or self.testbed.units_per_core_second,
            speed=self.options.speed,
            grain_s=self.inventory.grain_s,
            balance=self.options.balance,
        )
        active = RunningJob(nodes, program, secrets.token_hex(16), cores, to_launch=list(nodes))
        self._ranks.running[job] = active
        self._note("start", job, nodes=self._ranks.names(nodes), **self._of_shared(job))
        self._ranks.launch(job)

    def resize(self, job: int, before: int, nodes: list[int]) -> bool:
        """Launch ranks on the new nodes, and send the new members of the job to the leader."""
        self.record.resize_asked(job, before, len(nodes), self._now)
        active = self._ranks.running[job]
        old, active.nodes = active.nodes, nodes
        active.request += 1
        active.pending = True
        active.dropped = set(old) - set(nodes)
        self._note("resize", job, nodes=self._ranks.names(nodes), request=active.request)
        active.cores |= self._ranks.cores(job, nodes)
        active.to_launch += [node for node in nodes if node not in old]
        self._ranks.launch(job)
        if active.started:
            self._ranks.tell_members(job)
        return False

    def change_cores(self, job: int) -> None:
        """Change the masks of the ranks of the job, each once no other job uses these cores."""
        active = self._ranks.running[job]
        active.cores |= self._ranks.cores(job, active.nodes)
        self._note("cores", job, **self._of_shared(job))
        self._ranks.change_masks(job)

    def reject(self, job: int, reason: str) -> None:
        """Record that the job is rejected."""
        self._note("reject", job, reason=reason)
        self.record.refuse(job, JobState.REJECTED, reason)

    def cancel(self, job: int, reason: str) -> None:
        """End all processes of the job."""
        active = self._ranks.running[job]
        self._note("cancel", job, reason=reason)
        active.outcome = active.outcome or ("cancelled", reason)
        self._kill_ranks(job, active, reason)

    # -- messages --------------------------------------------------------------------------------------------------

    def _of_shared(self, job: int) -> dict[str, dict[str, str]]:
        """Return the journal fields for the cores of the job on its shared nodes; empty if it shares no nodes."""
        shared = [node for node in self.cluster.nodes_of(job) if node in self.cluster.loans]
        parts = {self.testbed.nodes[node].name: format_cpus(self.cluster.part(job, node)) for node in shared}
        return {"cores": parts} if parts else {}

    def _kill_ranks(self, job: int, active: RunningJob, reason: str) -> None:
        self._note("kill", job, reason=reason)
        self._ranks.kill(job, reason)
        if not active.alive:  # the launch of its first rank was still held back
            self._done.append((job, "ended"))

    def _send(self) -> None:
        """Write the decisions of this round to the journal, then send them."""
        self._write(self._entries)
        self._entries.clear()
        self._ranks.send()
        self._round += 1

    def _note(self, kind: str, job: int | None = None, **data: Any) -> None:
        name = None if job is None else self.jobs.ids[job]
        self._entries.append(Entry(self._round, self._now, kind, name, None, data))
