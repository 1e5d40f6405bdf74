"""JSON lines over file descriptors that never block, and waiting that ends on time."""

from __future__ import annotations

import json
import os
import selectors
import time
from collections.abc import Mapping
from typing import Any

Ready = list[tuple[selectors.SelectorKey, int]]


def wait(selector: selectors.BaseSelector, until: float | None) -> Ready:
    """Select until something is ready or `time.monotonic()` is `until` (None: no end).

    A selector alone counts in whole milliseconds and rounds up; the last of them is slept here instead.
    """
    if until is None:
        return selector.select()
    left = until - time.monotonic()
    if left > 0.001:
        ready = selector.select(left - 0.001)
        if ready:
            return ready
        left = until - time.monotonic()
    if left > 0:
        time.sleep(left)
    return selector.select(0)


def encode(message: Mapping[str, Any]) -> bytes:
    """Return the line of a message."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> dict[str, Any]:
    """Return the message of a line. Raises ValueError where it is no JSON object."""
    message = json.loads(line)
    if not isinstance(message, dict):
        raise ValueError("not a JSON object")
    return message


class Lines:
    """One end of a conversation in JSON lines: reads what is there, keeps back what cannot be written yet.

    It registers itself with the selector (`data` is what the selector's keys carry); its owner calls
    `receive` when the reading end is ready and `flush` when the writing end is.
    """

    def __init__(self, selector: selectors.BaseSelector, reader: int, writer: int, data: Any) -> None:
        """Take both ends (which may be one and the same descriptor) and make them non-blocking."""
        self.selector, self.reader, self.writer, self.data = selector, reader, writer, data
        self.closed = False
        """Whether the other side has closed what we read."""
        self.broken = False
        """Whether the other side has closed what we write."""
        self.unsent = bytearray()
        self._partial = b""
        for descriptor in {reader, writer}:
            os.set_blocking(descriptor, False)
        self._watch()

    def receive(self) -> list[bytes]:
        """Return the complete lines that have arrived."""
        chunks = [self._partial]
        while not self.closed:
            try:
                chunk = os.read(self.reader, 65536)
            except BlockingIOError:
                break
            except OSError:  # a socket whose other end was killed
                chunk = b""
            chunks.append(chunk)
            if not chunk:
                self.closed = True
                self._watch()
            elif len(chunk) < 65536:
                break
        *lines, self._partial = b"".join(chunks).split(b"\n")
        return lines

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message, or keep what does not fit now for `flush`."""
        self.unsent += encode(message)
        self.flush()

    def flush(self) -> None:
        """Write what was kept back, as far as it goes; drop it where nobody reads any more."""
        try:
            while self.unsent and not self.broken:
                del self.unsent[: os.write(self.writer, self.unsent[:65536])]
        except BlockingIOError:
            pass
        except OSError:
            self.broken = True
        if self.broken:
            self.unsent.clear()
        self._watch()

    def forget(self) -> None:
        """Leave the selector; the descriptors are the owner's to close."""
        self.closed = self.broken = True
        self.unsent.clear()
        self._watch()

    def drain(self) -> None:
        """Write everything that was kept back, however long it takes."""
        os.set_blocking(self.writer, True)
        self.flush()

    def _watch(self) -> None:
        """Have the selector look for input until its end, and for room while something waits."""
        wanted: dict[int, int] = {self.reader: 0, self.writer: 0}
        wanted[self.reader] |= 0 if self.closed else selectors.EVENT_READ
        wanted[self.writer] |= selectors.EVENT_WRITE if self.unsent else 0
        known = self.selector.get_map()
        for descriptor, events in wanted.items():
            now = known[descriptor].events if descriptor in known else 0
            if events and not now:
                self.selector.register(descriptor, events, self.data)
            elif now and not events:
                self.selector.unregister(descriptor)
            elif now != events:
                self.selector.modify(descriptor, events, self.data)
