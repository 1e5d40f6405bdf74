"""Drawn clusters of Slurm with shared nodes, and their jobs: both simulators must return the same."""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random
from typing import Any

from tracebed.orchestrator.scheduling.policies.slurm import Slurm
from tracebed.orchestrator.scheduling.slurm.limits import CORES, GRES, JOBS, MEMORY, NODES, SUBMITTED, Limit, Limits
from tracebed.orchestrator.scheduling.slurm.multifactor import OF_PARENT, Associations
from tracebed.orchestrator.scheduling.slurm.resources import ALL, Parts, Request, Resources
from tracebed.orchestrator.simulation.slurm import engine
from tracebed.orchestrator.simulation.slurm.simulator import Inputs, Simulation

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
}
OF_JOBS = (
    *("submit", "run_time", "limit", "launch_s", "overrun_s", "end_s", "requests", "partition", "user", "fixed"),
    *("association", "usage_factor", "reserve"),
)


def drawn(seed: int, *, large: bool = False) -> tuple[Inputs, Slurm]:
    """Draw a cluster, its jobs and the parameters of Slurm. Jobs that never fit are left out."""
    draw = Random(seed)
    nodes, count = draw.randint(1, 70), draw.randint(1, 25)
    if large:
        nodes, count = nodes + 150, count + 100
    cores, parts = draw.choice((1, 4)), draw.randint(1, 3)
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
        overrun_s=[draw.choice((0.0, 17.5)) for _ in every],
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
            draw.choice((None, [node % 4 for node in range(nodes)])),
            draw.choice(([1] * nodes, [node % 2 for node in range(nodes)])),
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
        most_idle=60,
    )
    fit = [job for job, asked in enumerate(requests) if inputs.free.choose(asked, (1 << nodes) - 1)]
    kept: dict[str, Any] = {name: [getattr(inputs, name)[job] for job in fit] for name in OF_JOBS}
    kept["limits"] = replace(limits, group=[limits.group[job] for job in fit] if limits.group else [])
    inputs = replace(inputs, **kept)
    policy = Slurm(**{name: draw.choice(values) for name, values in PARAMETERS.items()})
    return (begun(draw, inputs) if fit and draw.random() < 0.5 else inputs), policy


def begun(draw: Random, inputs: Inputs) -> Inputs:
    """Return the inputs of a simulation that begins with running jobs, and with the usage of the users."""
    begin, free = draw.choice((5.0, 20.5)), inputs.free.copy()
    held: list[Parts] = []
    since: list[float] = []
    for job, request in enumerate(inputs.requests):
        runs = draw.random() < 0.4 and inputs.submit[job] < begin
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
        limits=[[Limit(counter, kind, draw.randint(0, 9), "") for counter, kind in own[1:]] for own in counted],
        counted=counted,
        counters=4,
    )


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
    )


def compared(seed: int, *, large: bool = False) -> str:
    """Return the difference of the two simulators on a drawn case; empty: none."""
    inputs, policy = drawn(seed, large=large)
    if not inputs.requests or not engine.available():
        return ""
    a, b = engine.simulate(inputs, policy), Simulation(inputs, policy).run()
    # as text, since NaN, of a job beyond the simulated time, differs from itself
    if (
        repr((a.start, a.launched, a.end, a.refused)) == repr((b.start, b.launched, b.end, b.refused))
        and a.parts == b.parts
    ):
        return ""
    return "the compiled simulation of Slurm differs from that in Python"
