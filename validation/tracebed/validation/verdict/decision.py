"""The decision on a metric over the cases of a fixed suite.

The error of a prediction in case w, in margins, is z_w = (S_w - Y_w) / M_w: Y_w is the mean over R_w repetitions of the
real run, S_w the mean over the predictions, M_w the margin. The error of the suite is the mean of z_w over the cases.
Its interval has the standard error and the degrees of freedom of Welch and Satterthwaite, because each case has its own
noise. The noise of real runs that several cases share counts once. A prediction is

- inaccurate if the interval lies outside [-1, 1], or if a single case is proved to be off by more than kappa margins.
  Holm's procedure limits the probability of any false rejection over all gated metrics;
- accurate if the interval lies inside (-1, 1) with a reserve, an equivalence test by two one-sided tests (Schuirmann
  1987), and each case is off by at most kappa margins. This guard stops errors of opposite sign that cancel;
- inconclusive otherwise.

The reserve widens the interval on each side, since a few repetitions may miss the tail of skewed noise, or a rare
course of the schedule. Where the prediction is an ensemble, the noise of a case is at least the spread of its ensemble.
Where the noise exceeds this spread, as for a single prediction, its skewness is taken as `SKEWNESS` more than observed,
in the expansion of Student's t for skewed samples (Johnson 1978; Hall 1992).

All functions work on arrays whose last axis is the cases. Leading axes are independent trials, for simulations of the
error rates (docs/explanation/verdict.md). NaN is an unknown value, for which no decision is made.

References: Welch, Biometrika 34, 1947. Satterthwaite, Biometrics Bulletin 2, 1946. Holm, Scandinavian Journal of
Statistics 6, 1979. Schuirmann, J. Pharmacokinetics and Biopharmaceutics 15, 1987. Johnson, J. American Statistical
Association 73, 1978. Hall, J. Royal Statistical Society B 54, 1992.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tracebed.converters.workload import BoolArray, FloatArray, IntArray
from tracebed.validation.verdict.rule import Reason, Verdict

ROUNDING = 1e-9  # smallest margin, as a share of the values: a margin of 0 accepts rounding errors only
POWER = 0.8  # power for which `repeats_needed` plans, and with which the repetitions left by exclusions suffice
MOST_REPEATS = 1000  # largest number of repetitions that `repeats_needed` returns
SKEWNESS = 2.0
"""Skewness of the noise that the repetitions may have missed, in addition to the observed one. With it, lognormal noise
(sigma 1) hides an error of one margin in at most 6 % of the validations (docs/explanation/verdict.md)."""
NOISY = 0.5  # half-width of the interval, in margins, above which the noise is the reason for an inconclusive verdict

WIDEST_MARGIN = 1e6  # largest margin that is tried, as a share of the real value
MARGINS_TRIED = 300  # number of margins between `ROUNDING` and `WIDEST_MARGIN` that are tried before the bisection
MARGIN_DIGITS = 3  # significant digits of a margin as text


@dataclass(frozen=True)
class Samples:
    """One metric in each case. Fields have shape (..., cases), or broadcast to this shape."""

    real: FloatArray  # mean over the repetitions, unit of the metric
    sd: FloatArray  # standard deviation of one repetition, unit of the metric; NaN if unknown
    df: FloatArray  # degrees of freedom of `sd`: the number of repetitions - 1, or those of a noise profile
    repeats: FloatArray  # number of repetitions
    predicted: FloatArray  # mean over the predictions, unit of the metric
    margin: FloatArray  # margin, unit of the metric
    predicted_sd: FloatArray | float = 0.0  # standard deviation of one prediction; 0 for a deterministic simulator
    runs: FloatArray | float = 1.0  # number of predictions
    # Resolution q of the metric, its unit. `sd` is at least that of a rounding error, q / sqrt(12).
    resolution: FloatArray | float = 0.0
    # Third central moment of one repetition, cubed unit of the metric; 0 if it is unknown.
    third: FloatArray | float = 0.0
    # Number of the real runs of each case, shape (cases,). Cases with one number have the same real runs, so that the
    # noise of their real means is the same. None: each case has its own real runs.
    real_run: IntArray | None = None

    @classmethod
    def of(cls, real: FloatArray, predicted: ArrayLike, margin: ArrayLike, **more: Any) -> Samples:
        """Return the samples of repetitions: `real` has shape (..., cases, repetitions)."""
        repeats = real.shape[-1]
        mean = real.mean(axis=-1)
        sd = real.std(axis=-1, ddof=1) if repeats > 1 else np.full_like(mean, np.nan)
        count = np.full(mean.shape, float(repeats))
        more = {"third": third_moment(real)} | more
        return cls(mean, sd, count - 1, count, np.asarray(predicted, float), np.asarray(margin, float), **more)

    def first(self, cases: int) -> Samples:
        """Return the samples of the first cases."""
        fields = {name: value for name, value in vars(self).items() if value is not None}
        return replace(self, **{name: np.asarray(value)[..., :cases] for name, value in fields.items()})


def third_moment(values: FloatArray) -> FloatArray:
    """Return the unbiased third central moment of samples along the last axis; 0 for fewer than three values."""
    number = values.shape[-1]
    if number < 3:
        return np.zeros(values.shape[:-1])
    cubes = ((values - values.mean(axis=-1, keepdims=True)) ** 3).sum(axis=-1)
    return np.asarray(cubes * number / ((number - 1) * (number - 2)))


@dataclass(frozen=True)
class Estimate:
    """The error of one metric in margins, in each case and over all cases."""

    z: FloatArray  # error of each case, shape (..., cases)
    v: FloatArray  # variance of z, shape (..., cases)
    case_df: FloatArray  # degrees of freedom of `v`
    mean: FloatArray  # error of the suite, shape (...)
    se: FloatArray  # standard error of `mean`
    df: FloatArray  # degrees of freedom of `se`
    half: FloatArray  # half-width of the interval of `mean`
    # Width on each side of the interval that an accurate prediction needs, for what repetitions may have missed.
    reserve: FloatArray
    cautious_v: FloatArray  # variance of z with a noise of at least the spread of the ensemble, shape (..., cases)
    skewness: FloatArray  # assumed skewness of `mean`
    worst: FloatArray  # largest |z| of a case
    alpha: float
    kappa: float

    @cached_property
    def case_half(self) -> FloatArray:
        """Half-width of the interval of z of each case."""
        return _times(_quantile(self.alpha, self.case_df), np.sqrt(self.v))

    @cached_property
    def p(self) -> FloatArray:
        """p-value of the hypothesis that the prediction is inaccurate by chance only."""
        beyond = _tail(np.abs(self.z) - self.kappa, np.sqrt(self.v), self.case_df).min(axis=-1)
        suite = _tail(np.abs(self.mean) - 1, self.se, self.df)
        return np.asarray(np.minimum(suite, self.z.shape[-1] * beyond))

    @property
    def low(self) -> FloatArray:
        """Lower end of the interval of the error."""
        return self.mean - self.half

    @property
    def high(self) -> FloatArray:
        """Upper end of the interval of the error."""
        return self.mean + self.half

    @property
    def outlier(self) -> BoolArray:
        """Whether the error of a case exceeds kappa margins."""
        return self.worst > self.kappa

    @property
    def inside(self) -> BoolArray:
        """Whether the interval lies inside (-1, 1)."""
        return np.asarray((self.low > -1) & (self.high < 1))

    @property
    def accurate(self) -> BoolArray:
        """Whether the interval lies inside (-1, 1) with its reserve, and no case exceeds kappa margins."""
        return np.asarray((np.abs(self.mean) + self.half + self.reserve < 1) & ~self.outlier)


def estimate(samples: Samples, alpha: float, kappa: float) -> Estimate:
    """Return the error of a metric in margins; `alpha` of each one-sided test, `kappa` as the largest of a case."""
    size = np.maximum(np.abs(samples.real), np.abs(samples.predicted))
    margin = np.maximum(samples.margin, ROUNDING * np.where(size > 0, size, 1.0))
    z = (samples.predicted - samples.real) / margin
    sd = np.maximum(samples.sd, samples.resolution / np.sqrt(12))
    real_v = (sd / margin) ** 2 / samples.repeats
    predicted_v = (samples.predicted_sd / margin) ** 2 / samples.runs
    real_v, predicted_v, real_df, predicted_df = (
        np.broadcast_to(each, z.shape) for each in (real_v, predicted_v, samples.df, samples.runs - 1.0)
    )
    v, case_df = _sum(np.stack((real_v, predicted_v)), np.stack((real_df, predicted_df)))
    cases = z.shape[-1]
    variance, df = _of_suite(real_v, real_df, predicted_v, predicted_df, samples.real_run)
    mean, se = z.mean(axis=-1), np.sqrt(variance) / cases
    half = _times(_quantile(alpha, df), se)

    covered = (samples.runs > 1) & (samples.predicted_sd >= sd)  # the ensemble has at least this noise
    cautious_v = np.where(covered, (samples.predicted_sd / margin) ** 2 / samples.repeats, real_v)
    cautious_df = np.where(covered, predicted_df, real_df)
    total, total_df = _of_suite(cautious_v, cautious_df, predicted_v, predicted_df, samples.real_run)
    observed = np.where(covered, 0.0, samples.third / margin**3 / samples.repeats**2)
    assumed = np.where(covered, 0.0, SKEWNESS * real_v**1.5 / np.sqrt(real_df + 1))
    moment = np.abs(_joined(observed, samples.real_run, 3).sum(axis=0))
    moment = moment + _joined(assumed, samples.real_run, 3).sum(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        skewness = np.where(total == 0, 0.0, moment / total**1.5)
    wide = _times(_skewed_quantile(alpha, total_df, skewness), np.sqrt(total) / cases)
    worst = np.abs(z).max(axis=-1)
    return Estimate(
        z=z,
        v=v,
        case_df=case_df,
        mean=mean,
        se=se,
        df=df,
        half=half,
        reserve=np.maximum(wide - half, 0.0),
        cautious_v=cautious_v + predicted_v,
        skewness=skewness,
        worst=worst,
        alpha=alpha,
        kappa=kappa,
    )


def _of_suite(
    real_v: FloatArray,
    real_df: FloatArray,
    predicted_v: FloatArray,
    predicted_df: FloatArray,
    real_run: IntArray | None,
) -> tuple[FloatArray, FloatArray]:
    """Return the variance of the sum of z over the cases, and its degrees of freedom, shapes (...)."""
    shared_v, shared_df = _by_real_run(real_v, real_df, real_run)
    return _sum(
        np.concatenate((shared_v, np.moveaxis(predicted_v, -1, 0))),
        np.concatenate((shared_df, np.moveaxis(predicted_df, -1, 0))),
    )


def _by_real_run(v: FloatArray, df: FloatArray, real_run: IntArray | None) -> tuple[FloatArray, FloatArray]:
    """Return the variance of the sum of the real means over the cases with the same real runs, and its df.

    Cases that share some of their real runs only are treated alike, for which this sum is an upper bound. `v` is in
    squared margins, shape (..., cases); without `real_run`, no case shares runs. Shapes returned: (real runs, ...).
    """
    if real_run is None:
        return np.moveaxis(v, -1, 0), np.moveaxis(df, -1, 0)
    members = [np.flatnonzero(real_run == number) for number in np.unique(real_run)]
    return _joined(v, real_run, 2), np.stack([df[..., own].min(axis=-1) for own in members])


def _joined(moment: FloatArray, real_run: IntArray | None, order: int) -> FloatArray:
    """Return a central moment of the sum of the real means over the cases with the same real runs, (real runs, ...)."""
    # The noise of the same real runs is the same in each of their cases, apart from the unit: the roots of the moments,
    # such as standard deviations, add up.
    if real_run is None:
        return np.moveaxis(moment, -1, 0)
    roots = np.sqrt(moment) if order == 2 else np.cbrt(moment)
    members = [np.flatnonzero(real_run == number) for number in np.unique(real_run)]
    return np.stack([roots[..., own].sum(axis=-1) ** order for own in members])


def _quantile(alpha: float, df: FloatArray | float) -> FloatArray:
    """Return the upper quantile of Student's t. `scipy.stats` takes much longer for the same."""
    from scipy import special

    return np.asarray(-special.stdtrit(df, alpha), dtype=np.float64)


def _skewed_quantile(alpha: float, df: FloatArray | float, skewness: FloatArray | float) -> FloatArray:
    """Return the upper quantile of the t statistic of a mean with this skewness, on its worse side."""
    t = _quantile(alpha, df)
    return np.asarray(t + skewness * (2 * t**2 + 1) / 6)


def _sum(variances: FloatArray, df: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the sum over the first axis of estimated variances, and its degrees of freedom (Satterthwaite 1946)."""
    # A variance of 0 adds nothing. If all variances are 0, the degrees of freedom are those of all estimates together.
    total = variances.sum(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = np.where(variances == 0, 0.0, variances**2 / df)
        degrees = np.where(total == 0, df.sum(axis=0), total**2 / terms.sum(axis=0))
    return total, degrees


def _tail(excess: FloatArray, se: FloatArray, df: FloatArray) -> FloatArray:
    """Return P(T >= excess / se) for Student's t; 1 if unknown."""
    from scipy import special

    with np.errstate(divide="ignore", invalid="ignore"):
        p = np.where(se > 0, special.stdtr(df, -excess / se), np.where(excess > 0, 0.0, 1.0))
    return np.where(np.isnan(se) | np.isnan(excess), 1.0, p)


def _times(t: FloatArray | float, se: FloatArray) -> FloatArray:
    """Return the half-width of an interval; 0 without noise, whatever the degrees of freedom."""
    return np.where(se == 0, 0.0, t * se)


def rejected(p: Sequence[FloatArray], alpha: float) -> list[BoolArray]:
    """Return for each of several metrics whether it is inaccurate, by Holm's procedure at level `alpha`."""
    values = np.stack([np.asarray(each, dtype=float) for each in p])
    order = np.argsort(values, axis=0, kind="stable")
    levels = (alpha / np.arange(len(p), 0, -1)).reshape(-1, *([1] * (values.ndim - 1)))
    passed = np.logical_and.accumulate(np.take_along_axis(values, order, axis=0) < levels, axis=0)
    inaccurate = np.zeros(values.shape, dtype=bool)
    np.put_along_axis(inaccurate, order, passed, axis=0)
    return list(inaccurate)


def decide(found: Estimate, inaccurate: bool) -> tuple[Verdict, tuple[Reason, ...]]:
    """Return the verdict on one metric without leading axes, and the reasons for an inconclusive one."""
    if inaccurate:
        return Verdict.INACCURATE, ()
    if found.accurate:
        return Verdict.ACCURATE, ()
    known = bool(np.isfinite(found.mean))
    open_ended = known and not found.inside
    applies = {
        Reason.WORKLOAD_OUTLIER: bool(found.outlier),
        Reason.SKEWED_NOISE: known and bool(found.inside) and not found.outlier,
        Reason.NOISE_EXCEEDS_MARGIN: open_ended and bool(found.half > NOISY),
        Reason.NEAR_MARGIN: open_ended and bool(found.half <= NOISY),
    }
    return Verdict.INCONCLUSIVE, tuple(reason for reason, holds in applies.items() if holds)


@cache
def _quadrature() -> tuple[FloatArray, FloatArray]:
    """Return the nodes and weights of the quadrature of `tost_power`; computing them takes longer than using them."""
    nodes, weights = np.polynomial.legendre.leggauss(200)
    return nodes, weights


def tost_power(error: float, se: float, df: float, alpha: float, skewness: float = 0.0) -> float:
    """Return the probability that the interval of the error lies inside (-1, 1) with its reserve.

    The probability is exact for normal means: the normal probability at a given estimate u of se / true se, integrated
    over the distribution of u, u^2 ~ chi^2(df) / df (the power of two one-sided t tests; Phillips, J. Pharmacokinetics
    and Biopharmaceutics 18, 1990). Error and standard error are the true ones, in margins; the reserve allows for the
    skewness of the mean.
    """
    from scipy import special

    if se == 0:
        return float(abs(error) < 1)
    half = float(_skewed_quantile(alpha, df, skewness)) * se  # at u = 1; the interval cannot fit if u * half >= 1
    most = float(special.chdtr(df, df / half**2))
    nodes, weights = _quadrature()
    u = np.sqrt(2 * special.gammaincinv(df / 2, most * (nodes + 1) / 2) / df)
    fits = special.ndtr((1 - error - u * half) / se) - special.ndtr((u * half - 1 - error) / se)
    return float(most / 2 * (weights @ np.maximum(fits, 0.0)))


def power(samples: Samples, found: Estimate, alpha: float, repeats: int) -> float:
    """Return the probability of an accurate verdict with `repeats` repetitions of each case; 0 if it is unknown."""
    # The error and the noise are taken as they were observed.
    each = found.cautious_v * samples.repeats  # variance of one repetition, in squared margins
    skewness = found.skewness * np.sqrt(np.mean(samples.df + 1.0))  # of one repetition of each case
    error, cases = abs(float(found.mean)), len(each)
    if np.isnan(each).any() or error >= 1 or bool(found.outlier):
        return 0.0
    v, df = _sum(*_by_real_run(each / repeats, np.full(cases, repeats - 1.0), samples.real_run))
    return tost_power(error, float(np.sqrt(v)) / cases, float(df), alpha, float(skewness / np.sqrt(repeats)))


def repeats_needed(samples: Samples, found: Estimate, alpha: float, least: int) -> int | None:
    """Return the repetitions per case for an accurate verdict with the probability `POWER`; None: unknown or none."""
    # More than `MOST_REPEATS` are too many.
    if power(samples, found, alpha, MOST_REPEATS) < POWER:
        return None
    low, high = least - 1, MOST_REPEATS
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if power(samples, found, alpha, middle) >= POWER else (middle, high)
    return high


@dataclass(frozen=True)
class Needed:
    """The smallest margins with which a metric is accurate: with these and with all wider ones. NaN: no such margin."""

    # Smallest share of the real value, with the absolute amount of the margin as it is; 0 if the amount suffices.
    relative: float = math.nan
    alone: float = math.nan  # smallest share of the real value without an absolute amount
    absolute: float = math.nan  # smallest absolute amount without a share, unit of the metric


def needed(samples: Samples, amount: float, compression: FloatArray, alpha: float, kappa: float) -> Needed:
    """Return the smallest margins that make a metric accurate; `amount` is the absolute one, times `compression`."""
    real = np.abs(samples.real)
    size = max(float(np.max(real)), float(np.max(np.abs(samples.predicted))))

    def accurate(values: FloatArray) -> BoolArray:
        """Return whether the metric is accurate with the values of the three searches, shape (3, trials)."""
        alone, share, amounts = values[..., None]
        margins = np.stack((alone * real, np.maximum(share * real, amount * compression), amounts * compression))
        return estimate(replace(samples, margin=margins), alpha, kappa).accurate

    alone, relative, absolute = _smallest_passing(accurate, np.array([1.0, 1.0, size or 1.0])).tolist()
    return Needed(relative=relative, alone=alone, absolute=absolute)


def rounded_up(value: float) -> float:
    """Return a positive margin with `MARGIN_DIGITS` significant digits that is not smaller."""
    if value <= 0:
        return 0.0
    digits = MARGIN_DIGITS - 1 - math.floor(math.log10(value))
    text = f"{value:.{MARGIN_DIGITS}g}"
    return float(text) if float(text) >= value else round(float(text) + 10.0**-digits, max(digits, 0) + 1)


def margin_text(value: float, unit: str) -> str:
    """Return a margin as text, rounded up; a dash if unknown."""
    return f"{rounded_up(value):.12g}{unit}" if math.isfinite(value) else "-"


def _smallest_passing(passes: Callable[[FloatArray], BoolArray], units: FloatArray) -> FloatArray:
    """Return the smallest values that pass, such that all larger ones pass; 0: all pass; NaN: the largest one fails."""
    # The searches run side by side: the arrays of one search are so small that most of its time are calls of NumPy.
    # `passes` takes shape (searches, trials), in `units`, the scale of each search.
    grid = units[:, None] * np.geomspace(ROUNDING, WIDEST_MARGIN, MARGINS_TRIED)
    failing = [np.flatnonzero(row) for row in ~passes(grid)]
    last = np.array([row[-1] if len(row) else -1 for row in failing])
    smallest = np.where(last < 0, 0.0, np.nan)
    searched = (last >= 0) & (last < MARGINS_TRIED - 1)
    below = np.where(searched, last, 0)  # the other searches go on without effect
    rows = np.arange(len(units))
    low, high = grid[rows, below], grid[rows, below + 1]
    while (going := searched & (high - low > 1e-12 * high)).any():
        values = np.linspace(low, high, 33, axis=-1)
        failed = ~passes(values[:, :-1])
        for row in np.flatnonzero(going).tolist():
            beyond = int(np.flatnonzero(failed[row])[-1])
            low[row], high[row] = values[row, beyond], values[row, beyond + 1]
    return np.where(searched, high, smallest)
