"""The remains of a killed replay on a batch system: its journal and the records of its jobs.

The jobs of a batch system continue after the replayer was killed. A resumed replay finds them again by their names, and
submits at once the jobs whose time has passed. The pause stays in the times, because the batch system did not pause.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tracebed.errors import InputError
from tracebed.orchestrator.batch.base import Observation, Phase
from tracebed.orchestrator.batch.loop import BatchReplayer
from tracebed.orchestrator.batch.plan import Plan
from tracebed.orchestrator.batch.records import Records
from tracebed.orchestrator.batch.watched import WatchedJob
from tracebed.orchestrator.replay.journal import Entry, Reader
from tracebed.orchestrator.run import JOURNAL, RunInfo
from tracebed.states import JobState

SCHEMA = "tracebed-batch-journal/1"
SAME = ("source", "speed", "policy", "parameters")
"""Facts of a run that must not change when a replay is resumed."""
SAME_OF_SYSTEM = ("partition", "options")
IN_FLIGHT_S = 5.0
"""Time for which a submission may still be in progress after the replayer was killed, wall s."""


class Past:
    """The journal and the records of a killed replay.

    Attributes:
        facts: the facts of the journal.
        entries: its entries.
        jobs: the last known state of each job.
        calling: jobs whose submission had no outcome yet.
        submitted: number of jobs whose submission had begun.
    """

    def __init__(self, folder: Path) -> None:
        """Read the journal in the working folder of a replay.

        Raises:
            InputError: the journal is missing or damaged, or the replay was not on a batch system.
        """
        self.folder = folder
        with contextlib.closing(Reader(folder / JOURNAL)) as reader:
            self.facts, self.entries = reader.facts(), reader.entries()
        if self.facts.get("schema") != SCHEMA:
            hint = "repeat the command of the killed replay, or omit --resume"
            raise InputError("the killed replay was not on a batch system", where=str(folder), hint=hint)
        try:
            self.plan = Plan(**self.facts["plan"])
            self.info = RunInfo.from_json(self.facts["info"], where=str(folder / JOURNAL))
            self.jobs = [WatchedJob() for _ in self.plan.ids]
            self.calling: set[int] = set()
            self.submitted = 0
            self._retell(Records(folder / "jobs"))
        except (LookupError, ValueError, TypeError) as error:
            what = f"the journal is damaged: {type(error).__name__}: {error}"
            raise InputError(what, where=str(folder), hint="replay again without --resume") from error

    @property
    def last(self) -> float:
        """Trace time of the last entry."""
        return self.entries[-1].time if self.entries else self.plan.submit[0]

    @property
    def steps(self) -> list[tuple[float, float]]:
        """Steps of the wall clock that were detected: wall time after the step and size, s."""
        return [(entry.data["wall"], entry.data["seconds"]) for entry in self.entries if entry.kind == "step"]

    def check(self, info: RunInfo, plan: Plan) -> None:
        """Raise InputError unless `info` and `plan`, of the replay that resumes, are those of the journal."""
        changed = [name for name in SAME if getattr(self.info, name) != getattr(info, name)]
        changed += [name for name in SAME_OF_SYSTEM if self.info.batch.get(name) != info.batch.get(name)]
        if self.info.workload["sha256"] != info.workload["sha256"] or self.plan.ids != plan.ids:
            changed.append("workload")
        if changed:
            what = f"the killed replay differs in: {', '.join(changed)}"
            hint = "repeat the command of the killed replay, or omit --resume"
            raise InputError(what, where=str(self.folder), hint=hint)

    def restore(self, replayer: BatchReplayer) -> None:
        """Restore the state of the killed replayer in `replayer`, which has not begun."""
        replayer.jobs[:] = self.jobs
        replayer.latencies += [job.latency_s for job in self.jobs if job.latency_s]
        replayer.resume(self.submitted, self.calling, IN_FLIGHT_S)

    def _retell(self, records: Records) -> None:
        """Process all entries."""
        numbers = {name: number for number, name in enumerate(self.plan.ids)}
        for entry in self.entries:
            if entry.job is None:
                continue
            number = numbers[entry.job]
            job = self.jobs[number]
            if entry.kind == "submitting":
                self.submitted = max(self.submitted, number + 1)
                self.calling.add(number)
                since_first = (entry.time - self.plan.submit[0]) / self.info.speed
                job.called = job.called or self.facts["origin"] + since_first
            elif entry.kind in ("submitted", "refused"):
                self.calling.discard(number)
                job.called, job.latency_s = entry.data["called"], entry.data.get("latency_s", 0.0)
                if entry.kind == "refused":
                    job.refuse(entry.data["reason"])
                else:
                    job.id = entry.data["id"]
            elif entry.kind in ("observed", "ended"):
                _take_facts(job, entry)
                if job.ended:
                    job.own = records.read(f"{self.facts['prefix']}{number}")


def _take_facts(job: WatchedJob, entry: Entry) -> None:
    """Process an entry with the facts of `WatchedJob.facts`."""
    data: Mapping[str, Any] = entry.data
    if seen := data["seen"]:
        found = Observation(**seen)
        job.seen = replace(found, phase=Phase(found.phase), state=JobState(found.state), nodes=tuple(found.nodes))
    job.first_nodes = tuple(data["first_nodes"])
    job.stairs = [(at, tuple(nodes)) for at, nodes in data["stairs"]]
    job.reason = data["reason"]
    if entry.kind == "ended":
        job.ended, job.state = True, JobState(data["state"])
