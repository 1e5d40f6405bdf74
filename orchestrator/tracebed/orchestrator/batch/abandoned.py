"""Cancellation of the jobs that a killed replay left in a batch system."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tracebed.ground import system as world
from tracebed.ground.errors import InputError, TestbedError
from tracebed.orchestrator.batch.base import LIVE, BatchSystem, Phase
from tracebed.orchestrator.batch.killed_replay import IN_FLIGHT_S, KilledReplay
from tracebed.orchestrator.batch.loop import CANCEL_S, POLL_S
from tracebed.orchestrator.batch.reconstruction import SCHEMA
from tracebed.orchestrator.batch.records import JobRecords
from tracebed.orchestrator.batch.watched import WatchedJob
from tracebed.orchestrator.replay.journal import has_facts, read
from tracebed.orchestrator.run import JOURNAL

MOST_SHOWN = 10
"""Number of jobs that a warning names."""
CANCELLED = frozenset({Phase.WAITING, Phase.RUNNING, Phase.UNKNOWN})
"""Phases of jobs that are cancelled. Jobs in the phase `ENDING` are not cancelled."""


def warn_of_leftover_jobs(folders: Iterable[Path], system: BatchSystem) -> None:
    """Warn of jobs that killed replays have left in a batch system.

    Args:
        folders: the working folders of the replays. Those of replays that are not on a batch system are ignored.

    Raises:
        TestbedError: the batch system does not answer.
    """
    for folder in folders:
        facts: dict[str, Any] = {}
        with contextlib.suppress(InputError):  # the journal is damaged
            facts = read(folder / JOURNAL)[0] if has_facts(folder / JOURNAL) else {}
        if facts.get("schema") != SCHEMA:
            continue
        left = sorted(job.id for job in system.poll(facts["prefix"], []).values() if job.phase in LIVE)
        if left:
            what = f"{len(left):,} jobs of the killed replay in {folder} are still in {system.name}"
            warnings.warn(f"{what}: {' '.join(left[:MOST_SHOWN])}{' ...' if left[MOST_SHOWN:] else ''}", stacklevel=3)


def cancel_leftover_jobs(folder: Path, system: BatchSystem) -> None:
    """Cancel the jobs of a killed replay, and wait until they have released their nodes.

    The jobs are found by the prefix of their names in the journal, also those whose submission is not confirmed in the
    journal. The jobs in the journal are cancelled even if an incomplete answer of the batch system lacks them. Such an
    answer ends no job that was listed before.

    Args:
        folder: the working folder of the replay.

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
    watched = {job.id: (f"{prefix}{number}", job) for number, job in enumerate(past.jobs) if job.pending and job.id}
    ids = set(watched)
    while True:
        began = world.monotonic()
        found = {each.id: each for each in system.poll(prefix, list(watched)).values()}
        for each in found.values():
            if each.phase is not Phase.ENDED:
                watched.setdefault(each.id, (each.name, WatchedJob(each.id)))
        ids |= {job.id for job in found.values() if job.phase in CANCELLED}
        if ids:
            system.cancel(sorted(ids))
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
        world.sleep(POLL_S)
