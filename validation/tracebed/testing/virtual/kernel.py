"""Virtual time: a heap of events, processes with clocks of their own, and a world in which code can live.

The controller is the code that runs inside `with world.using(VirtualWorld(...))`. Whenever it waits, the next events
are simulated. Its background calls are threads, of which only one runs at a time, so that a seed gives one course of
events. Agents and the processes of jobs are made of events.
"""

from __future__ import annotations

import heapq
import math
import os
import random
import selectors
import shutil
import sqlite3
import tempfile
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from tracebed.ground.system import Call, Ready, World
from tracebed.testing.virtual.descriptors import Descriptors, Process, VirtualSelector

SHARED = Path("/dev/shm")
PREFIX = "tracebed-virtual-"
"""Start of the name of a world's folder. The ID of its process follows in seven digits, so that files have one size."""
EPOCH_S = 1.7e9
"""Wall time at the start, s since 1970."""
THREAD_S = 2e-4
"""Time until a thread begins, s."""
LOOK_S = 0.1
"""Time between two looks of a thread of the controller that waits for a descriptor or a call, s."""
CALL_S = 2e-6
"""Time that the controller takes between two calls, s. Time that stood still could not reach a due time."""


def remove_leftovers() -> None:
    """Remove the folders of worlds whose processes were killed."""
    for folder in SHARED.glob(f"{PREFIX}*-*"):
        pid = folder.name.removeprefix(PREFIX).partition("-")[0]
        if pid.isdigit() and not Path("/proc", str(int(pid))).exists():
            shutil.rmtree(folder, ignore_errors=True)


class Killed(BaseException):
    """The process was killed. Its code must not catch this exception."""


def never() -> bool:
    """Return False: the condition of a wait that only time ends."""
    return False


class StalledError(AssertionError):
    """A process waits although no event is left, or the simulation has not ended in time."""


class _Carrier(threading.Thread):
    """A thread that carries out background calls, one after the other: to start a thread takes long."""

    idle: ClassVar[list[_Carrier]] = []

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.baton = threading.Lock()
        self.baton.acquire()
        self.carried: VirtualThread | None = None
        self.start()

    def run(self) -> None:
        """Carry out the calls."""
        while True:
            self.baton.acquire()
            self._taken().run()

    def _taken(self) -> VirtualThread:
        """Return the call to be made, and forget it: an idle thread must not keep its world."""
        taken, self.carried = self.carried, None
        assert taken is not None
        return taken


os.register_at_fork(after_in_child=_Carrier.idle.clear)  # a child process has no threads but its own


class VirtualThread:
    """A background call of the controller: a thread that runs only while it has the baton."""

    def __init__(self, world: VirtualWorld, call: Call, process: Process) -> None:
        self._world, self._call, self.process = world, call, process
        self.over = self.scheduled = False
        self._carrier: _Carrier | None = None

    def run(self) -> None:
        """Make the call, in the thread of the carrier."""
        assert self._carrier is not None
        free = [self._carrier]
        try:
            if self.process.alive:
                self._call()
        except Killed:
            pass
        except BaseException:
            free.clear()  # the thread ends with the exception
            raise
        finally:
            self.over = True
            _Carrier.idle += free
            self._world.hub.release()

    def wake(self, after_s: float = 0.0) -> None:
        """Let the thread continue, unless that is scheduled already."""
        if not self.scheduled and not self.over:
            self.scheduled = True
            self._world.after(after_s, self.resume)

    def resume(self) -> None:
        """Let the thread run until it waits or ends."""
        if self.over:
            return
        self.scheduled = False
        world = self._world
        before = world.process, world.thread
        world.process, world.thread = self.process, self
        if self._carrier is None:
            self._carrier = _Carrier.idle.pop() if _Carrier.idle else _Carrier()
            self._carrier.carried = self
        self._carrier.baton.release()
        world.hub.acquire()
        world.process, world.thread = before

    def park(self) -> None:
        """Wait until the thread is resumed. Raises Killed if its process was killed meanwhile."""
        assert self._carrier is not None
        self._world.hub.release()
        self._carrier.baton.acquire()
        if not self.process.alive:
            raise Killed

    def is_alive(self) -> bool:
        """Return whether the call has not ended."""
        return not self.over

    def join(self, timeout: float | None = None) -> None:
        """Wait for the end of the call."""
        until = None if timeout is None else self._world.monotonic() + timeout
        self._world.wait_for(lambda: self.over, until)


class _Running:
    """A block in which another process runs. A generator would take three times as long."""

    __slots__ = ("_process", "_world")

    def __init__(self, world: VirtualWorld, process: Process) -> None:
        self._world, self._process = world, process

    def __enter__(self) -> None:
        self._world.process, self._process = self._process, self._world.process

    def __exit__(self, *_: object) -> None:
        self._world.process = self._process


class VirtualWorld(Descriptors, World):
    """A virtual world.

    Args:
        seed: the seed of everything that is drawn.

    Attributes:
        folder: folder in memory for the tables of CPUs, which is removed with this object.
        home: folder in it for the files of the controller, its disk.
        nodes: the virtual nodes, by name.
        jobs: the running jobs, by the key of the connections between their ranks.
        observers: functions that are called with what happens to processes of jobs: an event, the rank, and more.
        now: virtual time, s.
        draw: the random numbers of the simulation.
        process: the process that runs now.
        thread: the thread that runs now; None: the main thread of the controller, or an event.
        controller: the process of the controller.
        calls: number of calls by the controller so far at which it can be killed or interrupted.
        on_call: called with their numbers, from `next_call` on; it may raise Killed or another exception.
        on_entry: called for each entry of the journal when it has been written, with its kind, and its job or node.
        wall_steps: sum of the steps of the wall clock, s.
        ends_at: virtual time at which the simulation must have ended, s.
        full_until: virtual time until which the disk of the controller is full, s.
        was_full: whether a write has failed for this reason.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.now = 0.0
        memory = SHARED if SHARED.is_dir() else None
        self.folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid():07}-", dir=memory))
        self.home = self.folder / "home"
        self.home.mkdir()
        self._removal = weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)
        self.draw = random.Random(seed)
        self._secrets = random.Random(seed + 1)
        self._events: list[tuple[float, int, Call]] = []
        self._number = 0
        self._pid = 1000
        self.hub = threading.Lock()
        self.hub.acquire()
        self.controller = self.process = self.new_process(5000.0)
        self.thread: VirtualThread | None = None
        self.threads: list[VirtualThread] = []
        self.calls, self.next_call = 0, 0.0
        self.on_call: Callable[[int], None] | None = None
        self.incidents: list[tuple[float, str]] = []
        self._signals: list[Call] = []
        self._simulating = False  # whether an event is being simulated
        self.on_entry: Callable[[str, str], None] | None = None
        self.wall_steps = 0.0
        self.full_until = 0.0
        self.ends_at = math.inf
        self.was_full = False
        self.nodes: dict[str, Any] = {}
        self.jobs: dict[str, Any] = {}
        self.observers: list[Callable[..., None]] = []
        self.boot = "00000000-0000-4000-8000-000000000001"
        self.starts: dict[int, int] = {}
        """Process of a job that runs -> its start, in clock ticks."""

    # -- events ----------------------------------------------------------------------------------------------------

    def after(self, seconds: float, call: Call) -> None:
        """Schedule a call `seconds` s from now."""
        self._number += 1
        heapq.heappush(self._events, (self.now + seconds, self._number, call))

    def step(self, limit: float) -> bool:
        """Simulate the next event if it is not after `limit`. Otherwise, move time to `limit`, and return False."""
        if self._events and self._events[0][0] <= limit:
            at, _, call = heapq.heappop(self._events)
            if at > self.now:
                self.now = at
                if at > self.ends_at:
                    raise StalledError(f"the simulation has not ended at {self.ends_at:g} s")
            self._simulating = True
            try:
                call()
            finally:
                self._simulating = False
            return True
        if limit == math.inf:
            raise StalledError(f"nothing is left to happen at {self.now:.3f} s, but a process waits")
        self.now = max(self.now, limit)
        return False

    def wait_for(self, ready: Callable[[], Any], until: float | None) -> None:
        """Simulate until `ready()`, or until the clock of the process is `until`."""
        limit = math.inf if until is None else self.process.at(until)
        if self.thread is None:
            process = self.process  # the one that waits; events run others, and return
            while not ready() and self.now < limit:
                if not process.alive:
                    raise Killed
                if self._signals and process is self.controller:
                    self._signals.pop(0)()
                self.step(limit)
            if not process.alive:
                raise Killed
            return
        thread = self.thread
        while not ready() and self.now < limit:
            thread.wake(min(limit - self.now, math.inf if ready is never else LOOK_S))
            thread.park()

    def observe(self, what: str, *facts: Any) -> None:
        """Tell the observers what has happened."""
        for observer in self.observers:
            observer(what, *facts)

    def running(self, process: Process) -> _Running:
        """Let `process` run while the block runs."""
        return _Running(self, process)

    def new_process(self, offset_s: float = 0.0, rate: float = 1.0) -> Process:
        """Return a process with the next ID."""
        self._pid += 1
        return Process(self._pid, offset_s, rate)

    def checkpoint(self) -> None:
        """Count a call by the controller, at which it may be killed or interrupted."""
        process = self.process
        if not process.alive:
            raise Killed
        if process is self.controller:
            self.calls += 1
            self.now += CALL_S
            if self.calls >= self.next_call and self.on_call is not None:
                self.on_call(self.calls)

    def kill_controller(self, *, silent: bool = False) -> None:
        """Kill the controller. Its descriptors are closed, and its code ends by `Killed` as soon as it runs.

        Args:
            silent: whether the other ends of its connections hear nothing, as after a power failure.
        """
        self.controller.alive, self.on_call, self.on_entry = False, None, None
        self.close_all(silent=silent)
        for thread in self.threads:
            thread.wake()

    def keep_disk(self) -> Path:
        """Keep the disk of the controller as it is for the next controller, and return where it is kept."""
        return Path(shutil.copytree(self.home, self.folder / "kept"))

    def end(self) -> None:
        """End all threads, and remove the folder."""
        self.kill_controller(silent=True)
        for thread in self.threads:
            thread.resume()
        self._removal()
        for left in (self.threads, self.files, self._events, self.nodes, self.jobs, self.observers):
            left.clear()  # a mailbox in them, which closes its descriptor here when it is freed, would keep the world

    def restart_controller(self, *, rebooted: bool) -> None:
        """Start another controller on the same machine, with the disk that was kept.

        Args:
            rebooted: whether the machine has been restarted: the monotonic clock begins again.
        """
        shutil.rmtree(self.home)
        (self.folder / "kept").rename(self.home)
        self.controller = self.process = self.new_process(self.controller.offset_s)
        self.thread, self.on_call, self.on_entry = None, None, None
        if rebooted:
            self.boot = f"{self.boot[:-12]}{int(self.boot[-12:]) + 1:012d}"
            self.controller.offset_s = 20.0 - self.now

    # -- the world -------------------------------------------------------------------------------------------------

    def monotonic(self) -> float:
        """Return the monotonic time of the process that runs."""
        process = self.process
        return process.offset_s + process.rate * self.now  # `Process.clock`, without its call: it is asked all the time

    def time(self) -> float:
        """Return the wall time."""
        return EPOCH_S + self.now + self.wall_steps

    def process_time(self) -> float:
        """Return an amount of CPU time that grows with the virtual time."""
        return self.now / 100

    def sleep(self, seconds: float) -> None:
        """Let virtual time pass."""
        self.checkpoint()
        self.wait_for(never, self.monotonic() + seconds)
        self.checkpoint()

    def token_bytes(self, count: int) -> bytes:
        """Return bytes drawn from the seed."""
        self.checkpoint()
        return self._secrets.randbytes(count)

    def uniform(self, low: float, high: float) -> float:
        """Return a number drawn from the seed."""
        return self.draw.uniform(low, high)

    def wait(self, selector: selectors.BaseSelector, until: float | None) -> Ready:
        """Simulate until a descriptor is ready or the clock of the process is `until`."""
        assert isinstance(selector, VirtualSelector)
        self.checkpoint()
        self.wait_for(selector.any_ready, until)
        self.checkpoint()
        return selector.select()

    def start(self, call: Call, name: str) -> VirtualThread:
        """Carry out a call in the background."""
        thread = VirtualThread(self, call, self.process)
        self.threads = [other for other in self.threads if not other.over]
        self.threads.append(thread)
        thread.wake(THREAD_S)
        return thread

    def signaled(self, call: Call) -> None:
        """Process a signal: at once, or after the present event, which an exception would break."""
        if self._simulating:
            self._signals.append(call)
        else:
            call()

    def pid(self) -> int:
        """Return the ID of the process that runs."""
        return self.process.pid

    def start_of(self, pid: int) -> int | None:
        """Return the start of a process of a job."""
        return self.starts.get(pid)

    def boot_id(self) -> str | None:
        """Return the identity of the kernel of the controller's machine."""
        return self.boot

    # -- disk ------------------------------------------------------------------------------------------------------

    def database(self, path: Path) -> sqlite3.Connection:
        """Open a database whose transactions are calls at which the controller can be killed."""
        connection = sqlite3.connect(path, isolation_level=None, factory=_Connection, check_same_thread=False)
        assert isinstance(connection, _Connection)
        connection.before, connection.after = self._before_write, self._after_write
        return connection

    def _before_write(self) -> None:
        self.checkpoint()
        if self.full:
            self.was_full = True
            raise sqlite3.OperationalError("database or disk is full")

    def _after_write(self, rows: list[Any]) -> None:
        for _, _, _, kind, job, node, *_ in rows:
            if kind is not None and self.on_entry is not None:  # a fact has no kind
                self.on_entry(kind, job or node or "")

    @property
    def full(self) -> bool:
        """Whether the disk of the controller is full."""
        return self.now < self.full_until

    def pwrite(self, descriptor: int, data: bytes, offset: int) -> int:
        """Write to a file."""
        self.checkpoint()
        return super(Descriptors, self).pwrite(descriptor, data, offset)


class _Connection(sqlite3.Connection):
    """A connection that calls `before` around each transaction, and `after` with the rows of a committed one."""

    before: Call
    after: Callable[[list[Any]], None]
    _rows: list[Any]

    def execute(self, sql: str, parameters: Any = ()) -> sqlite3.Cursor:
        if sql in ("BEGIN", "COMMIT"):
            self.before()
        cursor = super().execute(sql, parameters)
        if sql == "COMMIT":
            self.after(self._rows)
        return cursor

    def executemany(self, sql: str, parameters: Any) -> sqlite3.Cursor:
        self._rows = list(parameters)
        return super().executemany(sql, self._rows)
