"""Nodes, and who holds which of them since when."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import pandas as pd

from tracebed.converters.workload import IntArray


@dataclass
class Ledger:
    """Who held which nodes from when to when: an entry a job and range of consecutive nodes, as they were released."""

    jobs: list[int] = field(default_factory=list)
    firsts: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    starts: list[float] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)

    def table(self, ids: Sequence[str], cores: Sequence[int], cpus: Sequence[str]) -> pd.DataFrame:
        """Return a run's table `allocations`: a row a job and range of nodes held alike, by start, job and node.

        Args:
            ids: job number -> job id.
            cores: node -> its cores.
            cpus: node -> its CPU mask, empty where it is virtual.
        """
        kind = _kinds(cores, cpus)
        row, low, high = _split(np.asarray(self.firsts, np.int64), np.asarray(self.counts, np.int64), kind)
        job, start, end = (np.asarray(values)[row] for values in (self.jobs, self.starts, self.ends))
        order = np.lexsort((end, low, job, start))
        job, start, end, low, high = job[order], start[order], end[order], low[order], high[order]
        joins = (low[1:] == high[:-1]) & (kind[low[1:]] == kind[low[:-1]])
        for held in (job, start, end):
            joins &= held[1:] == held[:-1]
        edges = np.concatenate([[0], np.flatnonzero(~joins) + 1, [len(low)]]) if len(low) else np.zeros(1, np.int64)
        first, last = edges[:-1], edges[1:] - 1
        job, node = job[first], low[first]
        return pd.DataFrame(
            {
                "job_id": pd.Series(ids, dtype="str").take(job).array,
                "node": node,
                "count": high[last] - node,
                "start": start[first],
                "end": end[first],
                "cores": np.asarray(cores, np.int64)[node],
                "cpus": pd.Series(cpus, dtype="str").take(node).array,
            }
        )

    def add(self, job: int, nodes: Sequence[int], since: float, now: float) -> None:
        """Enter that `job` held `nodes`, which ascend, from `since` until `now`."""
        for first, count in ranges(nodes):
            self.jobs.append(job)
            self.firsts.append(first)
            self.counts.append(count)
            self.starts.append(since)
            self.ends.append(now)


def _kinds(cores: Sequence[int], cpus: Sequence[str]) -> IntArray:
    """Number the stretches of nodes with the same cores and the same mask: the stretch of each node."""
    unlike = [alike != before for alike, before in pairwise(zip(cores, cpus, strict=True))]
    return np.cumsum(np.array([False, *unlike], dtype=np.int64)[: len(cores)])


def _split(first: IntArray, count: IntArray, kind: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """Cut ranges where the kind of the nodes changes; return of each piece its range, and its nodes [low, high)."""
    pieces = kind[first + count - 1] - kind[first] + 1
    row = np.repeat(np.arange(len(first)), pieces)
    stretch = kind[first[row]] + np.arange(len(row)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    begins = np.searchsorted(kind, np.arange(kind[-1] + 2 if len(kind) else 1))
    return row, np.maximum(first[row], begins[stretch]), np.minimum((first + count)[row], begins[stretch + 1])


def ranges(nodes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield (first, count) of each range of consecutive numbers in `nodes`, which ascend."""
    begin = 0
    while begin < len(nodes):
        offset = nodes[begin] - begin  # the same for all of a range, more behind it
        end = bisect_right(range(len(nodes)), offset, begin, key=lambda at: nodes[at] - at)
        yield nodes[begin], end - begin
        begin = end


class Cluster:
    """Whole nodes, each idle or held by one job. Idle nodes are taken lowest number first.

    A job's first node is its own until it ends; what it gives back first is what it took last.
    """

    def __init__(self, cores: Sequence[int]) -> None:
        """Take the cores of each node."""
        self.cores = list(cores)
        self.idle = list(range(len(cores)))  # ascending
        self.ledger = Ledger()
        self._held: dict[int, list[tuple[float, list[int]]]] = {}  # job -> (since, nodes), in the order of taking

    def __len__(self) -> int:
        """Return the number of nodes."""
        return len(self.cores)

    def nodes_of(self, job: int) -> list[int]:
        """Return the nodes that `job` holds, the first one it took first."""
        return [node for _, nodes in self._held[job] for node in nodes]

    def take(self, job: int, count: int, now: float) -> list[int]:
        """Give `count` idle nodes to `job` and return them."""
        if count > len(self.idle):
            raise ValueError(f"{count} nodes wanted, {len(self.idle)} idle")
        nodes = self.idle[:count]
        del self.idle[:count]
        self._held.setdefault(job, []).append((now, nodes))
        return nodes

    def release(self, job: int, now: float) -> None:
        """Take all nodes from `job`."""
        for since, nodes in self._held.pop(job):
            self._give_back(job, since, nodes, now)

    def shrink(self, job: int, count: int, now: float) -> list[int]:
        """Take from `job` the `count` nodes that it took last, and return them."""
        groups = self._held[job]
        dropped: list[int] = []
        while len(dropped) < count:
            since, nodes = groups.pop()
            keep = max(0, len(nodes) - (count - len(dropped)))
            if keep:
                groups.append((since, nodes[:keep]))
            self._give_back(job, since, nodes[keep:], now)
            dropped += nodes[keep:]
        return dropped

    def _give_back(self, job: int, since: float, nodes: list[int], now: float) -> None:
        if len(nodes) == 1:
            insort(self.idle, nodes[0])
        else:
            self.idle += nodes
            self.idle.sort()  # two sorted runs: a merge
        self.ledger.add(job, nodes, since, now)
