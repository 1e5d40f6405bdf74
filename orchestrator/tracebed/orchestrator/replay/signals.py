"""SIGINT, SIGTERM and SIGHUP end a replay in order."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType


class Signals:
    """The signals that came since a replay began.

    Attributes:
        came: their names, in order.
    """

    def __init__(self) -> None:
        """Start without signals."""
        self.came: list[str] = []
        self._at_once = False
        self._notify: Callable[[str], None] | None = None

    def notify(self, interrupt: Callable[[str], None]) -> None:
        """Call `interrupt` with the name of each signal that came or comes; it must be safe in a signal handler."""
        self._notify = interrupt
        for name in self.came:
            interrupt(name)

    @contextlib.contextmanager
    def at_once(self) -> Iterator[None]:
        """Raise KeyboardInterrupt as soon as a first signal has come, while the block runs."""
        self._at_once = True
        try:
            if self.came:
                raise KeyboardInterrupt
            yield
        finally:
            self._at_once = False

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.came.append(signal.Signals(number).name)
        if self._notify:
            self._notify(self.came[-1])
        if self._at_once and len(self.came) == 1:
            raise KeyboardInterrupt


@contextlib.contextmanager
def noted() -> Iterator[Signals]:
    """Note SIGINT, SIGTERM and SIGHUP while the block runs.

    A SIGHUP that is ignored, as under `nohup`, stays ignored. In other threads than the main one, Python handles no
    signals: there the block runs without.
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
