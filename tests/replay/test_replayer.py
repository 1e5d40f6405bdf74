"""The replayer, end to end: real agents, real processes, a journal, and the files left after an end or a failure."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import psutil
import pytest

from tests.oracles.redecided import decided, decided_again, emulated, virtual, workload
from tests.patience import GUARD_S
from tests.runs import by_node, make_run, replaying
from tests.servers.agents import agents_of
from tracebed.converters.workload import Workload
from tracebed.ground.errors import InputError
from tracebed.orchestrator.replay import journal
from tracebed.orchestrator.replay.ending import lateness
from tracebed.orchestrator.replay.programs import shortest_replay, sized
from tracebed.orchestrator.replay.session import replay
from tracebed.orchestrator.run import JOURNAL, Run
from tracebed.orchestrator.scheduling.jobs import Jobs
from tracebed.orchestrator.scheduling.limits import OverLimit
from tracebed.orchestrator.scheduling.policies import registry
from tracebed.orchestrator.testbeds.nodes import Inventory, Node

CPUS = sorted(os.sched_getaffinity(0))

pytestmark = pytest.mark.usefixtures("no_process_is_left")


def assert_sound(run: Run) -> None:
    """Check the invariants of every run."""
    jobs = run.jobs.set_index("job_id")
    done = jobs[jobs["state"] == "completed"]
    assert (done["submit"] <= done["start"]).all()
    assert (done["start"] <= done["launched"]).all()
    assert (done["launched"] <= done["end"]).all()
    for _, held in by_node(run).sort_values("start").groupby("node"):
        assert (held["end"].to_numpy()[:-1] <= held["start"].to_numpy()[1:]).all()


@pytest.mark.parametrize(
    ("policy", "nodes"), [("fcfs", virtual), ("easy", virtual), ("pref", virtual), ("pref", emulated)]
)
def test_a_replay_on_emulated_nodes(tmp_path: Path, policy: str, nodes: Callable[[int], Inventory]) -> None:
    work = workload()
    inventory = nodes(4)
    out = tmp_path / "runs" / "real"
    run = replay(work, inventory, policy, out, **replaying(speed=400))
    assert_sound(run)
    assert run.info.execution == inventory.execution
    assert set(run.jobs["state"]) == {"completed"}
    assert run.info.counts == {"jobs": 12, "completed": 12}
    assert run.info.lateness_ms["count"] == 12
    assert run.info.hosts
    if policy == "pref":
        done = run.reconfigurations[run.reconfigurations["state"] == "applied"]
        kinds = set(done["kind"])  # on a busy machine, real jobs may wait together, and none shrinks for another one
        assert kinds == {"expand", "shrink"} or (nodes is emulated and kinds <= {"expand", "shrink"})
        assert (done["asked"] <= done["decided"]).all()
        assert (done["decided"] <= done["applied"]).all()
        assert (done["applied"] <= done["ended"]).all()
    else:
        assert run.reconfigurations.empty

    again = Run.load(out)
    pd.testing.assert_frame_equal(again.allocations, run.allocations)
    assert sorted(path.name for path in out.parent.iterdir()) == ["real"]  # nothing partial is left

    jobs = Jobs.of(work)
    decisions = decided(out / JOURNAL)
    assert len(decisions) >= 12
    assert decided_again(out / JOURNAL, jobs, inventory, registry.load(policy)) == decisions


def test_the_journal_has_every_event_before_it_is_acted_on(tmp_path: Path) -> None:
    replay(workload(5), virtual(4), "easy", tmp_path / "run", **replaying(speed=1000))
    facts, entries = journal.read(tmp_path / "run" / JOURNAL)
    assert facts["info"]["setup"]["scheduling"]["policy"] == "easy"
    seen: dict[str, list[str]] = {}
    for entry in entries:
        if entry.job:
            seen.setdefault(entry.job, []).append(entry.kind)
    for kinds in seen.values():
        order = [kinds.index(kind) for kind in ("submit", "start", "listening", "started", "ended", "end")]
        assert order == sorted(order)


@pytest.mark.skipif(len(CPUS) < 2, reason="two CPUs make two real nodes; this machine has one")
def test_a_replay_that_computes_shrinks_and_expands_on_real_cpus(tmp_path: Path) -> None:
    table = {
        "job_id": ["wide", "late"],
        "submit_time": [0.0, 10.0],
        "run_time": [150.0, 25.0],
        "time_limit": [600.0, 100.0],
        "nodes": [2, 1],
        "kind": ["malleable", "rigid"],
        "nodes_min": [1, 1],
        "nodes_max": [2, 1],
        "speedup": "amdahl",
        "speedup_parameters": "0.95",
    }
    nodes = tuple(Node(f"n{cpu}", 1, 1, (cpu,)) for cpu in CPUS[:2])
    run = replay(
        Workload(pd.DataFrame(table)),
        Inventory("test", "agents", nodes, grain_s=0.02),
        "pref",
        tmp_path / "run",
        **replaying(speed=100, balance="dynamic"),
    )
    assert_sound(run)
    assert run.info.execution == "computed"
    assert run.info.hosts[0]["units_per_core_second"][f"n{CPUS[0]}"] > 0
    assert set(run.jobs["state"]) == {"completed"}
    kinds = run.reconfigurations[run.reconfigurations["state"] == "applied"]["kind"].tolist()
    assert kinds == ["shrink", "expand"]  # for the other job, even if both are submitted at once, and after its end
    assert set(run.allocations["cpus"]) == {str(cpu) for cpu in CPUS[:2]}
    _, entries = journal.read(tmp_path / "run" / JOURNAL)
    cpu_s = sum(entry.data["cpu_s"] for entry in entries if entry.kind == "ended")
    assert cpu_s > 0.5  # 310 s of run time at 100x and the default duty are 0.9 s of CPU time


def test_a_job_is_killed_at_its_limit_with_the_option(tmp_path: Path) -> None:
    table = {"job_id": ["long", "short"], "submit_time": [0.0, 1.0], "run_time": [9000.0, 5.0], "nodes": 2}
    work = Workload(pd.DataFrame(table | {"time_limit": [30.0, 3000.0]}))  # 30 s of wall time suffice for any launch
    run = replay(work, virtual(2), "fcfs", tmp_path / "run", **replaying(speed=100, over_limit=OverLimit.KILL))
    assert run.jobs["state"].tolist() == ["killed", "completed"]
    assert run.jobs["reason"].tolist() == ["time limit", ""]
    assert 30.0 <= run.jobs["end"][0] < 9000.0


def test_jobs_that_can_never_run_are_rejected_and_others_run(tmp_path: Path) -> None:
    run = replay(workload(8, nodes=6, malleable=0.0), virtual(2), "easy", tmp_path / "run", **replaying(400))
    fits = run.jobs["nodes"] <= 2
    assert fits.any() and not fits.all()
    assert (run.jobs.loc[fits, "state"] == "completed").all()
    assert (run.jobs.loc[~fits, "state"] == "rejected").all()


def write_case(folder: Path, seconds: float) -> list[str]:
    """Write a workload of one job that outlasts the test and an inventory; return the command that replays it."""
    from tracebed.converters.formats.writing import write_workload

    table = {"job_id": ["done", "long", "waits", "late"], "submit_time": [0.0, 0.1, 0.2, seconds]}
    table |= {"run_time": [0.1, seconds, 1.0, 1.0], "time_limit": [1.0, seconds, 2.0, 2.0], "nodes": [2, 2, 2, 1]}
    write_workload(Workload(pd.DataFrame(table)), folder / "w.parquet")
    (folder / "i.yaml").write_text("linger_s: 1\nnodes:\n  - {name: 'n[1-2]', cores: 2, emulated: true}\n")
    program = "from tracebed.cli import main; main()"
    options = ["--policy", "fcfs", "--inventory", "i.yaml", "-o", "run"]
    return [sys.executable, "-c", program, "replay", "w.parquet", *options]


def working_folders(folder: Path) -> list[Path]:
    """Return the working folders of replays to `folder / "run"`."""
    return list(folder.glob("run.partial-*"))


def wait_for(folder: Path, kind: str, job: str) -> None:
    """Wait until the journal of the replay to `folder / "run"` has an entry of a job (`*`: of any job)."""
    deadline = time.monotonic() + GUARD_S
    while time.monotonic() < deadline:
        for working in working_folders(folder):
            try:
                _, entries = journal.read(working / JOURNAL)
            except InputError:
                continue
            if any(entry.kind == kind and job in (entry.job, "*") for entry in entries):
                return
        time.sleep(0.02)
    raise AssertionError(f"no {kind} of {job} within {GUARD_S} s")


@pytest.mark.parametrize(
    "number",
    [signal.SIGTERM, *(pytest.param(each, marks=pytest.mark.slow) for each in (signal.SIGINT, signal.SIGHUP))],
)
def test_an_interrupt_ends_all_jobs_and_leaves_a_readable_run(tmp_path: Path, number: signal.Signals) -> None:
    command = write_case(tmp_path, 1e5)
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    try:
        wait_for(tmp_path, "started", "long")
        process.send_signal(number)
        _, errors = process.communicate(timeout=GUARD_S)
    finally:
        process.kill()
    assert process.returncode == 130, errors
    assert "interrupted" in errors and "Traceback" not in errors
    run = Run.load(tmp_path / "run")
    assert run.info.state == "interrupted"
    assert run.info.interruptions == [number.name]
    assert run.jobs["state"].tolist() == ["completed", "interrupted", "interrupted", "interrupted"]
    assert run.jobs["end"].isna().tolist() == [False, False, True, True]
    assert working_folders(tmp_path) == []


@pytest.mark.slow
def test_an_interrupted_replay_never_replaces_a_finished_run(tmp_path: Path) -> None:
    finished = content_of(make_run([(0.0, 0.0, 5.0, 1)], policy="fcfs").save(tmp_path / "run"))
    command = write_case(tmp_path, 1e5)
    refused = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (refused.returncode, "add --replace" in refused.stderr) == (2, True)
    process = subprocess.Popen([*command, "--replace"], cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    try:
        wait_for(tmp_path, "started", "long")
        beside = ["simulate", "w.parquet", "--policy", "fcfs", "--nodes", "2", "-o", "run", "--replace"]
        simulated = subprocess.run([*command[:3], *beside], cwd=tmp_path, capture_output=True, text=True, check=False)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=GUARD_S)
    finally:
        process.kill()
    assert (simulated.returncode, "another replay is writing to it" in simulated.stderr) == (2, True)
    assert process.returncode == 130, errors
    assert content_of(tmp_path / "run") == finished
    [saved] = tmp_path.glob("run.interrupted-*")
    assert str(saved) in errors
    assert Run.load(saved).info.interruptions == ["SIGINT"]
    assert working_folders(tmp_path) == []


def test_no_job_is_replayed_again_by_a_resume_of_a_finished_replay(tmp_path: Path) -> None:
    options = replaying(speed=2000)
    replay(workload(2), emulated(4), "fcfs", tmp_path / "run", **options)
    finished = content_of(tmp_path / "run")
    with pytest.warns(UserWarning, match="the replay is finished already"):
        run = replay(workload(2), emulated(4), "fcfs", tmp_path / "run", **options, resume=True)
    assert len(run.jobs) == 2
    assert content_of(tmp_path / "run") == finished
    for other in (
        lambda: replay(workload(3), emulated(4), "fcfs", tmp_path / "run", **options, resume=True),
        lambda: replay(workload(2), emulated(4), "easy", tmp_path / "run", **options, resume=True),
        lambda: make_run([(0.0, 0.0, 5.0, 1)]).save(tmp_path / "run"),
        lambda: make_run([(0.0, 0.0, 5.0, 1)], real=False).save(tmp_path / "run", replace=True),
        lambda: make_run([(0.0, 0.0, 5.0, 1)], state="interrupted").save(tmp_path / "run", replace=True),
    ):
        with warnings.catch_warnings(), pytest.raises(InputError, match="exists: a"):
            warnings.simplefilter("ignore", UserWarning)
            other()
        assert content_of(tmp_path / "run") == finished


def content_of(folder: Path) -> dict[str, bytes]:
    """Return the files of a run."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_lost_agent_may_end_the_replay_as_unhealthy_and_its_events_are_kept(tmp_path: Path) -> None:
    command = [*write_case(tmp_path, 1e5), "--on-node-failure", "abort"]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    try:
        wait_for(tmp_path, "started", "long")
        agents = agents_of(psutil.Process(process.pid))
        assert len(agents) == 2
        agents[0].kill()
        _, errors = process.communicate(timeout=GUARD_S)
    finally:
        process.kill()
    assert process.returncode == 4, errors
    assert "SIGKILL" in errors and "Traceback" not in errors
    run = Run.load(tmp_path / "run")
    assert run.info.state == "interrupted"
    assert run.jobs["state"][0] == "completed"


def test_a_replay_that_cannot_begin_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="unknown policy"):
        replay(workload(2), emulated(2), "best", tmp_path / "run")
    mixed = Inventory("mixed", "agents", (*emulated(1).nodes, Node("c1", 1, 1, (CPUS[0],))))
    with pytest.raises(InputError, match="mixes computing and emulated nodes"):
        replay(workload(2), mixed, "fcfs", tmp_path / "run")
    absent = Inventory("absent", "agents", (Node("c1", 1, 1, (4095,)),))
    with pytest.raises(InputError, match="4095"):
        replay(workload(2), absent, "fcfs", tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_an_invalid_journal_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the journal is missing"):
        journal.read(tmp_path / JOURNAL)
    (tmp_path / JOURNAL).write_text("not a database, but long enough to look at" * 100)
    with pytest.raises(InputError, match="cannot be read"):
        journal.read(tmp_path / JOURNAL)


def speedups(**columns: object) -> Jobs:
    table = {"submit_time": 0.0, "run_time": 60.0, "nodes": 2, "nodes_min": 1, "nodes_max": 8, "cores_per_node": 3}
    return Jobs.of(Workload(pd.DataFrame(table | {"kind": "malleable"} | columns)))


def test_programs_take_the_time_of_their_speedup_on_each_number_of_nodes() -> None:
    """The overhead and the serial part on one core, and the parallel part on all cores."""
    models = {"l": "linear", "a": "amdahl 0.9", "d": "downey 6 0.8", "v": "downey 3 1.7", "t": "table 1:100 3:60 8:40"}
    names, parameters = zip(*(model.partition(" ")[::2] for model in models.values()), strict=True)
    jobs = speedups(job_id=list(models), speedup=list(names), speedup_parameters=list(parameters))
    for job, name in enumerate(models):
        program = sized(jobs, job, 60.0, 1e6)
        assert bool(program.overhead) == (name not in "la")
        for nodes in range(1, 9):
            alone = program.overhead.get(str(nodes), 0) + program.serial_units
            seconds = (alone + program.parallel_units / (3 * nodes)) / 1e6
            assert seconds == pytest.approx(60 / jobs.rate(job, nodes), rel=1e-5), (name, nodes)
            for cores in (1, 2):  # as the simulator, with fewer cores
                seconds = (alone + program.parallel_units / (cores * nodes)) / 1e6
                assert seconds == pytest.approx(60 / jobs.rate(job, nodes, cores / 3), rel=1e-5), (name, nodes)


def test_a_job_on_one_node_has_the_serial_part_of_its_speedup() -> None:
    jobs = speedups(job_id=["a"], nodes=1, nodes_max=1, speedup="amdahl", speedup_parameters="0.9")
    program = sized(jobs, 0, 10.0, 1000.0)
    assert (program.serial_units, program.parallel_units, program.overhead) == (1000, 27000, {})


@pytest.mark.parametrize("times", ["1:100 2:40", "3:238 6:68 12:40 24:44 48:60"])
def test_a_table_with_a_superlinear_step_is_acted_out(times: str) -> None:
    """All cores work on the size with the least work; on smaller sizes, a part of the time is spent on one core."""
    measured = {int(size): float(seconds) for size, seconds in (point.split(":") for point in times.split())}
    low, high = min(measured), max(measured)
    jobs = speedups(job_id=["a"], nodes=high, nodes_min=low, nodes_max=high, speedup="table", speedup_parameters=times)
    program = sized(jobs, 0, measured[high], 1e6)
    cores = jobs.cores[0]
    for size, seconds in measured.items():
        alone = program.serial_units + program.overhead.get(str(size), 0)
        assert (alone + program.parallel_units / (cores * size)) / 1e6 == pytest.approx(seconds, rel=1e-5)


def test_a_superlinear_speedup_is_refused(tmp_path: Path) -> None:
    """Below the sizes of a table, its least one has the same time: 2 nodes in 100 s, and 1 node too."""
    table = {"job_id": ["x", "y"], "submit_time": 0.0, "run_time": 1.0, "nodes": 1, "nodes_min": 1, "nodes_max": 2}
    table |= {"kind": "malleable", "speedup": "table", "speedup_parameters": ["1:100 2:50", "2:100 4:60"]}
    with pytest.raises(InputError, match="superlinear speedup on 1 nodes") as error:
        replay(Workload(pd.DataFrame(table)), emulated(2), "fcfs", tmp_path / "run")
    assert error.value.where == "job y"


def test_a_replay_takes_at_least_the_announced_time(tmp_path: Path) -> None:
    inventory = virtual(4)
    pair = {"job_id": ["a", "b"], "submit_time": 0.0, "run_time": 200.0, "nodes": 4, "cores_per_node": 2}
    for work, options in (
        (workload(12), replaying(400.0)),
        (Workload(pd.DataFrame(pair)), replaying(200.0)),
        (workload(8, nodes=6, malleable=0.0), replaying(400.0)),  # jobs of more nodes than there are never run
    ):
        least = shortest_replay(work, inventory, options["speed"])
        run = replay(work, inventory, "pref", tmp_path / "run", **options, replace_run=True)
        took = (run.jobs["end"].max() - run.jobs["submit_planned"].min()) / options["speed"]
        assert 0.5 * took < least <= took


def test_a_time_limit_shortens_the_least_duration() -> None:
    table = {"job_id": ["a"], "submit_time": 5.0, "run_time": 100.0, "time_limit": 20.0, "nodes": 1}
    work = Workload(pd.DataFrame(table))
    assert shortest_replay(work, emulated(1), 10.0) == pytest.approx(10.0)
    assert shortest_replay(work, emulated(1), 10.0, over_limit=OverLimit.KILL) == pytest.approx(2.0)


def test_lateness_is_reported_in_milliseconds() -> None:
    late = lateness([0.001] * 99 + [0.1])
    assert late == {"count": 100, "p50": 1.0, "p99": 1.99, "max": 100.0}
    assert json.dumps(lateness([])) == '{"count": 0}'


def test_a_journal_is_copied_while_a_reader_has_it_open(tmp_path: Path) -> None:
    written = journal.Journal(tmp_path / JOURNAL, {"policy": "easy"})
    written.write([journal.Entry(0, 1.5, "submit", "a", None, {})])
    reader = sqlite3.connect(tmp_path / JOURNAL, isolation_level=None)
    reader.execute("BEGIN")
    assert reader.execute("SELECT count(*) FROM entries").fetchone() == (1,)
    written.write([journal.Entry(1, 2.5, "end", "a", None, {"state": "completed"})])
    facts, entries = journal.read(journal.copy(written.path, tmp_path / "copy"))
    reader.close()
    written.close()
    assert facts == {"policy": "easy"}
    assert [(entry.kind, entry.time, dict(entry.data)) for entry in entries] == [
        ("submit", 1.5, {}),
        ("end", 2.5, {"state": "completed"}),
    ]
