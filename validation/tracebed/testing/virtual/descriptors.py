"""Virtual descriptors: pipes and connections whose bytes take time, and selectors of them.

A connection carries bytes in order, as TCP does. It can be held (the network is partitioned) and cut at any byte.
"""

from __future__ import annotations

import random
import selectors
from collections.abc import Mapping
from typing import Any

from tracebed.ground.system import Call, Ready, World

FIRST = 1_000_000_000
"""The first virtual descriptor, far above those of the kernel."""
CAPACITY = 2**18
"""Number of bytes that are in transit in a pipe, or wait to be read, before its writer blocks."""


class Process:
    """A process: its ID, its clock, and whether it runs.

    Args:
        offset_s: time of its machine minus virtual time at time 0, s.
        rate: seconds of its clock per virtual second.
    """

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
    """One direction of a connection.

    Args:
        latency_s: time from a write until the bytes can be read, s.

    Attributes:
        data: the bytes that can be read.
        ended: whether the end of the bytes can be read.
        broken: whether the reader has closed its end, so that writing fails.
        reader: the descriptor of the reader; None: not connected yet.
        writer: the descriptor of the writer.
        held: whether bytes stay in transit, as in a partitioned network.
    """

    def __init__(self, world: Descriptors, latency_s: float) -> None:
        self.world, self.latency_s = world, latency_s
        self.data = bytearray()
        self.ended = self.broken = self.held = False
        self.reader: Descriptor | None = None
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
    """A selector of virtual descriptors.

    Attributes:
        on_ready: called when a descriptor may have become ready; None: the process looks by itself.
    """

    def __init__(self, world: Descriptors) -> None:
        self._world = world
        self._keys: dict[int, selectors.SelectorKey] = {}
        self._hot: dict[int, None] = {}
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


class Descriptors(World):
    """The part of a virtual world that has descriptors."""

    now: float
    draw: random.Random
    process: Process
    controller: Process

    def __init__(self) -> None:
        self.files: dict[int, Descriptor] = {}
        self._next = FIRST

    def after(self, seconds: float, call: Call) -> None:
        """Schedule a call."""
        raise NotImplementedError

    def checkpoint(self) -> None:
        """Count a call by the controller."""
        raise NotImplementedError

    def new_descriptor(
        self, owner: Process | None, incoming: Pipe | None = None, outgoing: Pipe | None = None
    ) -> Descriptor:
        """Return another descriptor of the process `owner`."""
        self._next += 1
        file = self.files[self._next] = Descriptor(self._next, owner, incoming, outgoing)
        return file

    def connection(self, one: Process | None, other: Process | None, latency_s: float) -> tuple[Descriptor, Descriptor]:
        """Return the ends of a connection between two processes."""
        there, back = Pipe(self, latency_s), Pipe(self, latency_s)
        return self.new_descriptor(one, back, there), self.new_descriptor(other, there, back)

    def close_all(self, *, silent: bool) -> None:
        """Close the descriptors of the controller, as the kernel does when the controller is killed.

        Args:
            silent: whether the descriptors vanish instead, so that their other ends hear nothing.
        """
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

    # -- the world -------------------------------------------------------------------------------------------------

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
