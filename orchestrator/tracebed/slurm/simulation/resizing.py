"""Inputs of a simulation with a layer that resizes running jobs: which jobs may be resized, and their expanders."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from tracebed.orchestrator.scheduling.names import ODD_SIZE, ResizePolicy
from tracebed.slurm.resize_layer import COMPONENT, DEADLINE, GRES, PREEMPTED, RESERVED, SPREAD, SUSPENDED, permission
from tracebed.slurm.simulation.inputs import SUSPEND, Entries, Inputs, Preemption, Resizing, listed

OF_JOBS = (
    *("submit", "run_time", "limit", "launch_s", "overrun_s", "over_limit_s", "end_s", "requests", "partition", "user"),
    *("fixed", "association", "usage_factor", "reserve"),
)
"""Fields of `Inputs` with a value for each job."""


class Sizes(NamedTuple):
    """The sizes of a malleable job, nodes, and its rate at each of them, relative to that at its requested size."""

    least: int
    preferred: int
    most: int
    rates: Sequence[float]


def with_layer(
    inputs: Inputs,
    sizes: Sequence[Sizes | None],
    policy: ResizePolicy,
    release: float,
    *,
    gives_gres: bool,
    **settings: Any,
) -> tuple[Inputs, dict[int, str]]:
    """Return the inputs with a layer, and why it resizes which malleable job not, or not to more nodes.

    Args:
        inputs: the inputs without a layer.
        sizes: those of each malleable job; None: rigid.
        policy: the policy of the layer.
        release: release of Slurm.
        gives_gres: whether jobs with whole nodes get generic resources (`SlurmCluster.gives_gres`).
        settings: further fields of `Resizing`.
    """
    permitted = {
        job: permission(
            _exclusions(inputs, job, own), whole=inputs.requests[job].whole, release=release, gives_gres=gives_gres
        )
        for job, own in enumerate(sizes)
        if own
    }
    able = [own if own and any(permitted[job][:2]) else None for job, own in enumerate(sizes)]
    expanders = [-1] * len(able)
    owners = list[int]()
    for job, own in enumerate(able):
        if own and permitted[job].expands and own.most > own.least:
            expanders[job] = len(able) + len(owners)
            owners.append(job)
    nothing = [None] * len(owners)
    listed = [own or Sizes(0, 0, 0, ()) for own in (*able, *nothing)]
    resizing = Resizing(
        policy=policy,
        least=[own.least for own in listed],
        preferred=[own.preferred for own in listed],
        most=[own.most for own in listed],
        rates=[own.rates for own in listed],
        expander=[*expanders, *[-1] * len(owners)],
        shrinks=[*(job in permitted and permitted[job].shrinks for job in range(len(able))), *[False] * len(owners)],
        grows=[*(request.whole for request in inputs.requests), *[False] * len(owners)],
        **settings,
    )
    reasons = {job: own.why for job, own in permitted.items() if own.why}
    return replace(_with_expanders(inputs, owners), resizing=resizing), reasons


def _exclusions(inputs: Inputs, job: int, sizes: Sizes) -> dict[str, bool]:
    """Return the reasons not to resize, or not to expand, a malleable job, and whether they hold."""
    request = inputs.requests[job]
    nodes = request.cores / request.per_node if request.per_node else math.nan
    return {
        SPREAD: not nodes.is_integer(),
        ODD_SIZE: not max(sizes.least, request.fewest) <= nodes <= sizes.most,  # of a job with equal nodes
        COMPONENT: bool(inputs.het_job) and inputs.het_job[job] >= 0,
        DEADLINE: bool(inputs.deadline) and inputs.deadline[job] < math.inf,
        RESERVED: inputs.bookings is not None and inputs.bookings.inside[job] >= 0,
        SUSPENDED: suspendable(inputs.preemption, job),
        GRES: any(request.gres),
        PREEMPTED: preemptable(inputs.preemption, job),
    }


def preemptable(preemption: Preemption | None, job: int) -> bool:
    """Return whether another job may preempt a job."""
    return preemption is not None and any(may >> preemption.of[job] & 1 for may in preemption.may)


def suspendable(preemption: Preemption | None, job: int) -> bool:
    """Return whether Slurm may suspend a job for another one."""
    return preemption is not None and preemptable(preemption, job) and preemption.mode[preemption.of[job]] == SUSPEND


def _with_expanders(inputs: Inputs, owners: Sequence[int]) -> Inputs:
    """Return the inputs with an expander for each of the jobs `owners`, at the end."""
    more: dict[str, Any] = {name: listed(getattr(inputs, name)) for name in OF_JOBS}
    for values in more.values():
        values += [values[job] for job in owners]
    count = len(owners)
    units = [request._replace(cores=request.per_node, fewest=1) for request in more["requests"][len(inputs.submit) :]]
    more["requests"] = [*inputs.requests, *units]
    if inputs.limits.counters:
        group = listed(inputs.limits.group)
        more["limits"] = replace(inputs.limits, group=[*group, *(group[job] for job in owners)])
    if own := inputs.conditions:
        more["conditions"] = replace(
            own,
            earliest=[*listed(own.earliest), *[-math.inf] * count],
            dependencies=[*own.dependencies, *[()] * count],
            any_of=[*listed(own.any_of), *[False] * count],
            group=[*listed(own.group), *[-1] * count],
            fails=[*listed(own.fails), *[False] * count],
        )
    if inputs.arrays:
        more["arrays"] = replace(inputs.arrays, of=[*listed(inputs.arrays.of), *[-1] * count])
    if inputs.licenses:
        none = (0,) * len(inputs.licenses.total)
        more["licenses"] = replace(inputs.licenses, wanted=[*inputs.licenses.wanted, *[none] * count])
    if inputs.bookings:
        more["bookings"] = replace(inputs.bookings, inside=[*listed(inputs.bookings.inside), *[-1] * count])
    if inputs.preemption:
        of = listed(inputs.preemption.of)
        more["preemption"] = replace(inputs.preemption, of=[*of, *(of[job] for job in owners)])
    if entries := inputs.entries:
        first = [*entries.first, *range(len(inputs.submit), len(inputs.submit) + count)]
        more["entries"] = Entries(first, [*listed(entries.following), *[-1] * count], entries.one_reservation)
    for name, value in (("shortest", 0), ("deadline", math.inf), ("het_job", -1), ("held", {}), ("since", math.nan)):
        if getattr(inputs, name):
            more[name] = [*getattr(inputs, name), *[value] * count]
    return replace(inputs, **more)
