"""Node allocation: which job holds which nodes since when, and which jobs run as guests."""

from __future__ import annotations

from array import array
from bisect import bisect_left, insort
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, groupby
from typing import NamedTuple

import numpy as np

from tracebed.ground.table import BoolArray
from tracebed.ground.topology import Grid
from tracebed.orchestrator.scheduling.names import FIRST
from tracebed.orchestrator.scheduling.node_masks import mask_of
from tracebed.orchestrator.scheduling.placement import Shaper, chooser, grid_of, shape

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
    ordered: bool = False
    """Whether the entries are ordered by start, job, first node and end, and adjacent ranges are one, as those of the
    compiled engine. Its columns are arrays of NumPy, and `starts` and `ends` are `Packed`, with the same instants."""

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
        period = np.repeat(np.arange(len(held)), list(map(len, held)))
        first = np.flatnonzero((np.diff(nodes, prepend=-2) != 1) | (np.diff(period, prepend=-1) != 0))
        period = period[first]
        if any(parts):
            row = len(self.jobs)
            self.parts |= {
                row + at: parts[number] for at, number in enumerate(period.tolist()) if parts[number] is not None
            }
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


class Loan(NamedTuple):
    """A node shared by two jobs: the owner, and a guest that holds some of the cores."""

    owner: int
    guest: int
    cores: int
    """Cores of the guest; the owner holds the others."""
    since: float


class Cluster:
    """The allocation of the nodes. A node is idle or held by one job, its owner, and may be shared with one guest.

    Idle nodes are allocated lowest number first, or as a placement chooses. A job that shrinks releases the nodes
    allocated last, and keeps its first node until it ends. When a guest ends, its cores return to the owner. When the
    owner ends first, the guest becomes the owner of the whole node. A node that is lost is `lost`: a job may hold it
    until the job has ended, and it is idle again only after its return.

    Attributes:
        cores: cores of each node.
        sockets: sockets of each node.
        idle: the idle nodes, in ascending order.
        lost: the lost nodes.
        loans: shared node -> its owner and guest.
        parts: its parts, which allocate its nodes; empty: it does so itself.
        expected_end: job -> its expected end, s: that of the state of the scheduler, which sets it.
        grid: the grid of the nodes; a line if it is unknown.
    """

    free: BoolArray
    """Whether a node is idle and not lost, shape (nodes,). The same array in all parts; set only if there are parts."""
    _unlike = False

    def __init__(self, cores: Sequence[int], sockets: Sequence[int] | None = None, placement: str = FIRST) -> None:
        """Create idle nodes with `cores[node]` cores and `sockets[node]` sockets (None: one socket per node).

        `placement` chooses the nodes of a job among the idle ones, as `placement.chooser` reads it.

        Raises:
            InputError: the placement is invalid.
        """
        self.cores = list(cores)
        self.sockets = [1] * len(self.cores) if sockets is None else list(sockets)
        self.idle = list(range(len(cores)))
        self.lost: set[int] = set()
        self.loans: dict[int, Loan] = {}
        self.parts: list[Part] = []
        self.expected_end: Mapping[int, float] = {}
        self._ledger = Ledger()
        self.grid = grid_of(placement, len(self.cores)) or Grid((len(self.cores),))
        self._placement = placement
        self._choose = chooser(placement, len(self.cores))
        self._held: dict[int, list[tuple[float, list[int]]]] = {}  # job -> (since, nodes), in allocation order
        self._visits: dict[int, dict[int, None]] = {}  # guest -> the nodes on which it is a guest
        self._lends: dict[int, int] = {}  # owner -> number of its nodes that are shared
        self._first: dict[int, int] = {}  # job that started without own nodes -> its first node

    def __len__(self) -> int:
        """Return the number of nodes."""
        return len(self.cores)

    @cached_property
    def mask(self) -> int:
        """The nodes, as a bit mask."""
        return (1 << len(self.cores)) - 1

    @cached_property
    def shape(self) -> Shaper:
        """The admissible shapes of the placement, see `placement.shape`."""
        return shape(self._placement, len(self.cores))

    def add_part(self, nodes: Sequence[int], weights: Sequence[int]) -> Part:
        """Return a new part of the cluster, see `Part`. Its nodes sleep if those of the cluster do."""
        made: Part = type("Part", (Part, type(self)), {})(self, nodes, weights)
        self.parts.append(made)
        return made

    @property
    def available(self) -> list[int]:
        """The idle nodes of all parts, also those that are kept for some jobs, in ascending order."""
        return np.flatnonzero(self.free).tolist() if self.parts else self.idle

    def set_idle(self, nodes: Sequence[int], *, idle: bool) -> None:
        """Let nodes that no job holds be idle, or not."""
        chosen = {*nodes}
        self.idle = sorted([*self.idle, *nodes]) if idle else [node for node in self.idle if node not in chosen]
        if self.parts:
            self.free[nodes] = idle
        for part in self.parts:
            part.set_idle([node for node in nodes if part.members[node]], idle=idle)

    def first(self, nodes: list[int], count: int) -> list[int]:
        """Return the first `count` of some nodes, which are in ascending order."""
        return nodes[:count]

    @property
    def ledger(self) -> Ledger:
        """Past allocations."""
        return self._ledger.complete()

    def nodes_of(self, job: int) -> list[int]:
        """Return the nodes that `job` owns, in allocation order, then the nodes on which it is a guest."""
        nodes = self.owned(job)
        nodes += self._visits.get(job, ())
        return nodes

    def owned(self, job: int) -> list[int]:
        """Return the nodes that `job` owns, in allocation order."""
        owned: list[int] = []
        for _, nodes in self._held.get(job, ()):
            owned += nodes
        return owned

    def periods(self, job: int) -> list[tuple[float, list[int]]]:
        """Return the nodes that `job` owns, in groups with the time since when, in allocation order."""
        return [(since, list(nodes)) for since, nodes in self._held.get(job, ())]

    def part(self, job: int, node: int) -> range:
        """Return the cores of `node` that `job` holds. On a shared node, the guest holds the highest-numbered cores."""
        cores, loan = self.cores[node], self.loans.get(node)
        if loan is None:
            return range(cores)
        own = cores - loan.cores
        return range(own) if loan.owner == job else range(own, cores)

    def jobs_on(self, node: int) -> list[int]:
        """Return the jobs that hold `node`: its owner, then its guest if it is shared."""
        owners = [job for job, groups in self._held.items() if any(node in nodes for _, nodes in groups)]
        return [*owners, *([self.loans[node].guest] if node in self.loans else [])]

    def cores_of(self, job: int) -> list[int]:
        """Return the number of cores that `job` holds on each of `nodes_of(job)`."""
        return [len(self.part(job, node)) for node in self.nodes_of(job)]

    def shares(self, job: int) -> bool:
        """Return whether `job` shares a node, as owner or as guest."""
        return job in self._visits or job in self._lends

    def hosts(self, job: int) -> list[int]:
        """Return the owners of the nodes on which `job` is a guest, without duplicates."""
        return list(dict.fromkeys(self.loans[node].owner for node in self._visits.get(job, ())))

    def guests(self, job: int) -> list[int]:
        """Return the guests on the nodes of `job`, without duplicates."""
        if job not in self._lends:
            return []
        return list(dict.fromkeys(self.loans[node].guest for node in self.owned(job) if node in self.loans))

    def take(self, job: int, count: int, now: float, on: Sequence[int] = ()) -> list[int]:
        """Allocate and return `count` idle nodes for `job`: those in `on` or, if it is empty, as the placement chooses.

        Raises:
            ValueError: fewer nodes are idle.
        """
        if count > len(self.idle):
            raise ValueError(f"{count} nodes requested, {len(self.idle)} idle")
        if self._choose and not on:
            on = self._choose(self.idle, count, self.owned(job), job)
        if on or self._unlike:
            nodes = sorted(on or self.first(self.idle, count))
            chosen = set(nodes)
            self.idle = [node for node in self.idle if node not in chosen]
        else:
            nodes = self.idle[:count]
            del self.idle[:count]
        self._held.setdefault(job, []).append((now, nodes))
        return nodes

    def on_from(self, nodes: Sequence[int], now: float) -> float:
        """Return the instant from which on all `nodes` are on, s. Here: `now`."""
        return now

    def order(self, job: int, nodes: Sequence[int]) -> None:
        """Set the order in which `nodes`, all nodes of `job`, were allocated. `job` has never been resized."""
        self._held[job] = [(since, list(nodes)) for since, _ in self._held[job]]

    def put_last(self, job: int, nodes: Collection[int]) -> None:
        """Let `job` release `nodes` first when it shrinks: put them last in the order of allocation."""
        if {*nodes} == {*self.owned(job)[-len(nodes) :]}:
            return
        groups = self._held[job]
        kept = [(since, [node for node in held if node not in nodes]) for since, held in groups]
        last = [(since, [node for node in held if node in nodes]) for since, held in groups]
        self._held[job] = [(since, held) for since, held in (*kept, *last) if held]

    def lend(self, owner: int, guest: int, nodes: Sequence[int], cores: int, now: float) -> None:
        """Allocate to `guest` `cores` cores on each of `nodes`. `owner` must be the only job there."""
        self._count_from(owner, nodes, now, enter=True)
        if guest not in self._held:
            self._first.setdefault(guest, nodes[0])
        for node in nodes:
            self.loans[node] = Loan(owner, guest, cores, now)
            self._visits.setdefault(guest, {})[node] = None
        self._lends[owner] = self._lends.get(owner, 0) + len(nodes)

    def release(self, job: int, now: float) -> list[int]:
        """Release all nodes of `job`, and return the jobs that gain cores."""
        gains = []
        if job in self._visits:
            visited = list(self._visits[job])
            for owner, part in groupby(visited, key=lambda node: self.loans[node].owner):
                whole = list(part)
                for node in whole:
                    self._end_sharing(node, now)
                self._count_from(owner, whole, now)
                gains.append(owner)
        for since, nodes in self._held.pop(job, ()):
            if job not in self._lends:
                self._return_nodes(job, since, nodes, now)
                continue
            for new_owner, part in groupby(
                nodes, key=lambda node: self.loans[node].guest if node in self.loans else None
            ):
                left = list(part)
                if new_owner is None:
                    self._return_nodes(job, since, left, now)
                    continue
                for node in left:
                    self._end_sharing(node, now)
                self._transfer(new_owner, left, now)
                gains.append(new_owner)
        if self._first:
            self._first.pop(job, None)
        return [*dict.fromkeys(gains)] if gains else gains

    def shrink(self, job: int, count: int, now: float) -> list[int]:
        """Release the `count` nodes allocated last to `job`, and return them. `job` must not share nodes."""
        groups = self._held[job]
        dropped: list[int] = []
        while len(dropped) < count:
            since, nodes = groups.pop()
            keep = max(0, len(nodes) - (count - len(dropped)))
            if keep:
                groups.append((since, nodes[:keep]))
            self._return_nodes(job, since, nodes[keep:], now)
            dropped += nodes[keep:]
        return dropped

    def give_up(self, job: int, node: int, now: float) -> None:
        """Release the lost `node` of `job`, which keeps its other nodes. `job` must not share nodes."""
        groups = self._held[job]
        at = next(at for at, (_, nodes) in enumerate(groups) if node in nodes)
        since, nodes = groups[at]
        left = [other for other in nodes if other != node]
        groups[at : at + 1] = [(since, left)] if left else []
        self._return_nodes(job, since, [node], now)

    def lose(self, node: int) -> None:
        """Mark `node` as lost: it is not idle until it returns. A job that holds the node keeps it until `release`."""
        self.lost.add(node)
        at = bisect_left(self.idle, node)
        if at < len(self.idle) and self.idle[at] == node:
            del self.idle[at]
        if self.parts:
            self.free[node] = False

    def restore(self, node: int) -> None:
        """Bring the lost `node` back. It becomes idle, at once or when the job that still holds it releases it."""
        self.lost.discard(node)  # another part of the cluster may have removed it
        if not self.jobs_on(node):
            insort(self.idle, node)
            if self.parts:
                self.free[node] = True

    def _end_sharing(self, node: int, now: float) -> None:
        """End the sharing of `node`, and add the cores held by both jobs until `now` to the ledger."""
        loan = self.loans[node]
        if loan.since < now:
            for job in (loan.owner, loan.guest):
                self._ledger.add(job, [node], loan.since, now, self.part(job, node))
        del self.loans[node]
        del self._visits[loan.guest][node]
        if not self._visits[loan.guest]:
            del self._visits[loan.guest]
        self._lends[loan.owner] -= 1
        if not self._lends[loan.owner]:
            del self._lends[loan.owner]

    def _transfer(self, new_owner: int, nodes: list[int], now: float) -> None:
        """Make the guest `new_owner` the owner of `nodes`. The first node of `new_owner` does not change."""
        groups, first = self._held.setdefault(new_owner, []), self._first.get(new_owner)
        if first in nodes:
            groups.insert(0, (now, [first]))
        if others := [node for node in nodes if node != first]:
            groups.append((now, others))

    def _count_from(self, owner: int, nodes: Sequence[int], now: float, *, enter: bool = False) -> None:
        """Start a new period of `owner` on `nodes`. `enter`: add the old one, with whole nodes, to the ledger."""
        chosen = set(nodes)
        groups = self._held[owner]
        self._held[owner] = []
        for since, held in groups:
            for touched, part in groupby(held, key=chosen.__contains__):
                same = list(part)
                if touched and enter and since < now:
                    self._ledger.add(owner, same, since, now)
                self._held[owner].append((now if touched else since, same))

    def _return_nodes(self, job: int, since: float, nodes: list[int], now: float) -> None:
        usable = [node for node in nodes if node not in self.lost] if self.lost else nodes
        idle = self.idle
        if usable:
            at = bisect_left(idle, usable[0])
            if at == len(idle) or idle[at] > usable[-1]:
                idle[at:at] = usable
            else:
                idle += usable
                idle.sort()  # linear time: the list consists of two sorted runs
        self._ledger.add(job, nodes, since, now)


class Part(Cluster):
    """Some nodes of a cluster, whose allocations it shares. Only the parts of a cluster that has parts allocate nodes.

    Attributes:
        members: whether a node belongs to the part, shape (nodes of the cluster,).
        changes: number of times that its jobs got or released nodes, or one of its nodes was lost or returned.
        released: number of times that its jobs released nodes.
    """

    def __init__(self, whole: Cluster, nodes: Sequence[int], weights: Sequence[int]) -> None:
        """Take over the allocations of `whole`; `nodes` are ascending and idle.

        `weights`: the weight of each node of `whole`. Without a placement, nodes of smaller weight are allocated first.
        """
        vars(self).update(vars(whole))  # what changes in place is the same in all parts
        self.idle, self.parts = list(nodes), []
        self.members = np.zeros(len(whole), dtype=bool)
        self.members[self.idle] = True
        self.free = vars(whole).setdefault("free", np.ones(len(whole), dtype=bool))
        self.mask = mask_of(self.idle)
        self.changes = self.released = 0
        self._count = len(self.idle)
        self._unlike = len({weights[node] for node in nodes}) > 1
        self._weights = weights

    def __len__(self) -> int:
        """Return the number of nodes of the part."""
        return self._count

    @property
    def available(self) -> list[int]:
        """The idle nodes, also those that are kept for jobs of other parts, in ascending order."""
        return np.flatnonzero(self.free & self.members).tolist()

    def set_idle(self, nodes: Sequence[int], *, idle: bool) -> None:
        """Let nodes of the part that no job holds be idle, or not."""
        super().set_idle(nodes, idle=idle)
        self.changes += len(nodes)

    def first(self, nodes: list[int], count: int) -> list[int]:
        """Return the first `count` of some nodes, those of smaller weight, which are in ascending order."""
        return sorted(nodes, key=self._weights.__getitem__)[:count] if self._unlike else nodes[:count]

    def take(self, job: int, count: int, now: float, on: Sequence[int] = ()) -> list[int]:
        """Allocate idle nodes as a cluster does."""
        nodes = super().take(job, count, now, on)
        self.free[nodes] = False
        self.changes += 1
        return nodes

    def lose(self, node: int) -> None:
        """Mark `node` as lost as a cluster does."""
        super().lose(node)
        self.free[node] = False
        self.changes += 1

    def restore(self, node: int) -> None:
        """Bring `node` back as a cluster does."""
        super().restore(node)
        self.free[node] = not self.jobs_on(node)
        self.changes += 1

    def _return_nodes(self, job: int, since: float, nodes: list[int], now: float) -> None:
        super()._return_nodes(job, since, nodes, now)
        self.free[[node for node in nodes if node not in self.lost]] = True
        self.changes += 1
        self.released += 1
