"""Step functions of time: busy cores, waiting jobs, waiting demand."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from tracebed.converters.workload import FloatArray
from tracebed.ground.table import IntArray


@dataclass(frozen=True)
class Steps:
    """A step function: `values[i]` from `times[i]` (s) until `times[i + 1]`, and 0 before the first and after the last.

    `times` are strictly ascending. The last value is 0, because all counted intervals have ended.
    """

    times: FloatArray
    values: FloatArray

    @classmethod
    def count(cls, starts: FloatArray, ends: FloatArray, weights: FloatArray | None = None) -> Steps:
        """Return the number, or the sum of the weights, of the intervals that contain each instant."""
        there = ends > starts
        weight = np.ones(there.sum()) if weights is None else weights[there].astype(np.float64)
        times = np.concatenate((starts[there], ends[there]))
        order = np.argsort(times, kind="stable")
        times = times[order]
        changes = np.concatenate((weight, -weight))
        del weight, there  # of tens of millions of intervals
        values = changes[order]
        del changes, order
        np.cumsum(values, out=values)
        last = np.append(times[1:] != times[:-1], True)[: len(times)]  # the last of several changes at one instant
        return cls(times[last], values[last])

    @classmethod
    def between(cls, instants: FloatArray, intervals: Iterable[tuple[IntArray, IntArray, FloatArray]]) -> Steps:
        """Return the same as `count`, of arrays of intervals whose starts and ends are rows of ascending instants.

        The weights are whole numbers, so that their sums are exact in any order.
        """
        values, touched = np.zeros(len(instants)), np.zeros(len(instants), dtype=bool)
        for since, until, weight in intervals:
            there = until > since
            for rows, sign in ((since[there], 1), (until[there], -1)):
                touched[rows] = True
                low = int(rows.min(initial=len(instants)))
                sums = np.bincount(rows - low, weight[there])
                values[low : low + len(sums)] += sign * sums
        np.cumsum(values, out=values)
        return cls(instants[touched], values[touched])

    def at(self, instants: FloatArray) -> FloatArray:
        """Return the value at each of `instants` (s), shape (instants,). At a step, the value after the step."""
        index = np.searchsorted(self.times, instants, side="right")
        return np.concatenate(([0.0], self.values))[index]

    def means(self, edges: FloatArray) -> FloatArray:
        """Return the exact time average in each bin between ascending `edges` (s), shape (edges - 1,)."""
        if not len(self.times):
            return np.zeros(len(edges) - 1)
        return np.diff(np.interp(edges, self.times, self._area)) / np.diff(edges)

    @cached_property
    def _area(self) -> FloatArray:
        """The integral from the first time to each of the times."""
        return np.concatenate(([0.0], np.cumsum(self.values[:-1] * np.diff(self.times))))

    def mean(self, start: float, end: float) -> float:
        """Return the time average from `start` to `end` (s), or NaN for an empty interval."""
        return float(self.means(np.array([start, end]))[0]) if end > start else float("nan")

    def quantiles(self, shares: Sequence[float], start: float, end: float) -> list[float]:
        """Return quantiles of the value over the time from `start` to `end` (s), or NaN for an empty interval."""
        if not end > start:
            return [float("nan")] * len(shares)
        edges = np.concatenate(([start], self.times[(self.times > start) & (self.times < end)], [end]))
        values = self.at(edges[:-1])
        order = np.argsort(values, kind="stable")
        passed = np.cumsum(np.diff(edges)[order]) / (end - start)
        last = len(order) - 1
        return [float(values[order][min(int(np.searchsorted(passed, share)), last)]) for share in shares]


@dataclass(frozen=True)
class Window:
    """The time window of utilization, throughput and loss of capacity."""

    name: str
    start_s: float  # seconds after the first submission
    end_s: float

    @property
    def length_s(self) -> float:
        """Length, s; NaN for an empty window."""
        return self.end_s - self.start_s if self.end_s > self.start_s else float("nan")


def arrivals(submit: FloatArray, last_end: float, after: float = 0.0) -> Window:
    """Return the window from the first to the last submission, or the full span if all jobs were submitted at once.

    The drain after the last submission lowers the utilization by an arbitrary amount. Times are s after the first
    submission, NaN if a job was not submitted or none finished; `after` is the length of the warm-up, s.
    """
    last = 0.0 if np.isnan(submit).all() else float(np.nanmax(submit))
    return Window("arrivals", after, last) if last > after else full(last_end, "full (all jobs were submitted at once)")


def full(last_end: float, name: str = "full") -> Window:
    """Return the window from the first submission to the last end of a finished job."""
    return Window(name, 0.0, 0.0 if np.isnan(last_end) else last_end)


def held_cores(starts: FloatArray, ends: FloatArray, cores: FloatArray) -> Steps:
    """Return the number of cores that jobs hold over time: each row holds `cores` from a start until an end."""
    return Steps.count(*held_together(starts, ends, cores))


def held_together(starts: Any, ends: Any, cores: FloatArray | IntArray) -> tuple[Any, Any, FloatArray]:
    """Return the rows of `held_cores` with successive ones of equal times as one."""
    first = np.flatnonzero(np.append(True, (starts[1:] != starts[:-1]) | (ends[1:] != ends[:-1]))[: len(starts)])
    sums = np.add.reduceat(cores, first) if len(cores) else cores  # most jobs hold several ranges of nodes at a time
    return starts[first], ends[first], sums.astype(np.float64)


def utilization(busy: Steps, window: Window, cores: int) -> float:
    """Return the share of the core seconds of a window that jobs hold; NaN: the window is empty."""
    return busy.mean(window.start_s, window.end_s) / cores
