"""Record of the times and states of the jobs, written by the simulator and the replayer."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, MutableSequence, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from tracebed.converters.workload import FloatArray
from tracebed.ground.states import ChangeCause, JobState
from tracebed.machine.power import PowerState
from tracebed.orchestrator.scheduling.cluster import Cluster
from tracebed.orchestrator.scheduling.dependencies import due_submissions
from tracebed.orchestrator.scheduling.jobs import Jobs

NEVER = float("nan")


class CoreChange(NamedTuple):
    """A change of the cores of a job on a node that the policy decided."""

    before: range
    after: range

    @property
    def cause(self) -> ChangeCause:
        """The cause of the change. A guest holds the highest-numbered cores of a node, an owner the lowest."""
        if len(self.after) < len(self.before):
            return ChangeCause.LEND
        return ChangeCause.INHERIT if self.before.start else ChangeCause.RETURN


def integers() -> array[int]:
    """Return an empty column of whole numbers."""
    return array("i")


def instants() -> array[float]:
    """Return an empty column of times."""
    return array("d")


@dataclass
class CoreChanges:
    """All changes of cores, one array per column: a row per job, node and change.

    `runs.schema.TABLES` describes the columns. The instants after `asked` are NaN if the job ended before the change,
    or if a later change of the same node replaced this change before the rank noticed it.
    """

    job: array[int] = field(default_factory=integers)
    node: array[int] = field(default_factory=integers)
    nodes: array[int] = field(default_factory=integers)
    """Nodes of the job."""
    cores_from: array[int] = field(default_factory=integers)
    cores_to: array[int] = field(default_factory=integers)
    cause: list[ChangeCause] = field(default_factory=list)
    asked: array[float] = field(default_factory=instants)
    decided: array[float] = field(default_factory=instants)
    seen: array[float] = field(default_factory=instants)
    applied: array[float] = field(default_factory=instants)

    def __post_init__(self) -> None:
        self._held: dict[int, dict[int, range]] = {}  # job that has shared a node -> node -> its cores
        self._open: dict[int, dict[int, list[int]]] = {}  # job -> node -> the rows that have not been applied

    def __len__(self) -> int:
        """Return the number of changes."""
        return len(self.job)

    def begin(self, job: int, cluster: Cluster, requested: int) -> None:
        """Record the cores with which `job` starts on shared nodes: at most `requested` cores on each."""
        if cluster.shares(job):
            self._held[job] = {node: cluster.part(job, node)[:requested] for node in cluster.nodes_of(job)}

    def has_shared(self, job: int) -> bool:
        """Return whether the running `job` shares a node, or shared one."""
        return job in self._held

    def differences(self, job: int, cluster: Cluster, requested: int) -> dict[int, CoreChange]:
        """Return node -> change of the cores of `job` since the last call, for the nodes with a change."""
        held, changes = self._held.setdefault(job, {}), {}
        for node in cluster.nodes_of(job):
            before = held.get(node, range(cluster.cores[node])[:requested])
            after = cluster.part(job, node)[:requested]
            if after != before:
                changes[node] = CoreChange(before, after)
                held[node] = after
        return changes

    def requested(self, job: int, nodes: int, changes: Mapping[int, CoreChange], now: float) -> None:
        """Add the `changes` by node that the policy decides at `now`. `nodes` is the number of nodes of `job`."""
        for node, change in changes.items():
            self._open.setdefault(job, {}).setdefault(node, []).append(len(self))
            self._add(job, node, nodes, len(change.before), len(change.after), change.cause, now)

    def took_effect(
        self, job: int, node: int, cores: tuple[int, int], instants: tuple[float, float, float], nodes: int = 1
    ) -> None:
        """Note that the rank of `job` on `node` applied a change.

        The applied change is the last change to this number of cores that was requested by then. A change without a
        decision of the policy is recorded with the cause operator. A rank that gets its cores in several steps has
        applied the change after the last step.

        Args:
            cores: number of cores before and after the change.
            instants: `decided`, `seen` and `applied`, trace s.
            nodes: number of nodes of the job.
        """
        row = self._close(job, node, cores[1], instants[0])
        if row is None:
            if self._open.get(job, {}).get(node):
                return
            row = len(self)
            self._add(job, node, nodes, *cores, ChangeCause.OPERATOR, NEVER)
        self._note(row, *instants)

    def launched_with(self, job: int, node: int, cores: int, now: float) -> None:
        """Note that the rank of `job` on `node` started with `cores` cores at `now`, after changes of them."""
        if (row := self._close(job, node, cores, now)) is not None:
            self._note(row, now, NEVER, now)

    def adopted(self, job: int, now: float) -> None:
        """Note that `job` adopts its current cores on all nodes at `now`, a malleability point."""
        for rows in self._open.pop(job, {}).values():
            for column in (self.decided, self.seen, self.applied):
                column[rows[-1]] = now

    def forget(self, job: int) -> None:
        """Forget a job that has ended; its open changes never take effect."""
        self._held.pop(job, None)
        self._open.pop(job, None)

    def _close(self, job: int, node: int, cores: int, at: float) -> int | None:
        """Return the open change to `cores` that took effect at `at`, and close it and those before; None: no change.

        Clocks of nodes differ: if all such changes were requested later, the first one is returned.
        """
        rows = self._open.get(job, {}).get(node, [])
        alike = [row for row in rows if self.cores_to[row] == cores]
        if not alike:
            return None
        row = ([row for row in alike if self.asked[row] <= at] or alike[:1])[-1]
        del rows[: rows.index(row) + 1]
        return row

    def _note(self, row: int, decided: float, seen: float, applied: float) -> None:
        """Note the instants of a change, in their order and not before its request: clocks of nodes differ."""
        asked = self.asked[row]  # NaN (of an operator) bounds nothing, as the second argument of max
        self.applied[row] = max(applied, asked)
        self.decided[row] = min(max(decided, asked), self.applied[row])
        self.seen[row] = min(max(seen, asked), self.decided[row])

    def _add(self, job: int, node: int, nodes: int, before: int, after: int, cause: ChangeCause, asked: float) -> None:
        columns = (self.job, self.node, self.nodes, self.cores_from, self.cores_to)
        for column, value in zip(columns, (job, node, nodes, before, after), strict=True):
            column.append(value)
        self.cause.append(cause)
        self.asked.append(asked)
        for instant in (self.decided, self.seen, self.applied):
            instant.append(NEVER)


@dataclass
class Resizes:
    """All reconfigurations, one array per column, in the order of the policy's decisions.

    `runs.schema.TABLES` describes the columns. Times are trace seconds. The last three are NaN if the job ended before
    the resize took effect.
    """

    job: array[int] = field(default_factory=integers)
    nodes_from: array[int] = field(default_factory=integers)
    nodes_to: array[int] = field(default_factory=integers)
    asked: array[float] = field(default_factory=instants)
    decided: array[float] = field(default_factory=instants)
    applied: array[float] = field(default_factory=instants)
    ended: array[float] = field(default_factory=instants)

    def __len__(self) -> int:
        """Return the number of reconfigurations."""
        return len(self.job)


@dataclass
class PowerChanges:
    """All changes of the power of nodes, one array per column, in any order but that of each node. Nodes begin on.

    A state that lasts no time has a row, too, and no row repeats the state of its node. Some rows may be after the end
    of the run: a boot or a shutdown that has begun by then.
    """

    node: array[int] = field(default_factory=integers)
    time: array[float] = field(default_factory=instants)
    state: array[int] = field(default_factory=lambda: array("B"))
    """Index in `POWER_STATES`."""

    def __len__(self) -> int:
        """Return the number of changes."""
        return len(self.node)

    def add(self, node: int, time: float, state: PowerState) -> None:
        """Add that `node` is in a state from `time` on, s."""
        self.node.append(node)
        self.time.append(time)
        self.state.append(POWER_STATES.index(state))

    def interrupt(self, node: int, now: float) -> None:
        """Let `node` be on from `now` on: the changes that were to follow do not happen."""
        last = PowerState.ON
        for row in range(len(self) - 1, -1, -1):
            if self.node[row] == node:
                if self.time[row] <= now:
                    last = POWER_STATES[self.state[row]]
                    break
                del self.node[row], self.time[row], self.state[row]
        if last is not PowerState.ON:
            self.add(node, now, PowerState.ON)


POWER_STATES = tuple(PowerState)


MEASURED = ("seen", "decision_s", "spawn_s", "redistribution_s", "termination_s", "moved_mib")
"""Columns of a resize that only some executors measure: the time at which a rank noticed it, and its stages."""


MOST_LOSSES = 5
"""Number of losses of nodes after which a job fails. A job may itself be the cause, and would never end. Slurm's
`MaxBatchRequeue` has the same default."""
WAITS = "the jobs for which it waits have not ended"
"""Reason of a job that was never handed to the policy, or never submitted."""
NEVER_STARTED = "the policy never started it"
"""Reason of a job that the policy left in the queue."""
LOST = "was lost"
"""What the reason of a failed job says of its node."""


@dataclass
class RecordedOutage:
    """The time in which a node was lost, trace seconds."""

    node: int
    start: float
    reason: str
    end: float | None = None
    """None: the node did not return."""
    kind: str = ""
    """`down` or `drain`, in a simulation. A replay loses nodes only."""
    checkpoints: dict[int, tuple[float, float]] = field(default_factory=dict)
    """Job that was lost with the node, and continues from a checkpoint -> start of the lost run, and the instant at
    which the checkpoint was complete."""


class ScheduleRecord:
    """Times and states of all jobs (indexed by job number), all reconfigurations and outages, in trace seconds.

    `start` and `launched` refer to the last run of a job.
    """

    def __init__(self, jobs: Jobs) -> None:
        """Start without submitted jobs."""
        count = len(jobs)
        self.jobs = jobs
        self.submit: MutableSequence[float] = [NEVER] * count
        self.start: MutableSequence[float] = [NEVER] * count
        self.launched: MutableSequence[float] = [NEVER] * count
        self.end: MutableSequence[float] = [NEVER] * count
        self.state = [JobState.UNKNOWN] * count
        self.reason = [""] * count
        self.restarts: MutableSequence[int] = array("q", bytes(8 * count))
        self.checksum = [""] * count
        self.resizes = Resizes()
        self.measured: dict[int, Mapping[str, float]] = {}
        """Row of `resizes` -> further columns of the table `reconfigurations`: `seen` and the stages; and `planned_s`,
        the time from the first iteration of the job to the resize by the plan of its leader, wall s."""
        self.nodes_asked: dict[int, int] = {}
        """Row of `resizes` -> number of nodes that the evolving job requested."""
        self.denied: set[int] = set()
        """Rows of `resizes` that did not happen: the policy denied the request."""
        self.held: set[int] = set()
        """Submitted jobs that wait for other jobs."""
        self.cores = CoreChanges()
        self.power = PowerChanges()
        self.unserved: Mapping[int, str] = {}
        """Job that no nodes of the machine serve -> the reason; see `machine.pools.Pools`."""
        self.outages: list[RecordedOutage] = []
        self.pauses: list[dict[str, Any]] = []
        self._open: dict[int, int] = {}  # job -> the row of its pending resize
        self._requested: dict[int, int] = {}  # evolving job -> number of nodes that it requests, until the answer

    def finish(self, job: int, now: float, state: JobState = JobState.COMPLETED, reason: str = "") -> None:
        """Record the end of `job`, which may not have started."""
        self.end[job] = now
        self.state[job] = state
        self.reason[job] = reason
        self._forget(job)

    def refuse(self, job: int, state: JobState, reason: str) -> None:
        """Record that `job` will never start."""
        self.held.discard(job)
        self.state[job] = state
        self.reason[job] = reason

    def requeue(self, job: int) -> None:
        """Record that the running `job` lost a node and returned to the queue."""
        self.start[job] = self.launched[job] = NEVER
        self.restarts[job] += 1
        self._forget(job)

    def treat_loss(self, job: int, on_node_failure: str, node: str, reason: str) -> tuple[str, str]:
        """Return what happens to the running `job` because its `node` is lost: `requeued` or `failed`, and why.

        Args:
            on_node_failure: one of `names.NODE_FAILURES`.
            node: name of the node.
            reason: why the node is lost.
        """
        why = f"node {node} {LOST}: {reason}" if reason else f"node {node} {LOST}"
        if on_node_failure != "requeue":
            return "failed", why
        if self.restarts[job] + 1 < MOST_LOSSES:
            return "requeued", why
        return "failed", f"the job lost nodes {MOST_LOSSES} times, and is not requeued again; {why}"

    def late_s(self) -> FloatArray:
        """Return the time by which each job was submitted too late, trace s, shape (jobs,); NaN: not submitted."""
        jobs = self.jobs
        late: FloatArray = np.array(self.submit) - due_submissions(jobs.submit, jobs.waits, self.submit, self.end)
        return late

    def node_down(self, node: int, now: float, reason: str, kind: str = "") -> None:
        """Record that `node` is lost from `now` on."""
        self.outages.append(RecordedOutage(node, now, reason, kind=kind))

    def node_up(self, node: int, now: float) -> None:
        """Record that the lost `node` is back."""
        next(outage for outage in reversed(self.outages) if outage.node == node).end = now

    def saved(self, node: int, job: int, instant: float) -> None:
        """Record that `job`, lost with the `node`, continues from a checkpoint that was complete at an instant."""
        last = next(outage for outage in reversed(self.outages) if outage.node == node)
        last.checkpoints[job] = (self.start[job], instant)

    def outages_of(self, names: Sequence[str]) -> list[dict[str, Any]]:
        """Return the outages as in `RunInfo.outages`. `names`: those of the nodes."""
        return [
            {
                "node": names[outage.node],
                "from": outage.start,
                "until": outage.end,
                "reason": outage.reason,
                **({"kind": outage.kind} if outage.kind else {}),
                **({"checkpoints": self._by_id(outage.checkpoints)} if outage.checkpoints else {}),
            }
            for outage in self.outages
        ]

    def _by_id(self, instants: Mapping[int, tuple[float, float]]) -> dict[str, list[float]]:
        """Return instants by the ids of jobs."""
        return {self.jobs.ids[job]: [*both] for job, both in instants.items()}

    def paused(self, data: Mapping[str, Any]) -> None:
        """Record a pause of the executor, with the fields of its journal entry."""
        self.pauses.append({name: data[name] for name in ("at", "wall_s", "adopted", "lost")})

    def close(self, state: JobState, reason: str) -> None:
        """Record `state` and `reason` for every job whose state is still unknown.

        If no interruption ended the run, a job that waits for other jobs has another reason: they have not ended.
        """
        unknown = JobState.UNKNOWN
        for job in [job for job, known in enumerate(self.state) if known is unknown]:
            waits = state is unknown and (job in self.held or self.submit[job] != self.submit[job])
            self.refuse(job, state, WAITS if waits else reason)

    def resize_requested(self, job: int, before: int, after: int, now: float) -> None:
        """Record that the policy decided a resize of `job` from `before` to `after` nodes."""
        resizes = self.resizes
        self._open[job] = len(resizes)
        if self._requested and job in self._requested:
            self.nodes_asked[len(resizes)] = self._requested.pop(job)
        resizes.job.append(job)
        resizes.nodes_from.append(before)
        resizes.nodes_to.append(after)
        resizes.asked.append(now)
        resizes.decided.append(NEVER)
        resizes.applied.append(NEVER)
        resizes.ended.append(NEVER)

    def request(self, job: int, requested: int, *, answered: bool) -> None:
        """Record that the evolving `job` requests `requested` nodes, and whether a policy will answer."""
        self._requested.pop(job, None)
        if answered:
            self._requested[job] = requested

    def deny(self, job: int, nodes: int, requested: int, now: float) -> None:
        """Record that the evolving `job` does not get `requested` nodes, and continues with `nodes`."""
        self.denied.add(len(self.resizes))
        self.resize_requested(job, nodes, requested, now)
        del self._open[job]

    def pending_row(self, job: int) -> int:
        """Return the row of the pending resize of `job`."""
        return self._open[job]

    def within_resize(self, job: int, decided: float, applied: float, now: float) -> tuple[float, float]:
        """Return the times of the pending resize of `job`, between its request and `now`.

        The clock of a node may have stepped, so that its times are wrong until the step is measured.
        """
        decided = min(max(decided, self.resizes.asked[self._open[job]]), now)
        return decided, min(max(applied, decided), now)

    def resize_applied(
        self, job: int, decided: float, applied: float, ended: float, measured: Mapping[str, float] | None = None
    ) -> None:
        """Record that the pending resize of `job` took effect. `measured` has the known columns of `MEASURED`."""
        row, resizes = self._open.pop(job), self.resizes
        resizes.decided[row], resizes.applied[row], resizes.ended[row] = decided, applied, ended
        if measured:
            self.measured[row] = measured

    def _forget(self, job: int) -> None:
        if self._open:
            self._open.pop(job, None)
        if self._requested:
            self._requested.pop(job, None)
        self.cores.forget(job)


def cut_short(
    record: ScheduleRecord, cluster: Cluster, running: Iterable[int], now: float, interrupted: str | None
) -> None:
    """Record the final states of the jobs that have not ended when the run ends at `now`.

    Args:
        running: the jobs that were running.
        now: end of the run, trace seconds.
        interrupted: reason of the interruption; None: the policy started no more jobs.
    """
    for job in running:
        record.finish(job, now, JobState.INTERRUPTED, interrupted or "the run ended")
        cluster.release(job, now)
    cut = (JobState.INTERRUPTED, "not started when the run ended")
    record.close(*cut if interrupted else (JobState.UNKNOWN, NEVER_STARTED))
