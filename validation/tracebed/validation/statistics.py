"""Statistics: means and percentiles, the stability of a mean within its run, differences job by job.

None of these is a test of accuracy: the jobs of one run are not repetitions of an experiment
(docs/explanation/verdict.md).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from tracebed.converters.workload import FloatArray

BATCHES = 10
LEVEL = 0.90


def mean(sample: ArrayLike) -> float:
    """Return the mean of the values that are not NaN; NaN if there are none."""
    known = _known(sample)
    return float(known.mean()) if len(known) else float("nan")


def percentile(sample: ArrayLike, percent: float) -> float:
    """Return a percentile of the values that are not NaN, by linear interpolation; NaN if there are none."""
    known = _known(sample)
    return float(np.percentile(known, percent)) if len(known) else float("nan")


def _known(sample: ArrayLike) -> FloatArray:
    values = np.asarray(sample, dtype=np.float64)
    return np.asarray(values[~np.isnan(values)])


@dataclass(frozen=True)
class Interval:
    """A mean with the half-width around it."""

    mean: float
    half_width: float

    @property
    def low(self) -> float:
        """Lower end."""
        return self.mean - self.half_width

    @property
    def high(self) -> float:
        """Upper end."""
        return self.mean + self.half_width


def batch_means(values: FloatArray, *, batches: int = BATCHES, level: float = LEVEL) -> Interval | None:
    """Return the mean of an ordered, correlated series with its half-width by batch means.

    The series is cut into `batches` consecutive batches of (nearly) the same size; their means stand in for
    independent observations, with Student's t (Law and Kelton, Simulation Modeling and Analysis, 9.5.3).
    Neighboring jobs wait together, so an interval that treats jobs as independent is far too narrow.

    Args:
        values: shape (jobs,) in submit order, or (bins,) in time order; without NaN.
        batches: number of batches.
        level: nominal coverage.

    Returns:
        The interval, or None with fewer than two values a batch.
    """
    if len(values) < 2 * batches:
        return None
    means = np.array([batch.mean() for batch in np.array_split(values, batches)])
    return Interval(float(values.mean()), _half_width(means, level))


def _half_width(means: FloatArray, level: float) -> float:
    from scipy import stats

    quantile = float(stats.t.ppf((1 + level) / 2, len(means) - 1))
    return quantile * float(means.std(ddof=1)) / float(np.sqrt(len(means)))


@dataclass(frozen=True)
class Differences:
    """Differences of one figure between two runs, job by job: d = predicted - real, in the unit of the figure."""

    jobs: int
    bias: float
    """Mean of d."""
    mae: float
    """Mean of |d|."""
    rmse: float
    """Root of the mean of d squared."""
    p95: float
    """95th percentile of |d|."""
    limits: tuple[float, float]
    """Limits of agreement, bias -+ 1.96 standard deviations of d (Bland and Altman 1986)."""
    slope: float
    """Proportional bias: slope of d over the mean of both runs."""
    wasserstein: float
    """Wasserstein-1 distance of the two distributions, regardless of which job has which value."""
    kendall_tau: float
    """Rank agreement tau-b; take it of waits, not of start times. NaN where one side is constant."""


def differences(predicted: FloatArray, real: FloatArray) -> Differences | None:
    """Compare the same jobs, in the same order, on both sides.

    Args:
        predicted, real: shape (jobs,), without NaN.

    Returns:
        The differences, or None with fewer than two jobs.
    """
    from scipy import stats

    if len(real) < 2:
        return None
    d = predicted - real
    middle = (predicted + real) / 2
    spread = float(d.std(ddof=1))
    bias = float(d.mean())
    varies = np.ptp(middle) > 0
    ranked = np.ptp(predicted) > 0 and np.ptp(real) > 0
    return Differences(
        jobs=len(d),
        bias=bias,
        mae=float(np.abs(d).mean()),
        rmse=float(np.sqrt((d**2).mean())),
        p95=float(np.percentile(np.abs(d), 95)),
        limits=(bias - 1.96 * spread, bias + 1.96 * spread),
        slope=float(np.cov(middle, d)[0, 1] / middle.var(ddof=1)) if varies else float("nan"),
        wasserstein=float(stats.wasserstein_distance(predicted, real)),
        kendall_tau=float(stats.kendalltau(predicted, real).statistic) if ranked else float("nan"),
    )
