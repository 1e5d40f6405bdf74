"""The entries of Slurm's queue: a job in several partitions (`--partition=cpu,gpu`) has one entry for each of them.

Source: slurm.conf(5) of Slurm 22.05 (`bf_one_resv_per_job`), and the recordings `partitions*` of Slurm 22.05.8.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Entries:
    """The entries of each job.

    Attributes:
        first: of each entry, the first entry of its job.
        following: of each entry, the next one of its job; -1: none.
        one_reservation: whether one entry of a job at most has a reservation in a pass (`bf_one_resv_per_job`).
    """

    first: Sequence[int]
    following: Sequence[int]
    one_reservation: bool = False

    @classmethod
    def of(cls, jobs: Sequence[int], *, one_reservation: bool = False) -> Entries:
        """Return the entries of jobs. `jobs`: the job of each entry."""
        first, last = dict[int, int](), dict[int, int]()
        following = [-1] * len(jobs)
        for entry, job in enumerate(jobs):
            first.setdefault(job, entry)
            if job in last:
                following[last[job]] = entry
            last[job] = entry
        return cls([first[job] for job in jobs], following, one_reservation)

    @property
    def several(self) -> bool:
        """Whether any job has several entries."""
        return any(each >= 0 for each in self.following)

    def siblings(self, entry: int) -> Iterator[int]:
        """Yield the entries of the job of an entry."""
        each = self.first[entry]
        while each >= 0:
            yield each
            each = self.following[each]
