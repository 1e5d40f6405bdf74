"""The jobs of a replay on a batch system, reconstructed from its journal entry by entry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tracebed.ground.states import JobState
from tracebed.orchestrator.batch.base import JobObservation, Phase
from tracebed.orchestrator.batch.plan import SubmissionPlan
from tracebed.orchestrator.batch.records import OwnRecord
from tracebed.orchestrator.batch.resizes import BatchResize
from tracebed.orchestrator.batch.usable_nodes import begin_outage, end_outages
from tracebed.orchestrator.batch.wall import Step
from tracebed.orchestrator.batch.watched import WatchedJob
from tracebed.orchestrator.replay.journal import Entry
from tracebed.orchestrator.run import RunInfo

SCHEMA = "tracebed-batch-journal/5"


class BatchReconstruction:
    """The submission, observations and end of each job.

    Args:
        facts: the facts of the journal.
        where: the journal, for messages.

    Attributes:
        plan: the jobs.
        info: the facts of the run, with the pauses and lost nodes so far.
        jobs: the last known state of each job.
        submitting: jobs whose submission had no outcome yet.
        submitted: number of jobs whose submission had begun.
        steps: the steps of the wall clock that were detected (see `WallClock.steps`).
        interrupted: reason of the interruption; None: the replay was not interrupted.
    """

    def __init__(self, facts: Mapping[str, Any], where: str | None = None) -> None:
        """Start without submitted jobs. Raises an exception if the facts are damaged."""
        self.plan = SubmissionPlan(**facts["plan"])
        self.info = RunInfo.from_json(facts["info"], where=where)
        self.origin = float(facts["origin"])
        self.jobs = [WatchedJob() for _ in self.plan.ids]
        self.submitting: set[int] = set()
        self.submitted = 0
        self.steps: list[Step] = []
        self.interrupted: str | None = None
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
        elif entry.kind == "interrupt":
            self.interrupted = data["reason"]
        if entry.job is None:
            return
        number = self.numbers[entry.job]
        job = self.jobs[number]
        if entry.kind == "submitting":
            self.submitted = max(self.submitted, number + 1)
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
        elif entry.kind in ("observed", "ended"):
            _observe(job, entry)


def _observe(job: WatchedJob, entry: Entry) -> None:
    """Process an entry with the facts of `WatchedJob.facts`."""
    data = entry.data
    if seen := data["seen"]:
        found = JobObservation(**seen)
        job.seen = replace(found, phase=Phase(found.phase), state=JobState(found.state), nodes=tuple(found.nodes))
    held = data.get("execution", (job.seen.start, job.seen.nodes) if job.seen is not None else (None, ()))
    job.execution = held[0], tuple(held[1])
    job.first_nodes = tuple(data["first_nodes"])
    job.node_changes = [(at, tuple(nodes)) for at, nodes in data["stairs"]]
    job.rate = data.get("rate")
    job.resizes = [BatchResize.from_json(values) for values in data.get("resizes", ())]
    job.reason = data["reason"]
    if entry.kind == "ended":
        job.ended, job.state = True, JobState(data["state"])
        job.own = OwnRecord(**own) if (own := data.get("own")) else None
