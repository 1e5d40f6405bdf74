"""Bytes between the connections of a library (a socket of Docker, a channel of SSH) and sockets that can be selected.

One thread carries the bytes of all connections of a `Pump`. The thread sleeps until a descriptor is ready. If a library
cannot accept bytes and has no descriptor that becomes writable, the thread tries again after a pause.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import threading
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Any, Protocol, TypeVar

from tracebed.benchmarks.lines import watch
from tracebed.ground import system

CHUNK = 65536  # largest number of bytes that are received at once
FULL = 2**20  # number of bytes from a connection that may wait for this process, before no more are received
RETRY_S = 0.01  # first pause before another attempt to send to a connection that cannot be polled for writing, s
LONGEST_RETRY_S = 0.2  # Longest of these pauses, s. The pauses double.

T = TypeVar("T")

# The errors with which a non-blocking connection reports that it can neither receive nor send now.
LATER = (BlockingIOError, TimeoutError)


class Transport(Protocol):
    """A non-blocking connection of a library.

    Its methods are called only by the thread of the pump. `receive` and `send` raise an error in `LATER` if they would
    block. Any other error ends the connection.
    """

    error: Exception | None
    """The error that ended the connection. None: it has not ended, or ended as usual."""

    selectable: bool
    """Whether `fileno` can be polled for writing, as for a socket."""

    def fileno(self) -> int:
        """Return the descriptor that is readable when bytes, or the end of the bytes, can be received."""

    def receive(self) -> bytes:
        """Return the bytes that have arrived; empty: the end of the bytes."""

    def send(self, data: bytes) -> int:
        """Send bytes, and return how many were taken."""

    def finish(self) -> None:
        """Signal the end of the bytes to the other end, which may still send."""

    def close(self) -> None:
        """Release the connection."""


class SocketConnection:
    """A socket, plain or with TLS, for a pump."""

    selectable = True
    error: Exception | None = None

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        sock.setblocking(False)

    def fileno(self) -> int:
        """Return the descriptor of the socket."""
        return self.socket.fileno()

    def receive(self) -> bytes:
        """Return the bytes that have arrived."""
        with _tls_waits():
            return self.socket.recv(CHUNK)

    def send(self, data: bytes) -> int:
        """Send bytes."""
        with _tls_waits():
            return self.socket.send(data)

    def finish(self) -> None:
        """Shut down the sending direction."""
        self.socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Close the socket."""
        self.socket.close()


class ChannelConnection:
    """A `paramiko.Channel` of a command, for a pump.

    `on_error` gets each piece of the standard error of the command.
    """

    selectable = False
    error: Exception | None = None

    def __init__(self, channel: Any, on_error: Callable[[bytes], None]) -> None:
        self.channel, self.on_error = channel, on_error
        channel.settimeout(0.0)

    def fileno(self) -> int:
        """Return the descriptor of the channel, which is readable if output or standard error has arrived."""
        return int(self.channel.fileno())

    def receive(self) -> bytes:
        """Return the output that has arrived. Pass on the standard error, which also makes the channel readable."""
        while self.channel.recv_stderr_ready():
            self.on_error(self.channel.recv_stderr(CHUNK))
        return bytes(self.channel.recv(CHUNK))

    def send(self, data: bytes) -> int:
        """Send bytes."""
        return int(self.channel.send(data))

    def finish(self) -> None:
        """Close the input of the command."""
        self.channel.shutdown_write()

    def close(self) -> None:
        """Close the channel."""
        self.channel.close()


class _Transfer:
    """A connection, its socket here, and the bytes between them."""

    def __init__(self, connection: Transport, decode: Callable[[bytes], bytes] | None) -> None:
        self.connection, self.decode = connection, decode
        self.socket, self.theirs = socket.socketpair()  # the end of the pump, and the end of the user
        self.socket.setblocking(False)
        # Bytes in transit to this process, and to the other end of the connection.
        self.here, self.there = bytearray(), bytearray()
        self.received_all = self.sent_all = self.finished = self.broken = False
        self.pause_s = 0.0
        self.retry_at: float | None = None

    def take(self) -> None:
        """Carry bytes in both directions until both would block."""
        while self._from_connection() | self._from_socket():
            pass
        if self.sent_all and not self.there and not self.finished:
            self.finished = True
            self._attempt(self.connection.finish)

    def _from_connection(self) -> bool:
        """Receive once from the connection, and pass bytes on to the socket. Return whether any bytes moved."""
        moved = self._deliver()
        if not self.received_all and len(self.here) < FULL:
            data = self._attempt(self._receive)
            if data is not None:
                moved, self.received_all = True, not data
        return moved

    def _receive(self) -> bytes:
        data = self.connection.receive()
        self.here += self.decode(data) if self.decode and data else data
        return data

    def _deliver(self) -> bool:
        """Write bytes to the socket. Return whether any were written."""
        if not self.here:
            return False
        try:
            del self.here[: self.socket.send(self.here[:CHUNK])]
        except BlockingIOError:
            return False
        except OSError:  # the user has closed the socket
            self.here.clear()
        return True

    def _from_socket(self) -> bool:
        """Receive once from the socket, and pass bytes on to the connection. Return whether any bytes moved."""
        moved = False
        if not self.sent_all and len(self.there) < FULL:
            try:
                data = self.socket.recv(CHUNK)
            except BlockingIOError:
                pass
            except OSError:
                self.sent_all = True
            else:
                moved, self.sent_all = True, not data
                self.there += data
        return self._send() or moved

    def _send(self) -> bool:
        """Send once to the connection. Return whether any bytes were taken."""
        self.retry_at = None
        if not self.there:
            return False
        sent = self._attempt(lambda: self.connection.send(bytes(self.there[:CHUNK])))
        if sent:
            del self.there[:sent]
            self.pause_s = 0.0
        elif self.broken or sent == 0:  # paramiko reports a closed channel by 0
            self.there.clear()
            self.sent_all = True
        elif not self.connection.selectable:
            self.pause_s = min(LONGEST_RETRY_S, 2 * self.pause_s or RETRY_S)
            self.retry_at = system.monotonic() + self.pause_s
        return bool(sent)

    def _attempt(self, call: Callable[[], T]) -> T | None:
        """Return the result of a call of the connection; None: it would block, or its error ends the connection."""
        try:
            return call()
        except LATER:
            return None
        except Exception as error:  # noqa: BLE001  libraries have their own errors, and other connections must go on
            self.connection.error = self.connection.error or error
            self.received_all = self.broken = True
            return None

    @property
    def done(self) -> bool:
        """Whether the connection has ended and everything that it sent was passed on."""
        return self.received_all and not self.here

    def watched(self) -> dict[int, int]:
        """Return the events to wait for, by descriptor."""
        read, write = selectors.EVENT_READ, selectors.EVENT_WRITE
        connection = read if not self.received_all and len(self.here) < FULL else 0
        connection |= write if self.there and self.connection.selectable else 0
        user = (read if not self.sent_all and len(self.there) < FULL else 0) | (write if self.here else 0)
        return {self.connection.fileno(): connection, self.socket.fileno(): user}

    def close(self) -> None:
        self.socket.close()
        self._attempt(self.connection.close)


class Pump:
    """A thread that carries the bytes of connections. The thread starts with the first connection.

    A connection whose methods may block, as those of a library over a blocking transport, needs a pump of its own.
    """

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._wake = system.current().eventfd()
        self._selector.register(self._wake, selectors.EVENT_READ)
        self._new: SimpleQueue[_Transfer] = SimpleQueue()
        self._links: dict[_Transfer, dict[int, int]] = {}  # with the registered events
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._ending = False

    def carry(self, connection: Transport, decode: Callable[[bytes], bytes] | None = None) -> socket.socket:
        """Return a socket through which this process reads and writes `connection`. May be called by any thread.

        The socket reaches its end when the connection does. `shutdown(SHUT_WR)` of the socket finishes the input of
        the connection. Closing the socket finishes the input too, and discards what still arrives.

        Args:
            connection: the connection, which the pump closes at its end.
            decode: a function of each received piece that returns the bytes for the socket, for a stream that has
                other data besides the output. An error of this function ends the connection.
        """
        with self._lock:
            if self._ending:
                raise RuntimeError("the pump is closed")
            link = _Transfer(connection, decode)
            self._new.put(link)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="pump", daemon=True)
                self._thread.start()
            os.eventfd_write(self._wake, 1)
        return link.theirs

    def close(self) -> None:
        """Close all connections, and end the thread. It may be called repeatedly."""
        with self._lock:
            if self._ending:
                return
            self._ending = True
        if self._thread is not None:
            os.eventfd_write(self._wake, 1)
            self._thread.join()
        while not self._new.empty():
            self._new.get().close()
        for link in self._links:
            link.close()
        self._links.clear()
        self._selector.close()
        os.close(self._wake)

    def _run(self) -> None:
        while not self._ending:
            due = min((link.retry_at for link in self._links if link.retry_at is not None), default=None)
            ready = self._selector.select(None if due is None else max(0.0, due - system.monotonic()))
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._wake)
            links = {key.data for key, _ in ready if key.data is not None}
            while not self._new.empty():
                links.add(self._new.get())
            now = system.monotonic()
            links |= {link for link in self._links if link.retry_at is not None and link.retry_at <= now}
            for link in links:
                self._serve(link)

    def _serve(self, link: _Transfer) -> None:
        """Carry the bytes that can be carried now, and wait for the others."""
        link.take()
        expected = {} if link.done else link.watched()
        before = self._links.get(link, {})
        for descriptor in before.keys() | expected.keys():
            watch(self._selector, descriptor, expected.get(descriptor, 0), link)
        if link.done:
            self._links.pop(link, None)
            link.close()
        else:
            self._links[link] = expected


@contextlib.contextmanager
def _tls_waits() -> Iterator[None]:
    """Convert the errors with which a socket with TLS would block."""
    import ssl  # slow to import, and most testbeds have no TLS

    try:
        yield
    except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
        raise BlockingIOError from error
