"""An administrator for programs that do not know tracebed: all their threads are bound to their CPUs, from outside.

The CPUs of these programs are in the table of the node, as CPUs reserved for a process that never registers: it gives
them up at once. A program without a CPU is stopped (SIGSTOP) until it has one.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Collection, Iterable

from tracebed.benchmarks.affinity import processes_of, set_affinity
from tracebed.benchmarks.drom import Administrator
from tracebed.benchmarks.node_table import Table
from tracebed.benchmarks.ownership import Flags, Result


class ExternalAdministrator:
    """Programs that are bound from outside, with their child processes. The flags and results are those of DROM.

    Programs that follow the table of the node (`drom.Administrator`) may share its CPUs.

    Args:
        table: the table of the node.
    """

    def __init__(self, table: Table) -> None:
        self.administrator = Administrator(table)
        self._bound: dict[int, tuple[int, ...]] = {}
        """Attached process -> the CPUs to which it was last bound."""

    def attach(self, pid: int, cpus: Iterable[int], flags: Flags = Flags.NONE) -> Result:
        """Bind a program to its first CPUs.

        Args:
            pid: a process that is going to execute the program, or that runs it.
            cpus: its CPUs.
            flags: STEAL.

        Returns:
            SUCCESS; NOTED: other processes must release CPUs first; REGISTERED: attached already; an error.
        """
        wanted = tuple(cpus)
        self._release(wanted, flags)
        result, _ = self.administrator.prepare(pid, wanted, flags)
        if not result.error:
            self._bound[pid] = ()
        self.refresh()
        return result

    def set(self, pid: int, cpus: Iterable[int], flags: Flags = Flags.NONE) -> Result:
        """Change the CPUs of a program, and bind the program to those that no other process holds.

        The result is that of `Administrator.set_mask`.
        """
        if pid not in self._bound:
            return Result.NO_PROCESS
        wanted = tuple(cpus)
        self._release(wanted, flags, but=pid)
        result = self.administrator.set_mask(pid, wanted, flags)
        self.refresh()
        return result

    def get(self, pid: int) -> tuple[Result, tuple[int, ...]]:
        """Return SUCCESS, or NOTED if a change is pending, or an error; then the CPUs to which the program is bound."""
        self.refresh()
        return self.administrator.mask(pid) if pid in self._bound else (Result.NO_PROCESS, ())

    def detach(self, pid: int, flags: Flags = Flags.NONE) -> Result:
        """Release the CPUs of a program that has ended. `flags`: RETURN_STOLEN."""
        if self._bound.pop(pid, None) is None:
            return Result.NO_PROCESS
        result = self.administrator.finalize(pid, flags)
        self.refresh()
        return result

    def refresh(self) -> None:
        """Bind all attached programs to the CPUs that they hold in the table, which other processes may change."""
        for pid in list(self._bound):
            self.administrator.mask(pid)  # the CPUs of a program that has ended return to others
        for pid in list(self._bound):
            result, cpus = self.administrator.mask(pid)
            if result is Result.NO_PROCESS:
                del self._bound[pid]
            elif not result.error:
                self._bind(pid, cpus)

    def _release(self, wanted: Collection[int], flags: Flags, but: int | None = None) -> None:
        """Move the programs off CPUs that are to be taken from them, before another process may use these CPUs."""
        if Flags.STEAL in flags:
            for pid, cpus in list(self._bound.items()):
                if pid != but and not set(cpus).isdisjoint(wanted):
                    self._bind(pid, tuple(cpu for cpu in cpus if cpu not in wanted))

    def _bind(self, pid: int, cpus: tuple[int, ...]) -> None:
        before = self._bound[pid]
        with contextlib.suppress(ProcessLookupError):  # the program has ended
            if cpus:
                set_affinity(pid, cpus, descendants=True)
            if bool(cpus) != bool(before):
                for process in processes_of(pid):
                    os.kill(process, signal.SIGCONT if cpus else signal.SIGSTOP)
        self._bound[pid] = cpus
