"""Heterogeneous jobs, whose components start together: when a backfill pass plans each component.

Source: "Heterogeneous Job Support" of Slurm's documentation, and experiments on Slurm 22.05.8: the main loop starts no
component, and nothing behind one in its partition. A backfill pass plans each component after the planned starts of
those before it, and reserves its nodes, also from now on. The job starts at the end of a pass that plans all of its
components now, each on nodes of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

YEAR_S = 365 * 86400
"""A component that a pass cannot plan is expected to start so much later, s."""


class Together:
    """The planned starts of the components of heterogeneous jobs in a backfill pass."""

    def __init__(self, group: Sequence[int], first: Sequence[int]) -> None:
        """Begin before the first pass.

        Args:
            group: heterogeneous job of each entry of the queue; -1: none.
            first: first entry of the job of each entry.
        """
        self._group, self._first = group, first
        self._size = Counter(own for entry, own in enumerate(group) if own >= 0 and first[entry] == entry)
        self._planned: dict[int, dict[int, tuple[int, int]]] = {}

    def begin(self) -> None:
        """Begin a pass: no component is planned yet."""
        self._planned = {}

    def since(self, entry: int, now: int) -> int:
        """Return before which instant a pass does not plan a component, s. It is known to the pass from then on."""
        component = self._first[entry]
        planned = self._planned.setdefault(self._group[entry], {})
        planned.setdefault(component, (now + YEAR_S, entry))
        return max((start for other, (start, _) in planned.items() if other != component), default=now)

    def plan(self, entry: int, start: int) -> None:
        """Note the planned start of a component. The earliest one of its partitions counts."""
        planned, component = self._planned[self._group[entry]], self._first[entry]
        if start < planned[component][0]:
            planned[component] = start, entry

    def ready(self, now: int) -> Iterator[list[int]]:
        """Yield, at the end of a pass, the components of each heterogeneous job that are all planned now."""
        for own, planned in self._planned.items():
            if len(planned) == self._size[own] and all(start <= now for start, _ in planned.values()):
                yield [entry for _, entry in planned.values()]
