"""The events of an agent, kept until a controller has recorded them."""

from __future__ import annotations

from collections import deque
from typing import Any

from tracebed.benchmarks.lines import Lines
from tracebed.ground import system as world

KEPT = 100_000
"""Largest number of events that are kept. Older events are dropped."""


class Outbox:
    """The events of an agent. Events are numbered, except events that only a connected controller can use."""

    def __init__(self, lines: Lines) -> None:
        """Send events through `lines`."""
        self.lines: Lines | None = lines
        """The connection to the controller; None: it is lost."""
        self.keeping = False
        """Whether to keep numbered events for another controller."""
        self.number = 0
        self._kept: deque[dict[str, Any]] = deque(maxlen=KEPT)

    def send(self, type: str, **fields: Any) -> None:
        """Send a numbered event."""
        self.forward({"type": type, "time": world.monotonic(), **fields})

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
            self.lines.send({"type": type, "time": world.monotonic(), **fields})

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
