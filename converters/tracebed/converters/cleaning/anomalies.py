"""Cleaning steps that flag unusual activity: maintenance, bursts, test storms, flurries."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from tracebed.converters.cleaning.effect import HOUR, Effect, Records, flagged
from tracebed.converters.workload import FloatArray, IntArray
from tracebed.ground.errors import InputError

DAY = 86_400.0


def flag_gaps(records: Records, longer: float = 2 * HOUR, drop: bool = False) -> Effect:
    """Flag jobs that waited through a gap: at least `longer` s in which no job ran, as in maintenance.

    The gap, not the scheduler, caused the wait of these jobs. If the log has no start times, a gap is a period
    without submissions, and no job is flagged.
    """
    submit, start, end = (records.floats(name) for name in ("submit_time", "logged_start", "logged_end"))
    ran = np.isfinite(start) & np.isfinite(end)
    order = np.argsort(start[ran], kind="stable")
    begins, busy_until = start[ran][order], np.maximum.accumulate(end[ran][order]) if ran.any() else end[ran]
    if not ran.any():
        begins = busy_until = submit
    idle = begins[1:] - busy_until[:-1]
    gaps = np.flatnonzero(idle >= longer)
    low, high = busy_until[gaps], begins[gaps + 1]
    which = np.searchsorted(high, submit, side="left")  # the first gap that ends at or after the submission
    hit = (which < len(gaps)) & ran if len(gaps) else np.zeros(len(records), bool)
    if len(gaps):
        hit &= start >= high[np.minimum(which, len(gaps) - 1)]
    found = [f"no job ran for {(b - a) / HOUR:.1f} h from {a:,.0f} s" for a, b in zip(low, high, strict=True)]
    return flagged(records, hit, "gap", drop, "waited while no job ran", found)


def flag_bursts(records: Records, jobs: int = 100, within: float = 60.0, drop: bool = False) -> Effect:
    """Flag bursts: `jobs` or more jobs submitted by one user within `within` s."""
    user, _ = records.codes("user")
    crowd = _largest_groups(user, records.floats("submit_time"), within)
    return flagged(records, crowd >= jobs, "burst", drop, _reason_of_group(crowd, within), ())


def flag_storms(
    records: Records, jobs: int = 100, within: float = HOUR, shorter: float = 60.0, drop: bool = False
) -> Effect:
    """Flag test storms: `jobs` or more jobs of one user and size within `within` s, each shorter than `shorter` s."""
    user, _ = records.codes("user")
    nodes = records.floats("nodes").astype(np.int64)
    short = records.floats("run_time") < shorter
    kind = np.unique(np.stack([user, nodes]), axis=1, return_inverse=True)[1].reshape(-1)
    crowd = np.zeros(len(records), np.int64)
    crowd[short] = _largest_groups(kind[short], records.floats("submit_time")[short], within)
    return flagged(records, crowd >= jobs, "storm", drop, _reason_of_group(crowd, within), ())


def flag_flurries(
    records: Records, times: float = 10.0, jobs: int = 1000, within: float = DAY, drop: bool = False
) -> Effect:
    """Flag flurries (Feitelson and Tsafrir 2006): jobs of one user that dominate the log for some time.

    The log is divided into intervals of `within` s. A user has a flurry in an interval with at least `jobs` jobs of
    that user, if these are also more than `times` the median number of jobs of all users per interval. The paper
    identifies flurries by eye; these thresholds are a choice of tracebed.
    """
    if within < 1.0:
        raise InputError(f"flag_flurries: within is {within:g} s, below 1 s", hint="use at least 1")
    user, names = records.codes("user")
    stretch = (records.floats("submit_time") // within).astype(np.int64)
    usual = _median_count(stretch)
    pairs, place, count = np.unique(np.stack([stretch, user]), axis=1, return_inverse=True, return_counts=True)
    many = (count >= jobs) & (count > times * usual)
    found = [
        f"{names[pairs[1, i]] or 'one user'}: {count[i]:,} jobs within {within:g} s from {pairs[0, i] * within:,.0f} s"
        for i in np.flatnonzero(many)
    ]
    return flagged(records, many[place.reshape(-1)], "flurry", drop, "jobs of one user dominate the log", found)


def _median_count(places: IntArray) -> float:
    """Return the median number of occurrences in `places` of each number from its minimum to its maximum."""
    counts = np.sort(np.unique(places, return_counts=True)[1])
    absent = int(places.max() - places.min()) + 1 - len(counts)
    middle = [(absent + len(counts) - 1) // 2, (absent + len(counts)) // 2]
    return float(np.mean([counts[place - absent] if place >= absent else 0 for place in middle]))


def _largest_groups(groups: IntArray, times: FloatArray, within: float) -> IntArray:
    """Return for each job the largest number of jobs of its group in any interval of `within` s that contains it.

    It suffices to consider the intervals that begin at a job. The result for a job is the maximum count of the
    intervals that begin at this job or less than `within` s before it.
    """
    order = np.lexsort((times, groups))
    g, t = np.asarray(groups)[order], times[order]
    crowd = np.zeros(len(t), np.int64)
    edges = np.append(np.flatnonzero(np.diff(g, prepend=-2)), len(g))
    for low, high in pairwise(edges):
        own = t[low:high]
        last = np.searchsorted(own, own + within, side="right")
        first = np.searchsorted(own, own - within, side="left")
        crowd[low:high] = _highest(last - np.arange(len(own)), first)
    result = np.empty(len(t), np.int64)
    result[order] = crowd
    return result


def _highest(counts: IntArray, first: IntArray) -> IntArray:
    """Return max(counts[first[i]:i + 1]) for each i with a sparse table (range maximum query).

    `first` is in ascending order.
    """
    table = [counts]
    width = 1
    while 2 * width <= len(counts):
        previous = table[-1]
        table.append(np.maximum(previous[:-width], previous[width:]))
        width *= 2
    place = np.arange(len(counts))
    level = np.log2(place - first + 1).astype(np.int64)
    result = np.empty(len(counts), np.int64)
    for power in np.unique(level):
        at = level == power
        result[at] = np.maximum(table[power][first[at]], table[power][place[at] - 2**power + 1])
    return result


def _reason_of_group(crowd: IntArray, within: float) -> Any:
    return lambda rows: [f"{crowd[row]:,} jobs of one user within {within:g} s" for row in rows]
