"""A replay on a batch system from start to end: working folder, journal, signals, and the saved run."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from tracebed.converters.workload import Workload
from tracebed.errors import TestbedError
from tracebed.orchestrator.batch.base import BATCH_SYSTEMS, BatchSystem, Settings, SystemFacts
from tracebed.orchestrator.batch.ended import ended_run
from tracebed.orchestrator.batch.health import health
from tracebed.orchestrator.batch.loop import POLL_S, BatchReplayer
from tracebed.orchestrator.batch.plan import Plan
from tracebed.orchestrator.batch.records import Records
from tracebed.orchestrator.batch.wall import WallClock
from tracebed.orchestrator.replay.ending import lateness
from tracebed.orchestrator.replay.folder import WorkingFolder
from tracebed.orchestrator.replay.journal import Journal, copy
from tracebed.orchestrator.replay.signals import Signals, noted
from tracebed.orchestrator.replay.thresholds import Thresholds
from tracebed.orchestrator.run import JOURNAL, Run, RunInfo, check_target, workload_facts
from tracebed.orchestrator.testbeds.agent.facts import host_facts

SCHEMA = "tracebed-batch-journal/1"
LEAD_S = 0.5
"""Shortest time from the start of the replay to the first submission, wall s. The first submission is at a whole
second, because batch systems keep whole seconds: repetitions then have the same phase."""


@dataclass(frozen=True)
class BatchOptions:
    """Options of a replay on a batch system.

    Attributes:
        speed: trace seconds per wall second.
        scheduler: name of the batch system.
        settings: how the batch system is reached.
    """

    speed: float = 1.0
    scheduler: str = "slurm"
    settings: Settings = field(default_factory=Settings)

    def as_dict(self) -> dict[str, Any]:
        """Return the options on which runs depend, as JSON values. The place of the configuration is not one."""
        settings = {"partition": self.settings.partition, "options": list(self.settings.options)}
        return {"scheduler": self.scheduler, "speed": self.speed, **settings}


def replay(
    workload: Workload,
    output: Path,
    options: BatchOptions,
    *,
    name: str = "workload",
    thresholds: Thresholds | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> Run:
    """Replay `workload` on a batch system, which decides; write the run to `output` and return it.

    SIGINT, SIGTERM and SIGHUP cancel all jobs of the replay; then the run is saved as interrupted.

    Args:
        workload: the submission list.
        output: the folder of the run, on a file system that all nodes see.
        options: the options.
        name: the name of the workload, for reports.
        thresholds: the limits of the health of the run; None: those that tracebed provides.
        on_progress: called periodically with the number of jobs that have ended so far.

    Raises:
        InputError: the workload cannot be replayed, or the run cannot be written.
        TestbedError: the batch system does not answer. The working folder is kept, and jobs may go on.
        KeyboardInterrupt: a signal arrived before the first submission.
    """
    system = BATCH_SYSTEMS.load(options.scheduler)(options.settings)
    facts = system.facts()
    plan = Plan.of(workload, speed=options.speed, limit_step_s=facts.limit_step_s)
    check_target(output)
    info = _info(workload, name, options, facts)
    with noted() as signals, contextlib.ExitStack() as stack:
        folder = WorkingFolder(output)
        stack.callback(folder.close)
        try:
            run = _carry_out(plan, system, facts, info, options, folder, signals, thresholds, on_progress)
            run.save(output, journal=copy(folder.path / JOURNAL, folder.path / f"copy-{JOURNAL}"))
        except BaseException as error:
            if not folder.keep:
                folder.remove()
            elif isinstance(error, TestbedError):
                error.hint = f"jobs of the replay may go on; its records are in {folder.path}"
            raise
        folder.remove()
    return run


def _info(workload: Workload, name: str, options: BatchOptions, facts: SystemFacts) -> RunInfo:
    """Return the facts of the run that are known before it."""
    return RunInfo(
        source="replay",
        execution="emulated",
        nodes=list(facts.nodes),
        workload=workload_facts(workload, name),
        policy=facts.name,
        policy_parameters=dict(facts.parameters),
        parameters={
            "scheduler": facts.name,
            "testbed": facts.name,
            "inventory": str(facts.details.get("cluster", "")),
            "over_limit": "kill",
            "duty": 0.0,
            "clock": "wall",
            "grain_s": 0.0,
        },
        speed=options.speed,
        batch={"system": facts.name, "version": facts.version, **facts.details},
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        hosts=[host_facts()],
    )


def _carry_out(
    plan: Plan,
    system: BatchSystem,
    facts: SystemFacts,
    info: RunInfo,
    options: BatchOptions,
    folder: WorkingFolder,
    signals: Signals,
    thresholds: Thresholds | None,
    on_progress: Callable[[int], None] | None,
) -> Run:
    """Replay, and return the run."""
    clock = WallClock()
    prefix = f"tracebed-{folder.path.name.rpartition('-')[2]}-"
    start = {"schema": SCHEMA, "info": info.as_dict(), "plan": plan.as_dict(), "prefix": prefix}
    origin = float(math.ceil(clock.now() + LEAD_S))
    with contextlib.closing(Journal(folder.path / JOURNAL, start | {"origin": origin})) as journal:
        records = Records(folder.path / "jobs")
        replayer = BatchReplayer(
            plan, system, records, journal, prefix=prefix, speed=options.speed, origin=origin, clock=clock
        )
        signals.notify(replayer.interrupt)
        folder.keep = True
        replayer.run(on_progress)
    run = ended_run(
        plan,
        replayer.jobs,
        info,
        trace=replayer.trace,
        recorded=clock.without_steps,
        resolution_s=facts.resolution_s,
        interrupted=replayer.interrupted,
        end=clock.now(),
    )
    late = (run.jobs["submit"] - run.jobs["submit_planned"]).dropna() / info.speed
    info.lateness_ms = lateness(late.tolist())
    info.batch |= {"epoch_s": origin - plan.submit[0] / options.speed, **_measured(replayer)}
    info.health = health(run, replayer.jobs, [size for _, size in clock.steps], thresholds or Thresholds.read())
    return run


def _measured(replayer: BatchReplayer) -> dict[str, object]:
    """Return what the replay measured about the batch system and the clock."""
    calls = np.array(replayer.latencies) * 1e3
    quantiles = dict(zip(("p50", "p99", "max"), np.percentile(calls, [50, 99, 100]), strict=True)) if len(calls) else {}
    return {
        "submission_ms": {name: round(float(value), 3) for name, value in quantiles.items()},
        **replayer.polls,
        "poll_s": POLL_S,
        "clock": {
            "steps_s": [round(size, 3) for _, size in replayer.clock.steps],
            "drift_s": round(replayer.clock.drift_s, 6),
        },
        "restarts": sum(job.own.restarts for job in replayer.jobs if job.own is not None),
    }
