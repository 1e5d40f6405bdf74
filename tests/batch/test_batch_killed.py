"""What killed replays on a batch system leave: working folders without a journal, and jobs that still run."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

import tracebed.api as tb
from tracebed.converters.workload import Provenance, System, Workload
from tracebed.ground.errors import InputError, TestbedError
from tracebed.ground.states import JobState
from tracebed.machine.nodes import NodeFacts
from tracebed.orchestrator.replay.batch import loop, recovery, session
from tracebed.orchestrator.replay.batch.base import JobObservation, JobRequest, Phase, SystemFacts
from tracebed.orchestrator.replay.batch.plan import SubmissionPlan
from tracebed.orchestrator.replay.batch.recovery import SCHEMA, cancel_leftover_jobs, warn_of_leftover_jobs
from tracebed.orchestrator.replay.batch.session import BatchOptions
from tracebed.orchestrator.replay.folder import WorkingFolder
from tracebed.orchestrator.replay.journal import Entry, Journal, has_facts
from tracebed.orchestrator.run import JOURNAL, RunInfo
from tracebed.orchestrator.runs.working_folders import working_folders
from tracebed.orchestrator.setup import Setup

PREFIX = "tracebed-1a2b3c4d-"
TABLE = pd.DataFrame({"job_id": ["a", "b"], "submit_time": [0.0, 0.1], "run_time": 1.0, "nodes": 1})
JOBS = Workload(TABLE.assign(cores_per_node=1), Provenance(system=System(2, 1)))


class Immediate:
    """A batch system in this process. Its jobs end at once. Jobs of others, in `jobs`, run until they are cancelled."""

    name = "immediate"

    def __init__(self, *running: str) -> None:
        self.jobs = {name: self.job(name, Phase.RUNNING) for name in running}
        self.log: list[str] = []

    def job(self, name: str, phase: Phase) -> JobObservation:
        return JobObservation(f"id of {name}", name, phase, phase, JobState.COMPLETED)

    def submit(self, request: JobRequest) -> str:
        self.log.append("submit")
        now = float(int(time.time()))
        job = self.job(request.name, Phase.ENDED)
        self.jobs[job.name] = replace(job, start=now, end=now, nodes=("n1" if job.name.endswith("0") else "n2",))
        return job.id

    def poll(self, prefix: str, known: Collection[str]) -> dict[str, JobObservation]:
        found = {name: job for name, job in list(self.jobs.items()) if name.startswith(prefix)}
        for name, job in found.items():
            if job.phase is Phase.ENDING:
                self.jobs[name] = replace(job, phase=Phase.ENDED)
        return found

    def cancel(self, ids: Sequence[str]) -> None:
        self.log.append(f"cancel {' '.join(sorted(ids))}")
        for name, job in self.jobs.items():
            if job.id in ids:
                self.jobs[name] = replace(job, phase=Phase.ENDING)

    def facts(self) -> SystemFacts:
        return SystemFacts("immediate", "1", (NodeFacts("n1", 1), NodeFacts("n2", 1)), {}, 1.0, 60.0)


@pytest.fixture
def system(monkeypatch: pytest.MonkeyPatch) -> Immediate:
    """Return the system of all replays, with jobs of a killed replay and of another user."""
    chosen = Immediate(f"{PREFIX}0", f"{PREFIX}1", "tracebed-other-0", "simulation")
    monkeypatch.setattr(BatchOptions, "system", lambda options: chosen)
    for module in (loop, recovery):
        monkeypatch.setattr(module, "POLL_S", 0.01)
    monkeypatch.setattr(session, "LEAD_S", 0.0)
    return chosen


def killed(output: Path, *entries: Entry) -> Path:
    """Return the working folder of a killed replay to `output`."""
    folder = WorkingFolder(output)
    folder.close()
    info = RunInfo("replay", "emulated", [NodeFacts("n1", 1)], {}, Setup.of("immediate"))
    plan = SubmissionPlan.of(JOBS, speed=1.0, limit_step_s=60.0).as_dict()
    facts = {"schema": SCHEMA, "info": info.as_dict(), "plan": plan, "prefix": PREFIX, "origin": 0.0}
    with contextlib.closing(Journal(folder.path / JOURNAL, facts)) as journal:
        journal.write(entries)
    return folder.path


def test_jobs_of_a_killed_replay_are_cancelled_until_they_have_ended(system: Immediate, tmp_path: Path) -> None:
    cancel_leftover_jobs(killed(tmp_path / "run"), system)
    assert system.log == [f"cancel id of {PREFIX}0 id of {PREFIX}1"]
    assert {name: str(job.phase) for name, job in system.jobs.items()} == {
        **dict.fromkeys((f"{PREFIX}0", f"{PREFIX}1"), "ended"),
        **dict.fromkeys(("tracebed-other-0", "simulation"), "running"),
    }


def test_another_replay_warns_of_the_jobs_that_a_killed_one_has_left(system: Immediate, tmp_path: Path) -> None:
    folder = killed(tmp_path / "run")
    with pytest.warns(UserWarning, match=f"2 jobs of the killed replay in {folder} are still in immediate: id of"):
        warn_of_leftover_jobs([folder], system)
    assert system.log == []


def test_a_submission_that_may_still_be_in_progress_is_waited_for(
    system: Immediate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "IN_FLIGHT_S", 0.5)
    folder = killed(tmp_path / "run", Entry(0, 0.0, "submitting", "a", None, {}))
    late = dict(system.jobs)
    system.jobs.clear()
    poll = system.poll

    def arrives(prefix: str, known: Collection[str]) -> dict[str, JobObservation]:
        found = poll(prefix, known)
        system.jobs |= {name: late.pop(name) for name in list(late)}  # after the first observation
        return found

    monkeypatch.setattr(system, "poll", arrives)
    cancel_leftover_jobs(folder, system)
    assert system.log == [f"cancel id of {PREFIX}0 id of {PREFIX}1"]


def test_jobs_that_do_not_end_are_an_error(system: Immediate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "CANCEL_S", 0.0)
    monkeypatch.setattr(system, "cancel", lambda ids: None)
    with pytest.raises(TestbedError, match=r"2 jobs of the killed replay in .* do not end"):
        cancel_leftover_jobs(killed(tmp_path / "run"), system)


def test_an_experiment_cancels_the_jobs_of_its_killed_repetition(system: Immediate, tmp_path: Path) -> None:
    """Their working folder was deleted, and the jobs ran beside the next repetition."""
    tb.write(JOBS, tmp_path / "w.parquet")
    (tmp_path / "c.yaml").write_text(
        "workloads: {w: w.parquet}\npolicies: [fcfs]\ntestbed: {scheduler: slurm}\nrepetitions: 1\nsettle_s: 0\n"
    )
    cell = tmp_path / "out" / "real" / "w-fcfs"
    cell.mkdir(parents=True)
    left = killed(cell / "rep-01")
    (tmp_path / "out" / ".lock").write_text("experiment\n")
    runs = tb.experiment(tmp_path / "c.yaml", tmp_path / "out")
    assert runs["state"].tolist() == ["completed"]
    assert system.log == [f"cancel id of {PREFIX}0 id of {PREFIX}1", "submit", "submit"]
    assert not left.exists()


@pytest.mark.parametrize("journal", ["missing", "empty", "without tables", "without facts"])
def test_a_replay_that_was_killed_before_its_first_job_starts_from_the_beginning(
    system: Immediate, tmp_path: Path, journal: str
) -> None:
    folder = WorkingFolder(tmp_path / "run")
    folder.close()
    path = folder.path / JOURNAL
    if journal != "missing":
        path.touch(0o600)
    if journal.startswith("without"):
        with contextlib.closing(Journal(path, {})) as made:
            if journal == "without tables":
                made._database.executescript("DROP TABLE facts; DROP TABLE entries")
    assert not has_facts(path)
    with pytest.warns(UserWarning, match="killed before its first job: the replay starts from the beginning"):
        run = session.replay(JOBS, tmp_path / "run", BatchOptions(), resume=True)
    assert run.jobs["state"].tolist() == ["completed"] * 2
    assert run.info.pauses == []
    assert working_folders(tmp_path / "run") == []


def test_a_damaged_journal_is_not_replaced(system: Immediate, tmp_path: Path) -> None:
    folder = WorkingFolder(tmp_path / "run")
    folder.close()
    (folder.path / JOURNAL).write_bytes(b"damaged" * 1000)
    with pytest.raises(InputError, match="the journal cannot be read"):
        session.replay(JOBS, tmp_path / "run", BatchOptions(), resume=True)
    assert folder.path.is_dir()
    assert system.log == []
