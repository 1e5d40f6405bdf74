"""User estimates of run times: D. Tsafrir, Y. Etsion and D. Feitelson, "Modeling user runtime estimates",
JSSPP 2005.

Users choose few, round estimates. The twenty most popular estimates, the head, cover 89 % of the jobs; the other
estimates are the tail. The model first draws a histogram of estimates and then assigns each estimate to a job that is
not longer.

Not implemented: estimates and shares prescribed by a site, other than the share of the largest estimate.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import asdict, dataclass, replace
from typing import NamedTuple

import numpy as np

from tracebed.converters.models import require
from tracebed.converters.workload import FloatArray, IntArray, Step, Workload
from tracebed.ground.errors import InputError

MINUTE, HOUR, DAY = 60, 3600, 86_400
HEAD, HEAD_SHARE, TAIL_SHARE = 20, 89.0, 11.0
"""Number of estimates in the head, and percentages of the jobs that head and tail cover."""
FEWEST_JOBS = 200
"""Fewest jobs of a histogram. Fewer jobs do not have twenty distinct estimates."""
BINS_BY_JOBS = ((0, 20, 200, 1000, 10_000, 70_000, 250_000), (0, 10, 20, 35, 90, 340, 565))
ROUND = (*(m * MINUTE for m in (5, 10, 15, 20, 30)), *(h * HOUR for h in (1, 2, 3, 4, 5, 6, 8, 10, 12, 18)))
UNITS = (*(h * HOUR for h in (200, 100, 50, 10, 5, 2, 1)), *(m * MINUTE for m in (20, 10, 5, 2, 1)))
"""Units (s), in this order, whose multiples fill the head if fewer than twenty estimates of `ROUND` are possible. The
last two are not published; largest estimates below 100 minutes need them to reach twenty estimates."""
POPULARITY = (
    *((3, 1, 1, 1), (1, 3, 4, 6), (4, 4, 10, 5), (17, 2, 14, 3), (13, 12, 20, 7), (7, 9, 2, 2), (8, 8, 3, 18)),
    *((18, 18, 7, 19), (2, 6, 12, 4), (6, 7, 6, 11), (16, 11, 19, 20), (10, 20, 5, 9), (5, 16, 18, 10)),
    *((15, 5, 16, 14), (14, 14, 9, 13), (19, 13, 17, 16), (11, 10, 15, 15), (12, 15, 13, 17), (9, 17, 8, 8)),
    (20, 19, 11, 12),
)
"""Popularity ranks of the head's estimates at SDSC-106, CTC, KTH4H and BLUE: the largest, then ascending."""


@dataclass(frozen=True)
class Tsafrir05Parameters:
    """Estimates of a site."""

    longest: float = 0.0
    """Largest estimate, s, at least 3600. 0: the longest run time, rounded up to full hours, or to full days if it is
    above a day."""
    longest_share: float = 0.0
    """Percentage of the jobs with the largest estimate. 0: the published 21.7."""

    def __post_init__(self) -> None:
        longest, share = self.longest, self.longest_share
        require(longest == 0.0 or HOUR <= longest <= 1e9, f"longest {longest}", "3600 s to 10^9 s, or 0")
        require(0.0 <= share < HEAD_SHARE, f"longest_share {share}", "a percentage below 89, or 0")


class Histogram(NamedTuple):
    """Estimates in ascending order (s), and the number of jobs with each."""

    seconds: IntArray
    jobs: IntArray


def with_estimates(workload: Workload, seed: int = 0, parameters: Tsafrir05Parameters | None = None) -> Workload:
    """Replace the time limit of each job of known run time by a user estimate.

    The draws are independent of those of a model with the same seed. Raises InputError if no run time is known, or as
    `estimates`.
    """
    run = workload.floats("run_time")
    known = np.isfinite(run)
    if not known.any():
        raise InputError("no job has a run time")
    p = parameters or Tsafrir05Parameters()
    p = replace(p, longest=p.longest or longest_of(run[known]))
    limit = workload.floats("time_limit").copy()
    counts = {"jobs with an estimate": int(known.sum()), "limits replaced": int(np.isfinite(limit[known]).sum())}
    limit[known] = estimates(run[known], np.random.default_rng([*b"tsafrir05", seed]), p)
    step = Step("tsafrir05", asdict(p), counts, seed)
    return workload.with_step(step, workload.table.assign(time_limit=limit))


def longest_of(run_times: FloatArray) -> float:
    """Return the default largest estimate for these run times, in whole hours, or above one day in whole days (s)."""
    longest = max(float(run_times.max()), 1.0)
    unit = HOUR if longest <= DAY else DAY
    return float(math.ceil(longest / unit) * unit)


def estimates(
    run_times: FloatArray, rng: np.random.Generator, parameters: Tsafrir05Parameters | None = None
) -> FloatArray:
    """Draw an estimate for each job, at least its run time (s), shape (jobs,).

    Fewer than 200 jobs get evenly spaced quantiles of the estimates of 200 jobs; the authors' program requires more
    jobs. Raises InputError if for some n, more than n jobs need one of the n largest estimates.
    """
    p = parameters or Tsafrir05Parameters()
    jobs = len(run_times)
    made = histogram(max(jobs, FEWEST_JOBS), p.longest or longest_of(run_times), rng, p.longest_share)
    descending = np.repeat(made.seconds, made.jobs)[::-1]
    return assign(run_times, descending[np.arange(jobs) * len(descending) // jobs], rng)


def assign(run_times: FloatArray, descending: IntArray, rng: np.random.Generator) -> FloatArray:
    """Return a random permutation of the estimates `descending` in which each is at least the job's run time.

    From the longest job to the shortest, each job gets one of the remaining estimates that are long enough, all equally
    likely.
    """
    order = np.argsort(-run_times, kind="stable")
    run = run_times[order]
    if (run > descending).any():
        job = int(np.argmax(run > descending))
        raise InputError(
            f"{job + 1:,} jobs run {run[job]:,.0f} s or longer, but only {job:,} estimates are that long",
            hint=f"increase longest (0 sets it to {longest_of(run_times):,.0f} s) or longest_share",
        )
    enough = np.searchsorted(-descending, -run, side="right")  # number of estimates that are long enough
    first = np.arange(len(run))
    chosen = (first + rng.random(len(run)) * (enough - first)).astype(np.int64)
    left = descending.tolist()
    for j, k in enumerate(chosen.tolist()):
        left[j], left[k] = left[k], left[j]
    result = np.empty(len(run))
    result[order] = left
    return result


# -- the histogram


def histogram(jobs: int, longest: float, rng: np.random.Generator, longest_share: float = 0.0) -> Histogram:
    """Draw the histogram of the estimates of at least 200 jobs. No estimate is above `longest` (s)."""
    bins = math.floor(float(np.interp(jobs, *BINS_BY_JOBS)) + 0.5)
    head = head_seconds(longest)
    tail = tail_seconds(bins, longest, set(head))
    head_share = head_shares(longest_share)[popularity(rng) - 1]
    tail_share = 795.6 * (HEAD + 1.0 + np.arange(len(tail))) ** -2.267
    if len(tail):
        tail_share *= TAIL_SHARE / tail_share.sum()
    seconds = np.array([*head, *tail], dtype=np.int64)
    shares = np.concatenate([head_share, rng.permutation(tail_share)])
    counts = repaired(np.maximum(1, np.floor(shares * jobs / 100.0 + 0.5)).astype(np.int64), jobs)
    order = np.argsort(seconds)
    return Histogram(seconds[order], counts[order])


def head_seconds(longest: float) -> list[int]:
    """Return the twenty popular estimates (s): the largest, then ascending."""
    popular = [second for second in ROUND if second < longest]
    for unit in UNITS:
        multiples = range(math.floor(longest / unit) * unit, 0, -unit)
        fresh = [second for second in multiples if second < longest and second not in popular]
        popular += fresh[: HEAD - 1 - len(popular)]
    return [int(longest), *sorted(popular)]


def head_shares(longest_share: float = 0.0) -> FloatArray:
    """Return the percentage of the jobs for each popular estimate, from the most popular down."""
    shares = 14.0491 * np.exp(-0.177531 * np.arange(1.0, HEAD + 1)) + 0.462513
    rest = shares[1:].sum()
    shares[0] = longest_share or HEAD_SHARE - rest
    shares[1:] *= (HEAD_SHARE - shares[0]) / rest
    return shares


def popularity(rng: np.random.Generator) -> IntArray:
    """Draw the popularity rank (1: most popular) of each estimate of the head: the largest, then ascending.

    The candidates for an estimate are the free ranks that this or a previous estimate has at one of the four sites. Of
    two ranks drawn, the estimate gets the more popular. A rank without a later candidate is assigned at once.
    """
    last = {rank: row for row, ranks in enumerate(POPULARITY) for rank in ranks}
    taken, pool = [1], Counter(rank for rank in POPULARITY[0] if rank != 1)
    for row, ranks in enumerate(POPULARITY[1:], 1):
        pool.update(rank for rank in ranks if rank not in taken)
        due = [rank for rank, final in last.items() if final <= row and rank not in taken]
        rank = min(due) if due else int(rng.choice(sorted(pool.elements()), 2).min())
        taken.append(rank)
        del pool[rank]
    return np.array(taken)


def tail_seconds(bins: int, longest: float, head: set[int]) -> list[int]:
    """Return the estimates of the tail (s): whole minutes, shifted by up to 30 s if the minute is taken."""
    a, count = 1.0 + 12.1039 * bins**-0.6026, bins - HEAD
    tail: list[int] = []
    taken = set(head)
    for i in range(1, count + 1):
        x = i / count
        minute = math.floor((a - 1.0) * x / (a - x) * longest / MINUTE + 0.5) * MINUTE
        near = (minute + aside for aside in (0, 30, -30, 20, -20, 10, -10))
        second = next((second for second in near if 0 < second < longest and second not in taken), None)
        if second is not None:
            tail.append(second)
            taken.add(second)
    return tail


def repaired(counts: IntArray, jobs: int) -> IntArray:
    """Return counts that sum to `jobs`, changed in proportion from the largest down, each at least 1."""
    counts = counts.copy()
    order = np.argsort(-counts, kind="stable")
    while surplus := int(counts.sum()) - jobs:
        change = np.ceil(abs(surplus) * counts[order] / counts.sum()).astype(np.int64)
        if surplus > 0:
            change = np.minimum(change, counts[order] - 1)
        done = np.minimum(np.cumsum(change), abs(surplus))
        counts[order] -= np.sign(surplus) * np.diff(done, prepend=0)
    return counts
