"""Nodes, who holds which of them since when, and who is a guest on whose."""

from __future__ import annotations

from array import array
from bisect import bisect_right, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracebed.converters.workload import IntArray


@dataclass
class Ledger:
    """Who held which nodes from when to when: an entry a job and range of consecutive nodes, as they were released."""

    jobs: array[int] = field(default_factory=lambda: array("i"))
    firsts: array[int] = field(default_factory=lambda: array("i"))
    counts: array[int] = field(default_factory=lambda: array("i"))
    starts: array[float] = field(default_factory=lambda: array("d"))
    ends: array[float] = field(default_factory=lambda: array("d"))
    parts: dict[int, int] = field(default_factory=dict)
    """Entry -> the cores that the job had on each of its nodes, of entries of shared nodes."""

    def table(self, ids: Sequence[str], cores: Sequence[int], cpus: Sequence[str]) -> pd.DataFrame:
        """Return a run's table `allocations`: a row a job and range of nodes held alike, by start, job and node.

        Args:
            ids: job number -> job id.
            cores: node -> its cores.
            cpus: node -> its CPU mask, empty where it is virtual; a job that has a part of the node gets none.
        """
        kind = _kinds(cores, cpus)
        job, low, count, start, end = map(np.asarray, (self.jobs, self.firsts, self.counts, self.starts, self.ends))
        high, part = low + count, np.zeros(len(job), dtype=np.int64)
        part[list(self.parts)] = list(self.parts.values())
        if len(job) and kind[-1]:
            row, low, high = _split(low, high, kind)
            job, start, end, part = job[row], start[row], end[row], part[row]
        if not _ascend(start, job, low, end):
            order = np.lexsort((end, low, job, start))
            job, start, end, low, high, part = (values[order] for values in (job, start, end, low, high, part))
        joins = (low[1:] == high[:-1]) & (kind[low[1:]] == kind[low[:-1]])
        for held in (job, start, end, part):
            joins &= held[1:] == held[:-1]
        if joins.any():
            first, last = np.flatnonzero(np.append(True, ~joins)), np.flatnonzero(np.append(~joins, True))
            job, start, end, low, high, part = job[first], start[first], end[first], low[first], high[last], part[first]
        mask = pd.Series(cpus, dtype="str").take(low)
        return pd.DataFrame(
            {
                "job_id": pd.Series(ids, dtype="str").take(job).array,
                "node": low.astype(np.int64),
                "count": (high - low).astype(np.int64),
                "start": start,
                "end": end,
                "cores": np.where(part > 0, part, np.asarray(cores, np.int64)[low]),
                "cpus": (mask.where(part == 0, "") if self.parts else mask).array,
            },
            copy=False,
        )

    def add(self, job: int, nodes: Sequence[int], since: float, now: float, *, cores: int | None = None) -> None:
        """Enter that `job` held `nodes`, which ascend, from `since` until `now`: whole, or `cores` cores on each."""
        for first, count in ranges(nodes):
            if cores is not None:
                self.parts[len(self.jobs)] = cores
            self.jobs.append(job)
            self.firsts.append(first)
            self.counts.append(count)
            self.starts.append(since)
            self.ends.append(now)


def _kinds(cores: Sequence[int], cpus: Sequence[str]) -> IntArray:
    """Number the stretches of nodes with the same cores and the same mask: the stretch of each node."""
    unlike = [alike != before for alike, before in pairwise(zip(cores, cpus, strict=True))]
    return np.cumsum(np.array([False, *unlike], dtype=np.int64)[: len(cores)])


def _split(low: IntArray, high: IntArray, kind: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """Cut ranges [low, high) where the kind of the nodes changes; return of each piece its range, low and high."""
    pieces = kind[high - 1] - kind[low] + 1
    row = np.repeat(np.arange(len(low)), pieces)
    stretch = kind[low[row]] + np.arange(len(row)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    begins = np.searchsorted(kind, np.arange(kind[-1] + 2))
    return row, np.maximum(low[row], begins[stretch]), np.minimum(high[row], begins[stretch + 1])


def _ascend(*keys: npt.NDArray[Any]) -> bool:
    """Return whether rows are in order by `keys`, the first of which counts most."""
    good = np.ones(max(0, len(keys[0]) - 1), dtype=bool)
    for key in reversed(keys):
        good = (key[1:] > key[:-1]) | ((key[1:] == key[:-1]) & good)
    return bool(good.all())


def ranges(nodes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield (first, count) of each range of consecutive numbers in `nodes`, which ascend."""
    begin = 0
    while begin < len(nodes):
        offset = nodes[begin] - begin  # the same for all of a range, more behind it
        end = bisect_right(range(len(nodes)), offset, begin, key=lambda at: nodes[at] - at)
        yield nodes[begin], end - begin
        begin = end


class Loan(NamedTuple):
    """A node that two jobs share: its owner, and a guest to which the owner leaves some of the cores."""

    owner: int
    guest: int
    cores: int
    """Of the guest; the owner has all others."""
    since: float


class Cluster:
    """Nodes, each idle or held by one job, its owner, who may lend some of its cores to one guest.

    Idle nodes are taken lowest number first. A job's first node is its own until it ends; what it gives back first is
    what it took last. A guest's cores go back to the owner when it ends; of an owner that ends first it inherits the
    node, whole.

    Attributes:
        cores: cores of each node.
        sockets: sockets of each node.
        idle: the idle nodes, ascending.
        loans: shared node -> who shares it.
    """

    def __init__(self, cores: Sequence[int], sockets: Sequence[int] | None = None) -> None:
        """Take the cores of each node, and its sockets (none given: one each)."""
        self.cores = list(cores)
        self.sockets = [1] * len(self.cores) if sockets is None else list(sockets)
        self.idle = list(range(len(cores)))
        self.loans: dict[int, Loan] = {}
        self.ledger = Ledger()
        self._held: dict[int, list[tuple[float, list[int]]]] = {}  # job -> (since, nodes), in the order of taking
        self._visits: dict[int, dict[int, None]] = {}  # guest -> the nodes on which it is one
        self._lends: dict[int, int] = {}  # owner -> how many of its nodes are shared

    def __len__(self) -> int:
        """Return the number of nodes."""
        return len(self.cores)

    def nodes_of(self, job: int) -> list[int]:
        """Return the nodes that `job` holds, the first one it took first, then those on which it is a guest."""
        return [*self.owned(job), *self._visits.get(job, ())]

    def owned(self, job: int) -> list[int]:
        """Return the nodes that `job` holds, the first one it took first."""
        return [node for _, nodes in self._held.get(job, ()) for node in nodes]

    def cores_of(self, job: int) -> list[int]:
        """Return the cores that `job` has on each of `nodes_of(job)`."""
        if not self.shares(job):
            return [self.cores[node] for node in self.owned(job)]
        lent = [self.loans[node].cores if node in self.loans else 0 for node in self.owned(job)]
        own = [self.cores[node] - less for node, less in zip(self.owned(job), lent, strict=True)]
        return own + [self.loans[node].cores for node in self._visits.get(job, ())]

    def shares(self, job: int) -> bool:
        """Return whether `job` shares a node, as owner or as guest."""
        return job in self._visits or job in self._lends

    def hosts(self, job: int) -> list[int]:
        """Return the owners of the nodes on which `job` is a guest, each once."""
        return list(dict.fromkeys(self.loans[node].owner for node in self._visits.get(job, ())))

    def guests(self, job: int) -> list[int]:
        """Return the guests on the nodes of `job`, each once."""
        if job not in self._lends:
            return []
        return list(dict.fromkeys(self.loans[node].guest for node in self.owned(job) if node in self.loans))

    def take(self, job: int, count: int, now: float) -> list[int]:
        """Give `count` idle nodes to `job` and return them."""
        if count > len(self.idle):
            raise ValueError(f"{count} nodes wanted, {len(self.idle)} idle")
        nodes = self.idle[:count]
        del self.idle[:count]
        self._held.setdefault(job, []).append((now, nodes))
        return nodes

    def lend(self, owner: int, guest: int, nodes: Sequence[int], cores: int, now: float) -> None:
        """Let `guest` have `cores` cores on each of `nodes`, which `owner` holds and nobody else uses."""
        self._count_from(owner, nodes, now, enter=True)
        for node in nodes:
            self.loans[node] = Loan(owner, guest, cores, now)
            self._visits.setdefault(guest, {})[node] = None
        self._lends[owner] = self._lends.get(owner, 0) + len(nodes)

    def release(self, job: int, now: float) -> list[int]:
        """Take all nodes from `job`, and return the jobs that have more cores by that."""
        gains = []
        if job in self._visits:
            visited = list(self._visits[job])
            for owner, part in groupby(visited, key=lambda node: self.loans[node].owner):
                whole = list(part)
                for node in whole:
                    self._settle(node, now)
                self._count_from(owner, whole, now)
                gains.append(owner)
        for since, nodes in self._held.pop(job, ()):
            if job not in self._lends:
                self._give_back(job, since, nodes, now)
                continue
            for heir, part in groupby(nodes, key=lambda node: self.loans[node].guest if node in self.loans else None):
                left = list(part)
                if heir is None:
                    self._give_back(job, since, left, now)
                    continue
                for node in left:
                    self._settle(node, now)
                self._held.setdefault(heir, []).append((now, left))
                gains.append(heir)
        return list(dict.fromkeys(gains))

    def shrink(self, job: int, count: int, now: float) -> list[int]:
        """Take from `job`, which shares no node, the `count` nodes that it took last, and return them."""
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

    def _settle(self, node: int, now: float) -> None:
        """End the sharing of `node`: until `now` both jobs had their cores of it."""
        loan = self.loans.pop(node)
        del self._visits[loan.guest][node]
        if not self._visits[loan.guest]:
            del self._visits[loan.guest]
        self._lends[loan.owner] -= 1
        if not self._lends[loan.owner]:
            del self._lends[loan.owner]
        if loan.since < now:
            self.ledger.add(loan.owner, [node], loan.since, now, cores=self.cores[node] - loan.cores)
            self.ledger.add(loan.guest, [node], loan.since, now, cores=loan.cores)

    def _count_from(self, owner: int, nodes: Sequence[int], now: float, *, enter: bool = False) -> None:
        """Count from `now` what `owner` has on `nodes`; `enter` that it had them whole until then."""
        chosen = set(nodes)
        groups = self._held[owner]
        self._held[owner] = []
        for since, held in groups:
            for touched, part in groupby(held, key=chosen.__contains__):
                same = list(part)
                if touched and enter and since < now:
                    self.ledger.add(owner, same, since, now)
                self._held[owner].append((now if touched else since, same))

    def _give_back(self, job: int, since: float, nodes: list[int], now: float) -> None:
        if len(nodes) == 1:
            insort(self.idle, nodes[0])
        else:
            self.idle += nodes
            self.idle.sort()  # two sorted runs: a merge
        self.ledger.add(job, nodes, since, now)
