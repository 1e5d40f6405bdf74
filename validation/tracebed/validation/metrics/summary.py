"""Summary of a run: all metrics, counts and distributions in one dictionary."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from numbers import Real
from typing import Any

import numpy as np

from tracebed.converters.workload import FloatArray
from tracebed.ground.errors import tolerate
from tracebed.ground.extension_errors import checked
from tracebed.ground.states import JobState
from tracebed.ground.table import Table, codes_of
from tracebed.orchestrator.run import Run
from tracebed.validation.metrics.deadlines import by_behaviour
from tracebed.validation.metrics.energy import energy_facts
from tracebed.validation.metrics.jobs import TAU, resolution
from tracebed.validation.metrics.measured import PARTS, STAGES, MeasuredRun, PowerModel, Undefined, WindowName
from tracebed.validation.metrics.metric import Metric, all_metrics
from tracebed.validation.statistics import mean, percentile, percentiles

TRIM = 0.05  # share of the arrival span excluded at either end from the trimmed means (warm-up and cool-down)
KINDS = ("expand", "shrink")


def metrics(
    run: Run,
    tau: float = TAU,
    window: WindowName = "arrivals",
    *,
    after: float = 0.0,
    ended: bool = False,
    power: PowerModel | None = None,
    grid: str | None = None,
) -> dict[str, Any]:
    """Return the metrics of a run.

    Args:
        run: the run.
        tau: threshold of the bounded slowdown, s.
        window: time window of utilization, throughput and loss of capacity: `arrivals` (first to last submission; the
            full span if all jobs were submitted at once), `full` (first submission to last end), or two instants in
            s after the first submission.
        after: length of the warm-up, s after the first submission. Jobs submitted earlier enter only the metrics of
            the machine. The window `arrivals` begins at the end of the warm-up.
        ended: whether jobs that have not ended by the last submission are also excluded.
        power: parameters of the modelled energy.
        grid: the grid of the nodes, `8x16`, for the metrics of placements; None: that of the run, if it is known.

    Returns:
        The metrics of `all_metrics`, in their units, NaN if a metric is undefined; and
        `undefined` (metric -> reason), `quartiles` (metric -> first and third quartile over jobs; over time for
        utilization), `jobs_by_state`, `jobs_malleable`, `jobs_unfinished`, `clock_skew_jobs`, `zero_run_jobs`,
        `operations` (expand and shrink: requested, executed; empty if not recorded), `reconfiguration_s` (kind ->
        stage -> count, median, p95, sum), `core_changes` (cause -> numbers applied and cancelled; median, 99th
        percentile and maximum of the time from the decision until the change is applied), `deadlines_by_behaviour`
        (behavior -> jobs with a deadline and their rates), `trimmed` (means without the
        first and last 5 % of the arrivals), `energy` (parameters of the model, and facts of the recorded power),
        `utilization_window`, `tau`.

    Raises:
        InputError: `tau`, `window` or `grid` is invalid, or no job is submitted after the warm-up.
    """
    return summarize(MeasuredRun(run, tau, window, after=after, ended=ended, power=power, grid=grid))


def figures(run: Run, names: Sequence[str]) -> dict[str, float]:
    """Return the metrics of a run with these names, as `metrics` does; the other metrics are not computed."""
    measured, known = MeasuredRun(run), all_metrics()
    _clock_skew(measured)
    values = dict.fromkeys(names, math.nan)
    for name in names:
        with suppress(Undefined):
            values[name] = _value(known[name], measured)
    return values


def _value(metric: Metric, run: MeasuredRun) -> float:
    """Return the value of a metric. Raises ExtensionError if it is not a number."""
    value: float = checked(metric.definition(run), Real, f"metric {metric.name}", metric.definition)
    return value


def table_row(run: MeasuredRun) -> dict[str, float]:
    """Return the metrics of a measured run as columns of a table, with their quartiles `NAME_p25` and `NAME_p75`."""
    values, _, quartiles = _defined(run)
    _clock_skew(run)
    for name, (low, high) in quartiles.items():
        values |= {f"{name}_p25": low, f"{name}_p75": high}
    return values


def _defined(run: MeasuredRun) -> tuple[dict[str, Any], dict[str, str], dict[str, tuple[float, float]]]:
    """Return metrics, `undefined` and `quartiles` as `metrics` does."""
    values: dict[str, Any] = {}
    undefined: dict[str, str] = {}
    quartiles: dict[str, tuple[float, float]] = {}
    for metric in all_metrics().values():
        try:
            values[metric.name] = _value(metric, run)
            if math.isnan(values[metric.name]):
                undefined[metric.name] = metric.undefined
            if metric.mean_of or metric.mean_over_time is not None:
                quartiles[metric.name] = _quartiles(metric, run)
        except Undefined as reason:
            values[metric.name] = math.nan
            undefined[metric.name] = str(reason)
    return values, undefined, quartiles


def summarize(run: MeasuredRun) -> dict[str, Any]:
    """Return the dictionary of `metrics` for a measured run."""
    values, undefined, quartiles = _defined(run)
    unrecorded = "reconfigurations" in run.run.info.unknown
    return values | {
        "jobs_unfinished": len(run.jobs) - len(run.finished),
        "jobs_malleable": int(run.jobs.equal("kind", "malleable").sum()),
        "jobs_by_state": _by_state(run.jobs),
        "clock_skew_jobs": _clock_skew(run),
        "zero_run_jobs": int((run.finished["run"] <= 0).sum()),
        "operations": {kind: _operations(run.finished, kind) for kind in KINDS if not unrecorded},
        "reconfiguration_s": {} if unrecorded else _reconfigurations(run),
        "core_changes": _core_changes(run.run),
        "deadlines_by_behaviour": by_behaviour(run),
        "trimmed": _trimmed(run),
        "quartiles": quartiles,
        "energy": energy_facts(run),
        "utilization_window": asdict(run.window),
        "tau": run.tau,
        "undefined": undefined,
    }


def _quartiles(metric: Metric, run: MeasuredRun) -> tuple[float, float]:
    """Return the first and third quartile over jobs or over time."""
    if metric.mean_over_time is not None:
        low, high = run.over_time(metric.name, metric.mean_over_time(run), (0.25, 0.75))
        return low, high
    if not metric.of_malleable_jobs:
        return run.percentile(metric.mean_of, 25.0), run.percentile(metric.mean_of, 75.0)
    sample = run.malleable[metric.mean_of]
    sample = sample[sample > 0] if metric.above_zero else sample
    low, high = percentiles(sample, (25, 75))
    return low, high


def _by_state(jobs: Table) -> dict[str, int]:
    counts = {state.value: int(jobs.equal("state", state).sum()) for state in JobState}
    return {state: count for state, count in counts.items() if count}


def _clock_skew(run: MeasuredRun) -> int:
    """Count, and warn about, finished jobs that start before their submission or end before their start."""
    jobs = run.finished
    skewed = int(((jobs["wait"] < 0) | (jobs["run"] < -resolution(run.run))).sum())
    info = run.run.info
    where = f"{info.source} run of {info.workload.get('name') or 'a workload'}"
    tolerate({"job starts before its submission or ends before its start (clock skew)": skewed}, where=where)
    return skewed


def _operations(finished: Table, kind: str) -> dict[str, int]:
    return {"requested": int(finished[f"{kind}s_requested"].sum()), "executed": int(finished[f"{kind}s"].sum())}


def _reconfigurations(run: MeasuredRun) -> dict[str, dict[str, dict[str, float]]]:
    """Return kind -> stage -> count, median, p95 and sum of the durations, for the recorded stages."""
    times = {kind: {stage: run.reconfiguration_s(stage, kind) for stage in (*STAGES, *PARTS)} for kind in KINDS}
    observed = {
        kind: {stage: _distribution(sample) for stage, sample in stages.items() if len(sample)}
        for kind, stages in times.items()
    }
    return {kind: stages for kind, stages in observed.items() if stages}


def _distribution(sample: FloatArray) -> dict[str, float]:
    return {
        "count": len(sample),
        "median": percentile(sample, 50),
        "p95": percentile(sample, 95),
        "sum": float(np.sum(sample)),
    }


def _core_changes(run: Run) -> dict[str, dict[str, float]]:
    """Return cause -> numbers of changes of cores on a node, and their delays from the decision on, s."""
    # NaN: no policy decided these changes, or none of them was applied.
    by_cause = {}
    rows = run.table("reconfigurations")
    changes = rows.take(rows["node"] != -1)
    for cause in sorted(codes_of(changes.raw("cause"))[1]):
        rows = changes.take(changes.equal("cause", cause))
        delays = rows["applied"] - rows["asked"]
        by_cause[cause] = {
            "applied": int(rows.equal("state", "applied").sum()),
            "cancelled": int(rows.equal("state", "cancelled").sum()),
            "median_s": percentile(delays, 50),
            "p99_s": percentile(delays, 99),
            "max_s": percentile(delays, 100),
        }
    return by_cause


def _trimmed(run: MeasuredRun) -> dict[str, float]:
    """Return means over the jobs submitted outside the first and last 5 % of the arrival span."""
    submits, done = run.jobs["submit"], run.finished
    span = 0.0 if np.isnan(submits).all() else float(np.nanmax(submits))
    within = (done["submit"] >= TRIM * span) & (done["submit"] <= (1 - TRIM) * span)
    kept = done.take(within) if span > 0 else done
    return {
        "share": TRIM if span > 0 else 0.0,
        "jobs": len(kept),
        "mean_wait_s": mean(kept["wait"]),
        "mean_response_s": mean(kept["response"]),
        "mean_bounded_slowdown": mean(kept["bounded_slowdown"]),
    }
