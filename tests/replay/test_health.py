"""The health of a replay: each disturbance that spoils a run is found, and named with its figure."""

from __future__ import annotations

import contextlib
import json
import math
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import psutil
import pytest
import yaml

from tests.commands import call
from tests.oracles.redecided import emulated, virtual, workload
from tests.oracles.survival import KEEP, Case, count
from tests.pages import rendered, without_pictures
from tests.patience import GUARD_S
from tests.replay.test_replayer import CPUS, wait_for, write_case
from tests.runs import replaying
from tests.servers.agents import agents_of
from tests.validation.test_validation import predicted, repetitions, validated
from tracebed.converters.workload import Workload
from tracebed.ground.errors import ExitCode, InputError
from tracebed.ground.states import JobState
from tracebed.machine.nodes import NodeFacts
from tracebed.orchestrator.replay import journal
from tracebed.orchestrator.replay.health import (
    USUAL_S,
    Value,
    execution_kind,
    health,
    judged,
    mark,
    of_run_times,
    run_times,
)
from tracebed.orchestrator.replay.journal import Entry
from tracebed.orchestrator.replay.monitor import Monitor
from tracebed.orchestrator.replay.pace import Timeline
from tracebed.orchestrator.replay.recovery import recovered
from tracebed.orchestrator.replay.session import replay
from tracebed.orchestrator.replay.thresholds import SHIPPED, SIGNALS, HealthThresholds, Limit, SignalLimits, TimeScale
from tracebed.orchestrator.run import JOURNAL, Run, RunInfo
from tracebed.orchestrator.scheduling.jobs import Jobs
from tracebed.orchestrator.scheduling.record import ScheduleRecord
from tracebed.orchestrator.setup import Setup
from tracebed.orchestrator.testbeds.limits import KINDS
from tracebed.orchestrator.testbeds.nodes import Inventory, Node
from tracebed.orchestrator.watching.follower import view_of
from tracebed.orchestrator.watching.openmetrics import families
from tracebed.validation.fitting.cases import cases_of
from tracebed.validation.verdict.noise import noise_floor
from tracebed.validation.verdict.rejudging import reassessed_health
from tracebed.validation.verdict.rule import Reason, Verdict

ROOT = Path(__file__).resolve().parents[2]
COMPLETENESS = {"nodes_missing", "agents_lost", "interrupted", "jobs_disturbed"}

pytestmark = pytest.mark.usefixtures("no_process_is_left")


def jobs_of(count: int, seconds: float, *, nodes: int = 1, **columns: Any) -> Workload:
    """Return `count` rigid jobs that are submitted at once."""
    columns |= {"submit_time": 0.0, "run_time": seconds, "time_limit": 2 * seconds, "nodes": nodes, "kind": "rigid"}
    return Workload(pd.DataFrame({"job_id": [f"j{number}" for number in range(count)]} | columns))


def computing(duty: float) -> Inventory:
    """Return an inventory of one computing node of one CPU."""
    return Inventory("test", "agents", (Node("n1", 1, 1, CPUS[:1], duty=duty),), grain_s=0.02)


def state_of(run: Run, name: str) -> str | None:
    """Return the state for which the signal `name` is a cause, or None."""
    return next((cause["state"] for cause in run.info.health["causes"] if cause["signal"] == name), None)


def agents() -> list[psutil.Process]:
    return agents_of(psutil.Process())


def ranks() -> list[psutil.Process]:
    return [rank for agent in agents() for rank in agent.children()]


def stopping(seconds: float, folder: Path | None = None) -> Callable[[int], None]:
    """Return a progress callback that stops a rank for some seconds: at its launch, or once it works in `folder`."""
    stopped: list[psutil.Process] = []
    until = 0.0

    def on_progress(ended: int) -> None:
        nonlocal until
        files = folder.glob("run.partial-*/spool/job-*/*.heartbeat.jsonl") if folder else []
        works = not folder or any('"running"' in file.read_text() for file in files)
        if not stopped and works and (found := ranks()):
            found[0].suspend()
            stopped.append(found[0])
            until = time.monotonic() + seconds
        elif stopped and until and time.monotonic() >= until:
            stopped[0].resume()
            until = 0.0

    return on_progress


def carry_out(folder: Path, work: Workload, nodes: Inventory, speed: float, on_progress: Callable[[int], None]) -> Run:
    options = replaying(speed, on_node_failure="abort")
    return replay(work, nodes, "fcfs", folder / "run", **options, on_progress=on_progress)


# -- disturbances ------------------------------------------------------------------------------------------------------


def test_an_undisturbed_replay_is_complete_and_its_machine_known(tmp_path: Path) -> None:
    run = replay(workload(12), emulated(4), "pref", tmp_path / "run", **replaying(400))
    found = run.info.health
    assert not COMPLETENESS & {cause["signal"] for cause in found["causes"]}, found["causes"]
    assert found["signals"].keys() == SIGNALS.keys()
    for known in ("rank_late_s", "residual_s", "lost_time", "loop_late_s", "submission_late_s", "outside_load"):
        assert found["signals"][known] is not None
    assert found["thresholds"] == HealthThresholds.read().sha256
    assert f", {found['state']})" in repr(Run.load(tmp_path / "run"))
    assert recovered(tmp_path / "run" / JOURNAL).info.health == found


def test_a_stopped_rank_is_found(tmp_path: Path) -> None:
    """A job of 100 s, which is 1 s at this speed, is stopped for 3 s."""
    run = carry_out(tmp_path, jobs_of(1, 100.0), emulated(1), 100, stopping(3.0, tmp_path))
    assert run.info.health["state"] == "unhealthy"
    for name in ("rank_late_s", "residual_s", "lost_time"):
        assert state_of(run, name) == "unhealthy", (name, run.info.health)
    assert run.info.health["signals"]["rank_late_s"] > 1.0
    [text] = [cause["text"] for cause in run.info.health["causes"] if cause["signal"] == "rank_late_s"]
    assert "job j0 on n1" in text and "(limit 1 s)" in text


def test_a_rank_stopped_at_its_launch_is_found(tmp_path: Path) -> None:
    run = carry_out(tmp_path, jobs_of(1, 100.0), emulated(1), 100, stopping(4.0))
    stopped = {state_of(run, "overhead_late_s"), state_of(run, "rank_late_s")}  # it may have begun its work
    assert "unhealthy" in stopped, run.info.health


def test_a_stopped_rank_that_computes_all_the_time_is_found(tmp_path: Path) -> None:
    """Without deadlines there is no lateness: the wall time in the kernel exceeds its CPU time."""
    run = carry_out(tmp_path, jobs_of(1, 100.0), computing(1.0), 200, stopping(2.0, tmp_path))
    assert state_of(run, "rank_late_s") == "unhealthy"
    assert run.info.health["signals"]["rank_late_s"] > 1.5


@pytest.mark.slow
def test_a_stopped_replayer_is_found(tmp_path: Path) -> None:
    command = write_case(tmp_path, 3.0)
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        wait_for(tmp_path, "started", "long")
        process.send_signal(signal.SIGSTOP)
        time.sleep(2.0)
        process.send_signal(signal.SIGCONT)
        assert process.wait(GUARD_S) == 0
    finally:
        process.kill()
        process.wait()
    found = Run.load(tmp_path / "run").info.health
    assert {cause["state"] for cause in found["causes"] if cause["signal"] == "loop_late_s"} == {"unhealthy"}
    assert 1.5 < found["signals"]["loop_late_s"] < GUARD_S


@pytest.mark.slow
def test_killed_jobs_are_found(tmp_path: Path) -> None:
    """Of 60 jobs, up to 45 are killed from outside."""
    killed: set[int] = set()

    def kill(ended: int) -> None:
        for rank in ranks():
            if len(killed) < 45 and rank.pid not in killed:
                killed.add(rank.pid)
                with contextlib.suppress(psutil.NoSuchProcess):  # the rank has ended
                    rank.kill()

    run = carry_out(tmp_path, jobs_of(60, 200.0), emulated(4), 400, kill)
    failed = int((run.jobs["state"] == "failed").sum())
    assert failed > 20  # a rank may end before it is killed
    assert run.info.health["state"] == "unhealthy"
    assert run.info.health["signals"]["jobs_disturbed"] == pytest.approx(failed / 60, rel=1e-5)
    assert f"{failed} of 60 jobs" in run.info.health["causes"][0]["text"]


def test_a_lost_agent_is_found(tmp_path: Path) -> None:
    killed: list[psutil.Process] = []

    def kill(ended: int) -> None:
        if not killed and ranks():  # it may be called again before the loss is noticed
            killed.append(agents()[0])
            killed[0].kill()

    run = carry_out(tmp_path, jobs_of(2, 1e5), emulated(2), 100, kill)
    assert run.info.health["state"] == "unhealthy"
    for name in ("agents_lost", "interrupted", "jobs_disturbed"):
        assert state_of(run, name) == "unhealthy"
    node_of = {facts["pid"]: name for name, facts in journal.read(tmp_path / "run" / JOURNAL)[0]["agents"].items()}
    assert run.info.health["causes"][0]["text"] == f"nodes lost ({node_of[killed[0].pid]})"
    assert recovered(tmp_path / "run" / JOURNAL).info.health == run.info.health


@contextlib.contextmanager
def busy_loops(count: int, cpu: int) -> Iterator[None]:
    """Run `count` busy loops on a CPU."""
    code = f"import os; os.sched_setaffinity(0, [{cpu}])\nwhile True: pass"
    loops = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


@pytest.mark.slow
def test_busy_loops_beside_ranks_that_compute_all_the_time_are_found(tmp_path: Path) -> None:
    with busy_loops(4, CPUS[0]):
        run = replay(jobs_of(2, 100.0), computing(1.0), "fcfs", tmp_path / "run", **replaying(100))
    assert run.info.health["state"] == "unhealthy"
    for name in ("outside_load", "cpu_wait", "lost_time"):
        assert state_of(run, name) in {"degraded", "unhealthy"}, run.info.health  # how much of each, the kernel decides


@pytest.mark.slow
def test_busy_loops_beside_ranks_at_a_duty_below_one_are_found(tmp_path: Path) -> None:
    """How long the ranks wait, the kernel decides: at most 2.5 % on a quiet machine, 30 to 33 % beside two loops."""
    with busy_loops(2, CPUS[0]):
        run = replay(jobs_of(2, 100.0), computing(0.3), "fcfs", tmp_path / "run", **replaying(100))
    found = run.info.health
    waited = found["signals"]["cpu_wait"]
    assert waited > 0.05, found
    assert state_of(run, "cpu_wait") == ("unhealthy" if waited > 0.25 else "degraded" if waited > 0.2 else None), found
    assert found["state"] in {"degraded", "unhealthy"}, found  # in any case by the load of the loops


# -- the judgment ------------------------------------------------------------------------------------------------------

TIMES = TimeScale(speed=100.0, run_time_s=2.0, interarrival_s=8.0)


@pytest.mark.parametrize(
    ("limit", "found"),
    [
        (0.25, 0.25),
        ({"least": 0.05, "run_times": 0.1}, 0.2),
        ({"least": 0.5, "run_times": 0.1}, 0.5),
        ({"run_times": 4, "most": 3}, 3.0),
        ({"trace_s": 5, "interarrivals": 0.01}, 0.08),
        ({"trace_s": 50, "interarrivals": 0.01}, 0.5),
    ],
)
def test_a_limit_may_depend_on_the_times_of_the_replay(limit: object, found: float) -> None:
    assert Limit.model_validate(limit).at(TIMES) == pytest.approx(found)


def health_of(*entries: Entry, states: list[str], text: str, **info: object) -> dict[str, object]:
    """Return the health of a replay of jobs of 100 s at 1x that left these entries, by the thresholds `text`."""
    work = jobs_of(len(states), 100.0)
    jobs = Jobs.of(work)
    facts = RunInfo("replay", "computed", [NodeFacts("n1", 1)], {}, Setup.of("fcfs"))
    vars(facts).update(info)
    record = ScheduleRecord(jobs)
    record.state[:] = states
    record.submit[:] = jobs.submit
    monitor = Monitor(jobs, facts.nodes, 1.0)
    for entry in entries:
        monitor.apply(entry)
    return health(monitor, facts, record, HealthThresholds.parse(text, "t.yaml"))


def ended(job: str, **data: object) -> Entry:
    return Entry(0, 0.0, "ended", job, "n1", {"state": "completed", "time": 0.0, **data})


def test_jobs_that_the_policy_or_the_limit_ended_are_not_disturbed() -> None:
    states = ["completed", "completed", "killed", "cancelled", "rejected"]
    lost_rank = (ended("j1", state="failed", exit_code=-9), ended("j2", state="failed", exit_code=-9))
    lost_rank += (ended("j0", state="failed", exit_code=1),)  # it tried to join as the job ended
    found = health_of(*lost_rank, states=states, text="all: {jobs_disturbed: {degraded: 0.1, unhealthy: 0.5}}")
    assert found["state"] == "degraded"
    assert found["causes"] == [
        {
            "signal": "jobs_disturbed",
            "value": 0.2,
            "limit": 0.1,
            "state": "degraded",
            "text": "disturbed jobs: 20 %, 1 of 5 jobs lost a process (limit 10 %)",
        }
    ]


def test_disturbed_jobs_are_named_by_what_happened_to_them() -> None:
    states = ["failed", "failed", "interrupted", "completed"]
    found = health_of(states=states, text="all: {jobs_disturbed: {unhealthy: 0.01}}")
    [cause] = found["causes"]  # type: ignore[misc]
    jobs = "2 of 4 jobs failed, 1 of 4 jobs ended by an interruption"
    assert cause["text"] == f"disturbed jobs: 75 %, {jobs} (limit 1 %)"
    undisturbed = health_of(states=["completed"], text="all: {jobs_disturbed: {degraded: 0}}")
    assert undisturbed["state"] == "healthy"


@pytest.mark.parametrize("sampled", [False, True])
def test_without_samples_it_is_unknown_whether_nodes_are_missing(sampled: bool) -> None:
    """In a journal of an earlier version, a node without jobs has no entries."""
    nodes = [NodeFacts("n1", 1), NodeFacts("n2", 1)]
    entries = [ended("j0")] + [Entry(0, 0.0, "sample", None, "n1", {"time": 0.0})] * sampled
    found = health_of(*entries, states=["completed"], text="all: {nodes_missing: {unhealthy: 0}}", nodes=nodes)
    assert found["state"] == ("unhealthy" if sampled else "healthy")
    assert found["signals"]["nodes_missing"] == (1 if sampled else None)  # type: ignore[index]


def test_the_worst_cause_decides_and_a_signal_without_limits_is_only_recorded() -> None:
    text = "all: {residual_s: {degraded: 1}, lost_time: {unhealthy: 0.05}, rate_drift: {unhealthy: 0}}"
    found = health_of(ended("j0", residual_s=20.0), ended("j1", residual_s=-4.0), states=["completed"] * 2, text=text)
    assert found["state"] == "unhealthy"
    assert [cause["signal"] for cause in found["causes"]] == ["lost_time", "residual_s"]  # type: ignore[union-attr]
    signals = found["signals"]
    assert isinstance(signals, dict)
    assert (signals["lost_time"], signals["residual_s"], signals["rate_drift"]) == (0.12, 20.0, None)
    assert health_of(ended("j0", residual_s=20.0), states=["completed"], text="{}")["state"] == "healthy"


@pytest.mark.parametrize(
    ("execution", "duty", "clock", "kind"),
    [
        ("emulated", 0.0, "wall", "emulated"),
        ("computed", 0.5, "wall", "paced"),
        ("computed", [0.5, 1.0], "wall", "computing"),
        ("computed", 1.0, "steady", "paced"),
    ],
)
def test_the_limits_are_those_of_the_kind_of_execution(execution: str, duty: object, clock: str, kind: str) -> None:
    text = "all: {lost_time: {degraded: 1}}\n" + "".join(
        f"{name}: {{residual_s: {{unhealthy: {limit}}}}}\n" for limit, name in enumerate(KINDS, 1)
    )
    facts = {"execution": execution, "parameters": {"duty": duty, "clock": clock}}
    found = health_of(ended("j0", residual_s=99.0), states=["completed"], text=text, **facts)
    [cause] = found["causes"]  # type: ignore[misc]
    assert cause["limit"] == KINDS.index(kind) + 1
    assert (
        execution_kind(RunInfo("replay", execution, [], {}, Setup.of("x"), parameters={"duty": duty, "clock": clock}))
        == kind
    )


def test_launches_are_compared_with_those_of_jobs_of_similar_size() -> None:
    """A slow launch of one job counts; that larger jobs take longer does not."""
    work = jobs_of(8, 10.0).table.assign(nodes=[1, 1, 1, 1, 4, 4, 4, 4])
    jobs = Jobs.of(Workload(work))
    record, info = ScheduleRecord(jobs), RunInfo("replay", "emulated", [NodeFacts("n1", 1)], {}, Setup.of("fcfs"))
    monitor = Monitor(jobs, info.nodes, 1.0)
    monitor.launches = dict(zip(jobs.ids, [0.1, 0.1, 0.1, 2.2, 0.9, 1.0, 1.0, 1.1], strict=True))
    found = health(monitor, info, record, HealthThresholds.parse("{}", "t.yaml"))
    assert found["signals"]["overhead_late_s"] == pytest.approx(2.0)
    assert found["signals"]["overhead_excess"] == pytest.approx(2.0 / 80)


# -- thresholds --------------------------------------------------------------------------------------------------------


def test_other_thresholds_are_used_and_their_hash_is_recorded(tmp_path: Path) -> None:
    (tmp_path / "strict.yaml").write_text("emulated: {submission_late_s: {unhealthy: 0}}\n")
    strict = HealthThresholds.read(tmp_path / "strict.yaml")
    run = replay(workload(3), virtual(4), "fcfs", tmp_path / "run", **replaying(2000, health=strict))
    assert [cause["signal"] for cause in run.info.health["causes"]] == ["submission_late_s"]
    assert run.info.health["thresholds"] == strict.sha256 != HealthThresholds.read().sha256
    assert recovered(tmp_path / "run" / JOURNAL).info.health == run.info.health


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("all:\n  lost_tim: {degraded: 1}\n", "t.yaml:2: unknown signal 'lost_tim' (did you mean lost_time"),
        ("all:\n  lost_time:\n    degraded: much\n", "t.yaml:3: all.lost_time.degraded: 'much' is not a number"),
        ("all:\n  lost_time: {degraded: -1}\n", "t.yaml:2: all.lost_time.degraded: must be at least 0"),
        ("all:\n  lost_time: {worse: 1}\n", "t.yaml:2: all.lost_time.worse: unknown key"),
        ("all:\n  lost_time: {degraded: {share: 1}}\n", "t.yaml:2: all.lost_time.degraded.share: unknown key"),
        ("both:\n  lost_time: {degraded: 1}\n", "t.yaml:1: both: unknown key"),
        ("- lost_time\n", "t.yaml:1: must be a mapping of keys to values"),
    ],
)
def test_an_error_in_the_thresholds_names_the_line(text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        HealthThresholds.parse(text, "t.yaml")
    assert message in str(caught.value)


@pytest.mark.slow
def test_the_command_prints_the_causes(tmp_path: Path) -> None:
    command = write_case(tmp_path, 0.2)
    (tmp_path / "strict.yaml").write_text("all: {loop_late_s: {degraded: 0}, nodes_missing: {unhealthy: 0}}\n")
    done = subprocess.run(
        [*command, "--health", "strict.yaml", "--json"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "tracebed: warning: the run is degraded: the replayer was late: " in done.stderr
    assert json.loads(done.stdout)["health"]["state"] == "degraded"
    missing = [*command, "--health", "none.yaml"]
    done = subprocess.run(missing, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "none.yaml: cannot read the thresholds of health" in done.stderr


# -- the documentation -------------------------------------------------------------------------------------------------


def shown(limit: Limit | None, unit: str) -> str:
    """Return a limit as in the documentation."""
    if limit is None:
        return ""
    parts = [f"{100 * limit.least:g} %" if unit == "%" else f"{limit.least:g} {unit}".strip()] if limit.least else []
    parts += [f"{limit.run_times:g} run times"] if limit.run_times else []
    parts += [f"{limit.interarrivals:g} interarrivals"] if limit.interarrivals else []
    parts += [f"{limit.trace_s:g} trace s"] if limit.trace_s else []
    most = f", at most {limit.most:g} {unit}" if np.isfinite(limit.most) else ""
    return (" or ".join(parts) or "0") + most


def documented() -> list[str]:
    """Return the rows of the table of signals and limits."""
    limits = HealthThresholds.read().limits
    rows = []
    for name, item in SIGNALS.items():
        cells: dict[tuple[str, str], list[str]] = {}
        for kind in KINDS:
            own = limits[kind].get(name, SignalLimits())
            cells.setdefault((shown(own.degraded, item.unit), shown(own.unhealthy, item.unit)), []).append(kind)
        for (degraded, unhealthy), kinds in cells.items():
            if degraded or unhealthy or len(cells) == 1:
                of = "all" if len(cells) == 1 else ", ".join(kinds)
                rows.append(f"| `{name}` | {item.meaning} | {of} | {degraded} | {unhealthy} |")
    return rows


def test_the_page_has_each_signal_with_its_limits() -> None:
    page = (ROOT / "docs" / "reference" / "health.md").read_text(encoding="utf-8")
    rows = documented()
    assert [row for row in page.splitlines() if row.startswith("| `")] == rows, "\n".join(rows)
    assert yaml.safe_load(SHIPPED.read_text(encoding="utf-8")).keys() == {"all", *KINDS}


# -- recorded run times against their plans: those that differ are causes, and marked ----------------------------------

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
    inventory = "grain_s: 0.02\nlinger_s: 120\nnodes:\n  - {name: 'n[1-4]', cores: 2, emulated: true}\n"
    work = jobs_of(1, 1000.0, nodes=nodes, cores_per_node=2)
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


def killed_before(kind: str) -> str:
    """Return a program that kills the replay when it would write an entry of `kind` into its journal."""
    return f"""
import os
from tracebed.orchestrator.replay.journal import Journal
inner = Journal.write
def write(self, entries):
    entries = list(entries)
    if any(entry.kind == {kind!r} for entry in entries):
        os.kill(os.getpid(), 9)
    inner(self, entries)
Journal.write = write
"""


@pytest.mark.slow
@pytest.mark.parametrize("clock", ["wall", "steady"])
def test_no_run_time_is_shorter_than_its_plan_if_the_job_ended_before_the_resume(tmp_path: Path, clock: str) -> None:
    """With a steady clock, trace time continued at the last entry, although the job had worked after it."""
    nodes = "{name: 'n[1-2]', cores: 2, emulated: true}"
    inventory = f"grain_s: 0.02\nheartbeat_s: 1.7\nlinger_s: 120\nnodes:\n  - {nodes}\n"
    work = jobs_of(1, 1000.0, nodes=2, cores_per_node=2)
    case = Case(tmp_path, work, inventory, "--speed", "400", "--policy", "fcfs", "--clock", clock)
    try:
        assert case.start(hook=killed_before("ended")).wait(GUARD_S) == -9
        run = case.finish(case.start("--resume", hook=KEEP))
        [row] = run.jobs.itertuples()
        assert row.end - row.launched > 1000.0 - 0.02 * 400
        assert len(run.info.pauses) == 1
    finally:
        case.end()


@pytest.mark.slow
def test_no_launch_is_missing_from_the_journal_of_a_resumed_replay(tmp_path: Path) -> None:
    """The message of the leader was in the journal, what followed from it was not: recovered jobs had no launch."""
    inventory = "grain_s: 0.02\nlinger_s: 120\nnodes:\n  - {name: 'n[1-4]', cores: 2, emulated: true}\n"
    case = Case(tmp_path, workload(3), inventory, "--speed", str(SPEED), "--policy", "fcfs")
    try:
        assert case.start(hook=killed_before("launched")).wait(GUARD_S) == -9
        run = case.finish(case.start("--resume", hook=KEEP))
        again = recovered(tmp_path / "run" / JOURNAL)
        assert run.jobs["launched"].notna().all()
        pd.testing.assert_frame_equal(again.jobs, run.jobs)
        assert again.info.health == run.info.health
    finally:
        case.end()


# -- judged again: by the journal and the default limits, and no file of the run is believed ---------------------------

WIDE = "all: {" + ", ".join(f"{name}: {{degraded: 1.0e+6, unhealthy: 1.0e+6}}" for name in SIGNALS) + "}\n"
RANK_TIMES = TimeScale(1.0, 100.0, 40.0)


def by_wide_limits(**signals: float) -> dict[str, Any]:
    """Return the record of a replay with thresholds of a million."""
    values = {name: Value(value, "n2") for name, value in signals.items()}
    return judged(values, HealthThresholds.parse(WIDE, "wide.yaml"), "emulated", RANK_TIMES)


def test_no_verdict_is_accurate_by_wide_limits_of_health() -> None:
    health = by_wide_limits(agents_lost=1)
    assert health["state"] == "healthy"
    found = validated(repetitions(5, health=health))
    assert found.verdict is Verdict.INCONCLUSIVE
    assert found.exit_code is ExitCode.UNHEALTHY
    assert found.reasons == (Reason.UNHEALTHY,)
    assert "5 of 5 real runs are unhealthy, most often: nodes lost" in found.headline
    assert found.by_own_limits is Verdict.ACCURATE
    assert found.to_json()["by_own_limits"] == "accurate"
    warnings = "\n".join(found.warnings)
    assert (
        "5 of 5 runs (rep-01, and others): its limits of health are wider than the defaults (nodes_missing" in warnings
    )
    assert "by the limits of health of the runs themselves, the verdict is accurate instead of inconclusive" in warnings


def test_wide_limits_without_an_effect_are_named_and_change_nothing() -> None:
    found = validated(repetitions(5, health=by_wide_limits(agents_lost=0)))
    assert found.verdict is Verdict.ACCURATE
    assert found.by_own_limits is None
    assert any("wider than the defaults" in text for text in found.warnings)


def test_narrow_limits_of_a_run_still_hold() -> None:
    strict = HealthThresholds.parse("all: {loop_late_s: {unhealthy: 0}}\n", "strict.yaml")
    health = judged({"loop_late_s": Value(0.001)}, strict, "emulated", RANK_TIMES)
    [run] = repetitions(1, health=health)
    found = reassessed_health(run)
    assert (found.state, found.lenient) == ("unhealthy", False)


def test_no_state_is_believed_against_the_figures_in_the_file() -> None:
    health = by_wide_limits(agents_lost=2) | {"state": "healthy", "causes": []}
    for key in ("wider", "defaults"):
        del health[key]
    [run] = repetitions(1, health=health)
    assert reassessed_health(run).state == "unhealthy"
    [failed] = repetitions(1, states={"3": "failed", "7": "failed"})
    assert [cause["signal"] for cause in reassessed_health(failed).causes] == ["jobs_disturbed"]


def test_a_run_by_wide_limits_is_no_noise_and_no_fit() -> None:
    runs = repetitions(3, health=by_wide_limits(agents_lost=1))
    with pytest.raises(InputError, match="no run is usable: run 1: unhealthy: nodes lost"):
        noise_floor(runs)
    with pytest.raises(InputError, match="the run is unhealthy: nodes lost"):
        cases_of({}, {"one": runs[0]})


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a replay that lost an agent, judged by limits of a million."""
    folder = tmp_path_factory.mktemp("rejudged")
    killed: list[psutil.Process] = []

    def kill(ended: int) -> None:
        if ranks() and not killed:
            killed.append(agents()[0])
            killed[0].kill()

    wide = HealthThresholds.parse(WIDE, "wide.yaml")
    replay(
        jobs_of(3, 100.0),
        emulated(2),
        "fcfs",
        folder / "run",
        **replaying(100, health=wide),
        on_progress=kill,
    )
    return folder / "run"


def changed(run: Path, target: Path, *, journal: bool = True) -> Run:
    """Return a copy of a run whose `run.json` says that the run is healthy, and has neither causes nor figures."""
    Run.load(run).save(target)
    if journal:
        (target / JOURNAL).write_bytes((run / JOURNAL).read_bytes())
    raw = json.loads((target / "run.json").read_text())
    raw["health"] = {"state": "healthy", "causes": [], "signals": {}, "thresholds": "0" * 64}
    (target / "run.json").write_text(json.dumps(raw))
    return Run.load(target)


def test_no_state_is_believed_against_the_journal(damaged: Path, tmp_path: Path) -> None:
    run = Run.load(damaged)
    assert run.info.health["state"] == "healthy"
    assert "agents_lost: unhealthy above 1e+06 instead of 0" in run.info.health["wider"]
    assert run.info.health["defaults"]["state"] == "unhealthy"
    found = reassessed_health(run)
    assert (found.state, found.lenient) == ("unhealthy", True)
    assert found.causes[0]["text"].startswith("nodes lost (n")
    again = reassessed_health(changed(damaged, tmp_path / "changed"))
    assert (again.state, again.causes) == ("unhealthy", found.causes)
    without = reassessed_health(changed(damaged, tmp_path / "without", journal=False))
    assert without.state == "unhealthy"  # the outage in run.json
    assert "its journal is missing: the health was judged by the figures in run.json and by the tables" in without.notes


@without_pictures()
def test_no_figure_of_the_file_is_reported_against_the_journal(damaged: Path, tmp_path: Path) -> None:
    """The report listed the figures of `run.json` below the causes in the journal."""
    run = changed(damaged, tmp_path / "changed")
    assert run.info.health["signals"] == {}
    found = reassessed_health(run)
    assert (found.signals["agents_lost"], found.signals["interrupted"]) == (1, 0)
    sim = Run.load(damaged)
    sim.info.source, sim.info.execution = "simulator", "simulated"
    page = rendered(run, sim)
    section = page[page.index('<section id="health"') :].partition("</section>")[0]
    assert "<dt>agents_lost</dt><dd>1</dd>" in section
    assert HealthThresholds.read().sha256[:12] in section and "0" * 12 not in section


def test_no_exported_state_is_that_of_wide_limits(damaged: Path) -> None:
    pytest.importorskip("prometheus_client")
    facts, entries = journal.read(damaged / JOURNAL)
    view = view_of(facts)
    view.apply(entries)
    assert view.health()["state"] == "healthy"
    [states] = [family for family in families(view) if family.name == "tracebed_health"]
    values = {sample.labels["state"]: sample.value for sample in states.samples}
    assert values == {"healthy": 0.0, "degraded": 0.0, "unhealthy": 1.0}


def test_a_journal_of_another_run_is_not_used(damaged: Path, tmp_path: Path) -> None:
    run = changed(damaged, tmp_path / "changed")
    run.jobs["end"] += 50.0
    assert any("its journal has other times or states of jobs" in note for note in reassessed_health(run).notes)
    (tmp_path / "changed" / JOURNAL).write_bytes(b"no journal")
    assert any("its journal cannot be used" in note for note in reassessed_health(run).notes)


def test_no_command_ends_with_0_for_a_replay_that_lost_an_agent(damaged: Path, tmp_path: Path) -> None:
    real = Run.load(damaged)
    real.info.source, real.info.execution = "simulator", "simulated"
    real.save(tmp_path / "sim")
    result = call("compare", "--real", damaged, "--predicted", tmp_path / "sim")
    assert result.return_value is ExitCode.UNHEALTHY
    assert "the real run: its limits of health are wider than the defaults" in result.stderr
    assert "by the limits of health of the runs themselves" in result.stdout


def test_a_log_says_that_it_has_no_record_of_its_machine() -> None:
    real = repetitions(5, source="log", execution="logged", health={})
    found = validated(real, predicted())
    assert any("it is a log without a record of its machine" in text for text in found.warnings)
