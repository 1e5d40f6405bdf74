"""Rates of the same jobs in two runs: paired differences, with discordant counts and a confidence interval.

With repetitions, a rate is a metric like any other, and the rule of the verdict applies to it. For one real run the
interval here takes the place of the noise of the system. It treats jobs as independent, so it is information only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tracebed.converters.workload import BoolArray
from tracebed.validation.metrics import MeasuredRun
from tracebed.validation.metrics.deadlines import outcomes

ALPHA = 0.025  # level of each side of an interval


@dataclass(frozen=True)
class PairedRate:
    """A rate in a real run and in a prediction, over the same jobs."""

    name: str  # `acceptance_rate`, `guarantee_rate`, `cancel_rate` or `in_time_rate`
    jobs: int  # number of jobs for which the rate is defined in both runs
    real: float
    predicted: float
    only_predicted: int  # discordant jobs (b): those counted in the prediction only
    only_real: int  # discordant jobs (c): those counted in the real run only
    low: float  # lower end of the interval of predicted - real, by `tango_interval`
    high: float
    # Exact p-value of McNemar's test (1947), for information: a large p-value is no evidence of accuracy.
    mcnemar_p: float

    @property
    def difference(self) -> float:
        """Predicted - real."""
        return self.predicted - self.real


def paired_rates(real: MeasuredRun, predicted: MeasuredRun, *, alpha: float = ALPHA) -> list[PairedRate]:
    """Return the rates of the jobs with deadlines in both runs, if any; guarantees over the jobs that both accepted."""
    if not all(np.isfinite(side.run.table("jobs")["deadline"]).any() for side in (real, predicted)):
        return []
    a, b = outcomes(real), outcomes(predicted)
    common = a.index[a.index.isin(b.index)]
    a, b = a.loc[common], b.loc[common]
    both = (a["accepted"] & b["accepted"]).to_numpy()
    everything = np.ones(len(common), dtype=bool)
    rates = []
    for name, column, where in (
        ("acceptance_rate", "accepted", everything),
        ("guarantee_rate", "met", both),
        ("cancel_rate", "cancelled", everything),
        ("in_time_rate", "met", everything),
    ):
        if where.any():
            rates.append(paired_rate(name, a[column].to_numpy()[where], b[column].to_numpy()[where], alpha=alpha))
    return rates


def paired_rate(name: str, real: BoolArray, predicted: BoolArray, *, alpha: float = ALPHA) -> PairedRate:
    """Return the paired difference of a rate, from whether each job is counted, shape (jobs,), not empty."""
    from scipy import special

    jobs = len(real)
    b, c = int((predicted & ~real).sum()), int((real & ~predicted).sum())
    low, high = tango_interval(b, c, jobs, alpha)
    p = min(1.0, 2 * float(special.bdtr(min(b, c), b + c, 0.5)))  # the exact test of McNemar
    return PairedRate(name, jobs, float(real.mean()), float(predicted.mean()), b, c, low, high, p)


def tango_interval(b: int, c: int, n: int, alpha: float = ALPHA) -> tuple[float, float]:
    """Return the score interval of the difference (b - c) / n of two paired proportions.

    Reference: Tango, Equivalence test and confidence interval for the difference in proportions for the paired-sample
    design, Statistics in Medicine 17, 1998. The interval holds the differences that the score test accepts. `b` and `c`
    are the numbers of pairs of which only the first, and only the second, is counted; `alpha` is that of each side.
    """
    from scipy import optimize, special

    z = float(special.ndtri(1 - alpha))

    def excess(difference: float, quantile: float) -> float:
        return b - c - n * difference - quantile * math.sqrt(max(0.0, _variance(difference, b, c, n)))

    estimate, next_to = (b - c) / n, 1e-9  # at the estimate itself, both sides of the equation may be 0
    low = optimize.brentq(excess, -1.0, estimate - next_to, args=(z,), xtol=1e-12) if c < n else -1.0
    high = optimize.brentq(excess, estimate + next_to, 1.0, args=(-z,), xtol=1e-12) if b < n else 1.0
    return float(low), float(high)


def _variance(difference: float, b: int, c: int, n: int) -> float:
    """Return the variance of b - c - n difference, with the probabilities that maximize the likelihood."""
    # The probability q of a pair of which only the second is counted solves 2 n q^2 + B q + C = 0 under the constraint
    # that the difference is `difference`.
    second = (2 * n - b + c) * difference - b - c
    third = -c * difference * (1 - difference)
    q = (math.sqrt(max(0.0, second**2 - 8 * n * third)) - second) / (4 * n)
    return n * (2 * q + difference * (1 - difference))
