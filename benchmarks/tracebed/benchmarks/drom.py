"""Dynamic resource ownership management (DROM): administrators assign the CPUs of a node to processes, which poll.

The calls, flags, results and behaviors follow DROM (D'Amico, Garcia-Gasulla, Lopez, Jokanovic, Sirvent, Corbalan:
"DROM: Enabling Efficient and Effortless Malleability for Resource Managers", ICPP 2018 Companion, section 3.2), with
one addition: a CPU has at most one holder. A process that is given a CPU of another process receives it from its first
poll after the other process has released the CPU by a poll.

    administrator = Administrator(NodeTable.create(path, cpus=range(48)))
    variables = administrator.prepare(os.getpid(), {0, 1}, Flags.STEAL)[1]     # PreInit, before the program starts
    ...
    with DromProcess(table) as process:                                        # in the program
        while work_remains:
            result, cpus = process.poll()
            if result is DromResult.SUCCESS:
                use(cpus)
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from tracebed.benchmarks import ownership
from tracebed.benchmarks.node_table import NodeTable, TableEntry, TableLostError, Transaction, bits, cpus_of, start_of
from tracebed.benchmarks.ownership import DromResult, Flags
from tracebed.ground import system
from tracebed.ground.errors import TestbedError

TABLE = "TRACEBED_DROM_TABLE"
"""Environment variable with the path of the table of the node, for programs."""
VARIABLE = "TRACEBED_DROM_PREPARED"
"""Environment variable with the PID for which CPUs are reserved. Children of this process inherit these CPUs."""
LOOK_S = 0.0005
"""Pause between two looks at the table while waiting, s. The processes that are waited for need the CPUs."""
RECEIVE_S = 0.005
"""Pause between two looks of the asynchronous receiver, s: about half a per cent of a CPU. With 1 ms, it was 3 %."""
SYNC_S = 5.0
"""Time in which the processes must poll after a synchronous call, s."""
Callback = Callable[[tuple[int, ...]], None]
"""A function that makes the program use the given CPUs, ascending, and no others. It returns when this is done."""


class _TakenMeanwhileError(Exception):
    """A CPU that the program still uses was taken from it between a callback and a poll."""


class CpuMasks(NamedTuple):
    """The CPUs of a process: the CPUs that it may use now, and its CPUs after its next polls."""

    held: tuple[int, ...] = ()
    target: tuple[int, ...] = ()
    posts: int = 0
    """Number of changes that were posted to the process."""

    @property
    def pending(self) -> bool:
        """Whether a change is pending."""
        return self.held != self.target


class Administrator:
    """The calls of an administrator.

    Args:
        table: the table of the node.
        sync_s: time in which the processes must poll after a synchronous call, s.
    """

    def __init__(self, table: NodeTable, *, sync_s: float = SYNC_S) -> None:
        self.table, self.sync_s = table, sync_s

    def cpus(self) -> tuple[int, ...]:
        """Return the CPUs of the node. Raises TableLostError."""
        with self.table.transaction(changes=False) as table:
            return cpus_of(table.node)

    def free(self) -> tuple[int, ...]:
        """Return the CPUs that belong to no process. Raises TableLostError."""
        with self.table.transaction() as table:
            ownership.reclaim(table, table.entries.values())
            used = 0
            for entry in table.entries.values():
                used |= entry.held | entry.target
            return cpus_of(table.node & ~used)

    def pids(self) -> list[int]:
        """Return the registered processes, in the order of their registration. Raises TableLostError."""
        with self.table.transaction() as table:
            ownership.reclaim(table, table.entries.values())
            return [pid for pid, entry in table.entries.items() if entry.registered]

    def mask(self, pid: int, flags: Flags = Flags.NONE) -> tuple[DromResult, tuple[int, ...]]:
        """Return the CPUs that a process holds.

        Args:
            pid: the process.
            flags: SYNC: wait until the process has polled a pending change.

        Returns:
            SUCCESS; NOTED: a change is pending; NO_PROCESS; TIMEOUT; NO_TABLE. Then the CPUs.
        """
        until = system.monotonic() + self.sync_s
        while True:
            try:
                with self.table.transaction() as table:
                    entry = ownership.alive_entry(table, pid)
            except TableLostError:
                return DromResult.NO_TABLE, ()
            if entry is None:
                return DromResult.NO_PROCESS, ()
            if not entry.pending:
                return DromResult.SUCCESS, cpus_of(entry.held)
            if Flags.SYNC not in flags:
                return DromResult.NOTED, cpus_of(entry.held)
            if system.monotonic() > until:
                return DromResult.TIMEOUT, cpus_of(entry.held)
            system.sleep(LOOK_S)

    def set_mask(self, pid: int, cpus: Iterable[int], flags: Flags = Flags.NONE) -> DromResult:
        """Set the CPUs of a process. The process gets them by its next polls; this process gets its own at once.

        A process without a CPU waits. With STEAL, even the last CPU of a process can be taken.

        Args:
            pid: the process.
            cpus: its CPUs.
            flags: STEAL, SYNC, REPLACE.

        Returns:
            SUCCESS: the process holds the CPUs; NOTED: processes must poll first; NO_PROCESS; PENDING; PERMISSION: a
            CPU is not of this node, or is of another process without STEAL, or is part of a pending change; TIMEOUT;
            NO_TABLE.
        """

        def change(table: Transaction) -> DromResult:
            entry = ownership.alive_entry(table, pid)
            return DromResult.NO_PROCESS if entry is None else ownership.assign(table, entry, bits(cpus), flags)

        return self._change(change, flags)

    def prepare(self, pid: int, cpus: Iterable[int], flags: Flags = Flags.NONE) -> tuple[DromResult, Mapping[str, str]]:
        """Reserve CPUs for a process that is about to start (`PreInit`), or for its children.

        Args:
            pid: the process, usually one that is going to execute the program or to fork the processes of a job.
            cpus: its CPUs.
            flags: STEAL, SYNC, REPLACE.

        Returns:
            As `set_mask`, also REGISTERED and FULL. Then the environment variables by which the program, or the
            children of the process, find their CPUs.
        """

        def change(table: Transaction) -> DromResult:
            if ownership.alive_entry(table, pid) is not None:
                return DromResult.REGISTERED
            entry = table.add(pid, registered=False)
            if entry is None:
                return DromResult.NO_PROCESS if start_of(pid) is None else DromResult.FULL
            result = ownership.assign(table, entry, bits(cpus), flags)
            if result.error:
                del table.entries[pid]
            return result

        result = self._change(change, flags)
        return result, {} if result.error else {TABLE: str(self.table.path), VARIABLE: str(pid)}

    def shares(self) -> dict[int, CpuMasks]:
        """Return the CPUs of all processes. Raises TableLostError."""
        with self.table.transaction(changes=False) as table:
            return {
                pid: CpuMasks(cpus_of(entry.held), cpus_of(entry.target), self.table.posts(entry.slot))
                for pid, entry in table.entries.items()
            }

    def restore(self, shares: Mapping[int, CpuMasks]) -> None:
        """Enter processes that run with CPUs of a table that was lost. Each of them must call `reopen`.

        Raises TableLostError.
        """
        with self.table.transaction() as table:
            for pid, share in shares.items():
                entry = table.add(pid, registered=True)
                if entry is not None:  # otherwise, the process has ended
                    entry.held, entry.target = bits(share.held), bits(share.target)

    def finalize(self, pid: int, flags: Flags = Flags.NONE) -> DromResult:
        """Remove a process that has ended (`PostFinalize`).

        Args:
            pid: the process.
            flags: RETURN_STOLEN.

        Returns:
            SUCCESS, NO_PROCESS, NO_TABLE.
        """
        return _finalize(self.table, pid, flags)

    def _change(self, change: Callable[[Transaction], DromResult], flags: Flags) -> DromResult:
        """Apply a change. If it is synchronous, wait until the affected processes have polled, or withdraw it."""
        try:
            with self.table.transaction() as table:
                before = {pid: (entry.target, entry.taken) for pid, entry in table.entries.items()}
                result = change(table)
                after = {pid: entry.target for pid, entry in table.entries.items()}
            if result is not DromResult.NOTED or Flags.SYNC not in flags:
                return result
            affected = {pid: target for pid, target in after.items() if before.get(pid, (0, 0))[0] != target}
            until, seen = system.monotonic() + self.sync_s, b""
            while system.monotonic() < until:
                system.sleep(LOOK_S)
                mark = self.table.mark()
                if mark == seen:
                    continue
                seen = mark
                with self.table.transaction() as table:
                    if not any(table.entries[pid].pending for pid in affected if pid in table.entries):
                        return DromResult.SUCCESS
            with self.table.transaction() as table:
                ownership.withdraw(table, affected, before)
            return DromResult.TIMEOUT
        except TableLostError:
            return DromResult.NO_TABLE


class DromProcess:
    """The calls of a process that holds CPUs. On exit from `with`, the process is finalized.

    Args:
        table: the table of the node.
        cpus: the CPUs of the process; None: all CPUs that were prepared for it, otherwise the CPUs that it may use.

    Attributes:
        cpus: the CPUs that the process holds.
        pending: whether the process is to have other CPUs than these.
    """

    def __init__(self, table: NodeTable, cpus: Iterable[int] | None = None) -> None:
        self.table, self._requested = table, None if cpus is None else bits(cpus)
        self.cpus: tuple[int, ...] = ()
        self.pending = False
        self._slot: int | None = None
        self._seen = 0

    def __enter__(self) -> DromProcess:
        """Register. Raises TestbedError if the CPUs are not available."""
        result = self.register()
        if result.error:
            hint = "choose free CPUs, or prepare CPUs for this process as an administrator"
            what = f"cannot register at the table of CPUs: {result.name}"
            raise TestbedError(what, where=str(self.table.path), hint=hint)
        return self

    def __exit__(self, *_: object) -> None:
        """Finalize, and return CPUs to the processes from which they were taken."""
        self.finalize(Flags.RETURN_STOLEN)

    def register(self) -> DromResult:
        """Register this process.

        Returns:
            SUCCESS; NOTED: other processes must release CPUs first, then `poll` returns them; REGISTERED; PERMISSION:
            a CPU is of another process, or not among the prepared ones; FULL; NO_TABLE.
        """
        pid = system.current().pid()
        prepared = os.environ.get(VARIABLE, "")
        try:
            with self.table.transaction() as table:
                parent = ownership.alive_entry(table, int(prepared)) if prepared.isdecimal() else None
                result = ownership.register(table, pid, parent, self._requested)
                if result.error:
                    return result
                self._follow(table.entries[pid])
                return result
        except TableLostError:
            return DromResult.NO_TABLE

    @property
    def posted(self) -> bool:
        """Whether a change was posted to this process since its last poll. It takes about a microsecond."""
        return self._slot is not None and self.table.posts(self._slot) != self._seen

    def poll(self, adopt: Callable[[tuple[int, ...]], None] | None = None) -> tuple[DromResult, tuple[int, ...]]:
        """Release and take the CPUs of a pending change. The process must not be using CPUs that it may lose.

        Args:
            adopt: called with the CPUs if they change, before other processes can take the released CPUs. An
                exception of this function leaves the table as it was.

        Returns:
            SUCCESS: the CPUs have changed; NO_UPDATE; NO_PROCESS: not registered; NO_TABLE. Then the CPUs.
        """
        if self._slot is None:
            return DromResult.NO_PROCESS, self.cpus
        if not self.posted:
            return DromResult.NO_UPDATE, self.cpus
        before = self.cpus
        try:
            with self.table.transaction() as table:
                entry = table.entries.get(system.current().pid())
                if entry is None:
                    return DromResult.NO_PROCESS, self.cpus
                self._take(table, entry, adopt)
        except TableLostError:
            return DromResult.NO_TABLE, self.cpus
        return DromResult.SUCCESS if self.cpus != before else DromResult.NO_UPDATE, self.cpus

    def follow(self, callback: Callback) -> tuple[DromResult, tuple[int, ...]]:
        """Poll, and call `callback` if the CPUs change. The lock of the table is free meanwhile.

        If the process loses CPUs, `callback` first gets the CPUs that are left; other processes can take the lost ones
        once it has returned. If the process receives CPUs, `callback` then gets all its CPUs. An exception of the first
        call leaves the table as it was.

        Returns:
            As `poll`.
        """
        used, result = self.cpus, DromResult.NO_UPDATE
        while self.posted:
            try:
                with self.table.transaction(changes=False) as table:
                    entry = table.entries.get(system.current().pid())
                    left = () if entry is None else cpus_of(entry.held & entry.target)
            except TableLostError:
                return DromResult.NO_TABLE, self.cpus
            if entry is not None and not set(used) <= set(left):
                used, result = tuple(cpu for cpu in used if cpu in left), DromResult.SUCCESS
                callback(used)

            def check(cpus: tuple[int, ...], used: tuple[int, ...] = used) -> None:
                if not set(used) <= set(cpus):
                    raise _TakenMeanwhileError

            try:
                polled = self.poll(check)[0]
            except _TakenMeanwhileError:
                continue
            if polled.error:
                return polled, self.cpus
            if self.cpus != used:
                used, result = self.cpus, DromResult.SUCCESS
                callback(used)
        return DromResult.NO_PROCESS if self._slot is None else result, self.cpus

    def reopen(self, table: NodeTable, adopt: Callable[[tuple[int, ...]], None] | None = None) -> DromResult:
        """Continue with another table, in which an administrator has restored this process. It is also a `poll`.

        Returns:
            SUCCESS; NO_PROCESS: the process was not restored; NO_TABLE.
        """
        try:
            with table.transaction() as transaction:
                entry = transaction.entries.get(system.current().pid())
                if entry is None:
                    return DromResult.NO_PROCESS
                self.table = table
                self._take(transaction, entry, adopt)
        except TableLostError:
            return DromResult.NO_TABLE
        return DromResult.SUCCESS

    def _take(self, table: Transaction, entry: TableEntry, adopt: Callable[[tuple[int, ...]], None] | None) -> None:
        before = entry.held
        ownership.take(table, entry)
        if adopt is not None and entry.held != before:
            adopt(cpus_of(entry.held))
        self._follow(entry)

    def _follow(self, entry: TableEntry) -> None:
        """Read the CPUs of this process, within a transaction: no later post is lost."""
        self.cpus, self.pending, self._slot = cpus_of(entry.held), entry.pending, entry.slot
        self._seen = self.table.posts(entry.slot)

    def finalize(self, flags: Flags = Flags.NONE) -> DromResult:
        """Give up all CPUs.

        Args:
            flags: RETURN_STOLEN.

        Returns:
            SUCCESS; NO_PROCESS: not registered, or finalized already; NO_TABLE.
        """
        self._slot, self.cpus = None, ()
        return _finalize(self.table, system.current().pid(), flags)


class Receiver:
    """A helper thread that follows changes of the CPUs of a process at once: the asynchronous receiver of DLB.

    The process needs no malleability points (DROM paper, section 3.1). In a `with` statement.

    Args:
        follow: called when a change was posted to the process; returns whether the thread goes on.
        process: the process, registered.
    """

    def __init__(self, process: DromProcess, follow: Callable[[], bool]) -> None:
        self._process, self._follow = process, follow
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tracebed-receiver", daemon=True)

    def __enter__(self) -> Receiver:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End the thread, after a callback that has begun."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(RECEIVE_S):
            if self._process.posted and not self._follow():
                return


def _finalize(table: NodeTable, pid: int, flags: Flags) -> DromResult:
    """Remove a process."""
    try:
        with table.transaction() as transaction:
            entry = transaction.entries.get(pid)
            if entry is None:
                return DromResult.NO_PROCESS
            ownership.release(transaction, entry, flags)
            return DromResult.SUCCESS
    except TableLostError:
        return DromResult.NO_TABLE
