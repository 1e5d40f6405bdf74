"""The work rate of the cores of a node, measured by its agent."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence

from tracebed.benchmarks.kernels import Kernel, work_rates
from tracebed.ground import system as world

CoreRates = list[list[tuple[float, float]]]
"""For each core and window: units per second of CPU time, and CPU time over wall time."""
CHUNK_S = 0.002
"""Duration of a call of the kernel on the other cores, s. They end with the measurement."""


def core_rates(
    cpus: Sequence[int],
    windows: int,
    seconds: float,
    kernel: Kernel,
    *,
    others: Sequence[int] = (),
    beside: Kernel | None = None,
) -> CoreRates:
    """Measure all of `cpus` at once, as a job uses them.

    Args:
        cpus: the CPUs, which this process may use.
        windows: number of windows of each CPU.
        seconds: duration of a window, s.
        kernel: the kernel, which the threads of this process share.
        others: further CPUs, which run the kernel `beside` during the measurement.
        beside: the kernel of `others`; None: `others` are idle.

    Raises:
        OSError: this process may not use one of `cpus` or `others`.
    """
    from concurrent.futures import ThreadPoolExecutor  # most agents measure nothing, and must start fast

    finished = threading.Event()

    def measure(cpu: int) -> list[tuple[float, float]]:
        os.sched_setaffinity(0, [cpu])
        return work_rates(windows, seconds, kernel)

    def disturb(cpu: int, neighbor: Kernel) -> None:
        os.sched_setaffinity(0, [cpu])
        first, count = 0, 1
        while not finished.is_set():
            begun = world.monotonic()
            neighbor(first, count)
            first += count
            if world.monotonic() - begun < CHUNK_S / 2:
                count *= 2

    with ThreadPoolExecutor(len(cpus) + len(others)) as pool:
        disturbing = [pool.submit(disturb, cpu, beside) for cpu in others] if beside else []
        try:
            rates = list(pool.map(measure, cpus))
        finally:
            finished.set()
        for neighbor in disturbing:
            neighbor.result()
    return rates
