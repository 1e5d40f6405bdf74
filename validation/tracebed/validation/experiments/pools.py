"""Pools of workers that compute cells: local processes, or Dask workers on a cluster.

A pool has one method: `map(function, items)` yields (item, result) in the order of completion. If `function` raises a
TracebedError, the error is the result. The end of the `with` block stops running computations.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import signal
import socket
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from functools import cache, partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, TypeVar

from tracebed.ground.errors import InputError, TracebedError
from tracebed.ground.extension_errors import of_extension

PATIENCE_S = 15.0  # timeout of the connection to a Dask scheduler, s
LOOK_S = 15.0  # time without a result after which the Dask workers are counted, s

Item = TypeVar("Item")
Result = TypeVar("Result")


class Pool(Protocol):
    """A pool of workers."""

    def map(
        self, function: Callable[[Item], Result], items: Sequence[Item]
    ) -> Iterator[tuple[Item, Result | TracebedError]]:
        """Yield each item with its result, in the order of completion."""

    def __enter__(self) -> Pool:
        """Start the workers."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop running computations."""


class LocalPool:
    """Local processes, each of which computes one item at a time.

    They are forked when the first items come, with all that this process has imported and read, and with the function,
    which may have much that all items need (`functools.partial`). Beside other threads, whose locks would stay closed
    after a fork, each process starts and imports anew, and the function is sent to it once.

    Args:
        workers: number of processes; by default the number of available cores. With 1, this process computes the items.
    """

    def __init__(self, workers: int | None = None) -> None:
        self.workers = workers or len(os.sched_getaffinity(0))

    def __enter__(self) -> LocalPool:
        """Open the lifeline of the workers: a pipe whose closing ends them, even if this process is killed."""
        self._end, self._lifeline = multiprocessing.Pipe(duplex=False)
        self._pool: ProcessPoolExecutor | None = None
        return self

    def _started(self, function: Callable[[Any], Any]) -> ProcessPoolExecutor:
        """Return the workers, which the first item starts with its function."""
        if self._pool is None:
            self._function = function
            self._pool = ProcessPoolExecutor(
                self.workers,
                mp_context=multiprocessing.get_context("fork" if threading.active_count() == 1 else "spawn"),
                initializer=_live_while,
                initargs=(self._end, self._lifeline, function),
            )
        return self._pool

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the workers. After an error, close the lifeline first, so that busy workers exit.

        Then all unfinished items fail, also for threads in `map`. These would wait for cancelled ones for ever.
        """
        if kind is not None:
            self._lifeline.close()
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=kind is None)
        self._lifeline.close()
        self._end.close()

    def map(
        self, function: Callable[[Item], Result], items: Sequence[Item]
    ) -> Iterator[tuple[Item, Result | TracebedError]]:
        """Yield each item with its result, in the order of completion.

        Raises:
            InputError: a worker was killed.
        """
        if self.workers == 1 or not items:
            yield from ((item, _tried(function, item)) for item in items)
            return
        pool = self._started(function)
        tried = _tried_own if function is self._function else partial(_tried, function)
        with warnings.catch_warnings():  # threads of Arrow and BLAS, which survive a fork
            warnings.filterwarnings("ignore", message=".*multi-threaded, use of fork", category=DeprecationWarning)
            futures = {pool.submit(tried, item): item for item in items}
        try:
            for future in as_completed(list(futures)):
                yield futures.pop(future), future.result()
        except BrokenProcessPool as error:
            raise InputError(
                "a worker was killed, possibly out of memory",
                hint="run the same command again to continue, with fewer --workers",
            ) from error


class DaskPool:
    """Workers of a Dask cluster. The output folder must have the same path on all workers.

    If a worker dies, the items that it was computing are computed again by others.

    Args:
        scheduler: address of the Dask scheduler, such as tcp://host:8786.

    Raises:
        InputError: dask.distributed is not installed, or no scheduler responds.
    """

    def __init__(self, scheduler: str) -> None:
        self.scheduler = scheduler
        self._warned = False

    def __enter__(self) -> DaskPool:
        """Connect to the scheduler."""
        try:
            from distributed import Client
        except ImportError as error:
            raise InputError(
                f"cannot import dask.distributed: {error}",
                hint="pip install distributed, or leave --dask out",
            ) from error
        logging.getLogger("distributed").setLevel(logging.CRITICAL)  # errors are those of `map`, without a traceback
        try:
            self._client: Any = Client(self.scheduler, timeout=PATIENCE_S, set_as_default=False)
        except (OSError, ValueError) as error:
            raise InputError(
                f"no response from Dask scheduler: {error}",
                where=self.scheduler,
                hint="start it with `dask scheduler`, and give its address as tcp://HOST:PORT",
            ) from error
        self.workers = sum(self._client.nthreads().values())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Disconnect, which cancels unfinished computations."""
        self._client.close()

    def map(
        self, function: Callable[[Item], Result], items: Sequence[Item]
    ) -> Iterator[tuple[Item, Result | TracebedError]]:
        """Yield each item with its result, in the order of completion.

        Raises:
            InputError: the workers for a cell died repeatedly, a worker has another tracebed, or the scheduler died.
        """
        from distributed import as_completed as finished
        from distributed.comm import CommClosedError
        from distributed.scheduler import KilledWorker

        code = _code()
        futures = {self._client.submit(_tried_by_same, code, function, item, pure=False): item for item in items}
        done = finished(list(futures), loop=self._client.loop)
        while futures:
            self._await(done)
            future = next(done)
            try:
                result = future.result()
            except KilledWorker as error:
                raise InputError(
                    f"Dask workers died while computing a cell: {error}", hint="give the workers more memory"
                ) from error
            except (CancelledError, CommClosedError) as error:  # before, or while the result is sent
                raise InputError(
                    "the connection to the Dask scheduler is lost",
                    where=self.scheduler,
                    hint="start the scheduler and its workers again; the same command then computes what is missing",
                ) from error
            if isinstance(result, OtherTracebedError):
                raise result
            yield futures.pop(future), result
            future.release()

    def _await(self, done: Any) -> None:
        """Wait for a result. Warn once if there is no worker for a while: there may be one later."""
        look = time.monotonic() + LOOK_S
        while not done.has_ready():
            time.sleep(0.005)
            if not self._warned and time.monotonic() > look:
                look += LOOK_S
                with contextlib.suppress(OSError, ValueError):  # a lost scheduler cancels the futures
                    self._warned = not self._client.nthreads()
                if self._warned:
                    what = f"{self.scheduler} has no workers: waiting for workers"
                    hint = "one that cannot load this dask or tracebed ends at once; its log says why"
                    warnings.warn(f"{what} ({hint})", stacklevel=2)


class OtherTracebedError(InputError):
    """A worker whose tracebed differs from that of the command: its cells would have the wrong name."""


@cache
def _code() -> tuple[str, ...]:
    """Return the version of tracebed, and the hashes of its code that computes items."""
    from tracebed import converters
    from tracebed.orchestrator import scheduling, simulation
    from tracebed.validation import metrics
    from tracebed.validation.experiments.workloads import code_of, version_of_tracebed

    rooms = [Path(room.__path__[0]) for room in (converters, scheduling, simulation, metrics)]
    return (version_of_tracebed(), *map(code_of, rooms))


def _tried_by_same(code: tuple[str, ...], function: Callable[[Any], Any], item: Any) -> Any:
    """Return the result of an item if this worker has the tracebed with `code`."""
    if (own := _code()) == code:
        return _tried(function, item)
    what = f"a Dask worker has another tracebed ({own[0]}) than this command ({code[0]})"
    if own[0] == code[0]:
        what = f"a Dask worker has another build of tracebed {own[0]} than this command"
    return OtherTracebedError(what, where=socket.gethostname(), hint="install the same wheel where the workers run")


def _tried(function: Callable[[Any], Any], item: Any) -> Any:
    """Return the result of an item, or its TracebedError: one failed item must not stop the others."""
    try:
        with of_extension():  # the traceback, which has the line, stays in this process
            return function(item)
    except TracebedError as error:
        return error


_own: list[Callable[[Any], Any]] = []
"""The function with which this worker was started."""


def _tried_own(item: Any) -> Any:
    return _tried(_own[0], item)


def _live_while(end: Connection, lifeline: Connection, function: Callable[[Any], Any]) -> None:
    """Ignore Ctrl-C, which the main process handles, and exit when the main process closes the lifeline or dies."""
    _own[:] = [function]
    lifeline.close()  # that of this process
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def watch() -> None:
        wait([end])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
