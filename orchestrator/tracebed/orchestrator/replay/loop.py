"""The scheduler in real time over a testbed.

The loop waits for events of the testbed, or for the next instant at which something is due (a submission, a tick of
the policy, a time limit). It writes what happened to the journal, passes it to the scheduler, writes the decisions to
the journal, and only then sends them. Due instants are absolute on the monotonic clock, so delays do not add up.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tracebed.cpus import format_cpus
from tracebed.errors import TestbedError
from tracebed.orchestrator.replay.ending import cut_short
from tracebed.orchestrator.replay.journal import Entry, Journal
from tracebed.orchestrator.replay.programs import program_of
from tracebed.orchestrator.replay.ranks import Ranks, RunningJob
from tracebed.orchestrator.scheduling.cluster import Cluster
from tracebed.orchestrator.scheduling.jobs import Jobs
from tracebed.orchestrator.scheduling.limits import OverLimit
from tracebed.orchestrator.scheduling.priorities import FCFS
from tracebed.orchestrator.scheduling.record import Record
from tracebed.orchestrator.scheduling.scheduler import Scheduler
from tracebed.orchestrator.scheduling.state import Policy
from tracebed.orchestrator.testbeds.base import Event, Testbed
from tracebed.orchestrator.testbeds.nodes import Inventory
from tracebed.states import JobState

LEAD_S = 0.2
"""Wall time between the start of the clock and the first submission."""
LOOK_S = 0.2
"""Longest time that the loop waits before it checks for a signal, wall s."""
OUTLIVE_S = 10.0
"""How long ranks may outlive the leader of their job, wall s. Usually they end within milliseconds."""
SILENCE = 10.0
"""Number of heartbeats that an agent may miss before the agent counts as lost."""


@dataclass
class Options:
    """How to replay.

    Attributes:
        speed: trace seconds a wall second.
        interval_s: > 0: the policy is called only at multiples of it, trace seconds.
        over_limit: what happens to jobs that outlive their time limit; `KILL` ends them when it passes at the speed
            that they should have, all others concern only what the scheduler expects.
        balance: of the ranks of a job, `static` or `dynamic`.
        priority: in which order waiting jobs are considered, a name of `priorities`.
    """

    speed: float = 1.0
    interval_s: float = 0.0
    over_limit: OverLimit = OverLimit.EXTEND
    balance: str = "static"
    priority: str = FCFS


class Replayer:
    """The executor of a scheduler on a testbed that has been started.

    Args:
        jobs: the workload.
        testbed: the nodes.
        inventory: how they were described.
        policy: who decides.
        options: how.
        journal: where everything is written first.
    """

    def __init__(
        self,
        jobs: Jobs,
        testbed: Testbed,
        inventory: Inventory,
        policy: Policy,
        options: Options,
        journal: Journal,
    ) -> None:
        """Prepare the replay; nothing starts yet."""
        self.jobs = jobs
        self.testbed = testbed
        self.inventory = inventory
        self.options = options
        self.journal = journal
        self.cluster = Cluster([node.cores for node in testbed.nodes], [node.sockets for node in testbed.nodes])
        self.record = Record(jobs)
        self.scheduler = Scheduler(
            jobs, self.cluster, policy, self, interval_s=options.interval_s, priority=options.priority
        )
        self.interrupted: str | None = None
        self._numbers = {name: number for number, name in enumerate(jobs.ids)}
        self._ranks = Ranks(jobs, testbed, self.cluster)
        self._entries: list[Entry] = []
        self._round = 0
        self._ended = 0
        self._now = 0.0
        self._zero = 0.0  # monotonic instant of trace time 0
        self._heard = [0.0] * len(testbed.nodes)
        self._done: list[tuple[int, str]] = []  # in this round: (job, "ended" or "resized")

    def interrupt(self, reason: str) -> None:
        """End the loop soon. This method may be called from a signal handler."""
        self.interrupted = self.interrupted or reason

    def run(self, on_progress: Callable[[int], None] | None = None) -> None:
        """Replay until every job has ended, or the replay is interrupted.

        Args:
            on_progress: called now and then with the number of jobs that have ended so far.

        Raises:
            TestbedError: a node was lost; what happened until then is in the record.
        """
        submit, count = self.jobs.submit, len(self.jobs)
        begin = time.monotonic() + LEAD_S
        self._zero = begin - submit[0] / self.options.speed
        self._now = self._trace(time.monotonic())
        self._heard = [begin] * len(self._heard)
        next_job, call = 0, math.inf
        while (next_job < count or self._ranks.running or call < math.inf) and not self.interrupted:
            due = min(submit[next_job] if next_job < count else math.inf, call, self._next_limit())
            wake = min(self._monotonic(due), time.monotonic() + (0.0 if self._done else LOOK_S))
            events = self.testbed.receive(wake)
            wall = time.monotonic()
            self._now = now = max(self._now, (wall - self._zero) * self.options.speed)
            submitted = []
            while next_job < count and submit[next_job] <= now:
                submitted.append(next_job)
                next_job += 1
            self._journal_events(events, submitted)
            for event in events:
                self._hear(event)
            self._watch(wall)
            self._end_orphans(wall)
            self._enforce_limits(now)
            happened = self._take_in(submitted, wall)
            if happened:
                self.scheduler.serve()
                call = min(call, self.scheduler.due(now))
            if call <= now:
                self._note("call")
                call = self.scheduler.decide(now)
            self._send()
            if on_progress:
                on_progress(self._ended)

    def close(self) -> float:
        """Record the jobs that the end of the run cut short, and return the time; to be called after `testbed.stop`."""
        self._now = max(self._now, self._trace(time.monotonic()))
        cut_short(self.record, self.cluster, self._ranks.running, self._now, self.interrupted)
        return self._now

    # -- what happened ---------------------------------------------------------------------------------------------

    def _journal_events(self, events: Sequence[Event], submitted: Sequence[int]) -> None:
        """Write the events of this round to the journal, before any of them takes effect."""
        entries = [
            Entry(
                self._round,
                self._now,
                event.message["type"],
                event.message.get("job"),
                self.testbed.nodes[event.node].name,
                {key: value for key, value in event.message.items() if key not in ("type", "job")},
            )
            for event in events
            if event.message["type"] not in ("heartbeat", "progress")
        ]
        entries += [Entry(self._round, self._now, "submit", self.jobs.ids[job], None, {}) for job in submitted]
        if entries:
            self.journal.write(entries)

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
            return  # what we said of a job crossed with its end; the journal has it
        if job is None or active is None:
            return
        if kind == "listening":
            active.address = message["address"]
            self._ranks.launch(job)
        elif kind == "started":
            active.started = True
            self.record.launched[job] = launched = self._trace(event.time)
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
            # It may never have joined: then the leader waits for it, and knows of nothing.
            active.outcome = ("failed", f"on {message['rank']}: {message['reason']}")
            self._kill_ranks(job, active, active.outcome[1])
        if not active.alive:
            self._done.append((job, "ended"))
        elif active.applied is not None:
            self._resize_done(job, active)
        self._ranks.try_held()

    def _resize_done(self, job: int, active: RunningJob) -> None:
        """A resize is done when the leader has applied it and the nodes it frees are really free."""
        if active.pending and active.applied is not None and not active.dropped:
            active.pending = False
            self._done.append((job, "resized"))

    def _take_in(self, submitted: Sequence[int], wall: float) -> bool:
        """Pass ends, resizes and submissions of this round to the scheduler; return whether there were any."""
        now = self._now
        ended = sorted({job for job, what in self._done if what == "ended"})
        resized = sorted(job for job, what in self._done if what == "resized" and job not in ended)
        self._done.clear()
        for job in ended:
            state, reason = self._ranks.forget(job).outcome or ("failed", "its processes ended without a word")
            self._note("end", job, state=state, reason=reason)
            self.record.finish(job, now, JobState(state), reason)
            self.scheduler.end(job, now)
            self._ended += 1
        for job in resized:
            active = self._ranks.running[job]
            decided, applied = active.applied or (wall, wall)
            active.applied = None
            decided, applied = self._trace(decided), self._trace(applied)
            self._note("effect", job, decided=decided, applied=applied)
            self.record.resize_applied(job, decided, applied, now)
            self.scheduler.resized(job, now)
        for job in submitted:
            self.record.submit[job] = now
            self.scheduler.submit(job, now)
        return bool(ended or resized or submitted)

    def _watch(self, wall: float) -> None:
        """Raise TestbedError if an agent has been silent for too long."""
        patience = max(SILENCE, SILENCE * self.inventory.heartbeat_s)
        quietest = min(range(len(self._heard)), key=self._heard.__getitem__)
        if wall - self._heard[quietest] > patience:
            raise TestbedError(
                f"its agent has been silent for {patience:g} s",
                where=f"node {self.testbed.nodes[quietest].name}",
                hint="the run so far is kept",
            )

    def _end_orphans(self, wall: float) -> None:
        """Kill ranks that did not end when their job did: the job would hold its nodes for ever."""
        for job, active in self._ranks.running.items():
            if active.orphaned is not None and wall - active.orphaned > OUTLIVE_S:
                active.orphaned = None
                self._kill_ranks(job, active, "the leader has ended")

    # -- time ------------------------------------------------------------------------------------------------------

    def _monotonic(self, trace: float) -> float:
        return self._zero + trace / self.options.speed

    def _trace(self, monotonic: float) -> float:
        return (monotonic - self._zero) * self.options.speed

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
        """Return whether the running `job` can still reach its limit; one that is its run time is no limit."""
        return self._ranks.running[job].outcome is None and self.jobs.limit[job] != self.jobs.run_time[job]

    # -- the executor of the scheduler -----------------------------------------------------------------------------

    def start(self, job: int, nodes: list[int]) -> None:
        """Launch the leader; the other ranks follow once it listens."""
        self.record.start[job] = self._now
        cores = self._ranks.cores(job, nodes)
        program = program_of(
            self.jobs,
            job,
            self.testbed,
            emulated=self.testbed.nodes[nodes[0]].emulated,
            speed=self.options.speed,
            grain_s=self.inventory.grain_s,
            balance=self.options.balance,
        )
        active = RunningJob(nodes, program, secrets.token_hex(16), cores, to_launch=list(nodes))
        self._ranks.running[job] = active
        self._note("start", job, nodes=self._ranks.names(nodes), **self._of_shared(job))
        self._ranks.launch(job)

    def resize(self, job: int, before: int, nodes: list[int]) -> bool:
        """Launch ranks on new nodes, and send the leader the new members of the job."""
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
        """Change the masks of the ranks of the job, each as soon as no other job is on these cores."""
        active = self._ranks.running[job]
        active.cores |= self._ranks.cores(job, active.nodes)
        self._note("cores", job, **self._of_shared(job))
        self._ranks.change_masks(job)

    def reject(self, job: int, reason: str) -> None:
        """Record the rejection."""
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
        """Return the cores of the job on the nodes that it shares, for the journal; empty if it shares no node."""
        shared = [node for node in self.cluster.nodes_of(job) if node in self.cluster.loans]
        parts = {self.testbed.nodes[node].name: format_cpus(self.cluster.part(job, node)) for node in shared}
        return {"cores": parts} if parts else {}

    def _kill_ranks(self, job: int, active: RunningJob, reason: str) -> None:
        self._note("kill", job, reason=reason)
        self._ranks.kill(job, reason)
        if not active.alive:  # its first rank still waited for others to leave its cores
            self._done.append((job, "ended"))

    def _send(self) -> None:
        """Write the decisions of this round to the journal, then send them."""
        self.journal.write(self._entries)
        self._entries.clear()
        self._ranks.send()
        self._round += 1

    def _note(self, kind: str, job: int | None = None, **data: Any) -> None:
        name = None if job is None else self.jobs.ids[job]
        self._entries.append(Entry(self._round, self._now, kind, name, None, data))
