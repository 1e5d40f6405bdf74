"""A simulator by other people as an entry of the board, written without tracebed: lapis (PyPI: lapis-sim 0.4.2).

lapis simulates the pools of HTCondor. The machine is one drone whose cores are the nodes; its matchmaking passes over
the queue every 60 s and starts each job that fits, without reservations.

    python -m venv lapis && lapis/bin/pip install lapis-sim==0.4.2
    lapis/bin/python lapis_entry.py WORKLOAD NODES OUTPUT
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

from lapis.job import Job  # type: ignore[import-not-found]
from lapis.pool import StaticPool  # type: ignore[import-not-found]
from lapis.scheduler import CondorJobScheduler  # type: ignore[import-not-found]
from lapis.simulator import Simulator  # type: ignore[import-not-found]


def main(workload: str, nodes: str, output: str) -> None:
    """Simulate the jobs of a workload, and write the start and the end of each."""
    with Path(workload).open(encoding="utf-8") as file:
        rows = sorted(csv.DictReader(file), key=lambda row: float(row["submit_time"]))
    zero = float(rows[0]["submit_time"])  # lapis begins with the first submission
    jobs = [
        Job(
            {"cores": int(row["nodes"])},
            {"cores": int(row["nodes"]), "walltime": float(row["run_time"])},
            queue_date=float(row["submit_time"]),
            name=row["job_id"],
        )
        for row in rows
    ]
    simulator = Simulator()
    simulator.create_job_generator(None, lambda _: iter(jobs))
    simulator.create_scheduler(CondorJobScheduler)
    simulator.create_pools(
        None,
        lambda iterable, pool_type, make_drone: iter(
            [pool_type(capacity=1, make_drone=lambda delay: make_drone({"cores": int(nodes)}, delay))]
        ),
        StaticPool,
    )
    simulator.run()
    with Path(output).open("w", encoding="utf-8") as file:
        file.write("job_id,start,end\n")
        for job in jobs:
            start = zero + job.in_queue_until
            file.write(f"{job.name},{start!r},{start + job.walltime!r}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
