"""The work of a job in a replay: the program that its ranks execute."""

from __future__ import annotations

from tracebed.benchmarks.program import Program
from tracebed.orchestrator.scheduling.jobs import Jobs
from tracebed.orchestrator.testbeds.base import EMULATED_RATE, Testbed


def program_of(
    jobs: Jobs, job: int, testbed: Testbed, *, emulated: bool, speed: float, grain_s: float, balance: str
) -> Program:
    """Return the program that takes the run time of `job`, on the requested nodes, at the speed of the replay.

    Args:
        jobs: the workload.
        job: index into `jobs`.
        testbed: the nodes, with their measured rate.
        emulated: whether the job sleeps instead of computing.
        speed: trace seconds per wall second.
        grain_s: target length of an iteration, wall seconds.
        balance: `static` or `dynamic`, as in `Program`.
    """
    return Program.lasting(
        jobs.run_time[job] / speed,
        jobs.nodes[job],
        jobs.cores[job],
        EMULATED_RATE if emulated else testbed.units_per_core_second,
        parallel_fraction=parallel_fraction(jobs, job),
        grain_s=grain_s,
        balance=balance,
        emulated=emulated,
    )


def parallel_fraction(jobs: Jobs, job: int) -> float:
    """Return the parallel fraction f of Amdahl's law for `job`: its own f, or the f that gives the same speedup
    at the largest size of the job."""
    speedup, nodes = jobs.speedup[job], jobs.high[job]
    if speedup is None or nodes == 1:
        return 1.0
    return min(1.0, max(0.0, (1.0 - 1.0 / speedup(nodes)) / (1.0 - 1.0 / nodes)))
