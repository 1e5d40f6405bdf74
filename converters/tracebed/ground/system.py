"""The world around a process: its clocks, pauses, random numbers, descriptors, background calls and disk.

The controller and its agents reach the world only through the functions of this module, so that a virtual world can
take the place of the real one: the virtual testbed (`tracebed.testing.virtual`) runs the same code in virtual time. A
test forbids other ways. Only providers, whose nodes are real, have threads of their own.
"""

from __future__ import annotations

import contextlib
import os
import random
import secrets
import selectors
import threading
import time as real_time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import sqlite3

Ready = list[tuple[selectors.SelectorKey, int]]
Call = Callable[[], None]


class Background(Protocol):
    """A call in the background: a thread, or the simulation of one."""

    def is_alive(self) -> bool:
        """Return whether the call has not ended."""

    def join(self, timeout: float | None = None) -> None:
        """Wait for the end of the call, at most `timeout` s."""


class World:
    """The real world. A virtual world overrides every method.

    Attributes:
        incidents: faults that a virtual world has played: the monotonic time of the controller, and a text.
    """

    incidents: Sequence[tuple[float, str]] = ()

    def end(self) -> None:
        """End the world after its last use. The real world goes on."""

    # -- time and chance -------------------------------------------------------------------------------------------

    def monotonic(self) -> float:
        """Return the monotonic time of this machine, s."""
        return real_time.monotonic()

    def time(self) -> float:
        """Return the wall time, s since 1970."""
        return real_time.time()

    def sleep(self, seconds: float) -> None:
        """Wait."""
        real_time.sleep(seconds)

    def process_time(self) -> float:
        """Return the CPU time of this process, s."""
        return real_time.process_time()

    def token_bytes(self, count: int) -> bytes:
        """Return random bytes for a secret."""
        return secrets.token_bytes(count)

    def uniform(self, low: float, high: float) -> float:
        """Return a random number, for example for a pause between two attempts."""
        return random.uniform(low, high)

    # -- descriptors -----------------------------------------------------------------------------------------------

    def read(self, descriptor: int, count: int) -> bytes:
        """Read as `os.read`."""
        return os.read(descriptor, count)

    def write(self, descriptor: int, data: bytes | bytearray) -> int:
        """Write as `os.write`."""
        return os.write(descriptor, data)

    def close(self, descriptor: int) -> None:
        """Close as `os.close`."""
        os.close(descriptor)

    def set_blocking(self, descriptor: int, blocking: bool) -> None:
        """Set the mode of a descriptor as `os.set_blocking`."""
        os.set_blocking(descriptor, blocking)

    def eventfd(self) -> int:
        """Return a non-blocking descriptor that is readable once eight bytes have been written to it."""
        return os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def selector(self, *, files: bool = False) -> selectors.BaseSelector:
        """Return a selector, with `files` one that supports files and /dev/null, too."""
        return selectors.PollSelector() if files else selectors.DefaultSelector()

    def wait(self, selector: selectors.BaseSelector, until: float | None) -> Ready:
        """Wait until a descriptor is ready or `monotonic()` is `until` (None: no timeout), and return what is ready.

        Selectors round timeouts up to whole milliseconds, so this method sleeps during the last millisecond.
        """
        if until is None:
            return selector.select()
        left = until - real_time.monotonic()
        if left > 0.001:
            ready = selector.select(left - 0.001)
            if ready:
                return ready
            left = until - real_time.monotonic()
        if left > 0:
            real_time.sleep(left)
        return selector.select(0)

    # -- processes and threads -------------------------------------------------------------------------------------

    def start(self, call: Call, name: str) -> Background:
        """Carry out a call that may block, in a thread that does not outlive the process."""
        thread = threading.Thread(target=call, name=name, daemon=True)
        thread.start()
        return thread

    def pid(self) -> int:
        """Return the ID of this process."""
        return os.getpid()

    def start_of(self, pid: int) -> int | None:
        """Return the start of a process, in clock ticks since boot; None: it has ended."""
        try:
            text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
        except OSError:
            return None
        fields = text.rpartition(")")[2].split()  # the name of the program may contain anything
        return None if fields[0] in "ZX" else int(fields[19])

    def signaled(self, call: Call) -> None:
        """Process a signal by `call`: at once, in a virtual world once the controller runs."""
        call()

    def boot_id(self) -> str | None:
        """Return the identity of the running kernel, which all containers of a machine share; None: unknown."""
        return _boot_id()

    # -- disk ------------------------------------------------------------------------------------------------------

    def database(self, path: Path) -> sqlite3.Connection:
        """Open a database for writing, without implicit transactions."""
        import sqlite3  # agents have no database, and must start fast

        return sqlite3.connect(path, isolation_level=None)

    def pwrite(self, descriptor: int, data: bytes, offset: int) -> int:
        """Write to a file as `os.pwrite`."""
        return os.pwrite(descriptor, data, offset)


@cache
def _boot_id() -> str | None:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return None


_world = World()


@contextlib.contextmanager
def using(world: World) -> Iterator[None]:
    """Let all code of this process live in `world` while the block runs."""
    global _world
    before, _world = _world, world
    try:
        yield
    finally:
        _world = before


def current() -> World:
    """Return the world in which this process lives."""
    return _world


def monotonic() -> float:
    """Return the monotonic time of this machine, s."""
    return _world.monotonic()


def time() -> float:
    """Return the wall time, s since 1970."""
    return _world.time()


def sleep(seconds: float) -> None:
    """Wait."""
    _world.sleep(seconds)


def token_bytes(count: int) -> bytes:
    """Return random bytes for a secret."""
    return _world.token_bytes(count)


def token_hex(count: int) -> str:
    """Return random bytes in hexadecimal digits, for a secret or a name that no other process chooses."""
    return _world.token_bytes(count).hex()
