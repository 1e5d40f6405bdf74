"""The CPUs that a rank holds, by the table of its node."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tracebed.benchmarks.drom import Application
from tracebed.benchmarks.node_table import Table, TableLostError
from tracebed.benchmarks.ownership import Result
from tracebed.errors import TestbedError

Adopt = Callable[[tuple[int, ...]], None]
"""A function that lets the threads of this process use the given CPUs, and no others."""


class Holding:
    """The CPUs of this process.

    Args:
        table: the table of the node, in which the CPUs of this process were prepared; None: the CPUs never change.
        cpus: the CPUs that this process is to hold at its start.

    Attributes:
        cpus: the CPUs that this process holds.
        complete: whether these are all CPUs that this process is to have.
        replacement: the table to open at the next poll; None: the table has not been replaced.
        lost: whether the table is lost, until it is replaced. The process keeps the CPUs that it holds.
    """

    def __init__(self, table: Path | None, cpus: tuple[int, ...]) -> None:
        """Register. Raises TestbedError if the table has no room, or no CPUs were prepared."""
        self._application: Application | None = None
        self.replacement: Path | None = None
        self.cpus, self.complete, self.lost = cpus, True, False
        if table is not None:
            self.cpus, self.complete = (), False
            self._register(table)

    def _register(self, path: Path) -> None:
        try:
            self._application = Application(Table(path))
        except TableLostError:
            self.lost = True
            return
        result = self._application.register()
        self.lost = result is Result.NO_TABLE
        if result.error and not self.lost:
            raise TestbedError(f"cannot register at the table of CPUs: {result.name}", where=str(path))
        self._note(self._application)

    @property
    def due(self) -> bool:
        """Whether a poll is due: the table has a post for this process, or was replaced."""
        if self.replacement is not None:
            return True
        return self._application is not None and not self.lost and self._application.posted

    def poll(self, adopt: Adopt) -> bool:
        """Release and take CPUs, and return whether the CPUs have changed. No thread may be computing.

        Args:
            adopt: called with the CPUs if they change, before other processes can take those that are released.
        """
        if self.replacement is not None:
            return self._reopen(self.replacement, adopt)
        if self._application is None or self.lost:
            return False
        before = self.cpus
        result = self._application.poll(adopt)[0]
        self.lost = result.error
        self._note(self._application)
        return self.cpus != before

    def _reopen(self, path: Path, adopt: Adopt) -> bool:
        """Continue with another table, in which this process was restored; otherwise like `poll`."""
        before, self.replacement = self.cpus, None
        try:
            table = Table(path)
        except TableLostError:
            self.lost = True
            return False
        self._application = self._application or Application(table)
        self.lost = self._application.reopen(table, adopt).error
        self._note(self._application)
        return self.cpus != before

    def _note(self, application: Application) -> None:
        if not self.lost:
            self.cpus, self.complete = application.cpus, not application.pending
