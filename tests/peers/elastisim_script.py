"""FCFS and EASY as a scheduling script of ElastiSim, written without tracebed: `elastisim_script.py POLICY ADDRESS`.

ElastiSim calls the script at each submission and each end of a job. Rigid jobs only.
"""

from __future__ import annotations

import sys
from typing import Any

from elastisim_python import JobState, NodeState, pass_algorithm  # type: ignore[import-not-found]


def fcfs(jobs: list[Any], nodes: list[Any], system: dict[str, Any]) -> None:
    """Start waiting jobs in the order of their submission, until one does not fit."""
    idle = [node for node in nodes if node.state == NodeState.FREE]
    for job in waiting(jobs):
        if job.num_nodes > len(idle):
            return
        job.assign([idle.pop(0) for _ in range(job.num_nodes)])


def easy(jobs: list[Any], nodes: list[Any], system: dict[str, Any]) -> None:
    """Start as `fcfs`, then later jobs that do not delay the first job that does not fit (Lifka 1995)."""
    now = system["time"]
    idle = [node for node in nodes if node.state == NodeState.FREE]
    ends = [(job.start_time + job.walltime, job.num_nodes) for job in jobs if job.state == JobState.RUNNING]
    shadow = extra = None
    for job in waiting(jobs):
        fits = job.num_nodes <= len(idle)
        if shadow is None and not fits:
            shadow, extra = reservation(job.num_nodes, len(idle), ends)
            continue
        in_time = shadow is None or now + job.walltime <= shadow
        if fits and (in_time or job.num_nodes <= extra):
            job.assign([idle.pop(0) for _ in range(job.num_nodes)])
            ends.append((now + job.walltime, job.num_nodes))
            extra = extra if in_time else extra - job.num_nodes


def waiting(jobs: list[Any]) -> list[Any]:
    return sorted((job for job in jobs if job.state == JobState.PENDING), key=lambda job: (job.submit_time, job))


def reservation(need: int, idle: int, ends: list[tuple[float, int]]) -> tuple[float, int]:
    """Return when `need` nodes are idle at the latest, and the number of idle nodes beyond them at that time."""
    free, at = idle, 0.0
    for end, count in sorted(ends):
        if free >= need and end > at:
            break
        free, at = free + count, end
    return at, free - need


if __name__ == "__main__":
    pass_algorithm({"fcfs": fcfs, "easy": easy}[sys.argv[1]], sys.argv[2])
