"""The health of a replay: each disturbance that spoils a run is found, and named with its figure."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import psutil
import pytest
import yaml

from tests.oracles.redecided import emulated, virtual, workload
from tests.patience import GUARD_S
from tests.replay.test_replayer import CPUS, wait_for, write_case
from tests.runs import replaying
from tests.servers.agents import agents_of
from tracebed.converters.workload import Workload
from tracebed.ground.errors import InputError
from tracebed.machine.nodes import NodeFacts
from tracebed.orchestrator.replay import journal
from tracebed.orchestrator.replay.health import execution_kind, health
from tracebed.orchestrator.replay.journal import Entry
from tracebed.orchestrator.replay.monitor import Monitor
from tracebed.orchestrator.replay.recovery import recovered
from tracebed.orchestrator.replay.session import replay
from tracebed.orchestrator.replay.thresholds import SHIPPED, SIGNALS, HealthThresholds, Limit, SignalLimits, TimeScale
from tracebed.orchestrator.run import JOURNAL, Run, RunInfo
from tracebed.orchestrator.scheduling.jobs import Jobs
from tracebed.orchestrator.scheduling.record import ScheduleRecord
from tracebed.orchestrator.setup import Setup
from tracebed.orchestrator.testbeds.limits import KINDS
from tracebed.orchestrator.testbeds.nodes import Inventory, Node

ROOT = Path(__file__).resolve().parents[2]
COMPLETENESS = {"nodes_missing", "agents_lost", "interrupted", "jobs_disturbed"}

pytestmark = pytest.mark.usefixtures("no_process_is_left")


def jobs_of(count: int, seconds: float, *, nodes: int = 1) -> Workload:
    """Return `count` rigid jobs that are submitted at once."""
    columns = {"submit_time": 0.0, "run_time": seconds, "time_limit": 2 * seconds, "nodes": nodes, "kind": "rigid"}
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
    """Return a progress callback that stops a rank for this time: at its launch, or once it works.

    Args:
        seconds: the time.
        folder: the folder in which a replay writes its run; None: stop the rank at its launch.
    """
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


@pytest.mark.slow
def test_a_rank_stopped_for_10_s_is_found_at_low_speed(tmp_path: Path) -> None:
    """The job of the issue: 600 s at 100x, of which a stop of 10 s makes 1,000 s more."""
    run = carry_out(tmp_path, jobs_of(1, 600.0), emulated(1), 100, stopping(10.0, tmp_path))
    assert run.info.health["state"] == "unhealthy"
    assert run.info.health["signals"]["rank_late_s"] > 3.0


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


def judged(*entries: Entry, states: list[str], text: str, **info: object) -> dict[str, object]:
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
    found = judged(*lost_rank, states=states, text="all: {jobs_disturbed: {degraded: 0.1, unhealthy: 0.5}}")
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
    found = judged(states=states, text="all: {jobs_disturbed: {unhealthy: 0.01}}")
    [cause] = found["causes"]  # type: ignore[misc]
    jobs = "2 of 4 jobs failed, 1 of 4 jobs ended by an interruption"
    assert cause["text"] == f"disturbed jobs: 75 %, {jobs} (limit 1 %)"
    undisturbed = judged(states=["completed"], text="all: {jobs_disturbed: {degraded: 0}}")
    assert undisturbed["state"] == "healthy"


@pytest.mark.parametrize("sampled", [False, True])
def test_without_samples_it_is_unknown_whether_nodes_are_missing(sampled: bool) -> None:
    """In a journal of an earlier version, a node without jobs has no entries."""
    nodes = [NodeFacts("n1", 1), NodeFacts("n2", 1)]
    entries = [ended("j0")] + [Entry(0, 0.0, "sample", None, "n1", {"time": 0.0})] * sampled
    found = judged(*entries, states=["completed"], text="all: {nodes_missing: {unhealthy: 0}}", nodes=nodes)
    assert found["state"] == ("unhealthy" if sampled else "healthy")
    assert found["signals"]["nodes_missing"] == (1 if sampled else None)  # type: ignore[index]


def test_the_worst_cause_decides_and_a_signal_without_limits_is_only_recorded() -> None:
    text = "all: {residual_s: {degraded: 1}, lost_time: {unhealthy: 0.05}, rate_drift: {unhealthy: 0}}"
    found = judged(ended("j0", residual_s=20.0), ended("j1", residual_s=-4.0), states=["completed"] * 2, text=text)
    assert found["state"] == "unhealthy"
    assert [cause["signal"] for cause in found["causes"]] == ["lost_time", "residual_s"]  # type: ignore[union-attr]
    signals = found["signals"]
    assert isinstance(signals, dict)
    assert (signals["lost_time"], signals["residual_s"], signals["rate_drift"]) == (0.12, 20.0, None)
    assert judged(ended("j0", residual_s=20.0), states=["completed"], text="{}")["state"] == "healthy"


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
    found = judged(ended("j0", residual_s=99.0), states=["completed"], text=text, **facts)
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
