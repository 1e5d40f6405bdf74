"""Drawn workloads and clusters of Slurm that grow: for benchmarks of the compiled simulation.

python -m tests.performance.slurm_scale month 10000         # CPU times of a setting: month, partitions, quarter; jobs
python -m tests.performance.slurm_scale month 10000 dmr     # beside a layer, with a third of the jobs malleable
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable

import numpy as np
import pandas as pd

from tracebed.converters.malleability import to_malleable
from tracebed.converters.models import registry
from tracebed.converters.workload import Provenance, System, Workload
from tracebed.orchestrator.run import Run
from tracebed.orchestrator.scheduling.limits import OverLimit
from tracebed.orchestrator.simulation.prediction import predict
from tracebed.slurm.machine import Alike, Partition, SlurmCluster, SlurmMachine, Weights

MEMORY_MIB = 4000
"""Memory of a core."""


def shared_cluster(
    count: int, nodes: int, cores: int = 48, *, one: bool = False, load: float = 0.85
) -> tuple[Workload, SlurmCluster]:
    """Return drawn jobs, half of them of whole nodes, and their cluster.

    `one`: one partition and the order of submission, else three partitions and fair share.
    """
    draw = np.random.default_rng(1)
    others = (
        Partition(name="short", nodes=f"n[1-{nodes // 4}]", tier=2, limit_s=3600.0, memory_per_core_mib=MEMORY_MIB),
        Partition(name="half", nodes=f"n[{nodes // 2}-{nodes}]", memory_per_core_mib=MEMORY_MIB),
    )
    machine = SlurmCluster(
        kinds=(Alike(names=f"n[1-{nodes}]", cores=cores, memory_mib=cores * MEMORY_MIB),),
        partitions=(Partition(name="all", default=True, memory_per_core_mib=MEMORY_MIB), *(() if one else others)),
        shared=True,
        memory=True,
        weights=Weights() if one else Weights(age=1000, fairshare=10000, job_size=500, partition=2000),
    )
    partition = draw.choice(["all", "short", "half"], count, p=[0.7, 0.1, 0.2])
    whole = draw.random(count) < 0.5
    size = np.where(whole, np.minimum(2 ** draw.geometric(0.45, count), nodes // 4), 1)
    per_node = np.where(whole, cores, draw.integers(1, 17, count))
    run = np.minimum(draw.lognormal(8.0, 1.5, count), np.where(partition == "short", 3500.0, 86400.0))
    limit = np.where(partition == "short", 3600.0, run * draw.uniform(1.0, 4.0, count))
    span = (size * per_node * run).sum() / (nodes * cores * load)
    table = pd.DataFrame({"job_id": np.arange(count).astype(str), "submit_time": np.sort(draw.uniform(0, span, count))})
    table = table.assign(run_time=run, time_limit=limit, nodes=size, cores_per_node=per_node)
    table["partition"] = "all" if one else partition
    table["user"], table["group"] = [f"u{number}" for number in draw.integers(0, 50, count)], "g"
    return Workload(table, Provenance(system=System(nodes, cores))), machine


def whole_nodes(count: int, nodes: int = 5860, *, load: float = 0.9) -> tuple[Workload, SlurmCluster]:
    """Return jobs of the model `cirne` on whole nodes, in one partition, in the order of submission.

    FastSim (ISC 2023) simulated 600,000 jobs of four months on the nodes of ARCHER2. The model's arrivals have that
    density, and its run times are shortened to the load.
    """
    table = registry.draw("cirne", count, nodes=nodes, seed=1).table
    size, run = table["nodes"].to_numpy(), table["run_time"].to_numpy(dtype=float)
    submit = table["submit_time"].to_numpy(dtype=float)
    scale = load * nodes * (submit.max() - submit.min()) / (size * run).sum()
    columns = {name: table[name].to_numpy() for name in ("job_id", "submit_time", "nodes")}
    columns |= {name: table[name].to_numpy(dtype=float) * scale for name in ("run_time", "time_limit")}
    partition = Partition(name="all", default=True)
    machine = SlurmCluster(kinds=(Alike(names=f"n[1-{nodes}]", cores=1),), partitions=(partition,))
    return Workload(pd.DataFrame(columns), Provenance(system=System(nodes, 1))), machine


SETTINGS: dict[str, Callable[[int], tuple[Workload, SlurmCluster]]] = {
    "month": lambda count: shared_cluster(count, 5000, one=True),
    "partitions": lambda count: shared_cluster(count, 5000),
    "quarter": whole_nodes,
}


def simulate(workload: Workload, machine: SlurmCluster, resizes: str = "none") -> Run:
    """Return the compiled simulation of a workload on a cluster, beside a layer that resizes malleable jobs."""
    given = {"policy_parameters": {"resizes": resizes}, "over_limit": OverLimit.KILL, "engine": "compiled"}
    return predict(workload, SlurmMachine.of(machine), "slurm", **given)


def main(setting: str, count: int, resizes: str = "none") -> None:
    """Print the CPU time of one prediction, and facts of its run."""
    workload, machine = SETTINGS[setting](count)
    if resizes != "none":
        workload = to_malleable(workload, 1 / 3)
    begun = resource.getrusage(resource.RUSAGE_SELF).ru_utime
    run = simulate(workload, machine, resizes)
    used = resource.getrusage(resource.RUSAGE_SELF).ru_utime - begun
    wait = (run.jobs["start"] - run.jobs["submit"]).to_numpy(dtype=float)
    submit = run.jobs["submit"].to_numpy(dtype=float)
    print(  # noqa: T201
        f"{setting}: {count:,} jobs in {(submit.max() - submit.min()) / 86400:.1f} days: {used:.2f} s, "
        f"mean wait {np.nanmean(wait):,.0f} s, longest queue {queue(submit, submit + wait):,}, "
        f"{len(run.reconfigurations):,} resizes, {run.info.counts}"
    )


def queue(submit: np.ndarray, start: np.ndarray) -> int:
    """Return the largest number of waiting jobs."""
    when = np.concatenate([submit, start])
    change = np.concatenate([np.ones(len(submit)), -np.ones(len(start))])
    return int(np.cumsum(change[np.argsort(when, kind="stable")]).max())


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])
