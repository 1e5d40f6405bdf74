"""The backend for programs that poll the table of their node, and park and wake their own threads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tracebed.benchmarks.backends.base import Backend
from tracebed.benchmarks.drom import Administrator
from tracebed.benchmarks.node_table import Table
from tracebed.benchmarks.ownership import Flags, Result


class NativeBackend(Backend):
    """The administrator of a table.

    Args:
        table: the table of the node.
    """

    def __init__(self, table: Table) -> None:
        self.administrator = Administrator(table)

    def attach(self, pid: int, cpus: Iterable[int], flags: Flags = Flags.NONE) -> tuple[Result, Mapping[str, str]]:
        """Reserve CPUs for a program, which follows the table by `tracebed.malleable` or `tracebed_malleable.h`."""
        return self.administrator.prepare(pid, cpus, flags)

    def set(self, pid: int, cpus: Iterable[int], flags: Flags = Flags.NONE) -> Result:
        """Change the CPUs of a program. The program gets them by its next poll."""
        return self.administrator.set_mask(pid, cpus, flags)

    def get(self, pid: int) -> tuple[Result, tuple[int, ...]]:
        """Return the CPUs that the program holds."""
        return self.administrator.mask(pid)

    def detach(self, pid: int, flags: Flags = Flags.NONE) -> Result:
        """Release the CPUs of a program that has ended."""
        return self.administrator.finalize(pid, flags)
