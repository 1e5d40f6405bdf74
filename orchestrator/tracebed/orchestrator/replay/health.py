"""The health of a replay: whether it is fit to be compared with a prediction.

Health is judged by causes that are measured independently of the metrics of the run: the completeness of the run, the
lateness of its processes, and the load on its machine. A judgment by the outcome would bias the sample of runs. The
thresholds are fixed before the replay.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tracebed.ground.states import JobState
from tracebed.orchestrator.replay.monitor import Monitor
from tracebed.orchestrator.replay.run_times import RunTime, run_times
from tracebed.orchestrator.replay.thresholds import (
    SEVERE,
    SIGNALS,
    HealthSignal,
    HealthThresholds,
    Limit,
    TimeScale,
    format_value,
)
from tracebed.orchestrator.run import VIRTUAL, RunInfo
from tracebed.orchestrator.scheduling.record import ScheduleRecord

FEW = 3
UNUSUAL_S = 1.0
"""Upper bound of twice the usual time of a launch or an end if fewer than `FEW` jobs have a similar size, wall s."""


class Value(NamedTuple):
    """The value of a signal, and the place at which it occurred, if there is a single place."""

    value: float | None
    """None: unknown."""
    place: str = ""


def health(monitor: Monitor, info: RunInfo, record: ScheduleRecord, thresholds: HealthThresholds) -> dict[str, Any]:
    """Return the health of a replay that has ended, as saved in `run.json`.

    Args:
        monitor: the observations of the replay.
        info: the facts of the run; its state and its hand-overs must be final.
        record: the times and states of the jobs.
        thresholds: the limits.

    Returns:
        `state`: `healthy`, `degraded` or `unhealthy`. `causes`: the values above a limit, the worst first, each with
        `signal`, `value`, `limit`, `state` and `text`. `signals`: all values; None: unknown. `thresholds`: the SHA-256
        of the file of limits. If limits are wider than the defaults, also `wider`: these limits as text, and
        `defaults`: `state` and `causes` by the defaults.
    """
    kind, times = execution_kind(info), times_of(record.jobs.run_time, record.jobs.submit, info.speed)
    values = {name: function(monitor, info, record) for name, function in _FIGURES.items()}
    values |= _overheads(monitor, info, record) | of_run_times(run_times(monitor, record), record.jobs.ids)
    return judged(values, thresholds, kind, times)


def judged(values: Mapping[str, Value], thresholds: HealthThresholds, kind: str, times: TimeScale) -> dict[str, Any]:
    """Return the health in the form of `health`, from the values of signals. Missing signals are unknown.

    Args:
        values: signal -> value.
        thresholds: the limits.
        kind: kind of execution, one of `limits.KINDS`.
        times: the times to which limits are relative.
    """
    values = {name: values.get(name, Value(None)) for name in SIGNALS}
    found = _state(values, thresholds, kind, times) | {
        "signals": {name: value.value for name, value in values.items()},
        "thresholds": thresholds.sha256,
    }
    if wider := thresholds.wider(kind, times):
        found |= {"wider": wider, "defaults": _state(values, HealthThresholds.read(), kind, times)}
    return found


def _state(values: Mapping[str, Value], thresholds: HealthThresholds, kind: str, times: TimeScale) -> dict[str, Any]:
    """Return `state` and `causes` by the limits of `thresholds`."""
    causes = []
    for name, limits in thresholds.limits[kind].items():
        found = values[name]
        for state in SEVERE:
            limit: Limit | None = getattr(limits, state)
            if found.value is not None and limit is not None and found.value > (most := limit.at(times)):
                text = _text(SIGNALS[name], found, most)
                causes.append({"signal": name, "value": found.value, "limit": most, "state": state, "text": text})
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
    """Return the times of a replay to which limits may be relative.

    Args:
        run_time: run time of each job, trace s; NaN: unknown.
        submit: submit time of each job, trace s, in order.
        speed: trace seconds per wall second.
    """
    run_times = [seconds for seconds in run_time if not math.isnan(seconds)]
    gaps = (submit[-1] - submit[0]) / (len(submit) - 1) if len(submit) > 1 else 0.0
    return TimeScale(speed, statistics.fmean(run_times or [0.0]) / speed, gaps / speed)


def rounded(value: float | None) -> Any:
    """Return a value with six significant digits, enough for `run.json`; None stays None."""
    return None if value is None else float(f"{value:.6g}")


def _text(signal: HealthSignal, found: Value, limit: float) -> str:
    """Return a cause as text: meaning, value, place and limit."""
    assert found.value is not None
    if signal.unit == "" and limit == 0 and found.value == 1:
        return signal.meaning if not found.place else f"{signal.meaning} ({found.place})"
    place = f", {found.place}" if found.place else ""
    return (
        f"{signal.meaning}: {format_value(found.value, signal.unit)}{place} (limit {format_value(limit, signal.unit)})"
    )


# -- the figures -------------------------------------------------------------------------------------------------------


def _nodes_missing(monitor: Monitor, info: RunInfo, record: ScheduleRecord) -> Value:
    if not monitor.sampled:  # without samples, an idle node leaves no entry in the journal
        return Value(None)
    absent = [node.name for number, node in enumerate(info.nodes) if number not in monitor.seen]
    return Value(len(absent), ", ".join(absent[:3]) + (", ..." if len(absent) > 3 else ""))


def _agents_lost(monitor: Monitor, info: RunInfo, record: ScheduleRecord) -> Value:
    return Value(len(monitor.lost), ", ".join(info.nodes[node].name for node in sorted(monitor.lost)))


def _interrupted(monitor: Monitor, info: RunInfo, record: ScheduleRecord) -> Value:
    return Value(int(info.state == "interrupted"), "; ".join(filter(None, info.interruptions)))


def _pauses(monitor: Monitor, info: RunInfo, record: ScheduleRecord) -> Value:
    seconds = sum(pause["wall_s"] or 0.0 for pause in record.pauses)
    return Value(len(record.pauses), f"{seconds:.3g} s" if record.pauses else "")


def _jobs_disturbed(monitor: Monitor, info: RunInfo, record: ScheduleRecord) -> Value:
    """Return the share of the jobs that failed, were interrupted or requeued, or completed although a rank died."""
    total = len(record.jobs)
    counts = {
        "failed": record.state.count(JobState.FAILED),
        "ended by an interruption": record.state.count(JobState.INTERRUPTED),
        "were requeued": sum(
            state == JobState.COMPLETED and restarts > 0
            for state, restarts in zip(record.state, record.restarts, strict=True)
        ),
        "lost a process": sum(
            state == JobState.COMPLETED and name in monitor.broken and not restarts
            for name, state, restarts in zip(record.jobs.ids, record.state, record.restarts, strict=True)
        ),
    }
    texts = [f"{count:,} of {total:,} jobs {what}" for what, count in counts.items() if count]
    return Value(rounded(sum(counts.values()) / total), ", ".join(texts))


def _rank_late(monitor: Monitor, info: RunInfo, record: ScheduleRecord) -> Value:
    """Return the largest lateness after a deadline, or at duty 1 the longest time in which a rank did not run."""
    largest = monitor.halt if execution_kind(info) == "computing" else monitor.late
    return Value(rounded(largest.value), largest.place)


def _residual(monitor: Monitor, info: RunInfo, record: ScheduleRecord) -> Value:
    if not monitor.residuals:
        return Value(None)
    job = max(monitor.residuals, key=monitor.residuals.__getitem__)
    return Value(rounded(max(0.0, monitor.residuals[job])), f"job {job}")


def _lost_time(monitor: Monitor, info: RunInfo, record: ScheduleRecord) -> Value:
    run_time = dict(zip(record.jobs.ids, record.jobs.run_time, strict=True))
    planned = sum(run_time[job] for job in monitor.residuals) / info.speed
    return Value(rounded(sum(map(abs, monitor.residuals.values())) / planned) if planned else None)


def _overheads(monitor: Monitor, info: RunInfo, record: ScheduleRecord) -> dict[str, Value]:
    """Return the largest delay of a launch or an end, and the sum of these delays relative to the run times."""
    late = _late_overheads(monitor, record)
    seconds, job = max(late, default=(0.0, ""))
    planned = sum(seconds for seconds in record.jobs.run_time if not math.isnan(seconds)) / info.speed
    excess = sum(seconds for seconds, _ in late)
    return {
        "overhead_late_s": Value(rounded(seconds), f"job {job}" if job else ""),
        "overhead_excess": Value(rounded(excess / planned) if planned else None),
    }


def of_run_times(found: Sequence[RunTime], ids: Sequence[str]) -> dict[str, Value]:
    """Return the largest difference of a recorded run time from its plan, and their sum relative to the plans."""
    if not found:
        return {}
    worst, planned = max(found, key=lambda one: one.off), sum(one.planned for one in found)
    return {
        "run_time_off_s": Value(rounded(worst.off), f"job {ids[worst.job]}" if worst.off else ""),
        "run_time_off": Value(rounded(sum(one.off for one in found) / planned) if planned else None),
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


def _submission_late(monitor: Monitor, info: RunInfo, record: ScheduleRecord) -> Value:
    late = (np.array(record.submit) - np.array(record.jobs.submit)) / info.speed
    if np.isnan(late).all():
        return Value(None)
    job = int(np.nanargmax(late))
    return Value(rounded(float(late[job])), f"job {record.jobs.ids[job]}")


def _core_overlap(monitor: Monitor, info: RunInfo, record: ScheduleRecord) -> Value:
    """Return the longest time in which the masks of two jobs had a CPU in common; None without hand-overs."""
    return Value(info.handovers.get("overlap_s"), info.handovers.get("overlap_at", ""))


def _cpu_wait(monitor: Monitor, info: RunInfo, record: ScheduleRecord) -> Value:
    share = monitor.work.cpu_share
    return Value(None if math.isnan(share) else rounded(max(0.0, 1 - share)))


def _rate_spread(monitor: Monitor, info: RunInfo, record: ScheduleRecord) -> Value:
    rates = monitor.work_rates()
    if len(rates) < 2:
        return Value(None)
    low, middle, high = np.percentile(rates, [5, 50, 95])
    return Value(rounded(float((high - low) / middle)))


def _rate_drift(monitor: Monitor, info: RunInfo, record: ScheduleRecord) -> Value:
    calibrated = info.calibration.get("units_per_core_second")
    return Value(_drift(calibrated, monitor.work.rate))


def _calibration_drift(monitor: Monitor, info: RunInfo, record: ScheduleRecord) -> Value:
    before: list[float] = [rate for host in info.hosts for rate in host.get("units_per_core_second", {}).values()]
    after = monitor.rates_after.values()
    return Value(_drift(statistics.median(before), statistics.median(after)) if before and after else None)


def _drift(usual: float | None, found: float) -> float | None:
    return None if not usual or math.isnan(found) else rounded(abs(found / usual - 1))


def _pressure(resource: str) -> Callable[[Monitor, RunInfo, ScheduleRecord], Value]:
    return lambda monitor, info, record: Value(rounded(monitor.pressure(resource)))


_FIGURES: Mapping[str, Callable[[Monitor, RunInfo, ScheduleRecord], Value]] = {
    "nodes_missing": _nodes_missing,
    "agents_lost": _agents_lost,
    "interrupted": _interrupted,
    "pauses": _pauses,
    "jobs_disturbed": _jobs_disturbed,
    "rank_late_s": _rank_late,
    "residual_s": _residual,
    "lost_time": _lost_time,
    "loop_late_s": lambda monitor, info, record: Value(rounded(monitor.loop_late.value), monitor.loop_late.place),
    "agent_late_s": lambda monitor, info, record: Value(rounded(monitor.agent_late.value), monitor.agent_late.place),
    "submission_late_s": _submission_late,
    "core_overlap_s": _core_overlap,
    "cpu_wait": _cpu_wait,
    "cpu_pressure": _pressure("cpu"),
    "io_pressure": _pressure("io"),
    "memory_pressure": _pressure("memory"),
    "steal": lambda monitor, info, record: Value(rounded(monitor.steal())),
    "outside_load": lambda monitor, info, record: Value(
        rounded(monitor.external_load(computing=execution_kind(info) != "emulated"))
    ),
    "rate_spread": _rate_spread,
    "rate_drift": _rate_drift,
    "calibration_drift": _calibration_drift,
    "clock_loss": lambda monitor, info, record: Value(rounded(monitor.clock_loss())),
}
