"""Connections between the ranks of a job: both ends prove that they have the key of the job, then exchange messages.

A message is a JSON object and, for some types, bytes. Neither end blocks on a connection: unwritten bytes are buffered,
so two ranks that send each other large data do not deadlock.
"""

from __future__ import annotations

import os
import selectors
import socket
import struct
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

from tracebed.benchmarks.lines import decode, encode, watch

# Time after which a connection between ranks on different machines is lost if the network does not carry it, s.
CUT_S = 10

Data = bytes | bytearray | memoryview
OnMessage = Callable[[dict[str, Any], memoryview], None]  # a function of a message and its bytes

_LENGTH = struct.Struct("!Q")


def tune(peer: socket.socket) -> None:
    """Set a TCP socket to send short messages without delay, and to fail if the network is cut for `CUT_S`."""
    if peer.family == socket.AF_INET:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        tcp = {
            socket.TCP_NODELAY: 1,
            socket.TCP_KEEPIDLE: CUT_S // 2,
            socket.TCP_KEEPINTVL: 1,
            socket.TCP_KEEPCNT: CUT_S // 2,
            socket.TCP_USER_TIMEOUT: 1000 * CUT_S,
        }
        for option, value in tcp.items():
            peer.setsockopt(socket.IPPROTO_TCP, option, value)


@contextmanager
def handshake(peer: socket.socket) -> Iterator[Connection]:
    """Provide a blocking connection over the socket `peer`, which stays open, for the mutual challenge."""
    with Connection(os.dup(peer.fileno())) as connection:
        yield connection


class Peer:
    """The connection to another rank, after the handshake. The keys of its selector have functions without arguments.

    `on_lost` is called when the other rank has closed its end.
    """

    def __init__(
        self, selector: selectors.BaseSelector, end: socket.socket, on_message: OnMessage, on_lost: Callable[[], None]
    ) -> None:
        self._selector, self._end, self._on_message, self._on_lost = selector, end, on_message, on_lost
        self._unsent: deque[memoryview] = deque()
        self._buffer = bytearray(_LENGTH.size)
        self._missing = memoryview(self._buffer)  # the part of the buffer that has not been read
        self._reads_length = True  # whether the buffer is for the length of a message, not for the message
        self.closed = False
        end.setblocking(False)
        selector.register(end, selectors.EVENT_READ, self._ready)

    def send(self, message: dict[str, Any], data: Data = b"") -> None:
        """Send a message. Unwritten bytes are buffered; `data` must not change until they are written."""
        head = encode(message)
        self._unsent.append(memoryview(_LENGTH.pack(len(head) + len(data)) + head))
        if data:
            self._unsent.append(memoryview(data))
        self._flush()

    def close(self) -> None:
        """Write the buffered bytes, and close the connection."""
        if not self.closed:
            self._end.setblocking(True)
            self._flush()
        if not self.closed:
            self._forget()

    def _ready(self) -> None:
        """Write the buffered bytes, and read at most one message."""
        if self.closed:  # by the function of another ready descriptor
            return
        if self._unsent:
            self._flush()
        while not self.closed:
            try:
                count = self._end.recv_into(self._missing)
            except BlockingIOError:
                return
            except OSError:  # the other rank was killed
                count = 0
            if not count:
                self._forget()
                self._on_lost()
                return
            self._missing = self._missing[count:]
            if self._missing:
                continue
            if self._reads_length:
                self._expect(*_LENGTH.unpack(self._buffer), length=False)
            else:
                body = self._buffer
                self._expect(_LENGTH.size, length=True)
                end = body.index(b"\n") + 1
                self._on_message(decode(bytes(body[:end])), memoryview(body)[end:])
                return

    def _expect(self, size: int, *, length: bool) -> None:
        """Read the next `size` bytes: the length of a message, or the message."""
        self._buffer, self._reads_length = bytearray(size), length
        self._missing = memoryview(self._buffer)

    def _flush(self) -> None:
        """Write as many of the buffered bytes as possible."""
        try:
            while self._unsent and not self.closed:
                count = self._end.send(self._unsent[0])
                if count == len(self._unsent[0]):
                    self._unsent.popleft()
                else:
                    self._unsent[0] = self._unsent[0][count:]
        except BlockingIOError:
            pass
        except OSError:
            self._forget()
            self._on_lost()
        if not self.closed:
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._unsent else 0)
            watch(self._selector, self._end.fileno(), events, self._ready)

    def _forget(self) -> None:
        self.closed = True
        self._unsent.clear()
        self._selector.unregister(self._end)
        self._end.close()
