"""Error rates of the verdict, by simulation.

`python tests/error_rates.py` prints the tables of docs/explanation/verdict.md.

A trial is a validation of a simulator whose true errors are known, on W cases with R repetitions each. Five metrics are
gated. The standard deviation of a repetition is 0.5 to 0.8 margins. The noise is correlated between the metrics (0.7)
and skewed, since disturbances only delay: it has a standardized gamma distribution.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

import numpy as np

from tracebed.converters.workload import FloatArray
from tracebed.validation.verdict.decision import Samples, estimate, rejected
from tracebed.validation.verdict.tolerances import Tolerances

MARGINS = np.array([0.03, 0.10, 0.05, 0.10, 0.03])
"""Relative margins of makespan, wait, response, bounded slowdown and utilization."""
NOISE = np.array([0.5, 0.8, 0.6, 0.7, 0.5])
"""Standard deviation of a repetition of each metric, in margins."""
CORRELATION = 0.7
SKEWNESS = 0.5
"""Skewness of the noise, about that of repetitions on emulated nodes."""
DESIGNS = ((1, 5), (3, 5), (5, 3), (5, 5), (10, 3))
"""Numbers of cases and of repetitions of each case."""
SKEWNESSES = (0.01, 0.5, 1.0, 2.0)
RULE = Tolerances.default()


@dataclass(frozen=True)
class Rates:
    """Shares of the trials, by metric."""

    accept: FloatArray
    unguarded: FloatArray
    """Accepted if the guard of each case is ignored."""
    reject: FloatArray
    """Found inaccurate, by Holm's procedure over the metrics."""
    any_reject: float
    """At least one metric found inaccurate."""
    all_accept: float
    """All metrics accepted: the overall verdict is accurate."""


def rates(
    cases: int,
    repeats: int,
    errors: float | FloatArray,
    *,
    skewness: float = SKEWNESS,
    trials: int = 20_000,
    seed: int = 1,
) -> Rates:
    """Return the rates for a simulator with the true errors `errors`, in margins: a number, or shape (cases,)."""
    generator = np.random.default_rng(seed)
    shape = (trials, cases, repeats)
    form = 4 / skewness**2  # of the gamma distribution
    shared = generator.gamma(form * CORRELATION, size=shape)
    found = []
    for margin, noise in zip(MARGINS, NOISE, strict=True):
        own = generator.gamma(form * (1 - CORRELATION), size=shape)
        real = 100 * (1 + margin * noise * (shared + own - form) / np.sqrt(form))
        predicted = np.broadcast_to(100 * (1 + margin * np.asarray(errors)), shape[:2])
        samples = Samples.of(real, predicted, margin * np.abs(real.mean(axis=-1)))
        found.append(estimate(samples, RULE.alpha, RULE.kappa))
    accept = np.array([each.accurate for each in found])
    inaccurate = np.array(rejected([each.p for each in found], RULE.alpha))
    return Rates(
        accept=accept.mean(axis=1),
        unguarded=np.array([each.inside for each in found]).mean(axis=1),
        reject=inaccurate.mean(axis=1),
        any_reject=float(inaccurate.any(axis=0).mean()),
        all_accept=float(accept.all(axis=0).mean()),
    )


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


def skewed() -> str:
    """Return the table of the rates at the margin by skewness in Markdown: the worse sign of the error, all metrics."""
    rows = [("W x R", *(f"skewness {each:g}: false accept, any metric rejected" for each in SKEWNESSES))]
    rows.append(("---",) * len(rows[0]))
    for cases, repeats in DESIGNS:
        row = [f"{cases} x {repeats}"]
        for skewness in SKEWNESSES:
            sides = [rates(cases, repeats, error, skewness=skewness) for error in (1.0, -1.0)]
            accept, reject = max(side.accept.max() for side in sides), max(side.any_reject for side in sides)
            row.append(f"{accept:.3f}, {reject:.3f}")
        rows.append(tuple(row))
    return markdown(rows)


def markdown(rows: list[tuple[str, ...]]) -> str:
    """Return rows as a Markdown table."""
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def span(values: FloatArray) -> str:
    """Return the smallest and the largest value as text."""
    low, high = (f"{value:.3f}" for value in (values.min(), values.max()))
    return low if low == high else f"{low}-{high}"


if __name__ == "__main__":
    sys.stdout.write(f"{table()}\n\n{skewed()}\n")
