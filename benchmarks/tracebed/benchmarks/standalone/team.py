"""Threads that work together, each on a CPU of its own."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue

from tracebed.ground.cpus import format_cpus
from tracebed.ground.errors import InputError
from tracebed.malleable import Attached

Work = Callable[[int, int], None]  # a function of the index of the thread and the number of threads


class Team:
    """Threads that run the same function at the same time. The thread that calls `run` is one of them.

    Idle threads are blocked. The team ends on exit from `with`.
    """

    def __init__(self, cpus: Sequence[int]) -> None:
        self._threads: list[threading.Thread] = []
        self._work: list[SimpleQueue[tuple[Work, int] | None]] = []
        self._ended: SimpleQueue[BaseException | None] = SimpleQueue()
        self._before = os.sched_getaffinity(0)
        self.cpus: tuple[int, ...] = ()  # of each thread
        self.resize(cpus)

    def __enter__(self) -> Team:
        return self

    def __exit__(self, *_: object) -> None:
        """End the threads, and restore the affinity of the calling thread."""
        for work in self._work:
            work.put(None)
        for thread in self._threads:
            thread.join()
        os.sched_setaffinity(0, self._before)

    def resize(self, cpus: Sequence[int]) -> None:
        """Replace the CPUs: one thread for each. Raises OSError if this process may not use one of them."""
        self.cpus = tuple(cpus)
        os.sched_setaffinity(0, self.cpus[:1])
        while len(self._threads) < len(self.cpus) - 1:
            work: SimpleQueue[tuple[Work, int] | None] = SimpleQueue()
            thread = threading.Thread(target=self._serve, args=(len(self._threads) + 1, work), daemon=True)
            self._work.append(work)
            self._threads.append(thread)
            thread.start()
        for thread, cpu in zip(self._threads, self.cpus[1:], strict=False):  # further threads are blocked
            assert thread.native_id is not None
            os.sched_setaffinity(thread.native_id, [cpu])

    def run(self, work: Work) -> None:
        """Run `work` in all threads. Raises the first error of a thread when all threads have ended."""
        size = len(self.cpus)
        for queue in self._work[: size - 1]:
            queue.put((work, size))
        errors = [self._done(work, 0, size), *(self._ended.get() for _ in range(size - 1))]
        for error in errors:
            if error is not None:
                raise error

    def _serve(self, index: int, queue: SimpleQueue[tuple[Work, int] | None]) -> None:
        while task := queue.get():
            self._ended.put(self._done(task[0], index, task[1]))

    @staticmethod
    def _done(work: Work, index: int, size: int) -> BaseException | None:
        try:
            work(index, size)
        except BaseException as error:  # noqa: BLE001 - `run` raises it
            return error
        return None


def share(total: int, size: int, index: int) -> tuple[int, int]:
    """Return the first element and the number of elements of part `index` of `size` nearly equal parts of `total`."""
    first = total * index // size
    return first, total * (index + 1) // size - first


def chosen(program: Attached, cpus: Sequence[int] | None, threads: int | None) -> tuple[int, ...]:
    """Return the CPUs for the threads of a program: `cpus`, or those of the program or its table, at most `threads`.

    CPUs that the process may not use, fewer CPUs than threads without a table, and `cpus` with a table are an
    InputError.
    """
    if threads is not None and threads < 1:
        raise InputError(f"{threads} threads are not at least 1")
    if program.malleable:
        if cpus is not None:
            raise InputError("CPUs are given, but the table of CPUs chooses them", hint="leave the CPUs out")
        return program.cpus[:threads]
    found = program.cpus if cpus is None else tuple(cpus)
    missing = set(found) - set(program.cpus)
    if missing or not found:
        what = f"this process may not use CPU {format_cpus(missing)}" if missing else "no CPU is given"
        raise InputError(what, hint=f"choose among {format_cpus(program.cpus)}")
    if threads is not None and threads > len(found):
        what = f"{threads} threads need {threads} CPUs, and there are {len(found)}: {format_cpus(found)}"
        raise InputError(what, hint="choose fewer threads")
    return found[:threads]
