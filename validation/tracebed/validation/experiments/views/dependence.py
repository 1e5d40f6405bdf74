"""Drift and correlation over the sequence of repetitions of a campaign.

Repetitions on a machine whose speed changes are not independent. Both statistics use the deviations of the repetitions
from the mean of their cell, in the order of execution. Under independence all orders of the values of a cell are
equally likely, so the distribution of the statistics follows from random permutations within each cell. Neither a
normal distribution nor equal variances of the cells are assumed.

In the slope, cells that vary more than the median cell are weighted by the inverse of their variance. Otherwise one
noisy cell would hide the drift of all others. For one cell of n repetitions the lag-1 correlation has the mean -1/n and
a standard deviation of about 1/sqrt(n) (Moran, Some theorems on time series II, Biometrika 1948).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tracebed.converters.workload import FloatArray

IntArray: TypeAlias = NDArray[np.intp]

PERMUTATIONS = 2000
LEVEL = 0.95
"""Probability of the interval in which the correlation of independent repetitions lies."""
_AT_ONCE = 2_000_000
"""Largest number of values that are permuted at once, which bounds the memory."""


@dataclass(frozen=True)
class Dependence:
    """Drift and lag-1 correlation of one metric."""

    runs: int
    """Number of repetitions used: those of cells with at least two different values."""
    drift_percent: float
    """Slope over the sequence, in percent of the mean of the cell per run."""
    drift_p: float
    """Probability of a slope of at least this size, in either direction, under independence."""
    correlation: float
    """Lag-1 correlation of the deviations, in standard deviations of their cell."""
    expected: float
    """Mean of the correlation under independence."""
    low: float
    """Lower end of the interval of the correlation under independence."""
    high: float
    """Upper end."""


def dependence(values: FloatArray, cells: Sequence[str], *, seed: int = 0) -> Dependence | None:
    """Return drift and lag-1 correlation, pooled over the cells.

    Args:
        values: shape (runs,), in the order of execution; NaN where a repetition has no value.
        cells: the cell of each run.
        seed: seed of the permutations.

    Returns:
        The statistics, or None if there are fewer than three runs in cells with different values.
    """
    names = np.asarray(cells)
    relative, standard, time, spread = (np.zeros(len(values)) for _ in range(4))
    groups: list[IntArray] = []
    for name in dict.fromkeys(cells):
        index = np.flatnonzero((names == name) & ~np.isnan(values))
        sample = values[index]
        if len(index) < 2 or np.ptp(sample) == 0 or sample.mean() == 0:
            continue
        deviation = sample - sample.mean()
        relative[index] = deviation / abs(sample.mean())
        spread[index] = relative[index].std()
        standard[index] = deviation / sample.std()
        time[index] = index - index.mean()
        groups.append(index)
    runs = sum(map(len, groups))
    if runs < 3:
        return None
    weight = np.maximum(spread, np.median([spread[index[0]] for index in groups])) ** -2
    slope, correlation = _slope(relative[None], time, weight)[0], _lag1(standard[None])[0]
    slopes, correlations = _permuted(relative, standard, time, weight, groups, seed)
    exceed = int((np.abs(slopes) >= abs(slope) * (1 - 1e-9)).sum())
    low, high = np.quantile(correlations, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Dependence(
        runs=runs,
        drift_percent=100 * float(slope),
        drift_p=(1 + exceed) / (1 + PERMUTATIONS),
        correlation=float(correlation),
        expected=float(correlations.mean()),
        low=float(low),
        high=float(high),
    )


def _slope(relative: FloatArray, time: FloatArray, weight: FloatArray) -> FloatArray:
    """Return the weighted least-squares slopes with a constant per cell; `relative` has shape (samples, runs)."""
    return np.asarray(relative @ (weight * time) / (weight * time @ time))


def _lag1(standard: FloatArray) -> FloatArray:
    """Return the lag-1 correlations; `standard` has shape (samples, runs). A run without a value is 0."""
    return np.asarray((standard[:, 1:] * standard[:, :-1]).sum(axis=1) / (standard**2).sum(axis=1))


def _permuted(
    relative: FloatArray,
    standard: FloatArray,
    time: FloatArray,
    weight: FloatArray,
    groups: Sequence[IntArray],
    seed: int,
) -> tuple[FloatArray, FloatArray]:
    """Return slopes and correlations, shape (PERMUTATIONS,), of permutations within the groups of positions."""
    rng = np.random.default_rng(seed)
    slopes, correlations = [], []
    left = PERMUTATIONS
    while left:
        count = min(left, max(1, _AT_ONCE // len(time)))
        left -= count
        order = np.tile(np.arange(len(time)), (count, 1))
        for index in groups:
            order[:, index] = rng.permuted(order[:, index], axis=1)
        slopes.append(_slope(relative[order], time, weight))
        correlations.append(_lag1(standard[order]))
    return np.concatenate(slopes), np.concatenate(correlations)
