"""Connections between ranks that go through the agents and the controller, so that no port is opened.

Bytes have positions, and are kept until the other agent has confirmed them. They are therefore neither lost nor
duplicated when a controller dies while it carries a message: after another controller has taken over, both agents
repeat the unconfirmed bytes.
"""

from __future__ import annotations

import base64
import contextlib
import selectors
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from tracebed.benchmarks.lines import watch
from tracebed.ground.errors import InputError
from tracebed.orchestrator.testbeds.agent.messages import MessageFields, Outbox

CHUNK = 65536  # largest number of bytes in a message
CONFIRM = 32768  # number of bytes after which they are confirmed without waiting for bytes in the other direction
WINDOW = 2**20  # number of unconfirmed bytes at which a connection is no longer read
CONNECT_S = 1.0  # longest time to connect to a leader on this node, s

Key = tuple[str, str, int]  # job, node of the follower, and number of the connection


class RelayedStream:
    """One end of a relayed connection. `ended` is called when both ends are closed."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        peer: socket.socket,
        send: Callable[..., None],
        ended: Callable[[], None],
    ) -> None:
        self._selector, self._peer, self._send, self._ended = selector, peer, send, ended
        peer.setblocking(False)
        self._sent = bytearray()  # bytes from the rank that the other agent has not confirmed
        self._confirmed = 0  # number of bytes from the rank that the other agent has confirmed
        self._to_write = bytearray()
        # Number of bytes that were written to the rank, or discarded since the rank has closed its end.
        self._written = 0
        self._last_reported = 0  # value of `_written` in the last message
        self._closed_here = self._closed_there = False
        self._watch()

    def request_connection(self) -> None:
        """Request the other agent to connect, because the leader is the first to send."""
        self._send_data(b"")

    def ready(self) -> None:
        """Write to the rank and read from it as much as is possible now."""
        self._write()
        if not self._closed_here and len(self._sent) < WINDOW:
            try:
                data = self._peer.recv(CHUNK)
            except BlockingIOError:
                pass
            except OSError:  # the rank was killed
                self._close()
            else:
                self._send_data(data) if data else self._close()
        self._confirm()
        self._watch()

    def receive(self, fields: MessageFields) -> None:
        """Process a message of the other agent."""
        offset, data = fields.whole("offset", 0), _data(fields)
        confirmed = fields.whole("received", 0) - self._confirmed
        if confirmed > len(self._sent):
            raise InputError("more bytes are confirmed than were sent")
        if confirmed > 0:
            del self._sent[:confirmed]
            self._confirmed += confirmed
        known = self._written + len(self._to_write) - offset
        if known >= 0:  # otherwise, bytes before these are missing and will be repeated
            self._to_write += data[known:]
            self._closed_there = self._closed_there or fields.is_set("closed")
        self._write()
        if fields.is_set("again"):
            self.resend()
        self._confirm()
        self._watch()

    def resend(self, *, again: bool = False) -> None:
        """Send all unconfirmed bytes. With `again`, request the same from the other agent."""
        start = 0
        while again or start < len(self._sent) or self._closed_here:
            data = bytes(self._sent[start : start + CHUNK])
            last = start + len(data) == len(self._sent)
            self._message(self._confirmed + start, data, again=again, closed=self._closed_here and last)
            start, again = start + len(data), False
            if last:
                break

    def _close(self) -> None:
        """Close this end, and inform the other agent."""
        if not self._closed_here:
            self._closed_here = True
            self._watch()
            self._peer.close()
            self._discard()
            self._message(self._confirmed + len(self._sent), b"", closed=True)
        if self._closed_there:
            self._ended()

    def _write(self) -> None:
        """Write as much as possible to the rank. Close this end once everything before the close has been written."""
        try:
            while self._to_write and not self._closed_here:
                count = self._peer.send(self._to_write[:CHUNK])
                self._written += count
                del self._to_write[:count]
        except BlockingIOError:
            return
        except OSError:  # the rank has closed its end; what it sent before can still be read
            pass
        self._discard()
        if self._closed_there:
            self._close()

    def _discard(self) -> None:
        self._written += len(self._to_write)
        self._to_write.clear()

    def _confirm(self) -> None:
        if self._written - self._last_reported >= CONFIRM and not self._closed_here:
            self._send_data(b"")

    def _send_data(self, data: bytes) -> None:
        offset = self._confirmed + len(self._sent)
        self._sent += data
        self._message(offset, data)

    def _message(self, offset: int, data: bytes, *, closed: bool = False, again: bool = False) -> None:
        self._last_reported = self._written
        flags = {name: True for name, flag in (("closed", closed), ("again", again)) if flag}
        self._send(offset=offset, received=self._written, data=base64.b64encode(data).decode(), **flags)

    def _watch(self) -> None:
        events = 0
        if not self._closed_here:
            events |= selectors.EVENT_READ if len(self._sent) < WINDOW else 0
            events |= selectors.EVENT_WRITE if self._to_write else 0
        watch(self._selector, self._peer.fileno(), events, self.ready)


class Relays:
    """The relayed connections of the ranks on a node."""

    def __init__(self, selector: selectors.BaseSelector, outbox: Outbox, node: str) -> None:
        self._selector, self._outbox, self._node = selector, outbox, node
        self._streams: dict[Key, RelayedStream] = {}
        self._leaders: dict[str, str] = {}  # job -> path of the socket of its leader on this node
        # Job -> the socket to which its follower on this node connects, and the path of the socket.
        self._listeners: dict[str, tuple[socket.socket, str]] = {}
        self._number = 0

    def add_leader(self, job: str, path: str) -> None:
        """Accept connections to the leader of a job, which listens at `path`."""
        self._leaders[job] = path

    def add_follower(self, job: str, path: str, leader: str) -> None:
        """Listen at `path` for the follower of a job, whose leader is on the node `leader`."""
        listener = socket.socket(socket.AF_UNIX)
        self._listeners[job] = listener, path
        listener.bind(path)
        listener.listen(1)

        def accept() -> None:
            peer = listener.accept()[0]
            self._close_listener(job)
            self._number += 1
            self._open((job, self._node, self._number), peer, leader).request_connection()

        self._selector.register(listener, selectors.EVENT_READ, accept)

    def has_leader(self, job: str) -> bool:
        """Return whether the leader of a job is on this node and relayed."""
        return job in self._leaders

    def forget(self, job: str) -> None:
        """Remove a job whose rank has ended. Its connections end without further action: the rank has closed them."""
        self._leaders.pop(job, None)
        self._close_listener(job)

    def receive(self, message: dict[str, Any]) -> None:
        """Process a message of another agent."""
        fields = MessageFields(message)
        job, rank = fields.text("job"), fields.text("rank")
        key = job, rank, fields.whole("stream", 1)
        if fields.text("to") != self._node:
            raise InputError(f"the message is for node {fields.text('to')!r}, not for {self._node!r}")
        stream = self._streams.get(key)
        if stream is None and (fields.is_set("again") or not fields.is_set("closed")) and rank != self._node:
            offset = fields.whole("offset", 0)
            stream = self._connect(key) if offset == 0 and not fields.is_set("closed") else None
            if stream is None:  # the leader has ended
                self._send(key, rank, offset=0, received=offset, data="", closed=True)
        if stream is not None:
            stream.receive(fields)

    def resend(self) -> None:
        """Repeat all unconfirmed bytes, and request the same from the other agents: messages may be lost."""
        for stream in list(self._streams.values()):
            stream.resend(again=True)

    def _connect(self, key: Key) -> RelayedStream | None:
        """Connect a follower to the leader of its job on this node; None: the leader is not on this node."""
        path = self._leaders.get(key[0])
        if path is None:
            return None
        peer = socket.socket(socket.AF_UNIX)
        peer.settimeout(CONNECT_S)
        try:
            peer.connect(path)
        except OSError:
            peer.close()
            return None
        return self._open(key, peer, key[1])

    def _open(self, key: Key, peer: socket.socket, to: str) -> RelayedStream:
        def ended() -> None:
            self._streams.pop(key, None)

        stream = self._streams[key] = RelayedStream(self._selector, peer, partial(self._send, key, to), ended)
        return stream

    def _send(self, key: Key, to: str, **fields: Any) -> None:
        job, rank, number = key
        self._outbox.send_unnumbered("relay", job=job, rank=rank, stream=number, to=to, **fields)

    def _close_listener(self, job: str) -> None:
        if job in self._listeners:
            listener, path = self._listeners.pop(job)
            with contextlib.suppress(KeyError):  # the follower could not be launched
                self._selector.unregister(listener)
            listener.close()
            Path(path).unlink(missing_ok=True)


def _data(fields: MessageFields) -> bytes:
    value = fields.value("data")
    if not isinstance(value, str) or len(value) > 2 * CHUNK:
        raise InputError(f"data is not a text of at most {2 * CHUNK} characters")
    return base64.b64decode(value, validate=True)
