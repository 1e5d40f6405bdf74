"""The health of a replay on a batch system, from the signals that can be observed from outside."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tracebed.ground.states import JobState
from tracebed.orchestrator.batch.ending import Lifetime
from tracebed.orchestrator.batch.plan import SubmissionPlan
from tracebed.orchestrator.batch.watched import WatchedJob
from tracebed.orchestrator.replay.health import Value, judged, of_run_times, rounded, times_of
from tracebed.orchestrator.replay.run_times import RunTime, compared, usual_end
from tracebed.orchestrator.replay.thresholds import HealthThresholds
from tracebed.orchestrator.run import RunInfo

KIND = "emulated"
"""The kind of execution that selects the limits: the jobs sleep."""
DISTURBED = (JobState.FAILED, JobState.INTERRUPTED, JobState.UNKNOWN)


def health(
    info: RunInfo,
    plan: SubmissionPlan,
    jobs: Sequence[WatchedJob],
    submit: Sequence[float],
    states: Sequence[JobState | None],
    found: Sequence[RunTime],
    steps: Sequence[float],
    thresholds: HealthThresholds,
) -> dict[str, Any]:
    """Return the health of a replay, in the form of `replay.health.health`. Signals of the nodes are unknown.

    Args:
        info: the facts of the run.
        jobs: the submission, observations and end of each job.
        submit: time of the submission of each job, trace s; NaN: not submitted.
        states: final state of each job; None: the job has not ended.
        found: the run times of the completed jobs, as `run_times` returns them.
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
    if lost := sorted({outage["node"] for outage in info.outages}):
        figures["agents_lost"] = Value(len(lost), ", ".join(lost))
    done = np.array([state is JobState.COMPLETED for state in states])
    ran = [job.own.end - job.own.start if job.own is not None and job.own.end is not None else np.nan for job in jobs]
    wanted = np.array([job.planned_s(run / info.speed) for job, run in zip(jobs, plan.run_time, strict=True)])
    excess = np.where(done, np.array(ran) - wanted, np.nan)
    planned = wanted[np.isfinite(excess)].sum()
    figures["residual_s"] = _largest(excess, plan.ids)
    figures["lost_time"] = Value(float(np.nansum(np.abs(excess)) / planned) if planned else None)
    values = {name: figure._replace(value=rounded(figure.value)) for name, figure in figures.items()}
    values |= of_run_times(found, plan.ids)
    return judged(values, thresholds, KIND, times_of(plan.run_time, plan.submit, info.speed))


def run_times(
    plan: SubmissionPlan,
    states: Sequence[JobState | None],
    lifetimes: Sequence[Lifetime],
    speed: float,
    resolution_s: float,
) -> list[RunTime]:
    """Return the recorded run times of the completed jobs, which are those of the run, beside their plans.

    A run time is from the beginning of the script to the recorded end. Without the own record of a job, it is from the
    start to the end that the batch system reports, which may be anything if the job is short. A run time may be longer
    than its plan by the resolution of the batch system and twice the usual time of a release.

    Args:
        states: final state of each job; None: the job has not ended.
        speed: trace seconds per wall second.
        resolution_s: resolution of the starts that the batch system reports, wall s.
    """
    found = []
    for job, (state, times) in enumerate(zip(states, lifetimes, strict=True)):
        begin = times.start if math.isnan(times.launched) else times.launched
        recorded = (times.end - begin) / speed
        if state is JobState.COMPLETED and not math.isnan(recorded):
            found.append((job, recorded, plan.run_time[job] / speed))
    return compared(found, resolution_s + usual_end(found))


def _largest(values: Any, ids: Any) -> Value:
    """Return the largest value, with its job; unknown if all values are unknown."""
    if np.isnan(values).all():
        return Value(None)
    job = int(np.nanargmax(values))
    return Value(max(0.0, float(values[job])), f"job {ids[job]}")
