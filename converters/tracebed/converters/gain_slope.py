"""The sizes of a malleable job from measured run times, by gain slope (S. Iserte et al., a malleable HPG-aligner)."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import NamedTuple

from tracebed.ground.errors import InputError


class Sizes(NamedTuple):
    """The sizes of a malleable job, nodes."""

    least: int
    preferred: int
    most: int


def gain_slopes(times: Mapping[int, float]) -> dict[int, float]:
    """Return the gain slope (t_(i-1) - t_i) / t_0 of each size except the smallest.

    Args:
        times: measured run times, nodes -> s.

    Raises:
        InputError: there are no times, a size is below 1, or a time is not positive.
    """
    if not times or min(times) < 1 or not all(0 < time < float("inf") for time in times.values()):
        raise InputError(f"measured times {dict(times)} are invalid", hint="give nodes -> seconds, all above 0")
    sizes = sorted(times)
    first = times[sizes[0]]
    return {large: (times[small] - times[large]) / first for small, large in pairwise(sizes)}


def sizes_by_gain_slope(times: Mapping[int, float], *, least: float = 0.75, preferred: float = 0.25) -> Sizes:
    """Return the sizes of a job from its measured run times, nodes -> s.

    The least size is the first with a gain slope above `least`. The preferred size is the last with a gain slope above
    `preferred`. The largest size is the last with a gain slope above 0. A size without such a slope is the smallest
    measured size; the preferred and the largest size are at least the least size.
    """
    slopes = gain_slopes(times)
    smallest = min(times)
    low = next((size for size, slope in slopes.items() if slope > least), smallest)
    pref, high = (max([low, *(size for size, slope in slopes.items() if slope > bound)]) for bound in (preferred, 0.0))
    return Sizes(low, min(pref, high), high)
