"""The CPUs that a rank holds, by the table of its node."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tracebed.benchmarks.drom import DromProcess
from tracebed.benchmarks.node_table import NodeTable, TableLostError
from tracebed.benchmarks.ownership import DromResult
from tracebed.ground.errors import TestbedError

Adopt = Callable[[tuple[int, ...]], None]
"""A function that binds the threads of this process to the given CPUs."""


class HeldCpus:
    """The CPUs of this process.

    Args:
        table: the table of the node, in which the CPUs of this process were prepared; None: the CPUs never change.
        cpus: the CPUs that this process is to hold at its start.

    Attributes:
        cpus: the CPUs that this process holds.
        complete: whether the process holds all its CPUs, so that no change is pending.
        replacement: the table to open at the next poll; None: the table has not been replaced.
        lost: whether the table is lost, until it is replaced. The process keeps the CPUs that it holds.
    """

    def __init__(self, table: Path | None, cpus: tuple[int, ...]) -> None:
        """Register. Raises TestbedError if the table is full, or no CPUs were prepared."""
        self._process: DromProcess | None = None
        self.replacement: Path | None = None
        self.cpus, self.complete, self.lost = cpus, True, False
        if table is not None:
            self.cpus, self.complete = (), False
            self._register(table)

    def _register(self, path: Path) -> None:
        try:
            self._process = DromProcess(NodeTable(path))
        except TableLostError:
            self.lost = True
            return
        result = self._process.register()
        self.lost = result is DromResult.NO_TABLE
        if result.error and not self.lost:
            raise TestbedError(f"cannot register at the table of CPUs: {result.name}", where=str(path))
        self._note(self._process)

    @property
    def due(self) -> bool:
        """Whether a poll is due: the table has a post for this process, or was replaced."""
        if self.replacement is not None:
            return True
        return self._process is not None and not self.lost and self._process.posted

    def poll(self, adopt: Adopt) -> bool:
        """Release and take CPUs, and return whether the CPUs have changed. No thread may be computing.

        Args:
            adopt: called with the CPUs if they change, before other processes can take the released CPUs.
        """
        if self.replacement is not None:
            return self._reopen(self.replacement, adopt)
        if self._process is None or self.lost:
            return False
        before = self.cpus
        result = self._process.poll(adopt)[0]
        self.lost = result.error
        self._note(self._process)
        return self.cpus != before

    def _reopen(self, path: Path, adopt: Adopt) -> bool:
        """Continue with another table, in which this process was restored; otherwise like `poll`."""
        before, self.replacement = self.cpus, None
        try:
            table = NodeTable(path)
        except TableLostError:
            self.lost = True
            return False
        self._process = self._process or DromProcess(table)
        self.lost = self._process.reopen(table, adopt).error
        self._note(self._process)
        return self.cpus != before

    def close(self) -> None:
        """Close the table. The process keeps its CPUs."""
        if self._process is not None:
            self._process.table.close()
            self._process = None

    def _note(self, process: DromProcess) -> None:
        if not self.lost:
            self.cpus, self.complete = process.cpus, not process.pending
