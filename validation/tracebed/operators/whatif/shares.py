"""Ratios of waits on a logarithmic scale, on which a rise and its reverse have one size, and shares in percent.

A wait that is predicted too short is off by 100 % at most, one that is predicted too long by any percentage. So an
error e is the mean of |ln(predicted / logged)|: a factor exp(e), from exp(-e) - 1 to exp(e) - 1 of the logged wait.
"""

from __future__ import annotations

import math

import numpy as np

from tracebed.converters.workload import FloatArray
from tracebed.ground.display import LEAST_PERCENT

LARGEST = 10.0
"""Largest factor that is printed: larger ones say that a wait near 0 was predicted to be long, or a long one near 0."""


def log_error(predicted: FloatArray, logged: float) -> float:
    """Return the mean of |ln(predicted / logged)|; infinity if a wait is predicted to be 0, NaN if none was logged."""
    if not logged:
        return math.nan
    with np.errstate(divide="ignore"):
        return float(np.abs(np.log(predicted / logged)).mean())


def size(share: float) -> float:
    """Return the size of a change by a share, -0.5 or 1.0, on the same scale: |ln(1 + share)|."""
    return math.inf if share <= -1 else abs(math.log1p(share))


def spread(error: float) -> str:
    """Return an error in percent in both directions, `-15 to +18 %`; a dash if it is unknown."""
    if math.isnan(error):
        return "-"
    if error > math.log(LARGEST):
        return f"above a factor of {LARGEST:.0f}"
    up, down = percent(math.expm1(error)), percent(math.expm1(-error))
    return "0 %" if up == down else f"{down} to +{up} %"


def percent(share: float) -> str:
    """Return a share in percent with two digits: `18`, `0.4`, `-3`, `1,200`."""
    percent = 100 * share
    if math.isnan(percent):
        return "-"
    if abs(percent) < LEAST_PERCENT:
        return "0"
    return f"{percent:,.0f}" if abs(percent) >= 9.95 else f"{percent:.2g}"
