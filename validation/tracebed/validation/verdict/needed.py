"""The smallest margin with which a prediction is accurate.

The margin of a case is max(share * |real value|, amount). If a wider share widens the margins of some cases only, the
errors of the others keep their weight in the mean, so that no factor on the margins gives the answer. The margin is
found by judging the prediction again with other margins.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from tracebed.converters.workload import BoolArray, FloatArray
from tracebed.validation.verdict.decision import ROUNDING, Samples, estimate

WIDEST = 1e6
"""Largest margin that is tried, as a share of the real value."""
STEPS = 300
"""Number of margins between `ROUNDING` and `WIDEST` that are tried before the bisection."""
DIGITS = 3
"""Significant digits of a margin as text."""


@dataclass(frozen=True)
class Needed:
    """The smallest margins with which a metric is accurate: with these and with all wider ones. NaN: no such margin."""

    relative: float = math.nan
    """Smallest share of the real value, with the absolute amount of the margin as it is; 0 if the amount suffices."""
    alone: float = math.nan
    """Smallest share of the real value without an absolute amount."""
    absolute: float = math.nan
    """Smallest absolute amount without a share, unit of the metric."""


def needed(samples: Samples, amount: float, compression: FloatArray, alpha: float, kappa: float) -> Needed:
    """Return the smallest margins with which a metric is accurate.

    Args:
        samples: the values of both sides, shape (cases,).
        amount: absolute amount of the margin, unit of the metric.
        compression: factor on the amount in each case, shape (cases,).
        alpha, kappa: constants of the decision.
    """
    real = np.abs(samples.real)
    size = max(float(np.max(real)), float(np.max(np.abs(samples.predicted))))

    def accurate(values: FloatArray) -> BoolArray:
        """Return whether the metric is accurate with the values of the three searches, shape (3, trials)."""
        alone, share, amounts = values[..., None]
        margins = np.stack((alone * real, np.maximum(share * real, amount * compression), amounts * compression))
        return estimate(replace(samples, margin=margins), alpha, kappa).accurate

    alone, relative, absolute = _smallest(accurate, np.array([1.0, 1.0, size or 1.0])).tolist()
    return Needed(relative=relative, alone=alone, absolute=absolute)


def rounded_up(value: float) -> float:
    """Return a positive margin with `DIGITS` significant digits that is not smaller."""
    if value <= 0:
        return 0.0
    digits = DIGITS - 1 - math.floor(math.log10(value))
    text = f"{value:.{DIGITS}g}"
    return float(text) if float(text) >= value else round(float(text) + 10.0**-digits, max(digits, 0) + 1)


def margin_text(value: float, unit: str) -> str:
    """Return a margin as text, rounded up; a dash if unknown."""
    return f"{rounded_up(value):.12g}{unit}" if math.isfinite(value) else "-"


def _smallest(passes: Callable[[FloatArray], BoolArray], units: FloatArray) -> FloatArray:
    """Return the smallest values that pass, such that all larger ones pass; 0: all pass; NaN: the largest one fails.

    The searches run side by side: the arrays of one search are so small that most of its time are calls of NumPy.

    Args:
        passes: whether each of several values passes, shape (searches, trials).
        units: scale of the values of each search, shape (searches,).
    """
    grid = units[:, None] * np.geomspace(ROUNDING, WIDEST, STEPS)
    failing = [np.flatnonzero(row) for row in ~passes(grid)]
    last = np.array([row[-1] if len(row) else -1 for row in failing])
    found = np.where(last < 0, 0.0, np.nan)
    searched = (last >= 0) & (last < STEPS - 1)
    below = np.where(searched, last, 0)  # the other searches go on without effect
    rows = np.arange(len(units))
    low, high = grid[rows, below], grid[rows, below + 1]
    while (going := searched & (high - low > 1e-12 * high)).any():
        values = np.linspace(low, high, 33, axis=-1)
        failed = ~passes(values[:, :-1])
        for row in np.flatnonzero(going).tolist():
            beyond = int(np.flatnonzero(failed[row])[-1])
            low[row], high[row] = values[row, beyond], values[row, beyond + 1]
    return np.where(searched, high, found)
