"""The work rate of the cores of a node, measured by its agent."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence

from tracebed.benchmarks.kernels import work_rates

CoreRates = list[list[tuple[float, float]]]
"""For each core and window: units per second of CPU time, and CPU time over wall time."""


def core_rates(cpus: Sequence[int], windows: int, seconds: float) -> CoreRates:
    """Measure all of `cpus` at once, as a job uses them.

    Args:
        cpus: the CPUs, which this process may use.
        windows: number of windows of each CPU.
        seconds: duration of a window, s.
    """
    rates: CoreRates = [[] for _ in cpus]

    def measure(core: int) -> None:
        os.sched_setaffinity(0, cpus[core : core + 1])
        rates[core] = work_rates(windows, seconds)

    threads = [threading.Thread(target=measure, args=(core,), daemon=True) for core in range(len(cpus))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return rates
