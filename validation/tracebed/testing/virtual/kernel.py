"""Virtual time: a heap of events, processes with clocks of their own, and a world in which code can live.

The controller is the code that runs inside `with world.using(VirtualWorld(...))`. Whenever it waits, the next events
are simulated. Its background calls are threads, of which only one runs at a time, so that a seed gives one course of
events. Agents and the processes of jobs are made of events.

Virtual descriptors are pipes and connections whose bytes take time. A connection carries bytes in order, as TCP does.
It can be held (the network is partitioned) and cut at any byte.
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
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from tracebed.ground.system import Call, Ready, World

SHARED = Path("/dev/shm")
PREFIX = "tracebed-virtual-"
"""Start of the name of a world's folder. The ID of its process follows in seven digits, so that files have one size."""
EPOCH_S = 1.7e9  # wall time at the start, s since 1970
THREAD_S = 2e-4  # time until a thread begins, s
LOOK_S = 0.1  # time between two looks of a thread of the controller that waits for a descriptor or a call, s
CALL_S = 2e-6  # Time that the controller takes between two calls, s. Time that stood still could not reach a due time.

FIRST = 1_000_000_000  # the first virtual descriptor, far above those of the kernel
CAPACITY = 2**18  # number of bytes that are in transit in a pipe, or wait to be read, before its writer blocks


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


class Process:
    """A process: its ID, its clock (`rate` seconds per virtual second), and whether it runs."""

    __slots__ = ("alive", "offset_s", "pid", "rate")

    def __init__(self, pid: int, offset_s: float = 0.0, rate: float = 1.0) -> None:
        self.pid, self.offset_s, self.rate = pid, offset_s, rate
        self.alive = True

    def clock(self, now: float) -> float:
        """Return the time of the monotonic clock at virtual time `now`, s."""
        return self.offset_s + self.rate * now

    def at(self, monotonic: float) -> float:
        """Return the virtual time at a time of the monotonic clock, s."""
        return (monotonic - self.offset_s) / self.rate


class Pipe:
    """One direction of a connection. Written bytes can be read after `latency_s`."""

    def __init__(self, world: VirtualWorld, latency_s: float) -> None:
        self.world, self.latency_s = world, latency_s
        self.data = bytearray()  # the bytes that can be read
        # ended: whether the end of the bytes can be read
        # broken: whether the reader has closed its end, so that writing fails
        # held: whether bytes stay in transit, as in a partitioned network
        self.ended = self.broken = self.held = False
        self.reader: Descriptor | None = None  # the descriptor of the reader; None: not connected yet
        self.writer: Descriptor | None = None
        self.transit: list[bytes | None] = []
        """What the network carries: pieces of bytes, and None for the end."""
        self._flying = 0
        self._last = 0.0

    @property
    def room(self) -> int:
        """Number of bytes that can be written."""
        return CAPACITY - len(self.data) - self._flying

    def put(self, piece: bytes | None) -> None:
        """Send bytes, or the end of the bytes."""
        self.transit.append(piece)
        if piece is not None:
            self._flying += len(piece)
        world = self.world
        now = world.now
        at = now + self.latency_s * (0.5 + world.draw.random())
        if at > self._last:
            self._last = at
        world.after(self._last - now, self._arrive)

    def _arrive(self) -> None:
        if self.held or not self.transit:
            return
        piece = self.transit.pop(0)
        if piece is None:
            self.ended = True
        elif not self.ended:
            self._flying -= len(piece)
            self.data += piece
        if (reader := self.reader) is not None:
            for selector in reader.selectors:
                selector.touch(reader.fd)

    def hold(self) -> None:
        """Keep all bytes in transit."""
        self.held = True

    def release(self) -> None:
        """Deliver the bytes that were held."""
        self.held = False
        pending, self.transit, self._flying = self.transit, [], 0
        for piece in pending:
            self.put(piece)

    def cut(self, keep: int = 0) -> None:
        """End the bytes: of those in transit, the first `keep` arrive. Writing fails."""
        flying = b"".join(piece for piece in self.transit if piece is not None)[:keep]
        self.transit, self._flying, self.held, self.broken = [], 0, False, True
        self.data += flying
        self.ended = True
        for end in (self.reader, self.writer):
            if end is not None:
                end.changed()

    def break_off(self) -> None:
        """Note that the reader has closed its end."""
        self.broken = True
        self.data.clear()
        if self.writer is not None:
            self.writer.changed()


class Descriptor:
    """A descriptor of a process: an end of a connection, or an event counter."""

    __slots__ = ("count", "fd", "incoming", "outgoing", "owner", "selectors")

    def __init__(
        self, fd: int, owner: Process | None, incoming: Pipe | None = None, outgoing: Pipe | None = None
    ) -> None:
        self.fd, self.owner, self.incoming, self.outgoing = fd, owner, incoming, outgoing
        self.count = 0
        self.selectors: list[VirtualSelector] = []
        if incoming is not None:
            incoming.reader = self
        if outgoing is not None:
            outgoing.writer = self

    def ready(self, watched: int) -> int:
        """Return which of the watched events are ready."""
        incoming, outgoing = self.incoming, self.outgoing
        if incoming is None and outgoing is None:
            return watched & selectors.EVENT_READ if self.count else 0
        ready = 0
        if watched & selectors.EVENT_READ and incoming is not None and (incoming.data or incoming.ended):
            ready = selectors.EVENT_READ
        if watched & selectors.EVENT_WRITE and outgoing is not None and (outgoing.broken or outgoing.room > 0):
            ready |= selectors.EVENT_WRITE
        return ready

    def changed(self) -> None:
        """Tell the selectors that an event may be ready."""
        for selector in self.selectors:
            selector.touch(self.fd)


class VirtualSelector(selectors.BaseSelector):
    """A selector of virtual descriptors."""

    def __init__(self, world: VirtualWorld) -> None:
        self._world = world
        self._keys: dict[int, selectors.SelectorKey] = {}
        self._hot: dict[int, None] = {}
        # Called when a descriptor may have become ready; None: the process looks by itself
        self.on_ready: Call | None = None

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        """Watch a descriptor."""
        fd = fileobj if isinstance(fileobj, int) else fileobj.fileno()
        if fd in self._keys:
            raise KeyError(fd)
        key = self._keys[fd] = selectors.SelectorKey(fileobj, fd, events, data)
        self._world.files[fd].selectors.append(self)
        self.touch(fd)
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        """Stop watching a descriptor."""
        fd = fileobj if isinstance(fileobj, int) else fileobj.fileno()
        key = self._keys.pop(fd)
        self._hot.pop(fd, None)
        if fd in self._world.files:
            self._world.files[fd].selectors.remove(self)
        return key

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        """Watch other events of a descriptor."""
        fd = fileobj if isinstance(fileobj, int) else fileobj.fileno()
        key = self._keys[fd] = self._keys[fd]._replace(events=events, data=data)
        self.touch(fd)
        return key

    def touch(self, fd: int) -> None:
        """Note that a descriptor may be ready."""
        self._hot[fd] = None
        if self.on_ready is not None and self._ready_events(fd):
            self.on_ready()

    def _ready_events(self, fd: int) -> int:
        key, file = self._keys.get(fd), self._world.files.get(fd)
        return 0 if key is None or file is None else file.ready(key.events)

    def any_ready(self) -> bool:
        """Return whether a watched event is ready."""
        while self._hot:  # none after most events
            fd = next(iter(self._hot))
            if self._ready_events(fd):
                return True
            del self._hot[fd]
        return False

    def select(self, timeout: float | None = None) -> Ready:
        """Return what is ready, without waiting."""
        if not self._hot:
            return []
        found = []
        for fd in sorted(self._hot):
            if events := self._ready_events(fd):
                found.append((self._keys[fd], events))
            else:
                del self._hot[fd]
        return found

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        """Return the watched descriptors."""
        return self._keys

    def close(self) -> None:
        """Watch nothing any more."""
        for fd in list(self._keys):
            self.unregister(fd)


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


class VirtualWorld(World):
    """A virtual world, in which everything that is drawn follows from `seed`."""

    def __init__(self, seed: int) -> None:
        self.now = 0.0  # virtual time, s
        self.files: dict[int, Descriptor] = {}
        self._last_descriptor = FIRST
        memory = SHARED if SHARED.is_dir() else None
        # Folder in memory for the tables of CPUs, which is removed with this object
        self.folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid():07}-", dir=memory))
        self.home = self.folder / "home"  # folder in it for the files of the controller, its disk
        self.home.mkdir()
        self._removal = weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)
        self.draw = random.Random(seed)  # the random numbers of the simulation
        self._secrets = random.Random(seed + 1)
        self._events: list[tuple[float, int, Call]] = []
        self._number = 0
        self._pid = 1000
        self.hub = threading.Lock()
        self.hub.acquire()
        # process: the process that runs now
        # controller: the process of the controller
        self.controller = self.process = self.new_process(5000.0)
        # The thread that runs now; None: the main thread of the controller, or an event
        self.thread: VirtualThread | None = None
        self.threads: list[VirtualThread] = []
        # Calls of the controller so far at which it can be killed or interrupted
        self.calls, self.next_call = 0, 0.0
        # Called with their numbers, from `next_call` on; it may raise Killed or another exception
        self.on_call: Callable[[int], None] | None = None
        self.incidents: list[tuple[float, str]] = []
        self._signals: list[Call] = []
        self._simulating = False  # whether an event is being simulated
        # Called for each entry of the journal when it has been written, with its kind, and its job or node
        self.on_entry: Callable[[str, str], None] | None = None
        self.wall_steps = 0.0  # sum of the steps of the wall clock, s
        self.full_until = 0.0  # virtual time until which the disk of the controller is full, s
        self.ends_at = math.inf  # virtual time at which the simulation must have ended, s
        self.was_full = False  # whether a write has failed for this reason
        self.nodes: dict[str, Any] = {}  # the virtual nodes, by name
        self.jobs: dict[str, Any] = {}  # the running jobs, by the key of the connections between their ranks
        # Functions that are called with what happens to processes of jobs: an event, the rank, and more
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
        """Close the descriptors of the controller, and end its code by `Killed` as soon as it runs."""
        # Silent, as after a power failure: the other ends of its connections hear nothing.
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
        """Start another controller with the kept disk; `rebooted`: the monotonic clock begins again."""
        shutil.rmtree(self.home)
        (self.folder / "kept").rename(self.home)
        self.controller = self.process = self.new_process(self.controller.offset_s)
        self.thread, self.on_call, self.on_entry = None, None, None
        if rebooted:
            self.boot = f"{self.boot[:-12]}{int(self.boot[-12:]) + 1:012d}"
            self.controller.offset_s = 20.0 - self.now

    # -- descriptors -----------------------------------------------------------------------------------------------

    def new_descriptor(
        self, owner: Process | None, incoming: Pipe | None = None, outgoing: Pipe | None = None
    ) -> Descriptor:
        """Return another descriptor of the process `owner`."""
        self._last_descriptor += 1
        file = self.files[self._last_descriptor] = Descriptor(self._last_descriptor, owner, incoming, outgoing)
        return file

    def connection(self, one: Process | None, other: Process | None, latency_s: float) -> tuple[Descriptor, Descriptor]:
        """Return the ends of a connection between two processes."""
        there, back = Pipe(self, latency_s), Pipe(self, latency_s)
        return self.new_descriptor(one, back, there), self.new_descriptor(other, there, back)

    def close_all(self, *, silent: bool) -> None:
        """Close the descriptors of the controller, as the kernel does; `silent`: the other ends hear nothing."""
        for fd in [fd for fd, file in self.files.items() if file.owner is self.controller]:
            if silent:
                del self.files[fd]
            else:
                self._close(fd)

    def _close(self, fd: int) -> None:
        file = self.files.pop(fd)
        for selector in list(file.selectors):
            selector.unregister(fd)
        if file.outgoing is not None and not file.outgoing.broken:
            file.outgoing.put(None)
        if file.incoming is not None:
            file.incoming.break_off()

    def _file(self, descriptor: int) -> Descriptor:
        if descriptor not in self.files:
            raise OSError(9, "Bad file descriptor")
        return self.files[descriptor]

    def read(self, descriptor: int, count: int) -> bytes:
        """Read the bytes that have arrived."""
        file = self._file(descriptor)
        pipe = file.incoming
        if pipe is None:
            if not file.count:
                raise BlockingIOError
            value, file.count = file.count, 0
            return value.to_bytes(8, "little")
        if pipe.data:
            full = pipe.room <= 0
            data = bytes(pipe.data[:count])
            del pipe.data[:count]
            if full and pipe.writer is not None:
                pipe.writer.changed()
            return data
        if pipe.ended:
            return b""
        raise BlockingIOError

    def write(self, descriptor: int, data: bytes | bytearray) -> int:
        """Send bytes."""
        self.checkpoint()
        file = self._file(descriptor)
        pipe = file.outgoing
        if pipe is None:
            file.count += 1
            file.changed()
            return len(data)
        if pipe.broken:
            raise BrokenPipeError
        room = pipe.room
        if room <= 0:
            raise BlockingIOError
        piece = bytes(data[:room])
        pipe.put(piece)
        return len(piece)

    def close(self, descriptor: int) -> None:
        """Close a descriptor."""
        if descriptor in self.files:
            self._close(descriptor)

    def set_blocking(self, descriptor: int, blocking: bool) -> None:
        """Do nothing: pipes have room for every message."""

    def eventfd(self) -> int:
        """Return an event counter."""
        return self.new_descriptor(self.process).fd

    def selector(self, *, files: bool = False) -> VirtualSelector:
        """Return a selector."""
        return VirtualSelector(self)

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
        return super().pwrite(descriptor, data, offset)


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
