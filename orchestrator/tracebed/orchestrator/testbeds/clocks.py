"""The clocks of nodes: their offsets to the clock of this machine, and the conversion of times in events.

All clocks are monotonic clocks. An offset is measured by pings, as in NTP (RFC 5905): a ping is sent at t0 and arrives
at t1 of the node, its echo is sent at t2 of the node and arrives at t3. Then the round trip is (t3 - t0) - (t2 - t1),
the offset is ((t1 - t0) + (t2 - t3)) / 2, and the error of the offset is at most half of the round trip.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

DRIFT = 50e-6
"""Largest assumed drift between two clocks, seconds per second. Crystals of computers are better than this."""
TIMES = ("time", "begun", "asked", "seen", "decided", "applied", "done")
"""The fields of an event that have times of the node. The first field of each sample in `samples` is one too."""
NUMBER = (int, float)


class NodeClock:
    """The offset of the clock of a node.

    Args:
        same: whether the node has the clock of this machine. Then the offset is 0, unless a measurement excludes 0.

    Attributes:
        offset_s: time of the node minus time of this machine, s.
        round_trip_s: round trip of the ping that gave the offset, s; None: not measured yet.
        error_s: largest error of the offset when it was measured, s.
    """

    def __init__(self, *, same: bool = False) -> None:
        """Start with an offset of 0."""
        self.same = same
        self.offset_s = 0.0
        self.round_trip_s: float | None = None
        self.error_s = 0.0
        self._measured = 0.0

    @property
    def known(self) -> bool:
        """Whether times of the node can be converted."""
        return self.same or self.round_trip_s is not None

    def echo(self, sent: float, received: float, answered: float, arrived: float) -> float:
        """Process the echo of a ping, and keep the sample with the smallest current error.

        The error of the kept sample grows by `DRIFT`. A sample that contradicts the kept one replaces it: the node was
        suspended, or restarted.

        Args:
            sent: time of this machine at which the ping was sent, s.
            received: time of the node at which it arrived, s.
            answered: time of the node at which the echo was sent, s.
            arrived: time of this machine at which the echo arrived, s.

        Returns:
            The step of the clock of the node since the kept sample, s; 0: the sample does not contradict it.
        """
        round_trip = max(0.0, (arrived - sent) - (answered - received))
        offset = ((received - sent) + (answered - arrived)) / 2
        error = round_trip / 2
        kept = self.error_s + DRIFT * (arrived - self._measured)
        stepped = self.round_trip_s is not None and abs(offset - self.offset_s) > error + kept
        step = offset - self.offset_s if stepped else 0.0
        if self.round_trip_s is None or error <= kept or stepped:
            self.round_trip_s, self.error_s, self._measured = round_trip, error, arrived
            self.offset_s = 0.0 if self.same and abs(offset) <= error else offset
        return step

    def convert(self, message: dict[str, Any], arrived: float) -> dict[str, Any]:
        """Return an event of the node with times of this machine, none of which is after its arrival.

        Args:
            arrived: time of its arrival.
        """
        if not self.offset_s:
            return message

        def here(time: float) -> float:
            return min(time - self.offset_s, arrived)

        times = {name: here(message[name]) for name in TIMES if isinstance(message.get(name), NUMBER)}
        if samples := message.get("samples"):
            return message | times | {"samples": [[here(ended), *rest] for ended, *rest in samples]}
        return message | times

    def facts(self) -> Mapping[str, float | None]:
        """Return the offset and its round trip for `run.json`, s."""
        return {"offset_s": round(self.offset_s, 6), "round_trip_s": self.round_trip_s}
