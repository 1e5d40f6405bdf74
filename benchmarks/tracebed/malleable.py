"""Malleability for any Python program, in three lines.

    from tracebed import malleable

    with malleable.attach() as m:
        for chunk in work:
            if m.poll():                       # a malleability point: no thread of the program may be computing
                use(len(m.cpus))
            compute(chunk)

Under an administrator (`tracebed.benchmarks.drom`), the program holds the CPUs that were prepared for it, and follows
every change of them. Without an administrator the program is rigid: `poll` returns False.

`attach(on_change=function)` calls a function with the CPUs at each change, and `attach(on_change=function,
asynchronous=True)` does so from a helper thread, without malleability points.

A program can also request a change: `m.check(1, 8, 4)` corresponds to `dmr_check_status` of the DMR API.
"""

from __future__ import annotations

import os
import threading
import time
import warnings
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tracebed.benchmarks import dmr_manager
from tracebed.benchmarks.affinity import set_affinity
from tracebed.benchmarks.dmr import SizeRange
from tracebed.benchmarks.drom import TABLE, Callback, DromProcess, Receiver
from tracebed.benchmarks.node_table import NodeTable
from tracebed.ground.errors import TestbedError

LOOK_S = 0.001  # pause between two polls of a program that holds no CPU, s


class Attached:
    """A program that follows the changes of its CPUs.

    Attributes:
        cpus: the CPUs that the program holds, ascending.
    """

    def __init__(self, process: DromProcess | None, *, pin: bool, on_change: Callback | None = None) -> None:
        self._process, self._pin, self._on_change = process, pin, on_change
        self._lock = threading.RLock()  # the program and its receiver may follow the same change
        self.cpus = self._polled = tuple(sorted(os.sched_getaffinity(0)))
        if process is not None:
            self.cpus = self._polled = process.cpus
            if self.cpus:
                self._bind()
            else:
                self.poll()

    @property
    def malleable(self) -> bool:
        """Whether the program has an administrator."""
        return self._process is not None

    def poll(self, *, wait: bool = True) -> bool:
        """Release and take the CPUs of a pending change. Return whether the CPUs have changed since the last poll.

        A program that loses its last CPU waits in this call for another one, unless `wait` is false: then `cpus` is
        empty, and the program must not compute before another call has given it CPUs. If the table of the node is
        lost, the program keeps its CPUs, with a warning.
        """
        while self._follow() and wait and not self.cpus:
            time.sleep(LOOK_S)
        before, self._polled = self._polled, self.cpus
        return self._polled != before

    def _follow(self) -> bool:
        """Apply a pending change. Return whether the CPUs can change again."""
        with self._lock:
            if self._process is None:
                return False
            result = self._process.follow(self._use)[0]
            if result.error:
                warnings.warn(f"CPUs of this program can no longer change: {result.name}", stacklevel=3)
                self._process = None
            return not result.error

    def _use(self, cpus: tuple[int, ...]) -> None:
        self.cpus = cpus
        self._bind()
        if self._on_change is not None:
            self._on_change(cpus)

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
def attach(
    *,
    pin: bool = True,
    cpus: Iterable[int] | None = None,
    on_change: Callback | None = None,
    asynchronous: bool = False,
) -> Iterator[Attached]:
    """Follow the changes of the CPUs of this program, in a `with` statement.

    Args:
        pin: whether all threads of the program are bound to its CPUs at each change. A program that binds its threads
            itself passes False.
        cpus: the CPUs that the program takes from the CPUs prepared for it; None: all. For one of several
            processes of a job. Without an administrator, they have no effect.
        on_change: called with the CPUs at each change. If the program loses CPUs, other programs can take them once
            this function has returned. If it raises an exception, the CPUs do not change before the next poll.
        asynchronous: whether a helper thread waits for changes and applies them at once. `on_change` then runs in this
            thread, while the program computes. An exception of `on_change` ends the thread, and the CPUs no longer
            change. Otherwise changes are applied by `poll` (DROM paper, section 3.1: the receiver polls by default).

    Yields:
        The program. On exit its CPUs return to the processes from which they were taken.

    Raises:
        TestbedError: the table of the node cannot be used, or has no CPUs for this program.
    """
    path = os.environ.get(TABLE)
    if not path:
        yield Attached(None, pin=pin, on_change=on_change)
        return
    table = NodeTable(Path(path))
    try:
        with DromProcess(table, cpus) as process, ExitStack() as stack:
            attached = Attached(process, pin=pin, on_change=on_change)
            if asynchronous:
                stack.enter_context(Receiver(process, attached._follow))
            yield attached
    finally:
        table.close()
