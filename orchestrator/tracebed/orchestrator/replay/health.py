"""The health of a replay: whether it is fit to be compared with a prediction.

Health is judged by causes that are measured independently of the metrics of the run: the completeness of the run, the
lateness of its processes, and the load on its machine. A judgment by the outcome would bias the sample of runs. The
thresholds are fixed before the replay.

One of the causes is a recorded run time that contradicts the work of its ranks. The run time of a job follows from the
timeline of the replay: from the first iteration to the round in which the job ended. Its plan is computed by its
leader, part by part, from the nodes and cores of the job. The two are independent, so their difference reveals a
timeline that lost or gained time, as after a kill and a resumption. The same holds for the time until each resize of a
malleable job: a resize that took effect before or after its plan shifts work from one size to another, even if the job
makes up for it before its end.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tracebed.ground.states import JobState
from tracebed.orchestrator.replay.monitor import Monitor
from tracebed.orchestrator.replay.thresholds import (
    SEVERE,
    SIGNALS,
    HealthThresholds,
    Limit,
    TimeScale,
    format_value,
)
from tracebed.orchestrator.run import VIRTUAL, RunInfo
from tracebed.orchestrator.scheduling.record import ScheduleRecord
from tracebed.orchestrator.testbeds.limits import Signal

FEW = 3
UNUSUAL_S = 1.0
"""Upper bound of twice the usual time of a launch or an end if fewer than `FEW` jobs have a similar size, wall s."""
USUAL_S = 0.05
"""Upper bound of the usual time from the last iteration of a job to its recorded end, wall s. It is not in the plan."""


class Value(NamedTuple):
    """The value of a signal, and the place at which it occurred, if there is a single place."""

    value: float | None  # None: unknown
    place: str = ""


def health(monitor: Monitor, info: RunInfo, record: ScheduleRecord, thresholds: HealthThresholds) -> dict[str, Any]:
    """Return the health of a replay that has ended, as saved in `run.json`. `info` must have its final state.

    `state` is `healthy`, `degraded` or `unhealthy`. `causes` are the values above a limit, the worst first, each with
    `signal`, `value`, `limit`, `state` and `text`. `signals` are all values; None: unknown. `thresholds` is the SHA-256
    of the file of limits. If limits are wider than the defaults, `wider` has these limits as text, and `defaults` has
    `state` and `causes` by the defaults.
    """
    kind, times = execution_kind(info), times_of(record.jobs.run_time, record.jobs.submit, info.speed)
    figures = {
        **completeness(info),
        **_completeness(monitor, info, record),
        **_lateness(monitor, info, record, kind),
        **_overheads(monitor, info, record),
        **_risks(monitor, info, kind),
    }
    values = {
        name: figure._replace(value=rounded(figure.value)) if SIGNALS[name].unit else figure  # counts stay integers
        for name, figure in figures.items()
    }
    values |= of_run_times(run_times(monitor, record), record.jobs.ids)
    return judged(values, thresholds, kind, times)


def judged(values: Mapping[str, Value], thresholds: HealthThresholds, kind: str, times: TimeScale) -> dict[str, Any]:
    """Return the health in the form of `health`, from the values of signals. Missing signals are unknown."""
    values = {name: values.get(name, Value(None)) for name in SIGNALS}
    judgment = _state(values, thresholds, kind, times) | {
        "signals": {name: value.value for name, value in values.items()},
        "thresholds": thresholds.sha256,
    }
    if wider := thresholds.wider(kind, times):
        judgment |= {"wider": wider, "defaults": _state(values, HealthThresholds.read(), kind, times)}
    return judgment


def _state(values: Mapping[str, Value], thresholds: HealthThresholds, kind: str, times: TimeScale) -> dict[str, Any]:
    """Return `state` and `causes` by the limits of `thresholds`."""
    causes = []
    for name, limits in thresholds.limits[kind].items():
        figure = values[name]
        for state in SEVERE:
            limit: Limit | None = getattr(limits, state)
            if figure.value is not None and limit is not None and figure.value > (most := limit.at(times)):
                text = _text(SIGNALS[name], figure, most)
                causes.append({"signal": name, "value": figure.value, "limit": most, "state": state, "text": text})
                break
    causes.sort(key=lambda cause: SEVERE.index(cause["state"]))
    return {"state": causes[0]["state"] if causes else "healthy", "causes": causes}


def execution_kind(info: RunInfo) -> str:
    """Return the kind of execution that selects the limits, one of `limits.KINDS`."""
    if info.execution in ("emulated", VIRTUAL):
        return "emulated"
    measured = max(info.duties) >= 1 and info.parameters.get("clock") != "steady"
    return "computing" if measured else "paced"


def times_of(run_time: Sequence[float], submit: Sequence[float], speed: float) -> TimeScale:
    """Return the times to which limits may be relative. Times of jobs are trace s; submit times are in order."""
    run_times = [seconds for seconds in run_time if not math.isnan(seconds)]
    gaps = (submit[-1] - submit[0]) / (len(submit) - 1) if len(submit) > 1 else 0.0
    return TimeScale(speed, statistics.fmean(run_times or [0.0]) / speed, gaps / speed)


def rounded(value: float | None) -> Any:
    """Return a value with six significant digits, enough for `run.json`; None stays None."""
    return None if value is None else float(f"{value:.6g}")


def _text(signal: Signal, figure: Value, limit: float) -> str:
    """Return a cause as text: meaning, value, place and limit."""
    assert figure.value is not None
    if signal.unit == "" and limit == 0 and figure.value == 1:
        return signal.meaning if not figure.place else f"{signal.meaning} ({figure.place})"
    place = f", {figure.place}" if figure.place else ""
    return (
        f"{signal.meaning}: {format_value(figure.value, signal.unit)}{place} (limit {format_value(limit, signal.unit)})"
    )


# -- the figures -------------------------------------------------------------------------------------------------------


def completeness(info: RunInfo) -> dict[str, Value]:
    """Return the figures of the interruption and of the pauses of a replay."""
    seconds = sum(pause["wall_s"] or 0.0 for pause in info.pauses)
    return {
        "interrupted": Value(int(info.state == "interrupted"), "; ".join(filter(None, info.interruptions))),
        "pauses": Value(len(info.pauses), f"{seconds:.3g} s" if info.pauses else ""),
    }


def largest(values: Any, ids: Sequence[str]) -> Value:
    """Return the largest of the values of jobs, at least 0, with its job; unknown if all values are NaN."""
    if np.isnan(values).all():
        return Value(None)
    job = int(np.nanargmax(values))
    return Value(max(0.0, float(values[job])), f"job {ids[job]}")


def _completeness(monitor: Monitor, info: RunInfo, record: ScheduleRecord) -> dict[str, Value]:
    """Return the figures of missing and lost nodes, and of disturbed jobs."""
    # Without samples, an idle node leaves no entry in the journal.
    missing = [node.name for number, node in enumerate(info.nodes) if number not in monitor.seen]
    place = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
    total, completed = len(record.jobs), [state == JobState.COMPLETED for state in record.state]
    jobs = list(zip(record.jobs.ids, completed, record.restarts, strict=True))
    counts = {
        "failed": record.state.count(JobState.FAILED),
        "ended by an interruption": record.state.count(JobState.INTERRUPTED),
        "were requeued": sum(done and restarts > 0 for _, done, restarts in jobs),
        "lost a process": sum(done and name in monitor.broken and not restarts for name, done, restarts in jobs),
    }
    texts = [f"{count:,} of {total:,} jobs {what}" for what, count in counts.items() if count]
    return {
        "nodes_missing": Value(len(missing), place) if monitor.sampled else Value(None),
        "agents_lost": Value(len(monitor.lost), ", ".join(info.nodes[node].name for node in sorted(monitor.lost))),
        "jobs_disturbed": Value(sum(counts.values()) / total, ", ".join(texts)),
    }


def _lateness(monitor: Monitor, info: RunInfo, record: ScheduleRecord, kind: str) -> dict[str, Value]:
    """Return the figures of the lateness of ranks, agents, the replayer and the submissions."""
    # At duty 1, ranks have no deadlines: what counts is the longest time in which a rank did not run.
    rank = monitor.halt if kind == "computing" else monitor.late
    residuals = monitor.residuals
    behind = max(residuals, key=residuals.__getitem__, default=None)
    run_time = dict(zip(record.jobs.ids, record.jobs.run_time, strict=True))
    planned = sum(run_time[job] for job in residuals) / info.speed
    return {
        "rank_late_s": Value(rank.value, rank.place),
        "residual_s": Value(None) if behind is None else Value(max(0.0, residuals[behind]), f"job {behind}"),
        "lost_time": Value(sum(map(abs, residuals.values())) / planned if planned else None),
        "loop_late_s": Value(monitor.loop_late.value, monitor.loop_late.place),
        "agent_late_s": Value(monitor.agent_late.value, monitor.agent_late.place),
        "submission_late_s": largest(record.late_s() / info.speed, record.jobs.ids),
    }


def _risks(monitor: Monitor, info: RunInfo, kind: str) -> dict[str, Value]:
    """Return the figures of the conditions under which a schedule is shifted."""
    share, rates = monitor.work.cpu_share, monitor.work_rates()
    low, middle, high = np.percentile(rates, [5, 50, 95]) if len(rates) > 1 else (0.0, math.nan, 0.0)
    before: list[float] = [rate for host in info.hosts for rate in host.get("units_per_core_second", {}).values()]
    after = monitor.rates_after.values()
    drifts = {
        "rate_drift": _drift(info.calibration.get("units_per_core_second"), monitor.work.rate),
        "calibration_drift": _drift(statistics.median(before), statistics.median(after)) if before and after else None,
    }
    return {
        "core_overlap_s": Value(info.handovers.get("overlap_s"), info.handovers.get("overlap_at", "")),
        "cpu_wait": Value(None if math.isnan(share) else max(0.0, 1 - share)),
        **{f"{resource}_pressure": Value(monitor.pressure(resource)) for resource in ("cpu", "io", "memory")},
        "steal": Value(monitor.steal()),
        "outside_load": Value(monitor.external_load(computing=kind != "emulated")),
        "rate_spread": Value(float((high - low) / middle) if len(rates) > 1 else None),
        "clock_loss": Value(monitor.clock_loss()),
        **{name: Value(drift) for name, drift in drifts.items()},
    }


def _drift(usual: float | None, rate: float) -> float | None:
    return None if not usual or math.isnan(rate) else abs(rate / usual - 1)


def _overheads(monitor: Monitor, info: RunInfo, record: ScheduleRecord) -> dict[str, Value]:
    """Return the largest delay of a launch or an end, and the sum of these delays relative to the run times."""
    late = _late_overheads(monitor, record)
    seconds, job = max(late, default=(0.0, ""))
    planned = sum(seconds for seconds in record.jobs.run_time if not math.isnan(seconds)) / info.speed
    excess = sum(seconds for seconds, _ in late)
    return {
        "overhead_late_s": Value(seconds, f"job {job}" if job else ""),
        "overhead_excess": Value(excess / planned if planned else None),
    }


def _late_overheads(monitor: Monitor, record: ScheduleRecord) -> list[tuple[float, str]]:
    """Return the delays of launches and ends beyond twice the median of jobs of a similar size, with their jobs."""
    size = dict(zip(record.jobs.ids, map(int.bit_length, record.jobs.nodes), strict=True))
    late = []
    for overheads in (monitor.launches, monitor.ends):
        by_size: dict[int, list[tuple[float, str]]] = {}
        for job, seconds in overheads.items():
            by_size.setdefault(size[job], []).append((seconds, job))
        for alike in by_size.values():
            usual = 2 * statistics.median(seconds for seconds, _ in alike)
            if len(alike) < FEW:
                usual = min(usual, UNUSUAL_S)
            late += [(seconds - usual, job) for seconds, job in alike if seconds > usual]
    return late


def of_run_times(run_times: Sequence[RunTime], ids: Sequence[str]) -> dict[str, Value]:
    """Return the largest difference of a recorded run time from its plan, and their sum relative to the plans."""
    if not run_times:
        return {}
    worst, planned = max(run_times, key=lambda one: one.off), sum(one.planned for one in run_times)
    return {
        "run_time_off_s": Value(rounded(worst.off), f"job {ids[worst.job]}" if worst.off else ""),
        "run_time_off": Value(rounded(sum(one.off for one in run_times) / planned) if planned else None),
    }


# -- recorded run times beside their plans -----------------------------------------------------------------------------


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
    times = []
    for job, name in enumerate(record.jobs.ids):
        recorded = (record.end[job] - record.launched[job]) / monitor.speed
        if record.state[job] == JobState.COMPLETED and name in monitor.planned and not math.isnan(recorded):
            times.append((job, recorded, monitor.planned[name]))
    resized = _resized(monitor, record)
    return [_with_resize(one, resized.get(one.job)) for one in compared(times, min(USUAL_S, usual_end(times)))]


def _resized(monitor: Monitor, record: ScheduleRecord) -> dict[int, tuple[float, float]]:
    """Return job -> the recorded and the planned time until the resize whose times differ most, wall s."""
    worst: dict[int, tuple[float, float]] = {}
    for row, measured in record.measured.items():
        job, applied = record.resizes.job[row], record.resizes.applied[row]
        if "planned_s" not in measured or not applied >= record.launched[job]:  # in an earlier run of a requeued job
            continue
        times = (applied - record.launched[job]) / monitor.speed, measured["planned_s"]
        worst[job] = max(worst.get(job, times), times, key=_difference)
    return worst


def _difference(times: tuple[float, float]) -> float:
    return abs(times[0] - times[1])


def _with_resize(one: RunTime, resized: tuple[float, float] | None) -> RunTime:
    """Return a run time that is off by as much as a resize of its job, if that is more."""
    if resized is None or _difference(resized) <= one.off:
        return one
    return one._replace(off=_difference(resized), resized=resized)


def usual_end(times: Sequence[tuple[int, float, float]]) -> float:
    """Return twice the median by which run times exceed plans, from (job, run time, plan), wall s; 0 without jobs."""
    return 2 * statistics.median(max(0.0, recorded - planned) for _, recorded, planned in times) if times else 0.0


def compared(times: Sequence[tuple[int, float, float]], usual: float) -> list[RunTime]:
    """Return (job, run time, plan) with their differences, all in wall s. A run time may exceed its plan by `usual`."""
    return [
        RunTime(job, recorded, planned, max(planned - recorded, recorded - planned - usual, 0.0))
        for job, recorded, planned in times
    ]


def mark(reasons: list[str], run_times: Sequence[RunTime], limit_s: float, speed: float) -> None:
    """Let the empty reason of each job whose run time is off by more than `limit_s` (wall s) say so."""
    for job, recorded, planned, off, resized in run_times:
        if off > limit_s and not reasons[job]:
            what, times = ("ran", (recorded, planned)) if resized is None else ("was resized after", resized)
            reasons[job] = f"{what} {times[0] * speed:.6g} s, but its plan is {times[1] * speed:.6g} s"
