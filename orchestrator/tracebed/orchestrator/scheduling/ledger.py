"""The ledger: which job held which nodes from when until when."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np

MANY = 65_536
"""Number of nodes in the recent periods at which their ranges are computed."""


@dataclass
class Ledger:
    """Past allocations: one entry per job and range of consecutive nodes, in the order of release.

    The ranges of many periods are computed at once, which takes a tenth of the time of one period after another.
    """

    jobs: array[int] = field(default_factory=lambda: array("i"))
    firsts: array[int] = field(default_factory=lambda: array("i"))
    counts: array[int] = field(default_factory=lambda: array("i"))
    starts: array[float] = field(default_factory=lambda: array("d"))
    ends: array[float] = field(default_factory=lambda: array("d"))
    parts: dict[int, range] = field(default_factory=dict)
    """Index of an entry of shared nodes -> the cores that the job held on each of them."""

    def __post_init__(self) -> None:
        self._recent: list[tuple[int, Sequence[int], float, float, range | None]] = []
        self._nodes = 0  # in the recent periods

    def add(self, job: int, nodes: Sequence[int], since: float, now: float, part: range | None = None) -> None:
        """Add that `job` held `nodes` (ascending) from `since` until `now`. `part`: cores held per node; None: all."""
        self._recent.append((job, nodes, since, now, part))
        self._nodes += len(nodes)
        if self._nodes >= MANY:
            self.complete()

    def complete(self) -> Ledger:
        """Add the entries of the recent periods, and return the ledger."""
        if not self._recent:
            return self
        jobs, held, starts, ends, parts = zip(*self._recent, strict=True)
        nodes = np.fromiter(chain.from_iterable(held), np.int64, self._nodes)
        period = np.repeat(np.arange(len(held)), [len(each) for each in held])
        first = np.flatnonzero((np.diff(nodes, prepend=-2) != 1) | (np.diff(period, prepend=-1) != 0))
        period = period[first]
        if any(parts):
            row = len(self.jobs)
            self.parts |= {row + at: part for at, of in enumerate(period.tolist()) if (part := parts[of]) is not None}
        for column, values in (
            (self.jobs, np.array(jobs)[period]),
            (self.firsts, nodes[first]),
            (self.counts, np.diff(first, append=len(nodes))),
            (self.starts, np.array(starts)[period]),
            (self.ends, np.array(ends)[period]),
        ):
            column.frombytes(values.astype(column.typecode).tobytes())
        self._recent.clear()
        self._nodes = 0
        return self
