"""Error rates of the verdict, by simulation.

`python -m tests.oracles.error_rates` prints the tables of docs/explanation/verdict.md.

A trial is a validation of a simulator whose true errors are known, on W cases with R repetitions each. Five metrics are
gated. The standard deviation of a repetition is 0.5 to 0.8 margins. The noise is correlated between the metrics (0.7)
and skewed, since disturbances only delay: it has a standardized gamma distribution. Other forms are normal and
lognormal noise, and a schedule that takes one of two courses.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np
from scipy import stats

from tracebed.converters.workload import BoolArray, FloatArray
from tracebed.validation.verdict.decision import POWER, Estimate, Samples, estimate, power, rejected, third_moment
from tracebed.validation.verdict.tolerances import Tolerances

MARGINS = np.array([0.03, 0.10, 0.05, 0.10, 0.03])
"""Relative margins of makespan, wait, response, bounded slowdown and utilization."""
NOISE = np.array([0.5, 0.8, 0.6, 0.7, 0.5])
"""Standard deviation of a repetition of each metric, in margins."""
CORRELATION = 0.7
SKEWNESS = 0.5
"""Skewness of the noise, about that of repetitions on emulated nodes."""
DESIGNS = ((1, 5), (1, 10), (3, 5), (5, 3), (5, 5), (10, 3))
"""Numbers of cases and of repetitions of each case."""
Noise = float | str
"""Form of the noise: the skewness of gamma distributed noise, `normal`, `lognormal` (sigma 1, skewness 6.2), or the
probability of the slower one of two courses as `course 0.3`."""
NOISES: tuple[Noise, ...] = ("normal", 0.5, 1.0, 2.0, "lognormal", "course 0.5", "course 0.3", "course 0.1")
SKEWED_TRIALS = 5000
"""Trials of the table by form of the noise; the standard error of a rate of 5 % is 0.3 %."""
WITHIN = 0.1
"""Standard deviation within a course, as a share of the distance of the courses."""
RULE = Tolerances.default()


@dataclass(frozen=True)
class Rates:
    """Shares of the trials, by metric."""

    found: list[Estimate]
    """The errors of each metric in all trials."""

    @cached_property
    def accepted(self) -> BoolArray:
        """The trials in which a metric is accepted, shape (metrics, trials)."""
        return np.array([each.accurate for each in self.found])

    @cached_property
    def rejected(self) -> BoolArray:
        """The trials in which a metric is found inaccurate, by Holm's procedure, shape (metrics, trials)."""
        return np.array(rejected([each.p for each in self.found], RULE.alpha))

    @property
    def accept(self) -> FloatArray:
        """Accepted."""
        return self.accepted.mean(axis=1)

    @property
    def unguarded(self) -> FloatArray:
        """Accepted if the guard of each case is ignored."""
        return np.array([np.abs(each.mean) + each.half + each.reserve < 1 for each in self.found]).mean(axis=1)

    @property
    def unreserved(self) -> FloatArray:
        """Accepted if the reserve for skewed noise is ignored."""
        return np.array([each.inside & ~each.outlier for each in self.found]).mean(axis=1)

    @property
    def reject(self) -> FloatArray:
        """Found inaccurate, by Holm's procedure over the metrics."""
        return self.rejected.mean(axis=1)

    @property
    def any_reject(self) -> float:
        """At least one metric found inaccurate."""
        return float(self.rejected.any(axis=0).mean())

    @property
    def all_accept(self) -> float:
        """All metrics accepted: the overall verdict is accurate."""
        return float(self.accepted.all(axis=0).mean())


def drawn(noise: Noise, shape: tuple[int, ...], generator: np.random.Generator) -> Iterator[FloatArray]:
    """Yield noise of mean 0 and standard deviation 1 for each metric, correlated between the metrics."""
    if isinstance(noise, str):
        kind, _, chance = noise.partition(" ")
        probability = float(chance or 0)
        shared, slow = generator.normal(size=shape), generator.random(shape) < probability
    else:
        form = 4 / noise**2  # of the gamma distribution
        shared = generator.gamma(form * CORRELATION, size=shape)
    for _ in NOISE:
        if not isinstance(noise, str):
            yield (shared + generator.gamma(form * (1 - CORRELATION), size=shape) - form) / np.sqrt(form)
            continue
        normal = np.sqrt(CORRELATION) * shared + np.sqrt(1 - CORRELATION) * generator.normal(size=shape)
        if kind == "course":
            yield (slow - probability + WITHIN * normal) / np.sqrt(probability * (1 - probability) + WITHIN**2)
        else:
            yield normal if kind == "normal" else (np.exp(normal) - np.sqrt(np.e)) / np.sqrt(np.e * (np.e - 1))


def rates(
    cases: int,
    repeats: int,
    errors: float | FloatArray,
    *,
    noise: Noise = SKEWNESS,
    runs: int = 0,
    trials: int = 20_000,
    seed: int = 1,
) -> Rates:
    """Return the rates for a simulator with the true errors `errors`, in margins: a number, or shape (cases,).

    `noise` is the form of the noise of the real runs, and of the spread of the ensemble of `runs` predictions (0: one
    prediction without noise). `trials` is the number of validations.
    """
    found = []
    parts = _noises(noise, cases, repeats, runs, trials, seed)
    for margin, width, (samples, spread) in zip(MARGINS, NOISE, parts, strict=True):
        predicted = np.asarray(100 * (1 + margin * (np.asarray(errors) + width * spread)))
        of_error = replace(samples, predicted=np.broadcast_to(predicted, samples.real.shape))
        found.append(estimate(of_error, RULE.alpha, RULE.kappa))
    return Rates(found)


@lru_cache(maxsize=len(DESIGNS))  # other errors, of both signs, are tried on the same noise
def _noises(
    noise: Noise, cases: int, repeats: int, runs: int, trials: int, seed: int
) -> list[tuple[Samples, FloatArray]]:
    """Return the samples of each metric, their predictions unknown, and the means of the noise of the predictions."""
    generator = np.random.default_rng(seed)
    of_real = drawn(noise, (trials, cases, repeats), generator)
    of_runs = drawn(noise, (trials, cases, runs), generator) if runs else (np.zeros(1) for _ in NOISE)
    found = []
    for margin, width, own, spread in zip(MARGINS, NOISE, of_real, of_runs, strict=True):
        real = 100 * (1 + margin * width * own)
        more = {"predicted_sd": 100 * margin * width * spread.std(axis=-1, ddof=1), "runs": runs} if runs else {}
        samples = Samples.of(real, np.nan, margin * np.abs(real.mean(axis=-1)), **more)
        found.append((samples, spread.mean(axis=-1)))
    return found


def cancelling(cases: int) -> FloatArray:
    """Return errors of 3 margins with alternating signs."""
    return 3.0 * (-1.0) ** np.arange(cases)


def one_bad(cases: int) -> FloatArray:
    """Return an error of 4 margins in one case, and exact predictions of the others."""
    return np.array([4.0] + [0.0] * (cases - 1))


def table() -> str:
    """Return the table of the rates in Markdown. Ranges are over the metrics."""
    head = (
        "W x R",
        "exact: accept",
        "exact: reject",
        "error 0.5: accept",
        "error 1: false accept",
        "error 1: reject",
        "any metric rejected at 1",
        "error 2: reject",
        "cancelling ±3: accept (no guard)",
        "one case off by 4: accept (no guard)",
    )
    rows = [head, ("---",) * len(head)]
    for cases, repeats in DESIGNS:
        exact, half, twice = (rates(cases, repeats, error) for error in (0.0, 0.5, 2.0))
        above, below = (rates(cases, repeats, error) for error in (1.0, -1.0))
        bad = [rates(cases, repeats, errors(cases)) for errors in (cancelling, one_bad)]
        rows.append(
            (
                f"{cases} x {repeats}",
                span(exact.accept),
                f"{exact.any_reject:.4f}",
                span(half.accept),
                f"{span(above.accept)}; {span(below.accept)}",
                f"{span(above.reject)}; {span(below.reject)}",
                f"{above.any_reject:.3f}; {below.any_reject:.3f}",
                span(twice.reject),
                *(f"{span(each.accept)} ({span(each.unguarded)})" for each in bad),
            )
        )
    return markdown(rows)


def skewed(runs: int) -> str:
    """Return the table of the rates by form of the noise in Markdown, for ensembles of `runs` predictions (0: none).

    A cell has the largest false acceptance at the margin over both signs and all metrics, the same without the reserve,
    and the acceptance of an exact prediction for the metric with the least noise.
    """
    rows = [(f"W x R, {runs} predictions", *(str(each) for each in NOISES))]
    rows.append(("---",) * len(rows[0]))
    for cases, repeats in DESIGNS:
        row = [f"{cases} x {repeats}"]
        for noise in NOISES:
            sides = [
                rates(cases, repeats, error, noise=noise, runs=runs, trials=SKEWED_TRIALS) for error in (1.0, -1.0)
            ]
            exact = rates(cases, repeats, 0.0, noise=noise, runs=runs, trials=SKEWED_TRIALS)
            accept, before = (max(getattr(side, name).max() for side in sides) for name in ("accept", "unreserved"))
            row.append(f"{accept:.3f} ({before:.3f}), {exact.accept.max():.2f}")
        rows.append(tuple(row))
    return markdown(rows)


def alternatives() -> str:
    """Return the false acceptance at the margin for other reserves in Markdown: one metric, small noise, worse sign.

    A reserve has the constant `a` and the weight `b` of the observed skewness, as (0, 1): that of Hall.
    """
    forms: tuple[Noise, ...] = ("normal", 2.0, "lognormal")
    designs = ((1, 5), (1, 10), (5, 5))
    rows = [("reserve", *(f"{cases} x {repeats}: {', '.join(map(str, forms))}; width" for cases, repeats in designs))]
    rows.append(("---",) * len(rows[0]))
    for name, alpha, a, b in (
        ("none", RULE.alpha, 0, 0),
        ("none, level 1 %", 0.01, 0, 0),
        ("observed", RULE.alpha, 0, 1),
        ("1 + observed", RULE.alpha, 1, 1),
        ("2 + observed", RULE.alpha, 2, 1),
    ):
        row = [name]
        for cases, repeats in designs:
            found = [_reserved(form, cases, repeats, alpha, a, b) for form in forms]
            row.append(f"{', '.join(f'{rate:.3f}' for rate, _ in found)}; {found[0][1]:.2f}")
        rows.append(tuple(row))
    return markdown(rows)


def _reserved(noise: Noise, cases: int, repeats: int, alpha: float, a: float, b: float) -> tuple[float, float]:
    """Return the false acceptance, and the median width of the interval relative to Student's t."""
    shape = (40_000, cases, repeats)
    real = next(drawn(noise, shape, np.random.default_rng(1)))
    found = estimate(Samples.of(real, np.zeros(shape[:2]), np.full(shape[:2], 1e9)), RULE.alpha, RULE.kappa)
    t = stats.t.isf(alpha, found.df)
    cubes = third_moment(real).mean(axis=-1) / real.var(axis=-1, ddof=1).mean(axis=-1) ** 1.5
    wide = t + (a + b * np.abs(cubes)) / np.sqrt(cases * repeats) * (2 * t**2 + 1) / 6
    missed = real.mean(axis=(1, 2)) + wide * found.se * 1e9 < 0
    return float(missed.mean()), float(np.median(wide / stats.t.isf(RULE.alpha, found.df)))


LOSSES = ((3, 5, 1), (5, 3, 1), (2, 5, 1), (5, 5, 2), (10, 3, 3), (1, 5, 1), (3, 5, 3), (5, 3, 5))
"""Numbers of cases, of repetitions of each, and of cases that lack one; the last three are beyond the rule."""
FIELDS = ("real", "sd", "df", "repeats", "predicted", "margin", "third")


def short(cases: int, repeats: int, lost: int, error: float, extreme: int = 0) -> tuple[Rates, FloatArray]:
    """Return the rates if `lost` cases lack one repetition, and the shares accepted by the rule for such a loss.

    `extreme` is 1 if the excluded repetition is the one with the largest value of its case, -1 with the smallest, and 0
    if its exclusion does not depend on its value. `error` is the true one, in margins.
    """
    found, accepted = [], []
    noise = drawn(SKEWNESS, (SKEWED_TRIALS, cases, repeats), np.random.default_rng(1))
    for margin, width, own in zip(MARGINS, NOISE, noise, strict=True):
        real = 100 * (1 + margin * width * (np.sort(own)[..., ::-extreme] if extreme else own))
        sides = [
            Samples.of(part, np.full(part.shape[:2], 100 * (1 + margin * error)), margin * np.abs(part.mean(axis=-1)))
            for part in (real[:, :lost, 1:], real[:, lost:])
        ]
        parts = {name: np.concatenate([getattr(side, name) for side in sides], axis=1) for name in FIELDS}
        found.append(estimate(Samples(**parts), RULE.alpha, RULE.kappa))
        rows = [
            Samples(**{name: part[trial] for name, part in parts.items()}) for trial in found[-1].accurate.nonzero()[0]
        ]
        powers = [power(row, estimate(row, RULE.alpha, RULE.kappa), RULE.alpha, repeats - 1) for row in rows]
        accepted.append(sum(each >= POWER for each in powers) / SKEWED_TRIALS)
    return Rates(found), np.array(accepted)


def losses() -> str:
    """Return the table of the rates after exclusions in Markdown.

    False acceptance and false rejection are those of the worst sign. Without the rule for exclusions, no prediction is
    accepted where a case lacks a repetition, and as many are rejected.
    """
    head = ("W x R, cases that lack one", "exact: accept (by the interval alone)", "exact: any rejected")
    head += ("error 1: false accept (alone)", "the same, the extreme one excluded", "any metric rejected at 1")
    rows = [head, ("---",) * len(head)]
    for cases, repeats, lost in LOSSES:
        exact, accepted = short(cases, repeats, lost, 0.0)
        sides = [short(cases, repeats, lost, error) for error in (1.0, -1.0)]
        worst = [short(cases, repeats, lost, error, extreme) for error in (1.0, -1.0) for extreme in (1, -1)]
        alone, extreme = (max(made.accept.max() for made, _ in each) for each in (sides, worst))
        false, biased = (max(own.max() for _, own in each) for each in (sides, worst))
        proved = [max(made.any_reject for made, _ in each) for each in (sides, worst)]
        rows.append(
            (
                f"{cases} x {repeats}, {lost}",
                f"{span(accepted)} ({span(exact.accept)})",
                f"{exact.any_reject:.4f}",
                f"{false:.4f} ({alone:.4f})",
                f"{biased:.4f} ({extreme:.4f})",
                f"{proved[0]:.3f}; {proved[1]:.3f}",
            )
        )
    return markdown(rows)


def markdown(rows: list[tuple[str, ...]]) -> str:
    """Return rows as a Markdown table."""
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def span(values: FloatArray) -> str:
    """Return the smallest and the largest value as text."""
    low, high = (f"{value:.3f}" for value in (values.min(), values.max()))
    return low if low == high else f"{low}-{high}"


if __name__ == "__main__":
    sys.stdout.write("\n\n".join([alternatives(), table(), losses(), *(skewed(runs) for runs in (0, 20))]) + "\n")
