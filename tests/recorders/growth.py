"""Growth of the simulator's run time with jobs and with nodes at a constant load.

python -m tests.recorders.growth docs/explanation/growth.png     # some minutes; each point is the best of three
"""

from __future__ import annotations

import resource
import sys
import time

import matplotlib as mpl
import numpy as np
import pandas as pd

from tracebed.converters.workload import Workload
from tracebed.machine.machine import Machine, NodeClass, Partition
from tracebed.machine.nodes import NodeFacts
from tracebed.orchestrator.simulation.prediction import predict

LOAD = 0.85
JOBS, NODES = (10_000, 31_623, 100_000, 316_228, 1_000_000), (1_000, 3_162, 10_000, 31_623, 100_000)
POLICIES = ("fcfs", "easy", "conservative", "pref")
MOST = {"pref": 100_000}  # its staircases have many steps: more jobs may need too much memory


def workload(jobs: int, nodes: int, seed: int = 1) -> Workload:
    """Return Poisson arrivals of malleable jobs of up to a tenth of the machine, at an offered load of `LOAD`."""
    rng = np.random.default_rng(seed)
    size = np.ceil(nodes / 10 * rng.random(jobs) ** 3).astype(int)
    run_time = rng.exponential(3600.0, jobs)
    gap = 3600.0 * size.mean() / nodes / LOAD
    table = {
        "job_id": [str(number) for number in range(jobs)],
        "submit_time": np.cumsum(rng.exponential(gap, jobs)),
        "run_time": run_time,
        "time_limit": run_time * rng.uniform(1.0, 4.0, jobs),
        "nodes": size,
        "kind": "malleable",
        "nodes_min": np.maximum(1, size // 5),
        "nodes_max": 2 * size,
        "nodes_pref": size,
        "speedup": "amdahl",
        "speedup_parameters": rng.choice(["0.999", "0.99", "0.95"], jobs),
    }
    return Workload(pd.DataFrame(table))


def in_partitions(jobs: int) -> tuple[Workload, Machine]:
    """Return the workload of 1,000 nodes, each job in one of four partitions, and their machine of three classes.

    Each partition has a quarter of the nodes of each class, and no node is in two.
    """
    classes = {"small": (300, 8), "medium": (300, 16), "large": (400, 32)}
    made = workload(jobs, 1_000)
    drawn = np.random.default_rng(2).choice([*"abcd"], jobs)
    machine = Machine(
        classes=tuple(NodeClass(names=(f"{name}[1-{n}]",), cores=cores) for name, (n, cores) in classes.items()),
        partitions=tuple(
            Partition(
                name=own,
                nodes=tuple(f"{name}[{at * n // 4 + 1}-{(at + 1) * n // 4}]" for name, (n, _) in classes.items()),
            )
            for at, own in enumerate("abcd")
        ),
    )
    return Workload(made.table.assign(partition=drawn)), machine


def measure(jobs: int, nodes: int, policy: str, rounds: int = 3) -> float:
    """Return the run time of `predict`, s, the best of `rounds`."""
    work, machine = workload(jobs, nodes), [NodeFacts(f"n{number}", 1) for number in range(nodes)]
    took = []
    for _ in range(rounds):
        begun = time.perf_counter()
        run = predict(work, machine, policy, engine="compiled")
        took.append(time.perf_counter() - begun)
        assert run.info.counts["completed"] == jobs
        del run
    return min(took)


def main(target: str, rounds: int = 3) -> None:
    """Measure the run times, print a table and draw a figure."""
    mpl.use("Agg")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    by_jobs, by_nodes = figure.subplots(1, 2, sharey=True)
    for policy in POLICIES:
        for axes, points in (
            (by_jobs, [(jobs, 1_000) for jobs in JOBS]),
            (by_nodes, [(100_000, nodes) for nodes in NODES]),
        ):
            points = [(jobs, nodes) for jobs, nodes in points if jobs <= MOST.get(policy, jobs)]
            took = [measure(jobs, nodes, policy, rounds) for jobs, nodes in points]
            along = [jobs if axes is by_jobs else nodes for jobs, nodes in points]
            axes.loglog(along, took, marker="o", markersize=3.5, label=policy)
            for (jobs, nodes), seconds in zip(points, took, strict=True):
                print(f"{policy:13} {jobs:9,} jobs {nodes:7,} nodes {seconds:8.3f} s {jobs / seconds:10,.0f} jobs/s")  # noqa: T201
    jobs, nodes = np.array(JOBS, dtype=float), np.array(NODES, dtype=float)
    law = jobs * np.log(jobs)
    by_jobs.loglog(jobs, law / law[0] * 0.3, "k--", linewidth=0.8, label="n log n")
    by_nodes.loglog(nodes, nodes / nodes[0] * 0.3, "k:", linewidth=0.8, label="linear")
    by_jobs.set(xlabel="jobs, on 1,000 nodes", ylabel="predict() (s)")
    by_nodes.set(xlabel="nodes, with 100,000 jobs")
    for axes in (by_jobs, by_nodes):
        axes.legend(frameon=False, fontsize=8)
    figure.savefig(target, dpi=130)
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB")  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
