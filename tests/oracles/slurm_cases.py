"""Drawn clusters of Slurm with shared nodes, and their jobs: both simulators must return the same."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields, replace
from random import Random
from typing import Any

from tests.oracles.slurm_simulation.nodes import Nodes
from tests.oracles.slurm_simulation.simulator import Simulation, siblings
from tracebed.orchestrator.scheduling.dependencies import SINGLETON, Condition
from tracebed.orchestrator.scheduling.names import RESIZE_POLICIES
from tracebed.orchestrator.scheduling.node_masks import mask_of
from tracebed.orchestrator.scheduling.policies.slurm import Slurm
from tracebed.slurm.simulation import engine
from tracebed.slurm.simulation.inputs import (
    BACK,
    CANCEL,
    CORES,
    DOWN,
    DRAINED,
    GRES,
    JOBS,
    MEMORY,
    NODES,
    OF_PARENT,
    REQUEUE,
    SUBMITTED,
    SUSPEND,
    Arrays,
    Associations,
    Availability,
    Booked,
    Bookings,
    Conditions,
    Entries,
    Inputs,
    Licenses,
    Limit,
    Limits,
    NodeChange,
    Outcome,
    PowerSaving,
    Preemption,
    amounts_of,
)
from tracebed.slurm.simulation.resizing import OF_JOBS, Sizes, with_layer
from tracebed.slurm.simulation.resources import ALL, OF_CPUS, OF_TASKS, Parts, Request, Resources, Switches

PARAMETERS: dict[str, list[Any]] = {
    "sched_interval": [-1, 0, 20],
    "batch_sched_delay": [0, 3],
    "default_queue_depth": [2, 100],
    "sched_max_job_start": [0, 1],
    "bf_interval": [1, 30],
    "bf_resolution": [1, 60],
    "bf_window": [2, 1440],
    "bf_max_job_test": [3, 500],
    "bf_max_job_start": [0, 1],
    "bf_max_job_user": [0, 2],
    "bf_node_space_size": [0, 3],
    "bf_min_age_reserve": [0, 10],
    "bf_job_part_count_reserve": [0, 1],
    "epoch_s": [0.0, 1000.25],
    "sched_phase_s": [0.0, 0.75],
    "release": [22.05, 24.11],
}


def drawn(seed: int, *, large: bool = False) -> tuple[Inputs, Slurm]:
    """Draw a cluster, its jobs and the parameters of Slurm. Jobs that never fit are left out."""
    draw = Random(seed)
    nodes, count = draw.randint(1, 70), draw.randint(1, 25)
    if large:
        nodes, count = nodes + 150, count + 100
    cores, parts = draw.choice((1, 4)), draw.randint(1, 3)
    unlike = draw.random() < 0.3  # cores of one and of two CPUs
    masks = [draw.randint(1, (1 << nodes) - 1) for _ in range(parts)]
    partition = [draw.randrange(parts) for _ in range(count)]
    requests = [_request(draw, masks[part], cores) for part in partition]
    tree = _associations(draw)
    leaves = [each for each, is_user in enumerate(tree.is_user) if is_user]
    user = [draw.randrange(4) for _ in range(count)]
    limits = _limits(draw, count)
    every = range(count)
    inputs = Inputs(
        submit=sorted(float(draw.randint(0, 30)) for _ in every),
        run_time=[draw.choice((1.5, 20.0, 90.0, 400.0)) for _ in every],
        limit=[draw.choice((60, 120, 300)) for _ in every],
        launch_s=[draw.choice((0.0, 0.25)) for _ in every],
        overrun_s=[draw.choice((0.0, 17.5, math.nan)) for _ in every],
        check_s=11.5,
        over_limit_s=[draw.choice((0.0, 60.0)) for _ in every],
        end_s=[0.0] * count,
        requests=requests,
        partition=partition,
        user=user,
        fixed=[draw.choice((0.0, 3.0, 100.0)) for _ in every],
        tier=[draw.randint(1, 2) for _ in range(parts)],
        free=Resources(
            [cores] * nodes,
            [4] * nodes,
            [(1,)] * nodes,
            [cores] * nodes,
            [4] * nodes,
            _switches(draw, nodes),
            draw.choice(([1] * nodes, [node % 2 for node in range(nodes)])),
            threads=[draw.choice((1, 2)) for _ in range(nodes)] if unlike and cores > 1 else (),
            sockets=[draw.choice((1, 2, 4)) for _ in range(nodes)] if cores > 1 else [1] * nodes,
            kept=[(draw.random() < 0.5,) for _ in range(nodes)] if draw.random() < 0.3 else (),
        ),
        associations=tree,
        association=[draw.choice((-1, *leaves)) for _ in every],
        usage_factor=[draw.choice((1.0, 0.5)) for _ in every],
        billing=[[1.0, draw.choice((0.0, 0.3)), 0.0, 0.0, draw.choice((0.0, 2.5))] for _ in range(parts)],
        billing_most=draw.random() < 0.3,
        limits=limits,
        reserve=[draw.random() < 0.9 for _ in every],
        age=draw.choice((0.0, 50.0)),
        max_age_s=100.0,
        fairshare=draw.choice((0.0, 70.0)),
        period_s=25.0,
        first_period_s=3.5,
        kill_wait_s=draw.choice((0, 30)),
    )
    fit = [
        job
        for job, asked in enumerate(requests)
        if (parts := Nodes.of(inputs.free).choose(asked, (1 << nodes) - 1)) and _allowed(inputs, job, parts)
    ]
    kept: dict[str, Any] = {name: [getattr(inputs, name)[job] for job in fit] for name in OF_JOBS}
    if draw.random() < 0.7:
        kept |= {"conditions": _conditions(draw, len(fit)), "arrays": _arrays(draw, len(fit))}
    kept["limits"] = replace(limits, group=[limits.group[job] for job in fit] if limits.group else [])
    inputs = replace(inputs, **kept, array_reservations=draw.choice((1, 20)))
    if draw.random() < 0.3:
        limits = {name: draw.choice((0, 1, 3)) for name in ("job_depth", "part_test", "user_part_test")}
        slow = [draw.choice((0.0, 3.5, 20.0)) for _ in fit]
        inputs = replace(inputs, end_s=slow, complete_wait_s=draw.choice((0, 5)), **limits)
    policy = Slurm(**{name: draw.choice(values) for name, values in PARAMETERS.items()})
    if draw.random() < 0.4:
        inputs = replace(inputs, licenses=_licenses(draw, len(fit)))
    if draw.random() < 0.4:
        inputs = replace(inputs, bookings=_bookings(draw, len(fit), nodes, int(policy.epoch_s)))
    if draw.random() < 0.5:
        inputs = replace(inputs, preemption=_preemption(draw, len(fit)))
    if fit and draw.random() < 0.4:
        inputs = _in_several_partitions(draw, inputs)
    if fit and draw.random() < 0.5:
        inputs = begun(draw, inputs)
        policy = replace(policy, epoch_s=max(policy.epoch_s, 1000.25))  # Slurm's clock is never negative
    return _with_demands(Random(seed + 1), inputs, policy) if fit else (inputs, policy)


def _with_demands(draw: Random, inputs: Inputs, policy: Slurm) -> tuple[Inputs, Slurm]:
    """Return inputs in which some jobs have a shortest limit, a deadline, or are components of heterogeneous jobs."""
    count, entries = len(inputs.submit), inputs.entries or Entries.of(range(len(inputs.submit)))
    found: dict[str, list[Any]] = {}
    if draw.random() < 0.4:
        found["shortest"] = [draw.choice((0, 60)) for _ in range(count)]
        policy = replace(policy, release=draw.choice((policy.release, 25.11)))
    if draw.random() < 0.3:
        found["deadline"] = [
            submit + draw.choice((math.inf, 100.0, 200.5, 400.0)) if first == job else math.nan
            for job, (submit, first) in enumerate(zip(inputs.submit, entries.first, strict=True))
        ]
        found["deadline"] = [found["deadline"][first] for first in entries.first]
    if draw.random() < 0.4:
        number = [draw.choice((-1, job // 3)) for job in range(count)]
        waits = [not (inputs.held and inputs.held[first]) for first in entries.first]
        policy = replace(policy, bf_min_age_reserve=0)  # some never start: no pass each second for a day
        found["het_job"] = [number[first] if own else -1 for first, own in zip(entries.first, waits, strict=True)]
    return replace(inputs, **found), policy


def _in_several_partitions(draw: Random, inputs: Inputs) -> Inputs:
    """Return inputs in which some jobs are entries of the job before them."""
    job = [0]
    for _ in inputs.submit[1:]:
        job.append(job[-1] + (draw.random() < 0.7))
    entries = Entries.of(job, one_reservation=draw.random() < 0.5)
    first = entries.first
    same = {name: [getattr(inputs, name)[each] for each in first] for name in ("submit", "run_time", "association")}
    if conditions := inputs.conditions:
        dependencies = [
            tuple(
                each if each.kind == SINGLETON else each._replace(of=first[each.of])
                for each in conditions.dependencies[own]
                if each.kind == SINGLETON or first[each.of] < own
            )
            for own in first
        ]
        conditions = Conditions(
            [conditions.earliest[own] for own in first],
            dependencies,
            [conditions.any_of[own] and bool(dependencies[own]) for own in first],
            [conditions.group[own] if own == entry else -1 for entry, own in enumerate(first)],
            [conditions.fails[own] for own in first],
            conditions.kill_invalid,
        )
    arrays, licenses, bookings = inputs.arrays, inputs.licenses, inputs.bookings
    return replace(
        inputs,
        **same,
        entries=entries,
        conditions=conditions,
        arrays=arrays and replace(arrays, of=[arrays.of[own] for own in first]),
        licenses=licenses and replace(licenses, wanted=[licenses.wanted[own] for own in first]),
        bookings=bookings and replace(bookings, inside=[bookings.inside[own] for own in first]),
    )


def begun(draw: Random, inputs: Inputs) -> Inputs:
    """Return the inputs of a simulation that begins with running jobs, and with the usage of the users."""
    begin, free = draw.choice((5.0, 20.5)), Nodes.of(inputs.free)
    held: list[Parts] = []
    since: list[float] = []
    for job, request in enumerate(inputs.requests):
        alone = not inputs.entries or sum(1 for _ in siblings(inputs.entries, job)) == 1
        runs = alone and draw.random() < 0.4 and inputs.submit[job] < begin
        parts = (free.choose(request, (1 << len(free.total)) - 1) if runs else None) or {}
        free.take(request, parts)
        held.append(parts)
        since.append(draw.choice((inputs.submit[job], inputs.submit[job] - 200)) if parts else math.nan)
    users = inputs.associations.parent
    usage = [draw.choice((0.0, 500.0, 900.0)) * is_user for is_user in inputs.associations.is_user]
    for each in range(len(users) - 1, 0, -1):
        usage[users[each]] += usage[each]
    return replace(
        inputs,
        begin_s=begin,
        held=held,
        since=since,
        usage=usage,
        factors=[draw.choice((0.25, 0.5, 1.0)) for _ in users],
        first_period_s=begin + 3.5,
        watched=draw.choice((0, 3, len(held))),
    )


def _allowed(inputs: Inputs, job: int, parts: Parts) -> bool:
    """Return whether the limits allow a job on the empty cluster. Others would wait for ever."""
    if not inputs.limits.counters:
        return True
    amounts = amounts_of(inputs.requests[job], parts, inputs.free, inputs.billing[inputs.partition[job]], False)
    own = inputs.limits.limits[inputs.limits.group[job]]
    return all(
        limit.kind == SUBMITTED or limit.most >= (1 if limit.kind == JOBS else amounts[limit.kind]) for limit in own
    )


def _associations(draw: Random) -> Associations:
    """Draw a tree of accounts and users."""
    parent, is_user = [0, 0], [False, True]
    accounts = [0]
    for _ in range(draw.randint(1, 3)):
        parent.append(draw.choice(accounts))
        is_user.append(False)
        accounts.append(len(parent) - 1)
    for _ in range(draw.randint(1, 5)):
        parent.append(draw.choice(accounts))
        is_user.append(True)
    return Associations(
        parent=parent,
        shares=[draw.choice((1, 1, 1, 2, 0, OF_PARENT)) for _ in parent],
        is_user=is_user,
        half_life_s=draw.choice((0.0, 60.0)),
        resets=draw.choice(((), (50, 1010, 1090))),
        dampening=draw.choice((0, 0, 1, 3)),
    )


def _limits(draw: Random, jobs: int) -> Limits:
    """Draw limits of up to three groups of jobs. Half of the cases have none."""
    if draw.random() < 0.5:
        return Limits()
    groups, kinds = draw.randint(1, 3), [draw.choice((SUBMITTED, JOBS, CORES, MEMORY, NODES, GRES)) for _ in range(4)]
    counted = [sorted({(counter, kinds[counter]) for counter in draw.choices(range(4), k=3)}) for _ in range(groups)]
    return Limits(
        group=[draw.randrange(groups) for _ in range(jobs)],
        limits=[[Limit(counter, kind, draw.randint(1, 12), "") for counter, kind in own[1:]] for own in counted],
        counted=counted,
        counters=4,
    )


def _switches(draw: Random, nodes: int) -> Switches | None:
    """Return no switches, one tree, or several trees, with nodes of no switch or of two."""
    if draw.random() < 0.5:
        return None
    leaves = [mask_of([node for node in range(nodes) if draw.random() < 0.1 or node % 5 == leaf]) for leaf in range(5)]
    below = draw.choice(([[]] * 5, [[]] * 5 + [[0, 1], [2, 3], [4, 5, 6]], [[]] * 5 + [[0, 2, 4], [1, 3]]))
    return Switches.of([*leaves, *[0] * (len(below) - 5)], below, draw.randrange(3))


def _request(draw: Random, eligible: int, cores: int) -> Request:
    per_node, most = draw.choice((0, cores)), eligible.bit_count()
    fewest = draw.randint(1, min(3, most))
    memory, by_core = draw.choice(((0, False), (1, True), (4, False), (ALL, False)))
    return Request(
        cores=per_node * fewest if per_node else draw.randint(fewest, most * cores),
        per_node=per_node,
        fewest=fewest,
        whole=draw.random() < 0.5,
        memory=memory,
        by_core=by_core,
        gres=(draw.randint(0, 1),),
        eligible=eligible,
        sockets=draw.choice((0, 0, 0, OF_TASKS, OF_CPUS)),
        least_loaded=draw.random() < 0.3,
        one_thread=draw.random() < 0.3,
    )


def _conditions(draw: Random, count: int) -> Conditions:
    """Draw begin times and dependencies on earlier jobs."""
    group = [draw.choice((-1, 0, 1)) for _ in range(count)]
    dependencies = []
    for job in range(count):
        found = [Condition(SINGLETON, group[job])] if group[job] >= 0 and draw.random() < 0.3 else []
        found += [
            Condition(draw.randrange(SINGLETON), draw.randrange(job), draw.choice((0.0, 0.0, 60.0)))
            for _ in range(draw.choice((0, 0, 1, 2)) if job else 0)
        ]
        dependencies.append(tuple(found))
    return Conditions(
        [draw.choice((-math.inf, 12.5, 100.0, 500.0)) for _ in range(count)],
        dependencies,
        [bool(own) and draw.random() < 0.3 for own in dependencies],
        group,
        [draw.random() < 0.3 for _ in range(count)],
        draw.random() < 0.5,
    )


def _licenses(draw: Random, count: int) -> Licenses:
    """Draw licences of two kinds."""
    wanted = [draw.choice(((0, 0), (0, 0), (1, 0), (2, 1), (0, 1))) for _ in range(count)]
    return Licenses((draw.choice((2, 5)), 1), wanted, draw.random() < 0.5)


def _bookings(draw: Random, count: int, nodes: int, epoch: int) -> Bookings:
    """Draw advance reservations, and jobs in them."""
    booked = []
    for _ in range(draw.randint(1, 3)):
        begin = epoch + draw.randint(0, 200)
        end = begin + draw.choice((10, 60, 400))
        booked.append(Booked(begin, end, end + draw.choice((0, 60)), draw.randint(0, (1 << nodes) - 1), begin % 3 == 0))
    inside = [draw.randrange(len(booked)) if draw.random() < 0.2 else -1 for _ in range(count)]
    return Bookings(booked, inside, [each.begin - epoch + draw.random() * 5 for each in booked])


def _preemption(draw: Random, count: int) -> Preemption:
    """Draw three classes of jobs. Jobs of a higher class preempt some of those of lower ones."""
    return Preemption(
        [draw.randrange(3) for _ in range(count)],
        [0, draw.choice((0, 1)), draw.choice((1, 2, 3))],
        [0, draw.randint(0, 1), 1],
        [draw.choice((CANCEL, REQUEUE, SUSPEND)) for _ in range(3)],
        [draw.choice((0, 0, 10)) for _ in range(3)],
        [draw.choice((0.0, 15.0)) for _ in range(3)],
        draw.random() < 0.3,
        draw.choice((0, 1, 2)),
    )


def _arrays(draw: Random, count: int) -> Arrays:
    """Draw arrays of consecutive jobs."""
    of = [draw.choice((-1, job // 4)) for job in range(count)]
    return Arrays(of, [draw.choice((0, 1, 2)) for _ in range(count // 4 + 1)])


def both(inputs: Inputs, policy: Slurm, compiled: Callable[[Inputs, Slurm], Outcome] = engine.simulate) -> Outcome:
    """Return the outcome of the compiled simulation, and check that the one in Python returns the same."""
    outcome = compiled(inputs, policy)
    assert equal(outcome, Simulation(inputs, policy).run())
    return outcome


def with_outages(seed: int, inputs: Inputs) -> Inputs:
    """Return inputs with drawn outages, also of a node that is out, and some without an end."""
    draw, nodes = Random(seed + 2), len(inputs.free.total)
    kinds = (BACK, DRAINED, DOWN)
    changes = sorted(
        NodeChange(draw.choice((float(draw.randint(0, 200)), draw.uniform(0, 150))), node, draw.choice(kinds))
        for node in draw.choices(range(nodes), k=draw.randint(1, 40))
    )
    return replace(inputs, availability=Availability(changes, draw.random() < 0.7))


def with_saving(seed: int, inputs: Inputs) -> Inputs:
    """Return inputs with power saving, in which no job is suspended."""
    draw, nodes = Random(seed + 4), len(inputs.free.total)
    every = (1 << nodes) - 1
    preemption = inputs.preemption
    if preemption:
        modes = [REQUEUE if mode == SUSPEND else mode for mode in preemption.mode]
        preemption = replace(preemption, mode=modes)
    times = draw.choice(((0, 5), (10,), (3, 40, -1), (120, 300)))
    saving = PowerSaving(
        suspend_s=[draw.choice(times) for _ in range(nodes)],
        suspend_timeout_s=[draw.choice((0, 4, 30)) for _ in range(nodes)],
        boot_s=[draw.choice((0.0, 3.5, 70.25)) for _ in range(nodes)],
        off=[draw.random() < 0.3 for _ in range(nodes)],
        spared=draw.choice((0, draw.randint(0, every))),
        kept=[(draw.randint(1, every), draw.randint(1, 8)) for _ in range(draw.choice((0, 0, 1, 2)))],
        suspend_rate=draw.choice((0, 1, 20, 60)),
        resume_rate=draw.choice((0, 1, 20, 300)),
        interval_s=draw.choice((1, 10, 60)),
        least_interval_s=draw.choice((0, 5)),
        phase_s=draw.choice((0.0, 0.75)),
        linear=draw.random() < 0.5,
    )
    return replace(inputs, preemption=preemption, saving=saving)


def with_resizing(seed: int, inputs: Inputs) -> Inputs:
    """Return inputs in which a layer resizes most of the jobs that can be resized."""
    draw, nodes = Random(seed + 3), len(inputs.free.total)
    sizes = list[Sizes | None]()
    for request in inputs.requests:
        least, most = draw.randint(1, request.fewest), draw.randint(request.fewest, max(request.fewest, nodes // 2))
        preferred, steep = draw.randint(least, most), draw.choice((1.0, 0.7, 0.0))
        rates = [(size / request.fewest) ** steep for size in range(least, most + 1)]
        sizes.append(Sizes(least, preferred, most, rates) if draw.random() < 0.8 else None)
    return with_layer(
        replace(inputs, held=[], since=[], watched=0),
        sizes,
        draw.choice(RESIZE_POLICIES),
        draw.choice((22.05, 24.11, 26.05)),
        gives_gres=False,
        counted=draw.random() < 0.5,
        interval_s=draw.choice((1.0, 5.0, 30.0)),
        phase_s=draw.choice((0.0, 0.3)),
        pause_s=draw.choice((0.0, 2.5, 30.0)),
        release_s=draw.choice((0.0, 0.5, 20.0)),
        merge_s=draw.choice((0.0, 0.75, 20.0)),
        merge_rank_s=draw.choice((0.0, 0.25)),
    )[0]


def crowded(seed: int) -> tuple[Inputs, Slurm]:
    """Draw a cluster on which many jobs of whole nodes' shapes wait, so that a layer has much to do."""
    draw = Random(seed)
    inputs, policy = drawn(seed)
    nodes = len(inputs.free.total)
    requests = list[Request]()
    for request in inputs.requests:
        most = max(1, min(request.eligible.bit_count(), nodes * 2 // 3))
        fewest, cores = draw.randint(1, most), max(inputs.free.total)
        gres = (draw.choice((0, 0, 0, 1)),)
        kept = request._replace(fewest=fewest, cores=cores * fewest, per_node=cores, memory=0, by_core=False, gres=gres)
        parts = Nodes.of(inputs.free).choose(kept, (1 << nodes) - 1)
        requests.append(kept if parts and _allowed(inputs, len(requests), parts) else request)
    first = (inputs.entries or Entries.of(range(len(requests)))).first
    run_time = [draw.choice((20.0, 90.0, 400.0, 900.0)) for _ in requests]
    return replace(
        inputs,
        requests=requests,
        submit=[submit * 10.3 for submit in inputs.submit],
        run_time=[run_time[job] for job in first],
        limit=[draw.choice((60, 600, 1200)) for _ in requests],
        deadline=(),
    ), replace(policy, bf_min_age_reserve=0, sched_interval=20, bf_interval=30)  # some wait for a day in vain


def compared(seed: int, *, large: bool = False) -> str:
    """Return how the two simulators differ on a drawn case, also with outages, power saving, a layer; empty: none."""
    inputs, policy = drawn(seed, large=large)
    if not inputs.requests:
        return ""
    cases = [(inputs, policy), (with_outages(seed, inputs), policy), (with_saving(seed, inputs), policy)]
    if not large:
        busy, own = crowded(seed)
        cases += [(with_resizing(seed, each), own) for each in (busy, with_outages(seed, busy))]
    return next(filter(None, (_difference(*case) for case in cases)), "")


def _difference(inputs: Inputs, policy: Slurm) -> str:
    simulation = Simulation(inputs, policy)
    if not equal(engine.simulate(inputs, policy), simulation.run()):
        return "the compiled simulation of Slurm differs from that in Python"
    if any(free > total for free, total in zip(simulation._free.cores, inputs.free.total, strict=True)):
        return "cores were released twice"
    return ""


def equal(a: Outcome, b: Outcome) -> bool:
    """Return whether two outcomes are equal to the bit."""
    for name in (field.name for field in fields(Outcome)):
        own, other = getattr(a, name), getattr(b, name)
        if name == "parts":
            same = [*own] == [*other]
        elif name == "stints":
            same = own == other
        else:  # as text, since NaN, of a job beyond the simulated time, differs from itself
            same = repr(own) == repr(other)
        if not same:
            return False
    return True
