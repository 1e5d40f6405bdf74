"""Nodes, and who holds which of them since when."""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
import pandas as pd


@dataclass
class Ledger:
    """Who held which nodes from when to when: the staircase of every job, in the order in which it was released."""

    jobs: list[int] = field(default_factory=list)
    starts: list[float] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)
    nodes: list[list[int]] = field(default_factory=list)

    def table(self, ids: Sequence[str], cores: Sequence[int], cpus: Sequence[str]) -> pd.DataFrame:
        """Return a run's table `allocations`: a row a job and node, by start, job and node.

        Args:
            ids: job number -> job id.
            cores: node -> its cores.
            cpus: node -> its CPU mask, empty where it is virtual.
        """
        order = np.lexsort((self.jobs, self.starts))  # nodes were taken in ascending order
        nodes = [self.nodes[row] for row in order.tolist()]
        sizes = np.fromiter(map(len, nodes), dtype=np.int64, count=len(nodes))
        node = np.fromiter(chain.from_iterable(nodes), dtype=np.int64, count=int(sizes.sum()))
        rows = np.repeat(order, sizes)
        job = np.array(self.jobs, dtype=np.int64)[rows]
        return pd.DataFrame(
            {
                "job_id": pd.Series(ids, dtype="str").take(job).array,
                "node": node,
                "start": np.array(self.starts, dtype=np.float64)[rows],
                "end": np.array(self.ends, dtype=np.float64)[rows],
                "cores": np.array(cores, dtype=np.int64)[node],
                "cpus": pd.Series(cpus, dtype="str").take(node).array,
            }
        )


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
        ledger = self.ledger
        ledger.jobs.append(job)
        ledger.starts.append(since)
        ledger.ends.append(now)
        ledger.nodes.append(nodes)
