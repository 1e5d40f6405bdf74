"""The work rate of the cores of a node, measured by its agent."""

from __future__ import annotations

import os
from collections.abc import Sequence

from tracebed.benchmarks.kernels import Kernel, work_rates

CoreRates = list[list[tuple[float, float]]]
"""For each core and window: units per second of CPU time, and CPU time over wall time."""


def core_rates(cpus: Sequence[int], windows: int, seconds: float, kernel: Kernel) -> CoreRates:
    """Measure all of `cpus` at once, as a job uses them.

    Args:
        cpus: the CPUs, which this process may use.
        windows: number of windows of each CPU.
        seconds: duration of a window, s.
        kernel: the kernel, which the threads of this process share.

    Raises:
        OSError: this process may not use one of `cpus`.
    """
    from concurrent.futures import ThreadPoolExecutor  # most agents measure nothing, and must start fast

    def measure(cpu: int) -> list[tuple[float, float]]:
        os.sched_setaffinity(0, [cpu])
        return work_rates(windows, seconds, kernel)

    with ThreadPoolExecutor(len(cpus)) as pool:
        return list(pool.map(measure, cpus))
