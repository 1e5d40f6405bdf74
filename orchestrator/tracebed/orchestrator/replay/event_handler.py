"""The processing of the messages of agents in a replay: changes of the ranks of the running jobs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from tracebed.ground import system
from tracebed.ground.cpus import parse_cpus
from tracebed.orchestrator.replay.executor import ReplayExecutor, RunningJob
from tracebed.orchestrator.replay.pace import Timeline
from tracebed.orchestrator.scheduling.record import NEVER, ScheduleRecord
from tracebed.orchestrator.testbeds.base import Event

OUTLIVE_S = 10.0
"""Time after the end of a leader at which the remaining ranks of its job are killed, wall s. They usually end in ms."""
LEADER_ENDED = "the leader has ended"
START_S = 120.0
"""Time after which a job whose ranks have not joined each other has failed, wall s. They usually take below a second.
"""
NOT_STARTED = f"its processes did not join each other within {START_S:g} s"
ROUNDING_S = 1e-6
"""Time by which jobs are searched for overdue ones too early, wall s, since sums are rounded."""


def mask_changed(record: ScheduleRecord, job: int, node: int, change: Mapping[str, Any]) -> None:
    """Record a change of a mask from the data of a journal entry `mask`. The end of a rank is not a change."""
    before, after = change["before"], change["after"]
    if before is None and after is not None:
        record.cores.launched_with(job, node, len(parse_cpus(after)), change["applied"])
    elif before is not None and after is not None:
        cores = len(parse_cpus(before)), len(parse_cpus(after))
        seen = NEVER if change["seen"] is None else change["seen"]
        instants = change["decided"], seen, change["applied"]
        record.cores.took_effect(job, node, cores, instants, change["nodes"])


class EventHandler:
    """Handler of the messages about running jobs: it updates the ranks and the record."""

    def __init__(self, executor: ReplayExecutor, timeline: Timeline) -> None:
        self.executor, self.timeline = executor, timeline
        self.ranks, self.rounds = executor.ranks, executor.rounds
        self.numbers = {name: number for number, name in enumerate(executor.jobs.ids)}  # job id -> job number
        self._overdue_at = -math.inf  # no job is overdue before, monotonic

    def handle(self, event: Event) -> None:
        """Process a message about a job. Messages about jobs that have ended are ignored."""
        message = event.message
        kind = message["type"]
        job = self.numbers.get(message.get("job", ""))
        active = self.ranks.running.get(job) if job is not None else None
        if job is None or active is None:
            return
        if kind == "listening":
            active.address = message["address"]
            self.ranks.launch(job)
        elif kind == "started":
            active.started = True
            begun = message.get("begun")  # programs of other projects have no clock of the replay
            at = self.timeline.at(message.get("time", event.time)) if begun is None else self.timeline.trace(begun)
            launched = max(self.executor.record.start[job], min(self.rounds.now, at))  # the job may end in this round
            self.executor.record.launched[job] = launched
            self.rounds.note("launched", job, at=launched)
            for node in [node for node, mask in active.masks.items() if mask is None]:
                # Not those that it was sent last: the policy may have changed them before this message arrived.
                self._mask_changed(job, active, node, active.first_masks[node], launched)
            if active.pending:
                self.ranks.send_members(job)
        elif kind == "asks" and active.outcome is None:
            if any(request.nodes == message["nodes"] for request in self.executor.jobs.requests_of(job)):
                self.ranks.requested[job] = message["nodes"]
        elif kind == "resized" and "cpus" in message:
            if event.node not in active.alive:  # the node is lost
                return
            if message["cpus"] == self.ranks.cpus(event.node, active.alive[event.node]):
                active.unconfirmed.discard(event.node)
            decided, applied = (self.timeline.trace(message[name]) for name in ("decided", "applied"))
            seen = message.get("seen")
            instants = {"decided": decided, "seen": None if seen is None else self.timeline.trace(seen)}
            self._mask_changed(job, active, event.node, message["cpus"], applied, **instants)
        elif kind == "resized" and active.pending and message["request"] == active.request:
            active.applied = (self.timeline.trace(message["decided"]), self.timeline.trace(message["applied"]))
            stages = message.get("stages", {})
            measured = stages | {"planned_s": message.get("planned_s")}
            active.measured |= {name: value for name, value in measured.items() if value is not None}
            if message.get("seen") is not None:
                active.measured["seen"] = self.timeline.trace(message["seen"])
            self.ranks.check_ended(job)
        elif kind == "ended":
            if event.node in active.masks and self.executor.record.cores.has_shared(job):
                # Another rank may take the CPUs as soon as the process has ended, before its agent has reaped it.
                done = message.get("done")
                at = self.timeline.at(message["time"] if done is None else done)
                self._mask_changed(job, active, event.node, None, at)
            self._rank_ended(job, active, event.node, message)

    def _mask_changed(
        self, job: int, active: RunningJob, node: int, after: str | None, at: float, **instants: float | None
    ) -> None:
        """Record a change of the mask of a rank at the trace time `at`. Without CPUs `after`, the rank has ended."""
        before, active.masks[node] = active.masks.get(node), after
        if before == after:
            return
        change = {
            "before": before,
            "after": after,
            "since": active.since.get(node, self.executor.record.start[job]),
            "applied": min(at, self.rounds.now),
            "nodes": len(active.nodes),
        }
        entry = self.rounds.entry("mask", job, node, change | instants)
        self.rounds.entries.append(entry)
        mask_changed(self.executor.record, job, node, entry.data)

    def _rank_ended(self, job: int, active: RunningJob, node: int, message: Mapping[str, Any]) -> None:
        awaited = active.awaits(node)
        if node in active.dropped and message.get("termination_s") is not None:
            longest = max(message["termination_s"], active.measured.get("termination_s", 0.0))
            active.measured["termination_s"] = longest
        active.lose(node)
        state = message["state"]
        if message["leader"]:
            if state == "completed" and message.get("checksum") is not None:
                self.executor.record.checksum[job] = message["checksum"]
            failed = not active.node_lost and active.outcome is not None and active.outcome[0] == state == "failed"
            if active.outcome is None or state == "completed" or failed:
                active.outcome = (state, message["reason"] or "")
            if state == "completed":
                active.orphaned = system.monotonic()
            else:
                self.executor.kill(job, LEADER_ENDED)
        elif state != "completed" and not active.outcome and awaited:
            # The leader may still be waiting for this rank to join, and would wait forever.
            active.outcome = ("failed", f"on {message['rank']}: {message['reason']}")
            self.executor.kill(job, active.outcome[1])
        self.ranks.check_ended(job)

    def lose(self, job: int, node: int, state: str, reason: str) -> None:
        """End the running `job` because `node` is lost, unless the job is ending already."""
        active = self.ranks.running[job]
        # Other ranks may have noticed the loss first, and failed because of it.
        failed = active.outcome is not None and active.outcome[0] == "failed" and node in active.alive
        active.lose(node)
        first = active.outcome is None
        if first or failed:
            active.outcome, active.node_lost = (state, reason), True
        if first:
            self.executor.kill(job, reason)
        self.ranks.check_ended(job)

    def end_overdue(self, wall: float) -> None:
        """Kill the ranks of jobs whose leader has ended `OUTLIVE_S` before, or that have not started in `START_S`.

        Such a job would hold its nodes for ever. The jobs are not searched in each round: no job becomes overdue within
        the shorter of these times from now, unless it is on its way already.
        """
        if wall < self._overdue_at:
            return
        self._overdue_at = wall + min(OUTLIVE_S, START_S) - ROUNDING_S
        for job, active in self.ranks.running.items():
            if active.orphaned is not None:
                since, most_s, end = active.orphaned, OUTLIVE_S, self.end_orphan
            elif not active.started and active.outcome is None and not active.booting:
                since, most_s, end = active.launched, START_S, self.end_unstarted
            else:
                continue
            if wall - since > most_s:
                end(job)
            else:
                self._overdue_at = min(self._overdue_at, since + most_s - ROUNDING_S)

    def end_unstarted(self, job: int) -> None:
        """Kill the ranks of the running `job` if its ranks have not joined each other."""
        active = self.ranks.running[job]
        if not active.started and active.outcome is None:
            active.outcome = ("failed", NOT_STARTED)
            self.executor.kill(job, NOT_STARTED)

    def end_orphan(self, job: int) -> None:
        """Kill the ranks of the running `job` if they outlive its leader."""
        active = self.ranks.running[job]
        if active.orphaned is not None:
            active.orphaned = None
            self.executor.kill(job, LEADER_ENDED)
