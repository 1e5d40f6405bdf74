"""The run of a replay on a batch system and its health, from the observations and the jobs' own records.

Slurm gives times in whole seconds, rounded down; a job's own record has the instants at which its script began and
ended. A job starts (its nodes are allocated) in the second that Slurm gives, before its script begins: the start is
the beginning of the script, but not after that second. It ends (its nodes are released) after its script: the end is
the end of the script, but not before the second that Slurm gives.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from tracebed.converters.workload import FloatArray
from tracebed.ground.display import counted
from tracebed.ground.states import JobState
from tracebed.machine.nodes import NodeFacts
from tracebed.machine.power import PowerState
from tracebed.orchestrator.replay.batch.plan import SubmissionPlan
from tracebed.orchestrator.replay.batch.resizes import held_times
from tracebed.orchestrator.replay.batch.wall import Step
from tracebed.orchestrator.replay.batch.watched import NO_TRACE, TERMINATED, WatchedJob
from tracebed.orchestrator.replay.ending import lateness
from tracebed.orchestrator.replay.health import (
    RunTime,
    Value,
    compared,
    completeness,
    judged,
    largest,
    mark,
    of_run_times,
    rounded,
    times_of,
    usual_end,
)
from tracebed.orchestrator.replay.thresholds import HealthThresholds
from tracebed.orchestrator.run import Run, RunInfo
from tracebed.orchestrator.runs.schema import NAN

NOT_STARTED = "not started when the run ended"
KIND = "emulated"  # the kind of execution that selects the limits: the jobs sleep
DISTURBED = (JobState.FAILED, JobState.INTERRUPTED, JobState.UNKNOWN)


def ended_run(
    plan: SubmissionPlan,
    jobs: Sequence[WatchedJob],
    info: RunInfo,
    steps: Sequence[Step],
    *,
    trace: Callable[[float], float],
    resolution_s: float,
    interrupted: str | None,
    end: float,
    thresholds: HealthThresholds,
    power: Sequence[tuple[float, str, PowerState]] = (),
) -> Run:
    """Complete `info` with the lateness and the health, and return the run of a replay that has ended.

    Missing nodes are added to `info`. `trace` converts times of the replay's clock, such as its `end`, to trace time.
    `resolution_s` (wall s) is that of the starts that the batch system reports, and `power` has trace time, node and
    its state of power from then on.
    """
    numbers = {node.name: number for number, node in enumerate(info.nodes)}
    holding = [partial(allocations_of, name, job) for name, job in zip(plan.ids, jobs, strict=True)]
    times = [lifetime(job, resolution_s, trace=trace, end=end) for job in jobs]
    held_by = [list(of(life, trace, numbers, info.nodes)) for of, life in zip(holding, times, strict=True)]
    unobserved = [number for number, job in enumerate(jobs) if not job.ended]
    starts = _starts(held_by) if unobserved else {}
    for number in unobserved:
        whole = [row for row in held_by[number] if row.cores == info.nodes[row.node].cores]
        if (until := _next_start(whole, times[number], starts)) < times[number].end:
            times[number] = times[number]._replace(end=until)
            held_by[number] = list(holding[number](times[number], trace, numbers, info.nodes))
    held = [row for rows in held_by for row in rows]
    outcomes = [outcome(job, interrupted) for job in jobs]
    states, reasons = [state for state, _ in outcomes], [reason for _, reason in outcomes]
    submit = [trace(job.called) if job.called is not None else NAN for job in jobs]
    info.counts = {"jobs": len(plan), **Counter(map(str, states))}
    info.warnings = [f"{count:,} {what}" for what, count in plan.counts.items()] + info.warnings
    info.warnings += [*rejections(jobs), *refusals(plan, jobs)]
    info.resolution_s = _overlap(held, info.nodes)
    if JobState.INTERRUPTED in states:
        info.state, info.interruptions = "interrupted", [interrupted or ""]
    late = late_s(plan, jobs, submit) / info.speed
    info.lateness_ms = lateness(late[~np.isnan(late)].tolist())
    planned = [job.planned_s(run / info.speed) * info.speed for job, run in zip(jobs, plan.run_time, strict=True)]
    recorded = run_times(planned, states, times, info.speed, resolution_s)
    info.health = health(info, plan, jobs, submit, states, recorded, [step.size for step in steps], thresholds)
    mark(reasons, recorded, thresholds.marking(KIND, times_of(plan.run_time, plan.submit, info.speed)), info.speed)
    columns = dict(zip(Lifetime._fields, zip(*times, strict=True), strict=True)) | {
        "state": states,
        "reason": reasons,
        "job_id": plan.ids,
        "kind": plan.kind,
        "submit_planned": plan.submit,
        "submit": submit,
        "nodes": plan.nodes,
        "run_time": plan.run_time,
        "time_limit": plan.limit,
        "user": plan.user,
        "group": plan.group or "",
        "partition": plan.partition or "",
        "deadline": plan.deadline,
        "restarts": [job.own.restarts if job.own is not None else 0 for job in jobs],
    }
    resizes = [resize for number, job in enumerate(jobs) for resize in resizes_of(plan.ids[number], job, trace)]
    states_of_power = [(at, numbers[node], str(state)) for at, node, state in power if node in numbers]
    return Run(
        info,
        pd.DataFrame(columns),
        _ranges(held),
        pd.DataFrame(resizes) if resizes else None,
        pd.DataFrame(states_of_power, columns=["time", "node", "power_state"]) if states_of_power else None,
    )


def late_s(plan: SubmissionPlan, jobs: Sequence[WatchedJob], submit: Sequence[float]) -> FloatArray:
    """Return the time by which each job was submitted too late, trace s, shape (jobs,); NaN: not submitted."""
    due = [planned if job.due is None else job.due for planned, job in zip(plan.submit, jobs, strict=True)]
    late: FloatArray = np.array(submit) - np.array(due)
    return late


def rejections(jobs: Sequence[WatchedJob]) -> list[str]:
    """Return a text for each of the most frequent reasons for which jobs were rejected."""
    reasons = Counter(job.reason for job in jobs if job.state == JobState.REJECTED)
    return [f"{counted(count, 'job')} rejected: {why}" for why, count in reasons.most_common(3)]


def refusals(plan: SubmissionPlan, jobs: Sequence[WatchedJob]) -> list[str]:
    """Return a text about the resizes that the batch system refused, with its message about the last one."""
    decided = [(number, resize) for number, job in enumerate(jobs) for resize in job.resizes]
    refused = [(number, resize.reason) for number, resize in decided if resize.state == "refused"]
    if not refused:
        return []
    number, reason = refused[-1]
    count = f"{len(refused):,} of {len(decided):,} resizes were refused"
    return [f"{count}, for example of job {plan.ids[number]}: {reason}"]


def resizes_of(job_id: str, job: WatchedJob, trace: Callable[[float], float]) -> Iterator[dict[str, Any]]:
    """Yield the rows of the table `reconfigurations` of a job."""
    if job.resizes:
        yield from (resize.row(job_id, trace, NAN) for resize in job.resizes)
        return
    before = job.first_nodes
    for at, nodes in job.node_changes:
        if len(nodes) != len(before):
            kind = "expand" if len(nodes) > len(before) else "shrink"
            times = dict.fromkeys(("asked", "decided", "applied", "ended"), trace(at))  # no policy decided it
            sizes = {"nodes_from": len(before), "nodes_to": len(nodes)}
            yield {"job_id": job_id, "kind": kind, **sizes, **times, "state": "applied"}
        before = nodes


class Held(NamedTuple):
    """What a job held on a node, from `start` to `end`, trace s."""

    job_id: str
    node: int
    start: float
    end: float
    cores: int


class Lifetime(NamedTuple):
    """The times of a job, trace s; NaN if unknown."""

    start: float
    launched: float  # beginning of the script
    end: float


def lifetime(
    job: WatchedJob,
    resolution_s: float,
    *,
    trace: Callable[[float], float],
    end: float,
) -> Lifetime:
    """Return the times of a job, as in `ended_run`. A job that is still running ends at the time `end` of the clock."""
    start, launched, ended = (trace(time) if time is not None else NAN for time in _times(job, resolution_s))
    if math.isnan(start):
        return Lifetime(NAN, launched, NAN)
    return Lifetime(start, launched, max(ended if job.ended else trace(end), start))


def _times(job: WatchedJob, resolution_s: float) -> tuple[float | None, float | None, float | None]:
    """Return the times of the clock at which a job started, its script began, and it ended; None: unknown."""
    seen, own = job.seen, job.own
    if seen is None or seen.start is None:
        return (own.start, own.start, own.end) if own is not None else (None, None, None)
    start = min(own.start, seen.start + resolution_s) if own is not None else seen.start + resolution_s
    start = max(start, seen.start)
    ends = [end for end in (seen.end, own.end if own is not None else None) if end is not None]
    end = max(ends) if ends and job.ended else None
    if end is not None and own is None:
        start = min(start, max(end, seen.start, job.called or 0.0))
    return start, max(own.start, start) if own is not None else None, end


def outcome(job: WatchedJob, interrupted: str | None) -> tuple[JobState, str]:
    """Return the final state of a job and its reason."""
    if not job.ended:
        started = job.seen is not None and job.seen.start is not None
        return JobState.INTERRUPTED, (interrupted or "the run ended") if started else NOT_STARTED
    if interrupted is not None and (job.state is JobState.CANCELLED or job.reason in (NO_TRACE, TERMINATED)):
        return JobState.INTERRUPTED, interrupted
    return job.state, job.reason


def allocations_of(
    job_id: str,
    job: WatchedJob,
    times: Lifetime,
    trace: Callable[[float], float],
    numbers: dict[str, int],
    nodes: list[NodeFacts],
) -> Iterator[Held]:
    """Yield what a job held on each node. Add unknown nodes to `nodes` and `numbers`."""
    start, _, end = times
    if math.isnan(start):
        return
    steps = [(max(start, trace(at)), names) for at, names in job.node_changes]
    final = job.seen.nodes if job.seen is not None else ()
    first = job.first_nodes or final
    add_nodes((*first, *(name for _, names in steps for name in names)), numbers, nodes)
    cores = job.seen.cores if job.seen is not None else {}
    more = max(cores.values(), default=0)  # on a node that the job got later
    for name, since, until in sorted(held_times(first, steps, start, end), key=lambda row: (numbers[row[0]], row[1])):
        whole = nodes[numbers[name]].cores
        yield Held(job_id, numbers[name], since, until, min(cores.get(name, more) or whole, whole))


def _starts(held_by: Sequence[Sequence[Held]]) -> dict[int, list[tuple[float, str]]]:
    """Return for each node the times at which jobs begin to hold it, with the jobs."""
    starts: dict[int, list[tuple[float, str]]] = {}
    for rows in held_by:
        for job_id, node, start, *_ in rows:
            starts.setdefault(node, []).append((start, job_id))
    return starts


def _next_start(rows: Sequence[Held], times: Lifetime, starts: dict[int, list[tuple[float, str]]]) -> float:
    """Return when another job begins to hold one of the last nodes of a job, which has ended by then, or infinity.

    `rows` are the nodes whose cores the job held all.
    """
    last = ((row.job_id, row.node) for row in rows if row.end == times.end)
    later = (at for job_id, node in last for at, other in starts[node] if other != job_id and at > times.start)
    return min(later, default=math.inf)


def add_nodes(names: Iterable[str], numbers: dict[str, int], nodes: list[NodeFacts]) -> None:
    """Add nodes that joined the partition during the replay to `nodes`, and their numbers to `numbers`."""
    for name in names:
        if name not in numbers:
            numbers[name] = len(nodes)
            nodes.append(NodeFacts(name, 1))


def _ranges(held: Sequence[Held]) -> pd.DataFrame:
    """Return the table `allocations`: consecutive nodes with the same times and cores are one row."""
    rows: list[dict[str, Any]] = []
    for job_id, node, start, end, cores in held:
        last = rows[-1] if rows else None
        if (
            last is not None
            and (last["job_id"], last["start"], last["end"], last["cores"]) == (job_id, start, end, cores)
            and last["node"] + last["count"] == node
        ):
            last["count"] += 1
        else:
            rows.append({"job_id": job_id, "node": node, "count": 1, "start": start, "end": end, "cores": cores})
    table = pd.DataFrame(rows, columns=["job_id", "node", "count", "start", "end", "cores"])
    return table.sort_values(["start", "job_id", "node"], kind="stable", ignore_index=True)


def _overlap(held: Sequence[Held], nodes: Sequence[NodeFacts]) -> float:
    """Return the longest time for which jobs seem to hold more cores of a node than it has, trace s.

    The clocks of nodes differ by some ms, so a job may seem to start before the end of the previous job. This is the
    resolution of the times of the run.
    """
    of_node: dict[int, list[Held]] = {}
    for row in held:
        of_node.setdefault(row.node, []).append(row)
    longest = 0.0
    for node, rows in of_node.items():
        cores = nodes[node].cores
        shared = any(row.cores < cores for row in rows)
        longest = max(longest, _overbooked(rows, cores) if shared else _overlapping(rows))
    return longest


def _overlapping(rows: Sequence[Held]) -> float:
    """Return the longest time for which two jobs seem to hold the same whole node, trace s."""
    longest, before = 0.0, -math.inf
    for row in sorted(rows, key=lambda row: (row.start, row.end)):
        longest, before = max(longest, min(before, row.end) - row.start), max(before, row.end)
    return longest


def _overbooked(rows: Sequence[Held], cores: int) -> float:
    """Return the longest time for which jobs seem to hold more than the `cores` of a node that they share, trace s."""
    changes = [change for row in rows for change in ((row.start, row.cores), (row.end, -row.cores))]
    longest, used, since = 0.0, 0, math.inf
    for at, change in sorted(changes):
        used += change
        if used > cores:
            since = min(since, at)
        else:
            longest, since = max(longest, at - since), math.inf
    return longest


def health(
    info: RunInfo,
    plan: SubmissionPlan,
    jobs: Sequence[WatchedJob],
    submit: Sequence[float],
    states: Sequence[JobState | None],
    recorded: Sequence[RunTime],
    steps: Sequence[float],
    thresholds: HealthThresholds,
) -> dict[str, Any]:
    """Return the health of a replay, in the form of `replay.health.health`. Signals of the nodes are unknown.

    `submit` is in trace s, NaN: not submitted. A job that has not ended has no state. `steps` are those of the wall
    clock, s.
    """
    late = late_s(plan, jobs, submit) / info.speed
    again = [job.own is not None and job.own.restarts > 0 for job in jobs]
    disturbed = sum(state in DISTURBED or twice for state, twice in zip(states, again, strict=True))
    figures = {
        **completeness(info),
        "jobs_disturbed": Value(disturbed / len(plan), f"{disturbed:,} of {len(plan):,} jobs" if disturbed else ""),
        "submission_late_s": largest(late, plan.ids),
        "clock_step_s": Value(sum(map(abs, steps))),
    }
    if lost := sorted({outage["node"] for outage in info.outages}):
        figures["agents_lost"] = Value(len(lost), ", ".join(lost))
    done = np.array([state is JobState.COMPLETED for state in states])
    ran = [job.own.end - job.own.start if job.own is not None and job.own.end is not None else np.nan for job in jobs]
    wanted = np.array([job.planned_s(run / info.speed) for job, run in zip(jobs, plan.run_time, strict=True)])
    excess = np.where(done, np.array(ran) - wanted, np.nan)
    planned = wanted[np.isfinite(excess)].sum()
    figures["residual_s"] = largest(excess, plan.ids)
    figures["lost_time"] = Value(float(np.nansum(np.abs(excess)) / planned) if planned else None)
    values = {name: figure._replace(value=rounded(figure.value)) for name, figure in figures.items()}
    values |= of_run_times(recorded, plan.ids)
    return judged(values, thresholds, KIND, times_of(plan.run_time, plan.submit, info.speed))


def run_times(
    planned: Sequence[float],
    states: Sequence[JobState | None],
    lifetimes: Sequence[Lifetime],
    speed: float,
    resolution_s: float,
) -> list[RunTime]:
    """Return the recorded run times of the completed jobs, which are those of the run, beside their plans.

    A run time is from the beginning of the script to the recorded end. Without the own record of a job, it is from the
    start to the end that the batch system reports, which may be anything if the job is short. A run time may be longer
    than its plan by the resolution of the batch system (wall s) and twice the usual time of a release.
    """
    recorded_times = []
    for job, (state, times) in enumerate(zip(states, lifetimes, strict=True)):
        begin = times.start if math.isnan(times.launched) else times.launched
        recorded = (times.end - begin) / speed
        if state is JobState.COMPLETED and not math.isnan(recorded):
            recorded_times.append((job, recorded, planned[job] / speed))
    return compared(recorded_times, resolution_s + usual_end(recorded_times))
