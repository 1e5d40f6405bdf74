"""Channels that are opened in the background: a few at once for each provider, with retries.

Nothing here blocks the thread of the testbed. Results are passed to it by `post`.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from queue import Empty, SimpleQueue

from tracebed.ground import system
from tracebed.ground.errors import TestbedError, TracebedError
from tracebed.orchestrator.testbeds.nodes import Node
from tracebed.orchestrator.testbeds.provider import Channel, NotReadyError, Provider

ATTEMPTS = 5  # number of attempts to open a channel before a transient failure counts
RETRY_S = 0.5  # Mean of the first pause between two attempts, s. Pauses double, and vary by half of their length.

LOOK_S = 0.5  # time between two attempts to interrupt `up`, s

LAST_S = 2.0  # time that `close` waits for channels that are being opened, s: enough for a process of this machine

# A function of the opened channel, or of the reason for which it cannot be opened.
Opened = Callable[[Channel | TestbedError], None]


class Launcher:
    """The threads of a provider, at most as many as its `fan_out`. They end when no call is left.

    `post` schedules a call in the thread of the testbed.
    """

    def __init__(self, provider: Provider, post: Callable[[Callable[[], None]], None]) -> None:
        self.provider, self._post = provider, post
        self._calls: deque[Callable[[], None]] = deque()
        self._threads = 0
        self._started: list[system.Background] = []
        self._lock = threading.Lock()
        self._making = threading.Lock()
        self._ready = False
        self._failure: TestbedError | None = None  # why the last `up` failed
        self._tried = 0
        self._closed = False

    def make_ready(self) -> None:
        """Prepare the nodes, unless that has succeeded before. Only one thread at a time calls `up`."""
        before = self._tried
        with self._making:
            # An attempt during the wait counts for this thread too.
            if not self._ready and self._tried == before and not self._closed:
                self._tried += 1
                try:
                    self.provider.up()
                except TestbedError as error:
                    self._failure = error
                    raise
                self._failure, self._ready = None, True

    def open(self, node: Node, arguments: Sequence[str], then: Opened) -> None:
        """Open a channel for an agent, and pass it, or the error, to `then` in the thread of the testbed."""

        def task() -> None:
            try:
                result: Channel | TestbedError = self._attempt(node, arguments)
            except Exception as error:  # noqa: BLE001  an error of a provider must not end the thread silently
                result = error if isinstance(error, TestbedError) else _unexpected(error, node)
            with self._lock:
                if not self._closed:
                    self._post(lambda: then(result))
                    return
            if not isinstance(result, TestbedError):
                result.kill()

        with self._lock:
            self._calls.append(task)
            if self._threads == max(1, self.provider.fan_out):
                return
            self._threads += 1
        started = system.current().start(self._work, f"launcher-{self.provider.name}")
        self._started = [started, *(other for other in self._started if other.is_alive())]

    def _attempt(self, node: Node, arguments: Sequence[str]) -> Channel:
        for attempt in range(ATTEMPTS):
            if self._closed:
                break
            try:
                if attempt:
                    with contextlib.suppress(TestbedError):  # the failure may concern other nodes of the group
                        self.make_ready()
                return self.provider.run(node, arguments)
            except TestbedError as error:
                if not error.transient or attempt == ATTEMPTS - 1:
                    if isinstance(error, NotReadyError) and (why := self._failure) is not None:
                        what, hint = f"{error.what}: {why.what}", why.hint or error.hint
                        raise TestbedError(what, where=error.where, hint=hint, transient=True) from why
                    raise
                self._ready = False  # the node may have been stopped: a container, a host that was restarted
            system.sleep(RETRY_S * 2**attempt * system.current().uniform(0.5, 1.5))
        raise TestbedError("the testbed was stopped", where=f"node {node.name}")

    def _work(self) -> None:
        """Open the channels that wait, in a thread."""
        while True:
            with self._lock:
                if not self._calls:
                    self._threads -= 1
                    return
                task = self._calls.popleft()
            task()

    def close(self) -> None:
        """Accept no more channels, and kill channels that are being opened: wait for that for at most `LAST_S`.

        Wait until `make_ready` has ended, however long that takes. A provider that waits for long in `up` has a method
        `interrupt`, which is called until `up` has ended.
        """
        with self._lock:
            self._closed = True
        interrupt = getattr(self.provider, "interrupt", lambda: None)
        while not self._making.acquire(timeout=LOOK_S):
            with contextlib.suppress(TestbedError):
                interrupt()
        self._making.release()
        until = system.monotonic() + LAST_S
        for thread in self._started:
            thread.join(max(0.0, until - system.monotonic()))


def concurrently(calls: Iterable[Callable[[], None]], most: int) -> list[TracebedError]:
    """Carry out `calls` in at most `most` threads, wait for all of them, and return their errors."""
    waiting: SimpleQueue[Callable[[], None]] = SimpleQueue()
    for call in calls:
        waiting.put(call)
    errors: list[TracebedError] = []

    def work() -> None:
        while True:
            try:
                call = waiting.get_nowait()
            except Empty:
                return
            try:
                call()
            except TracebedError as error:
                errors.append(error)
            except Exception as error:  # noqa: BLE001  as above
                errors.append(_unexpected(error))

    here = system.current()
    for one in [here.start(work, "concurrent calls") for _ in range(min(max(1, most), waiting.qsize()))]:
        one.join()
    return errors


def carry_out(calls: Iterable[Callable[[], None]], most: int) -> None:
    """Carry out `calls` in at most `most` threads, wait for all of them, and raise their errors as one (`joined`)."""
    if errors := concurrently(calls, most):
        raise joined(errors)


def joined(errors: Iterable[TracebedError]) -> TracebedError:
    """Return the first of some errors by its place. Its text names the places of the others."""
    first, *others = sorted(errors, key=lambda error: error.where or "")
    if places := [error.where for error in others if error.where and error.where != first.where]:
        first.what += f"; errors also at {', '.join(places)}"
    return first


def _unexpected(error: Exception, node: Node | None = None) -> TestbedError:
    where = None if node is None else f"node {node.name}"
    return TestbedError(f"{type(error).__name__}: {error}", where=where, hint="this is a defect of the provider")
