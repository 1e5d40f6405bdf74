"""A pass of the layer that resizes running jobs beside a live Slurm: the state of the cluster, and the decisions."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from tracebed.orchestrator.replay.batch.base import LayerJob, LayerPass
from tracebed.orchestrator.replay.batch.resizes import SECOND
from tracebed.orchestrator.scheduling.names import ResizePolicy
from tracebed.orchestrator.scheduling.node_masks import mask_of, nodes_of
from tracebed.slurm.resize_layer import (
    COMPONENT,
    DEADLINE,
    GRES,
    PREEMPTED,
    RESERVED,
    SPREAD,
    SUSPENDED,
    Permission,
    Release,
    Resizable,
    expansions,
    heads,
    permission,
    shrinks,
)
from tracebed.slurm.scontrol import YEAR_S
from tracebed.slurm.simulation.forecast import StateInputs
from tracebed.slurm.simulation.inputs import Preemption
from tracebed.slurm.simulation.resizing import preemptable, suspendable
from tracebed.slurm.simulation.resources import Request, Resources
from tracebed.slurm.simulation.start_conditions import preemption_of
from tracebed.slurm.state import ClusterState, LiveJob

HEADS = ("", "Resources", "Priority")
"""Reasons of the waiting jobs that no limit, dependency or begin time holds."""
LEAST_S = 62.0
"""Least rest of the time limit of a job that expands: Slurm gives the rest to the expander, in whole minutes, s."""


class LayerView:
    """The jobs and the free resources of a cluster at the instant of a pass."""

    def __init__(self, state: ClusterState, released: Collection[tuple[str, str]]) -> None:
        """Take what jobs hold from the resources of the idle nodes, except what is `released`: pairs (job, node)."""
        self.state, self.cluster = state, state.machine
        self.inputs = StateInputs(state, 0.0)
        self.number = {name: at for at, (name, _) in enumerate(self.cluster.nodes)}
        self.jobs = {job.id: job for job in state.jobs}
        empty = self.inputs.empty
        self.free = replace(empty, cores=[*empty.cores], memory=[*empty.memory], gres=[*empty.gres])
        self.held = {job.id: request for job in state.jobs if job.held and (request := self.inputs.request(job))}
        for job in state.jobs:
            nodes = [name for name in job.held if (job.id, name) not in released]
            self._add(self.free, job, [self.number[name] for name in nodes], -1)

    def _add(self, free: Resources, job: LiveJob, nodes: Sequence[int], sign: int) -> None:
        """Add what a job holds on nodes to free resources, or subtract it."""
        if (request := self.held.get(job.id)) is None:
            return
        for node in nodes:
            cores = free.total[node] if request.whole else job.held[self.cluster.nodes[node][0]]
            kept = free.kept[node] if free.kept else (False,) * len(request.gres)
            free.memory[node] += sign * free.memory_of(request, node, cores)
            free.cores[node] += sign * cores
            free.gres[node] = tuple(
                has + sign * wanted * (not stays)
                for has, wanted, stays in zip(free.gres[node], request.gres, kept, strict=True)
            )

    def after(self, releases: Sequence[Release]) -> Resources:
        """Return the free resources after releases (number of the job, node)."""
        free = replace(self.free, cores=[*self.free.cores], memory=[*self.free.memory], gres=[*self.free.gres])
        for job, node in releases:
            self._add(free, self.jobs[str(job)], [node], 1)
        return free

    def waiting(self) -> Iterator[tuple[int, int, int]]:
        """Yield the arguments of `heads`: waiting jobs in the order of Slurm's queue. A job is a place in `queue`."""
        self.queue = list[tuple[LiveJob, Request]]()
        waiting = [
            (partition, replace(job, partition=name))
            for job in self.state.jobs
            if job.start is None and job.reason in HEADS and not _is_expander(job)
            for name in (job.partition, *job.others)
            if (partition := self.cluster.partition(name)) is not None
        ]
        tiers = self.cluster.partitions
        for partition, job in sorted(waiting, key=lambda own: (-tiers[own[0]].tier, -own[1].priority, own[1].number)):
            if (request := self.inputs.request(job)) is not None:
                self.queue.append((job, request))
                yield len(self.queue) - 1, request.eligible, mask_of(self.cluster.members(partition))


def _is_expander(job: LiveJob) -> bool:
    return job.dependency.startswith("expand:") or SECOND.fullmatch(job.name) is not None


def decided(
    state: ClusterState, policy: ResizePolicy, jobs: Sequence[LayerJob], released: Collection[tuple[str, str]]
) -> LayerPass:
    """Decide which of `jobs`, in the order of their starts, leave nodes, and which ask for nodes.

    `released`: pairs (job, node) of nodes that jobs are about to leave, which count as free.
    """
    view, excluded = LayerView(state, released), dict[str, str]()
    release = float(state.conf.parameters.get("release", 0.0))
    resizable: dict[str, tuple[LayerJob, LiveJob, Permission, Resizable]] = {}
    for own in jobs:
        live = view.jobs.get(own.id)
        if live is None or live.start is None or live.ending or {*own.nodes} - view.number.keys():
            continue
        number = view.cluster.partition(live.partition)
        preemption = None if number is None else preemption_of(view.cluster, [number], [live.qos])
        whole, gives_gres = _is_exclusive(view, live), view.cluster.gives_gres
        permitted = permission(_exclusions(live, preemption), whole=whole, release=release, gives_gres=gives_gres)
        if permitted.why:
            excluded[own.id] = permitted.why
        if not any(permitted[:2]):
            continue
        nodes = (view.number[own.nodes[0]], *sorted(view.number[name] for name in own.nodes[1:]))
        resizable[own.id] = own, live, permitted, Resizable(int(own.id), nodes, own.least, own.preferred, own.most)
    shrinking = [(live, size) for _, live, permitted, size in resizable.values() if permitted.shrinks]
    left = _shrinks(view, policy, shrinking)
    asking = [
        size._replace(most=size.most if _is_exclusive(view, live) else min(size.most, own.largest))
        for own, live, permitted, size in resizable.values()
        if permitted.expands
        and not (own.waits or own.id in left)
        and live.limit_s - (state.instant - (live.start or 0.0)) >= LEAST_S
    ]
    more = expansions(policy, asking, _Idle(view))
    names = [name for name, _ in view.cluster.nodes]
    return LayerPass(
        {id: tuple(names[node] for node in nodes) for id, nodes in left.items()},
        {str(job): count for job, count in more.items()},
        excluded,
        {id: live.limit_s for id, (_, live, *_) in resizable.items() if live.limit_s < YEAR_S},
    )


def _exclusions(live: LiveJob, preemption: Preemption | None) -> dict[str, bool]:
    """Return the reasons not to resize, or not to expand, a running job, and whether they hold."""
    return {
        SPREAD: not (live.per_node or live.whole),
        COMPONENT: bool(live.whole_id),
        DEADLINE: live.deadline is not None,
        RESERVED: bool(live.reservation),
        SUSPENDED: suspendable(preemption, 0),
        GRES: bool(live.gres),
        PREEMPTED: preemptable(preemption, 0),
    }


def _is_exclusive(view: LayerView, live: LiveJob) -> bool:
    number = view.cluster.partition(live.partition)
    partition = number is not None and view.cluster.partitions[number].exclusive
    return live.whole or partition or not view.cluster.shared


def _shrinks(
    view: LayerView, policy: ResizePolicy, resizable: Sequence[tuple[LiveJob, Resizable]]
) -> dict[str, list[int]]:
    """Return which jobs leave which nodes, so that the first waiting job of each partition can start."""
    left: dict[str, list[int]] = {}
    for place, usable in heads(view.waiting()):
        job, request = view.queue[place]
        if view.free.has_room(request, usable):
            continue
        candidates = [size for live, size in resizable if live.partition == job.partition and str(size.job) not in left]

        def suffices(releases: Sequence[Release], request: Request = request, usable: int = usable) -> bool:
            return view.after(releases).has_room(request, usable)

        found = shrinks(policy, candidates, usable, suffices)
        view.free = view.after([(job, node) for job, nodes in found.items() for node in nodes])
        left |= {str(job): nodes for job, nodes in found.items()}
    return left


class _Idle:
    """Where a job could get what it has on each node."""

    def __init__(self, view: LayerView) -> None:
        self._view = view

    def __call__(self, job: int) -> int:
        """Return the mask of such nodes that are not its own."""
        view, live = self._view, self._view.jobs[str(job)]
        request = view.inputs.request(replace(live, start=None, held={}, fewest=1, cores=live.per_node or 1))
        if request is None:
            return 0
        own = mask_of([view.number[name] for name in live.held])
        return mask_of([node for node in nodes_of(request.eligible & ~own) if view.free.capacity(request, node)])
