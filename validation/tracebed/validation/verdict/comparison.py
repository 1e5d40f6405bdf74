"""Comparison of a prediction with one real run, job by job: the diagnosis of a verdict."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pandas as pd

from tracebed.ground.errors import InputError
from tracebed.orchestrator.run import Run, RunInfo
from tracebed.validation.metrics import TAU, MeasuredRun, summarize
from tracebed.validation.statistics import Differences, differences
from tracebed.validation.verdict.breakdown import breakdown
from tracebed.validation.verdict.comparability import comparability_warnings
from tracebed.validation.verdict.divergence import Divergences, divergences
from tracebed.validation.verdict.health import Health
from tracebed.validation.verdict.matching import Matching, check_same_plan, match


@dataclass(frozen=True, repr=False)
class Comparison:
    """A prediction and a real run: metrics of both, matched jobs and their differences. The verdict is `Validation`."""

    real: Run
    predicted: Run
    real_metrics: dict[str, Any]
    """The dictionary of `metrics` of the real run."""
    predicted_metrics: dict[str, Any]
    jobs: pd.DataFrame
    """A row per matched job in submit order: job_id, kind, nodes, and submit, wait, run, response (s) and
    bounded_slowdown with the suffixes _real and _predicted."""
    differences: dict[str, Differences | None]
    """Differences of wait, run and response."""
    matching: Matching
    health: Health
    """Health of the real run."""
    warnings: list[str]
    """Differences that make the two runs less comparable."""
    tau: float
    """Threshold of the bounded slowdown, s."""
    compression: float
    """Factor on absolute margins in seconds: the compression of the run times of the workload."""

    def __repr__(self) -> str:
        name = self.real.info.workload.get("name") or "a workload"
        sources = f"{self.real.info.source} and {self.predicted.info.source}"
        return f"<Comparison of {name}, {self.real.info.policy}: {sources}, {self.matching.matched:,} jobs matched>"

    def breakdown(self) -> pd.DataFrame:
        """Return the differences predicted - real by size, run time, user, hour of submission and kind of the jobs.

        Returns:
            A row per classification, class and quantity: columns `by`, `class`, `quantity` (wait, run, response,
            bounded_slowdown), `jobs`, `real`, `predicted`, `difference` (means over the class), `contribution` to the
            difference of the mean over all jobs, and `share` of it. Times are in s.
        """
        return breakdown(self.jobs, self.real)

    def divergences(self, count: int = 10, *, tolerance_s: float | None = None) -> pd.DataFrame:
        """Return the jobs at which the runs first part, and the decisions at which they do.

        Args:
            count: number of jobs.
            tolerance_s: differences of times up to this one are explained, s; by default the resolution of the runs,
                the lateness of submissions, and the scheduling interval.

        Returns:
            A row per job, by time: columns `job_id`, `parting` (missing, nodes, order or time), `time` (s after the
            first submission), `first` (the run that decided first), `real` and `predicted` (what each run decided),
            `delay` (s, predicted - real), `idle_...` nodes and `waiting_...` jobs of each run just before.
        """
        return self.divergence(count, tolerance_s=tolerance_s).table

    def divergence(self, count: int = 10, *, tolerance_s: float | None = None) -> Divergences:
        """Return the table of `divergences` with the numbers of all jobs and decisions, and the tolerance.

        Args:
            count: number of jobs in the table.
            tolerance_s: as for `divergences`.
        """
        return divergences(self.real, self.predicted, tolerance_s=tolerance_s, count=count)


def compare(real: Run, predicted: Run, tau: float = TAU, *, allow_different_workloads: bool = False) -> Comparison:
    """Compare `predicted` with `real`.

    Args:
        real: the real run: a replay, or a log read as a run.
        predicted: the run of a simulator.
        tau: threshold of the bounded slowdown, s, for both runs.
        allow_different_workloads: match jobs by id even if the workloads differ.

    Raises:
        InputError: the runs are swapped, the workloads differ, or the runs have no job in common.
    """
    check_sides(real, predicted, allow_different_workloads)
    sides = MeasuredRun(real, tau), MeasuredRun(predicted, tau)
    return compare_measured(*sides, (summarize(sides[0]), summarize(sides[1])))


def compare_measured(
    real: MeasuredRun,
    predicted: MeasuredRun,
    figures: tuple[dict[str, Any], dict[str, Any]],
    health: Health | None = None,
) -> Comparison:
    """Compare two measured runs.

    Args:
        real, predicted: the runs, measured with the same tau.
        figures: the metrics of both.
        health: the health of the real run, if it is known; else it is computed from the journal of the run.

    Raises:
        InputError: the runs have no job in common.
    """
    jobs, matching = match(real.jobs, predicted.jobs)
    same_workload = real.run.info.workload.get("sha256") == predicted.run.info.workload.get("sha256")
    return Comparison(
        real=real.given,
        predicted=predicted.given,
        real_metrics=figures[0],
        predicted_metrics=figures[1],
        jobs=jobs,
        differences={
            name: differences(jobs[f"{name}_predicted"].to_numpy(), jobs[f"{name}_real"].to_numpy())
            for name in ("wait", "run", "response")
        },
        matching=matching,
        health=health or Health.of(real.run, figures[0]["clock_skew_jobs"]),
        warnings=comparability_warnings(real.run, predicted.run, figures, matching, same_workload),
        tau=real.tau,
        compression=time_compression(real.run.info),
    )


def time_compression(info: RunInfo) -> float:
    """Return the factor (at most 1) by which the steps of the workload compressed its run times."""
    steps = (info.workload.get("provenance") or {}).get("steps", [])
    factors = [step["parameters"].get("run_time") or 1.0 for step in steps if step["name"] == "scale"]
    return min(math.prod(factors), 1.0)


def check_sides(real: Run, predicted: Run, allow_different_workloads: bool) -> None:
    """Raise InputError if the runs cannot be compared."""
    if not real.info.is_real:
        both = "`tracebed metrics` shows where two predictions differ"
        raise InputError(
            f"the run given as real is {real.info.kind}",
            hint="swap --real and --predicted" if predicted.info.is_real else both,
        )
    if predicted.info.is_real:
        raise InputError(
            f"the run given as predicted is {predicted.info.kind}",
            hint="use the run of a simulator as --predicted; `tracebed metrics` shows several runs side by side",
        )
    same = real.info.workload.get("sha256") == predicted.info.workload.get("sha256")
    if not same and not allow_different_workloads:
        names = [run.info.workload.get("name") or "unknown" for run in (real, predicted)]
        raise InputError(
            f"the runs have different workloads: the hashes of {names[0]} (real) and {names[1]} (predicted) differ",
            hint="simulate the replayed workload, or match jobs by id with --match id",
        )
    if same:
        check_same_plan(real, predicted)
