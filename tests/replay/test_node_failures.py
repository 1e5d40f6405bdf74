"""Nodes that are lost while a replay runs: agents are killed or stopped, a disk hangs, a clock steps, nodes return."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd
import pytest

from tests.faults.kinds import NODE_FAULTS
from tests.oracles.redecided import decided, decided_again, emulated, virtual, workload
from tests.oracles.survival import Case, assert_every_job_ended_once, count, entries_of
from tests.patience import GUARD_S
from tests.replay.test_replayer_mishaps import STARTED, Said, Scripted, carry_out, ended, until_sent
from tests.runs import replaying
from tracebed.converters.workload import Workload
from tracebed.ground import system
from tracebed.orchestrator.replay import outages
from tracebed.orchestrator.replay.recovery import recovered
from tracebed.orchestrator.replay.session import replay
from tracebed.orchestrator.run import JOURNAL, Run
from tracebed.orchestrator.scheduling.jobs import Jobs
from tracebed.orchestrator.scheduling.policies import registry
from tracebed.orchestrator.scheduling.state import Cancel, Decision, Start, State
from tracebed.testing.virtual.faults import Fault
from tracebed.testing.virtual.kernel import VirtualWorld

pytestmark = pytest.mark.usefixtures("no_process_is_left")

SPEED = 100.0
INVENTORY = """
grain_s: 0.02
heartbeat_s: 0.2
linger_s: 1
nodes:
  - {name: "n[1-4]", cores: 2, emulated: true}
"""
SETUP_PARTS = Path(__file__).resolve().parents[2]
IMPATIENT = "from tracebed.orchestrator.replay import outages; outages.SILENCE = {}\n"
"""Code that shortens the time after which a silent agent is given up, s."""


def assert_told(folder: Path, run: Run, policy: str) -> None:
    """Check that the run tells of its outages, and that the journal gives the same run and the same decisions."""
    assert run.info.outages
    assert run.info.health["state"] == "unhealthy"
    assert "agents_lost" in {cause["signal"] for cause in run.info.health["causes"]}
    path = folder / "run" / JOURNAL
    again = recovered(path)
    pd.testing.assert_frame_equal(again.jobs, run.jobs)
    assert (again.info.outages, again.info.health) == (run.info.outages, run.info.health)
    jobs = Jobs.of(workload(12), cores_per_node=2)
    assert decided_again(path, jobs, emulated(4), registry.load(policy), replaying(SPEED)) == decided(path)


def assert_costs_its_jobs(run: Run, policy: str, treatment: str, folder: Path) -> None:
    """Check the run of a replay in which the agent of the first node was killed while the leader of a job ran there."""
    assert_every_job_ended_once(run, entries_of(folder), states={"completed", "failed"})
    [outage] = run.info.outages
    assert outage["node"] == "n1" and outage["reason"] == "its agent was killed by SIGKILL"
    assert outage["from"] < outage["until"]
    if treatment == "requeue":
        assert set(run.jobs["state"]) == {"completed"} and run.jobs["restarts"].sum() > 0
    else:
        failed = run.jobs[run.jobs["state"] == "failed"]
        assert set(failed["reason"]) == {"node n1 was lost: its agent was killed by SIGKILL"}
        assert run.jobs["restarts"].sum() == 0
    assert_told(folder, run, policy)


def striking(struck: list[Fault], kind: str = "kill_agent") -> Callable[[int], None]:
    """Return a progress callback that lets a fault of the first node happen, once, when a job runs there."""

    def strike(ended: int) -> None:
        here = system.current()
        assert isinstance(here, VirtualWorld)
        if not struck and here.nodes["n1"].agents and here.nodes["n1"].agents[0].ranks:
            struck.append(Fault(kind, here.now, "n1", seconds=1e3))
            NODE_FAULTS[kind](here.nodes["n1"], struck[0])

    return strike


@pytest.mark.parametrize("policy", ["pref", "drom-share"])
@pytest.mark.parametrize("treatment", ["requeue", "fail"])
def test_an_agent_that_is_killed_costs_its_jobs_and_its_node_returns(
    tmp_path: Path, policy: str, treatment: str
) -> None:
    struck: list[Fault] = []
    options = replaying(SPEED, on_node_failure=treatment)
    run = replay(workload(12), virtual(4), policy, tmp_path / "run", **options, on_progress=striking(struck))
    assert struck
    assert_costs_its_jobs(run, policy, treatment, tmp_path)


@pytest.mark.parametrize("treatment", ["requeue", "fail"])
@pytest.mark.parametrize("first", ["leader", "controller"])
def test_a_leader_that_notices_the_loss_of_a_node_does_not_change_what_happens_to_its_job(
    tmp_path: Path, treatment: str, first: str
) -> None:
    noticed = [ended(0, "failed", "lost rank 'n2'")]
    lost = [(1, {"type": "lost", "reason": "was killed by SIGKILL"}), (1, {"type": "back"})]

    def script(sent: Said) -> Iterator[Said]:
        yield from until_sent(sent, "launch")
        yield [(0, {"type": "listening", "address": "there"})]
        yield from until_sent(sent, "launch", 2)
        yield [STARTED]
        yield noticed if first == "leader" else lost
        yield []
        yield lost if first == "leader" else noticed
        if treatment == "requeue":
            yield from until_sent(sent, "launch", 3)
            yield [(0, {"type": "listening", "address": "there"})]
            yield from until_sent(sent, "launch", 4)
            yield [STARTED, ended(0, "completed"), ended(1, "completed")]

    work = two_jobs({"nodes": 2}, {"submit_time": 0.1})
    work = Workload(work.table.iloc[:1])
    options = replaying(1.0, on_node_failure=treatment)
    run = carry_out(work, registry.load("fcfs"), tmp_path, emulated(2), options, Scripted(script))
    if treatment == "requeue":
        assert (run.jobs["state"][0], run.jobs["restarts"][0]) == ("completed", 1)
    else:
        reason = "node n2 was lost: its agent was killed by SIGKILL"
        assert (run.jobs["state"][0], run.jobs["reason"][0]) == ("failed", reason)


NO_RETURN = """
from tracebed.ground.errors import TestbedError
from tracebed.orchestrator.replay import outages
from tracebed.orchestrator.testbeds.local import LocalProvider
outages.RETURN_S = 2.0
run, starts = LocalProvider.run, []
def run_once(self, node, arguments):
    if node.name in starts or node.name in {absent}:
        raise TestbedError("the node is switched off", where=node.name)
    starts.append(node.name)
    return run(self, node, arguments)
LocalProvider.run = run_once
"""


@pytest.mark.slow
def test_a_replay_whose_jobs_need_nodes_that_do_not_return_ends_with_the_reason(tmp_path: Path) -> None:
    work = workload(3)
    for column in ("nodes", "nodes_min", "nodes_max", "nodes_pref"):
        work.table[column] = [4, 1, 4]
    work.table["kind"] = "rigid"
    case = Case(tmp_path, work, INVENTORY, "--speed", str(SPEED), "--policy", "easy")
    try:
        process = case.start(hook=NO_RETURN.format(absent=[]))
        case.wait_until(process, count("launched"))
        case.agents()[2].kill()
        run = case.finish(process, status=4)
        assert run.info.state == "interrupted"
        [reason] = run.info.interruptions
        lost = "n3 (its agent was killed by SIGKILL)"
        assert reason == f"2 jobs wait for lost nodes that did not return within 2 s: {lost}"
        assert run.jobs["state"].tolist() == ["interrupted", "completed", "interrupted"]
        assert run.jobs["restarts"].tolist() == [1, 0, 0]
        assert run.jobs["start"].isna().tolist() == [True, False, True]
        [outage] = run.info.outages
        assert outage["until"] is None
    finally:
        case.end()


@pytest.mark.slow
@pytest.mark.parametrize("drain", [True, False])
def test_a_node_that_does_not_start_is_drained_if_that_is_allowed(tmp_path: Path, drain: bool) -> None:
    work = workload(4, nodes=3)
    case = Case(tmp_path, work, INVENTORY, "--speed", str(SPEED), "--policy", "fcfs", *(["--drain"] if drain else []))
    try:
        process = case.start(hook=NO_RETURN.format(absent=["n4"]))
        if not drain:
            assert process.wait(GUARD_S) == 4
            assert "switched off" in case.errors
            return
        run = case.finish(process)
        assert set(run.jobs["state"]) == {"completed"}
        [outage] = run.info.outages
        assert (outage["node"], outage["until"]) == ("n4", None)
        assert "the node is switched off" in outage["reason"]
        assert run.info.health["state"] == "unhealthy"
        assert not (run.allocations["node"] + run.allocations["count"] > 3).any()
    finally:
        case.end()


# -- a hung disk and a clock step --------------------------------------------------------------------------------------

MOUNT = """
import subprocess
from tracebed.orchestrator.replay.folder import WorkingFolder
create, remove = WorkingFolder._create, WorkingFolder.remove
def create_and_mount(self, output):
    create(self, output)
    (self.path / "spool").mkdir(mode=0o700)
    subprocess.run(["mount", "-o", "loop", "disk.img", str(self.path / "spool")], check=True)
    (self.path / "spool").chmod(0o700)
def unmount_and_remove(self):
    subprocess.run(["umount", "-l", str(self.path / "spool")], check=True)
    remove(self)
WorkingFolder._create, WorkingFolder.remove = create_and_mount, unmount_and_remove
"""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """Return the image of a file system that can be mounted and frozen."""
    programs = ("mkfs.ext4", "fsfreeze", "mount")
    if os.geteuid() or not all(map(shutil.which, programs)):
        pytest.skip("needs root, and mkfs.ext4 and fsfreeze: apt-get install e2fsprogs util-linux")
    image, folder = tmp_path / "disk.img", tmp_path / "try"
    with image.open("wb") as file:
        file.truncate(32 * 2**20)
    subprocess.run(["mkfs.ext4", "-q", str(image)], check=True)
    folder.mkdir()
    if subprocess.run(["mount", "-o", "loop", str(image), str(folder)], check=False, capture_output=True).returncode:
        pytest.skip("needs loop devices, which this container does not have")
    subprocess.run(["umount", str(folder)], check=True)
    yield image
    for spool in tmp_path.glob("run.partial-*/spool"):
        subprocess.run(["fsfreeze", "-u", str(spool)], check=False, capture_output=True)
        subprocess.run(["umount", "-l", str(spool)], check=False, capture_output=True)


@pytest.mark.slow
def test_nodes_on_a_disk_that_hangs_are_out_until_it_works_again(tmp_path: Path, disk: Path) -> None:
    """The file system of the spool is frozen: agents and ranks that write to it wait, and cannot even be killed."""
    case = Case(tmp_path, workload(12), INVENTORY, "--speed", str(SPEED), "--policy", "pref")
    try:
        process = case.start(hook=MOUNT + IMPATIENT.format(2.0))
        case.wait_until(process, count("launched", 2))
        [working] = case.working
        subprocess.run(["fsfreeze", "-f", str(working / "spool")], check=True)
        try:
            case.wait_until(process, count("down", 4))
            assert process.poll() is None  # the replayer itself does not wait for the disk
        finally:
            subprocess.run(["fsfreeze", "-u", str(working / "spool")], check=True)
        run = case.finish(process)
        assert_every_job_ended_once(run, entries_of(tmp_path))
        assert {outage["node"] for outage in run.info.outages} == {"n1", "n2", "n3", "n4"}
        assert run.jobs["restarts"].sum() > 0
    finally:
        case.end()


STEPS = """
import random, time
true = time.time
time.time = lambda: true() + random.choice([-1e6, 0.0, 3600.0])
time.time_ns = lambda: int(1e9 * time.time())
"""


@pytest.mark.slow
def test_steps_of_the_wall_clock_do_not_change_a_replay(tmp_path: Path) -> None:
    case = Case(tmp_path, workload(12), INVENTORY, "--speed", str(SPEED), "--policy", "fcfs")
    try:
        run = case.finish(case.start(hook=STEPS))
        assert_every_job_ended_once(run, entries_of(tmp_path))
        assert run.info.outages == []
        ran = run.jobs["end"] - run.jobs["start"]
        assert (ran < run.jobs["run_time"] + 60 * SPEED).all()
        assert (ran >= run.jobs["run_time"] - 0.05 * SPEED).all()
    finally:
        case.end()


WALL_CLOCK = {
    "system.time",
    "here.time",
    "time.time_ns",
    "datetime.now",
    "datetime.today",
    "datetime.utcnow",
    "time.localtime",
}
STAMPS = {
    "replay/session.py",  # the date of a run
    "replay/batch/session.py",  # the date of a run
    "replay/batch/wall.py",  # the clock of a batch system, which dates its jobs by the wall clock
    "testbeds/rates.py",  # the date of a measurement
    "testbeds/checking/survey.py",  # the offset of a clock, for `nodes check`
    "testbeds/agent/facts.py",  # the clock of a node, for `nodes facts`
    "testbeds/installation.py",  # names of environments on nodes
    "benchmarks/mpi/batch_job.py",  # the times of a job's records, as in job.sh
}
"""Modules that use the wall clock, for dates and ages only."""


def test_nothing_that_paces_a_replay_uses_the_wall_clock() -> None:
    folders = {
        "replay": SETUP_PARTS / "orchestrator/tracebed/orchestrator/replay",
        "testbeds": SETUP_PARTS / "orchestrator/tracebed/orchestrator/testbeds",
        "benchmarks": SETUP_PARTS / "benchmarks/tracebed/benchmarks",
    }
    used = set()
    for room, folder in folders.items():
        for path in folder.rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Attribute) and ast.unparse(node) in WALL_CLOCK:
                    used.add(f"{room}/{path.relative_to(folder)}")
    assert used == STAMPS


# -- a job that has lost a node ----------------------------------------------------------------------------------------


def two_jobs(first: dict[str, Any], second: dict[str, Any]) -> Workload:
    row = {"submit_time": 0.0, "run_time": 100.0, "time_limit": 1e4, "nodes": 1, "kind": "rigid"}
    rows = [{**row, "job_id": "a", **first}, {**row, "job_id": "b", **second}]
    return Workload(pd.DataFrame(rows))


def node_lost(sent: Said) -> Iterator[Said]:
    """Start a job on two nodes, lose the second one, and do not answer when the rank on the first is killed."""
    yield from until_sent(sent, "launch")
    yield [(0, {"type": "listening", "address": "there"})]
    yield from until_sent(sent, "launch", 2)
    yield [STARTED]
    yield [(1, {"type": "lost", "reason": "was cut off"})]
    yield from until_sent(sent, "kill")
    for _ in range(20):
        yield []


@dataclass(eq=False)
class Canceller:
    """A policy that cancels jobs that have lost a node."""

    malleable: ClassVar[bool] = False

    def decide(self, state: State) -> Iterator[Decision]:
        yield from [Start(job, state.jobs.nodes[job]) for job in state.queue.jobs()]
        if state.cluster.lost:
            yield from [Cancel(job, "incomplete") for job in state.size]


def test_a_job_that_is_cancelled_after_it_lost_a_node_does_not_return_to_the_queue(tmp_path: Path) -> None:
    def script(sent: Said) -> Iterator[Said]:
        yield from node_lost(sent)
        yield [ended(0, "killed")]

    work = Workload(two_jobs({"nodes": 2}, {}).table.head(1))
    run = carry_out(work, Canceller(), tmp_path, emulated(2), replaying(1.0), Scripted(script))
    assert run.jobs[["state", "reason", "restarts"]].to_numpy().tolist() == [["cancelled", "incomplete", 0]]


@pytest.mark.parametrize(
    ("kind", "reason"), [("kill_agent", "was killed by SIGKILL"), ("hang", "has been silent for 2 s")]
)
def test_a_lost_node_may_abort_the_replay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, reason: str
) -> None:
    monkeypatch.setattr(outages, "SILENCE", 2.0)
    options = replaying(SPEED, on_node_failure="abort")
    run = replay(workload(12), virtual(4), "fcfs", tmp_path / "run", **options, on_progress=striking([], kind))
    assert run.info.state == "interrupted"
    assert run.info.interruptions == [f"node n1: its agent {reason} (the run so far is kept)"]
    assert "requeue" not in {entry.kind for entry in entries_of(tmp_path)}
