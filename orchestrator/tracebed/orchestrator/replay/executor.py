"""The executor of a replay: decisions become messages to the ranks of jobs, and entries of the journal.

A rank is the process of a job on a node. On a node that two jobs share, a rank that is launched, or whose mask grows,
waits in the table of the node until the rank of the other job has left those cores.

A round is the input of the scheduler at one instant and the resulting decisions.
"""

from __future__ import annotations

import hashlib
import hmac
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tracebed.benchmarks.clock import Clock
from tracebed.benchmarks.program import WORK_S, Program
from tracebed.ground import system
from tracebed.ground.cpus import format_cpus
from tracebed.ground.states import JobState
from tracebed.orchestrator.replay.journal import Entry, Journal
from tracebed.orchestrator.replay.monitor import Monitor
from tracebed.orchestrator.replay.options import Options
from tracebed.orchestrator.replay.programs import application_of, command_of, program_of
from tracebed.orchestrator.scheduling.cluster import Cluster
from tracebed.orchestrator.scheduling.dependencies import Arrivals
from tracebed.orchestrator.scheduling.jobs import Jobs
from tracebed.orchestrator.scheduling.record import ScheduleRecord
from tracebed.orchestrator.testbeds.base import EMULATED_RATE, Testbed
from tracebed.orchestrator.testbeds.nodes import Inventory

OBSERVED = {"sample", "work", "loop"}
"""Kinds of entries that only the monitor reads. They may be written later than the events of jobs."""
HOLD_S = 0.25
"""Longest time for which observations are held back, wall s: a transaction for each heartbeat costs too much."""


class Rounds:
    """The current round. Its events are written to the journal at once, its decisions at its end.

    Observations are written together with the next event or decision, or after `HOLD_S`.
    """

    def __init__(self, journal: Journal, monitor: Monitor, ids: Sequence[str], names: Sequence[str]) -> None:
        self.journal, self.monitor = journal, monitor
        self.number = 0  # of the round
        self.now = 0.0  # trace s
        self.entries: list[Entry] = []  # those of this round that have not been written
        self._ids, self._names = ids, names
        self._held: list[Entry] = []
        self._held_until = 0.0  # monotonic

    def advance(self, now: float) -> None:
        """Set the time of the round. No two rounds have the same time, so that times give the order of rounds."""
        self.now = max(math.nextafter(self.now, math.inf), now)  # a steady clock may stand still

    def entry(self, kind: str, job: int | str | None, node: int | None, data: dict[str, Any]) -> Entry:
        """Return an entry of this round."""
        name = self._ids[job] if isinstance(job, int) else job
        return Entry(self.number, self.now, kind, name, None if node is None else self._names[node], data)

    def note(self, kind: str, job: int | None = None, **data: Any) -> None:
        """Add an entry, which is written at the end of the round."""
        self.entries.append(self.entry(kind, job, None, data))

    def note_node(self, kind: str, node: int, **data: Any) -> None:
        """Add an entry about a node, which is written at the end of the round."""
        self.entries.append(self.entry(kind, None, node, data))

    def write(self, entries: Sequence[Entry]) -> None:
        """Write entries to the journal, and pass them to the monitor."""
        if not entries and not self._held:  # most rounds
            return
        for entry in entries:
            self.monitor.apply(entry)
        now = system.monotonic()
        if not self._held:
            self._held_until = now + HOLD_S
        self._held += entries
        if now >= self._held_until or any(entry.kind not in OBSERVED for entry in entries):
            self.flush()

    def flush(self) -> None:
        """Write the observations that are held back."""
        self.journal.write(self._held)
        self._held.clear()

    def end(self) -> None:
        """Write the entries of the round that have not been written."""
        self.write(self.entries)
        self.entries.clear()

    def next(self) -> None:
        """Begin the next round."""
        self.number += 1


@dataclass
class RunningJob:
    """A job that holds nodes: its processes, and the state of pending requests."""

    nodes: list[int]  # The nodes of the job, after the pending resize if there is one. The leader is on the first node.
    program: Program
    authkey: str
    cores: dict[int, range]  # Node -> the cores last allocated to the job. Nodes that the job has released remain.
    # The nodes with which the leader starts the job, also if a resize before that releases some of them.
    first: list[int] = field(default_factory=list)
    # Nodes whose ranks have not been launched: first the leader, then, once it is listening, the other ranks.
    to_launch: list[int] = field(default_factory=list)
    # Node with a rank of the job, running or being launched -> the cores last sent to this rank.
    alive: dict[int, range] = field(default_factory=dict)
    unconfirmed: set[int] = field(default_factory=set)  # nodes whose rank has not confirmed the cores last sent to it
    since: dict[int, float] = field(default_factory=dict)  # node that a resize added -> time of this decision, trace s
    # Node with a rank -> the CPUs in its mask, as the rank confirmed them last, or as it was launched. None: the rank
    # was launched on a shared node, and may wait for its first CPUs.
    masks: dict[int, str | None] = field(default_factory=dict)
    first_masks: dict[int, str] = field(default_factory=dict)  # node -> the CPUs with which its rank was launched
    # Figures of the pending resize that its leader measured: columns of the table `reconfigurations`, and `planned_s`,
    # the planned time of the job up to the resize.
    measured: dict[str, float] = field(default_factory=dict)
    address: Any = None  # the address of the leader; None: not known yet
    # Time of the launch, or of the resumption of the replay, monotonic s.
    launched: float = field(default_factory=system.monotonic)
    booting: bool = False  # whether the job has not been launched, since one of its nodes is not on
    started: bool = False
    request: int = 0  # number of the latest resize
    pending: bool = False
    # Nodes that the pending resize releases and whose rank has not ended.
    dropped: set[int] = field(default_factory=set)
    # Times at which the pending resize was decided and applied, trace s; None: the leader has not reported it.
    applied: tuple[float, float] | None = None
    outcome: tuple[str, str] | None = None  # state and reason, once the leader has ended or the job has been killed
    # Whether the outcome is the loss of a node. Messages from ranks on other nodes do not change it.
    node_lost: bool = False
    orphaned: float | None = None  # time at which the leader ended, monotonic, if the other ranks have not been killed

    def lose(self, node: int) -> None:
        """Forget the rank on `node`: it has ended, or its node is lost."""
        self.alive.pop(node, None)
        self.unconfirmed.discard(node)
        self.dropped.discard(node)
        self.masks.pop(node, None)

    def awaits(self, node: int) -> bool:
        """Return whether the leader may be waiting for the rank of `node` to join."""
        return not self.started or (self.pending and node in self.nodes)


class Ranks:
    """The ranks of all running jobs. Messages to ranks are buffered until `send`."""

    def __init__(
        self,
        jobs: Jobs,
        testbed: Testbed,
        cluster: Cluster,
        clock: Clock,
        duty: float | None = None,
        work_s: float = WORK_S,
    ) -> None:
        self.jobs, self.testbed, self.cluster, self.clock = jobs, testbed, cluster, clock
        self.duty, self.work_s = duty, work_s
        self.running: dict[int, RunningJob] = {}
        self.ended: set[int] = set()  # jobs whose last rank has ended, for the scheduler
        self.resized: set[int] = set()  # jobs whose pending resize is complete, for the scheduler
        self.requested: dict[int, int] = {}  # evolving job -> number of nodes that it requests, for the scheduler
        self.not_on: set[int] = set()  # nodes that sleep, on which no rank is launched
        self._outbox: list[tuple[int, dict[str, Any]]] = []

    def cores(self, job: int, nodes: Sequence[int]) -> dict[int, range]:
        """Return the cores of the job on each of `nodes`: of its allocated cores, as many as it requested."""
        return {node: self.cluster.part(job, node)[: self.jobs.cores[job]] for node in nodes}

    def names(self, nodes: Sequence[int]) -> list[str]:
        """Return the names of `nodes`, which are also the names of their ranks."""
        return [self.testbed.nodes[node].name for node in nodes]

    def launch(self, job: int) -> None:
        """Launch the leader of the job, or its other ranks once the leader is listening.

        A job starts when all its nodes are on. A rank that a resize adds is launched when its node is on.
        """
        active = self.running[job]
        active.booting = not active.alive and not self.not_on.isdisjoint(active.first)
        if active.outcome is not None or active.booting:
            return
        if not active.alive:
            active.launched = system.monotonic()
        waiting = []
        for node in active.to_launch:
            leader = node == active.nodes[0]
            if (leader or active.address is not None) and node not in self.not_on:
                self._launch(job, active, node, leader=leader)
            else:
                waiting.append(node)
        active.to_launch = waiting

    def change_masks(self, job: int) -> None:
        """Send new masks to the ranks of the job whose cores have changed. A mask replaces a pending mask."""
        active = self.running[job]
        for node, now in active.alive.items():
            if now != active.cores[node] and active.outcome is None:
                active.alive[node] = active.cores[node]
                active.unconfirmed.add(node)
                self._send_mask(job, node)

    def send_members(self, job: int) -> None:
        """Send the members of the job to its leader."""
        active = self.running[job]
        members = {"job": self.jobs.ids[job], "members": self.names(active.nodes), "request": active.request}
        self._queue(active.nodes[0], {"type": "resize", **members})

    def kill(self, job: int, reason: str) -> None:
        """Kill all ranks of the job."""
        for node in self.running[job].alive:
            self._queue(node, {"type": "kill", "job": self.jobs.ids[job], "reason": reason})
        self.check_ended(job)  # if the launch of its only rank was lost, no rank will end

    def check_ended(self, job: int) -> None:
        """Note the end of the job if no rank is left, and the end of its pending resize if the resize is complete."""
        active = self.running[job]
        if not active.alive:
            self.ended.add(job)
        # The leader has applied it, and the ranks on the released nodes have ended.
        elif active.pending and active.applied is not None and not active.dropped:
            active.pending = False
            self.resized.add(job)

    def launch_again(self, job: int, node: int) -> None:
        """Launch a rank whose launch message was lost, once its leader is listening."""
        active = self.running[job]
        del active.alive[node]
        active.to_launch.append(node)
        self.launch(job)

    def resend(self, before: Iterable[tuple[int, RunningJob]]) -> None:
        """Send the unanswered requests again to the jobs `before` that still run. Ranks ignore repetitions."""
        for job, active in before:
            if self.running.get(job) is not active:
                continue
            if active.outcome is not None:
                if active.orphaned is None:
                    self.kill(job, active.outcome[1])
                continue
            if active.pending and active.started and active.applied is None:
                self.send_members(job)
            for node in active.unconfirmed:
                self._send_mask(job, node)

    def forget(self, job: int) -> RunningJob:
        """Remove a job that has ended, and return it."""
        return self.running.pop(job)

    def send(self) -> None:
        """Send the buffered messages."""
        for node, message in self.take_messages():
            self.testbed.send(node, message)

    def take_messages(self) -> list[tuple[int, dict[str, Any]]]:
        """Return the buffered messages with their nodes, and empty the buffer."""
        messages, self._outbox = self._outbox, []
        return messages

    def cpus(self, node: int, cores: range) -> str:
        """Return the CPU list of `cores` of `node`. On an emulated node, core numbers are CPU numbers."""
        cpus = self.testbed.nodes[node].cpus
        return format_cpus(cores if cpus is None else cpus[cores.start : cores.stop])

    def _launch(self, job: int, active: RunningJob, node: int, *, leader: bool) -> None:
        cores = active.alive[node] = active.cores[node]
        members = active.first if node in active.first and not active.started else active.nodes
        cpus = active.first_masks[node] = self.cpus(node, cores)
        active.masks[node] = None if node in self.cluster.loans else cpus
        self._queue(
            node,
            {
                "type": "launch",
                "job": self.jobs.ids[job],
                "rank": self.testbed.nodes[node].name,
                "leader": leader,
                "members": self.names(members if leader or active.program.command else [node]),
                "address": active.address,
                "family": self.testbed.family,
                "authkey": active.authkey,
                "cpus": cpus,
                "cores": len(cores),
                "program": active.program._asdict(),
                "duty": self.testbed.nodes[node].duty_or(self.duty),
                "clock": self.clock.path,
                "work_s": self.work_s,
            },
        )

    def _send_mask(self, job: int, node: int) -> None:
        """Send its cores to the rank of the job on `node`."""
        active = self.running[job]
        change = {"job": self.jobs.ids[job], "cpus": self.cpus(node, active.alive[node]), "request": active.request}
        self._queue(node, {"type": "resize", **change})

    def _queue(self, node: int, message: dict[str, Any]) -> None:
        self._outbox.append((node, message))


class ReplayExecutor:
    """The executor of a scheduler on a testbed."""

    def __init__(
        self,
        jobs: Jobs,
        testbed: Testbed,
        inventory: Inventory,
        speed: float,
        options: Options,
        ranks: Ranks,
        record: ScheduleRecord,
        rounds: Rounds,
        secret: bytes,
    ) -> None:
        self.jobs, self.testbed, self.inventory = jobs, testbed, inventory
        self.speed, self.options = speed, options
        self.ranks, self.record, self.rounds = ranks, record, rounds
        self._secret = secret
        self.rates: dict[str, float] = {}  # kernel -> units per second of a core; one is measured if missing
        self.arrivals = Arrivals(jobs.submit, jobs.waits, jobs.ids)  # the submissions, and the jobs that wait

    def start(self, job: int, nodes: list[int]) -> None:
        """Launch the leader. The other ranks are launched once the leader is listening."""
        self.record.start[job] = self.rounds.now
        self.arrivals.started(job, self.rounds.now)
        cores, kernels = self.ranks.cores(job, nodes), application_of(self.jobs, job).kernels
        emulated = self.testbed.nodes[nodes[0]].emulated
        measured = dict.fromkeys(kernels, self.testbed.units_per_core_second)
        program = program_of(
            self.jobs,
            job,
            dict.fromkeys(kernels, EMULATED_RATE) if emulated else measured | self.rates,
            speed=self.speed,
            grain_s=self.inventory.grain_s,
            balance=self.options.balance,
        )._replace(command=command_of(self.jobs, job, self.options.commands))
        self.record.cores.begin(job, self.ranks.cluster, self.jobs.cores[job])
        self.ranks.running[job] = RunningJob(nodes, program, self._key(job), cores, nodes, list(nodes))
        self.rounds.note("start", job, nodes=self.ranks.names(nodes), **self._of_shared(job))
        self.ranks.launch(job)

    def resize(self, job: int, before: int, nodes: list[int]) -> bool:
        """Launch ranks on the new nodes, and send the new members of the job to the leader."""
        self.record.resize_requested(job, before, len(nodes), self.rounds.now)
        active = self.ranks.running[job]
        old, active.nodes = active.nodes, nodes
        active.request += 1
        active.pending = True
        active.dropped = set(old) - set(nodes)
        self.rounds.note("resize", job, nodes=self.ranks.names(nodes), request=active.request)
        active.cores |= self.ranks.cores(job, nodes)
        if active.booting and len(nodes) < len(old):  # it starts on the other nodes
            active.first, active.to_launch = nodes, list(nodes)
            active.pending, active.dropped = False, set()
            self.ranks.resized.add(job)
            self.ranks.launch(job)
            return False
        new = [node for node in nodes if node not in old]
        active.to_launch += new
        active.since |= dict.fromkeys(new, self.rounds.now)
        self.ranks.launch(job)
        if active.started:
            self.ranks.send_members(job)
        return False

    def deny(self, job: int, requested: int) -> None:
        """Record that the job does not get `requested` nodes. The job has not waited for an answer."""
        self.record.deny(job, len(self.ranks.running[job].nodes), requested, self.rounds.now)
        self.rounds.note("deny", job, reason=f"{requested} nodes")

    def change_cores(self, job: int) -> None:
        """Change the masks of the ranks of the job, each once no other job uses these cores."""
        active = self.ranks.running[job]
        active.cores |= self.ranks.cores(job, active.nodes)
        changes = self.record.cores.differences(job, self.ranks.cluster, self.jobs.cores[job])
        self.record.cores.requested(job, len(active.nodes), changes, self.rounds.now)
        named = {self.testbed.nodes[node].name: [*map(format_cpus, change)] for node, change in changes.items()}
        self.rounds.note("cores", job, changes=named, **self._of_shared(job))
        self.ranks.change_masks(job)

    def reject(self, job: int, reason: str) -> None:
        """Record that the job is rejected."""
        self.rounds.note("reject", job, reason=reason)
        self.record.refuse(job, JobState.REJECTED, reason)
        self.arrivals.ended(job, JobState.REJECTED, self.rounds.now)

    def cancel(self, job: int, reason: str) -> None:
        """End all processes of the job. The job does not return to the queue, even if a node is lost."""
        active = self.ranks.running[job]
        self.rounds.note("cancel", job, reason=reason)
        if active.outcome is None or active.outcome[0] == "requeued":
            active.outcome = ("cancelled", reason)
        self.kill(job, reason)

    def kill(self, job: int, reason: str) -> None:
        """Kill all ranks of the job."""
        self.rounds.note("kill", job, reason=reason)
        self.ranks.kill(job, reason)

    def _key(self, job: int) -> str:
        """Return the key of the connections between the ranks of the job. A restarted job gets another key."""
        run = f"{self.record.restarts[job]} {self.jobs.ids[job]}"
        return hmac.new(self._secret, run.encode(errors="surrogatepass"), hashlib.sha256).hexdigest()[:32]

    def _of_shared(self, job: int) -> dict[str, dict[str, str]]:
        """Return the journal fields for the cores of the job on its shared nodes; empty if it shares no nodes."""
        cluster = self.ranks.cluster
        shared = [node for node in cluster.nodes_of(job) if node in cluster.loans]
        parts = {self.testbed.nodes[node].name: format_cpus(cluster.part(job, node)) for node in shared}
        return {"cores": parts} if parts else {}
