"""The rounds of a replay, and their journal entries.

A round is the input of the scheduler at one instant and the resulting decisions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tracebed.ground import system as world
from tracebed.orchestrator.replay.journal import Entry, Journal
from tracebed.orchestrator.replay.monitor import Monitor

OBSERVED = {"sample", "work", "loop"}
"""Kinds of entries that only the monitor reads. They may be written later than the events of jobs."""
HOLD_S = 0.25
"""Longest time for which observations are held back, wall s: a transaction for each heartbeat costs too much."""


class Rounds:
    """The current round. Its events are written to the journal at once, its decisions at its end.

    Observations are written together with the next event or decision, or after `HOLD_S`.

    Args:
        monitor: the monitor of all entries.
        ids: job number -> job id.
        names: node number -> name.

    Attributes:
        number: number of the round.
        now: time of the round, trace s.
        entries: entries of this round that have not been written.
    """

    def __init__(self, journal: Journal, monitor: Monitor, ids: Sequence[str], names: Sequence[str]) -> None:
        """Start with round 0 at time 0."""
        self.journal, self.monitor = journal, monitor
        self.number = 0
        self.now = 0.0
        self.entries: list[Entry] = []
        self._ids, self._names = ids, names
        self._held: list[Entry] = []
        self._held_until = 0.0  # monotonic

    def advance(self, now: float) -> None:
        """Set the time of the round. No two rounds have the same time, so that times give the order of rounds."""
        self.now = max(math.nextafter(self.now, math.inf), now)  # a steady clock may stand still

    def entry(self, kind: str, job: int | str | None, node: int | None, data: dict[str, Any]) -> Entry:
        """Return an entry of this round."""
        name = self._ids[job] if isinstance(job, int) else job
        return Entry(self.number, self.now, kind, name, None if node is None else self._names[node], data)

    def note(self, kind: str, job: int | None = None, **data: Any) -> None:
        """Add an entry, which is written at the end of the round."""
        self.entries.append(self.entry(kind, job, None, data))

    def note_node(self, kind: str, node: int, **data: Any) -> None:
        """Add an entry about a node, which is written at the end of the round."""
        self.entries.append(self.entry(kind, None, node, data))

    def write(self, entries: Sequence[Entry]) -> None:
        """Write entries to the journal, and pass them to the monitor."""
        if not entries and not self._held:  # most rounds
            return
        for entry in entries:
            self.monitor.apply(entry)
        now = world.monotonic()
        if not self._held:
            self._held_until = now + HOLD_S
        self._held += entries
        if now >= self._held_until or any(entry.kind not in OBSERVED for entry in entries):
            self.flush()

    def flush(self) -> None:
        """Write the observations that are held back."""
        self.journal.write(self._held)
        self._held.clear()

    def end(self) -> None:
        """Write the entries of the round that have not been written."""
        self.write(self.entries)
        self.entries.clear()

    def next(self) -> None:
        """Begin the next round."""
        self.number += 1
