"""Wall-clock times in the hour that occurs twice, when daylight saving time ends: which of the two hours it was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise, product

import numpy as np

from tracebed.converters.formats.tools.columns import Columns
from tracebed.converters.workload import BoolArray, FloatArray

WHICH_HOUR = "records with a time in the hour that occurs twice at the end of daylight saving time, taken as the second"
"""The defect of records for which the other times and the elapsed time do not tell which hour it was."""
ROUNDING_S = 1.5
"""Largest difference of `end - start` and the elapsed time that agree: each is a whole number of seconds."""


def in_order(
    c: Columns, names: Sequence[str], zone: str, elapsed: FloatArray | None = None
) -> tuple[dict[str, FloatArray], BoolArray]:
    """Return times in s since 1970 UTC, and the records that leave open which of two hours a time was in.

    The hours are chosen such that the times are in order and the last two are `elapsed` apart (more, if the job was
    suspended). Of hours that are equally likely, the second one counts, in standard time.

    Args:
        names: columns of times, in the order in which the events happen. The last two are the start and the end.
        elapsed: the time between start and end, s, shape (records,); NaN if unknown.
    """
    times = {name: c.instants(name, zone) for name in names}
    return times, settle(times, {name: c.instants(name, zone, first=True) for name in names}, elapsed)


def settle(
    times: Mapping[str, FloatArray], first: Mapping[str, FloatArray], elapsed: FloatArray | None = None
) -> BoolArray:
    """Choose the hours of `times` in place, as `in_order` does, and return the records that leave them open.

    Args:
        times: the times with the second of two hours, s, in the order in which the events happen.
        first: the times with the first of two hours.
        elapsed: as for `in_order`.
    """
    names = list(times)
    twice = np.logical_or.reduce([first[name] < times[name] for name in names])
    unclear = np.zeros(len(twice), dtype=bool)
    for row in np.flatnonzero(twice).tolist():
        hours = [(times[name][row], first[name][row]) for name in names]
        ways = list(product(*(pair if pair[1] < pair[0] else pair[:1] for pair in hours)))
        span = np.nan if elapsed is None else float(elapsed[row])
        scores = [_score(way, span) for way in ways]
        best = min(scores)
        unclear[row] = scores.count(best) > 1
        for name, time in zip(names, ways[scores.index(best)], strict=True):
            times[name][row] = time
    return unclear


def _score(times: Sequence[float], elapsed: float) -> tuple[int, int]:
    """Return how many times precede the one before, and how badly the elapsed time fits; low is likely."""
    known = [time for time in times if time == time]
    disorder = sum(later < earlier for earlier, later in pairwise(known))
    rest = times[-1] - times[-2] - elapsed
    return disorder, 0 if rest != rest or abs(rest) <= ROUNDING_S else 1 if rest > 0 else 2
