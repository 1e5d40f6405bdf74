"""The nodes of a batch system on which jobs can start."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

LOST_POLLS = 2
"""Successive observations of an unusable node after which a policy no longer uses it."""


class UsableNodes:
    """The nodes that can and cannot be used.

    Args:
        names: the names of all nodes.

    Attributes:
        lost: the nodes that cannot be used.
    """

    def __init__(self, names: Collection[str]) -> None:
        """Start with usable nodes."""
        self._names = frozenset(names)
        self._polls: Counter[str] = Counter()  # unusable node -> successive observations
        self.lost: set[str] = set()

    def observe(self, unusable: Collection[str]) -> None:
        """Process an observation of the unusable nodes. Unknown names are ignored."""
        self._polls = Counter({name: self._polls[name] + 1 for name in self._names.intersection(unusable)})

    def changes(self) -> tuple[list[str], list[str]]:
        """Return the nodes that have become unusable since the last call, and those that are usable again."""
        unusable = {name for name, polls in self._polls.items() if polls >= LOST_POLLS}
        lost, back = sorted(unusable - self.lost), sorted(name for name in self.lost if not self._polls[name])
        self.lost = (self.lost | unusable) - {*back}
        return lost, back
