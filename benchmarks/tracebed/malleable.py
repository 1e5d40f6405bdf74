"""Malleability for any Python program, in three lines.

    from tracebed import malleable

    with malleable.attach() as m:
        for chunk in work:
            if m.poll():                       # a malleability point: no thread of the program may be computing
                use(len(m.cpus))
            compute(chunk)

Under an administrator (`tracebed.benchmarks.drom`), the program holds the CPUs that were prepared for it, and follows
every change of them. Without an administrator the program is rigid: `poll` returns False.

A program can also request a change: `m.check(1, 8, 4)` corresponds to `dmr_check_status` of the DMR API.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tracebed.benchmarks import dmr_manager
from tracebed.benchmarks.affinity import set_affinity
from tracebed.benchmarks.dmr import SizeRange
from tracebed.benchmarks.drom import TABLE, DromProcess
from tracebed.benchmarks.node_table import NodeTable
from tracebed.errors import TestbedError

LOOK_S = 0.001
"""Pause between two polls of a program that holds no CPU, s."""


class Attached:
    """A program that follows the changes of its CPUs.

    Attributes:
        cpus: the CPUs that the program holds, ascending.
    """

    def __init__(self, process: DromProcess | None, *, pin: bool) -> None:
        self._process, self._pin = process, pin
        self.cpus = tuple(sorted(os.sched_getaffinity(0)))
        if process is not None:
            self.cpus = process.cpus
            if self.cpus:
                self._bind()
            else:
                self.poll()

    @property
    def malleable(self) -> bool:
        """Whether the program has an administrator."""
        return self._process is not None

    def poll(self, *, wait: bool = True) -> bool:
        """Release and take the CPUs of a pending change, and return whether the CPUs have changed.

        A program that loses its last CPU waits in this call for another one, unless `wait` is false: then `cpus` is
        empty, and the program must not compute before another call has given it CPUs. If the table of the node is
        lost, the program keeps its CPUs, with a warning.
        """
        if self._process is None:
            return False
        before = self.cpus
        while True:
            result, cpus = self._process.poll()
            if result.error:
                warnings.warn(f"CPUs of this program can no longer change: {result.name}", stacklevel=2)
                self._process = None
                return False
            if cpus or not wait:
                break
            time.sleep(LOOK_S)
        if cpus == before:
            return False
        self.cpus = cpus
        self._bind()
        return True

    def check(self, least: int, most: int, preferred: int) -> bool:
        """Request a change of the CPUs from the resource manager, then poll. Return whether the CPUs have changed.

        The resource manager shrinks the program to `preferred` or `least` CPUs if this allows another job to start, and
        expands it up to `most` CPUs if no other job can use the idle ones. Without a resource manager, this is `poll`.

        Raises:
            InputError: not 1 <= least <= preferred <= most.
        """
        sizes = SizeRange(least, preferred, most).checked()
        manager = dmr_manager.address()
        if self._process is not None and manager is not None:
            try:
                dmr_manager.request_decision(manager, len(self.cpus), sizes)
            except TestbedError as error:
                warnings.warn(str(error), stacklevel=2)
        return self.poll()

    def _bind(self) -> None:
        if self._pin and self.cpus:
            set_affinity(os.getpid(), self.cpus)


@contextmanager
def attach(*, pin: bool = True, cpus: Iterable[int] | None = None) -> Iterator[Attached]:
    """Follow the changes of the CPUs of this program, in a `with` statement.

    Args:
        pin: whether all threads of the program are bound to its CPUs at each change. A program that binds its threads
            itself passes False.
        cpus: the CPUs that the program takes from the CPUs prepared for it; None: all. For one of several
            processes of a job. Without an administrator, they have no effect.

    Yields:
        The program. On exit its CPUs return to the processes from which they were taken.

    Raises:
        TestbedError: the table of the node cannot be used, or has no CPUs for this program.
    """
    path = os.environ.get(TABLE)
    if not path:
        yield Attached(None, pin=pin)
        return
    table = NodeTable(Path(path))
    try:
        with DromProcess(table, cpus) as process:
            yield Attached(process, pin=pin)
    finally:
        table.close()
