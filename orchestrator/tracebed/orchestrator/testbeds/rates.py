"""The work rate of a testbed, by which replays size the work of jobs. The rate is measured once, then stored.

The rate of a core varies from second to second. If each replay measured the rate briefly, two replays would do
different work, and their results could not be compared. Therefore the first replay measures the rate for several
seconds, and later replays use the stored result.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np

from tracebed.ground import system
from tracebed.ground.cpus import format_cpus
from tracebed.ground.errors import InputError, TestbedError
from tracebed.orchestrator.testbeds.base import Testbed
from tracebed.orchestrator.testbeds.calibration import RateEstimate, StoredRate, load_rate, store_rate

WINDOWS = 25  # number of windows in which the rate of each core is measured
WINDOW_S = 0.2  # duration of a window, CPU s
PATIENCE = 20.0  # timeout of a measurement, as a multiple of its duration on idle CPUs


def rate_of(
    testbed: Testbed, work: str = "pils", *, windows: int | None = None, again: bool = False
) -> StoredRate | None:
    """Return the stored work rate of the computing nodes of a started testbed; measure the rate if none is stored.

    No job may be running. With `again`, the rate is measured even if one is stored, in `windows` windows (None:
    `WINDOWS`). The result is None if the nodes are emulated, or their agents cannot measure it.
    """
    computing = [index for index, node in enumerate(testbed.nodes) if not node.emulated]
    nodes = [index for index in computing if testbed.nodes[index].name not in testbed.out]
    if not nodes:
        return None
    machine = _machine(testbed, nodes) | {"work": work}
    if not again and (stored := load_rate(**machine)):
        return stored
    measured = measure(testbed, nodes, windows or WINDOWS, WINDOW_S, work=work)
    if measured is None:
        text = "the agents cannot measure the work rate, so replays do different amounts of work: give a calibration"
        warnings.warn(text, stacklevel=2)
        return None
    estimate = estimate_of(np.concatenate([np.ravel(node[..., 0]) for node in measured]), WINDOW_S)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    rate = StoredRate.model_validate({"created": now, "units_per_core_second": estimate, **machine})
    try:
        store_rate(rate)
    except InputError as error:
        warnings.warn(
            f"the work rate is not stored, so the next replay does a different amount of work: {error}", stacklevel=2
        )
    return rate


def measure(
    testbed: Testbed,
    nodes: Sequence[int],
    windows: int,
    seconds: float,
    *,
    cores: int | None = None,
    work: str = "pils",
    beside: str | None = None,
) -> list[np.ndarray[Any, Any]] | None:
    """Measure the rate of `cores` cores (None: all) of computing `nodes`, all at once. No job may be running.

    Each core has `windows` windows of `seconds` of CPU time. The other cores of a node are idle, or run the kernel
    `beside`. For each node, the result is units per second of CPU time, and CPU time over wall time, shape (cores,
    windows, 2); None: an agent cannot measure the rate.
    """
    request = {"type": "measure", "windows": windows, "seconds": seconds, "cores": cores, "kernel": work}
    if beside is not None:
        request["beside"] = beside
    for node in nodes:
        testbed.send(node, request)
    rates: dict[int, np.ndarray[Any, Any]] = {}
    until = system.monotonic() + PATIENCE * (windows + 2) * max(seconds, WINDOW_S)
    while len(rates) < len(nodes):
        if system.monotonic() >= until:
            raise TestbedError("the measurement of the work rate takes too long", hint="end other processes")
        for event in testbed.receive(until):
            message, name = event.message, testbed.nodes[event.node].name
            if message["type"] == "measured":
                rates[event.node] = np.array(message["rates"])
            elif message["type"] == "lost":
                raise TestbedError(f"its agent {message['reason']}", where=f"node {name}")
            elif message["type"] == "error":
                return None
    return [rates[node] for node in nodes]


def estimate_of(rates: np.ndarray[Any, Any], window_s: float) -> RateEstimate:
    """Return the estimate of the rate from the rates of windows, shape (windows,)."""
    low, high = median_interval(rates)
    p05, p95 = np.quantile(rates, (0.05, 0.95))
    figures = {"median": np.median(rates), "low": low, "high": high, "p05": p05, "p95": p95}
    rounded = {name: float(f"{figure:.6g}") for name, figure in figures.items()}
    return RateEstimate(**rounded, windows=len(rates), window_s=window_s)


def median_interval(samples: np.ndarray[Any, Any], confidence: float = 0.95) -> tuple[float, float]:
    """Return the confidence interval of the median from order statistics, for any distribution.

    The number of samples below the median is binomial with p = 1/2 (Hollander and Wolfe 1999, section 3.6). With few
    samples the interval ranges from the smallest to the largest sample, and its confidence is lower.
    """
    from scipy import stats  # slow to import, and most replays use a stored rate

    ordered, count = np.sort(samples), len(samples)
    rank = max(0, int(stats.binom.ppf((1 - confidence) / 2, count, 0.5)) - 1)
    return float(ordered[rank]), float(ordered[count - 1 - rank])


def _machine(testbed: Testbed, nodes: Sequence[int]) -> dict[str, str]:
    """Return the identity of the computing nodes: host, CPU model, kernel and CPUs."""
    hosts = testbed.hosts
    facts = {name: "+".join(sorted({str(host.get(key, "unknown")) for host in hosts})) for name, key in _FACTS.items()}
    cpus = [testbed.nodes[node].cpus or () for node in nodes]
    if len(hosts) == 1:
        return facts | {"cpus": format_cpus({cpu for mask in cpus for cpu in mask})}
    names = [testbed.nodes[node].name for node in nodes]
    return facts | {"cpus": " ".join(f"{name}:{format_cpus(mask)}" for name, mask in zip(names, cpus, strict=True))}


_FACTS = {"host": "name", "cpu": "cpu", "kernel": "kernel_of_jobs"}
