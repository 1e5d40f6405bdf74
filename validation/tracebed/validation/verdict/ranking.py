"""Ranking of policies: by the real runs of one workload, and whether a prediction orders them as the real runs do.

Only pairs of policies whose real difference is larger than the noise of the repetitions count in the ranking. In trials
with known truth, all such decisive pairs agreed with an unbiased simulator, while undecided pairs agreed in 73 to 80 %
of cases.

In the comparison of two policies on a testbed, their k-th repetitions are a pair, so that a drift of the machine
cancels if the repetitions of the policies were executed in turn. The interval of the mean difference is Student's,
over the pairs. With different numbers of repetitions there are no pairs, and the interval is Welch's.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd

from tracebed.converters.workload import FloatArray
from tracebed.ground.display import cell, counted, effect, rows_html, signed
from tracebed.ground.errors import InputError, TestbedError
from tracebed.ground.sparks import interval_svg
from tracebed.orchestrator.run import Run
from tracebed.validation.metrics import TAU, MeasuredRun, all_metrics, summarize
from tracebed.validation.significance import ROUNDING, Difference
from tracebed.validation.statistics import half_width
from tracebed.validation.verdict.screening import Repetition, screen
from tracebed.validation.verdict.tolerances import Tolerances

ALPHA = 0.025  # level of each side of the interval that decides about a pair
ENOUGH_POLICIES = 5
"""Number of policies from which tau-b has a meaning: by chance it is 1 for 3 policies in 17 % of cases, for 5 in
0.8 %."""

LEVEL = 0.95


def alone(real: Difference) -> str:
    """Return a difference without an interval as text."""
    return f"{share_text(real.relative(real.change))} (no interval)"


def share_text(share: float) -> str:
    """Return a share as signed percent; a dash if unknown."""
    return "-" if math.isnan(share) else f"{signed(100 * share)} %" if share else "0 %"


@dataclass(frozen=True)
class Observation:
    """The values of one metric for one workload under one policy."""

    workload: str
    policy: str
    metric: str
    real: FloatArray  # shape (repetitions,)
    predicted: FloatArray  # shape (predictions,)


@dataclass(frozen=True)
class PolicyPair:
    """Two policies on one workload: the real and the predicted ratio of a metric."""

    workload: str
    metric: str
    first: str
    second: str
    real: float  # logarithm of the ratio first / second of the real means; the difference if a value is not above 0
    low: float  # Lower end of the confidence interval of `real` (Welch). NaN without two repetitions of each policy.
    high: float
    predicted: float  # the same logarithm or difference of the predictions

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
    policies: tuple[str, ...]  # the policies in ascending order of the real mean
    predicted: tuple[str, ...]  # the policies in ascending order of the predicted mean
    tau_b: float  # rank correlation of the real and the predicted means; NaN if all means of a side are equal


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
        policies = len({(pair.workload, pair.first, pair.second) for pair in self.pairs})
        total = f"{counted(len(self.pairs), 'comparison')} ({counted(policies, 'pair')} of policies, by each metric)"
        if not self.decisive:
            return f"the noise of the real runs decides none of {total}"
        found = (
            f"of {total}, the real runs decide {self.decisive}, and {self.concordant} of these {self.decisive} "
            "are predicted in the real order"
        )
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
    """Return the ranking of the policies, or None if no workload has two policies with defined values."""
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
    """Return the confidence interval of mean(a) - mean(b) with unequal variances (Welch 1947); NaN below two values."""
    # Without any variation, both ends are the difference.
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


@dataclass(frozen=True, repr=False)
class PolicyComparison:
    """Policies compared with the first of them by their real runs of one workload."""

    workload: str
    repetitions: Mapping[str, tuple[Repetition, ...]]
    """Policy -> its repetitions. Those that are excluded are not part of the differences."""
    differences: Mapping[str, Mapping[str, Difference]]
    """Policy, without the first one -> metric -> difference to the first one, with its 95 % interval."""
    warnings: Sequence[str]
    predicted: Mapping[str, Mapping[str, Difference]] = field(default_factory=dict)
    """As `differences`, between the means of the predictions; empty without predictions."""

    @property
    def first(self) -> str:
        """The policy to which the others are compared."""
        return next(iter(self.repetitions))

    def to_frame(self) -> pd.DataFrame:
        """Return a row per policy and metric.

        Returns:
            index `policy` and `metric` (whose name ends in its unit); columns `first` and `mean` (of the first policy
            and of this one), `change`, `low` and `high` (difference of the means with its 95 % interval, as shares of
            the first mean), `pairs` (0: not paired), and `differ` (whether the interval excludes zero; None: unknown).
            With predictions, also `simulated` (difference of the predictions, as a share of their first mean), and
            `same_sign` (whether the simulated and the real difference have one sign; None unless `differ`).
        """
        rows = {
            (policy, name): [
                *(each.base, each.base + each.change),
                *(each.relative(value) for value in (each.change, each.low, each.high)),
                *(each.pairs, each.differ),
                *self._predicted(policy, name),
            ]
            for policy, found in self.differences.items()
            for name, each in found.items()
        }
        index = pd.MultiIndex.from_tuples(list(rows), names=["policy", "metric"])
        columns = ["first", "mean", "change", "low", "high", "pairs", "differ"]
        columns += ["simulated", "same_sign"] if self.predicted else []
        return pd.DataFrame(list(rows.values()), columns=columns, index=index)

    def _predicted(self, policy: str, name: str) -> tuple[float, bool | None] | tuple[()]:
        """Return the simulated difference as a share, and whether it has the sign of a real one that is clear."""
        if not self.predicted:
            return ()
        real, simulated = self.differences[policy][name], self.predicted.get(policy, {}).get(name)
        if simulated is None:
            return math.nan, None
        return simulated.relative(simulated.change), real.change * simulated.change > 0 if real.differ else None

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Return heads and rows for a paper: a row per policy and gated metric, with units, n and intervals."""
        heads = ["policy", "metric", self.first, "mean", "real gain (95 %)", "n"]
        heads[4:4] = ["simulated gain"] if self.predicted else []
        heads += ["same sign"] if self.predicted else []
        known, rows = all_metrics(), []
        for policy, found in self.differences.items():
            for name in self._gated(policy):
                real = found[name]
                simulated, same = self._predicted(policy, name) or (math.nan, None)
                row = [policy, known[name].title, cell(real.base), cell(real.base + real.change)]
                row += [share_text(simulated)] if self.predicted else []
                known_interval = real.differ is not None
                row += [effect(real.change, real.low, real.high, real.base) if known_interval else alone(real)]
                row += [str(real.pairs) if real.pairs else "not paired"]
                rows.append(row + (["unclear" if same is None else "yes" if same else "no"] if self.predicted else []))
        return heads, rows

    @property
    def headline(self) -> str:
        """In how many of the clear real differences the simulated one has the same sign; empty without predictions."""
        signs = [row[-1] for row in self.table()[1]] if self.predicted else []
        clear = sum(sign != "unclear" for sign in signs)
        found = f"the real gain is clear in {clear} of {len(signs)} comparisons"
        if not clear:
            return f"{found}: repeat the replays more often" if signs else ""
        return f"{found}; the simulated gain has the same sign in {signs.count('yes')} of these {clear}"

    @property
    def caption(self) -> str:
        """What the table and the picture show: the workload, the intervals, n, and the seeds."""
        run = self.repetitions[self.first][0].run
        where = f"{run.total_nodes} nodes ({run.info.execution})"
        each = ", ".join(f"{policy}: n = {count}" for policy, count in self._counts.items())
        simulated = " The simulated gain is that of the predictions." if self.predicted else ""
        return (
            f"Difference of the means from {self.first} on {self.workload}, as a share of the mean of {self.first}: "
            f"real runs on {where} at {run.info.speed:g} trace seconds a second ({each}). The interval is Student's, "
            f"95 %, over n pairs of repetitions, or Welch's where they are not paired.{simulated} A sign is unclear if "
            f"the interval contains zero. One workload: the interval is not over seeds."
        )

    @property
    def _counts(self) -> dict[str, int]:
        """Number of repetitions of each policy that are not excluded."""
        return {policy: sum(not run.excluded for run in own) for policy, own in self.repetitions.items()}

    def to_json(self) -> dict[str, Any]:
        """Return the comparison as JSON values."""
        rows = self.to_frame().reset_index().to_dict("records")
        return {
            "workload": self.workload,
            "first": self.first,
            "repetitions": self._counts,
            "gains": rows,
            "headline": self.headline,
            "warnings": list(self.warnings),
        }

    def explain(self) -> str:
        """Return the comparison as text: a line per policy and gated metric, and the warnings."""
        lines = []
        for policy, rows in self._rows().items():
            lines += [self._title(policy), *(f"  {label}: {text}" for label, *_, text in rows)]
        lines += ["The intervals are over repetitions of this workload. Other workloads may differ."]
        return "\n".join([*lines, *(f"Warning: {warning}" for warning in self.warnings)])

    def _title(self, policy: str) -> str:
        pairs = max((each.pairs for each in self.differences[policy].values()), default=0)
        numbers = [sum(not run.excluded for run in self.repetitions[name]) for name in (policy, self.first)]
        runs = f"{pairs} pairs of real runs" if pairs else "{} and {} real runs, not paired".format(*numbers)
        return f"{policy} against {self.first} on {self.workload}, {runs}:"

    def _rows(self) -> dict[str, list[tuple[str, str, str, str]]]:
        """Return for each policy a row per gated metric: label, both means, and the difference in words."""
        known = all_metrics()
        return {
            policy: [
                (
                    known[name].title,
                    cell(found[name].base),
                    cell(found[name].base + found[name].change),
                    found[name].text,
                )
                for name in self._gated(policy)
            ]
            for policy, found in self.differences.items()
        }

    def _gated(self, policy: str) -> list[str]:
        """Return the metrics on which verdicts depend, of those that are defined for a policy and the first one."""
        known = all_metrics()
        return [name for name in self.differences[policy] if (margin := known[name].margin) and margin.gate]

    def __repr__(self) -> str:
        return f"<PolicyComparison of {', '.join(self.differences)} with {self.first} on {self.workload}>"

    def _repr_html_(self) -> str:
        """Return a small table for notebooks."""
        parts = []
        for policy, rows in self._rows().items():
            found = [self.differences[policy][name] for name in self._gated(policy)]
            shares = [(each.relative(each.low), each.relative(each.change), each.relative(each.high)) for each in found]
            reach = max((abs(value) for row in shares for value in row if np.isfinite(value)), default=0.0)
            names = ("metric", self.first, policy, "difference", f"-{reach:.1%} to {reach:.1%}")
            bars = [interval_svg(*bar, reach) for bar in shares]
            title = html.escape(self._title(policy))
            parts.append(f"<p><strong>{title}</strong></p>{rows_html(names, rows, bars)}")
        notes = "".join(f"<li>{html.escape(warning)}</li>" for warning in self.warnings)
        return "".join(parts) + f"<ul>{notes}</ul>"


def compare_policies(
    runs: Mapping[str, Sequence[Run]], tau: float = TAU, predicted: Mapping[str, Sequence[Run]] | None = None
) -> PolicyComparison:
    """Compare policies with the first of them by their real runs of one workload, in the order of execution.

    `predicted` has policy -> its predictions, for the gain that was simulated.
    """
    if len(runs) < 2:
        raise InputError("there are fewer than two policies", hint="give the real runs of two policies or more")
    _check(runs)
    tolerances = Tolerances.default()
    repetitions, figures = {}, {}
    least = min(map(len, runs.values()))
    for policy, own in runs.items():
        summaries = [summarize(MeasuredRun(run, tau)) for run in own]
        names = [f"rep-{number:02d}" for number in range(1, len(own) + 1)]
        repetitions[policy] = screen(own, names, summaries, tolerances.unmatched)
        used = [not each.excluded for each in repetitions[policy]]
        if not any(used):
            why = repetitions[policy][0].excluded
            raise TestbedError(
                f"{policy} has no real run that can be compared: {why}",
                hint="replay at a lower speed, or on a quieter machine",
            )
        compared = [name for name, metric in all_metrics().items() if metric.margin]
        values = {name: np.array([each[name] for each in summaries], dtype=float) for name in compared}
        figures[policy] = {name: in_place(np.where(used, each, np.nan), least) for name, each in values.items()}
    first, *others = figures
    differences = {
        policy: {
            name: difference
            for name, values in figures[policy].items()
            if (difference := _difference(figures[first][name], values)) is not None
        }
        for policy in others
    }
    workload = str(runs[first][0].info.workload.get("name") or "workload")
    warnings = _warnings(repetitions)
    simulated = _simulated(first, predicted, tau) if predicted else {}
    if predicted and (missing := [policy for policy in others if policy not in simulated]):
        warnings.append(f"no simulated gain of {', '.join(missing)}: {first} or this policy has no prediction")
    return PolicyComparison(workload, repetitions, differences, warnings, simulated)


def in_place(values: FloatArray, number: int) -> FloatArray:
    """Return the values of `number` repetitions: those that were added are in the place of excluded ones, NaN.

    If more were added than excluded, all values are returned, which are no pairs then.
    """
    kept, added = values[:number].copy(), values[number:]
    added, gaps = added[~np.isnan(added)], np.flatnonzero(np.isnan(kept))
    if len(added) > len(gaps):
        return values
    kept[gaps[: len(added)]] = added
    return kept


def _simulated(first: str, predicted: Mapping[str, Sequence[Run]], tau: float) -> dict[str, dict[str, Difference]]:
    """Return the differences of the predictions of each policy from those of the first one."""
    names = [name for name, metric in all_metrics().items() if metric.margin]
    summaries = {policy: [summarize(MeasuredRun(run, tau)) for run in own] for policy, own in predicted.items()}
    values = {
        policy: {name: np.array([each[name] for each in own], dtype=float) for name in names}
        for policy, own in summaries.items()
    }
    return {
        policy: {
            name: difference
            for name in names
            if (difference := _difference(values[first][name], own[name])) is not None
        }
        for policy, own in values.items()
        if policy != first and first in values
    }


def _check(runs: Mapping[str, Sequence[Run]]) -> None:
    """Raise InputError unless all runs are real runs of one workload."""
    for policy, own in runs.items():
        if not own:
            raise InputError(f"{policy} has no run")
    first = next(iter(runs.values()))[0]
    for policy, own in runs.items():
        for run in own:
            if not run.info.is_real:
                raise InputError(
                    f"a run of {policy} is {run.info.kind}", hint="`tb.metrics` shows any runs side by side"
                )
            if run.info.workload.get("sha256") != first.info.workload.get("sha256"):
                raise InputError(
                    f"the workload of a run of {policy} is another one", hint="compare runs of one workload"
                )


def _difference(first: FloatArray, second: FloatArray) -> Difference | None:
    """Return the difference of a metric, second - first, NaN where excluded; None if one policy has no value."""
    one, two = (values[~np.isnan(values)] for values in (first, second))
    if not len(one) or not len(two):
        return None
    if len(first) == len(second) and (known := ~np.isnan(first) & ~np.isnan(second)).any():
        one, each = first[known], (second - first)[known]
        change, pairs = float(each.mean()), len(each)
        half = half_width(each, LEVEL) if pairs > 1 else np.nan
        low, high = change - half, change + half
    else:
        change, pairs = float(two.mean() - one.mean()), 0
        low, high = welch_interval(two, one, (1 - LEVEL) / 2)
    small = ROUNDING * abs(float(one.mean()))
    change, low, high = (0.0 if abs(value) <= small else float(value) for value in (change, low, high))
    differ = None if np.isnan(low) else low > 0 or high < 0
    return Difference(change, low, high, float(one.mean()), pairs, differ)


def _warnings(repetitions: Mapping[str, Sequence[Repetition]]) -> list[str]:
    """Return a sentence for each excluded repetition, and for each setting besides the policy that differs."""
    excluded = [
        f"{policy}, {each.name} is excluded: {each.excluded}"
        for policy, own in repetitions.items()
        for each in own
        if each.excluded
    ]
    settings = {
        policy: {"speed": own[0].run.info.speed, "nodes": own[0].run.total_nodes} | own[0].run.info.settings
        for policy, own in repetitions.items()
    }
    (first, base), *others = settings.items()
    return excluded + [
        f"{name} differs: {base[name]} with {first}, {own[name]} with {policy}"
        for policy, own in others
        for name in base
        if name in own and own[name] != base[name]
    ]
