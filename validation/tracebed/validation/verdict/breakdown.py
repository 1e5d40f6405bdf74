"""Breakdown of the differences between prediction and real run by classes of jobs, and causes of the error of a mean.

A cause is a bias of all run times, or a class of jobs with more than its part of the error. It is named with the share
that it explains, and only above a least share. A class of jobs that has half of the error because half of the jobs or
half of the real times are in the class explains nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import pandas as pd

from tracebed.converters.description import local_dates
from tracebed.converters.workload import FloatArray, IntArray
from tracebed.ground.table import rows_of
from tracebed.orchestrator.run import Run
from tracebed.validation.metrics.classes import PLURALS, by_size, most_frequent, names_of, node_classes, numbered
from tracebed.validation.metrics.measured import Undefined, as_columns

QUANTITIES = ("wait", "run", "response", "bounded_slowdown")  # quantities whose differences are broken down: s, s, s, 1
DECADES_S = 10.0 ** np.arange(16)  # smallest run time of each class of run times except the first, s

LEAST_SHARE = 0.5  # smallest share of an error for which a class of jobs is named
LIFT = 1.5  # smallest ratio of this share to the share of the class in the jobs, and in the real times
UNIFORM = 0.8  # smallest share of the differences of run times that a uniform bias explains
LEAST_BIAS = 0.01  # smallest uniform bias that is named, as a share of the run times
LEAST_JOBS = 10  # smallest number of jobs from which a factor on the run times of the workload is named
ALMOST_ALL = 0.99  # smallest share of the jobs that have this factor
FACTOR_ROUNDING = 1e-3  # largest deviation from the factor that is rounding, as a share of the run time
CLASSES = {
    "size": "jobs of {} nodes",
    "run time": "jobs whose run times are {}",
    "user": "jobs of user {}",
    "account": "jobs of account {}",
    "partition": "jobs of partition {}",
    "class": "jobs on nodes {}",
    "kind": "{} jobs",
    "behaviour": "jobs of behavior {}",
}
"""Classification of `breakdown` -> text for a class. The hour of the submission causes no error by itself."""


def breakdown(jobs: pd.DataFrame, real: Run) -> pd.DataFrame:
    """Return the differences predicted - real by classes of jobs.

    Args:
        jobs: table of matched jobs, as in `Comparison.jobs`.
        real: the real run, for the nodes of the jobs, and for the run times, users, accounts and partitions of the
            workload.

    Returns:
        A row per classification, class and quantity. Times are in s.

        - `by`: `size` (requested nodes, by powers of two), `run time` (dedicated, in the workload, by decades; that of
          the real run if unknown), `user`, `account`, `partition`, `class` (of the nodes on which the job really ran;
          only if there are several), each only if known, and the `classes.USERS` with the most jobs, and the others,
          `behaviour` (only if known), `hour` (of the day of the planned submission, in the time zone of the workload;
          hours since time 0 modulo 24 if the date is unknown), `kind`
        - `class`, `quantity` (of `QUANTITIES`), `jobs`
        - `real`, `predicted`, `difference`: means over the class
        - `contribution`: the part of the difference of the mean over all jobs that is due to the class: difference x
          jobs of the class / all jobs. The contributions of a classification add up to the difference
        - `share`: contribution / difference of the mean over all jobs; negative if the class differs the other way,
          NaN if the means do not differ
    """
    run = as_columns(real)
    rows = rows_of(jobs["job_id"], run.table("jobs").raw("job_id"))
    tables = [_by_class(by, codes, labels, jobs) for by, codes, labels in _classifications(jobs, run, rows)]
    return pd.concat(tables, ignore_index=True)


def _by_class(by: str, codes: IntArray, labels: list[str], jobs: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of one classification: `codes` (a class per job) index `labels`."""
    count = np.bincount(codes, minlength=len(labels))

    def mean(column: str) -> FloatArray:
        values = jobs[column].to_numpy(dtype=np.float64)
        return np.bincount(codes, weights=values, minlength=len(labels)) / count

    rows = []
    for quantity in QUANTITIES:
        real, predicted = mean(f"{quantity}_real"), mean(f"{quantity}_predicted")
        contribution = (predicted - real) * count / max(len(jobs), 1)
        total = contribution.sum()
        table = {"class": labels, "quantity": quantity, "jobs": count, "real": real, "predicted": predicted}
        table |= {"difference": predicted - real, "contribution": contribution}
        rows.append(pd.DataFrame(table | {"share": contribution / total if total else np.nan}))
    return pd.concat(rows).assign(by=by)[["by", *rows[0].columns]]


def _classifications(jobs: pd.DataFrame, real: Run, rows: IntArray) -> Iterator[tuple[str, IntArray, list[str]]]:
    """Yield name, class of each job, and labels of each classification. `rows`: row of each job in the real run."""
    facts = real.table("jobs").take(rows).frame()
    yield "size", *by_size(jobs["nodes"].to_numpy())
    planned = facts["run_time"].to_numpy(dtype=np.float64)
    run_time = np.where(np.isfinite(planned), planned, jobs["run_real"].to_numpy(dtype=np.float64))
    yield "run time", *numbered(np.searchsorted(DECADES_S, run_time, side="right"), _decade)
    for by in PLURALS:
        if by == "class" and len(node_classes(real.info)[1]) < 2:
            continue
        with suppress(Undefined):
            codes, names = names_of(real, by)
            yield by, *most_frequent(pd.Series(pd.array(np.array(names, dtype=object)[codes[rows]], dtype="str")))
    if facts["behaviour"].ne("").any():
        codes, behaviours = pd.factorize(facts["behaviour"].replace("", "unknown"), sort=True)
        yield "behaviour", codes, behaviours.tolist()
    yield "hour", *numbered(_hours(facts, real), lambda hour: f"{hour:02d}")
    codes, kinds = pd.factorize(jobs["kind"], sort=True)
    yield "kind", codes, kinds.tolist()


def _decade(number: int) -> str:
    return f"{10 ** (number - 1):,} to {10**number:,} s" if number else "below 1 s"


def _hours(facts: pd.DataFrame, real: Run) -> IntArray:
    """Return the hour of the day of the planned submission of each job, from 0 to 23."""
    planned = facts["submit_planned"].to_numpy(dtype=np.float64)
    seconds = np.where(np.isfinite(planned), planned, facts["submit"].to_numpy(dtype=np.float64))
    provenance = real.info.workload.get("provenance") or {}
    start, zone = provenance.get("unix_start"), provenance.get("time_zone")
    known = isinstance(start, (int, float)) and isinstance(zone, str | None)  # run.json may have been edited
    dates = local_dates(seconds, start, zone) if known else None
    return (seconds // 3600 % 24 if dates is None else np.asarray(dates.hour)).astype(np.int64)


@dataclass(frozen=True)
class Bias:
    """A uniform bias of the run times of a prediction: one factor, or one amount, for all jobs."""

    factor: float  # predicted / real run time; NaN if the bias is an amount
    amount: float  # predicted - real run time, s; NaN if the bias is a factor
    explained: float  # share of the absolute differences of the run times that disappears without the bias

    @property
    def sentence(self) -> str:
        """The bias with the share that it explains, as text: `all run times 5 % longer in the prediction (...)`."""
        factor = math.isfinite(self.factor)
        size = f"{100 * abs(self.factor - 1):.2g} %" if factor else f"{abs(self.amount):.3g} s"
        longer = self.factor > 1 if factor else self.amount > 0
        bias = f"all run times {size} {'longer' if longer else 'shorter'} in the prediction"
        return f"{bias} ({100 * self.explained:.0f} % of the differences of run times)"


def uniform_bias(jobs: pd.DataFrame) -> Bias | None:
    """Return the uniform bias of the run times, or None if none of at least `LEAST_BIAS` explains the differences."""
    # The factor is the median of the ratios, weighted by the real run times; the amount is the median of the
    # differences. Both minimize the absolute differences that are left.
    real, predicted = (jobs[f"run_{side}"].to_numpy(dtype=np.float64) for side in ("real", "predicted"))
    known = np.isfinite(real) & np.isfinite(predicted) & (real > 0)
    real, predicted = real[known], predicted[known]
    total = float(np.abs(predicted - real).sum())
    if not len(real) or total == 0:
        return None
    factor, amount = _weighted_median(predicted / real, real), float(np.median(predicted - real))
    candidates = [
        Bias(factor, math.nan, 1 - float(np.abs(predicted - factor * real).sum()) / total),
        Bias(math.nan, amount, 1 - float(np.abs(predicted - real - amount).sum()) / total),
    ]
    best = max(candidates, key=lambda bias: bias.explained)
    size = abs(factor - 1) if best is candidates[0] else abs(amount) / float(real.mean())
    return best if best.explained >= UNIFORM and size >= LEAST_BIAS else None


def scaled_run_times(predicted: Run) -> str:
    """Return the factor (not 1) common to the run times of a prediction and its workload, in words; empty without."""
    # Malleable jobs, whose run times depend on their sizes, do not count.
    jobs = predicted.jobs[predicted.jobs["state"].eq("completed") & predicted.jobs["kind"].eq("rigid")]
    begin = jobs["launched"].fillna(jobs["start"])
    run, planned = ((each.to_numpy(dtype=np.float64)) for each in (jobs["end"] - begin, jobs["run_time"]))
    known = np.isfinite(run) & (planned > 0)
    run, planned = run[known], planned[known]
    if len(run) < LEAST_JOBS:
        return ""
    factor = _weighted_median(run / planned, planned)
    rounding = np.maximum(predicted.info.resolution_s, FACTOR_ROUNDING * factor * planned)
    same = int((np.abs(run - factor * planned) <= rounding).sum())
    if abs(factor - 1) < LEAST_BIAS or same < ALMOST_ALL * len(run):
        return ""
    return f"predicted run times are {factor:.3g} times the workload's in {same:,} of {len(run):,} jobs"


def causes(jobs: pd.DataFrame, real: Run, quantity: str) -> Iterator[str]:
    """Yield the class of jobs that causes most of the error of the mean of a quantity, as text with its share."""
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
