"""The health of a replay on a batch system, from the signals that can be observed from outside."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tracebed.orchestrator.batch.plan import SubmissionPlan
from tracebed.orchestrator.batch.watched import WatchedJob
from tracebed.orchestrator.replay.health import Value, judged, rounded, times_of
from tracebed.orchestrator.replay.thresholds import HealthThresholds
from tracebed.orchestrator.run import RunInfo
from tracebed.states import JobState

DISTURBED = (JobState.FAILED, JobState.INTERRUPTED, JobState.UNKNOWN)


def health(
    info: RunInfo,
    plan: SubmissionPlan,
    jobs: Sequence[WatchedJob],
    submit: Sequence[float],
    states: Sequence[JobState | None],
    steps: Sequence[float],
    thresholds: HealthThresholds,
) -> dict[str, Any]:
    """Return the health of a replay, in the form of `replay.health.health`. Signals of the nodes are unknown.

    Args:
        info: the facts of the run.
        plan: the jobs.
        jobs: the submission, observations and end of each job.
        submit: time of the submission of each job, trace s; NaN: not submitted.
        states: final state of each job; None: the job has not ended.
        steps: sizes of the steps of the wall clock, s.
        thresholds: the limits.
    """
    late = (np.array(submit) - np.array(plan.submit)) / info.speed
    again = [job.own is not None and job.own.restarts > 0 for job in jobs]
    disturbed = sum(state in DISTURBED or twice for state, twice in zip(states, again, strict=True))
    figures = {
        "interrupted": Value(int(info.state == "interrupted"), "; ".join(filter(None, info.interruptions))),
        "pauses": Value(
            len(info.pauses), f"{sum(each['wall_s'] for each in info.pauses):.3g} s" if info.pauses else ""
        ),
        "jobs_disturbed": Value(disturbed / len(plan), f"{disturbed:,} of {len(plan):,} jobs" if disturbed else ""),
        "submission_late_s": _largest(late, plan.ids),
        "clock_step_s": Value(sum(map(abs, steps))),
    }
    done = np.array([state is JobState.COMPLETED for state in states])
    ran = [job.own.end - job.own.start if job.own is not None and job.own.end is not None else np.nan for job in jobs]
    wanted = np.array(plan.run_time) / info.speed
    excess = np.where(done, np.array(ran) - wanted, np.nan)
    planned = wanted[np.isfinite(excess)].sum()
    figures["residual_s"] = _largest(excess, plan.ids)
    figures["lost_time"] = Value(float(np.nansum(np.abs(excess)) / planned) if planned else None)
    times = times_of(plan.run_time, plan.submit, info.speed)
    values = {name: found._replace(value=rounded(found.value)) for name, found in figures.items()}
    return judged(values, thresholds, "emulated", times)


def _largest(values: Any, ids: Any) -> Value:
    """Return the largest value, with its job; unknown if all values are unknown."""
    if np.isnan(values).all():
        return Value(None)
    job = int(np.nanargmax(values))
    return Value(max(0.0, float(values[job])), f"job {ids[job]}")
