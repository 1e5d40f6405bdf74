"""The pools of nodes of a batch system on which a policy of tracebed decides, and the demands of the jobs there."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from tracebed.converters.workload import Workload
from tracebed.ground.errors import InputError
from tracebed.ground.table import texts
from tracebed.machine.machine import Machine
from tracebed.machine.pools import Pools
from tracebed.orchestrator.replay.batch.base import BatchSystem, PooledSystem, SystemFacts
from tracebed.orchestrator.replay.batch.deciding import Decided
from tracebed.orchestrator.scheduling.pools import SHARED, on_pools
from tracebed.orchestrator.scheduling.state import visible_jobs


def with_pools(
    decided: Decided,
    workload: Workload,
    output: Path,
    speed: float,
    batch_system: BatchSystem,
    facts: SystemFacts,
) -> tuple[Decided, Machine]:
    """Return what the policy decides about on the pools of the batch system, and the machine, or raise InputError."""
    if not isinstance(batch_system, PooledSystem):
        what = f"{facts.name} does not start jobs with their own demands as a policy decides"
        raise InputError(what, hint="leave the demands or the policy out")
    machine = batch_system.machine([node.name for node in facts.nodes])
    jobs, pools = on_pools(workload, machine, decided.jobs, decided.policy)
    seen = visible_jobs(decided.policy, jobs)
    runnable = workload.runnable()[0]
    columns = runnable.columns.assign(partition=texts(_one_partition(runnable, machine, pools)))
    demands = batch_system.held_demands(
        Workload(columns, runnable.provenance),
        output.absolute().parent,
        speed,
        pools.least_cores.tolist(),
        seen.malleable,
    )
    counts = demands.counts | {SHARED: pools.shared}
    return decided._replace(jobs=jobs, pools=pools, demands=demands._replace(counts=counts)), machine


def _one_partition(workload: Workload, machine: Machine, pools: Pools) -> list[str]:
    """Return a partition for each job: of several ones, the first that has all nodes of the pool of the job.

    Raise InputError if there is none: the batch system starts a job in one partition.
    """
    members = {part.name: {*part.names} or {node.name for node in machine.nodes} for part in machine.partitions}
    names = [{machine.nodes[node].name for node in pool.nodes} for pool in pools.pools]

    @cache
    def chosen(listed: str, pool: int) -> str | None:
        known = [name for name in listed.split(",") if name in members]
        return next((name for name in known if pool < 0 or names[pool] <= members[name]), None)

    partitions = []
    for job, (listed, pool) in enumerate(zip(workload.texts("partition"), pools.of.tolist(), strict=True)):
        own = chosen(listed, pool) if "," in listed and pool >= 0 else listed
        if own is None:
            what = f"none of the partitions {listed} of job {workload.texts('job_id').iloc[job]} has all nodes"
            raise InputError(f"{what} on which a policy may start it", hint="name one partition for each job")
        partitions.append(own)
    return partitions
