"""How many jobs a backfill pass considers.

Source: slurm.conf(5) (`bf_max_job_test`, `bf_max_job_part`, `bf_max_job_user_part`, `bf_max_job_user`), and recordings
of Slurm 22.05.8.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple


class Depth(NamedTuple):
    """Largest numbers of jobs in a backfill pass: in all, of a partition, of a user in it, of a user. 0: any number."""

    test: int
    part: int
    user_part: int
    user: int


def considered(
    order: Iterable[int], depth: Depth, entry: Sequence[int], partition: Sequence[int], user: Sequence[int]
) -> Iterator[int]:
    """Yield the jobs of a backfill pass among those in `order`.

    All tasks of an array in a partition are one entry of the queue: jobs with the same `entry`, unless it is -1.
    """
    parts, users_in_parts, users = Counter[int](), Counter[tuple[int, int]](), Counter[int]()
    entries, last = 0, -1
    for job in order:
        part, own = partition[job], user[job]
        if entry[job] < 0 or entry[job] != last:
            parts[part] += 1
            if 0 < depth.part < parts[part]:
                continue
            users_in_parts[own, part] += 1
            if 0 < depth.user_part < users_in_parts[own, part]:
                continue
            users[own] += 1
            if 0 < depth.user < users[own]:
                continue
            if entries == depth.test:
                return
            entries += 1
        last = entry[job]
        yield job
