"""Instants at multiples of an interval."""

from __future__ import annotations

import math

COUNTABLE = 2.0**53
"""Largest number of steps that a float represents exactly. Above it, every instant counts as a multiple."""


def next_multiple(step: float, at: float, *, origin: float = 0.0, first: int | None = None) -> float:
    """Return the smallest `origin + k * step` >= `at`, with a whole number k >= `first`."""
    if (at - origin) / step >= COUNTABLE:
        return at
    k = math.ceil((at - origin) / step) - 1  # one less, in case the division was rounded up
    k = k if first is None else max(first, k)
    while origin + k * step < at:
        k += 1
    return origin + k * step
