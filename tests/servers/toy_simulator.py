"""A simulator for tests of calibrations: first come, first served, with overheads and with ways to fail.

    toy_simulator.py WORKLOAD NODES OUTPUT [NAME=VALUE...]

`launch` and `end` delay the start and the return of the nodes of each job (s), `slow` is a factor on run times, `tick`
the interval of starts (s), and `unused` has no effect. With `fails=HOW` the program fails if `launch` is above 20:
`status`, `hangs`, `garbage`, `empty` (a header without jobs), `others` (jobs of another workload), or `half` of the
jobs.
"""

from __future__ import annotations

import csv
import heapq
import math
import sys
from pathlib import Path

LIMIT = 20.0
"""Launches above this fail, s."""
STATUS = 3


def schedule(jobs: list[dict[str, str]], nodes: int, values: dict[str, float]) -> list[tuple[str, float, float]]:
    """Return id, start and end of each job, s."""
    launch, end, slow, tick = (
        values.get(name, default) for name, default in (("launch", 0), ("end", 0), ("slow", 1), ("tick", 1))
    )
    free, now, rows = nodes, 0.0, []
    busy: list[tuple[float, int]] = []
    for job in jobs:
        now, size = max(now, float(job["submit_time"])), int(job["nodes"])
        while busy and (busy[0][0] <= now or free < size):
            until, more = heapq.heappop(busy)
            now, free = max(now, until), free + more
        free -= size
        start = math.ceil(now / tick) * tick + launch
        stop = start + slow * float(job["run_time"])
        heapq.heappush(busy, (stop + end, size))
        rows.append((job["job_id"], start, stop))
    return rows


def main(arguments: list[str]) -> int:
    """Simulate, and return the exit status; -1 stands for a program that hangs."""
    workload, nodes, output, *settings = arguments
    texts = dict(setting.split("=") for setting in settings)
    fails = texts.pop("fails", "")
    values = {name: float(text) for name, text in texts.items()}
    with Path(workload).open() as stream:
        jobs = list(csv.DictReader(line for line in stream if not line.startswith("#")))
    rows = schedule(jobs, int(nodes), values)
    if values["launch"] > LIMIT:
        match fails:
            case "status":
                sys.stderr.write("reading\nthe toy\n\n")
                return STATUS
            case "hangs":
                return -1
            case "garbage":
                Path(output).write_bytes(b"\x00\xff no table\n" * 3)
                return 0
            case "empty":
                rows = []
            case "others":
                rows = [(f"x{job}", start, end) for job, start, end in rows]
            case "half":
                rows = rows[: len(rows) // 2]
    with Path(output).open("w", newline="") as stream:
        csv.writer(stream).writerows([("job_id", "start", "end"), *rows])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
