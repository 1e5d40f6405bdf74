"""The waiting jobs in order, and the one question that backfilling asks of them."""

from __future__ import annotations

import numpy as np

from tracebed.orchestrator.scheduling.jobs import Jobs

BLOCK = 512
"""Jobs in a block; a block is looked into only if its summary says that something in it may fit."""
SLACK_S = 1e-6
NOBODY = np.iinfo(np.int64).max


class Queue:
    """Waiting jobs by submission (job numbers ascend in that order).

    Arrays over all jobs, in blocks. Each block has a summary: for every power of two, the shortest limit among its
    waiting jobs of at most that many nodes. Removal leaves a summary too hopeful, which costs a look in vain and is
    mended then; so the work of a query follows what it finds and not the length of the queue.
    """

    def __init__(self, jobs: Jobs) -> None:
        """Make an empty queue for `jobs`."""
        blocks = -(-len(jobs) // BLOCK) or 1
        self._low = np.array(jobs.low, dtype=np.int64)
        self._limit = np.array(jobs.limit, dtype=np.float64)
        self._size = np.full(blocks * BLOCK, NOBODY, dtype=np.int64)  # fewest nodes; NOBODY: does not wait
        self._time = np.full(blocks * BLOCK, np.inf)
        self._class = np.zeros(blocks * BLOCK, dtype=np.int64)
        self._class[: len(jobs)] = np.ceil(np.log2(np.maximum(self._low, 1))).astype(np.int64)
        self._shortest = np.full((int(self._class.max()) + 2, blocks), np.inf)  # [class, block]
        self._waiting = bytearray(len(jobs) + 1)
        self._head = self._end = 0
        self._count = 0

    def __len__(self) -> int:
        """Return the number of waiting jobs."""
        return self._count

    def __contains__(self, job: int) -> bool:
        """Return whether `job` waits."""
        return bool(self._waiting[job])

    @property
    def head(self) -> int | None:
        """The job that is first; None: nobody waits."""
        if not self._count:
            return None
        if not self._waiting[self._head]:
            self._head = self._waiting.index(1, self._head)
        return self._head

    @property
    def last(self) -> int:
        """The highest job number that ever waited; -1: none did."""
        return self._end - 1

    def jobs(self) -> list[int]:
        """Return all waiting jobs in order."""
        return [] if not self._count else (self._head + np.flatnonzero(self._size[self._head : self._end] != NOBODY)).tolist()

    def append(self, job: int) -> None:
        """Let `job` wait."""
        self._waiting[job] = 1
        self._count += 1
        self._end = max(self._end, job + 1)
        self._head = min(self._head, job)
        self._size[job] = self._low[job]
        self._time[job] = self._limit[job]
        summary = self._shortest[self._class[job] :, job // BLOCK]
        np.minimum(summary, self._limit[job], out=summary)

    def remove(self, job: int) -> None:
        """Let `job` wait no longer."""
        self._waiting[job] = 0
        self._count -= 1
        self._size[job] = NOBODY

    def first_fit(self, after: int, idle: int, time: float, extra: int) -> int | None:
        """Return the first waiting job behind `after` that backfilling may start.

        That is one whose fewest nodes are at most `idle`, and which has a limit of at most `time` seconds or needs at
        most `extra` nodes. The caller checks again: `time` is taken a little generously, lest rounding loses a job, and
        the limit of a malleable job stretches on few nodes.
        """
        time += SLACK_S
        start = max(after + 1, self._head)
        first, last = start // BLOCK, -(-self._end // BLOCK)
        top = len(self._shortest) - 1
        hopeful = self._shortest[min(top, _class_of(idle)), first:last] <= time
        extra = min(extra, idle)
        if extra > 0:
            hopeful |= self._shortest[min(top, _class_of(extra)), first:last] < np.inf
        for block in (first + np.flatnonzero(hopeful)).tolist():
            begin = max(start, block * BLOCK)
            size = self._size[begin : (block + 1) * BLOCK]
            fits = self._time[begin : (block + 1) * BLOCK] <= time
            fits &= size <= idle
            if extra > 0:
                fits |= size <= extra
            found = int(fits.argmax())
            if fits[found]:
                return begin + found
            self._summarise(block)
        return None

    def _summarise(self, block: int) -> None:
        here = slice(block * BLOCK, (block + 1) * BLOCK)
        waiting = self._size[here] != NOBODY
        shortest = np.full(len(self._shortest), np.inf)
        np.minimum.at(shortest, self._class[here][waiting], self._time[here][waiting])
        self._shortest[:, block] = np.minimum.accumulate(shortest)


def _class_of(nodes: int) -> int:
    """Return the smallest c with 2^c >= nodes."""
    return (nodes - 1).bit_length() if nodes > 0 else 0
