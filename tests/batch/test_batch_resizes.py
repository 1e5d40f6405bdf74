"""Resizes by a real Slurm: its verbs, and replays in which a policy of tracebed decides."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import tracebed.api as tb
from tests.oracles.accounting import agreement, prefix_of
from tests.patience import GUARD_S
from tests.servers.slurmd import SETTINGS, Slurm, reason_to_skip
from tracebed.converters.workload import Provenance, System, Workload
from tracebed.ground.errors import InputError
from tracebed.orchestrator.replay.batch.base import BatchSettings, JobRequest, Phase, Refused
from tracebed.slurm.batch_system import SlurmSystem

REASON = reason_to_skip(accounting=True)
pytestmark = [pytest.mark.skipif(REASON is not None, reason=str(REASON)), pytest.mark.slow]

NODES = 16
RESIZABLE = {
    "SelectType": "select/cons_tres",
    "SelectTypeParameters": "CR_CPU",
    "SchedulerParameters": f"{SETTINGS['SchedulerParameters']},permit_job_expansion",
}


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    """Yield a Slurm whose jobs can be resized."""
    cluster = Slurm(tmp_path_factory.mktemp("slurm"), nodes=NODES, accounting=True, settings=RESIZABLE)
    try:
        cluster.up()
        yield cluster
    finally:
        cluster.down()


@pytest.fixture
def system(slurm: Slurm) -> Iterator[SlurmSystem]:
    """Yield the Slurm as a batch system. Its jobs end with the test."""
    yield SlurmSystem(BatchSettings(configuration=slurm.conf))
    slurm("scancel", "--user=root")
    slurm.until(lambda: not slurm("squeue", "-h").strip(), "jobs do not end")


def started(system: SlurmSystem, slurm: Slurm, folder: Path, *nodes: str, name: str = "t-0") -> str:
    """Submit a job, start it on nodes, and return its ID."""
    script = folder / "sleep.sh"
    script.write_text("#!/bin/sh\nsleep 300\n")
    script.chmod(0o700)
    job = system.submit(JobRequest(name, len(nodes), 600.0, script, (), folder / "out", held=True))
    assert system.poll("t-", [])[job].hopeless  # it is held
    system.start(job, nodes)
    slurm.until(lambda: system.poll("t-", [])[job].phase is Phase.RUNNING, "the job does not start")
    return job


def unusable(system: SlurmSystem) -> set[str]:
    """Return the nodes on which no job can start."""
    return {name for name, state in system.node_states().items() if not state.usable}


def nodes_of(system: SlurmSystem, job: str) -> tuple[str, ...]:
    """Return the nodes of a job."""
    return system.poll("t-", [])[job].nodes


def test_a_held_job_starts_on_the_chosen_nodes_and_is_resized(
    slurm: Slurm, system: SlurmSystem, tmp_path: Path
) -> None:
    system.check_resizing()
    job = started(system, slurm, tmp_path, "n3", "n5")
    assert nodes_of(system, job) == ("n3", "n5")
    second = system.request(job, "t-0+2", ["n1", "n7"])
    found = system.poll("t-", [])[second]
    assert (found.name, found.phase, found.nodes) == ("t-0+2", Phase.RUNNING, ("n1", "n7"))
    system.merge(job, second)
    assert nodes_of(system, job) == ("n1", "n3", "n5", "n7")
    assert system.poll("t-", [])[second].phase is not Phase.RUNNING
    on_new = slurm("srun", f"--jobid={job}", "--overlap", "-N1", "-n1", "-w", "n7", "printenv", "SLURMD_NODENAME")
    assert on_new.strip() == "n7"
    system.shrink(job, ["n3", "n7"])
    assert nodes_of(system, job) == ("n3", "n7")


def test_released_nodes_are_allocated_again_and_again(slurm: Slurm, system: SlurmSystem, tmp_path: Path) -> None:
    """Slurm 22.05 never allocates a node again if the job that released it was exclusive."""
    job = started(system, slurm, tmp_path, "n1", "n2")
    system.shrink(job, ["n1"])
    for number in range(3):
        system.merge(job, system.request(job, f"t-0+{2 + number}", ["n2"]))
        system.shrink(job, ["n1"])
    other = started(system, slurm, tmp_path, "n2", name="t-1")
    assert nodes_of(system, other) == ("n2",)


def test_a_request_for_busy_nodes_is_refused_and_leaves_no_job(
    slurm: Slurm, system: SlurmSystem, tmp_path: Path
) -> None:
    job = started(system, slurm, tmp_path, "n1")
    started(system, slurm, tmp_path, "n2", name="t-1")
    with pytest.raises(Refused, match="did not grant n2 within 5 s"):
        system.request(job, "t-0+2", ["n2"])
    assert [each.name for each in system.poll("t-0+", []).values() if each.phase is not Phase.ENDED] == []
    with pytest.raises(Refused):
        system.shrink(job, ["n2"])
    with pytest.raises(Refused):
        system.start(job, ["n3"])
    assert nodes_of(system, job) == ("n1",)


def test_a_node_that_is_drained_or_down_is_unusable(slurm: Slurm, system: SlurmSystem) -> None:
    assert unusable(system) == set()
    slurm("scontrol", "update", "NodeName=n4", "State=DRAIN", "Reason=test")
    slurm("scontrol", "update", "NodeName=n6", "State=DOWN", "Reason=test")
    assert unusable(system) == {"n4", "n6"}
    slurm("scontrol", "update", "NodeName=n4,n6", "State=RESUME")
    slurm.until(lambda: not unusable(system), "the nodes do not return")


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"SchedulerParameters": "bf_interval=1"}, "permit_job_expansion"),
        ({"SchedulerParameters": "permit_job_expansion,disable_job_shrink"}, "disable_job_shrink"),
        ({"SelectType": "select/linear"}, "select/linear"),
        ({"AccountingStorageType": "accounting_storage/none"}, "no database"),
    ],
)
def test_a_slurm_that_permits_no_resizes_is_refused(system: SlurmSystem, changed: dict[str, str], what: str) -> None:
    system._configuration.update(changed)  # the parsed output of `scontrol show config`
    with pytest.raises(InputError, match=what):
        system.check_resizing()


# -- replays -----------------------------------------------------------------------------------------------------------


def mixed(count: int, seed: int, gap_s: float = 1.0, mean_s: float = 6.0, machine: int = NODES) -> Workload:
    """Return a workload in which every other job is malleable."""
    draw = np.random.default_rng(seed)
    rows, submit = [], 0.0
    for number in range(count):
        malleable, nodes = number % 2 == 0, int(draw.integers(2, min(7, machine)))
        bounds = (max(1, nodes // 2), min(machine, 2 * nodes)) if malleable else (nodes, nodes)
        speedup = ("amdahl", "0.95") if malleable else ("", "")
        kind, run_time = "malleable" if malleable else "rigid", mean_s * draw.uniform(0.6, 1.6)
        rows.append((f"j{number}", submit, run_time, 600.0, nodes, kind, *bounds, nodes, *speedup))
        submit += draw.exponential(gap_s)
    columns = ("job_id", "submit_time", "run_time", "time_limit", "nodes", "kind", "nodes_min", "nodes_max")
    columns += ("nodes_pref", "speedup", "speedup_parameters")
    return Workload(pd.DataFrame(rows, columns=columns).assign(cores_per_node=1), Provenance(system=System(machine, 2)))


@pytest.mark.parametrize("policy", ["pref", "dmr"])
def test_a_policy_decides_and_slurm_agrees_about_the_nodes_of_each_job(
    slurm: Slurm, tmp_path: Path, policy: str
) -> None:
    workload = mixed(14, 1)
    run = tb.replay_on(workload, "slurm", policy, output=tmp_path / "run", configuration=slurm.conf)
    assert run.info.policy == policy
    assert run.info.batch["parameters"]["SelectType"] == "select/cons_tres"
    assert run.jobs["state"].unique().tolist() == ["completed"]
    assert not [each for each in run.info.warnings if "not rigid" in each]
    resizes = run.reconfigurations
    done = resizes[resizes["state"] == "applied"]
    assert {"expand", "shrink"} <= {*done["kind"]}
    assert (done["asked"] <= done["decided"]).all()
    assert (done["decided"] <= done["applied"]).all()
    assert done[done["kind"] == "expand"][["grant_s", "merge_s", "spawn_s"]].gt(0.0).all(axis=None)
    assert done[done["kind"] == "shrink"][["merge_s", "termination_s"]].gt(0.0).all(axis=None)
    assert tb.Run.load(tmp_path / "run").jobs.equals(run.jobs)  # checks that no node has two jobs
    assert not slurm("squeue", "-h").strip()
    found = agreement(slurm, run)
    assert (found.jobs, found.defects) == (len(workload), [])


# -- faults ------------------------------------------------------------------------------------------------------------


def once(strike: Callable[..., None]) -> Callable[..., None]:
    """Return a function that calls `strike` at its first call, and does nothing later."""
    struck: list[bool] = []

    def call(*arguments: object) -> None:
        if not struck:
            struck.append(True)
            strike(*arguments)

    return call


def served(slurm: Slurm, name: str) -> subprocess.Popen[bytes]:
    """Return the last server of a name that was started."""
    return [server for server in slurm.servers if server.args[0] == name][-1]  # type: ignore[index]


def kill_after_a_save(slurm: Slurm) -> None:
    """Kill slurmctld when it has saved all that it knows of jobs. It would lose jobs that start or end after a save.

    A job whose index in the database is requested, but not known at the save, could never be updated again.
    """
    controller, state = served(slurm, "slurmctld"), slurm.folder / "state" / "job_state"

    def log() -> str:
        return (slurm.folder / "slurmctld.log").read_text(errors="replace")

    def jobs() -> int:
        """Return the number of jobs that the log names."""
        return len(set(re.findall(r"JobId=(\d+)", log())))

    def index_is_known(job: str) -> bool:
        """Return whether Slurm accepts an update of a job, which it refuses until the index is known."""
        given = ("scontrol", "update", f"JobId={job}", "AdminComment=indexed")
        return "DB index" not in subprocess.run(given, env=slurm.environment, capture_output=True, text=True).stderr

    def all_is_saved() -> bool:
        """Return whether the last event of a job in the log is older than the saved state."""
        times = re.findall(r"^\[(\S+)\] .*JobId=", log(), re.M)
        event = datetime.fromisoformat(times[-1]).replace(tzinfo=UTC).timestamp()
        return event + 0.1 < state.stat().st_mtime  # Slurm collects what it saves within milliseconds

    while True:
        before = jobs()
        for job in slurm("squeue", "-h", "-o", "%A").split():
            slurm.until(partial(index_is_known, job), "slurmctld gets no index of a job")
        slurm.until(all_is_saved, "slurmctld does not save its state")
        controller.send_signal(signal.SIGSTOP)
        if all_is_saved() and jobs() == before:
            break
        controller.send_signal(signal.SIGCONT)
    controller.send_signal(signal.SIGKILL)
    controller.wait()


def check_nothing_is_left(slurm: Slurm, run: tb.Run) -> None:
    """Raise AssertionError if a job or a second job is left in Slurm, or a job ran twice."""
    assert not slurm("squeue", "-h").strip()
    listed = slurm("squeue", "-h", "-t", "all", "-o", "%j").split()
    names = [name for name in listed if name.startswith(prefix_of(run)) and "+" not in name]
    assert sorted(names) == sorted(f"{prefix_of(run)}{number}" for number in range(len(run.jobs)))
    assert tb.Run.load(run.folder).jobs.equals(run.jobs)  # checks that no node has two jobs


def kill_before_a_merge(slurm: Slurm, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kill slurmctld before the first merge, and start it again."""
    merge = SlurmSystem.merge

    @once
    def kill(second: str) -> None:
        kill_after_a_save(slurm)
        slurm.serve("slurmctld", "-D", "-i")

    monkeypatch.setattr(SlurmSystem, "merge", lambda self, id, second: (kill(second), merge(self, id, second)))


@contextmanager
def lost_nodes(slurm: Slurm, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the nodes of the first merge go down after it, until the block ends."""
    merge, lost = SlurmSystem.merge, list[str]()

    def lose(system: SlurmSystem, id: str, second: str) -> None:
        nodes = slurm("squeue", "-h", "-j", second, "-o", "%N").strip()
        merge(system, id, second)
        if not lost:
            lost.append(nodes)
            slurm("scontrol", "update", f"NodeName={nodes}", "State=DOWN", "Reason=test")

    monkeypatch.setattr(SlurmSystem, "merge", lose)
    try:
        yield
    finally:
        for nodes in lost:
            slurm("scontrol", "update", f"NodeName={nodes}", "State=RESUME", check=False)  # they may be back already
        slurm.until(lambda: not unusable(SlurmSystem(BatchSettings(configuration=slurm.conf))), "nodes are lost")
    assert lost


def test_slurmctld_is_killed_between_grant_and_merge(
    slurm: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill_before_a_merge(slurm, monkeypatch)
    run = tb.replay_on(mixed(8, 1), "slurm", "pref", output=tmp_path / "run", configuration=slurm.conf)
    assert run.jobs["state"].unique().tolist() == ["completed"]
    check_nothing_is_left(slurm, run)


def test_nodes_that_jobs_of_others_hold_are_not_used(slurm: Slurm, tmp_path: Path) -> None:
    other = slurm("sbatch", "--parsable", "-w", "n7", "-N1", "-t5", "-o", "/dev/null", "--wrap", "sleep 300").strip()
    slurm.until(lambda: slurm("squeue", "-h", "-j", other, "-o", "%T").strip() == "RUNNING", "no other job")
    workload = mixed(1, 1)  # it starts on four nodes, and expands to eight
    run = tb.replay_on(workload, "slurm", "pref", output=tmp_path / "run", configuration=slurm.conf)
    slurm("scancel", other)
    slurm.until(lambda: not slurm("squeue", "-h").strip(), "the other job does not end")
    assert run.jobs["state"].tolist() == ["completed"]
    assert [(each["node"], each["until"]) for each in run.info.outages] == [("n7", None)]
    assert [cause["signal"] for cause in run.info.health["causes"]] == ["agents_lost"]
    assert len(run.resizes)
    held = run.allocations
    assert not ((held["node"] <= 6) & (held["node"] + held["count"] > 6)).any()  # n7 is the node 6
    check_nothing_is_left(slurm, run)


def test_a_node_of_an_expanded_job_that_dies_ends_this_job_only(
    slurm: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with lost_nodes(slurm, monkeypatch):
        run = tb.replay_on(mixed(8, 1), "slurm", "pref", output=tmp_path / "run", configuration=slurm.conf)
    failed = run.jobs[run.jobs["state"] != "completed"]
    assert failed["reason"].str.startswith("NODE_FAIL").tolist() == [True]
    check_nothing_is_left(slurm, run)


def test_without_slurmdbd_for_a_time_nothing_is_lost(
    slurm: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    merge, shrink = SlurmSystem.merge, SlurmSystem.shrink

    @once
    def stop(second: str) -> None:
        database = served(slurm, "slurmdbd")
        database.terminate()
        database.wait(GUARD_S)

    started = once(lambda id: slurm.serve("slurmdbd", "-D"))

    def shrinking(system: SlurmSystem, id: str, nodes: list[str]) -> None:
        try:
            shrink(system, id, nodes)
        finally:
            started(id)

    monkeypatch.setattr(SlurmSystem, "merge", lambda self, id, second: (stop(second), merge(self, id, second)))
    monkeypatch.setattr(SlurmSystem, "shrink", shrinking)
    run = tb.replay_on(mixed(8, 1), "slurm", "pref", output=tmp_path / "run", configuration=slurm.conf)
    assert run.jobs["state"].unique().tolist() == ["completed"]
    check_nothing_is_left(slurm, run)
