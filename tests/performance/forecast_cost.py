"""Measures what a member of a forecast costs, on a drawn state of a full cluster.

    python -m tests.performance.forecast_cost --nodes 32 --waiting 1000

The nodes have 48 cores, which jobs share. The jobs have 1 to 96 cores, limits of 1 to 24 hours, and run for a fifth of
them in the median. There are three partitions, memory by core, and fair shares of 60 users.
"""

from __future__ import annotations

import argparse
import random
import sys
import time

import numpy as np
import pandas as pd

from tracebed.converters.workload import Workload
from tracebed.slurm.conf import SlurmConf
from tracebed.slurm.machine import Alike, Partition, SlurmCluster, Weights
from tracebed.slurm.scontrol import Share
from tracebed.slurm.simulation.forecast import forecast
from tracebed.slurm.state import ClusterState, LiveJob

NOW = 1.8e9
CORES = 48
LIMITS = (3600.0, 14400.0, 43200.0, 86400.0)
USERS = [(f"account{number % 8}", f"user{number}") for number in range(60)]


def size(draw: random.Random) -> int:
    """Draw the cores of a job."""
    return draw.choices((1, 2, 4, 8, 16, 48, 96), (8, 5, 5, 5, 5, 4, 2))[0]


def job(draw: random.Random, number: int, held: dict[str, int], cores: int) -> LiveJob:
    """Draw a running job on the nodes `held`, or a waiting one."""
    account, user = draw.choice(USERS)
    partition = "main" if held else draw.choices(("main", "short", "large"), (7, 2, 1))[0]
    limit = 7200.0 if partition == "short" else draw.choice(LIMITS)
    since = NOW - draw.random() * 0.8 * limit
    return LiveJob(
        id=str(number),
        number=number,
        user=user,
        account=account,
        partition=partition,
        waits_since=since,
        eligible=since,
        start=since if held else None,
        estimate=None,
        limit_s=limit,
        cores=cores,
        per_node=0,
        fewest=1,
        whole=False,
        memory_mib=3000,
        by_core=True,
        features="",
        gres="",
        priority=draw.randrange(1, 10_000),
        reason="" if held else "Priority",
        held=held,
    )


def drawn(nodes: int, waiting: int) -> ClusterState:
    """Draw the state of a cluster whose nodes are full."""
    draw = random.Random(1)
    jobs: list[LiveJob] = []
    node, free = 1, CORES
    while node <= nodes:
        cores = min(size(draw), free + CORES * (nodes - node))
        held, left = {}, cores
        while left and node <= nodes:
            taken = min(left, free)
            held[f"c{node}"] = taken
            left, free = left - taken, free - taken
            if not free:
                node, free = node + 1, CORES
        jobs.append(job(draw, len(jobs) + 1, held, cores))
    jobs += [job(draw, len(jobs) + 1 + number, {}, size(draw)) for number in range(waiting)]
    partitions = (
        Partition(name="main", default=True, memory_per_core_mib=3000),
        Partition(name="short", nodes=f"c[1-{max(2, nodes // 4)}]", tier=2, limit_s=7200, memory_per_core_mib=3000),
        Partition(name="large", nodes=f"c[{nodes // 2}-{nodes}]", memory_per_core_mib=3000),
    )
    machine = SlurmCluster(
        kinds=(Alike(names=f"c[1-{nodes}]", cores=CORES, memory_mib=190_000),),
        partitions=partitions,
        shared=True,
        memory=True,
        weights=Weights(age=1000, fairshare=10_000, job_size=500, partition=100),
    )
    shares = tuple(Share(account, user, 1 / 8, 1 / 8, draw.random() * 1e6, draw.random()) for account, user in USERS)
    return ClusterState(NOW, SlurmConf({}, (), {}), machine, frozenset(), tuple(jobs), {}, shares, ())


def log_of(nodes: int) -> Workload:
    """Draw a log of 20,000 jobs with an offered load of 0.8."""
    draw = random.Random(2)
    limit = np.array([draw.choice(LIMITS) for _ in range(20_000)])
    share = np.array([min(1.0, draw.lognormvariate(-1.6, 1.0)) for _ in limit])
    cores = np.array([size(draw) for _ in limit])
    users = [draw.choice(USERS) for _ in limit]
    span = float((limit * share * cores).sum()) / (0.8 * CORES * nodes)
    return Workload(
        pd.DataFrame(
            {
                "job_id": [str(number) for number in range(len(limit))],
                "submit_time": sorted(draw.random() * span for _ in limit),
                "run_time": limit * share,
                "time_limit": limit,
                "nodes": 1,
                "cores_per_node": cores,
                "spread": 1,
                "user": [user for _, user in users],
                "group": [account for account, _ in users],
                "partition": "main",
            }
        )
    )


def main() -> None:
    """Print the CPU time of a member, and the time of a forecast."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=32)
    parser.add_argument("--waiting", type=int, default=1000)
    parser.add_argument("--repetitions", type=int, default=4)
    given = parser.parse_args()
    state, log = drawn(given.nodes, given.waiting), log_of(given.nodes)
    for arrivals in (False, True):
        begin, wall = time.process_time(), time.perf_counter()
        found = forecast(state, log, given.repetitions, 1, arrivals=arrivals)
        cpu, wall = time.process_time() - begin, time.perf_counter() - wall
        members = given.repetitions + arrivals  # one more finds how far later jobs matter
        last = (np.nanmax(found.starts) - NOW) / 3600
        sys.stdout.write(
            f"{given.nodes} nodes, {given.waiting:,} waiting jobs, later jobs {'yes' if arrivals else 'no'}: "
            f"{cpu / members:.2f} s of CPU a member, {wall:.1f} s for {given.repetitions}; "
            f"last start after {last:.0f} h\n"
        )


if __name__ == "__main__":
    main()
