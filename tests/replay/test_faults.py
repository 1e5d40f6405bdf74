"""Faults of jobs that share a node in a replay: other jobs are not harmed, cores return, and the run names the fault.

The first job lends a core to the second one, as a guest; the third job needs the whole node afterwards.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
import pytest

from tests.oracles.survival import tables_of
from tests.patience import GUARD_S, until
from tests.runs import COMPLETED_REASON, replaying
from tests.servers.agents import agents_of, gone
from tracebed.benchmarks.drom import Administrator
from tracebed.benchmarks.kernels import compute
from tracebed.benchmarks.node_table import NodeTable
from tracebed.converters.workload import Workload
from tracebed.orchestrator.replay import journal
from tracebed.orchestrator.replay.programs import AllowedCommand, AllowedCommands
from tracebed.orchestrator.replay.recovery import recovered
from tracebed.orchestrator.replay.session import replay
from tracebed.orchestrator.run import JOURNAL, Run
from tracebed.orchestrator.scheduling.limits import OverLimit
from tracebed.orchestrator.testbeds import links, local
from tracebed.orchestrator.testbeds.nodes import Inventory, Node
from tracebed.orchestrator.testbeds.testbed import AgentTestbed

pytestmark = pytest.mark.usefixtures("no_process_is_left", "cores_return")

CPUS = tuple(sorted(os.sched_getaffinity(0)))[:2]
DUTY = 0.2
SPEED = 100.0
"""Time after which a test gives up a replay, s."""
LONG = 1e6
"""Run time of a job that ends only by its fault, trace s."""
NEEDS_CPUS = pytest.mark.skipif(len(CPUS) < 2, reason="jobs that share a node need two CPUs")
KINDS = ["emulated", pytest.param("computing", marks=NEEDS_CPUS)]
JOBS = {
    "job_id": ["owner", "guest", "next"],
    "submit_time": [0.0, 20.0, 30.0],
    "run_time": [200.0, 100.0, 20.0],
    "time_limit": [8e6, 2e6, 2e6],  # a guest must be expected to end before its owner
    "nodes": 1,
    "nodes_min": 1,
    "nodes_max": 1,
    "cores_per_node": 2,
    "kind": ["malleable", "malleable", "rigid"],
}
VICTIM_MIB = 1
"""Memory of the job that is to fail inside its application, by which patched agents recognize it."""

Fault = Callable[[Mapping[str, psutil.Process]], None]
"""A function that disturbs ranks, given the rank of each running job."""


def inventory(kind: str = "emulated") -> Inventory:
    emulated = kind == "emulated"
    node = Node("n1", 2, 1, None if emulated else CPUS, emulated, None if emulated else DUTY)
    return Inventory("test", "agents", (node,), grain_s=0.02, heartbeat_s=0.2)


def jobs(run_times: Mapping[str, float] | None = None, **columns: Any) -> Workload:
    """Return the jobs, with other run times of some of them, and other columns."""
    table = pd.DataFrame(JOBS | columns)
    for name, seconds in (run_times or {}).items():
        table.loc[table["job_id"] == name, "run_time"] = seconds
    return Workload(table)


def agents() -> list[psutil.Process]:
    return agents_of(psutil.Process())


def ranks() -> dict[str, psutil.Process]:
    """Return the rank of each job that has written its heartbeat in an iteration."""
    found = {}
    for agent in agents():
        for rank in agent.children():
            with contextlib.suppress(psutil.Error, OSError):
                folder = Path(f"/proc/{rank.pid}/fd/1").readlink().parent
                if '"running"' in (folder / "n1.heartbeat.jsonl").read_text():
                    found[folder.name.removeprefix("job-")] = rank
    return found


def tables() -> list[Path]:
    """Return the tables of the running agents."""
    found = []
    for agent in agents():
        with contextlib.suppress(OSError):  # the agent has just ended
            for file in Path(f"/proc/{agent.pid}/fd").iterdir():
                with contextlib.suppress(OSError):  # the agent has just closed the file
                    found.append(file.readlink())
    return sorted({path for path in found if path.match("/dev/shm/tracebed-agent-*")})


@pytest.fixture
def cores_return(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Check that no process is in the table when all jobs have ended, and that no table is left after the replay."""
    stop, read_event, folders, checked = AgentTestbed.stop, links.read_event, list[str](), []

    def read(line: bytes) -> dict[str, Any]:
        event = read_event(line)
        folders.extend([event["sockets"]] if event["type"] == "hello" else [])
        return event

    def check(testbed: AgentTestbed) -> None:
        for path in tables() if testbed._launchers else []:
            shares = Administrator(NodeTable(path)).shares
            assert until(lambda shares=shares: not shares()), shares()
            checked.append(path)
        stop(testbed)

    monkeypatch.setattr(AgentTestbed, "stop", check)
    monkeypatch.setattr(links, "read_event", read)
    yield
    assert checked and folders
    assert until(lambda: not tables_of(folders)), tables_of(folders)


class Once:
    """A progress callback that disturbs the ranks as soon as all of `names` run."""

    def __init__(self, fault: Fault, *names: str) -> None:
        self.fault, self.names, self.done = fault, names or ("owner", "guest"), False
        self.until = time.monotonic() + GUARD_S

    def __call__(self, ended: int) -> None:
        assert time.monotonic() < self.until, f"only the jobs {[*ranks()]} run"
        if not self.done and (found := ranks()).keys() >= set(self.names):
            self.done = True
            self.fault(found)


def patch_agents(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Let agents run `code` first."""
    program = f"{code}\nfrom tracebed.orchestrator.testbeds.agent.__main__ import main\nmain([])"
    monkeypatch.setattr(local, "AGENT", [sys.executable, "-P", "-c", program])


def carry_out(folder: Path, work: Workload, fault: Fault | None = None, kind: str = "emulated", **options: Any) -> Run:
    """Replay the jobs, disturb them, and check that the journal gives the same run."""
    disturb = Once(fault) if fault else None
    path = folder / "run"
    run = replay(
        work,
        inventory(kind),
        "sd",
        path,
        policy_parameters={"max_slowdown": "inf"},
        **replaying(SPEED, **options),
        on_progress=disturb,
    )
    assert disturb is None or disturb.done
    again = recovered(path / JOURNAL)
    pd.testing.assert_frame_equal(again.jobs, run.jobs)
    assert again.info.warnings == run.info.warnings
    return run


def assert_unharmed(run: Run, folder: Path, *names: str, kind: str = "emulated") -> None:
    """Check that jobs have done all their work, and that its result is right."""
    states = run.jobs.set_index("job_id")
    entries = list(journal.read(folder / "run" / JOURNAL)[1])
    for name in names:
        assert states["state"][name] == "completed", name
        assert re.fullmatch(COMPLETED_REASON, states["reason"][name]), name
        units = sum(entry.data["units_done"] for entry in entries if (entry.kind, entry.job) == ("ended", name))
        assert units > 0
        if kind == "computing":
            checksum = compute(0, int(DUTY * units))
            assert states["checksum"][name] == f"{checksum:016x}"


def assert_failed(run: Run, name: str, reason: str) -> None:
    """Check the end of a job, and that the health of the run counts it."""
    job = run.jobs.set_index("job_id").loc[name]
    assert job["state"] == "failed"
    assert reason in job["reason"]
    [cause] = [cause for cause in run.info.health["causes"] if cause["signal"] == "jobs_disturbed"]
    assert "1 of 3 jobs failed" in cause["text"]


def causes(run: Run) -> list[tuple[str, str]]:
    return list(run.core_changes[["job_id", "cause"]].itertuples(index=False, name=None))


# -- processes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "victim"),
    [
        ("emulated", "owner"),
        ("emulated", "guest"),
        pytest.param("computing", "owner", marks=[NEEDS_CPUS, pytest.mark.slow]),
        pytest.param("computing", "guest", marks=[NEEDS_CPUS, pytest.mark.slow]),
    ],
)
def test_a_killed_job_gives_its_cores_to_the_other_job(tmp_path: Path, kind: str, victim: str) -> None:
    other = {"owner": "guest", "guest": "owner"}[victim]
    run = carry_out(tmp_path, jobs({victim: LONG}), lambda found: found[victim].kill(), kind)
    assert_failed(run, victim, "was killed by signal 9 (Killed)")
    assert_unharmed(run, tmp_path, other, "next", kind=kind)
    assert causes(run) == [("owner", "lend"), (other, "return" if other == "owner" else "inherit")]


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["owner", "guest"])
def test_a_stopped_rank_is_reported_and_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, victim: str) -> None:
    patch_agents(monkeypatch, "from tracebed.orchestrator.testbeds.agent import jobs; jobs.HALT_S = 0.5")
    run = carry_out(tmp_path, jobs(), lambda found: found[victim].suspend())
    assert_unharmed(run, tmp_path, "owner", "guest", "next")
    [warning] = run.info.warnings
    assert warning.startswith(f"job {victim} on n1: its process was stopped by a signal for ")
    assert float(warning.split()[-2]) >= 0.5


@pytest.mark.slow
def test_a_stopped_rank_is_killed_at_the_limit_of_its_job(tmp_path: Path) -> None:
    work = jobs({"guest": LONG}, time_limit=[8e6, 120.0, 2e6])
    run = carry_out(tmp_path, work, lambda found: found["guest"].suspend(), over_limit=OverLimit.KILL)
    assert_unharmed(run, tmp_path, "owner", "next")
    assert run.jobs.set_index("job_id").loc["guest", ["state", "reason"]].tolist() == ["killed", "time limit"]
    assert "job guest on n1: its process was stopped by a signal and did not continue" in run.info.warnings


# -- inside the application --------------------------------------------------------------------------------------------

AT_START = f"""
from tracebed.benchmarks.applications.kernels import Pils
kernel = Pils.kernel
def fail(self, program):
    if program.memory_mib == {VICTIM_MIB}:
        raise ZeroDivisionError("the input has no cells")
    return kernel(self, program)
Pils.kernel = fail
"""
IN_A_THREAD = f"""
from tracebed.benchmarks.applications.kernels import Pils
from tracebed.benchmarks.kernels import compute
def die(first, count):
    if first > 100:
        raise {{error}}("no more")
    return compute(first, count)
Pils.kernel = lambda self, program: die if program.memory_mib == {VICTIM_MIB} else compute
"""
TOO_LARGE = "kept = b'x' * 2**27; import time; time.sleep(600)"
LONG_GUEST = {"run_time": [200.0, LONG, 20.0]}


def commanding(*arguments: str) -> dict[str, Any]:
    """Return the columns of jobs of which the guest is a command, and the option that allows it."""
    columns = {"application": ["pils", "command", "pils"], "memory_mib": [0.0, 64.0, 0.0]}
    columns["application_parameters"] = ["", "name=it backend=affinity", ""]
    allowed = {"it": AllowedCommand(arguments=list(arguments))}
    return columns | {"commands": AllowedCommands("commands.yaml", "0" * 64, allowed)}


DEATH = "RuntimeError: a worker thread was ended by SystemExit: no more"
NOT_FOUND = "the command cannot be started: [Errno 2] No such file or directory"


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS[1:])
@pytest.mark.parametrize(
    ("code", "columns", "reason"),
    [
        pytest.param(AT_START, {}, "ZeroDivisionError: the input has no cells", id="crashes at its start"),
        pytest.param(IN_A_THREAD.format(error="MemoryError"), LONG_GUEST, "MemoryError: no more", id="a full memory"),
        pytest.param(IN_A_THREAD.format(error="SystemExit"), LONG_GUEST, DEATH, id="a worker thread dies"),
        pytest.param(
            "", {"memory_mib": [0.0, 1e9, 0.0]}, "the rank needs 1000000000 MiB, and the node has ", id="memory"
        ),
        pytest.param("", commanding("/no/such/program"), NOT_FOUND, id="no such command"),
        pytest.param(
            "", commanding(sys.executable, "-c", TOO_LARGE), "out of memory: the command used ", id="too large"
        ),
    ],
)
def test_a_job_that_fails_inside_its_application_harms_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, code: str, columns: dict[str, Any], reason: str
) -> None:
    if code:
        patch_agents(monkeypatch, code)
    given = {"memory_mib": [0.0, VICTIM_MIB, 0.0]} | columns
    options = {"commands": given.pop("commands")} if "commands" in given else {}
    run = carry_out(tmp_path, jobs(**given), kind=kind, **options)
    assert_failed(run, "guest", reason)
    assert_unharmed(run, tmp_path, "owner", "next", kind=kind)


def test_a_full_disk_costs_records_and_no_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start = AgentTestbed.start

    def fill_disk(testbed: AgentTestbed, adopt: Any = None) -> None:
        start(testbed, adopt)
        folder = testbed.spool / "job-guest"
        folder.mkdir()
        for name in ("n1.out", "n1.heartbeat.jsonl"):
            (folder / name).symlink_to("/dev/full")

    monkeypatch.setattr(AgentTestbed, "start", fill_disk)
    run = carry_out(tmp_path, jobs())
    assert_unharmed(run, tmp_path, "owner", "guest", "next")


@pytest.mark.slow
def test_the_reason_of_a_failure_is_known_although_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank whose heartbeat cannot be created."""
    start = AgentTestbed.start

    def fill_disk(testbed: AgentTestbed, adopt: Any = None) -> None:
        start(testbed, adopt)
        folder = testbed.spool / "job-guest"
        folder.mkdir()
        (folder / "n1.out").symlink_to("/dev/full")
        (folder / "n1.heartbeat.jsonl").symlink_to("/proc/no-such-file")

    monkeypatch.setattr(AgentTestbed, "start", fill_disk)
    run = carry_out(tmp_path, jobs())
    assert_failed(run, "guest", "FileNotFoundError: [Errno 2] No such file or directory: ")
    assert_unharmed(run, tmp_path, "owner", "next")


# -- the agent and its table -------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("treatment", ["requeue", "fail"])
def test_an_agent_that_is_killed_while_masks_change_loses_no_core(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, treatment: str
) -> None:
    """It is killed before it changes the mask of the owner."""
    send, killed = AgentTestbed.send, []

    def kill_at_change(testbed: AgentTestbed, node: int, message: Mapping[str, Any]) -> None:
        if message["type"] == "resize" and not killed:
            agent = psutil.Process(testbed.agents["n1"]["pid"])
            killed.extend(zip([agent], tables(), strict=True))
            agent.send_signal(signal.SIGSTOP)
            send(testbed, node, message)
            agent.kill()
        else:
            send(testbed, node, message)

    monkeypatch.setattr(AgentTestbed, "send", kill_at_change)
    run = carry_out(tmp_path, jobs(), on_node_failure=treatment)
    [(agent, table)] = killed
    assert gone(agent) and not table.exists()
    [outage] = run.info.outages
    assert outage["reason"] == "its agent was killed by SIGKILL" and outage["until"] is not None
    if treatment == "requeue":
        assert_unharmed(run, tmp_path, "owner", "guest", "next")
        assert run.jobs["restarts"].tolist() == [1, 1, 0]
    else:
        assert_unharmed(run, tmp_path, "next")
        states = run.jobs.set_index("job_id").loc[["owner", "guest"], ["state", "reason"]]
        assert set(states.itertuples(index=False, name=None)) == {
            ("failed", "node n1 was lost: its agent was killed by SIGKILL")
        }
    assert {"agents_lost", "jobs_disturbed"} <= {cause["signal"] for cause in run.info.health["causes"]}


def remove(table: Path) -> None:
    table.unlink()


def damage(table: Path) -> None:
    with table.open("r+b") as file:
        file.seek(24)
        file.write(b"\xff" * (table.stat().st_size - 24))


def truncate(table: Path) -> None:
    os.truncate(table, 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("harm", "kind"),
    [(remove, "emulated"), (damage, "emulated"), pytest.param(truncate, "computing", marks=NEEDS_CPUS)],
)
def test_a_table_that_is_lost_in_a_replay_harms_no_job(tmp_path: Path, harm: Callable[[Path], None], kind: str) -> None:
    """A second guest is launched afterwards, in the other table."""
    work = jobs({"owner": 400.0}, kind="malleable", submit_time=[0.0, 20.0, 150.0])
    run = carry_out(tmp_path, work, lambda found: harm(tables()[0]), kind)
    assert_unharmed(run, tmp_path, "owner", "guest", "next", kind=kind)
    assert "node n1: the table of CPUs was removed or damaged; the ranks continue with another table" in (
        run.info.warnings
    )
    assert not run.info.outages and not run.jobs["restarts"].any()
    assert [cause for _, cause in causes(run)] == ["lend", "return"] * 2
