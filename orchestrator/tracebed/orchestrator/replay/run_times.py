"""Comparison of recorded run times with their plans: a run time that contradicts the work of its ranks is not valid.

The run time of a job follows from the timeline of the replay: from the first iteration to the round in which the job
ended. Its plan is computed by its leader, part by part, from the nodes and cores of the job. The two are independent,
so their difference reveals a timeline that lost or gained time, as after a kill and a resumption. The same holds for
the time until each resize of a malleable job: a resize that took effect before or after its plan shifts work from one
size to another, even if the job makes up for it before its end.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from tracebed.ground.states import JobState
from tracebed.orchestrator.replay.monitor import Monitor
from tracebed.orchestrator.scheduling.record import ScheduleRecord

USUAL_S = 0.05
"""Upper bound of the usual time from the last iteration of a job to its recorded end, wall s. It is not in the plan."""


class RunTime(NamedTuple):
    """The run time of a completed job, wall s."""

    job: int
    recorded: float
    planned: float
    off: float
    """How much shorter than its plan the run time is, or how much longer, beyond twice the usual end; or how much
    earlier or later than planned a resize took effect, if that is more."""
    resized: tuple[float, float] | None = None
    """The time from the first iteration to this resize, recorded and planned; None: no resize is off by more."""


def run_times(monitor: Monitor, record: ScheduleRecord) -> list[RunTime]:
    """Return the run times of the completed jobs that have a plan. Programs of other projects report no plan."""
    found = []
    for job, name in enumerate(record.jobs.ids):
        recorded = (record.end[job] - record.launched[job]) / monitor.speed
        if record.state[job] == JobState.COMPLETED and name in monitor.planned and not math.isnan(recorded):
            found.append((job, recorded, monitor.planned[name]))
    resized = _resized(monitor, record)
    return [_with_resize(one, resized.get(one.job)) for one in compared(found, min(USUAL_S, usual_end(found)))]


def _resized(monitor: Monitor, record: ScheduleRecord) -> dict[int, tuple[float, float]]:
    """Return job -> the recorded and the planned time until the resize whose times differ most, wall s."""
    found: dict[int, tuple[float, float]] = {}
    for row, measured in record.measured.items():
        job, applied = record.resizes.job[row], record.resizes.applied[row]
        if "planned_s" not in measured or not applied >= record.launched[job]:  # in an earlier run of a requeued job
            continue
        times = (applied - record.launched[job]) / monitor.speed, measured["planned_s"]
        found[job] = max(found.get(job, times), times, key=_difference)
    return found


def _difference(times: tuple[float, float]) -> float:
    return abs(times[0] - times[1])


def _with_resize(one: RunTime, resized: tuple[float, float] | None) -> RunTime:
    """Return a run time that is off by as much as a resize of its job, if that is more."""
    if resized is None or _difference(resized) <= one.off:
        return one
    return one._replace(off=_difference(resized), resized=resized)


def usual_end(found: Sequence[tuple[int, float, float]]) -> float:
    """Return twice the median by which run times are longer than their plans, wall s; 0 without run times.

    Args:
        found: (job, recorded run time, planned run time) of each job, wall s.
    """
    return 2 * statistics.median(max(0.0, recorded - planned) for _, recorded, planned in found) if found else 0.0


def compared(found: Sequence[tuple[int, float, float]], usual: float) -> list[RunTime]:
    """Return recorded run times with their differences from the plans.

    Args:
        found: (job, recorded run time, planned run time) of each job, wall s.
        usual: time by which a run time may be longer than its plan, wall s.
    """
    return [
        RunTime(job, recorded, planned, max(planned - recorded, recorded - planned - usual, 0.0))
        for job, recorded, planned in found
    ]


def mark(reasons: list[str], found: Sequence[RunTime], limit_s: float, speed: float) -> None:
    """Let the reason of each job whose run time is off by more than `limit_s` (wall s) say so.

    Args:
        reasons: the reason of each job, which is changed if it is empty.
        found: the run times.
        limit_s: limit, wall s.
        speed: trace seconds per wall second.
    """
    for job, recorded, planned, off, resized in found:
        if off > limit_s and not reasons[job]:
            what, times = ("ran", (recorded, planned)) if resized is None else ("was resized after", resized)
            reasons[job] = f"{what} {times[0] * speed:.6g} s, but its plan is {times[1] * speed:.6g} s"
