"""Statistics: means, percentiles, batch means, and differences job by job.

These statistics are not tests of accuracy: the jobs of one run are not repetitions of an experiment
(docs/explanation/verdict.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tracebed.converters.workload import FloatArray, IntArray
from tracebed.ground.table import BLOCK

BATCHES = 10
LEVEL = 0.90  # nominal coverage of intervals


def mean(sample: ArrayLike) -> float:
    """Return the mean of the values that are not NaN, or NaN if all are."""
    known = _known(sample)
    return float(known.mean()) if len(known) else float("nan")


def percentile(sample: ArrayLike, percent: float) -> float:
    """Return a percentile of the values that are not NaN, by linear interpolation, or NaN if all are."""
    known = _known(sample)
    return float(np.percentile(known, percent)) if len(known) else float("nan")


def percentiles(sample: ArrayLike, percents: Sequence[float]) -> list[float]:
    """Return several percentiles as `percentile` does, in one pass over the values."""
    known = _known(sample)
    return np.percentile(known, percents).tolist() if len(known) else [float("nan")] * len(percents)


def sum_of_products(a: FloatArray, b: FloatArray) -> float:
    """Return the sum of a_i b_i. `a @ b` depends on the number of threads of BLAS, which also wait for each other."""
    return float((a * b).sum())


def wasserstein(a: FloatArray, b: FloatArray) -> float:
    """Return the Wasserstein-1 distance of two samples. `scipy.stats`, which has it too, takes 0.5 s to import."""
    ends, a, b = np.sort(np.concatenate((a, b))), np.sort(a), np.sort(b)
    blocks = [ends[first : first + BLOCK + 1] for first in range(0, len(ends) - 1, BLOCK)]  # bounds the memory
    return sum((sum_of_products(apart(a, b, block[:-1]), np.diff(block)) for block in blocks), 0.0)


def apart(a: FloatArray, b: FloatArray, at: FloatArray) -> FloatArray:
    """Return the distance of the empirical distribution functions of two ascending samples at each of some values."""
    distance = np.searchsorted(a, at, side="right") / len(a)
    distance -= np.searchsorted(b, at, side="right") / len(b)
    return np.abs(distance, out=distance)


def kendall_tau(a: FloatArray, b: FloatArray) -> float:
    """Return the rank correlation tau-b of two quantities of the same jobs (Knight 1966); NaN if one is constant."""
    first, second = (np.unique(values, return_inverse=True)[1].astype(np.int32) for values in (a, b))
    total = len(a) * (len(a) - 1) // 2
    tied_a, tied_b = (_pairs(np.bincount(rank)) for rank in (first, second))
    if total in (tied_a, tied_b):
        return float("nan")
    order = np.lexsort((second, first))
    first, second = first[order], second[order]
    del order
    differs = (first[1:] != first[:-1]) | (second[1:] != second[:-1])
    tied = _pairs(np.diff(np.flatnonzero(np.concatenate(([True], differs, [True])))))
    del first, differs
    discordant = _inversions(second)
    tau = (total - tied_a - tied_b + tied - 2 * discordant) / np.sqrt(total - tied_a) / np.sqrt(total - tied_b)
    return float(np.clip(tau, -1.0, 1.0))


def _pairs(counts: IntArray) -> int:
    """Return the number of pairs within groups of these sizes."""
    return int((counts * (counts - 1) // 2).sum())


def _inversions(values: NDArray[np.int32]) -> int:
    """Return the number of pairs of values of which the first is larger, for whole numbers of at least 0."""
    # The values are sorted by one binary digit after the other, the highest first. A pair is counted at the highest
    # digit in which its values differ: a 1 before a 0 among the values with the same higher digits, which are
    # neighbors.
    count = 0
    for digit in reversed(range(int(values.max()).bit_length())):
        higher, one = values >> (digit + 1), (values >> digit) & 1
        before = np.cumsum(one, dtype=one.dtype) - one
        begins = np.flatnonzero(np.append(True, higher[1:] != higher[:-1]))
        of_group = before - np.repeat(before[begins], np.diff(np.append(begins, len(values))))
        count += int(of_group[one == 0].sum())
        values = values[np.argsort(values >> digit, kind="stable")]
    return count


def harrell_davis(ordered: FloatArray, probabilities: Sequence[float]) -> FloatArray:
    """Return quantiles, shape (samples, probabilities), of ascending rows: weighted means of all values of a row."""
    # The estimator of Harrell and Davis (Biometrika 1982).
    from scipy import special

    n = ordered.shape[1]
    found = np.zeros((len(ordered), len(probabilities)))
    for first in range(0, n, BLOCK):  # bounds the memory
        block = ordered[:, first : first + BLOCK]
        steps = np.arange(first, first + block.shape[1] + 1) / n
        weights = [np.diff(special.betainc((n + 1) * p, (n + 1) * (1 - p), steps)) for p in probabilities]
        found += block @ np.array(weights).T
    return found


def _known(sample: ArrayLike) -> FloatArray:
    values = np.asarray(sample, dtype=np.float64)
    return np.asarray(values[~np.isnan(values)])


@dataclass(frozen=True)
class Interval:
    """A mean and the half-width of its interval."""

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
    """Return the interval of the mean of an autocorrelated series, or None if a batch would have fewer than two values.

    The series is divided into `batches` consecutive batches of nearly equal size. The batch means are treated as
    independent observations, with Student's t (Law and Kelton, Simulation Modeling and Analysis, 9.5.3). The waits of
    consecutive jobs are correlated, so an interval that assumes independent jobs is far too narrow. Values are in
    submit order, or bins in time order, without NaN.
    """
    if len(values) < 2 * batches:
        return None
    means = np.array([batch.mean() for batch in np.array_split(values, batches)])
    return Interval(float(values.mean()), half_width(means, level))


def half_width(values: FloatArray, level: float) -> float:
    """Return the half-width of the interval of the mean of two or more independent values, by Student's t."""
    from scipy import special

    quantile = float(special.stdtrit(len(values) - 1, (1 + level) / 2))
    return quantile * float(values.std(ddof=1)) / float(np.sqrt(len(values)))


@dataclass(frozen=True)
class Differences:
    """Differences of one quantity between two runs, job by job: d = predicted - real, in the unit of the quantity."""

    jobs: int
    bias: float  # mean of d
    mae: float  # mean of |d|
    rmse: float  # root mean square of d
    p95: float  # 95th percentile of |d|
    limits: tuple[float, float]  # limits of agreement, bias -+ 1.96 standard deviations of d (Bland and Altman 1986)
    slope: float  # proportional bias: slope of the regression of d on the mean of both runs
    wasserstein: float  # Wasserstein-1 distance between the two distributions, which ignores the pairing of jobs
    # Rank correlation tau-b; meaningful for waits, not for start times. NaN if one side is constant.
    kendall_tau: float


def differences(predicted: FloatArray, real: FloatArray) -> Differences | None:
    """Return the differences between the values of the same jobs in two runs; None for fewer than two jobs."""
    if len(real) < 2:
        return None
    d = predicted - real
    middle = (predicted + real) / 2
    spread = float(d.std(ddof=1))
    bias = float(d.mean())
    varies = np.ptp(middle) > 0
    return Differences(
        jobs=len(d),
        bias=bias,
        mae=float(np.abs(d).mean()),
        rmse=float(np.sqrt((d**2).mean())),
        p95=float(np.percentile(np.abs(d), 95)),
        limits=(bias - 1.96 * spread, bias + 1.96 * spread),
        slope=float(np.cov(middle, d)[0, 1] / middle.var(ddof=1)) if varies else float("nan"),
        wasserstein=wasserstein(predicted, real),
        kendall_tau=kendall_tau(predicted, real),
    )
