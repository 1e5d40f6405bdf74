"""Recorded run times against their plans: those that differ are causes of the health of a run, and marked."""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd
import pytest

from tests.oracles.redecided import virtual, workload
from tests.oracles.survival import KEEP, Case, count
from tests.patience import GUARD_S
from tests.runs import replaying
from tracebed.converters.workload import Workload
from tracebed.ground.states import JobState
from tracebed.machine.nodes import NodeFacts
from tracebed.orchestrator.replay.health import USUAL_S, mark, of_run_times, run_times
from tracebed.orchestrator.replay.journal import Entry
from tracebed.orchestrator.replay.monitor import Monitor
from tracebed.orchestrator.replay.pace import Timeline
from tracebed.orchestrator.replay.recovery import recovered
from tracebed.orchestrator.replay.session import replay
from tracebed.orchestrator.replay.thresholds import SIGNALS, HealthThresholds, TimeScale
from tracebed.orchestrator.run import JOURNAL
from tracebed.orchestrator.scheduling.jobs import Jobs
from tracebed.orchestrator.scheduling.record import ScheduleRecord

pytestmark = pytest.mark.usefixtures("no_process_is_left")

SPEED = 100.0
NEW = ("run_time_off_s", "run_time_off")


def observed(recorded: list[float], planned: list[float | None]) -> tuple[Monitor, ScheduleRecord]:
    """Return a witness and a record of completed jobs with these run times, wall s."""
    jobs = Jobs.of(workload(len(recorded), malleable=0.0))
    monitor, record = Monitor(jobs, [NodeFacts("n1", 2)], SPEED), ScheduleRecord(jobs)
    for job, (ran, plan) in enumerate(zip(recorded, planned, strict=True)):
        record.launched[job], record.state[job] = 1000.0, JobState.COMPLETED
        record.end[job] = 1000.0 + ran * SPEED
        data = {"state": "completed", "time": 0.0, "leader": True, "planned_s": plan}
        monitor.apply(Entry(job, 0.0, "ended", jobs.ids[job], "n1", data))
    return monitor, record


@pytest.mark.parametrize(
    ("recorded", "off"),
    [
        ([10.0, 10.0, 10.0], [0.0, 0.0, 0.0]),
        ([10.01, 10.01, 10.02], [0.0, 0.0, 0.0]),  # the usual time to end
        ([10.01, 10.01, 8.71], [0.0, 0.0, 1.29]),
        ([10.01, 10.01, 13.0], [0.0, 0.0, 2.98]),
        ([0.0, 10.0, 10.0], [10.0, 0.0, 0.0]),
        ([15.0, 15.0, 15.0], [5.0 - USUAL_S] * 3),  # all of them: nothing is usual about that
    ],
)
def test_no_difference_of_a_run_time_is_taken_for_usual(recorded: list[float], off: list[float]) -> None:
    found = run_times(*observed(recorded, [10.0, 10.0, 10.0]))
    assert [one.off for one in found] == pytest.approx(off)


def test_jobs_without_a_plan_or_an_end_have_no_difference() -> None:
    monitor, record = observed([10.0, 20.0, 30.0, 40.0], [10.0, None, 10.0, 10.0])
    record.state[2], record.launched[3] = JobState.KILLED, math.nan
    assert [one.job for one in run_times(monitor, record)] == [0]


def test_no_run_time_that_differs_is_unmarked() -> None:
    monitor, record = observed([8.71, 10.0, 10.2], [10.0, 10.0, 10.0])
    mark(record.reason, run_times(monitor, record), 0.5, SPEED)
    assert record.reason == ["ran 871 s, but its plan is 1000 s", "", ""]


def test_no_resize_at_another_time_than_planned_is_unmarked() -> None:
    """The leader was late by 2.1 s at the resize, and made up for it before its end: work was done at another size."""
    monitor, record = observed([10.0, 10.0, 10.0], [10.0, 10.0, 10.0])
    for job, (applied, planned) in enumerate([(6.1, 4.0), (4.0, 4.01), (-5.0, 4.0)]):  # the last: in an earlier run
        record.resize_requested(job, 2, 4, 1000.0)
        at = 1000.0 + applied * SPEED
        record.resize_applied(job, at, at, at, {"planned_s": planned})
    found = run_times(monitor, record)
    assert [one.off for one in found] == pytest.approx([2.1, 0.01, 0.0])
    mark(record.reason, found, 0.5, SPEED)
    assert record.reason == ["was resized after 610 s, but its plan is 400 s", "", ""]
    assert of_run_times(found, record.jobs.ids)["run_time_off_s"].value == pytest.approx(2.1)


def test_every_kind_of_execution_has_limits_of_run_times() -> None:
    for limits in HealthThresholds.read().limits.values():
        for name in NEW:
            assert name in SIGNALS and limits[name].degraded and limits[name].unhealthy


@pytest.mark.parametrize("limit", ["", "run_time_off_s: {degraded: 1000}", "run_time_off_s: {unhealthy: 1000}"])
def test_no_wide_limit_leaves_a_run_time_unmarked(limit: str) -> None:
    wide = HealthThresholds.parse(f"all:\n  pauses: {{degraded: 0}}\n  {limit}\n", "wide.yaml")
    times = TimeScale(SPEED, 10.0, 1.0)
    assert wide.marking("emulated", times) == HealthThresholds.read().marking("emulated", times) == 1.0
    narrow = HealthThresholds.parse("all: {run_time_off_s: {degraded: 0.5}}\n", "narrow.yaml")
    assert narrow.marking("emulated", times) == 0.5


@pytest.mark.slow
def test_no_ordinary_replay_has_run_times_that_differ_from_their_plans(tmp_path: Path) -> None:
    """Malleable jobs too: their plan follows the nodes that they had."""
    run = replay(workload(12), virtual(4), "pref", tmp_path / "run", **replaying(SPEED))
    assert len(run.reconfigurations) > 0
    assert run.info.health["signals"]["run_time_off_s"] is not None
    late = run.jobs["reason"].str.contains("but its plan is")  # of a machine that is busy with other tests
    rigid = run.jobs[(run.jobs["kind"] == "rigid") & ~late]
    assert (rigid["end"] - rigid["launched"] > rigid["run_time"] - 0.02 * SPEED).all()


@pytest.mark.slow
def test_no_timeline_that_loses_time_goes_unnoticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The replay is not resumed: its trace time runs at three quarters of its speed."""
    trace = Timeline.trace
    monkeypatch.setattr(Timeline, "trace", lambda self, time: 0.75 * trace(self, time))
    monkeypatch.setattr(Timeline, "clock_at", lambda self, at: self.zero + at / 0.75 / self.speed)
    run = replay(workload(4, malleable=0.0), virtual(4), "fcfs", tmp_path / "run", **replaying(SPEED))
    causes = {cause["signal"]: cause["state"] for cause in run.info.health["causes"]}
    assert causes["run_time_off"] == "unhealthy"
    assert run.info.health["signals"]["lost_time"] < 0.1  # the ranks do not see it
    assert run.jobs["reason"].str.contains("but its plan is").any()


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [1, 4])
@pytest.mark.parametrize("event", ["launched", "started"])
def test_no_run_time_is_shorter_than_its_plan_after_a_resume(tmp_path: Path, nodes: int, event: str) -> None:
    """Work between the last entry of the journal and the kill was missing: 692 to 930 s of a job of 1,000 s."""
    job = {"job_id": ["a"], "submit_time": [0.0], "run_time": [1000.0], "time_limit": [2000.0]}
    work = Workload(pd.DataFrame(job | {"nodes": [nodes], "cores_per_node": [2]}))
    inventory = "grain_s: 0.02\nlinger_s: 120\nnodes:\n  - {name: 'n[1-4]', cores: 2, emulated: true}\n"
    case = Case(tmp_path, work, inventory, "--speed", "400", "--policy", "fcfs")
    try:
        process = case.start()
        case.wait_until(process, count(event))
        case.kill(process)
        run = case.finish(case.start("--resume", hook=KEEP))
        [row] = run.jobs.itertuples()
        assert row.end - row.launched > 1000.0 - 0.02 * 400
        assert len(run.info.pauses) == 1
        assert run.info.health["signals"]["run_time_off_s"] is not None
    finally:
        case.end()


BEFORE_ENDED = """
import os
from tracebed.orchestrator.replay.journal import Journal
inner = Journal.write
def write(self, entries):
    entries = list(entries)
    if any(entry.kind == 'ended' for entry in entries):
        os.kill(os.getpid(), 9)
    inner(self, entries)
Journal.write = write
"""


@pytest.mark.slow
@pytest.mark.parametrize("clock", ["wall", "steady"])
def test_no_run_time_is_shorter_than_its_plan_if_the_job_ended_before_the_resume(tmp_path: Path, clock: str) -> None:
    """With a steady clock, trace time continued at the last entry, although the job had worked after it."""
    job = {"job_id": ["a"], "submit_time": [0.0], "run_time": [1000.0], "time_limit": [2000.0]}
    work = Workload(pd.DataFrame(job | {"nodes": [2], "cores_per_node": [2]}))
    nodes = "{name: 'n[1-2]', cores: 2, emulated: true}"
    inventory = f"grain_s: 0.02\nheartbeat_s: 1.7\nlinger_s: 120\nnodes:\n  - {nodes}\n"
    case = Case(tmp_path, work, inventory, "--speed", "400", "--policy", "fcfs", "--clock", clock)
    try:
        assert case.start(hook=BEFORE_ENDED).wait(GUARD_S) == -9
        run = case.finish(case.start("--resume", hook=KEEP))
        [row] = run.jobs.itertuples()
        assert row.end - row.launched > 1000.0 - 0.02 * 400
        assert len(run.info.pauses) == 1
    finally:
        case.end()


BEFORE_LAUNCHED = """
import os
from tracebed.orchestrator.replay.journal import Journal
inner = Journal.write
def write(self, entries):
    entries = list(entries)
    if any(entry.kind == 'launched' for entry in entries):
        os.kill(os.getpid(), 9)
    inner(self, entries)
Journal.write = write
"""


@pytest.mark.slow
def test_no_launch_is_missing_from_the_journal_of_a_resumed_replay(tmp_path: Path) -> None:
    """The message of the leader was in the journal, what followed from it was not: recovered jobs had no launch."""
    inventory = "grain_s: 0.02\nlinger_s: 120\nnodes:\n  - {name: 'n[1-4]', cores: 2, emulated: true}\n"
    case = Case(tmp_path, workload(3), inventory, "--speed", str(SPEED), "--policy", "fcfs")
    try:
        assert case.start(hook=BEFORE_LAUNCHED).wait(GUARD_S) == -9
        run = case.finish(case.start("--resume", hook=KEEP))
        again = recovered(tmp_path / "run" / JOURNAL)
        assert run.jobs["launched"].notna().all()
        pd.testing.assert_frame_equal(again.jobs, run.jobs)
        assert again.info.health == run.info.health
    finally:
        case.end()
