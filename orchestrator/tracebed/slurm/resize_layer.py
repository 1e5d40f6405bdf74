"""The decisions of a layer that resizes running jobs beside Slurm's own loops (the first composition of Slurm and
malleability).

Slurm starts all jobs. The layer makes passes of its own: malleable jobs shrink if the first waiting job of a partition
could then start, and ask for nodes that are idle. A job that asks for nodes has an *expander*: a second job with the
lowest priority, on 1 to as many nodes as asked for. So Slurm itself decides whether the nodes are free until the job
ends, and which.

The simulation of the cluster of a slurm.conf and a replay beside a real Slurm decide by these functions. Source of the
policies: `scheduling/policies/kassel.py` and `scheduling/policies/dmr.py`, whose choice of jobs and sizes is kept; what
differs is that Slurm starts the jobs, at the sizes that they request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from tracebed.orchestrator.scheduling.names import ODD_SIZE, ResizePolicy

SHRINKS = 24.11
"""First tried release of Slurm that allocates again the nodes that an exclusive job has left."""
LOSES = 24.11
"""First tried release of Slurm that starts other jobs on any node to which a job that shares nodes has expanded; before
it, on those beyond the largest size that the job has had."""

EXCLUSIVE = f"not shrunk: Slurm before {SHRINKS:.2f} never again allocates the nodes that an exclusive job releases"
SHARED = f"not expanded: Slurm {LOSES:.2f} and later start other jobs on nodes to which a job that shares nodes expands"
GIVEN = "not expanded: Slurm gives a job with whole nodes their generic resources, and refuses to merge it"
SPREAD = "not resized: their nodes have unequal numbers of cores"
COMPONENT = "not resized: they are components of heterogeneous jobs"
DEADLINE = "not resized: they have a deadline"
RESERVED = "not resized: they are in an advance reservation"
SUSPENDED = "not resized: they may be suspended"
GRES = "not expanded: they have generic resources"
PREEMPTED = "not expanded: they may be preempted"
SHRINK_ONLY = (GRES, PREEMPTED, SHARED, GIVEN)
EXCLUSIONS = (SPREAD, ODD_SIZE, COMPONENT, DEADLINE, RESERVED, SUSPENDED, *SHRINK_ONLY, EXCLUSIVE)
"""Why malleable jobs are not resized, not expanded, or not shrunk; the first one that holds of a job is told."""

Release = tuple[int, int]
"""A job, and a node that it leaves."""


class Permission(NamedTuple):
    """What a layer may do with a running malleable job."""

    shrinks: bool
    expands: bool
    why: str
    """Why not both; empty: both."""


def permission(excludes: Mapping[str, bool], *, whole: bool, release: float, gives_gres: bool) -> Permission:
    """Return what a layer may do with a malleable job.

    Args:
        excludes: those of `EXCLUSIONS` that do not depend on the release, and whether they hold of the job.
        whole: whether it has whole nodes.
        release: release of Slurm, such as 22.05.
        gives_gres: whether jobs with whole nodes get generic resources (`SlurmCluster.gives_gres`).
    """
    stays = whole and release < SHRINKS
    of_nodes = {SHARED: not whole and release >= LOSES, GIVEN: whole and gives_gres, EXCLUSIVE: stays}
    reasons = [why for why in EXCLUSIONS if {**excludes, **of_nodes}.get(why)]
    fixed = not {*reasons} <= {*SHRINK_ONLY, EXCLUSIVE}
    return Permission(not (fixed or stays), not (fixed or {*reasons} & {*SHRINK_ONLY}), next(iter(reasons), ""))


class Resizable(NamedTuple):
    """A running malleable job without a pending resize. Sizes are in nodes."""

    job: int
    nodes: tuple[int, ...]
    """Its nodes in ascending order. It keeps the first one, where its script runs."""
    least: int
    preferred: int
    most: int
    """Its largest size; in `expansions`, the largest to which it may expand."""

    @property
    def size(self) -> int:
        """Its number of nodes."""
        return len(self.nodes)


def heads(waiting: Iterable[tuple[int, int, int]]) -> Iterator[tuple[int, int]]:
    """Yield the first waiting job of each partition, and the mask of nodes that it may use.

    As in Slurm's main loop, the nodes of a partition whose first job waits are closed to jobs of other partitions.

    Args:
        waiting: (job, mask of its eligible nodes, mask of the nodes of its partition) of the waiting jobs that no
            limit holds, in the order of Slurm's queue.
    """
    closed = 0
    for job, eligible, partition in waiting:
        if not closed & partition:
            yield job, eligible
        elif usable := eligible & ~closed:
            yield job, usable
        closed |= partition


def shrinks(
    policy: ResizePolicy, jobs: Sequence[Resizable], usable: int, suffices: Callable[[Sequence[Release]], bool]
) -> dict[int, list[int]]:
    """Return which jobs leave which nodes so that a waiting job can start; none if no shrinks suffice.

    Args:
        policy: the policy.
        jobs: the jobs of its partition that may shrink, in the order of their starts.
        usable: mask of the nodes that the waiting job may use. No other node is released.
        suffices: whether the waiting job can start after these releases.
    """
    for releases in _releases(policy, jobs, usable):
        if not releases or not suffices(releases):
            continue
        if policy == "dmr":
            return _by_job(releases)
        few, enough = 0, len(releases)  # so many releases do not suffice, so many do
        while enough - few > 1:
            middle = (few + enough) // 2
            if suffices(releases[:middle]):
                enough = middle
            else:
                few = middle
        return _by_job(releases[:enough])
    return {}


def _releases(policy: ResizePolicy, jobs: Sequence[Resizable], usable: int) -> Iterator[list[Release]]:
    """Yield sequences of releases; the first one that suffices is taken, `dmr`'s as a whole."""
    if policy == "dmr":  # each application decides alone
        for each in jobs:
            for floor in (each.preferred, each.least):
                yield _left(each, floor, usable)
    elif policy == "avg":
        yield _level(jobs, usable)
    elif policy == "min":
        yield _in_turn(jobs, {each.job: each.least for each in jobs}, {each.job: each.least for each in jobs}, usable)
    else:
        preferred = {each.job: each.preferred for each in jobs}
        yield _in_turn(jobs, preferred, preferred, usable)
        if policy == "pref":
            yield _in_turn(jobs, preferred, {each.job: each.least for each in jobs}, usable)


def _left(each: Resizable, floor: int, usable: int) -> list[Release]:
    """Return the releases by which a job shrinks to `floor` nodes, the last node first; fewer if few are usable."""
    able = [node for node in reversed(each.nodes[1:]) if usable >> node & 1]
    return [(each.job, node) for node in able[: max(0, each.size - floor)]]


def _in_turn(
    jobs: Sequence[Resizable], reference: Mapping[int, int], floor: Mapping[int, int], usable: int
) -> list[Release]:
    """Return the releases of all jobs, those furthest above their reference size first."""
    order = sorted(jobs, key=lambda each: reference[each.job] - each.size)
    return [release for each in order for release in _left(each, floor[each.job], usable)]


def _level(jobs: Sequence[Resizable], usable: int) -> list[Release]:
    """Return the releases one by one, each of the job with the largest relative size."""
    releases, left = list[Release](), {each.job: _left(each, each.least, usable)[::-1] for each in jobs}
    heap = [(-_relative(each, each.size), place, each.size) for place, each in enumerate(jobs) if left[each.job]]
    heapify(heap)
    while heap:
        _, place, size = heappop(heap)
        each = jobs[place]
        releases.append(left[each.job].pop())
        if left[each.job]:
            heappush(heap, (-_relative(each, size - 1), place, size - 1))
    return releases


def _relative(each: Resizable, size: int) -> float:
    """Return the relative size of a job: 0 at its minimum, 1 at its maximum."""
    return (size - each.least) / (each.most - each.least) if each.most > each.least else 0.0


def _by_job(releases: Iterable[Release]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for job, node in releases:
        found.setdefault(job, []).append(node)
    return found


def expansions(policy: ResizePolicy, jobs: Sequence[Resizable], idle: Callable[[int], int]) -> dict[int, int]:
    """Return how many nodes each job asks for, in the order in which they ask.

    Args:
        policy: the policy.
        jobs: the jobs that may expand, in the order of their starts.
        idle: job -> mask of the nodes, not its own, on which it could get what it has on each node.
    """
    more, taken = dict[int, int](), 0

    def take(each: Resizable, most: int) -> int:
        """Take up to `most` idle nodes for a job, the first ones. Return their number."""
        nonlocal taken
        own, count = idle(each.job) & ~taken, 0
        while own and count < most:
            taken |= own & -own
            own &= own - 1
            count += 1
        if count:
            more[each.job] = more.get(each.job, 0) + count
        return count

    if policy == "avg":
        heap = [(_relative(each, each.size), place, each.size) for place, each in enumerate(jobs)]
        heapify(heap)
        while heap:
            _, place, size = heappop(heap)
            if size < jobs[place].most and take(jobs[place], 1):
                heappush(heap, (_relative(jobs[place], size + 1), place, size + 1))
        return more
    if policy == "dmr":
        steps = [[(each, each.most) for each in jobs]]
    else:
        order = sorted(jobs, key=lambda each: each.size - (each.least if policy == "min" else each.preferred))
        steps = [[(each, each.most) for each in order]]
        if policy != "min":
            steps.insert(0, [(each, min(each.preferred, each.most)) for each in order])
    for step in steps:
        for each, ceiling in step:
            take(each, ceiling - each.size - more.get(each.job, 0))
    return more
