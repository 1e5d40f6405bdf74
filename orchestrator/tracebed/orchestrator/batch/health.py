"""The health of a replay on a batch system, from the signals that can be observed from outside."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tracebed.orchestrator.batch.watched import WatchedJob
from tracebed.orchestrator.replay.health import Value, judged, rounded, times_of
from tracebed.orchestrator.replay.thresholds import Thresholds
from tracebed.orchestrator.run import Run
from tracebed.states import JobState

DISTURBED = (JobState.FAILED, JobState.INTERRUPTED, JobState.UNKNOWN)


def health(run: Run, jobs: Sequence[WatchedJob], steps: Sequence[float], thresholds: Thresholds) -> dict[str, Any]:
    """Return the health of a replay that has ended, in the form of `replay.health.health`.

    Args:
        run: the run.
        jobs: the submission, observations and end of each job.
        steps: sizes of the steps of the wall clock, s.
        thresholds: the limits.
    """
    table, info = run.jobs, run.info
    late = ((table["submit"] - table["submit_planned"]) / info.speed).to_numpy()
    states = table["state"].to_numpy()
    again = np.array([job.own is not None and job.own.restarts > 0 for job in jobs])
    disturbed = int((np.isin(states, DISTURBED) | again).sum())
    figures = {
        "interrupted": Value(int(info.state == "interrupted"), "; ".join(filter(None, info.interruptions))),
        "pauses": Value(
            len(info.pauses), f"{sum(each['wall_s'] for each in info.pauses):.3g} s" if info.pauses else ""
        ),
        "jobs_disturbed": Value(disturbed / len(table), f"{disturbed:,} of {len(table):,} jobs" if disturbed else ""),
        "submission_late_s": _largest(late, table["job_id"]),
        "clock_step_s": Value(sum(map(abs, steps))),
    }
    done = table["state"].to_numpy() == JobState.COMPLETED
    ran = [job.own.end - job.own.start if job.own is not None and job.own.end is not None else np.nan for job in jobs]
    excess = np.where(done, np.array(ran) - table["run_time"].to_numpy() / info.speed, np.nan)
    planned = table["run_time"].to_numpy()[np.isfinite(excess)].sum() / info.speed
    figures["residual_s"] = _largest(excess, table["job_id"])
    figures["lost_time"] = Value(float(np.nansum(np.abs(excess)) / planned) if planned else None)
    times = times_of(table["run_time"].tolist(), table["submit_planned"].tolist(), info.speed)
    values = {name: found._replace(value=rounded(found.value)) for name, found in figures.items()}
    return judged(values, thresholds, "emulated", times)


def _largest(values: Any, ids: Any) -> Value:
    """Return the largest value, with its job; unknown if all values are unknown."""
    if np.isnan(values).all():
        return Value(None)
    job = int(np.nanargmax(values))
    return Value(max(0.0, float(values[job])), f"job {ids[job]}")
