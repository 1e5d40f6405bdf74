"""Pools of workers that compute cells: processes on this machine, or Dask workers on a cluster.

A pool has one method. `map(function, items)` yields (item, result) as the results arrive, in any order. If
`function` raised a TracebedError, the error is the result. Leaving the `with` block ends running computations.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import Connection, wait
from types import TracebackType
from typing import Any, Protocol, TypeVar

from tracebed.errors import InputError, TracebedError

PATIENCE_S = 15.0
"""Time limit for the answer of a Dask scheduler, s."""

Item = TypeVar("Item")
Result = TypeVar("Result")


class Pool(Protocol):
    """A pool of workers."""

    def map(
        self, function: Callable[[Item], Result], items: Sequence[Item]
    ) -> Iterator[tuple[Item, Result | TracebedError]]:
        """Yield each item with its result, as the results arrive."""

    def __enter__(self) -> Pool:
        """Start the workers."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End running computations."""


class LocalPool:
    """Processes on this machine, each of which computes one item at a time.

    Args:
        workers: number of processes; by default the number of cores that this process may use. With 1, items are
            computed in this process.
    """

    def __init__(self, workers: int | None = None) -> None:
        self.workers = workers or len(os.sched_getaffinity(0))

    def __enter__(self) -> LocalPool:
        """Open the lifeline, a pipe: workers exit when its other end closes, even if this process is killed."""
        self._end, self._lifeline = multiprocessing.Pipe(duplex=False)
        self._pool = ProcessPoolExecutor(
            self.workers,
            mp_context=multiprocessing.get_context("spawn"),  # a fork of a process with threads may hang
            initializer=_live_while,
            initargs=(self._end,),
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the workers; after an error, close the lifeline so that busy workers exit, too."""
        if kind is not None:
            self._lifeline.close()
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._lifeline.close()
        self._end.close()

    def map(
        self, function: Callable[[Item], Result], items: Sequence[Item]
    ) -> Iterator[tuple[Item, Result | TracebedError]]:
        """Yield each item with its result, as the results arrive.

        Raises:
            InputError: a worker was killed from outside.
        """
        if self.workers == 1:
            yield from ((item, _tried(function, item)) for item in items)
            return
        futures = {self._pool.submit(_tried, function, item): item for item in items}
        try:
            for future in as_completed(list(futures)):
                yield futures.pop(future), future.result()
        except BrokenProcessPool as error:
            raise InputError(
                "a worker was killed, maybe for lack of memory",
                hint="the same command continues the sweep; try fewer --workers",
            ) from error


class DaskPool:
    """A Dask cluster; its workers must see the output folder under the same path.

    Args:
        scheduler: its address, as tcp://host:8786.

    Raises:
        InputError: dask.distributed is not installed, or no scheduler answers at the address.
    """

    def __init__(self, scheduler: str) -> None:
        self.scheduler = scheduler

    def __enter__(self) -> DaskPool:
        """Connect."""
        try:
            from distributed import Client
        except ImportError as error:
            raise InputError(
                f"dask.distributed cannot be used: {error}", hint="pip install 'tracebed[dask]', or --pool local"
            ) from error
        try:
            self._client: Any = Client(self.scheduler, timeout=PATIENCE_S, set_as_default=False)
        except (OSError, ValueError) as error:
            raise InputError(
                f"no Dask scheduler answers: {error}", where=self.scheduler, hint="start one with `dask scheduler`"
            ) from error
        self.workers = sum(self._client.nthreads().values())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Disconnect; unfinished computations are canceled."""
        self._client.close()

    def map(
        self, function: Callable[[Item], Result], items: Sequence[Item]
    ) -> Iterator[tuple[Item, Result | TracebedError]]:
        """Yield each item with its result, as the results arrive.

        Raises:
            InputError: workers died repeatedly while computing a cell.
        """
        from distributed import as_completed as finished
        from distributed.scheduler import KilledWorker

        futures = {self._client.submit(_tried, function, item, pure=False): item for item in items}
        done = finished(list(futures), loop=self._client.loop)
        for future in done:
            try:
                result = future.result()
            except KilledWorker as error:
                raise InputError(
                    f"Dask workers died while computing a cell: {error}", hint="give the workers more memory"
                ) from error
            yield futures.pop(future), result
            future.release()


def _tried(function: Callable[[Any], Any], item: Any) -> Any:
    """Return the result of an item, or its TracebedError, so that other items are still computed."""
    try:
        return function(item)
    except TracebedError as error:
        return error


def _live_while(end: Connection) -> None:
    """Leave Ctrl-C to the main process, and exit when the main process closes the lifeline or dies."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        wait([end])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
