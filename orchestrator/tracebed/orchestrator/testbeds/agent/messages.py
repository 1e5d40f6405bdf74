"""The messages of an agent: received ones, whose fields are checked when they are read, and its events."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from tracebed.benchmarks.lines import Lines
from tracebed.ground import system
from tracebed.ground.errors import InputError

LINE_LIMIT = 4 * 2**20  # longest accepted line, bytes
LARGEST = 2**53  # Largest accepted whole number. Beyond it, JSON implementations differ.
LONGEST_S = 1e9  # longest accepted duration, s (30 years)
TEXT_LIMIT = 4096  # longest accepted text, characters
KEPT = 100_000  # Largest number of events that are kept. Older events are dropped.


class MessageFields:
    """The fields of a message. A missing field is a KeyError, an invalid value an InputError."""

    def __init__(self, message: Mapping[str, Any]) -> None:
        self._message = message

    def __contains__(self, name: str) -> bool:
        """Return whether the message has the field, and it is not null."""
        return self._message.get(name) is not None

    def value(self, name: str) -> Any:
        """Return an unchecked value."""
        return self._message[name]

    def text(self, name: str) -> str:
        """Return a text of at most `TEXT_LIMIT` characters without NUL."""
        value = self._message[name]
        if not isinstance(value, str) or len(value) > TEXT_LIMIT or "\0" in value:
            raise _invalid(name, value, f"a text of at most {TEXT_LIMIT} characters")
        return value

    def flag(self, name: str) -> bool:
        """Return a truth value."""
        value = self._message[name]
        if not isinstance(value, bool):
            raise _invalid(name, value, "true or false")
        return value

    def is_set(self, name: str) -> bool:
        """Return an optional truth value, false if it is missing or null."""
        return name in self and self.flag(name)

    def whole(self, name: str, least: int, most: int = LARGEST) -> int:
        """Return a whole number from `least` to `most`."""
        value = self._message[name]
        if type(value) is not int or not least <= value <= most:
            raise _invalid(name, value, f"a whole number from {least} to {most}")
        return value

    def number(self, name: str, least: float, most: float) -> float:
        """Return a number from `least` to `most`."""
        value = self._message[name]
        if type(value) not in (int, float) or not least <= value <= most:
            raise _invalid(name, value, f"a number from {least:g} to {most:g}")
        return float(value)

    def names(self, name: str) -> tuple[str, ...]:
        """Return a list of different names."""
        value = self._message[name]
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise _invalid(name, value, "a list of names")
        if len(set(value)) < len(value):
            raise InputError(f"a name is listed twice in {name}")
        return tuple(value)

    def object(self, name: str) -> dict[str, Any]:
        """Return an object inside the message."""
        value = self._message[name]
        if not isinstance(value, dict):
            raise _invalid(name, value, "an object")
        return value


def _invalid(name: str, value: object, expected: str) -> InputError:
    return InputError(f"{name} is {clipped(repr(value))}, not {expected}")


def clipped(text: str) -> str:
    """Return the beginning of `text`, at most about 200 characters, as quoted in messages."""
    return text if len(text) <= 200 else f"{text[:200]}..."


class Outbox:
    """The events of an agent. Events are numbered, except events that only a connected controller can use."""

    def __init__(self, lines: Lines) -> None:
        self.lines: Lines | None = lines  # the connection to the controller; None: it is lost
        self.keeping = False  # whether to keep numbered events for another controller
        self.number = 0
        self._kept: deque[dict[str, Any]] = deque(maxlen=KEPT)

    def send(self, type: str, **fields: Any) -> None:
        """Send a numbered event."""
        self.forward({"type": type, "time": system.monotonic(), **fields})

    def forward(self, event: dict[str, Any]) -> None:
        """Send a numbered event that already has its time."""
        self.number += 1
        event["n"] = self.number
        if self.keeping:
            self._kept.append(event)
        if self.lines is not None:
            self.lines.send(event)

    def send_unnumbered(self, type: str, **fields: Any) -> None:
        """Send an event without a number, if a controller is connected."""
        if self.lines is not None:
            self.lines.send({"type": type, "time": system.monotonic(), **fields})

    def confirm(self, number: int | None) -> None:
        """Discard the events up to `number`: the controller has recorded them."""
        while number is not None and self._kept and self._kept[0]["n"] <= number:
            self._kept.popleft()

    def close(self) -> None:
        """Stop sending events, and discard all kept events."""
        self.lines, self.keeping = None, False

    def resend(self) -> None:
        """Send the kept events to a new controller."""
        for event in self._kept:
            if self.lines is not None:
                self.lines.send(event)
