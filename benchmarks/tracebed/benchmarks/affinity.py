"""CPU affinity of the threads of other processes: for programs that do not use tracebed.

The kernel moves the threads at once. The number of threads of the program stays as it is, so that several threads may
share a CPU: see "What a mask does to a program" in docs/explanation/ownership.md.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

ROUNDS = 10  # number of times that the threads of a process are listed, until no new thread is found


def threads_of(pid: int) -> Iterator[int]:
    """Yield the threads of a process; nothing if it has ended."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            yield int(thread.name)


def processes_of(pid: int) -> list[int]:
    """Return a process and its descendants, the parents before their children; none if it has ended."""
    processes = [pid] if next(threads_of(pid), None) is not None else []
    for parent in processes:  # the list grows
        for thread in threads_of(parent):
            with contextlib.suppress(OSError):
                children = Path(f"/proc/{parent}/task/{thread}/children").read_text(encoding="ascii")
                processes += map(int, children.split())
    return processes


def set_affinity(pid: int, cpus: Iterable[int], *, descendants: bool = False) -> int:
    """Bind all threads of a process to CPUs, and return the number of threads.

    A thread that starts meanwhile inherits the CPUs of the thread that starts it, and a list of threads may lack some
    if others end meanwhile. So threads are listed again, twice each time, until all are bound.

    Args:
        descendants: whether its child processes, and theirs, are bound too.

    Raises:
        ProcessLookupError: the process has ended.
        PermissionError: the process belongs to another user.
        OSError: the CPUs are not available to this machine or control group.
    """
    mask = frozenset(cpus)
    bound: set[int] = set()
    for _ in range(ROUNDS):
        unbound = _threads(pid, descendants=descendants) - bound
        if bound:
            unbound |= strays(pid, mask, descendants=descendants).keys()
        if not unbound:
            break
        for thread in unbound:
            with contextlib.suppress(ProcessLookupError):  # it has ended
                os.sched_setaffinity(thread, mask)
        bound |= unbound
    if not bound:
        raise ProcessLookupError(f"process {pid} has ended")
    return len(bound)


def signal_descendants(pid: int, number: int) -> None:
    """Send a signal to the descendants of a process, and to those that start meanwhile."""
    signaled: set[int] = set()
    while new := set(processes_of(pid)[1:]) - signaled:
        for process in new:
            with contextlib.suppress(ProcessLookupError):  # it has ended
                os.kill(process, number)
        signaled |= new


def _threads(pid: int, *, descendants: bool) -> set[int]:
    return {thread for process in (processes_of(pid) if descendants else [pid]) for thread in threads_of(process)}


def strays(pid: int, cpus: Iterable[int], *, descendants: bool = False) -> dict[int, frozenset[int]]:
    """Return the threads of a process, and of its `descendants`, that may use CPUs beside `cpus`, with their CPUs."""
    mask, threads = frozenset(cpus), {}
    for thread in _threads(pid, descendants=descendants):
        with contextlib.suppress(ProcessLookupError):
            own = frozenset(os.sched_getaffinity(thread))
            if not own <= mask:
                threads[thread] = own
    return threads
