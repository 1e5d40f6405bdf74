"""Losses: how far a prediction is from the mean of the repetitions.

A loss is a weighted sum of absolute differences, sum_k w_k |predicted_k - mean_k|, over quantities k of one case. The
weights make it a mean relative error (MRE), the loss of simcal (McDonald et al., arXiv 2403.13918).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from tracebed.converters.workload import FloatArray
from tracebed.ground.errors import InputError
from tracebed.ground.registry import one_of
from tracebed.ground.table import rows_of
from tracebed.validation.fitting.cases import FitCase
from tracebed.validation.metrics import Margin, MeasuredRun, Metric, Undefined, all_metrics
from tracebed.validation.verdict.comparison import time_compression

LossName: TypeAlias = Literal["metrics", "jobs"]
LOSSES: tuple[LossName, ...] = ("metrics", "jobs")
COVERAGE = 0.95  # coverage of the intervals of the real means from which the tolerance of a cloud follows
ASSUMED_NOISE = 0.01  # assumed half-width of these intervals with one repetition: a share of the real value
PER_JOB = {"wait": "mean_wait_s", "response": "mean_response_s"}
"""Quantity of each job in the loss `jobs` -> the metric of its mean, which provides the margin."""


@dataclass(frozen=True)
class Target:
    """The quantities of a case that a prediction is to match. Arrays have the shape (quantities,)."""

    kind: LossName  # `metrics` or `jobs`
    names: tuple[str, ...]  # name of each quantity
    means: FloatArray  # mean over the repetitions, shape (quantities,)
    half_widths: FloatArray  # half-width of the 95 % interval of each mean (Student's t), shape (quantities,)
    weights: FloatArray  # weight of each absolute difference in the loss, shape (quantities,)
    jobs: tuple[str, ...] = ()  # ids of the jobs of the loss `jobs`, those that ended in every repetition

    @classmethod
    def of(cls, case: FitCase, kind: LossName) -> Target:
        """Measure the real runs of `case`. InputError: no quantity is defined in all runs."""
        one_of("loss", kind, LOSSES)
        runs = [MeasuredRun(run) for run in case.runs.values()]
        return _metrics_target(case, runs) if kind == "metrics" else _jobs_target(case, runs)

    @property
    def tolerance(self) -> float:
        """Loss of a prediction that is wrong by the half-width of the interval in every quantity."""
        return float(self.weights @ self.half_widths)

    def loss(self, predicted: FloatArray) -> float:
        """Return the loss of predicted quantities, shape (quantities,); infinite if a quantity is undefined."""
        loss = float(self.weights @ np.abs(predicted - self.means))
        return loss if np.isfinite(loss) else np.inf

    def measure(self, measured: MeasuredRun) -> FloatArray:
        """Return the quantities of a predicted run, shape (quantities,)."""
        if self.kind == "metrics":
            known = all_metrics()
            return np.array([_value(known[name], measured) for name in self.names])
        return _per_job(measured, self.jobs)


def gated() -> dict[Metric, Margin]:
    """Return the gated metrics with their margins."""
    return {item: item.margin for item in all_metrics().values() if item.margin is not None and item.margin.gate}


def _metrics_target(case: FitCase, runs: list[MeasuredRun]) -> Target:
    """Return the gated metrics that are defined in all runs, each with the same weight."""
    compression = time_compression(case.info)
    values = {metric: np.array([_value(metric, run) for run in runs]) for metric in gated()}
    values = {metric: sample for metric, sample in values.items() if np.isfinite(sample).all()}
    if not values:
        raise InputError(f"no gated metric is defined in all real runs of {case.title}", hint="fit to longer runs")
    means = np.array([sample.mean() for sample in values.values()])
    scales = np.array([_scale(metric, mean, compression) for metric, mean in zip(values, means, strict=True)])
    return Target(
        "metrics",
        tuple(metric.name for metric in values),
        means,
        _half_widths(np.array(list(values.values())), scales),
        1.0 / (scales * len(values)),
    )


def _jobs_target(case: FitCase, runs: list[MeasuredRun]) -> Target:
    """Return wait and response of each job that ended in all runs. The weights give each of the two the same share."""
    compression = time_compression(case.info)
    ended = [set(run.finished["job_id"]) for run in runs]
    jobs = tuple(name for name in runs[0].finished["job_id"] if all(name in ids for ids in ended))
    if not jobs:
        raise InputError(f"no job ended in all real runs of {case.title}", hint="fit to longer runs")
    sample = np.array([_per_job(run, jobs) for run in runs]).T
    means = sample.mean(axis=1)
    known = all_metrics()
    halves = means.reshape(len(PER_JOB), -1)
    scale = [_scale(known[name], half.mean(), compression) for name, half in zip(PER_JOB.values(), halves, strict=True)]
    scales = np.repeat(scale, len(jobs))
    names = tuple(f"{quantity} of job {job}" for quantity in PER_JOB for job in jobs)
    return Target("jobs", names, means, _half_widths(sample, scales), 1.0 / (scales * len(means)), jobs)


def _scale(metric: Metric, mean: float, compression: float) -> float:
    """Return the value to which differences are relative: the real mean, at least the absolute margin."""
    assert metric.margin is not None
    floor = metric.margin.absolute * (compression if metric.unit == "s" else 1.0)
    return max(abs(mean), floor) or 1.0


def _half_widths(sample: FloatArray, scales: FloatArray) -> FloatArray:
    """Return the half-widths of the intervals of the means of `sample`, shape (quantities, repetitions)."""
    from scipy import stats

    repetitions = sample.shape[1]
    if repetitions < 2:
        return ASSUMED_NOISE * scales
    quantile = float(stats.t.ppf((1 + COVERAGE) / 2, repetitions - 1))
    half_widths: FloatArray = quantile * sample.std(axis=1, ddof=1) / np.sqrt(repetitions)
    return half_widths


def _value(metric: Metric, run: MeasuredRun) -> float:
    try:
        return metric.definition(run)
    except Undefined:
        return float("nan")


def _per_job(run: MeasuredRun, jobs: tuple[str, ...]) -> FloatArray:
    """Return wait and response of `jobs`, s, shape (2 * jobs,); NaN for a job that did not end."""
    rows = rows_of(run.finished.raw("job_id"), jobs)
    values = np.full((len(PER_JOB), len(jobs)), np.nan)
    values[:, rows[rows >= 0]] = [run.finished[name][rows >= 0] for name in PER_JOB]
    return values.ravel()
