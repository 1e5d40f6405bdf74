"""Comparison of a prediction with a real run, metric by metric and job by job."""

from __future__ import annotations

import html
import math
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from tracebed.display import cell
from tracebed.errors import ExitCode, InputError
from tracebed.orchestrator.run import Run, RunInfo
from tracebed.validation.metrics import TAU, Margin, MeasuredRun, Metric, Undefined, all_metrics, summarize
from tracebed.validation.statistics import Differences, Interval, batch_means, differences
from tracebed.validation.verdict.comparability import comparability_warnings
from tracebed.validation.verdict.evidence import imposed
from tracebed.validation.verdict.health import UNHEALTHY, Health
from tracebed.validation.verdict.matching import MEASURES, Matching, match
from tracebed.validation.verdict.metric import MetricComparison
from tracebed.validation.verdict.rule import REASONS, REPEATS_NEEDED, UNMATCHED_ALLOWED, Reason, Verdict, combine

SCHEMA = "tracebed-comparison/1"
TIME_BINS = 100
"""Number of bins of the window. The bin means are the series for the batch means of a function of time."""


@dataclass(frozen=True, repr=False)
class Comparison:
    """The differences of a prediction from a real run, and the verdict."""

    real: Run
    predicted: Run
    real_metrics: dict[str, Any]
    """The dictionary of `metrics` of the real run."""
    predicted_metrics: dict[str, Any]
    metrics: list[MetricComparison]
    """The metrics with a margin: gated metrics first, then advisory ones."""
    jobs: pd.DataFrame
    """A row per matched job in submit order: job_id, kind, nodes, and submit, wait, run, response (s) and
    bounded_slowdown with the suffixes _real and _predicted."""
    differences: dict[str, Differences | None]
    """Differences of wait, run and response."""
    matching: Matching
    health: Health
    """Health of the real run."""
    warnings: list[str]
    verdict: Verdict
    reasons: tuple[Reason, ...]
    tau: float
    """Threshold of the bounded slowdown, s."""
    compression: float
    """Factor on the absolute margins in seconds: the compression of the run times of the workload."""

    @property
    def exit_code(self) -> ExitCode:
        """Exit code of the comparison."""
        return ExitCode.UNHEALTHY if Reason.UNHEALTHY in self.reasons else self.verdict.exit_code

    @property
    def headline(self) -> str:
        """The reasons for the verdict, and the observed differences."""
        gated = [item for item in self.metrics if item.margin.gate and not math.isnan(item.z)]
        why = "; ".join(self.meaning(reason) for reason in self.reasons)
        seen = f"{self._inside} gated metrics lie within their margins in this pair of runs"
        worst = max(gated, key=lambda item: abs(item.z), default=None)
        far = f"; largest difference: {worst.metric.label}, {worst.observation}" if worst and worst.difference else ""
        return f"{why}. Observation: {seen}{far}."

    def meaning(self, reason: Reason) -> str:
        """Return a reason for the verdict as text, with the causes of an unhealthy real run."""
        return self.health.headline if reason is Reason.UNHEALTHY else REASONS[reason]

    @property
    def _inside(self) -> str:
        """Number of gated metrics within their margins and number of defined gated metrics: `3 of 5`."""
        gated = [item for item in self.metrics if item.margin.gate and not math.isnan(item.z)]
        return f"{sum(abs(item.z) <= 1 for item in gated)} of {len(gated)}"

    @property
    def _title(self) -> str:
        name = self.real.info.workload.get("name") or "a workload"
        return f"{name}, {self.real.info.policy}: {self.real.info.source} and {self.predicted.info.source}"

    def explain(self) -> str:
        """Return the comparison as text: verdict and headline, a line per metric, warnings."""
        lines = [f"{self._title}: {self.verdict}", self.headline, ""]
        lines += [item.sentence for item in self.metrics]
        if self.warnings:
            lines += ["", "Warnings:", *(f"- {warning}" for warning in self.warnings)]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return (
            f"<Comparison of {self._title}: {self.verdict}, {self._inside} gated metrics within their margins, "
            f"{self.matching.matched:,} jobs matched, warnings: {len(self.warnings)}>"
        )

    def _repr_html_(self) -> str:
        """Return a small table for notebooks."""
        rows = (
            (
                item.metric.title,
                cell(item.real),
                cell(item.predicted),
                item.observation,
                item.part,
            )
            for item in self.metrics
        )
        cells = "".join("<tr>" + "".join(f"<td>{html.escape(text)}</td>" for text in row) + "</tr>\n" for row in rows)
        head = "".join(f"<th>{name}</th>" for name in ("metric", "real", "predicted", "observation", ""))
        notes = "".join(f"<li>{html.escape(warning)}</li>" for warning in self.warnings)
        return (
            f"<p><strong>{html.escape(f'{self._title}: {self.verdict}')}</strong><br>{html.escape(self.headline)}</p>\n"
            f"<table><thead><tr>{head}</tr></thead><tbody>\n{cells}</tbody></table>\n<ul>{notes}</ul>"
        )

    def to_json(self) -> dict[str, Any]:
        """Return the comparison as JSON values, without the tables of the runs."""
        return {
            "schema": SCHEMA,
            "verdict": self.verdict.value,
            "reasons": [reason.value for reason in self.reasons],
            "headline": self.headline,
            "health": self.health.to_json(),
            "repeats": 1,
            "repeats_needed": REPEATS_NEEDED,
            "tau": self.tau,
            "time_compression": self.compression,
            "metrics": [item.to_json() for item in self.metrics],
            "matching": asdict(self.matching) | {"unmatched_share": self.matching.unmatched_share},
            "per_job": {name: asdict(d) if d else None for name, d in self.differences.items()},
            "warnings": self.warnings,
            "real": _side(self.real.info) | {"metrics": self.real_metrics},
            "predicted": _side(self.predicted.info) | {"metrics": self.predicted_metrics},
        }


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
    same_workload = check_sides(real, predicted, allow_different_workloads)
    sides = MeasuredRun(real, tau), MeasuredRun(predicted, tau)
    jobs, matching = match(sides[0].jobs, sides[1].jobs)
    figures = summarize(sides[0]), summarize(sides[1])
    health = Health.of(real, figures[0]["clock_skew_jobs"])
    common = _reasons(real, predicted, health, matching)
    measured = not imposed(real.info)
    compression = time_compression(real.info)
    compared = [
        _compared(metric, margin, figures, _stability(metric, jobs, sides), compression, common, measured)
        for metric, margin in _with_margin(figures)
    ]
    gated = [item for item in compared if item.margin.gate]
    found = {reason for item in gated for reason in item.reasons}
    return Comparison(
        real=real,
        predicted=predicted,
        real_metrics=figures[0],
        predicted_metrics=figures[1],
        metrics=compared,
        jobs=jobs,
        differences={
            name: differences(jobs[f"{name}_predicted"].to_numpy(), jobs[f"{name}_real"].to_numpy())
            for name in ("wait", "run", "response")
        },
        matching=matching,
        health=health,
        warnings=health.warnings(real) + comparability_warnings(real, predicted, figures, matching, same_workload),
        verdict=combine(item.verdict for item in gated),
        reasons=tuple(reason for reason in Reason if reason in found),
        tau=tau,
        compression=compression,
    )


def time_compression(info: RunInfo) -> float:
    """Return the factor (at most 1) by which the steps of the workload compressed its run times."""
    steps = (info.workload.get("provenance") or {}).get("steps", [])
    factors = [step["parameters"].get("run_time") or 1.0 for step in steps if step["name"] == "scale"]
    return min(math.prod(factors), 1.0)


def check_sides(real: Run, predicted: Run, allow_different_workloads: bool) -> bool:
    """Return whether the workloads are equal. Raises InputError if the runs cannot be compared."""
    if not real.info.is_real:
        raise InputError(
            f"the run given as real is a prediction ({real.info.source})", hint="swap --real and --predicted"
        )
    if predicted.info.is_real:
        raise InputError(
            f"the run given as predicted is a real run ({predicted.info.source})",
            hint="use the run of a simulator as --predicted; `tracebed metrics` shows several runs side by side",
        )
    same = bool(real.info.workload.get("sha256") == predicted.info.workload.get("sha256"))
    if not same and not allow_different_workloads:
        raise InputError(
            "the runs have different workloads (the hashes differ)",
            hint="simulate the replayed workload, or match jobs by id with --allow-different-workloads",
        )
    return same


def _with_margin(figures: tuple[dict[str, Any], dict[str, Any]]) -> list[tuple[Metric, Margin]]:
    """Return the metrics with a margin: gated metrics, then the advisory metrics that apply to the runs."""
    malleable = any(side["jobs_malleable"] for side in figures)

    def applies(metric: Metric) -> bool:
        undefined = all(metric.name in side["undefined"] for side in figures)
        return not undefined and (malleable or not metric.of_malleable_jobs)

    found = [(metric, metric.margin) for metric in all_metrics().values() if metric.margin is not None]
    gated = [item for item in found if item[1].gate]
    return gated + [item for item in found if not item[1].gate and applies(item[0])]


def _compared(
    metric: Metric,
    margin: Margin,
    figures: tuple[dict[str, Any], dict[str, Any]],
    stability: Interval | None,
    compression: float,
    common: tuple[Reason, ...],
    measured: bool,
) -> MetricComparison:
    """Return the comparison of one metric. `measured`: the real run times were measured, not imposed."""
    evidence = measured or not metric.of_run_times
    margin = replace(margin, gate=margin.gate and evidence)
    if metric.unit == "s":
        margin = replace(margin, absolute=margin.absolute * compression)
    undefined = (Reason.NOT_DEFINED,) if any(metric.name in side["undefined"] for side in figures) else ()
    real, predicted = (side[metric.name] for side in figures)
    # With one real run, `common` always contains a reason for an inconclusive verdict.
    return MetricComparison(
        metric, real, predicted, margin, stability, Verdict.INCONCLUSIVE, (*undefined, *common), evidence
    )


def _reasons(real: Run, predicted: Run, health: Health, matching: Matching) -> tuple[Reason, ...]:
    """Return the reasons that apply to all metrics."""
    workloads = {run.info.workload.get("sha256") for run in (real, predicted)}
    applies = {
        Reason.UNHEALTHY: health.state == UNHEALTHY,
        Reason.CALIBRATION_WORKLOAD: not workloads.isdisjoint(predicted.info.calibration.get("workloads", [])),
        Reason.UNMATCHED_JOBS: matching.unmatched_share > UNMATCHED_ALLOWED,
        Reason.TOO_FEW_REPEATS: True,
    }
    return tuple(reason for reason, holds in applies.items() if holds)


def _stability(metric: Metric, jobs: pd.DataFrame, sides: tuple[MeasuredRun, MeasuredRun]) -> Interval | None:
    """Return the stability of the difference of a mean within this pair of runs, or None if undefined."""
    if metric.mean_of in MEASURES:
        pairs = jobs[f"{metric.mean_of}_predicted"] - jobs[f"{metric.mean_of}_real"]
        return batch_means(pairs.to_numpy(dtype=np.float64))
    window = sides[0].window
    if metric.mean_over_time is None or not window.length_s > 0:
        return None
    edges = np.linspace(window.start_s, window.end_s, TIME_BINS + 1)
    try:
        real, predicted = (metric.mean_over_time(side).means(edges) for side in sides)
    except Undefined:
        return None
    return batch_means(predicted - real)


def _side(info: RunInfo) -> dict[str, Any]:
    """Return the description of one run as JSON values."""
    return {
        "source": info.source,
        "execution": info.execution,
        "policy": info.policy,
        "policy_parameters": info.policy_parameters,
        "parameters": info.parameters,
        "seed": info.seed,
        "nodes": len(info.nodes),
        "cores": sum(node.cores for node in info.nodes),
        "speed": info.speed,
        "resolution_s": info.resolution_s,
        "state": info.state,
        "lateness_ms": info.lateness_ms,
        "health": info.health,
        "calibration": info.calibration,
        "workload": {key: info.workload.get(key) for key in ("name", "sha256", "jobs")},
        "created": info.created,
        "hosts": info.hosts,
        "versions": info.versions,
        "warnings": info.warnings,
    }
