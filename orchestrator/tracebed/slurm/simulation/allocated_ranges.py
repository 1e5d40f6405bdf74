"""The nodes that the jobs of a simulation of Slurm held, as ranges of consecutive nodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from tracebed.converters.workload import IntArray
from tracebed.slurm.simulation.resources import Parts

Numbers = npt.NDArray[np.int32]


class AllocatedRanges(Sequence[Parts]):
    """Job -> node -> number of cores that the job held, as ranges of nodes with the same number of cores.

    A job has `size` ranges from its first one `begin` on, in the order of the nodes.
    """

    def __init__(self, ranges: Numbers, begin: IntArray, size: Numbers) -> None:
        """Keep the arrays. `ranges` has the shape (ranges, 3): first node, number of nodes and cores of each."""
        self.first, self.nodes, self.cores = ranges[:, 0], ranges[:, 1], ranges[:, 2]
        self.begin, self.size = begin, size

    @classmethod
    def of(cls, parts: Sequence[Parts]) -> AllocatedRanges:
        """Return the same for nodes and cores that are given job by job."""
        rows = [(node, 1, cores) for held in parts for node, cores in sorted(held.items())]
        ranges = np.array(rows, dtype=np.int32).reshape(len(rows), 3)
        size = np.array([len(held) for held in parts], dtype=np.int32)
        return cls(ranges, np.cumsum(size) - size, size)

    def by_job(self) -> tuple[IntArray, IntArray]:
        """Return the job and the number of each range, in the order of the jobs."""
        job = np.repeat(np.arange(len(self)), self.size)
        before = np.cumsum(self.size) - self.size
        return job, np.arange(len(job)) + (self.begin - before)[job]

    def __len__(self) -> int:
        """Return the number of jobs."""
        return len(self.size)

    def __getitem__(self, job: int) -> Parts:  # type: ignore[override]
        """Return the cores that a job held, by node."""
        if not -len(self) <= job < len(self):
            raise IndexError(job)
        own = slice(self.begin[job], self.begin[job] + self.size[job])
        rows = zip(self.first[own].tolist(), self.nodes[own].tolist(), self.cores[own].tolist(), strict=True)
        return {node: cores for first, count, cores in rows for node in range(first, first + count)}

    def __iter__(self) -> Iterator[Parts]:
        """Yield the cores by node, job by job."""
        return map(self.__getitem__, range(len(self)))

    def __eq__(self, other: object) -> bool:
        """Return whether the jobs held the same cores."""
        return isinstance(other, Sequence) and [*self] == [*other]

    __hash__ = None  # type: ignore[assignment]
