"""The end of a replay: the final states of its jobs, and the resulting run."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tracebed.ground.states import JobState
from tracebed.orchestrator.replay import journal
from tracebed.orchestrator.replay.folder import WorkingFolder
from tracebed.orchestrator.replay.health import execution_kind, health, mark, run_times, times_of
from tracebed.orchestrator.replay.monitor import Monitor
from tracebed.orchestrator.replay.thresholds import HealthThresholds
from tracebed.orchestrator.run import JOURNAL, Run, RunInfo, is_finished_replay
from tracebed.orchestrator.runs.working_folders import working_folders
from tracebed.orchestrator.scheduling.cluster import Cluster
from tracebed.orchestrator.scheduling.record import ScheduleRecord
from tracebed.orchestrator.tables import make_run


def ended_run(
    record: ScheduleRecord,
    cluster: Cluster,
    info: RunInfo,
    interrupted: str | None,
    cpus: Sequence[Sequence[int]],
    monitor: Monitor,
    thresholds: HealthThresholds,
) -> Run:
    """Complete `info`, and return the run of a replay that has ended. `cpus` of an emulated node are empty."""
    if JobState.INTERRUPTED in record.state:
        info.state = "interrupted"
        info.interruptions = [interrupted or ""]
    info.outages = record.outages_of([node.name for node in info.nodes])
    info.pauses = record.pauses
    late = record.late_s() / info.speed
    info.lateness_ms = lateness(late[~np.isnan(late)].tolist())
    info.handovers = monitor.handovers.worst(info.speed, [node.name for node in info.nodes])
    info.strays = len(monitor.strays)
    info.health = health(monitor, info, record, thresholds)
    times = times_of(record.jobs.run_time, record.jobs.submit, info.speed)
    mark(record.reason, run_times(monitor, record), thresholds.marking(execution_kind(info), times), info.speed)
    info.warnings += _incidents(monitor)
    return make_run(record, cluster, info, cpus=cpus, samples=monitor.table())


def _incidents(monitor: Monitor) -> list[str]:
    """Return the incidents of the processes of the replay as warnings."""
    strays = [
        f"job {job} on {node}: a process changed its own CPU mask ({cpus})"
        for (job, node), cpus in monitor.strays.items()
    ]
    halts = [
        f"job {job} on {node}: its process was stopped by a signal "
        + ("and did not continue" if seconds is None else f"for {seconds:.3g} s")
        for (job, node), stops in monitor.halts.items()
        for seconds in stops
    ]
    warnings = [
        f"node {node}: {what}" + (f" ({count:,} times)" if count > 1 else "")
        for (node, what), count in monitor.warnings.items()
    ]
    return [*strays, *halts, *warnings]


def lateness(seconds: Sequence[float]) -> dict[str, float]:
    """Summarize the delays of submissions (wall s): count, and median, 99th percentile and maximum in ms."""
    if not seconds:
        return {"count": 0}
    late = np.array(seconds) * 1e3
    p50, p99 = np.percentile(late, [50, 99])
    return {
        "count": len(late),
        "p50": round(float(p50), 3),
        "p99": round(float(p99), 3),
        "max": round(float(late.max()), 3),
    }


def save(run: Run, folder: Path, output: Path, *, replace: bool = False) -> None:
    """Write a run to `output`, with a copy of the journal in the working folder `folder`.

    An interrupted run does not replace a finished one. It is written beside `output`, with a warning, and `run.folder`
    has its name: `real.interrupted-1a2b3c4d` for `real`.
    """
    scratch = folder / f"copy-{JOURNAL}"
    scratch.unlink(missing_ok=True)  # the replay may have been killed while it saved its run
    target = output
    if run.info.state == "interrupted" and is_finished_replay(output):
        target = Path(os.path.realpath(output)).with_name(folder.name.replace(".partial-", ".interrupted-"))
        warnings.warn(f"{output} keeps its finished run: the interrupted run is in {target}", stacklevel=2)
    run.save(target, replace=replace, journal=journal.copy(folder / JOURNAL, scratch), own=folder)


def find_finished(output: Path, info: RunInfo) -> Run | None:
    """Return the run in `output` if it is the finished replay that `info` describes, otherwise None.

    A replay may be killed between the saving of its run and the removal of its working folder, which is then removed. A
    working folder of another replay to `output` is to be resumed: then the replay is not finished.
    """
    if not is_finished_replay(output):
        return None
    run = Run.load(output)
    expected = (info.source, info.workload["sha256"], info.as_dict()["setup"])
    finished = run.info
    if (finished.source, finished.workload.get("sha256"), finished.as_dict()["setup"]) != expected:
        return None
    left = working_folders(output)
    if any(facts_in(folder).get("info", {}).get("created") != finished.created for folder in left):
        return None
    for folder in left:
        WorkingFolder(output, left=folder).remove()
    warnings.warn(f"{output}: the replay is finished already", stacklevel=3)
    return run


def facts_in(folder: Path) -> dict[str, Any]:
    """Return the facts of the journal in a working folder; empty if they are missing."""
    path = folder / JOURNAL
    return journal.read_facts(path) if journal.has_facts(path) else {}
