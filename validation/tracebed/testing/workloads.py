"""Random workloads for the checks: small, with simultaneous events, run times of zero, and all kinds of jobs."""

from __future__ import annotations

import random

import numpy as np
import pandas as pd

from tracebed.converters.workload import Provenance, System, Workload
from tracebed.machine.machine import Machine, NodeClass, Partition


def draw(seed: int, *, cores: int = 4) -> Workload:
    """Return a workload of 1 to 30 rigid and malleable jobs for a system of 1 to 16 nodes.

    Times are whole seconds in most workloads, so that events coincide. Each time limit is at least the run time, and
    each malleable job has a linear speedup. A job may request more nodes than the system has.
    """
    rng = random.Random(seed)
    machine = rng.choice([1, 2, 3, 5, 8, 16])
    whole, share, gap = rng.random() < 0.7, rng.choice([0.0, 0.3, 1.0]), rng.choice([1.0, 10.0])
    rows, submit = [], 0.0
    for number in range(1, rng.randint(1, 30) + 1):
        if rng.random() < 0.6:
            submit += rng.choice([1, 2, 3, 10]) * gap if whole else rng.expovariate(1 / gap)
        nodes = rng.randint(1, machine) if rng.random() < 0.5 else rng.randint(1, max(1, machine // 3))
        nodes += machine if rng.random() < 0.02 else 0
        run_time = float(rng.choice([0, 1, 2, 5, 10, 20, 40])) if whole else rng.expovariate(0.1)
        malleable = nodes <= machine and rng.random() < share
        rows.append(
            {
                "job_id": str(number),
                "submit_time": submit,
                "run_time": run_time,
                "time_limit": rng.choice([np.nan, run_time, run_time + 5.0, run_time * 3]),
                "nodes": nodes,
                "cores_per_node": cores,
                "kind": "malleable" if malleable else "rigid",
                "nodes_min": rng.randint(1, nodes) if malleable else nodes,
                "nodes_max": rng.randint(nodes, machine + 2) if malleable else nodes,
                "nodes_pref": nodes,
                "user": rng.choice(["ann", "bob", "eve"]),
            }
        )
    return Workload(pd.DataFrame(rows), Provenance(system=System(machine, cores, "drawn")))


def in_partitions(workload: Workload, seed: int) -> tuple[Workload, Machine]:
    """Return a workload in partitions, and the machine that has them on the nodes of the system of the workload.

    The partition `all` has all nodes, and `half` the first half of them, so that they have nodes in common.
    """
    rng = random.Random(f"partitions {seed}")
    system = workload.provenance.system
    assert system.nodes is not None
    names = [f"n{number}" for number in range(1, system.nodes + 1)]
    half = Partition(name="half", nodes=tuple(names[: (len(names) + 1) // 2]), tier=rng.choice([1, 2]))
    machine = Machine(
        classes=(NodeClass(names=tuple(names), cores=system.cores_per_node or 1),),
        partitions=(Partition(name="all", nodes=tuple(names)), half),
    )
    table = workload.table.assign(partition=[rng.choice(["all", "half"]) for _ in range(len(workload))])
    return Workload(table, workload.provenance), machine


def contended_workload(nodes: int = 4) -> Workload:
    """Return a workload of one job that needs all nodes and a stream of one-node jobs, some of which always run."""
    narrow = [{"submit_time": 2.5 * at, "run_time": 10.0, "nodes": 1} for at in range(200)]
    rows = [*narrow, {"submit_time": 1.0, "run_time": 10.0, "nodes": nodes}]
    table = pd.DataFrame(rows).assign(job_id=[*(f"narrow {n}" for n in range(200)), "wide"], time_limit=10.0)
    return Workload(table, Provenance(system=System(nodes, 1, "crowd")))
