"""Interference: the work rates of compute kernels beside each other on one node (calibrations, `interference`)."""

from __future__ import annotations

import numpy as np

from tracebed.benchmarks.kernels.units import KERNELS
from tracebed.orchestrator.calibrating.estimates import FloatArray
from tracebed.orchestrator.testbeds import rates
from tracebed.orchestrator.testbeds.base import Testbed
from tracebed.orchestrator.testbeds.calibration import OverheadEstimate

ROUNDS = 3
"""Number of rounds. Each round measures each kernel alone and beside each kernel, so that a drift of the machine
changes both."""
WINDOWS = 5
"""Number of windows of each core in a round."""
WINDOW_S = 0.1
"""Duration of a window, CPU s."""
Samples = dict[tuple[str, str], list[FloatArray]]
"""(kernel, kernel beside it) -> for each round, the factors of all windows, shape (nodes x cores x windows,)."""


def interference(testbed: Testbed) -> dict[str, dict[str, OverheadEstimate]]:
    """Measure how much the kernels slow each other down on one node.

    A factor is the rate of a kernel on half of the cores of a node while another kernel runs on the other half, divided
    by its rate while the other half is idle. Rates are units per CPU second, so time in which other processes have the
    core does not count. All nodes are measured at once, as they compute in a replay.

    Args:
        testbed: a started testbed of computing nodes with at least two cores each. No job may be running.

    Returns:
        kernel -> kernel beside it -> factor: the median of the windows with its interval. Empty: an agent cannot
        measure a kernel, for example because its node lacks the memory.

    Raises:
        TestbedError: an agent is lost, or the measurement takes too long.
    """
    samples = Samples()
    for _ in range(ROUNDS):
        for kernel in KERNELS:
            alone = _rates(testbed, kernel, None)
            for other in KERNELS:
                beside = _rates(testbed, kernel, other)
                if alone is None or beside is None:
                    return {}
                samples.setdefault((kernel, other), []).append(_factors(alone, beside))
    return {kernel: {other: _estimate(samples[kernel, other]) for other in KERNELS} for kernel in KERNELS}


def _rates(testbed: Testbed, kernel: str, beside: str | None) -> list[FloatArray] | None:
    """Return the rates of half of the cores, for each node units per CPU second, shape (cores, windows)."""
    half = min(node.cores for node in testbed.nodes) // 2
    nodes = range(len(testbed.nodes))
    measured = rates.measure(testbed, nodes, WINDOWS, WINDOW_S, cores=half, work=kernel, beside=beside)
    return measured and [node[..., 0] for node in measured]


def _factors(alone: list[FloatArray], beside: list[FloatArray]) -> FloatArray:
    """Return the rates `beside` relative to the median of `alone` of the same core, shape (samples,)."""
    return np.concatenate(
        [np.ravel(two / np.median(one, axis=1, keepdims=True)) for one, two in zip(alone, beside, strict=True)]
    )


def _estimate(rounds: list[FloatArray]) -> OverheadEstimate:
    factors = np.concatenate(rounds)
    value, (low, high) = float(np.median(factors)), rates.median_interval(factors)
    figures = {"value": value, "median": value, "low": low, "high": high}
    return OverheadEstimate(
        **{name: float(f"{figure:.5g}") for name, figure in figures.items()},
        count=len(factors),
        repetitions=[float(f"{np.median(one):.5g}") for one in rounds],
    )
