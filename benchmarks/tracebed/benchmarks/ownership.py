"""The rules of DROM on the entries of the node's table: which process may get which CPUs, and when.

Each function changes the entries of one transaction. The calls of administrators and processes are in `drom.py`.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Iterable, Mapping

from tracebed.benchmarks.node_table import TableEntry, Transaction, bits
from tracebed.ground import system


class DromResult(enum.IntEnum):
    """Result of a call. Errors are negative."""

    SUCCESS = 0  # the change is complete
    NOTED = 1  # the change is accepted, and is pending until processes have polled
    NO_UPDATE = 2  # nothing has changed since the last poll
    NO_PROCESS = -1  # the process is unknown
    PENDING = -2  # an earlier change of the process is still pending ("dirty")
    PERMISSION = -3  # a CPU belongs to another process, or is not of this node
    TIMEOUT = -4  # The processes did not poll in time. The change was withdrawn.
    NO_TABLE = -5  # the table is missing or damaged
    REGISTERED = -6  # the process is registered already
    FULL = -7  # the table is full

    @property
    def error(self) -> bool:
        """Whether the call has failed."""
        return self < 0


class Flags(enum.IntFlag):
    """Options of a call."""

    NONE = 0
    STEAL = 1  # take CPUs from other processes
    # At the end, return CPUs to the processes from which they were taken. Otherwise they become free.
    RETURN_STOLEN = 2
    SYNC = 4  # Wait until all affected processes have polled. Without this flag, no call waits.
    # Replace pending changes. Without this flag, a process with a pending change can neither be changed nor lose CPUs.
    # CPUs that were taken from the process before do not return to it. This flag is for the only administrator of a
    # node, and cannot be combined with SYNC.
    REPLACE = 8


def assign(table: Transaction, entry: TableEntry, requested: int, flags: Flags) -> DromResult:
    """Assign the CPUs `requested` to a process, or change nothing."""
    if entry.pending and Flags.REPLACE not in flags:
        return DromResult.PENDING
    reclaim(table, _holders(table, entry, requested))
    holders = _holders(table, entry, requested)
    if requested & ~table.node or (holders and Flags.STEAL not in flags):
        return DromResult.PERMISSION
    if Flags.REPLACE not in flags and any(other.pending for other in holders):
        return DromResult.PERMISSION
    owned = 0  # CPUs that are taken already return to their first owner
    for other in table.entries.values():
        owned |= other.taken
    for other in holders:
        other.taken |= other.target & requested & ~owned
        other.target &= ~requested
    entry.taken = 0 if Flags.REPLACE in flags else entry.taken & ~requested
    entry.target = requested
    for other in (*holders, entry):
        _post(table, other)
    return DromResult.NOTED if entry.pending or any(other.pending for other in holders) else DromResult.SUCCESS


def register(table: Transaction, pid: int, parent: TableEntry | None, requested: int | None) -> DromResult:
    """Register a process with the CPUs `requested`, out of the CPUs prepared for it or for `parent`."""
    own = alive_entry(table, pid)
    if own is not None and own.registered:
        return DromResult.REGISTERED
    source = own or (None if parent is None or parent.registered else parent)
    if source is None:
        return _register_unprepared(
            table, pid, bits(os.sched_getaffinity(pid)) & table.node if requested is None else requested
        )
    requested = source.target if requested is None else requested
    if requested & ~source.target:
        return DromResult.PERMISSION
    entry = own or table.add(pid, registered=True)
    if entry is None:
        return DromResult.FULL
    entry.registered = True
    if source is not entry:  # children inherit the CPUs piece by piece
        source.target &= ~requested
        source.held &= ~requested
        if not source.target:
            del table.entries[source.pid]
    entry.target = requested
    take(table, entry)
    return DromResult.NOTED if entry.pending else DromResult.SUCCESS


def _register_unprepared(table: Transaction, pid: int, requested: int) -> DromResult:
    """Register a process with free CPUs."""
    entry = table.add(pid, registered=True)
    if entry is None:
        return DromResult.FULL
    result = assign(table, entry, requested, Flags.NONE)
    if result.error:
        del table.entries[pid]
    return result


def take(table: Transaction, entry: TableEntry) -> None:
    """Release the CPUs that a process must give up, and take the available CPUs of its target."""
    before, blocked = entry.held, 0
    for other in table.others(entry):
        blocked |= other.held
    entry.held = entry.target & ~blocked
    released = before & ~entry.held
    for other in table.others(entry):
        if other.target & ~other.held & released:
            _post(table, other)


def _post(table: Transaction, entry: TableEntry) -> None:
    """Post a pending change to a process. A process that has not started takes its CPUs at once, as does this one."""
    if entry.pending:
        table.posted.add(entry.slot)
        if not entry.registered or entry.pid == system.current().pid():
            take(table, entry)


def release(table: Transaction, entry: TableEntry, flags: Flags) -> None:
    """Remove a process. Its CPUs return to the processes from which they were taken, or become free."""
    del table.entries[entry.pid]
    for other in table.entries.values():
        if Flags.RETURN_STOLEN in flags:
            other.target |= other.taken & entry.target
        other.taken &= ~entry.target
    for other in list(table.entries.values()):
        _post(table, other)


def withdraw(table: Transaction, affected: Mapping[int, int], before: Mapping[int, tuple[int, int]]) -> None:
    """Withdraw a change, which assigned CPUs to `affected`. `before` are the CPUs of all processes, and those taken."""
    for pid in affected.keys() - before.keys():
        if pid in table.entries:
            release(table, table.entries[pid], Flags.RETURN_STOLEN)
    changed = [table.entries[pid] for pid in affected if pid in table.entries]
    changed = [entry for entry in changed if entry.target == affected[entry.pid]]  # others have returned already
    for entry in changed:
        entry.target = 0
    for entry in changed:
        used = 0
        for other in table.entries.values():
            used |= other.target
        target, entry.taken = before[entry.pid]
        entry.target = target & ~used
    for entry in changed:
        _post(table, entry)


def _holders(table: Transaction, entry: TableEntry, requested: int) -> list[TableEntry]:
    """Return the other processes that hold, or are to hold, one of the CPUs `requested`."""
    return [other for other in table.others(entry) if (other.held | other.target) & requested]


def alive_entry(table: Transaction, pid: int) -> TableEntry | None:
    """Return the entry of a process if the process still runs, else None."""
    if pid in table.entries:
        reclaim(table, [table.entries[pid]])
    return table.entries.get(pid)


def reclaim(table: Transaction, entries: Iterable[TableEntry]) -> None:
    """Remove the processes among `entries` that have died without a call of `finalize`."""
    for entry in list(entries):
        if not entry.alive:
            release(table, entry, Flags.RETURN_STOLEN)
