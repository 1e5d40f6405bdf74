"""The CPUs that the threads of a process may use, set from outside: for programs that do not know tracebed.

The kernel moves the threads at once. The number of threads of the program stays as it is, so that several threads may
share a CPU: see "What a mask does to a program" in docs/explanation/ownership.md.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

ROUNDS = 10
"""Number of times that the threads of a process are listed, until no new thread is found."""


def threads_of(pid: int) -> Iterator[int]:
    """Yield the threads of a process; nothing if it has ended."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            yield int(thread.name)


def set_affinity(pid: int, cpus: Iterable[int]) -> int:
    """Bind all threads of a process to CPUs, and return the number of threads.

    A thread that starts meanwhile inherits the CPUs of the thread that starts it, so threads are listed again until
    all are bound.

    Raises:
        ProcessLookupError: the process has ended.
        PermissionError: the process belongs to another user.
        OSError: the CPUs are not available to this machine or control group.
    """
    mask = frozenset(cpus)
    bound: set[int] = set()
    for _ in range(ROUNDS):
        found = set(threads_of(pid)) - bound
        if not found:
            break
        for thread in found:
            with contextlib.suppress(ProcessLookupError):  # it has ended
                os.sched_setaffinity(thread, mask)
        bound |= found
    if not bound:
        raise ProcessLookupError(f"process {pid} has ended")
    return len(bound)


def strays(pid: int, cpus: Iterable[int]) -> dict[int, frozenset[int]]:
    """Return the threads of a process that may use other CPUs than `cpus`, with the CPUs that they may use."""
    mask, found = frozenset(cpus), {}
    for thread in threads_of(pid):
        with contextlib.suppress(ProcessLookupError):
            own = frozenset(os.sched_getaffinity(thread))
            if not own <= mask:
                found[thread] = own
    return found
