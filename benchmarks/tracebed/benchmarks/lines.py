"""JSON lines over non-blocking file descriptors, and calls that other threads schedule."""

from __future__ import annotations

import contextlib
import json
import selectors
import sys
import weakref
from collections.abc import Callable, Mapping
from queue import SimpleQueue
from typing import Any

from tracebed.ground import system

CHUNK = 65536  # largest number of bytes that are read or written at once
CHUNKS = 64  # largest number of chunks that are read before the lines in them are returned
ONE = (1).to_bytes(8, sys.byteorder)  # what is written to an event descriptor to make it readable


def _made_encoder(*, allow_nan: bool) -> Callable[[Any], str]:
    """Return a function that encodes as JSONEncoder.encode, which makes the encoder in C again for each value."""
    encoder = json.JSONEncoder(separators=(",", ":"), check_circular=False, allow_nan=allow_nan)
    make = getattr(json.encoder, "c_make_encoder", None)
    if make is None:
        return encoder.encode
    parts = make(None, encoder.default, json.encoder.encode_basestring_ascii, None, ":", ",", False, False, allow_nan)
    return lambda value: "".join(parts(value, 0))


# Return a value in JSON without spaces. A value that contains itself raises RecursionError.
encoded = _made_encoder(allow_nan=True)
_message = _made_encoder(allow_nan=False)


def encode(message: Mapping[str, Any]) -> bytes:
    """Return `message` as a line of JSON.

    NaN or infinity is a ValueError, so that no message carries a defect further.
    """
    return _message(message).encode() + b"\n"


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is not a number of JSON")


_DECODER = json.JSONDecoder(parse_constant=_no_number)


def decoded(text: str, decoder: json.JSONDecoder) -> Any:
    """Return the value of a JSON text. `JSONDecoder.decode` also searches for white space around it, which is rare."""
    if text[:1] == "{":
        value, end = decoder.raw_decode(text)
        if end == len(text):
            return value
    return decoder.decode(text)


def decode(line: bytes) -> dict[str, Any]:
    """Return the message in `line`. Raises ValueError if the line is not a JSON object in UTF-8."""
    try:
        message = decoded(line.decode(), _DECODER)
    except RecursionError as error:
        raise ValueError("the values are nested too deeply") from error
    if not isinstance(message, dict):
        raise ValueError("not a JSON object")
    return message


class Lines:
    """One end of a connection for JSON lines. Output that cannot be written yet is buffered.

    The object registers its descriptors with the selector, with `data` as the data of the selector keys. The caller
    calls `receive` when the reading end is ready, and `flush` when the writing end is ready.
    """

    def __init__(
        self, selector: selectors.BaseSelector, reader: int, writer: int, data: Any, limit: int | None = None
    ) -> None:
        """Register both descriptors, which may be the same, and make them non-blocking.

        A line of more than `limit` bytes is cut to `limit` + 1 bytes or more, and the rest is discarded.
        """
        self.selector, self.reader, self.writer, self.data, self.limit = selector, reader, writer, data, limit
        self.closed = False  # whether the peer has closed the end that `reader` reads
        self.broken = False  # whether the peer has closed the end that `writer` writes
        self.unsent = bytearray()
        self._partial = b""
        self._watched: tuple[bool, bool] | None = None  # `closed` and whether output was buffered when last registered
        for descriptor in {reader, writer}:
            system.current().set_blocking(descriptor, False)
        self._watch()

    def receive(self) -> list[bytes]:
        """Return the complete lines that have arrived."""
        chunks = [self._partial]
        while not self.closed and len(chunks) <= CHUNKS:
            try:
                chunk = system.current().read(self.reader, CHUNK)
            except BlockingIOError:
                break
            except OSError:  # the process at the other end of the socket was killed
                chunk = b""
            chunks.append(chunk)
            if not chunk:
                self.closed = True
                self._watch()
            elif len(chunk) < CHUNK:
                break
        *lines, self._partial = b"".join(chunks).split(b"\n")
        if self.limit is not None:
            self._partial = self._partial[: self.limit + 1]
        return lines

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message. The part that cannot be written now is buffered for `flush`."""
        self.unsent += encode(message)
        self.flush()

    def flush(self) -> None:
        """Write as much of the buffer as possible. Discard the buffer if the peer has closed its end."""
        if not self.unsent:
            return
        try:
            while self.unsent and not self.broken:
                del self.unsent[: system.current().write(self.writer, self.unsent[:CHUNK])]
        except BlockingIOError:
            pass
        except OSError:
            self.broken = True
        if self.broken:
            self.unsent.clear()
        self._watch()

    def forget(self) -> None:
        """Unregister the descriptors. The caller must close them."""
        self.closed = self.broken = True
        self.unsent.clear()
        self._watch()

    def drain(self) -> None:
        """Write the whole buffer, and block until it is written."""
        system.current().set_blocking(self.writer, True)
        self.flush()

    def _watch(self) -> None:
        """Register for reading until the end of the input, and for writing while the buffer is not empty."""
        state = self.closed, bool(self.unsent)
        if state == self._watched:  # the most frequent case: a message was sent at once
            return
        self._watched = state
        wanted: dict[int, int] = {self.reader: 0, self.writer: 0}
        wanted[self.reader] |= 0 if self.closed else selectors.EVENT_READ
        wanted[self.writer] |= selectors.EVENT_WRITE if self.unsent else 0
        for descriptor, events in wanted.items():
            watch(self.selector, descriptor, events, self.data)


def watch(selector: selectors.BaseSelector, descriptor: int, events: int, data: Any) -> None:
    """Wait for `events` of a descriptor, with `data` in its key; 0: wait no longer; -1: a closed one."""
    known = selector.get_map()
    before = known[descriptor].events if descriptor >= 0 and descriptor in known else 0
    if events and not before:
        selector.register(descriptor, events, data)
    elif before and not events:
        selector.unregister(descriptor)
    elif before != events:
        selector.modify(descriptor, events, data)


class Mailbox:
    """Calls that other threads schedule in the thread of a selector."""

    def __init__(self, selector: selectors.BaseSelector) -> None:
        """Wake `selector` whenever a call is posted. The data of its key is `run`."""
        self._calls: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._wake = system.current().eventfd()
        weakref.finalize(self, system.current().close, self._wake)  # threads that may post keep this object alive
        selector.register(self._wake, selectors.EVENT_READ, self.run)

    def post(self, call: Callable[[], None]) -> None:
        """Schedule `call`."""
        self._calls.put(call)
        system.current().write(self._wake, ONE)

    def run(self, mask: int = 0) -> None:
        """Make the calls that are scheduled. `mask` is not used."""
        with contextlib.suppress(BlockingIOError):
            system.current().read(self._wake, len(ONE))
        while not self._calls.empty():
            self._calls.get()()
