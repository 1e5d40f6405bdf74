"""Step functions of time: busy cores, waiting jobs, waiting demand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tracebed.converters.workload import FloatArray


@dataclass(frozen=True)
class Steps:
    """A step function: `values[i]` from `times[i]` (s) until `times[i + 1]`, and 0 before the first and after the last.

    `times` are strictly ascending. The last value is 0, because all counted intervals have ended.
    """

    times: FloatArray
    values: FloatArray

    @classmethod
    def count(cls, starts: FloatArray, ends: FloatArray, weights: FloatArray | None = None) -> Steps:
        """Return the number, or the sum of the weights, of the intervals that contain each instant.

        Args:
            starts, ends: shape (intervals,), s. An interval that does not end after its start is not counted.
            weights: shape (intervals,); 1 by default.
        """
        there = ends > starts
        weight = np.ones(there.sum()) if weights is None else weights[there].astype(np.float64)
        times = np.concatenate((starts[there], ends[there]))
        order = np.argsort(times, kind="stable")
        times = times[order]
        values = np.cumsum(np.concatenate((weight, -weight))[order])
        last = np.append(times[1:] != times[:-1], True)[: len(times)]  # the last of several changes at one instant
        return cls(times[last], values[last])

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
