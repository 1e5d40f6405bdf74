"""Ranking of policies: does a prediction order the policies as the real runs do?

Only pairs of policies whose real difference is larger than the noise of the repetitions count. In trials with known
truth, all such decisive pairs agreed with an unbiased simulator, while undecided pairs agreed in 73 to 80 % of cases.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any

import numpy as np

from tracebed.converters.workload import FloatArray
from tracebed.validation.metrics import all_metrics

ALPHA = 0.025
"""Level of each side of the interval that decides about a pair."""
ENOUGH_POLICIES = 5
"""Number of policies from which tau-b has a meaning: by chance it is 1 for 3 policies in 17 % of cases, for 5 in
0.8 %."""


@dataclass(frozen=True)
class Observation:
    """The values of one metric for one workload under one policy."""

    workload: str
    policy: str
    metric: str
    real: FloatArray
    """Shape (repetitions,)."""
    predicted: FloatArray
    """Shape (predictions,)."""


@dataclass(frozen=True)
class PolicyPair:
    """Two policies on one workload: the real and the predicted ratio of a metric."""

    workload: str
    metric: str
    first: str
    second: str
    real: float
    """Logarithm of the ratio first / second of the real means; the difference if a value is not above 0."""
    low: float
    """Lower end of the confidence interval of `real` (Welch). NaN without two repetitions of each policy."""
    high: float
    predicted: float
    """The same logarithm or difference of the predictions."""

    @property
    def decisive(self) -> bool:
        """Whether the interval of the real ratio excludes equal policies."""
        return self.low > 0 or self.high < 0

    @property
    def concordant(self) -> bool:
        """Whether the pair is decisive and predicted in the same order."""
        return self.decisive and self.real * self.predicted > 0

    @property
    def discordant(self) -> bool:
        """Whether the pair is decisive and predicted in the opposite order. A predicted tie is neither."""
        return self.decisive and self.real * self.predicted < 0

    @property
    def sentence(self) -> str:
        """The pair as text: `cirne, wait: easy below pref in the real runs, above in the predictions`."""
        metric = all_metrics().get(self.metric)
        label = metric.label if metric else self.metric
        real, predicted = ("below" if x < 0 else "above" if x > 0 else "equal" for x in (self.real, self.predicted))
        return (
            f"{self.workload}, {label}: {self.first} {real} {self.second} in the real runs, "
            f"{predicted} in the predictions"
        )

    def to_json(self) -> dict[str, Any]:
        """Return the pair as JSON values."""
        return asdict(self) | {"decisive": self.decisive, "concordant": self.concordant, "discordant": self.discordant}


@dataclass(frozen=True)
class Order:
    """The order of the policies on one workload by one metric."""

    workload: str
    metric: str
    policies: tuple[str, ...]
    """The policies in ascending order of the real mean."""
    predicted: tuple[str, ...]
    """The policies in ascending order of the predicted mean."""
    tau_b: float
    """Rank correlation of the real and the predicted means; NaN if all means of a side are equal."""


@dataclass(frozen=True)
class Ranking:
    """The pairs and orders of the policies, by workload and metric."""

    pairs: tuple[PolicyPair, ...]
    orders: tuple[Order, ...]

    @property
    def decisive(self) -> int:
        """Number of decisive pairs."""
        return sum(pair.decisive for pair in self.pairs)

    @property
    def concordant(self) -> int:
        """Number of decisive pairs that are predicted in the same order."""
        return sum(pair.concordant for pair in self.pairs)

    @property
    def discordant(self) -> tuple[PolicyPair, ...]:
        """The decisive pairs that are predicted in the opposite order."""
        return tuple(pair for pair in self.pairs if pair.discordant)

    @property
    def passed(self) -> bool:
        """Whether no decisive pair is predicted in the opposite order."""
        return not self.discordant

    @property
    def headline(self) -> str:
        """The result in one sentence."""
        if not self.decisive:
            return f"the noise of the real runs decides none of the {len(self.pairs)} pairs of policies"
        found = f"{self.concordant} of {self.decisive} decisive pairs of policies are predicted in the real order"
        few = min(len(order.policies) for order in self.orders)
        return found + (f"; a rank correlation (tau-b) of {few} policies means little" if few < ENOUGH_POLICIES else "")

    def to_json(self) -> dict[str, Any]:
        """Return the ranking as JSON values."""
        return {
            "decisive": self.decisive,
            "concordant": self.concordant,
            "discordant": [pair.to_json() for pair in self.discordant],
            "passed": self.passed,
            "headline": self.headline,
            "pairs": [pair.to_json() for pair in self.pairs],
            "orders": [
                asdict(order) | {"policies": list(order.policies), "predicted": list(order.predicted)}
                for order in self.orders
            ],
        }


def rank(observations: Iterable[Observation], *, alpha: float = ALPHA) -> Ranking | None:
    """Return the ranking of the policies, or None if no workload has two policies with defined values.

    Args:
        observations: one per workload, policy and metric. Undefined values (NaN) are ignored.
        alpha: level of each side of the intervals.
    """
    groups: dict[tuple[str, str], list[Observation]] = {}
    for each in observations:
        known = Observation(each.workload, each.policy, each.metric, _defined(each.real), _defined(each.predicted))
        if len(known.real) and len(known.predicted):
            groups.setdefault((each.workload, each.metric), []).append(known)
    several = [group for group in groups.values() if len(group) > 1]
    if not several:
        return None
    pairs = [_pair(a, b, alpha) for group in several for a, b in combinations(group, 2)]
    return Ranking(tuple(pairs), tuple(map(_order, several)))


def _defined(values: FloatArray) -> FloatArray:
    values = np.asarray(values, dtype=np.float64)
    return np.asarray(values[np.isfinite(values)])


def _pair(a: Observation, b: Observation, alpha: float) -> PolicyPair:
    sides = [a.real, b.real, a.predicted, b.predicted]
    if all((side > 0).all() for side in sides):
        sides = [np.log(side) for side in sides]
    first, second, *predicted = sides
    low, high = welch_interval(first, second, alpha)
    means = float(first.mean() - second.mean()), float(predicted[0].mean() - predicted[1].mean())
    return PolicyPair(a.workload, a.metric, a.policy, b.policy, means[0], low, high, means[1])


def welch_interval(a: FloatArray, b: FloatArray, alpha: float = ALPHA) -> tuple[float, float]:
    """Return the confidence interval of mean(a) - mean(b) with unequal variances (Welch 1947).

    Returns:
        Both ends, NaN if a sample has fewer than two values. Without any variation, both are the difference.
    """
    from scipy import stats

    if len(a) < 2 or len(b) < 2:
        return math.nan, math.nan
    difference = float(a.mean() - b.mean())
    parts = [float(side.var(ddof=1)) / len(side) for side in (a, b)]
    if not sum(parts):
        return difference, difference
    df = sum(parts) ** 2 / sum(part**2 / (len(side) - 1) for part, side in zip(parts, (a, b), strict=True))
    half = float(stats.t.ppf(1 - alpha, df)) * math.sqrt(sum(parts))
    return difference - half, difference + half


def _order(group: list[Observation]) -> Order:
    from scipy import stats

    real, predicted = ([float(getattr(each, side).mean()) for each in group] for side in ("real", "predicted"))
    varied = np.ptp(real) > 0 and np.ptp(predicted) > 0
    tau = float(stats.kendalltau(real, predicted).statistic) if varied else math.nan

    def names(means: list[float]) -> tuple[str, ...]:
        return tuple(group[index].policy for index in np.argsort(means, kind="stable"))

    return Order(group[0].workload, group[0].metric, names(real), names(predicted), tau)
