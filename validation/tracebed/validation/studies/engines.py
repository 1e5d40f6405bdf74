"""Where cells are computed: on the cores of this machine, or by Dask on those of a cluster.

An engine has one method. `map(function, items)` yields (item, result) as the results come, in any order; where
`function` raised a TracebedError, that is the result. Leaving the `with` block ends what still runs.
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
"""How long a Dask scheduler may take to answer."""

Item = TypeVar("Item")
Result = TypeVar("Result")


class Engine(Protocol):
    """What computes cells."""

    def map(
        self, function: Callable[[Item], Result], items: Sequence[Item]
    ) -> Iterator[tuple[Item, Result | TracebedError]]:
        """Yield each item with its result, as the results come."""

    def __enter__(self) -> Engine:
        """Get ready."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End what still runs."""


class LocalEngine:
    """The cores of this machine: a process each, one item at a time.

    Args:
        workers: processes; as many as this process may use cores where left out. One is this very process.
    """

    def __init__(self, workers: int | None = None) -> None:
        self.workers = workers or len(os.sched_getaffinity(0))

    def __enter__(self) -> LocalEngine:
        """Open the lifeline: workers end themselves once its other end is closed, also where we are killed."""
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
        """Let idle workers go, or, after an error, cut the lifeline of all."""
        if kind is not None:
            self._lifeline.close()
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._lifeline.close()
        self._end.close()

    def map(
        self, function: Callable[[Item], Result], items: Sequence[Item]
    ) -> Iterator[tuple[Item, Result | TracebedError]]:
        """Yield each item with its result, as the results come.

        Raises:
            InputError: a worker was killed by somebody else.
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
                "a worker was killed, maybe for want of memory",
                hint="the same command goes on; give it fewer --workers",
            ) from error


class DaskEngine:
    """A Dask cluster; its workers must see the output folder under the same path.

    Args:
        scheduler: its address, as tcp://host:8786.

    Raises:
        InputError: dask.distributed is not installed, or nobody answers at the address.
    """

    def __init__(self, scheduler: str) -> None:
        self.scheduler = scheduler

    def __enter__(self) -> DaskEngine:
        """Connect."""
        try:
            from distributed import Client
        except ImportError as error:
            raise InputError(
                f"dask.distributed cannot be used: {error}", hint="pip install 'tracebed[dask]', or --engine local"
            ) from error
        try:
            self._client: Any = Client(self.scheduler, timeout=PATIENCE_S, set_as_default=False)
        except (OSError, ValueError) as error:
            raise InputError(
                f"no Dask scheduler answers: {error}", where=self.scheduler, hint="start one: docs/sweeps.md"
            ) from error
        self.workers = sum(self._client.nthreads().values())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave; what was not finished is dropped, for nobody wants it any more."""
        self._client.close()

    def map(
        self, function: Callable[[Item], Result], items: Sequence[Item]
    ) -> Iterator[tuple[Item, Result | TracebedError]]:
        """Yield each item with its result, as the results come.

        Raises:
            InputError: the cluster lost a cell again and again.
        """
        from distributed import as_completed as finished
        from distributed.scheduler import KilledWorker

        futures = {self._client.submit(_tried, function, item, pure=False): item for item in items}
        done = finished(list(futures), loop=self._client.loop)
        for future in done:
            try:
                result = future.result()
            except KilledWorker as error:
                raise InputError(f"Dask workers died of it: {error}", hint="give them more memory") from error
            yield futures.pop(future), result
            future.release()


def _tried(function: Callable[[Any], Any], item: Any) -> Any:
    """Return the result, or what the user can do about it, of which other items know nothing."""
    try:
        return function(item)
    except TracebedError as error:
        return error


def _live_while(end: Connection) -> None:
    """Leave Ctrl-C to the main process, and end this one when it closes the lifeline or dies."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        wait([end])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
