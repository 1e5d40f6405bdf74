"""Scores of predictions, over clusters of dependent cases. Functions of arrays and mappings, without runs.

The error of a prediction in a case is z = (predicted - real) / margin. Its size |z| is averaged over the cases with the
same real run, then over the real runs of a cluster, the cases of one workload. Clusters are independent observations,
and intervals are Student's t over them. Errors of opposite sign do not cancel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from tracebed.validation.verdict.decision import rejected

ALPHA = 0.025
"""Level of each side of an interval, and largest probability of a false `inaccurate`."""


@dataclass(frozen=True)
class Spread:
    """The mean over clusters, and its interval; NaN for one cluster."""

    mean: float
    low: float
    high: float
    clusters: int


def of_clusters(values: ArrayLike, real_runs: Sequence[str], clusters: Sequence[str]) -> dict[str, float]:
    """Return cluster -> mean of a figure over its real runs, each the mean over its cases.

    Args:
        values: the figure of each case, shape (cases,).
        real_runs: name of the real run of each case.
        clusters: name of the cluster of each case.
    """
    table = pd.DataFrame({"value": np.asarray(values, dtype=float), "run": real_runs, "cluster": clusters})
    by_run = table.groupby(["cluster", "run"], sort=False)["value"].mean()
    found = by_run.groupby("cluster", sort=False).mean()
    return {str(name): float(value) for name, value in found.items()}


def spread(values: ArrayLike, alpha: float = ALPHA) -> Spread:
    """Return the mean of a figure over clusters, and its interval.

    Args:
        values: the figure of each cluster, shape (clusters,), at least one.
        alpha: level of each side.
    """
    from scipy import stats

    found = np.asarray(values, dtype=float)
    number, mean = len(found), float(found.mean())
    if number < 2:
        return Spread(mean, float("nan"), float("nan"), number)
    half = float(stats.t.isf(alpha, number - 1) * found.std(ddof=1) / np.sqrt(number))
    return Spread(mean, mean - half, mean + half, number)


def paired(ours: Mapping[str, float], theirs: Mapping[str, float], alpha: float = ALPHA) -> Spread | None:
    """Return the mean difference of two errors over their common clusters, or None without a common cluster.

    A negative difference: ours is nearer to the real runs. The difficulty of a cluster cancels in the difference.

    Args:
        ours, theirs: cluster -> mean size of the error, in margins.
        alpha: level of each side.
    """
    common = [name for name in ours if name in theirs]
    return spread([ours[name] - theirs[name] for name in common], alpha) if common else None


def off_by_more(values: ArrayLike, margins: float = 1.0) -> float:
    """Return the p-value of the hypothesis that the mean size of the error over clusters is at most `margins`.

    The p-value is 1 for one cluster: one workload is no sample.

    Args:
        values: size of the error of each cluster, in margins, shape (clusters,).
        margins: the limit.
    """
    from scipy import stats

    found = np.asarray(values, dtype=float)
    number, excess = len(found), float(found.mean()) - margins
    if number < 2:
        return 1.0
    se = float(found.std(ddof=1) / np.sqrt(number))
    if se == 0:
        return float(excess <= 0)
    return float(stats.t.sf(excess / se, number - 1))


def inaccurate(errors: Mapping[str, Mapping[str, float]], alpha: float = ALPHA) -> list[str]:
    """Return the metrics in which a prediction is off by more than one margin in the mean over clusters.

    Holm's procedure limits the probability of any false statement over all metrics to `alpha`.

    Args:
        errors: metric -> cluster -> mean size of the error, in margins.
        alpha: level.
    """
    p = [np.array(off_by_more(list(each.values()))) for each in errors.values()]
    found = rejected(p, alpha) if p else []
    return [metric for metric, off in zip(errors, found, strict=True) if off]
