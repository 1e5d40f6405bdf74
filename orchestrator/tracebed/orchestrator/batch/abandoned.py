"""Cancellation of the jobs that a killed replay left in a batch system."""

from __future__ import annotations

from pathlib import Path

from tracebed import world
from tracebed.errors import TestbedError
from tracebed.orchestrator.batch.base import LIVE, BatchSystem, Phase
from tracebed.orchestrator.batch.killed_replay import IN_FLIGHT_S, KilledReplay
from tracebed.orchestrator.batch.loop import CANCEL_S, POLL_S
from tracebed.orchestrator.batch.records import JobRecords
from tracebed.orchestrator.replay.journal import has_facts
from tracebed.orchestrator.run import JOURNAL

CANCELLED = frozenset({Phase.WAITING, Phase.RUNNING, Phase.UNKNOWN})
"""Phases of jobs that are cancelled. Jobs in the phase `ENDING` are not cancelled."""


def cancel_leftover_jobs(folder: Path, system: BatchSystem) -> None:
    """Cancel the jobs of a killed replay, and wait until they have released their nodes.

    The jobs are found by the prefix of their names in the journal, also those whose submission is not confirmed in the
    journal. The jobs in the journal are cancelled even if an incomplete answer of the batch system lacks them.

    Args:
        folder: the working folder of the replay.
        system: the batch system of the replay.

    Raises:
        InputError: the journal is damaged.
        TestbedError: the batch system does not answer, or the jobs do not end.
    """
    if not has_facts(folder / JOURNAL):
        return  # no job was submitted
    past = KilledReplay(folder)
    start = world.monotonic()
    settled = start + (IN_FLIGHT_S if past.submitting else 0.0)
    records, prefix = JobRecords(folder / "jobs"), past.facts["prefix"]
    known = {job.id: f"{prefix}{number}" for number, job in enumerate(past.jobs) if job.pending and job.id}
    ids = set(known)
    while True:
        began = world.monotonic()
        found = {each.id: each for each in system.poll(prefix, list(known)).values()}
        ids |= {job.id for job in found.values() if job.phase in CANCELLED}
        if ids:
            system.cancel(sorted(ids))
        ids = set()
        for job in past.jobs:
            if job.pending and job.id:
                job.observe(found.get(job.id), records.read(known[job.id], job.id), began)
        left = [job.id for job in past.jobs if job.pending and job.id]
        left += [job.id for job in found.values() if job.phase in LIVE and job.id not in known]
        if not left and began >= settled:
            return
        if began > start + CANCEL_S:
            what = f"{len(left)} jobs of the killed replay in {folder} do not end, for example job {left[0]}"
            raise TestbedError(what, hint="cancel them by hand", transient=True)
        world.sleep(POLL_S)
