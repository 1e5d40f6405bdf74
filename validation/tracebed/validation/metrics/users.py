"""Fairness between users: the mean bounded slowdowns of users and accounts, Jain's index, and the spread."""

from __future__ import annotations

import numpy as np

from tracebed.converters.workload import FloatArray
from tracebed.validation.metrics.classes import names_of
from tracebed.validation.metrics.measured import MeasuredRun, Undefined
from tracebed.validation.metrics.metric import Metric
from tracebed.validation.statistics import mean, percentiles


def slowdowns_by(run: MeasuredRun, by: str) -> FloatArray:
    """Return the mean bounded slowdown over the finished jobs of each user (or `account`), without the unknown one.

    Raises:
        Undefined: the users of all jobs are unknown, or no job of a known user ended.
    """
    codes, names = run.shared(f"names by {by}", lambda: names_of(run.run, by))
    codes = codes[run.rows][run.jobs["finished"]]
    counts = np.bincount(codes, minlength=len(names))
    totals = np.bincount(codes, weights=run.finished["bounded_slowdown"], minlength=len(names))
    judged = (counts > 0) & (np.array(names) != "")
    if not judged.any():
        raise Undefined(f"no job of a known {by} ended")
    means: FloatArray = totals[judged] / counts[judged]
    return means


def jain(values: FloatArray) -> float:
    """Return Jain's fairness index of values above 0, (sum x)^2 / (n sum x^2): 1 if all are equal, at least 1 / n."""
    shares = values / values.max()  # equal values are exactly 1, so their index is exactly 1
    return float(shares.sum() ** 2 / (len(shares) * (shares**2).sum()))


def spread(values: FloatArray) -> float:
    """Return the ratio of the 90th to the 10th percentile of values above 0, by linear interpolation."""
    high, low = percentiles(values, (90, 10))
    return high / low


METRICS = (
    Metric(
        name="mean_bounded_slowdown_users",
        label="bounded slowdown of users, mean",
        definition=lambda run: mean(slowdowns_by(run, "user")),
        optional=True,
        docs="mean over the users of the mean bounded slowdown of the user's jobs: each user counts once, however many "
        "jobs the user has",
    ),
    Metric(
        name="mean_bounded_slowdown_accounts",
        label="bounded slowdown of accounts, mean",
        definition=lambda run: mean(slowdowns_by(run, "account")),
        optional=True,
        docs="mean over the accounts of the mean bounded slowdown of the account's jobs",
    ),
    Metric(
        name="jain_index_users",
        label="fairness between users, Jain's index",
        definition=lambda run: jain(slowdowns_by(run, "user")),
        optional=True,
        docs="(sum x)^2 / (n sum x^2), with x the mean bounded slowdown of each of n users: 1 if all are equal, never "
        "below 1 / n",
    ),
    Metric(
        name="slowdown_spread_users",
        label="bounded slowdown of users, spread",
        definition=lambda run: spread(slowdowns_by(run, "user")),
        optional=True,
        docs="90th / 10th percentile of the mean bounded slowdowns of the users: 1 if all are equal",
    ),
)
"""The metrics of fairness between users. They have no margin, so a comparison does not judge them."""
