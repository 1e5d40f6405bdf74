"""The remains of a killed replay on a batch system: its journal, its run, and the jobs that it left.

The jobs of a batch system continue after the replayer was killed. A resumed replay finds the jobs by their names, and
immediately submits the jobs that are due. The pause is part of the times, because the batch system did not pause.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tracebed.ground import system
from tracebed.ground.errors import InputError, TestbedError
from tracebed.ground.states import JobState
from tracebed.machine.power import PowerState
from tracebed.orchestrator.replay.batch.base import LIVE, BatchSystem, JobObservation, Phase
from tracebed.orchestrator.replay.batch.ending import ended_run
from tracebed.orchestrator.replay.batch.loop import CANCEL_S, POLL_S, BatchReplayer, begin_outage, end_outages
from tracebed.orchestrator.replay.batch.plan import SubmissionPlan
from tracebed.orchestrator.replay.batch.records import JobRecords, OwnRecord
from tracebed.orchestrator.replay.batch.resizes import BatchResize
from tracebed.orchestrator.replay.batch.wall import Step
from tracebed.orchestrator.replay.batch.watched import WatchedJob
from tracebed.orchestrator.replay.journal import DamagedJournal, Entry, has_facts, of_damage, read
from tracebed.orchestrator.replay.recovery import KILLED, SAME_COMMAND, check_unchanged, lost_rows
from tracebed.orchestrator.replay.thresholds import HealthThresholds
from tracebed.orchestrator.run import JOURNAL, Run, RunInfo

SCHEMA = "tracebed-batch-journal/5"
SAME = ("source", "speed", "policy", "parameters")  # facts of a run that must not change when a replay is resumed
SAME_OF_SYSTEM = ("partition", "options", "program", "demands", "resizes", "resize_interval")
IN_FLIGHT_S = 5.0  # time for which a submission may still be in progress after the replayer was killed, wall s
MOST_SHOWN = 10  # number of jobs that a warning names
# Phases of jobs that are cancelled. Jobs in the phase `ENDING` are not cancelled.
CANCELLED = frozenset({Phase.WAITING, Phase.RUNNING, Phase.UNKNOWN})


class BatchReconstruction:
    """The submission, observations and end of each job, from the facts of a journal and its entries so far."""

    def __init__(self, facts: Mapping[str, Any], where: str | None = None) -> None:
        """Start without submitted jobs. Raises an exception if the facts are damaged."""
        self.plan = SubmissionPlan.of_json(facts["plan"])
        self.info = RunInfo.from_json(facts["info"], where=where)  # with the pauses and lost nodes so far
        self.origin = float(facts["origin"])
        self.jobs = [WatchedJob() for _ in self.plan.ids]  # the last known state of each job
        self.submitting: set[int] = set()  # jobs whose submission had no outcome yet
        self.submitted: set[int] = set()  # jobs whose submission had begun
        self.steps: list[Step] = []  # of the wall clock (`WallClock.steps`)
        self.power: list[tuple[float, str, PowerState]] = []  # see `BatchReplayer.power`
        self.interrupted: str | None = None  # reason of the interruption
        self.numbers = {name: number for number, name in enumerate(self.plan.ids)}

    def trace(self, wall: float) -> float:
        """Return the trace time at a time of the clock."""
        return self.plan.submit[0] + (wall - self.origin) * self.info.speed

    def wall(self, trace: float) -> float:
        """Return the time of the clock at a trace time."""
        return self.origin + (trace - self.plan.submit[0]) / self.info.speed

    def apply(self, entry: Entry) -> None:
        """Process an entry. Raises an exception if it is damaged."""
        data = entry.data
        outages = self.info.outages
        if entry.kind == "step":
            self.steps.append(Step(data["since"], data["until"], data["seconds"]))
        elif entry.kind == "pause":
            self.info.pauses = [*self.info.pauses, dict(data)]
            end_outages(outages, data["at"])
        elif entry.kind == "node_lost":
            begin_outage(outages, data["node"], entry.time, data["reason"])
        elif entry.kind == "node_back":
            end_outages(outages, entry.time, data["node"])
        elif entry.kind == "power":
            self.power.append((data["at"], data["node"], PowerState(data["state"])))
        elif entry.kind == "interrupt":
            self.interrupted = data["reason"]
        if entry.job is None:
            return
        number = self.numbers[entry.job]
        job = self.jobs[number]
        if entry.kind == "submitting":
            self.submitted.add(number)
            job.due = data.get("due")
            self.submitting.add(number)
            job.called = job.called or self.wall(entry.time)
        elif entry.kind == "failed":
            job.called = data["called"]
        elif entry.kind in ("submitted", "refused"):
            self.submitting.discard(number)
            job.called, job.latency_s = data["called"], data.get("latency_s", 0.0)
            if entry.kind == "refused":
                job.refuse(data["reason"])
            else:
                job.id = data["id"]
        elif entry.kind == "resize":
            job.resizing_to = tuple(data["after"])
        elif entry.kind in ("observed", "ended"):
            _observe(job, entry)


def _observe(job: WatchedJob, entry: Entry) -> None:
    """Process an entry with the facts of `WatchedJob.facts`."""
    data = entry.data
    if seen := data["seen"]:
        observed = JobObservation(**seen)
        phase, state = Phase(observed.phase), JobState(observed.state)
        job.seen = replace(observed, phase=phase, state=state, nodes=tuple(observed.nodes))
    held = data.get("execution", (job.seen.start, job.seen.nodes) if job.seen is not None else (None, ()))
    job.execution = held[0], tuple(held[1])
    job.first_nodes = tuple(data["first_nodes"])
    job.node_changes = [(at, tuple(nodes)) for at, nodes in data["stairs"]]
    job.rate = data.get("rate")
    job.resizes = [BatchResize.from_json(values) for values in data.get("resizes", ())]
    if job.resizes and job.resizes[-1].state:
        job.resizing_to = ()
    job.reason = data["reason"]
    if entry.kind == "ended":
        job.ended, job.state = True, JobState(data["state"])
        job.own = OwnRecord(**own) if (own := data.get("own")) else None


class KilledReplay(BatchReconstruction):
    """The journal of a killed replay."""

    def __init__(self, folder: Path) -> None:
        """Read the journal in the working folder of a replay, which must have been on a batch system."""
        self.folder = folder
        self.facts, self.entries = read(folder / JOURNAL)
        if self.facts.get("schema") != SCHEMA:
            raise InputError("the killed replay was not on a batch system", where=str(folder), hint=SAME_COMMAND)
        try:
            super().__init__(self.facts, str(folder / JOURNAL))
            self.info.warnings += lost_rows(self.facts)
            for entry in self.entries:
                self.apply(entry)
        except (LookupError, ValueError, TypeError) as error:
            what = f"the journal is damaged: {type(error).__name__}: {error}"
            raise DamagedJournal(what, where=str(folder), hint="replay again without --resume") from error

    @property
    def last(self) -> float:
        """Trace time of the last entry."""
        return self.entries[-1].time if self.entries else self.plan.submit[0]

    @property
    def new_facts(self) -> dict[str, object]:
        """The facts to write to the journal when the replay is resumed."""
        return {"end": None} | of_damage(self.facts)

    def check(self, info: RunInfo, plan: SubmissionPlan) -> None:
        """Raise InputError unless `info` and `plan` of the resuming replay equal the journal's."""
        changed = [name for name in SAME if getattr(self.info, name) != getattr(info, name)]
        changed += [name for name in SAME_OF_SYSTEM if self.info.batch.get(name) != info.batch.get(name)]
        if _pools(self.info) != _pools(info):
            changed.append("machine")
        if self.info.workload["sha256"] != info.workload["sha256"] or self.plan.ids != plan.ids:
            changed.append("workload")
        check_unchanged(changed, self.folder)

    def restore(self, replayer: BatchReplayer) -> None:
        """Restore the state of the killed replayer in `replayer`, which has not begun."""
        replayer.jobs[:] = self.jobs
        replayer.interrupted, replayer.outages = self.interrupted, self.info.outages
        replayer.power += self.power
        replayer.latencies += [job.latency_s for job in self.jobs if job.latency_s]
        replayer.resume(self.submitted, self.submitting, IN_FLIGHT_S)


def _pools(info: RunInfo) -> str | None:
    """Return a hash of that on which the pools of a replay depend; None: there are no pools."""
    return None if info.machine is None else info.machine.pooled_digest


def recovered(folder: Path) -> Run:
    """Return the run of a killed replay from its working folder, without the batch system.

    Jobs that had not ended at the last entry of the journal are interrupted, even if the batch system still runs them.
    `--resume` waits for these jobs instead.
    """
    past = KilledReplay(folder)
    end = past.facts.get("end") or {"time": past.last, "interrupted": KILLED}
    return ended_run(
        past.plan,
        past.jobs,
        past.info,
        past.steps,
        trace=past.trace,
        resolution_s=past.facts["resolution_s"],
        interrupted=end["interrupted"],
        end=past.wall(end["time"]),
        thresholds=HealthThresholds.parse(*past.facts["thresholds"]),
        power=past.power,
    )


def warn_of_leftover_jobs(folders: Iterable[Path], batch_system: BatchSystem) -> None:
    """Warn of jobs that killed replays have left in a batch system. Folders of replays on testbeds are ignored."""
    for folder in folders:
        facts: dict[str, Any] = {}
        with contextlib.suppress(InputError):  # the journal is damaged
            facts = read(folder / JOURNAL)[0] if has_facts(folder / JOURNAL) else {}
        if facts.get("schema") != SCHEMA:
            continue
        left = sorted(job.id for job in batch_system.poll(facts["prefix"], []).values() if job.phase in LIVE)
        if left:
            what = f"{len(left):,} jobs of the killed replay in {folder} are still in {batch_system.name}"
            warnings.warn(f"{what}: {' '.join(left[:MOST_SHOWN])}{' ...' if left[MOST_SHOWN:] else ''}", stacklevel=3)


def cancel_leftover_jobs(folder: Path, batch_system: BatchSystem) -> None:
    """Cancel the jobs of a killed replay, and wait until they have released their nodes.

    The jobs are found by the prefix of their names in the journal, also those whose submission is not confirmed in the
    journal. The jobs in the journal are cancelled even if an incomplete answer of the batch system lacks them. Such an
    answer ends no job that was listed before.
    """
    if not has_facts(folder / JOURNAL):
        return  # no job was submitted
    past = KilledReplay(folder)
    start = system.monotonic()
    settled = start + (IN_FLIGHT_S if past.submitting else 0.0)
    records, prefix = JobRecords(folder / "jobs"), past.facts["prefix"]
    watched = {job.id: (f"{prefix}{number}", job) for number, job in enumerate(past.jobs) if job.pending and job.id}
    ids = set(watched)
    while True:
        began = system.monotonic()
        found = {each.id: each for each in batch_system.poll(prefix, list(watched)).values()}
        for each in found.values():
            if each.phase is not Phase.ENDED:
                watched.setdefault(each.id, (each.name, WatchedJob(each.id)))
        ids |= {job.id for job in found.values() if job.phase in CANCELLED}
        if ids:
            batch_system.cancel(sorted(ids))
        ids = set()
        for job_id, (name, job) in watched.items():
            if job.pending:
                job.observe(found.get(job_id), records.read(name, job_id), began)
        left = [job_id for job_id, (_, job) in watched.items() if job.pending]
        if not left and began >= settled:
            return
        if began > start + CANCEL_S:
            what = f"{len(left)} jobs of the killed replay in {folder} do not end, for example job {left[0]}"
            raise TestbedError(what, hint="cancel them by hand", transient=True)
        system.sleep(POLL_S)
