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

ALPHA = 0.025  # level of each side of an interval, and largest probability of a false `inaccurate`
KAPPA = 2.0  # largest accepted error of one case, in margins: the guard of the verdict
NOISE = 0.8
"""Standard deviation of a real run that is assumed without repetitions, in margins. The default margins were made for
testbeds with at most this noise."""


@dataclass(frozen=True)
class Spread:
    """The mean over clusters, and its interval; NaN for one cluster."""

    mean: float
    low: float
    high: float
    clusters: int


def of_clusters(values: ArrayLike, real_runs: Sequence[str], clusters: Sequence[str]) -> dict[str, float]:
    """Return cluster -> mean of a figure over its real runs, each the mean over its cases."""
    table = pd.DataFrame({"value": np.asarray(values, dtype=float), "run": real_runs, "cluster": clusters})
    by_run = table.groupby(["cluster", "run"], sort=False)["value"].mean()
    means = by_run.groupby("cluster", sort=False).mean()
    return {str(name): float(value) for name, value in means.items()}


def spread(values: ArrayLike, alpha: float = ALPHA) -> Spread:
    """Return the mean of a figure over clusters, shape (clusters,), and its interval; `alpha` on each side."""
    from scipy import stats

    figures = np.asarray(values, dtype=float)
    number, mean = len(figures), float(figures.mean())
    if number < 2:
        return Spread(mean, float("nan"), float("nan"), number)
    half = float(stats.t.isf(alpha, number - 1) * figures.std(ddof=1) / np.sqrt(number))
    return Spread(mean, mean - half, mean + half, number)


def paired(ours: Mapping[str, float], theirs: Mapping[str, float], alpha: float = ALPHA) -> Spread | None:
    """Return the mean difference of two errors (in margins) over their common clusters; negative if ours is smaller."""
    # The difficulty of a cluster cancels in the difference.
    common = [name for name in ours if name in theirs]
    return spread([ours[name] - theirs[name] for name in common], alpha) if common else None


def proved_off(errors: ArrayLike, noise: float, kappa: float = KAPPA) -> float:
    """Return the p-value of the hypothesis that no case is off by more than `kappa` margins."""
    # The noise, an upper bound in margins, is given: it cannot be estimated from one run. Bonferroni over the cases.
    from scipy import stats

    sizes = np.abs(np.asarray(errors, dtype=float))
    return min(1.0, len(sizes) * float(stats.norm.sf((sizes.max() - kappa) / noise)))


def inaccurate(errors: Mapping[str, ArrayLike], noise: Mapping[str, float], alpha: float = ALPHA) -> list[str]:
    """Return the metrics in which a case is proved to be off, with at most `alpha` for any false statement (Holm)."""
    p = [np.array(proved_off(each, max(NOISE, noise.get(name, 0.0)))) for name, each in errors.items()]
    rejections = rejected(p, alpha) if p else []
    return [name for name, off in zip(errors, rejections, strict=True) if off]


def pooled_sd(sd: ArrayLike, df: ArrayLike) -> float:
    """Return the pooled standard deviation of several cases; NaN without degrees of freedom."""
    deviations, weights = np.asarray(sd, dtype=float), np.asarray(df, dtype=float)
    known = np.isfinite(deviations) & (weights > 0)
    if not known.any():
        return float("nan")
    return float(np.sqrt((weights[known] * deviations[known] ** 2).sum() / weights[known].sum()))
