"""The program of a job in a replay: the work of its ranks."""

from __future__ import annotations

from tracebed.benchmarks.program import Program
from tracebed.converters.workload import Workload
from tracebed.orchestrator.scheduling.jobs import Jobs
from tracebed.orchestrator.scheduling.limits import OverLimit
from tracebed.orchestrator.testbeds.nodes import Inventory


def program_of(jobs: Jobs, job: int, rate: float, *, speed: float, grain_s: float, balance: str) -> Program:
    """Return the program that takes the run time of `job` on its requested nodes, at the speed of the replay.

    Args:
        jobs: the workload.
        job: index into `jobs`.
        rate: units per second of a core.
        speed: trace seconds per wall second.
        grain_s: target duration of an iteration, wall seconds.
        balance: `static` or `dynamic`, as in `Program`.
    """
    return Program.lasting(
        jobs.run_time[job] / speed,
        jobs.nodes[job],
        jobs.cores[job],
        rate,
        parallel_fraction=parallel_fraction(jobs, job),
        grain_s=grain_s,
        balance=balance,
    )


def parallel_fraction(jobs: Jobs, job: int) -> float:
    """Return the parallel fraction f in Amdahl's law that gives the speedup of `job` at its largest size."""
    speedup, nodes = jobs.speedup[job], jobs.high[job]
    if speedup is None or nodes == 1:
        return 1.0
    return min(1.0, max(0.0, (1.0 - 1.0 / speedup(nodes)) / (1.0 - 1.0 / nodes)))


def shortest_replay(
    workload: Workload, inventory: Inventory, speed: float, *, over_limit: OverLimit = OverLimit.EXTEND
) -> float:
    """Return a lower bound of the wall time of a replay of `workload`, in seconds.

    The bound is the maximum of the time from the first submission to the earliest possible end of the last job, and of
    the work of all jobs divided by the cores of the inventory. Jobs that require more nodes than the inventory has are
    ignored.
    """
    cores = [node.cores for node in inventory.nodes]
    jobs = Jobs.of(workload, cores_per_node=max(cores), over_limit=over_limit)
    killing = over_limit is OverLimit.KILL
    last, work = 0.0, 0.0
    for job, submit in enumerate(jobs.submit):
        if jobs.low[job] > len(cores):
            continue
        duration = min(jobs.run_time[job], jobs.limit[job]) if killing else jobs.run_time[job]
        most = min(jobs.high[job], len(cores))
        last = max(last, submit - jobs.submit[0] + duration / jobs.rate(job, most))
        program = Program.lasting(
            duration, jobs.nodes[job], jobs.cores[job], 1e6, parallel_fraction=parallel_fraction(jobs, job)
        )
        work += (program.serial_units + program.parallel_units) / 1e6
    return max(last, work / sum(cores)) / speed
