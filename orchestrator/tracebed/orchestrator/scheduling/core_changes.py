"""Changes of the cores that a running job holds on a node."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from tracebed.ground.states import ChangeCause
from tracebed.orchestrator.scheduling.cluster import Cluster

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
        """Record the cores with which `job` starts on shared nodes.

        Args:
            cluster: the allocation.
            requested: cores that the job uses at most on a node.
        """
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
        found = [row for row in rows if self.cores_to[row] == cores]
        if not found:
            return None
        row = ([row for row in found if self.asked[row] <= at] or found[:1])[-1]
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
