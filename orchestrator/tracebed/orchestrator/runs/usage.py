"""The use of the machine by jobs: one definition for the metrics of a run and for the view of a replay."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tracebed.converters.workload import FloatArray
from tracebed.orchestrator.runs.steps import Steps


@dataclass(frozen=True)
class Window:
    """The time window of utilization, throughput and loss of capacity."""

    name: str
    start_s: float
    """Seconds after the first submission."""
    end_s: float

    @property
    def length_s(self) -> float:
        """Length, s; NaN for an empty window."""
        return self.end_s - self.start_s if self.end_s > self.start_s else float("nan")


def arrivals(submit: FloatArray, last_end: float, after: float = 0.0) -> Window:
    """Return the window from the first to the last submission, or the full span if all jobs were submitted at once.

    The drain after the last submission lowers the utilization by an arbitrary amount.

    Args:
        submit: submit times, s after the first submission; NaN: not submitted.
        last_end: last end of a finished job, s after the first submission; NaN: no job finished.
        after: length of the warm-up, s.
    """
    last = 0.0 if np.isnan(submit).all() else float(np.nanmax(submit))
    return Window("arrivals", after, last) if last > after else full(last_end, "full (all jobs were submitted at once)")


def full(last_end: float, name: str = "full") -> Window:
    """Return the window from the first submission to the last end of a finished job."""
    return Window(name, 0.0, 0.0 if np.isnan(last_end) else last_end)


def held_cores(starts: FloatArray, ends: FloatArray, cores: FloatArray) -> Steps:
    """Return the number of cores that jobs hold over time.

    Args:
        starts, ends: the times from which and until which a job holds cores.
        cores: the number of these cores.
    """
    first = np.flatnonzero(np.append(True, (starts[1:] != starts[:-1]) | (ends[1:] != ends[:-1]))[: len(starts)])
    sums = np.add.reduceat(cores, first) if len(cores) else cores  # most jobs hold several ranges of nodes at a time
    return Steps.count(starts[first], ends[first], sums.astype(np.float64))


def utilization(busy: Steps, window: Window, cores: int) -> float:
    """Return the share of the core seconds of a window that jobs hold; NaN: the window is empty.

    Args:
        busy: cores held by jobs, over s after the first submission.
        window: the window.
        cores: number of cores of the machine.
    """
    return busy.mean(window.start_s, window.end_s) / cores
