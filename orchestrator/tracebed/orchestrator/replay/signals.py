"""Signal handling: SIGINT, SIGTERM and SIGHUP end a replay cleanly."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

from tracebed.ground import system as world


class Signals:
    """The signals received since the start of a replay.

    Attributes:
        received: names of the signals, in order of arrival.
    """

    def __init__(self) -> None:
        """Start without signals."""
        self.received: list[str] = []
        self._interruptible = False
        self._notify: Callable[[str], None] | None = None

    def notify(self, interrupt: Callable[[str], None]) -> None:
        """Call `interrupt` with the name of each past and future signal. It must be safe in a signal handler."""
        self._notify = interrupt
        for name in self.received:
            interrupt(name)

    @contextlib.contextmanager
    def interruptible(self) -> Iterator[None]:
        """Raise KeyboardInterrupt at the first signal, if it arrived before the block or arrives in the block."""
        self._interruptible = True
        try:
            if self.received:
                raise KeyboardInterrupt
            yield
        finally:
            self._interruptible = False

    def _handle(self, number: int, frame: FrameType | None) -> None:
        world.current().signaled(lambda: self._receive(number))

    def _receive(self, number: int) -> None:
        self.received.append(signal.Signals(number).name)
        if self._notify:
            self._notify(self.received[-1])
        if self._interruptible and len(self.received) == 1:
            raise KeyboardInterrupt


@contextlib.contextmanager
def collected_signals() -> Iterator[Signals]:
    """Collect SIGINT, SIGTERM and SIGHUP while the block runs.

    If SIGHUP is ignored, as under `nohup`, it stays ignored. Outside the main thread, Python cannot install signal
    handlers, so signals are not collected there.
    """
    signals = Signals()
    before = {}
    if threading.current_thread() is threading.main_thread():
        numbers = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            numbers.append(signal.SIGHUP)
        before = {number: signal.signal(number, signals._handle) for number in numbers}
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
