"""The nodes of a batch system on which the jobs of a replay can start."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

LOST_POLLS = 2
"""Successive observations of an unusable node after which a policy no longer uses it."""


def begin_outage(outages: list[dict[str, Any]], node: str, at: float, reason: str) -> None:
    """Add the beginning of a time in which a node cannot be used to `RunInfo.outages`."""
    outages.append({"node": node, "from": at, "until": None, "reason": reason})


def end_outages(outages: list[dict[str, Any]], at: float, node: str | None = None) -> None:
    """End the time in which a node cannot be used; None: of all nodes."""
    for outage in outages:
        if outage["until"] is None and node in (None, outage["node"]):
            outage["until"] = at


class UsableNodes:
    """The nodes that can and cannot be used.

    Attributes:
        lost: the nodes that cannot be used.
    """

    def __init__(self, names: Collection[str]) -> None:
        """Start with usable nodes."""
        self._names = frozenset(names)
        self._seen: dict[str, tuple[int, str]] = {}  # unusable node -> successive observations, and the last reason
        self.lost: set[str] = set()

    def observe(self, unusable: Mapping[str, str]) -> None:
        """Process an observation: unusable node -> the reason. Unknown names are ignored."""
        found = {name: reason for name, reason in unusable.items() if name in self._names}
        self._seen = {name: (self._seen.get(name, (0, ""))[0] + 1, reason) for name, reason in found.items()}

    def changes(self) -> tuple[dict[str, str], list[str]]:
        """Return the nodes that have become unusable since the last call, with reasons, and the usable ones."""
        unusable = {name: reason for name, (polls, reason) in sorted(self._seen.items()) if polls >= LOST_POLLS}
        lost = {name: reason for name, reason in unusable.items() if name not in self.lost}
        back = sorted(name for name in self.lost if name not in self._seen)
        self.lost = (self.lost | unusable.keys()) - {*back}
        return lost, back
