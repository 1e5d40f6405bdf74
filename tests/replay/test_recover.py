"""Working folders: files of users are never removed, and the run of a killed replay is recovered from its journal."""

from __future__ import annotations

import json
import shutil
import signal
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import psutil
import pytest
from click.testing import CliRunner

from tests.journals import change, forge
from tests.oracles.redecided import decided, decided_again, emulated, virtual, workload
from tests.oracles.survival import KEEP, Case, assert_every_job_ended_once, assert_no_rank_ran_twice, count, entries_of
from tests.patience import GUARD_S
from tests.replay.test_replay_sharing import MATE_AND_GUEST
from tests.replay.test_replayer import CPUS, wait_for, working_folders, write_case
from tests.runs import by_node, replaying
from tests.servers.agents import gone
from tracebed.benchmarks.clock import Clock
from tracebed.cli import tracebed
from tracebed.converters.workload import Workload
from tracebed.ground.errors import InputError
from tracebed.orchestrator.replay import folder as folder_module
from tracebed.orchestrator.replay import journal
from tracebed.orchestrator.replay.folder import WorkingFolder
from tracebed.orchestrator.replay.journal import Entry
from tracebed.orchestrator.replay.pace import Timeline
from tracebed.orchestrator.replay.recovery import Reconstruction, recover, recovered
from tracebed.orchestrator.replay.session import replay
from tracebed.orchestrator.run import JOURNAL, TABLES, Run, RunInfo
from tracebed.orchestrator.runs import working_folders as working_folders_module
from tracebed.orchestrator.runs.working_folders import MARKER, output_of
from tracebed.orchestrator.scheduling.jobs import Jobs
from tracebed.orchestrator.scheduling.policies import registry
from tracebed.orchestrator.setup import Setup

pytestmark = pytest.mark.usefixtures("no_process_is_left")

FAST = replaying(2000.0)


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    """Return a user's folder with a file and a folder in it."""
    folder = tmp_path / "precious"
    (folder / "thesis").mkdir(parents=True)
    (folder / "thesis" / "chapter1.tex").write_text("years of work")
    (folder / "notes.txt").write_text("mine")
    return folder


def content(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in sorted(folder.rglob("*")) if path.is_file()}


# -- files of users ----------------------------------------------------------------------------------------------------


def test_a_folder_of_a_users_own_named_partial_survives(tmp_path: Path, precious: Path) -> None:
    before = content(precious)
    own = precious.rename(tmp_path / "run.partial")
    replay(workload(3), virtual(4), "fcfs", tmp_path / "run", **FAST)
    assert content(own) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "run.partial"]


@pytest.mark.parametrize("name", ["run.partial", "run.partial-00000000"])
def test_a_link_named_partial_is_not_followed(tmp_path: Path, precious: Path, name: str) -> None:
    before = content(precious)
    (tmp_path / name).symlink_to(precious)
    replay(workload(3), virtual(4), "fcfs", tmp_path / "run", **FAST)
    assert content(precious) == before and (tmp_path / name).is_symlink()


@pytest.mark.parametrize("kind", ["folder", "link", "file"])
def test_an_output_that_is_not_a_run_is_refused(tmp_path: Path, precious: Path, kind: str) -> None:
    before = content(precious)
    (precious / "run.json").write_text("{}")  # of another program
    output = {"folder": precious, "link": tmp_path / "run", "file": precious / "notes.txt"}[kind]
    if kind == "link":
        output.symlink_to(precious)
    with pytest.raises(InputError, match="exists and is not a run"):
        replay(workload(3), virtual(4), "fcfs", output, **FAST)
    assert content(precious) == before | {"run.json": "{}"}
    assert working_folders(tmp_path) == []


def test_files_of_a_user_in_an_earlier_run_move_to_its_successor(tmp_path: Path) -> None:
    replay(workload(3), virtual(4), "fcfs", tmp_path / "run", **FAST)
    (tmp_path / "run" / "report.html").write_text("a report")
    (tmp_path / "run" / "plots").mkdir()
    (tmp_path / "run" / "plots" / "one.svg").write_text("a plot")
    replay(workload(4), virtual(4), "fcfs", tmp_path / "run", **FAST, replace_run=True)
    assert len(Run.load(tmp_path / "run").jobs) == 4
    assert (tmp_path / "run" / "report.html").read_text() == "a report"
    assert (tmp_path / "run" / "plots" / "one.svg").read_text() == "a plot"
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_an_output_that_is_a_link_to_a_run_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "scratch").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "scratch" / "real")
    for jobs in (3, 4):
        replay(workload(jobs), virtual(4), "fcfs", tmp_path / "run", **FAST, replace_run=True)
        assert (tmp_path / "run").is_symlink()
        assert [path.name for path in (tmp_path / "scratch").iterdir()] == ["real"]
        assert len(Run.load(tmp_path / "run").jobs) == jobs


@pytest.mark.parametrize("output", [".", "..", "/"])
def test_the_current_folder_is_refused_as_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="is the current folder, one of its parents, or a mount point"):
        replay(workload(3), virtual(4), "fcfs", Path(output), **FAST)
    assert list(tmp_path.iterdir()) == []


def test_a_replaced_working_folder_is_not_removed(tmp_path: Path, precious: Path) -> None:
    before = content(precious)
    folder = WorkingFolder(tmp_path / "run")
    folder.path.rename(tmp_path / "moved")
    precious.rename(folder.path)
    folder.remove()
    assert content(folder.path) == before


def test_two_replays_do_not_write_to_one_output(tmp_path: Path) -> None:
    def second(ended: int) -> None:
        with pytest.raises(InputError, match="run: another replay is writing to it"):
            replay(workload(3), emulated(2), "fcfs", tmp_path / "run")
        with pytest.raises(InputError, match="the replay is still running"):
            recover(*working_folders(tmp_path))

    run = replay(workload(3), virtual(4), "fcfs", tmp_path / "run", **FAST, on_progress=second)
    assert run.info.state == "completed"
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_only_their_user_can_read_spool_and_journal(tmp_path: Path) -> None:
    modes: dict[str, int] = {}

    def look(ended: int) -> None:
        for folder in working_folders(tmp_path):
            for path in (folder, *folder.rglob("*")):
                modes[path.name] = stat.S_IMODE(path.stat().st_mode) | path.is_dir() << 12

    replay(workload(3), emulated(4), "fcfs", tmp_path / "run", **FAST, on_progress=look)
    assert {JOURNAL, "spool", "agents", "n1.log", "n1.out", MARKER} <= modes.keys()
    assert {name: oct(mode) for name, mode in modes.items() if mode not in (0o600, 0o10700)} == {}
    assert stat.S_IMODE((tmp_path / "run" / JOURNAL).stat().st_mode) == 0o600


# -- recovering --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder in which a replay was killed with SIGKILL while jobs ran, started and were resized.

    The last job outlasts the test: the replay has not ended when it is killed.
    """
    from tracebed.converters.formats.writing import write_workload

    folder = tmp_path_factory.mktemp("killed")
    command = write_case(folder, 1.0)
    (folder / "w.parquet").unlink()
    work = workload(12)
    work.table.loc[11, ["run_time", "time_limit"]] = 1e6
    write_workload(work, folder / "w.parquet")
    (folder / "i.yaml").write_text(
        "grain_s: 0.02\nlinger_s: 1\nnodes:\n  - {name: 'n[1-4]', cores: 2, emulated: true}\n"
    )
    command[command.index("fcfs")] = "pref"
    process = subprocess.Popen([*command, "--speed", "100"], cwd=folder, stderr=subprocess.DEVNULL)
    try:
        wait_for(folder, "effect", "*")
        wait_for(folder, "end", "*")
        agents = psutil.Process(process.pid).children(recursive=True)
    finally:
        process.kill()
        process.wait()
    assert all(gone(agent) for agent in agents)  # they write files until they end
    return folder


def test_the_run_of_a_killed_replay_is_recovered(killed: Path) -> None:
    [left] = working_folders(killed)
    before = sorted(left.rglob("*"))
    result = CliRunner().invoke(tracebed, ["replay", "--recover", str(left), "-o", str(killed / "own"), "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["state"] == "interrupted"
    assert sorted(left.rglob("*")) == before

    run = Run.load(killed / "own")
    assert run.info.policy == "pref" and run.info.speed == 100.0 and run.info.hosts
    assert run.info.interruptions == ["the replay was killed"]
    _, entries = journal.read(left / JOURNAL)
    jobs = run.jobs.set_index("job_id")
    for kind, column in (("submit", "submit"), ("start", "start"), ("end", "end")):
        for entry in entries:
            if entry.kind == kind:
                assert jobs.loc[entry.job, column] == entry.time
    ended = {entry.job: (entry.data["state"], entry.data["reason"]) for entry in entries if entry.kind == "end"}
    assert ended
    assert {job: tuple(jobs.loc[job, ["state", "reason"]]) for job in ended} == ended
    others = jobs.drop(list(ended))
    assert set(others["state"]) == {"interrupted"} and others["start"].notna().any()
    applied = run.reconfigurations[run.reconfigurations["state"] == "applied"]
    assert len(applied) == sum(entry.kind == "effect" for entry in entries) > 0
    assert journal.read(killed / "own" / JOURNAL)[1] == entries


def test_a_folder_left_by_a_killed_replay_is_kept_and_named(killed: Path) -> None:
    [left] = working_folders(killed)
    before = content(left / "spool")
    with pytest.warns(UserWarning, match=f"{left.name} remains from an earlier replay: .*`tracebed replay --recover"):
        replay(workload(3), virtual(4), "fcfs", killed / "run", **FAST)
    assert content(left / "spool") == before
    with pytest.raises(InputError, match="run exists"):  # newer than the run to recover
        recover(left)


def test_a_folder_that_cannot_be_resumed_is_kept(tmp_path: Path) -> None:
    running, left = WorkingFolder(tmp_path / "a"), WorkingFolder(tmp_path / "b")
    left.close()
    (left.path / MARKER).write_text((running.path / MARKER).read_text())  # as if both were of one output
    with pytest.raises(InputError, match="another replay is writing to it"):
        WorkingFolder(tmp_path / "a", left=left.path)
    assert (left.path / MARKER).exists()
    running.remove()


@pytest.mark.parametrize(("policy", "speed"), [("fcfs", 1000.0), ("pref", 400.0)])
def test_a_run_is_equal_to_the_one_recovered_from_its_journal(tmp_path: Path, policy: str, speed: float) -> None:
    run = replay(workload(12), virtual(4), policy, tmp_path / "run", **replaying(speed))
    assert_equal(recovered(tmp_path / "run" / JOURNAL), run)


@pytest.mark.parametrize("policy", ["sd", "drom-share"])
def test_shared_nodes_are_recovered(tmp_path: Path, policy: str) -> None:
    work, parameters = Workload(pd.DataFrame(MATE_AND_GUEST)), {"max_slowdown": "inf"} if policy == "sd" else {}
    options = replaying(200.0)
    run = replay(work, virtual(1), policy, tmp_path / "run", policy_parameters=parameters, **options)
    assert run.jobs_on_shared_nodes
    assert_equal(recovered(tmp_path / "run" / JOURNAL), run)


def test_a_policy_may_choose_other_nodes_than_the_lowest() -> None:
    inventory = virtual(4)
    info = RunInfo("replay", "emulated", inventory.facts, {}, Setup.of("slurm"))
    reconstruction = Reconstruction(Jobs.of(workload(3), cores_per_node=2), info)

    def start(job: int, *nodes: str) -> None:
        reconstruction.apply(Entry(job, 1000.0 + job, "start", f"job {job}", None, {"nodes": list(nodes)}))

    start(0, "n3", "n4")
    assert (reconstruction.cluster.owned(0), reconstruction.cluster.idle) == ([2, 3], [0, 1])
    for damaged in (("n2", "n3"), ("n2", "n1"), ("n1", "n1")):
        with pytest.raises(ValueError, match="not idle, or not in ascending order"):
            start(1, *damaged)


def assert_equal(run: Run, other: Run) -> None:
    for table in TABLES:
        pd.testing.assert_frame_equal(getattr(run, table), getattr(other, table))
    assert vars(run.info) == vars(other.info)


@pytest.fixture(scope="module")
def replayed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("replayed") / "run"
    replay(workload(3), virtual(4), "fcfs", folder, **FAST)
    return folder


@pytest.fixture
def finished(replayed: Path, tmp_path: Path) -> Path:
    """Return a copy of a complete run, which a test may damage."""
    return Path(shutil.copytree(replayed, tmp_path / "run"))


def test_every_prefix_of_a_journal_makes_a_run(finished: Path, tmp_path: Path) -> None:
    """A replay can be killed at any time; its journal then holds complete rounds."""
    _, entries = journal.read(finished / JOURNAL)
    rounds = sorted({entry.round for entry in entries})
    ended = max(entry.round for entry in entries if entry.kind == "end")
    for last in rounds:
        path = tmp_path / f"{last}.sqlite"
        path.write_bytes((finished / JOURNAL).read_bytes())
        forge(path, f"DELETE FROM entries WHERE round > {last}", "DELETE FROM facts WHERE name = 'end'")
        run = recovered(path)
        assert (run.info.state == "completed") is (last >= ended)
        held = by_node(run).sort_values("start")
        for _, rows in held.groupby("node"):
            assert (rows["end"].to_numpy()[:-1] <= rows["start"].to_numpy()[1:]).all()


DAMAGES = {
    "the schema": "UPDATE facts SET value = '\"other/1\"' WHERE name = 'schema'",
    "no facts": "DELETE FROM facts",
    "no info": "DELETE FROM facts WHERE name = 'info'",
    "info of another type": "UPDATE facts SET value = '[1]' WHERE name = 'info'",
    "no json": "UPDATE facts SET value = '{' WHERE name = 'jobs'",
    "nested": "UPDATE facts SET value = '" + "[" * 100_000 + "' WHERE name = 'jobs'",
    "jobs of another type": "UPDATE facts SET value = '{\"ids\": 3}' WHERE name = 'jobs'",
    "an unknown job": "UPDATE entries SET job = 'nobody' WHERE kind = 'start'",
    "no job": "UPDATE entries SET job = NULL WHERE kind = 'end'",
    "an unknown node": "UPDATE entries SET data = '{\"nodes\": [\"x\"]}' WHERE kind = 'start'",
    "nodes in another order": 'UPDATE entries SET data = \'{"nodes": ["n4", "n1"]}\' WHERE kind = \'start\'',
    "an unknown state": 'UPDATE entries SET data = \'{"state": "zzz", "reason": ""}\' WHERE kind = \'end\'',
    "data of another type": "UPDATE entries SET data = '7' WHERE kind = 'start'",
    "a time of another type": "UPDATE entries SET time = 'noon'",
    "two ends": "INSERT INTO entries (round, time, kind, job, node, data, chain) "
    "SELECT round, time, kind, job, node, data, chain FROM entries WHERE kind = 'end'",
    "no table": "DROP TABLE entries",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_journal_is_one_line(finished: Path, damage: str) -> None:
    if damage == "no table":
        change(finished / JOURNAL, DAMAGES[damage])
    else:  # an edit that also computes the checksums again
        assert forge(finished / JOURNAL, DAMAGES[damage])
    result = CliRunner().invoke(tracebed, ["replay", "--recover", str(finished), "-o", str(finished.parent / "again")])
    assert isinstance(result.exception, InputError), result.exception
    assert JOURNAL in str(result.exception) and "\n" not in str(result.exception)
    assert not (finished.parent / "again").exists()


def test_no_finished_run_is_called_superfluous(finished: Path) -> None:
    result = CliRunner().invoke(tracebed, ["replay", "--recover", str(finished), "-o", str(finished.parent / "again")])
    assert result.exit_code == 0
    assert "needed" not in result.output


def test_other_folders_than_working_folders_are_refused(tmp_path: Path, precious: Path, finished: Path) -> None:
    for folder, what in ((precious, "the journal is missing"), (tmp_path / "absent", "the journal is missing")):
        with pytest.raises(InputError, match=what):
            recover(folder)
    (precious / JOURNAL).write_bytes(b"no database" * 1000)
    with pytest.raises(InputError, match="the journal cannot be read"):
        recover(precious)
    with pytest.raises(InputError, match="the output of the replay is unknown"):
        recover(finished)
    assert (precious / "notes.txt").read_text() == "mine"


# -- signals -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "number",
    [signal.SIGTERM, *(pytest.param(each, marks=pytest.mark.slow) for each in (signal.SIGINT, signal.SIGHUP))],
)
def test_a_signal_before_the_replay_begins_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    """The process sends the signal to itself during its imports."""
    command = write_case(tmp_path, 1.0)
    hook = "import builtins, os; real = builtins.__import__\n"
    hook += "def spy(name, *rest, **named):\n"
    hook += f"    if name == 'tracebed.orchestrator.replay': os.kill(os.getpid(), {int(number)})\n"
    hook += "    return real(name, *rest, **named)\n"
    hook += "builtins.__import__ = spy\n"
    command[2] = hook + command[2]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=GUARD_S, check=False)
    said = "tracebed: at 1x this takes at least 2 s\n\ntracebed: interrupted\n"
    assert (done.returncode, done.stderr) == (130, said)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["i.yaml", "w.parquet"]


def test_a_replay_under_nohup_ignores_sighup(tmp_path: Path) -> None:
    command = write_case(tmp_path, 1e5)
    command[2] = f"import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN); {command[2]}"
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    try:
        wait_for(tmp_path, "started", "long")
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=GUARD_S)
    finally:
        process.kill()
    assert Run.load(tmp_path / "run").info.interruptions == ["SIGTERM"]


def test_a_working_folder_that_is_removed_while_it_is_looked_at_is_not_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of another replay ended the new replay with a traceback."""
    output = tmp_path / "run"
    gone, other = WorkingFolder(output), WorkingFolder(tmp_path / "run2")

    def ends(folder: Path) -> Path | None:
        found = output_of(folder)
        gone.remove()
        return found

    monkeypatch.setattr(working_folders_module, "output_of", ends)
    assert working_folders_module.working_folders(output) == []
    assert not working_folders_module.is_running(gone.path)
    assert working_folders_module.is_running(other.path)
    other.remove()


def test_a_replay_that_ends_while_another_begins_is_not_mentioned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    monkeypatch.setattr(folder_module, "working_folders", lambda output: [output.with_name("run.partial-0")])
    WorkingFolder(tmp_path / "run").remove()
    assert not recwarn.list


# -- replays that are resumed: each job ends exactly once, and the pause is not in the times ---------------------------

SPEED = 100.0
INVENTORY = """
grain_s: 0.02
heartbeat_s: 0.2
linger_s: {linger}
nodes:
  - {{name: "n[1-4]", cores: 2, emulated: true}}
"""


@pytest.fixture
def case(tmp_path: Path) -> Iterator[Case]:
    """Return a replay of 12 jobs on four nodes, whose agents wait two minutes for another controller."""
    case = Case(tmp_path, workload(12), INVENTORY.format(linger=120), "--speed", str(SPEED), "--policy", "pref")
    yield case
    case.end()


def assert_sound(case: Case, run: Run, pauses: int, policy: str = "pref") -> None:
    entries = entries_of(case.folder)
    assert_every_job_ended_once(run, entries)
    assert_no_rank_ran_twice(case.folder / "kept" / "spool")
    assert run.info.state == "completed"
    assert len(run.info.pauses) == pauses
    assert not case.working
    times = [entry.time for entry in entries if entry.kind in ("submit", "start", "effect", "end", "pause")]
    assert times == sorted(times)
    jobs = Jobs.of(workload(12), cores_per_node=2)
    path = case.folder / "run" / JOURNAL
    assert decided_again(path, jobs, emulated(4), registry.load(policy), replaying(SPEED)) == decided(path)


KILL = """
import os
from tracebed.orchestrator.{module} import {name}
inner, calls = {name}.{method}, [0]
def method(self, *arguments, **named):
    calls[0] += 1
    if calls[0] == {call} and {before}:
        os.kill(os.getpid(), 9)
    result = inner(self, *arguments, **named)
    if calls[0] == {call}:
        os.kill(os.getpid(), 9)
    return result
{name}.{method} = method
"""


def killing(module: str, name: str, method: str, *, call: int = 1, before: bool = False) -> str:
    """Return code that kills its process at a call of a method: before it, or after it."""
    return KILL.format(module=module, name=name, method=method, call=call, before=before)


INSTANTS = {
    "before the run is saved": killing("run", "Run", "save", before=True),
    "after the run is saved": killing("run", "Run", "save"),
}


@pytest.mark.slow
@pytest.mark.parametrize("instant", INSTANTS)
def test_a_replay_that_is_killed_at_a_certain_instant_is_resumed(case: Case, instant: str) -> None:
    process = case.start(hook=KEEP + INSTANTS[instant])
    assert process.wait(GUARD_S) == -9, case.errors
    run = case.finish(case.start("--resume", hook=KEEP))
    assert_sound(case, run, 0)
    assert run.jobs["restarts"].sum() == 0


def test_no_time_before_a_pause_is_moved_by_it() -> None:
    """A rank may have started, and a job may have accepted a resize, before the replay was killed."""
    timeline = Timeline(Clock(), 10.0)
    timeline.zero = 1000.0
    timeline.pause(500.0, 1030.0)  # from 1050 s of the clock to 1080 s
    timeline.pause(1500.0, 1035.0)  # from 1180 s to 1185 s
    clock = [1000.0, 1049.0, 1050.0, 1079.0, 1080.0, 1179.0, 1180.0, 1184.0, 1185.0, 1200.0]
    assert [timeline.trace(time) for time in clock] == [0.0, 490.0, 500.0, 500.0, 500.0, 1490.0] + [1500.0] * 3 + [
        1650.0
    ]
    assert [timeline.clock_at(trace) for trace in (1500.0, 1650.0)] == [1185.0, 1200.0]


@pytest.mark.parametrize(("treatment", "states"), [("requeue", {"completed"}), ("fail", {"completed", "failed"})])
@pytest.mark.slow
def test_jobs_whose_agents_died_with_the_replayer_wait_again_or_fail(
    tmp_path: Path, treatment: str, states: set[str]
) -> None:
    options = ("--speed", str(SPEED), "--policy", "pref", "--on-node-failure", treatment)
    case = Case(tmp_path, workload(12), INVENTORY.format(linger=120), *options)
    try:
        process = case.start()
        case.wait_until(process, count("launched", 2))
        agents = case.agents()
        case.kill(process)
        for agent in agents:
            agent.kill()
        run = case.finish(case.start("--resume", hook=KEEP))
        entries = entries_of(tmp_path)
        assert_every_job_ended_once(run, entries, states=states)
        assert set(run.jobs["state"]) == states
        [pause] = run.info.pauses
        assert pause["lost"] > 0 == pause["adopted"]
        assert run.jobs["restarts"].sum() == (pause["lost"] if treatment == "requeue" else 0)
        failed = run.jobs[run.jobs["state"] == "failed"]
        assert failed["reason"].str.contains("was lost: its agent ended while the replay was stopped").all()
        assert {outage["until"] is not None for outage in run.info.outages} == {True}
        assert run.info.health["state"] == "unhealthy"
    finally:
        case.end()


@pytest.mark.slow
def test_a_replay_with_a_steady_clock_on_real_cpus_is_resumed(tmp_path: Path) -> None:
    inventory = f"grain_s: 0.02\nheartbeat_s: 0.2\nlinger_s: 120\nnodes:\n  - {{name: n1, cpus: '{CPUS[0]}'}}\n"
    work = workload(4, nodes=1)
    case = Case(tmp_path, work, inventory, "--speed", str(SPEED), "--policy", "fcfs", "--clock", "steady")
    try:
        process = case.start()
        case.wait_until(process, count("launched"))
        case.kill(process)
        run = case.finish(case.start("--resume"))
        assert_every_job_ended_once(run, entries_of(tmp_path))
        assert run.jobs["restarts"].sum() == 0
    finally:
        case.end()


@pytest.mark.slow
def test_a_replay_whose_nodes_do_not_start_when_it_is_resumed_can_be_resumed_later(case: Case) -> None:
    process = case.start()
    case.wait_until(process, count("start", 3))
    agents = case.agents()
    case.kill(process)
    for agent in agents:
        agent.kill()
    hook = "from tracebed.ground.errors import TestbedError\n"
    hook += "from tracebed.orchestrator.testbeds.local import LocalProvider\n"
    hook += "def refuse(self, node, arguments): raise TestbedError('the node is switched off')\n"
    hook += "LocalProvider.run = refuse\n"
    assert case.start("--resume", hook=hook).wait(GUARD_S) == 4
    assert "the node is switched off" in case.errors
    assert len(case.working) == 1
    assert_sound(case, case.finish(case.start("--resume", hook=KEEP)), 1)


@pytest.mark.slow
def test_another_command_does_not_resume_the_replay(case: Case) -> None:
    process = case.start()
    case.wait_until(process, count("start"))
    case.kill(process)
    before = case.working
    case.options = (
        "--inventory",
        "i.yaml",
        "-o",
        "run",
        "--policy",
        "fcfs",
        "--speed",
        "50",
        "--on-node-failure",
        "fail",
    )
    assert case.start("--resume").wait(GUARD_S) == 2
    assert "differs in: parameters, policy, policy_parameters, speed" in case.errors
    assert case.working == before
    recover(before[0], case.folder / "recovered")
    assert Run.load(case.folder / "recovered").info.state == "interrupted"
    for agent in case.agents():
        agent.kill()


def test_a_resumed_replay_that_is_killed_can_be_recovered(case: Case) -> None:
    for kind in ("start", "pause"):
        process = case.start("--resume")
        case.wait_until(process, count(kind))
        case.kill(process)
    [folder] = case.working
    run, _ = recover(folder)
    assert run.info.state == "interrupted"
    assert len(run.info.pauses) == 1
    for agent in case.agents():
        agent.kill()


@pytest.mark.slow
def test_without_a_killed_replay_resume_starts_from_the_beginning(case: Case) -> None:
    run = case.finish(case.start("--resume"))
    assert "no killed replay to run is found: the replay starts from the beginning" in case.errors
    assert run.info.pauses == []
