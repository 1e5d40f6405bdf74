"""From measured times to the sizes of a malleable job, by gain slope (S. Iserte et al., a malleable HPG-aligner)."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import NamedTuple

from tracebed.errors import InputError


class Sizes(NamedTuple):
    """The sizes of a malleable job, nodes."""

    least: int
    preferred: int
    most: int


def gain_slopes(times: Mapping[int, float]) -> dict[int, float]:
    """Return (t_(i-1) - t_i) / t_0 for each size but the smallest, of measured `times`, nodes -> s.

    Raises:
        InputError: there are no times, or a size is below 1 or a time not above 0.
    """
    if not times or min(times) < 1 or not all(0 < time < float("inf") for time in times.values()):
        raise InputError(f"measured times {dict(times)}", hint="give nodes -> seconds, all above 0")
    sizes = sorted(times)
    first = times[sizes[0]]
    return {large: (times[small] - times[large]) / first for small, large in pairwise(sizes)}


def sizes_by_gain_slope(times: Mapping[int, float], *, least: float = 0.75, preferred: float = 0.25) -> Sizes:
    """Return the sizes of a job from its measured times, nodes -> s.

    The least is the first size with a gain slope above `least`, the preferred one the last with a slope above
    `preferred`, the most the last with one above 0; where there is none, the smallest size measured, which for
    the preferred and the greatest size is raised to the least.
    """
    slopes = gain_slopes(times)
    smallest = min(times)
    low = next((size for size, slope in slopes.items() if slope > least), smallest)
    pref, high = (max([low, *(size for size, slope in slopes.items() if slope > bound)]) for bound in (preferred, 0.0))
    return Sizes(low, min(pref, high), high)
