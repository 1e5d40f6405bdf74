"""The remains of a killed replay on a batch system: its journal and the records of its jobs.

The jobs of a batch system continue after the replayer was killed. A resumed replay finds the jobs by their names, and
immediately submits the jobs that are due. The pause is part of the times, because the batch system did not pause.
"""

from __future__ import annotations

from pathlib import Path

from tracebed.ground.errors import InputError
from tracebed.orchestrator.batch.loop import BatchReplayer
from tracebed.orchestrator.batch.plan import SubmissionPlan
from tracebed.orchestrator.batch.reconstruction import SCHEMA, BatchReconstruction
from tracebed.orchestrator.replay.chain import DamagedJournal
from tracebed.orchestrator.replay.journal import of_damage, read
from tracebed.orchestrator.replay.recovery import lost_rows
from tracebed.orchestrator.run import JOURNAL, RunInfo

SAME = ("source", "speed", "policy", "parameters")
"""Facts of a run that must not change when a replay is resumed."""
SAME_OF_SYSTEM = ("partition", "options", "program")
IN_FLIGHT_S = 5.0
"""Time for which a submission may still be in progress after the replayer was killed, wall s."""


class KilledReplay(BatchReconstruction):
    """The journal of a killed replay.

    Attributes:
        facts: the facts of the journal.
        entries: its entries.
    """

    def __init__(self, folder: Path) -> None:
        """Read the journal in the working folder of a replay.

        Raises:
            InputError: the journal is missing or damaged, or the replay was not on a batch system.
        """
        self.folder = folder
        self.facts, self.entries = read(folder / JOURNAL)
        if self.facts.get("schema") != SCHEMA:
            hint = "repeat the command of the killed replay, or omit --resume"
            raise InputError("the killed replay was not on a batch system", where=str(folder), hint=hint)
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
        if self.info.workload["sha256"] != info.workload["sha256"] or self.plan.ids != plan.ids:
            changed.append("workload")
        if changed:
            what = f"the killed replay differs in: {', '.join(changed)}"
            hint = "repeat the command of the killed replay, or omit --resume"
            raise InputError(what, where=str(self.folder), hint=hint)

    def restore(self, replayer: BatchReplayer) -> None:
        """Restore the state of the killed replayer in `replayer`, which has not begun."""
        replayer.jobs[:] = self.jobs
        replayer.interrupted, replayer.outages = self.interrupted, self.info.outages
        replayer.latencies += [job.latency_s for job in self.jobs if job.latency_s]
        replayer.resume(self.submitted, self.submitting, IN_FLIGHT_S)
