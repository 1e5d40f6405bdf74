"""Replays on a batch system without one: meanings of states, parsers, observations, clocks, runs."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import shutil
import subprocess
import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tracebed.api as tb
from tests.executables import write_program
from tests.patience import GUARD_S
from tracebed.converters.workload import Provenance, System, Workload
from tracebed.ground.errors import InputError, TestbedError
from tracebed.ground.states import JobState
from tracebed.machine.nodes import NodeFacts
from tracebed.machine.power import PowerState
from tracebed.orchestrator.replay.batch import loop, wall
from tracebed.orchestrator.replay.batch.base import BatchSettings, JobObservation, JobRequest, Phase, SystemFacts
from tracebed.orchestrator.replay.batch.ending import Lifetime, ended_run, run_times
from tracebed.orchestrator.replay.batch.plan import SubmissionPlan
from tracebed.orchestrator.replay.batch.records import JobRecords, OwnRecord
from tracebed.orchestrator.replay.batch.recovery import SCHEMA, KilledReplay
from tracebed.orchestrator.replay.batch.watched import (
    CONFIRMATIONS,
    ENDING_POLLS,
    MISSING_POLLS,
    TERMINATED,
    UNKNOWN_POLLS,
    WatchedJob,
    never_starts,
)
from tracebed.orchestrator.replay.journal import Entry, Journal
from tracebed.orchestrator.replay.thresholds import HealthThresholds
from tracebed.orchestrator.run import JOURNAL, Run, RunInfo
from tracebed.orchestrator.setup import Setup
from tracebed.orchestrator.testbeds.nodes import Group, Node
from tracebed.slurm import batch_system as slurm_output
from tracebed.slurm.batch_system import SlurmSystem
from tracebed.slurm.job_states import STATES, is_permanent, meaning, power_of
from tracebed.slurm.provider import SlurmProvider, SlurmSettings

SQUEUE = """\
2|tracebed-1a2b3c4d-1|PENDING|N/A|N/A||PartitionConfig
3|tracebed-1a2b3c4d-2|PENDING|1795347500|1795347560||Resources
1|tracebed-1a2b3c4d-0|RUNNING|1795347423|1795347483|n[1-2]|None
4|tracebed-1a2b3c4d-3|COMPLETING|1795347423|1795347430|n3|None
5|tracebed-1a2b3c4d-4|CANCELLED|1795347424|1795347424||None
6|tracebed-1a2b3c4d-5|TIMEOUT|1795347423|1795347484|n[4,6-7]|TimeLimit
"""
"""Output of squeue of Slurm 22.05.8 in the format of `slurm_output.QUEUE_FORMAT`."""
SACCT = """\
1|tracebed-1a2b3c4d-0|CANCELLED by 0|1795347423|1795347424|n[1-2]|None
2|tracebed-1a2b3c4d-1|PENDING|Unknown|Unknown|None assigned|None
7|tracebed-1a2b3c4d-6|NODE_FAIL|1795347423|1795347484|n1|None
"""


def test_recorded_output_of_squeue_is_read() -> None:
    jobs = {each.id: each for each in slurm_output.observations(SQUEUE, "tracebed-")}
    phases = {job: each.phase.value for job, each in jobs.items()}
    assert phases == {"2": "waiting", "3": "waiting", "1": "running", "4": "ending", "5": "ended", "6": "ended"}
    assert jobs["1"].nodes == ("n1", "n2")
    assert (jobs["1"].start, jobs["1"].end) == (1795347423.0, None)  # the end of a running job is its limit
    assert (jobs["3"].start, jobs["3"].nodes) == (None, ())  # the start of a pending job is a forecast
    assert (jobs["5"].state, jobs["5"].start) == (JobState.CANCELLED, None)  # never started
    assert (jobs["6"].state, jobs["6"].end, jobs["6"].reason) == (JobState.KILLED, 1795347484.0, "TimeLimit")
    assert [job for job, each in jobs.items() if each.hopeless] == ["2"]


def test_recorded_output_of_sacct_is_read() -> None:
    jobs = {each.id: each for each in slurm_output.observations(SACCT, "tracebed-")}
    assert (jobs["1"].state, jobs["1"].start) == (JobState.CANCELLED, 1795347423.0)
    assert (jobs["2"].phase, jobs["2"].start) == (Phase.WAITING, None)
    assert jobs["7"].state is JobState.FAILED


def test_jobs_of_others_are_not_parsed() -> None:
    """A job with an unexpected list of nodes would else end the replay."""
    line = "9|simulation|RUNNING|1795347423|1795347484|n[1-|None\n10|a|b|RUNNING|1795347423|n1\n"
    with pytest.raises(TestbedError, match="not a list of hosts"):
        list(slurm_output.observations(line, "simulation"))
    assert len(list(slurm_output.observations(line + SQUEUE, "tracebed-1a2b3c4d-"))) == 6


@given(st.text(), st.sampled_from(sorted(STATES)), st.sampled_from(["", " by 0", "+"]))
def test_every_state_has_a_meaning_and_others_are_unknown(text: str, known: str, mark: str) -> None:
    assert meaning(known + mark) == STATES[known]
    first = text.split()[0].rstrip("+").upper() if text.split() else ""
    assert (meaning(text).phase is Phase.UNKNOWN) == (first not in STATES)


def test_all_states_of_squeue_are_known() -> None:
    """The states in the manual of squeue(1) of Slurm 22.05 and those that later versions added."""
    manual = """BOOT_FAIL CANCELLED COMPLETED CONFIGURING COMPLETING DEADLINE FAILED NODE_FAIL OUT_OF_MEMORY PENDING
        PREEMPTED RUNNING RESV_DEL_HOLD REQUEUE_FED REQUEUE_HOLD REQUEUED RESIZING REVOKED SIGNALING SPECIAL_EXIT
        STAGE_OUT STOPPED SUSPENDED TIMEOUT LAUNCH_FAILED POWER_UP_NODE RECONFIG_FAIL UPDATE_DB EXPEDITING"""
    assert set(manual.split()) == set(STATES)
    ended = {word for word, each in STATES.items() if each.phase is Phase.ENDED}
    assert all((STATES[word].state is not JobState.UNKNOWN) == (word in ended) for word in STATES)


def test_a_limit_of_a_user_is_not_hopeless() -> None:
    assert is_permanent("PartitionNodeLimit")
    assert is_permanent("launch_failed_requeued_held")
    for reason in ("Resources", "Priority", "QOSMaxJobsPerUserLimit", "ReqNodeNotAvail", "Dependency", "BeginTime"):
        assert not is_permanent(reason)


NAMES = st.from_regex(r"[a-z][a-z0-9]{0,5}-?", fullmatch=True)
NUMBERS = st.lists(st.tuples(st.integers(0, 120), st.integers(0, 12), st.integers(1, 4)), min_size=1, max_size=4)


@given(st.lists(st.tuples(NAMES, NUMBERS), min_size=1, max_size=4))
def test_lists_of_hosts_are_expanded(groups: list[tuple[str, list[tuple[int, int, int]]]]) -> None:
    parts, expected = [], []
    for name, ranges in groups:
        texts = []
        for first, more, width in ranges:
            texts.append(f"{first:0{width}d}" + (f"-{first + more:0{width}d}" if more else ""))
            shown = len(f"{first:0{width}d}")
            expected += [f"{name}{number:0{shown}d}" for number in range(first, first + more + 1)]
        parts.append(f"{name}[{','.join(texts)}]")
    assert slurm_output.hosts_in(",".join(parts)) == expected


def test_hosts_with_several_ranges_and_none() -> None:
    assert slurm_output.hosts_in("a[1-2]b[08,10],c,d.e-f_1") == ["a1b08", "a1b10", "a2b08", "a2b10", "c", "d.e-f_1"]
    assert slurm_output.hosts_in("None assigned") == slurm_output.hosts_in("") == []


@given(st.text(st.sampled_from("n[]-,0123 \n|"), max_size=20))
def test_a_text_is_a_list_of_hosts_or_an_error(text: str) -> None:
    try:
        hosts = slurm_output.hosts_in(text)
    except TestbedError as error:
        assert "hosts" in str(error)
    else:
        assert all(host and not set(host) & set("[],| \n") for host in hosts)


def test_a_huge_list_of_hosts_is_an_error() -> None:
    for text in ("n[1-999999999]", "n[1-1000]m[1-1000]", ",".join(["n[1-60000]"] * 2)):
        with pytest.raises(TestbedError, match="more than 100,000 hosts"):
            slurm_output.hosts_in(text)


def test_nodes_are_listed_once() -> None:
    nodes, states = slurm_output.nodes_in("n1|2|2|idle\nn1|2|2|idle\nn2|48|2|drained*\n")
    assert nodes == [NodeFacts("n1", 2, 2), NodeFacts("n2", 48, 2)]
    assert states == {"n1": "idle", "n2": "drained*"}
    with pytest.raises(TestbedError, match="not a node"):
        slurm_output.nodes_in("slurm is down")


def test_configuration_is_read() -> None:
    text = (
        "Configuration data as of now\nAuthInfo = (null)\nSchedulerParameters  = bf_interval=1,x\nKillWait = 30 sec\n"
    )
    assert slurm_output.configuration_in(text) == {"SchedulerParameters": "bf_interval=1,x", "KillWait": "30 sec"}


@pytest.mark.parametrize("option", ["partition", "partition=", "--partition=main", "program"])
def test_an_option_of_replays_without_a_value_is_refused_with_its_form(option: str, tmp_path: Path) -> None:
    key = "program" if option == "program" else "partition"
    with pytest.raises(InputError, match=rf"'{option}' is not an option of a replay \(write {key}=VALUE\)"):
        tb.replay_on(tb.generate("cirne", jobs=2, nodes=2, seed=1), options=[option], output=tmp_path / "run")


@pytest.mark.parametrize("option", ["wrap=x", "time=5", "job-name=x", "array=1-2", "-x", "A=b", "a=b\nc", ""])
def test_options_that_a_replay_cannot_have_are_refused(option: str) -> None:
    with pytest.raises(InputError):
        SlurmSystem(BatchSettings(options=(option,)))


# -- observations ------------------------------------------------------------------------------------------------------

WAITS = JobObservation("1", "x-0", Phase.WAITING, "PENDING")
RUNS = JobObservation("1", "x-0", Phase.RUNNING, "RUNNING", start=100.0, nodes=("n1",))
FAILED = JobObservation("1", "x-0", Phase.ENDED, "NODE_FAIL", JobState.FAILED, start=100.0, end=110.0, nodes=("n1",))
DONE = replace(FAILED, word="COMPLETED", state=JobState.COMPLETED)
NEW = replace(RUNS, phase=Phase.UNKNOWN, word="DREAMING")
OWN = OwnRecord("1", 100.2, 110.3, completed=True)


def watched() -> WatchedJob:
    return WatchedJob(id="1", called=99.0)


def test_a_final_state_without_a_record_is_observed_twice() -> None:
    job = watched()
    job.observe(RUNS, None, 101)
    assert not job.observe(FAILED, None, 102)
    job.observe(WAITS, None, 103)  # Slurm has requeued the job
    assert not job.observe(FAILED, None, 104)
    assert job.observe(FAILED, None, 105)
    assert (job.state, job.reason) == (JobState.FAILED, "NODE_FAIL")


def test_a_final_state_with_a_record_is_certain() -> None:
    job = watched()
    assert job.observe(DONE, OWN, 111)
    assert (job.ended, job.state, job.reason) == (True, JobState.COMPLETED, "")


def test_a_job_that_is_missing_once_has_not_ended() -> None:
    job = watched()
    assert not job.observe(None, None, 101)
    job.observe(RUNS, None, 102)
    assert not job.observe(None, None, 103)
    assert job.observe(None, OWN, 104)
    assert job.state is JobState.COMPLETED
    job = watched()
    assert [job.observe(None, replace(OWN, completed=False), 101) for _ in range(2)] == [False, True]
    assert (job.state, job.reason) == (JobState.FAILED, TERMINATED)
    job = watched()
    assert [job.observe(None, None, 101) for _ in range(MISSING_POLLS)] == [False] * (MISSING_POLLS - 1) + [True]
    assert job.state is JobState.UNKNOWN
    assert "no longer lists the job" in job.reason


def test_an_unknown_state_does_not_end_a_job_at_once() -> None:
    job = watched()
    for _ in range(UNKNOWN_POLLS - 1):
        assert not job.observe(NEW, None, 101)
    assert job.observe(NEW, None, 101)
    assert (job.state, job.reason) == (JobState.UNKNOWN, "unknown state DREAMING")
    job = watched()
    assert [job.observe(NEW, OWN, 101) for _ in range(CONFIRMATIONS)] == [False] * (CONFIRMATIONS - 1) + [True]
    assert job.state is JobState.COMPLETED


@given(st.lists(st.sampled_from([None, WAITS, RUNS, FAILED, DONE, NEW]), max_size=8), st.booleans())
def test_a_job_ends_once_and_only_after_a_final_or_repeated_observation(
    seen: list[JobObservation | None], recorded: bool
) -> None:
    job, own = watched(), OWN if recorded else None
    for index, each in enumerate(seen):
        job.observe(each, own, 100.0 + index)
        if job.ended:
            last = seen[max(0, index - CONFIRMATIONS + 1) : index + 1]
            assert each is not None or recorded
            assert each not in (WAITS, RUNS)
            assert (each in (FAILED, DONE) and recorded) or len({repr(item) for item in last}) == 1
            break


def test_the_nodes_of_an_ending_job_that_are_cleaned_up_are_no_resize() -> None:
    job = WatchedJob(id="1")
    both = replace(RUNS, nodes=("n1", "n2"))
    job.observe(both, None, 1.0)
    job.observe(replace(both, phase=Phase.ENDING, word="COMPLETING", nodes=("n2",)), None, 2.0)
    assert job.node_changes == []
    assert job.seen is not None
    assert job.seen.nodes == ("n1", "n2")


def test_an_old_observation_of_a_waiting_job_does_not_hide_its_resizes() -> None:
    job = watched()
    job.observe(RUNS, None, 101.0)
    job.resized(("n1", "n2"), 102.0)
    job.observe(WAITS, None, 103.0)
    kept = job.facts()
    job.observe(replace(RUNS, nodes=("n1", "n2")), None, 104.0)
    assert (job.first_nodes, job.node_changes) == (("n1",), [(102.0, ("n1", "n2"))])
    assert kept["execution"] == job.execution == (100.0, ("n1", "n2"))
    job.observe(WAITS, None, 105.0)
    job.observe(replace(RUNS, start=110.0, nodes=("n3",)), None, 111.0)  # Slurm has requeued the job
    assert (job.first_nodes, job.node_changes) == ((), [])


def test_an_ending_job_without_nodes_has_ended_if_it_recorded_its_end() -> None:
    """Slurm 22.05 did not complete a job that ended while it was expanded."""
    job, own = watched(), OwnRecord("1", 101.0, 111.0, completed=True)
    job.observe(replace(RUNS, start=101.0, nodes=("n1",)), None, 102.0)
    left = replace(RUNS, phase=Phase.ENDING, word="COMPLETING", start=None, nodes=())
    for _ in range(ENDING_POLLS - 1):
        job.observe(left, own, 112.0)
    assert not job.ended
    job.observe(left, own, 112.0)
    assert (job.ended, job.state) == (True, JobState.COMPLETED)
    assert job.seen is not None
    assert (job.seen.start, job.seen.nodes) == (101.0, ("n1",))


def test_hopeless_jobs_are_only_those_that_wait_alone() -> None:
    stuck = watched()
    stuck.observe(replace(WAITS, hopeless=True), None, 100)
    assert never_starts([stuck, WatchedJob()])
    runs = watched()
    runs.observe(RUNS, None, 100)
    assert not never_starts([stuck, runs])
    assert not never_starts([WatchedJob()])


# -- clocks and times --------------------------------------------------------------------------------------------------


def test_a_step_of_the_wall_clock_is_taken_out(monkeypatch: pytest.MonkeyPatch) -> None:
    now = {"wall": 1000.0, "monotonic": 5.0}
    monkeypatch.setattr(time, "time", lambda: now["wall"])
    monkeypatch.setattr(time, "monotonic", lambda: now["monotonic"])
    clock = wall.WallClock()
    for step in (0.0, 3600.0, 0.001):
        now = {"wall": now["wall"] + 10.0 + step, "monotonic": now["monotonic"] + 10.0}
        assert clock.check() == (pytest.approx((1010.0, 1020.0, 3600.0)) if step > 1 else None)
    assert clock.now() == 1030.0
    assert clock.at(1010.0, near=1030.0) == 1010.0
    assert clock.at(4630.0, near=1030.0) == pytest.approx(1030.0)
    assert len(clock.steps) == 1
    assert clock.drift_s == pytest.approx(0.001)


def test_a_resumed_clock_continues_without_the_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 4630.0)
    monkeypatch.setattr(time, "monotonic", lambda: 5.0)
    clock = wall.WallClock([wall.Step(1010.0, 1020.0, 3600.0)])
    assert (clock.now(), clock.check(), len(clock.steps)) == (1030.0, None, 1)
    assert clock.at(4630.0, near=1030.0) == clock.now()


def test_a_step_while_no_replayer_ran_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """The resumed clock started at the wall time after the step: all times since were later by the step."""
    monkeypatch.setattr(time, "time", lambda: 1000.0)
    monkeypatch.setattr(time, "monotonic", lambda: 5.0)
    base = wall.WallClock().base
    monkeypatch.setattr(time, "time", lambda: 4610.0)
    monkeypatch.setattr(time, "monotonic", lambda: 15.0)
    clock = wall.WallClock((), base, 1000.0)
    assert (clock.now(), clock.check()) == (1010.0, (1000.0, 1010.0, 3600.0))
    restarted = wall.WallClock((), base | {"boot": "another"})
    assert (restarted.now(), restarted.check()) == (4610.0, None)


@pytest.mark.parametrize(("recorded", "near", "time"), [(1090.0, 1091.0, 1090.0), (1090.0, 1120.5, 1120.0)])
def test_a_wall_time_that_occurs_twice_is_the_one_near_its_observation(
    recorded: float, near: float, time: float
) -> None:
    """Times before a step back were moved by the step, too."""
    clock = wall.WallClock([wall.Step(1099.0, 1100.0, -30.0)])
    assert clock.at(recorded, near) == time


def plan(count: int = 2, **changed: list[float]) -> SubmissionPlan:
    table = pd.DataFrame(
        {
            "job_id": [f"j{number}" for number in range(count)],
            "submit_time": np.arange(count, dtype=float),
            "run_time": 10.0,
            "nodes": 1,
            "time_limit": 60.0,
        }
    ).assign(**changed)
    return SubmissionPlan.of(Workload(table, Provenance(system=System(4, 1))), speed=1.0, limit_step_s=60.0)


def run_of(jobs: list[WatchedJob], interrupted: str | None = None) -> Run:
    """Return the run of observed jobs, whose first submission is at 100 s since 1970."""
    info = RunInfo("replay", "emulated", [NodeFacts("n1", 1), NodeFacts("n2", 1)], {}, Setup.of("slurm"))
    return ended_run(
        plan(len(jobs)),
        jobs,
        info,
        [],
        trace=lambda time: time - 100.0,
        resolution_s=1.0,
        interrupted=interrupted,
        end=200.0,
        thresholds=HealthThresholds.read(),
    )


def ended(start: float, end: float, own: OwnRecord | None, node: str = "n1") -> WatchedJob:
    """Return a job that Slurm started and ended in these whole seconds."""
    job = WatchedJob(id="1", called=100.0)
    for _ in range(CONFIRMATIONS):
        job.observe(replace(DONE, start=start, end=end, nodes=(node,)), own, end)
    return job


@pytest.mark.parametrize(
    ("own", "start", "launched", "end"),
    [
        ((101.4, 111.6), 1.4, 1.4, 11.6),  # within the seconds of Slurm
        ((102.3, 111.6), 2.0, 2.3, 11.6),  # a slow launch: the nodes were allocated before
        ((101.4, 110.9), 1.4, 1.4, 11.0),  # the nodes were released later
        (None, 2.0, math.nan, 11.0),  # killed hard
    ],
)
def test_times_of_slurm_are_refined_by_the_records_of_jobs(
    own: tuple[float, float] | None, start: float, launched: float, end: float
) -> None:
    record = OwnRecord("1", *own, completed=True) if own is not None else None
    row = run_of([ended(101.0, 111.0, record)]).jobs.iloc[0]
    np.testing.assert_allclose([row["start"], row["launched"], row["end"]], [start, launched, end], atol=1e-9)


@given(st.lists(st.tuples(st.floats(0.001, 20), st.floats(0, 3), st.floats(0, 0.5), st.booleans()), max_size=6))
def test_jobs_one_after_the_other_never_overlap(stays: list[tuple[float, float, float, bool]]) -> None:
    """Slurm starts a job after the end of the one before; whole seconds and launch delays must not change that."""
    jobs, now = [], 100.0
    for run_s, gap_s, delay_s, recorded in stays:
        start, end = now + gap_s, now + gap_s + delay_s + run_s
        own = OwnRecord("1", start + delay_s, end, completed=True) if recorded else None
        jobs.append(ended(math.floor(start), math.floor(end), own))
        now = end
    if jobs:
        assert run_of(jobs).info.resolution_s <= 1e-9


def test_clocks_of_nodes_that_differ_are_the_resolution_of_the_run(tmp_path: Path) -> None:
    first = ended(101.0, 111.0, OwnRecord("1", 101.4, 111.62, completed=True))
    second = ended(111.0, 121.0, OwnRecord("2", 111.6, 121.6, completed=True))
    run = run_of([first, second])
    assert run.info.resolution_s == pytest.approx(0.02)
    Run.load(run.save(tmp_path / "run"))


def test_a_job_that_was_started_again_is_counted(tmp_path: Path) -> None:
    run = run_of([ended(101, 111, OwnRecord("1", 101.4, 111.6, True, restarts=2)), ended(101, 111, None, "n2")])
    run.save(tmp_path / "run")
    assert Run.load(tmp_path / "run").jobs["restarts"].tolist() == [2, 0]


def test_a_job_that_was_started_again_and_interrupted_is_disturbed_once() -> None:
    """Half of the jobs were disturbed, but the share was 1."""
    cancelled = watched()
    for _ in range(CONFIRMATIONS):
        cancelled.observe(replace(DONE, state=JobState.CANCELLED), OwnRecord("1", 101.4, restarts=1), 111.0)
    jobs = [cancelled, ended(101, 111, None, "n2")]
    run = run_of(jobs, "SIGINT")
    assert run.jobs["state"].tolist() == ["interrupted", "completed"]
    assert run.info.health["signals"]["jobs_disturbed"] == 0.5


def judged_health(jobs: list[WatchedJob]) -> tuple[dict[str, float | None], list[tuple[float, float, float]]]:
    """Return the signals of the run of these jobs, which are planned for 10 s, and its run times."""
    run = run_of(jobs)
    lifetimes = [Lifetime(*times) for times in run.jobs[list(Lifetime._fields)].to_numpy(dtype=float)]
    found = run_times([10.0] * len(jobs), [JobState(state) for state in run.jobs["state"]], lifetimes, 1.0, 1.0)
    return run.info.health["signals"], [(each.recorded, each.planned, each.off) for each in found]


def test_no_run_time_of_a_batch_system_is_without_a_check() -> None:
    """The jobs had no own record, and Slurm gave one second as start and end: the recorded run time was 0 s."""
    own = OwnRecord("1", 101.4, 111.4, completed=True)
    right = [ended(101, 111, replace(own, id=str(number)), f"n{number}") for number in (1, 2)]
    signals, found = judged_health(right)
    assert signals["run_time_off_s"] == 0.0
    assert [each[2] for each in found] == [0.0, 0.0]
    signals, found = judged_health([*right, ended(101, 101, None)])
    assert found[2] == (0.0, 10.0, 10.0)
    assert signals["run_time_off_s"] == 10.0
    assert signals["run_time_off"] == pytest.approx(1 / 3, rel=1e-5)
    signals, _ = judged_health([*right, ended(101, 140, own)])  # released 28.6 s late
    assert signals["run_time_off_s"] == pytest.approx(27.6)
    assert judged_health([ended(101, 101, None)])[0]["residual_s"] is None


def test_a_resized_job_has_its_staircase() -> None:
    job = watched()
    job.observe(replace(RUNS, start=101.0, nodes=("n1", "n2")), None, 102.0)
    job.observe(replace(RUNS, start=101.0, nodes=("n1",)), None, 105.0)
    own = OwnRecord("1", 101.4, 111.6, completed=True)
    job.observe(replace(DONE, start=101.0, end=111.0, nodes=("n1",)), own, 112.0)
    run = run_of([job])
    assert run.reconfigurations[["kind", "nodes_from", "nodes_to", "applied"]].to_numpy().tolist() == [
        ["shrink", 2, 1, 5.0]
    ]
    rows = run.allocations
    assert rows[["node", "count", "start", "end"]].round(6).to_numpy().tolist() == [[0, 1, 1.4, 11.6], [1, 1, 1.4, 5.0]]


def test_an_interrupted_run_has_jobs_in_each_state(tmp_path: Path) -> None:
    runs, waits = watched(), watched()
    runs.observe(replace(RUNS, start=101.0), None, 102.0)
    waits.observe(WAITS, None, 102.0)
    done = ended(101.0, 111.0, OwnRecord("1", 101.4, 111.6, completed=True), "n2")
    run = run_of([runs, waits, done, WatchedJob()], "SIGTERM")
    assert run.jobs["state"].tolist() == ["interrupted", "interrupted", "completed", "interrupted"]
    assert run.info.interruptions == ["SIGTERM"]
    Run.load(run.save(tmp_path / "run"))


def test_a_cancelled_job_that_is_forgotten_was_interrupted() -> None:
    """Seed 41514: the jobs were cancelled and forgotten while no replayer ran. The run was complete, with lost jobs."""
    began, waited = watched(), watched()
    for _ in range(MISSING_POLLS):
        began.observe(None, replace(OWN, completed=False), 101.0)
        waited.observe(None, None, 101.0)
    run = run_of([began, waited], "SIGTERM")
    assert run.jobs[["state", "reason"]].to_numpy().tolist() == [["interrupted", "SIGTERM"]] * 2
    assert run.info.state == "interrupted"


def test_limits_are_whole_minutes_of_wall_time() -> None:
    table = pd.DataFrame(
        {"job_id": list("abcd"), "submit_time": 0.0, "run_time": 1.0, "nodes": 1, "time_limit": [1, 600, 601, np.nan]}
    )
    made = SubmissionPlan.of(Workload(table, Provenance()), speed=10.0, limit_step_s=60.0)
    assert made.limit[:3] == [600.0, 600.0, 1200.0]
    assert math.isnan(made.limit[3])
    assert made.limit_s(2, 10.0) == 120.0
    assert made.limit_s(3, 10.0) is None
    assert made.counts["jobs without a time limit: the default of the batch system"] == 1
    assert made.counts["time limits rounded up to multiples of 60 wall s"] == 2


# -- the script of a job -----------------------------------------------------------------------------------------------


def run_job(records: JobRecords, name: str, run_s: float, **environment: str) -> subprocess.Popen[bytes]:
    request = records.request(name, 1, run_s, None)
    command = [str(request.script), *request.arguments]
    return subprocess.Popen(command, env={**os.environ, "SLURM_JOB_ID": "7", **environment}, start_new_session=True)


def test_a_job_records_its_start_and_end(tmp_path: Path) -> None:
    records = JobRecords(tmp_path / "a folder; $(touch x)")
    job = run_job(records, "x-0", 0.2, SLURM_JOB_NODELIST="n[1-2]")
    assert job.wait(GUARD_S) == 0
    own = records.read("x-0", "7")
    assert own is not None and own.end is not None
    assert (own.id, own.completed, own.restarts) == ("7", True, 0)
    assert own.end - own.start >= 0.2
    assert {path.stat().st_mode & 0o777 for path in records.folder.glob("x-0.*")} == {0o600}
    assert not list(tmp_path.rglob("x"))


def test_a_job_that_ends_while_it_is_resized_waits_for_that(tmp_path: Path) -> None:
    """Slurm 22.05 loses nodes that it gives to a job that ends."""
    records = JobRecords(tmp_path / "jobs")
    request = records.request("job", 1, 0.01, None, grain_s=0.01)
    records.write_size("job", 1, 1.0, [])
    with records.kept_running("job", "7"):
        process = subprocess.Popen(
            [str(request.script), *request.arguments], env={**os.environ, "SLURM_JOB_ID": "7"}, start_new_session=True
        )
        while records.read("job", "7") is None or records.read("job", "7").end is None:  # type: ignore[union-attr]
            assert process.poll() is None
            time.sleep(0.01)
        assert process.poll() is None
    assert process.wait(GUARD_S) == 0
    with pytest.raises(TestbedError, match="has ended"), records.kept_running("job", "7"):
        pass


def test_a_job_that_is_ended_records_that(tmp_path: Path) -> None:
    records = JobRecords(tmp_path)
    job = run_job(records, "x-0", 600)
    for _ in itertools.count():
        if records.read("x-0", "7") is not None:
            break
        assert job.poll() is None
    os.killpg(job.pid, 15)
    assert job.wait(GUARD_S) == 143
    own = records.read("x-0", "7")
    assert own is not None and own.end is not None
    assert not own.completed


def test_a_job_whose_programs_are_ended_with_it_records_that(tmp_path: Path) -> None:
    # The batch system signals the whole group: the first `date` that reads the time after the start is ended too.
    programs = tmp_path / "bin"
    date = shutil.which("date")
    once = tmp_path / "once"
    text = f'#!/bin/sh\n[ -e "{tmp_path}/x-0.7.start" ] && [ ! -e "{once}" ] && : >"{once}" && kill 0\n'
    write_program(programs / "date", f'{text}exec {date} "$@"\n')
    job = run_job(JobRecords(tmp_path), "x-0", 600, PATH=f"{programs}:{os.environ['PATH']}")
    assert job.wait(GUARD_S) == 143
    own = JobRecords(tmp_path).read("x-0", "7")
    assert own is not None and own.end is not None
    assert not own.completed


def test_a_record_of_an_earlier_start_is_replaced(tmp_path: Path) -> None:
    records = JobRecords(tmp_path)
    assert run_job(records, "x-0", 0).wait(GUARD_S) == 0
    (tmp_path / "x-0.7.start").write_text("job=7\nhost=h\nnodes=\nrestarts=1\nstart=1795347423731879178\n")
    own = records.read("x-0", "7")
    assert own is not None
    assert (own.restarts, own.end) == (1, None)


TORN = "job=7\nrestarts=0\nstart=1795347423731879178\nend=17953474"


@pytest.mark.parametrize("text", ["", "job=7", "job=7\nstart=x\nrestarts=0", TORN, "\0\0", "a\nb=\n"])
def test_a_damaged_record_counts_as_missing(tmp_path: Path, text: str) -> None:
    (tmp_path / "x-0.7.end").write_text(text)
    assert JobRecords(tmp_path).read("x-0", "7") is None


def test_arguments_that_cannot_be_used_are_refused_before_slurm_is_asked() -> None:
    jobs = tb.generate("cirne", jobs=2, nodes=4, seed=1)
    with pytest.raises(InputError, match="speed"):
        tb.replay_on(jobs, output="run", speed=0.0)


def test_slurm_that_is_not_installed_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(InputError, match="is not installed"):
        SlurmSystem(BatchSettings()).facts()


def test_a_slurm_conf_that_is_missing_is_an_error_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    nodes = (Node("a1", 2, emulated=True, provider="slurm"),)
    group = Group("lent", "slurm", SlurmSettings(), nodes, "mark")
    for begin in (lambda: SlurmSystem(BatchSettings()), lambda: SlurmProvider(group, tmp_path, print)):
        with pytest.raises(InputError, match=r"SLURM_CONF=.*slurm\.conf: is not a file"):
            begin()


def test_commands_of_slurm_without_a_cluster_say_what_to_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for command in ("sinfo", "scontrol", "squeue", "salloc"):
        write_program(tmp_path / command, "#!/bin/sh\necho 'fatal: no configuration source' >&2\nexit 1\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv("SLURM_CONF", raising=False)
    group = Group("lent", "slurm", SlurmSettings(), (Node("a1", 2, emulated=True, provider="slurm"),), "mark")
    for begin in (SlurmSystem(BatchSettings()).facts, SlurmProvider(group, tmp_path, print).up):
        with pytest.raises(TestbedError, match=r"configuration source \(set SLURM_CONF to the path of slurm\.conf\)"):
            begin()


# -- submissions and cancellations that fail ---------------------------------------------------------------------------


class Busy:
    """A batch system in this process whose first call of each kind fails. Its second job never starts."""

    name = "busy"

    def __init__(self, clock: wall.WallClock) -> None:
        self.clock = clock
        self.submissions: list[float] = []
        self.cancellations: list[list[str]] = []
        self.jobs: dict[str, JobObservation] = {}

    def submit(self, request: JobRequest) -> str:
        self.submissions.append(self.clock.now())
        if len(self.submissions) == 1:
            raise TestbedError("try again", transient=True)
        job = str(len(self.submissions))
        ended = JobObservation(job, request.name, Phase.ENDED, "COMPLETED", JobState.COMPLETED)
        held = JobObservation(job, request.name, Phase.WAITING, "PENDING", hopeless=True)
        self.jobs[request.name] = held if request.name.endswith("1") else ended
        return job

    def poll(self, prefix: str, known: Collection[str]) -> dict[str, JobObservation]:
        return dict(self.jobs)

    def cancel(self, ids: Sequence[str]) -> None:
        self.cancellations.append(list(ids))
        if len(self.cancellations) == 1:
            raise TestbedError("try again", transient=True)

    def facts(self) -> SystemFacts:
        return SystemFacts("busy", "1", (), {}, 1.0, 60.0)


def test_failed_calls_are_repeated_and_the_submission_that_counts_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "POLL_S", 0.05)
    clock = wall.WallClock()
    system = Busy(clock)
    with contextlib.closing(Journal(tmp_path / JOURNAL, {})) as journal:
        replayer = loop.BatchReplayer(
            plan(submit_time=[0.0, 0.0]),
            system,
            JobRecords(tmp_path / "jobs"),
            journal,
            prefix="t-",
            speed=1.0,
            origin=clock.now(),
            clock=clock,
        )
        replayer.run()
    ended, held = replayer.jobs
    assert (ended.state, held.state) == (JobState.COMPLETED, JobState.REJECTED)
    assert len(system.submissions) == 3
    refused, *_ = system.submissions
    assert all(job.called is not None and job.called >= refused for job in replayer.jobs)
    assert system.cancellations == [[held.id], [held.id]]


class Sleepy(Busy):
    """A batch system whose node is off at first, and boots for the jobs."""

    power: tuple[str, ...] = ("off", "off", "boot", "on")

    def power_states(self) -> dict[str, PowerState]:
        first, *later = self.power
        self.power = tuple(later) or self.power
        return {"n1": PowerState(first), "n2": PowerState.ON}


def test_the_power_of_nodes_is_recorded_and_outlives_the_replayer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "POLL_S", 0.05)
    clock = wall.WallClock()
    info = RunInfo("replay", "emulated", [NodeFacts("n1", 1), NodeFacts("n2", 1)], {}, Setup.of("slurm"))
    own, origin = plan(submit_time=[0.0, 0.0]), clock.now()
    facts = {"schema": SCHEMA, "info": info.as_dict(), "plan": own.as_dict(), "prefix": "t-", "origin": origin}
    with contextlib.closing(Journal(tmp_path / JOURNAL, facts)) as journal:
        replayer = loop.BatchReplayer(
            own,
            Sleepy(clock),
            JobRecords(tmp_path / "jobs"),
            journal,
            prefix="t-",
            speed=1.0,
            origin=origin,
            clock=clock,
        )
        replayer.run()
    states = [(node, state) for _, node, state in replayer.power]
    assert states[:2] == [("n1", PowerState.OFF), ("n1", PowerState.BOOT)]
    past = KilledReplay(tmp_path)
    assert past.power == replayer.power
    thresholds = HealthThresholds.read()
    times: dict[str, Any] = {"trace": past.trace, "resolution_s": 1.0, "end": clock.now(), "thresholds": thresholds}
    run = ended_run(own, replayer.jobs, info, [], interrupted=None, **times, power=past.power)
    assert run.nodes["power_state"].tolist()[:2] == ["off", "boot"]
    assert run.nodes["node"].tolist() == [0] * len(past.power)
    assert run.nodes["time"].tolist() == [at for at, _, _ in past.power]


@pytest.mark.parametrize(
    ("word", "state"),
    [
        ("idle~", "off"),
        ("down~", "off"),
        ("allocated#", "boot"),
        ("idle%", "shutdown"),
        ("idle", "on"),
        ("mixed", "on"),
    ],
)
def test_the_power_of_a_node_is_the_mark_of_its_state(word: str, state: str) -> None:
    assert power_of(word) == state


def test_a_submission_without_an_outcome_was_made_when_it_began(tmp_path: Path) -> None:
    """A replay that finds its job when it is resumed would else record that the job started before its submission."""
    info = RunInfo("replay", "emulated", [NodeFacts("n1", 1)], {}, Setup.of("slurm", speed=2.0))
    facts = {"schema": SCHEMA, "info": info.as_dict(), "plan": plan().as_dict(), "prefix": "t-", "origin": 500.0}
    with contextlib.closing(Journal(tmp_path / JOURNAL, facts)) as journal:
        journal.write([Entry(0, 3.0, "submitting", "j0", None, {})])
    past = KilledReplay(tmp_path)
    assert (past.submitting, past.submitted, past.jobs[0].called) == ({0}, {0}, 501.5)


# -- the script of a malleable job, with srun and sleep replaced -------------------------------------------------------

SRUN = """#!/bin/sh
for option; do case $option in --nodelist=*) node=${option#*=} ;; esac; done
echo "$node" >>FOLDER/calls
if [ "$node" = n2 ] && [ "$(grep -c n2 FOLDER/calls)" -le REFUSALS ]; then
    echo "srun: error: Task launch for StepId=7.1 failed on node n2: REASON" >&2
    echo "srun: error: Application launch failed: REASON" >&2
    exit 168
fi
echo up
exec /bin/sleep 600
"""


def test_a_program_has_the_application_and_the_state_of_its_job(tmp_path: Path) -> None:
    records = JobRecords(tmp_path / "jobs")
    program = (f"sh -c 'echo $TRACEBED_APPLICATION $TRACEBED_STATE_MIB >{tmp_path}/told'", "solver", "2.5")
    request = records.request("t-0", 1, 0.05, None, grain_s=0.02, program=program)
    records.write_size("t-0", 1, 1.0, ["n1"])
    subprocess.run(
        [request.script, *request.arguments], env={**os.environ, "SLURM_JOB_ID": "7"}, timeout=GUARD_S, check=True
    )
    assert (tmp_path / "told").read_text() == "solver 2.5\n"
    own = records.read("t-0", "7")
    assert own is not None and own.completed


@pytest.mark.parametrize(
    ("reason", "refusals", "status", "calls"),
    [
        ("Job credential revoked", 2, 0, ["n1", "n2", "n2", "n2", "n3"]),
        ("Invalid job credential", 2, 0, ["n1", "n2", "n2", "n2", "n3"]),  # Slurm 26.05
        ("Invalid job credential", 99, 1, ["n1", *["n2"] * 30, "n3"]),
        ("Node failure", 1, 1, ["n1", "n2", "n3"]),
    ],
)
def test_a_rank_on_a_node_that_the_job_has_just_left_is_launched_again(
    tmp_path: Path, reason: str, refusals: int, status: int, calls: list[str]
) -> None:
    """Within a second, slurmd refuses steps on a node that has returned to the job."""
    programs = tmp_path / "bin"
    programs.mkdir()
    srun = SRUN.replace("FOLDER", str(tmp_path)).replace("REFUSALS", str(refusals)).replace("REASON", reason)
    for name, text in {"srun": srun, "sleep": "#!/bin/sh\nexec /bin/sleep 0.001\n"}.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o700)
    records = JobRecords(tmp_path / "jobs")
    records.write_size("t-0", 1, 1.0, ["n1", "n2", "n3"])
    request = records.request("t-0", 3, 0.05, None, grain_s=0.02)
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "SLURM_JOB_ID": "7"}
    done = subprocess.run([request.script, *request.arguments], env=environment, timeout=GUARD_S, check=False)
    assert done.returncode == status
    assert sorted((tmp_path / "calls").read_text().split()) == calls
    own = records.read("t-0", "7")
    assert own is not None
    assert own.completed is (status == 0)


@pytest.mark.parametrize(("batch", "priority"), [({"parameters": {}}, "aging"), ({}, "fcfs")])
def test_a_policy_that_decides_on_a_batch_system_records_its_settings(batch: dict[str, Any], priority: str) -> None:
    """A batch system that decides itself has an order of its own."""
    setup = Setup.of("easy", priority="aging", interval_s=30.0).measured()
    facts = {"source": "replay", "execution": "emulated", "nodes": [NodeFacts("n1", 4)], "workload": {}}
    info = RunInfo(**facts, setup=setup, batch={"system": "slurm", **batch})
    assert RunInfo.from_json(info.as_dict()).setup.scheduling.priority == priority


def test_slurm_gets_the_conditions_that_it_can_express(monkeypatch: pytest.MonkeyPatch) -> None:
    system = SlurmSystem(BatchSettings())
    assert system.dependency([("afterok", "7", 0.0), ("after", "8", 120.0)], any_of=False) == "afterok:7,after:8+2"
    assert system.dependency([("afterok", "7", 0.0), ("afterany", "8", 0.0)], any_of=True) == "afterok:7?afterany:8"
    assert system.dependency([("after", "7", 90.0)], any_of=False) is None
    seen: list[tuple[str, ...]] = []
    monkeypatch.setattr(SlurmSystem, "_run", lambda self, *words, **options: seen.append(words) or "12")
    request = JobRequest("t-1", 1, None, Path("job.sh"), (), Path("out"))
    assert (system.submit(request), system.submit(replace(request, dependency="afterok:7"))) == ("12", "12")
    assert [word for word in seen[1] if word not in seen[0]] == ["--dependency=afterok:7", "--kill-on-invalid-dep=yes"]
