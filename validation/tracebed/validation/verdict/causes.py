"""Causes of the error of a mean: a bias of all run times, or a class of jobs with more than its part of the error.

A cause is named with the share that it explains, and only above a least share. A class of jobs that has half of the
error because half of the jobs or half of the real times are in the class explains nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from tracebed.converters.workload import FloatArray
from tracebed.orchestrator.run import Run
from tracebed.validation.verdict.breakdown import breakdown

LEAST_SHARE = 0.5
"""Smallest share of an error for which a class of jobs is named."""
LIFT = 1.5
"""Smallest ratio of this share to the share of the class in the jobs, and in the real times."""
UNIFORM = 0.8
"""Smallest share of the differences of run times that a uniform bias explains."""
LEAST_BIAS = 0.01
"""Smallest uniform bias that is named, as a share of the run times."""
LEAST_JOBS = 10
"""Smallest number of jobs from which a factor on the run times of the workload is named."""
ALMOST_ALL = 0.99
"""Smallest share of the jobs that have this factor."""
ROUNDING = 1e-3
"""Largest deviation from the factor that is rounding, as a share of the run time."""
CLASSES = {
    "size": "jobs of {} nodes",
    "run time": "jobs whose run times are {}",
    "user": "jobs of user {}",
    "kind": "{} jobs",
    "behaviour": "jobs of behavior {}",
}
"""Classification of `breakdown` -> text for a class. The hour of the submission causes no error by itself."""


@dataclass(frozen=True)
class Bias:
    """A uniform bias of the run times of a prediction: one factor, or one amount, for all jobs."""

    factor: float
    """Predicted / real run time; NaN if the bias is an amount."""
    amount: float
    """Predicted - real run time, s; NaN if the bias is a factor."""
    explained: float
    """Share of the absolute differences of the run times that disappears without the bias."""

    @property
    def sentence(self) -> str:
        """The bias with the share that it explains, as text: `all run times 5 % longer in the prediction (...)`."""
        factor = math.isfinite(self.factor)
        size = f"{100 * abs(self.factor - 1):.2g} %" if factor else f"{abs(self.amount):.3g} s"
        longer = self.factor > 1 if factor else self.amount > 0
        bias = f"all run times {size} {'longer' if longer else 'shorter'} in the prediction"
        return f"{bias} ({100 * self.explained:.0f} % of the differences of run times)"


def uniform_bias(jobs: pd.DataFrame) -> Bias | None:
    """Return the uniform bias of the run times, or None if no bias of at least `LEAST_BIAS` explains the differences.

    The factor is the median of the ratios, weighted by the real run times; the amount is the median of the differences.
    Both minimize the absolute differences that are left.

    Args:
        jobs: table of matched jobs, as in `Comparison.jobs`.
    """
    real, predicted = (jobs[f"run_{side}"].to_numpy(dtype=np.float64) for side in ("real", "predicted"))
    known = np.isfinite(real) & np.isfinite(predicted) & (real > 0)
    real, predicted = real[known], predicted[known]
    total = float(np.abs(predicted - real).sum())
    if not len(real) or total == 0:
        return None
    factor, amount = _weighted_median(predicted / real, real), float(np.median(predicted - real))
    found = [
        Bias(factor, math.nan, 1 - float(np.abs(predicted - factor * real).sum()) / total),
        Bias(math.nan, amount, 1 - float(np.abs(predicted - real - amount).sum()) / total),
    ]
    best = max(found, key=lambda bias: bias.explained)
    size = abs(factor - 1) if best is found[0] else abs(amount) / float(real.mean())
    return best if best.explained >= UNIFORM and size >= LEAST_BIAS else None


def scaled_run_times(predicted: Run) -> str:
    """Return the factor between the run times of a prediction and those of its workload, in words.

    The text is empty if there is no common factor, or if it is 1. Malleable jobs, whose run times depend on their
    sizes, do not count.
    """
    jobs = predicted.jobs[predicted.jobs["state"].eq("completed") & predicted.jobs["kind"].eq("rigid")]
    begin = jobs["launched"].fillna(jobs["start"])
    run, planned = ((each.to_numpy(dtype=np.float64)) for each in (jobs["end"] - begin, jobs["run_time"]))
    known = np.isfinite(run) & (planned > 0)
    run, planned = run[known], planned[known]
    if len(run) < LEAST_JOBS:
        return ""
    factor = _weighted_median(run / planned, planned)
    rounding = np.maximum(predicted.info.resolution_s, ROUNDING * factor * planned)
    same = int((np.abs(run - factor * planned) <= rounding).sum())
    if abs(factor - 1) < LEAST_BIAS or same < ALMOST_ALL * len(run):
        return ""
    return f"predicted run times are {factor:.3g} times the workload's in {same:,} of {len(run):,} jobs"


def causes(jobs: pd.DataFrame, real: Run, quantity: str) -> Iterator[str]:
    """Yield the class of jobs that causes most of the error of the mean of a quantity, as text with its share.

    Args:
        jobs: table of matched jobs, as in `Comparison.jobs`.
        quantity: one of `breakdown.QUANTITIES`.
    """
    if not len(jobs):
        return
    table = breakdown(jobs, real)
    table = table[(table["quantity"] == quantity) & table["by"].isin(list(CLASSES))]
    groups = table.groupby("by")
    size = table["contribution"].abs() / groups["contribution"].transform(lambda column: column.abs().sum())
    of_jobs = table["jobs"] / groups["jobs"].transform("sum")
    times = table["jobs"] * table["real"]
    of_times = (times / times.groupby(table["by"]).transform("sum")).fillna(0.0)
    usual = np.maximum(of_jobs, of_times)
    named = table.assign(size=size, of_jobs=of_jobs, of_times=of_times)
    named = named[(size >= LEAST_SHARE) & (size >= LIFT * usual) & (table["share"] > 0)]
    for row in named.nlargest(1, "size").to_dict("records"):
        yield (
            f"{100 * row['size']:.0f} % of the error in {CLASSES[row['by']].format(row['class'])}, "
            f"which are {100 * row['of_jobs']:.0f} % of the jobs"
        )


def _weighted_median(values: FloatArray, weights: FloatArray) -> float:
    order = np.argsort(values, kind="stable")
    heavy = np.cumsum(weights[order]) >= weights.sum() / 2
    return float(values[order][np.argmax(heavy)])
