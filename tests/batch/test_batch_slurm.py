"""Replays with a real Slurm as the scheduler under test, started in a temporary folder."""

from __future__ import annotations

import json
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

import tracebed.api as tb
from tests.patience import GUARD_S, patience
from tests.servers.slurmd import Slurm, reason_to_skip
from tracebed.cli import tracebed
from tracebed.converters.workload import Provenance, System, Workload
from tracebed.ground.errors import ExitCode
from tracebed.orchestrator.replay import journal
from tracebed.orchestrator.replay.journal import Entry
from tracebed.orchestrator.run import JOURNAL
from tracebed.orchestrator.runs.working_folders import working_folders
from tracebed.validation.metrics import metrics

REASON = reason_to_skip(accounting=True)
pytestmark = [pytest.mark.skipif(REASON is not None, reason=str(REASON)), pytest.mark.slow]

NODES = 4
COLUMNS = ["job_id", "submit_time", "run_time", "nodes", "time_limit"]


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    """Yield a Slurm with accounting."""
    cluster = Slurm(tmp_path_factory.mktemp("slurm"), nodes=NODES, accounting=True)
    try:
        cluster.up()
        yield cluster
    finally:
        cluster.down()


def workload(*jobs: tuple[str, float, float, int, float]) -> Workload:
    """Return a workload of rigid jobs: id, submit time, run time, nodes, time limit."""
    table = pd.DataFrame(jobs, columns=COLUMNS).assign(cores_per_node=1)
    return Workload(table, Provenance(system=System(NODES, 2)))


def test_slurm_decides_and_the_run_has_its_nodes(slurm: Slurm, tmp_path: Path) -> None:
    jobs = workload(
        ("all", 10, 40, 4, 600),
        ("waits", 20, 20, 2, 600),
        ("beside", 20, 20, 2, 600),
        ("late", 30, 20, 3, np.nan),
        ("huge", 30, 20, NODES + 1, 600),
    )
    output = tmp_path / "run"
    run = tb.replay_on(jobs, speed=10, output=output, configuration=slurm.conf, options=["comment=a b; |c"])
    assert run.info.state == "completed"
    assert run.info.policy == "slurm"
    assert run.info.policy_parameters["SchedulerType"] == "sched/backfill"
    table = run.jobs.set_index("job_id")
    assert table["state"].to_dict() == {
        **dict.fromkeys(("all", "waits", "beside", "late"), "completed"),
        "huge": "rejected",
    }
    assert table.loc["huge", "reason"].startswith("never starts: Partition")
    ran = table.drop("huge")
    assert (ran["end"] - ran["start"] >= ran["run_time"]).all()
    assert (ran["launched"] >= ran["start"]).all()
    assert (ran["start"] >= ran["submit"]).all()
    assert (ran["submit"] >= ran["submit_planned"]).all()
    assert ran["time_limit"].dropna().tolist() == [600.0] * 3
    assert table.loc["waits", "start"] >= table.loc["all", "end"] - run.info.resolution_s
    held = run.allocations.groupby("job_id")["count"].sum()
    assert held.to_dict() == {"all": 4, "waits": 2, "beside": 2, "late": 3}
    assert [node.name for node in run.info.nodes] == ["n1", "n2", "n3", "n4"]
    assert run.info.batch["submission_ms"]["p50"] > 0
    assert run.info.batch["accounting"]
    loaded = tb.Run.load(output)  # checks that no node has two jobs
    pd.testing.assert_frame_equal(loaded.jobs, run.jobs)
    assert not working_folders(output)
    assert not slurm("squeue", "-h").strip()


def test_slurm_lets_jobs_wait_for_each_other(slurm: Slurm, tmp_path: Path) -> None:
    """Slurm gets the conditions that it can express; the replayer delays the submissions of the others."""
    jobs = workload(
        ("first", 10, 60, 1, 600),
        ("after", 10, 20, 1, 600),
        ("never", 10, 20, 1, 600),
        ("alone", 12, 20, 1, 600),
        ("thinks", 14, 20, 1, 600),
        ("last", 16, 20, 1, 600),
    )
    waits = {
        "dependency": ["", "afterok:first", "afternotok:first", "singleton", "", "afterok:never"],
        "after": ["", "", "", "", "after", ""],
        "think_time": [np.nan, np.nan, np.nan, np.nan, 15.0, np.nan],
        "user": ["a", "b", "b", "a", "b", "b"],
    }
    work = Workload(jobs.table.assign(**waits), jobs.provenance)
    run = tb.replay_on(work, speed=10, output=tmp_path / "run", configuration=slurm.conf)
    table, planned = run.jobs.set_index("job_id"), {"never", "last"}
    assert table["state"].to_dict() == {
        name: "cancelled" if name in planned else "completed" for name in table.index
    }, table["reason"].to_dict()
    assert table.loc["after", "start"] >= table.loc["first", "end"] - run.info.resolution_s
    assert table.loc["after", "submit"] < 25.0  # in Slurm, it waits from its submission on
    assert table.loc["alone", "submit"] >= table.loc["first", "end"] - run.info.resolution_s
    assert table.loc["thinks", "submit"] >= table.loc["after", "end"] + 15.0 - run.info.resolution_s
    assert run.info.lateness_ms["max"] < 1e3 * 3.0  # of the instant at which it was due
    assert not slurm("squeue", "-h").strip()


def test_a_submission_that_slurm_refuses_is_named_at_once_and_at_the_end(slurm: Slurm, tmp_path: Path) -> None:
    jobs = workload(("a", 0, 1, 1, 600), ("b", 0, 1, 1, 600))
    why = "sbatch refused: unrecognized option '--acount=x'"
    with pytest.warns(UserWarning, match=f"^job a is rejected: {why}$"):
        run = tb.replay_on(jobs, speed=10, output=tmp_path / "run", configuration=slurm.conf, options=["acount=x"])
    assert f"2 jobs rejected: {why}" in run.info.warnings


def test_a_command_whose_jobs_are_all_refused_does_not_succeed(slurm: Slurm, tmp_path: Path) -> None:
    """Before, a job of CI with a wrong option was green. Some refused jobs are a decision of the batch system."""
    jobs = workload(("a", 0, 1, 1, 600), ("b", 0, 1, 1, 600))
    process = replay(jobs, tmp_path / "run", slurm, "--speed", "10", "-S", "acount=x")
    printed = process.communicate(timeout=GUARD_S)[0]
    assert process.returncode == ExitCode.UNHEALTHY, printed
    assert "slurm accepted no job" in printed and "2 jobs rejected: sbatch refused" in printed


def test_a_job_that_outlives_its_limit_is_killed(slurm: Slurm, tmp_path: Path) -> None:
    killed = workload(("long", 0, 6000, 1, 1))
    run = tb.replay_on(killed, speed=60, output=tmp_path / "run", configuration=slurm.conf)
    row = run.jobs.iloc[0]
    assert (row["state"], row["reason"], row["time_limit"]) == ("killed", "TIMEOUT: TimeLimit", 3600.0)


def replay(jobs: Workload, output: Path, slurm: Slurm, *options: str) -> subprocess.Popen[str]:
    """Start a replay as a process of its own."""
    file = output.with_suffix(".parquet")
    tb.write(jobs, file, replace=True)
    command = [Path(sys.executable).with_name("tracebed"), "replay", str(file), "--scheduler", "slurm"]
    return subprocess.Popen(
        [*command, "-S", f"conf={slurm.conf}", "-o", str(output), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_a_replay_is_watched_from_a_second_process(slurm: Slurm, tmp_path: Path) -> None:
    jobs = workload(*((f"j{number}", number, 3.0 + number % 3, 1 + number % 3, 60) for number in range(8)))
    output = tmp_path / "run"
    command = [str(Path(sys.executable).with_name("tracebed")), "watch", str(output)]
    more = ["--wait", "--interval", "0.5", "--json", "--metrics", str(tmp_path / "run.prom")]
    watcher = subprocess.Popen([*command, *more], stdout=subprocess.PIPE, text=True)
    process = replay(jobs, output, slurm, "--metrics", str(tmp_path / "own.prom"))
    seen, _ = watcher.communicate(timeout=patience(200))
    printed = process.communicate(timeout=GUARD_S)[0]
    assert (process.returncode, watcher.returncode) == (0, 0), printed
    states = [json.loads(line) for line in seen.splitlines()]
    assert any(state["jobs"]["waiting"] and state["jobs"]["running"] and state["nodes"]["busy"] for state in states)
    assert not states[0]["ended"]
    run, last = tb.Run.load(output), states[-1]
    assert (last["status"], last["policy"], last["jobs"]["completed"]) == ("ended", "slurm", 8)
    assert (last["lateness_ms"], last["health"]) == (run.info.lateness_ms, run.info.health)
    assert last["utilization"] == pytest.approx(metrics(run)["utilization"])  # one definition
    assert last["time_s"] >= metrics(run)["makespan_s"]
    for name in ("run.prom", "own.prom"):
        assert 'tracebed_jobs{state="completed"} 8.0' in (tmp_path / name).read_text()
    once = subprocess.run(command, capture_output=True, text=True, check=True)
    assert once.stdout.endswith(f"{run.info.health['state']}, ended\n")


def own_jobs(slurm: Slurm) -> list[str]:
    """Return the states of the jobs of replays in the queue."""
    lines = slurm("squeue", "-h", "-o", "%j %T").splitlines()
    return [line.split()[1] for line in lines if line.startswith("tracebed-")]


def entries(output: Path, kind: str, job: str) -> list[Entry]:
    """Return the entries of a kind and a job in the journal of the replay that runs."""
    (folder,) = working_folders(output)
    return [entry for entry in journal.read(folder / JOURNAL)[1] if (entry.kind, entry.job) == (kind, job)]


def observed_nodes(output: Path, job: str) -> int:
    """Return the number of nodes of the job in its last observation."""
    found = entries(output, "observed", job)
    return len(found[-1].data["seen"]["nodes"]) if found else 0


def test_a_signal_cancels_the_jobs_of_the_replay_only(slurm: Slurm, tmp_path: Path) -> None:
    other = slurm("sbatch", "--parsable", "-N1", "-t5", "-o", "/dev/null", "--wrap", "sleep 300").strip()
    jobs = workload(("runs", 0, 300, 2, 600), ("waits", 1, 300, 4, 600), ("later", 200, 10, 1, 600))
    process = replay(jobs, tmp_path / "run", slurm)
    slurm.until(lambda: sorted(own_jobs(slurm)) == ["PENDING", "RUNNING"], "the replay does not begin")
    process.send_signal(signal.SIGINT)
    output = process.communicate(timeout=GUARD_S)[0]
    assert process.returncode == 130, output
    assert own_jobs(slurm) == []
    assert slurm("squeue", "-h", "-j", other, "-o", "%T").strip() == "RUNNING"
    slurm("scancel", other)
    run = tb.Run.load(tmp_path / "run")
    assert run.info.interruptions == ["SIGINT"]
    assert run.jobs["state"].tolist() == ["interrupted"] * 3
    assert run.jobs["start"].notna().tolist() == [True, False, False]


def test_a_killed_replay_is_resumed_and_each_job_runs_once(slurm: Slurm, tmp_path: Path) -> None:
    jobs = workload(
        ("ends before", 0, 1, 1, 60),
        ("ends meanwhile", 0.5, 8, 1, 60),
        ("goes on", 1, 25, 2, 60),
        ("is due meanwhile", 8, 1, 1, 60),
        ("is due later", 20, 1, 4, 60),
    )
    output = tmp_path / "run"
    process = replay(jobs, output, slurm)
    slurm.until(lambda: own_jobs(slurm).count("RUNNING") == 2, "the jobs do not run")
    slurm.until(lambda: bool(entries(output, "ended", "ends before")), "the end of the first job is not observed")
    process.kill()
    process.communicate()
    (folder,) = working_folders(output)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    records = [*folder.glob("jobs/*.start"), *folder.glob("jobs/*.end")]
    assert records
    assert {stat.S_IMODE(path.stat().st_mode) for path in records} == {0o600}
    recovered = CliRunner().invoke(tracebed, ["replay", "--recover", str(folder), "-o", str(tmp_path / "recovered")])
    assert recovered.exit_code == 0, recovered.output
    assert tb.Run.load(tmp_path / "recovered").info.state == "interrupted"
    other = CliRunner().invoke(
        tracebed,
        [
            *("replay", str(output.with_suffix(".parquet")), "--scheduler", "slurm", "--speed", "2", "--resume"),
            *("-S", f"conf={slurm.conf}", "-o", str(output)),
        ],
    )
    assert "differs in: speed" in str(other.exception)
    slurm.until(lambda: own_jobs(slurm).count("RUNNING") == 1, "the second job does not end")
    resumed = replay(jobs, output, slurm, "--resume")
    printed = resumed.communicate(timeout=GUARD_S)[0]
    assert resumed.returncode == 0, printed
    run = tb.Run.load(output)
    table = run.jobs.set_index("job_id")
    assert table["state"].unique().tolist() == ["completed"]
    assert np.allclose(table["end"] - table["start"], table["run_time"], atol=1.5)
    assert table.loc["is due meanwhile", "submit"] > 8.5
    assert len(run.info.pauses) == 1
    assert run.info.pauses[0]["wall_s"] > 1
    names = slurm("sacct", "-n", "-P", "-X", "-D", "-o", "JobName", "-S", "now-1hour").splitlines()
    prefix = folder.name.rpartition("-")[2]
    assert sorted(name for name in names if prefix in name) == [f"tracebed-{prefix}-{number}" for number in range(5)]
    assert not working_folders(output)


def test_a_controller_that_stands_still_or_restarts_loses_nothing(slurm: Slurm, tmp_path: Path) -> None:
    """Submissions and observations fail meanwhile. A submission whose answer is lost is not repeated."""
    jobs = workload(*((f"j{number}", number, 1.0, 1, 60) for number in range(8)))
    process = replay(jobs, tmp_path / "run", slurm)
    slurm.until(lambda: bool(own_jobs(slurm)), "the replay does not begin")
    controller = next(server for server in slurm.servers if server.args[0] == "slurmctld")  # type: ignore[index]
    controller.terminate()
    controller.wait(GUARD_S)
    time.sleep(3.0)
    slurm.serve("slurmctld", "-D")
    output = process.communicate(timeout=patience(200))[0]
    assert process.returncode == 0, output
    run = tb.Run.load(tmp_path / "run")
    assert run.jobs["state"].unique().tolist() == ["completed"]
    names = slurm("squeue", "-h", "-t", "all", "-o", "%j").split()
    prefix = {name.rpartition("-")[0] for name in names if name.startswith("tracebed-")}
    assert prefix
    assert len(set(names)) == len(names)


def test_a_shrunk_job_releases_nodes_and_the_run_has_its_staircase(slurm: Slurm, tmp_path: Path) -> None:
    """Slurm 22.05 shrinks a running job at once, and does not expand it again."""
    jobs = workload(("wide", 0, 40, 4, 60), ("waits", 1, 5, 2, 60))
    process = replay(jobs, tmp_path / "run", slurm)
    slurm.until(lambda: sorted(own_jobs(slurm)) == ["PENDING", "RUNNING"], "the replay does not begin")
    listed = slurm("squeue", "-h", "-t", "R", "-o", "%i %j").split()
    job = listed[listed.index(next(word for word in listed if word.startswith("tracebed-"))) - 1]
    slurm.until(lambda: observed_nodes(tmp_path / "run", "wide") == 4, "the job is not observed with all its nodes")
    slurm("scontrol", "update", f"JobId={job}", "NumNodes=2")
    slurm("scontrol", "update", f"JobId={job}", "NumNodes=4", check=False)  # refused
    assert slurm("squeue", "-h", "-j", job, "-o", "%D").strip() == "2"
    output = process.communicate(timeout=GUARD_S)[0]
    assert process.returncode == 0, output
    run = tb.Run.load(tmp_path / "run")
    assert run.jobs["state"].tolist() == ["completed", "completed"]
    assert run.reconfigurations[["kind", "nodes_from", "nodes_to"]].to_numpy().tolist() == [["shrink", 4, 2]]
    wide, waits = (run.allocations[run.allocations["job_id"] == name] for name in ("wide", "waits"))
    assert wide["count"].tolist() == [2, 2]
    assert wide["end"].nunique() == 2
    assert waits["start"].iloc[0] < run.jobs["end"].iloc[0]  # on the released nodes, while the first job runs
