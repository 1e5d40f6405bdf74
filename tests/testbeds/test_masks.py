"""The table of CPUs in an agent: guests wait for CPUs in the table, and a table that is lost harms no job."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
import pytest

from tests.patience import until
from tests.runs import replaying
from tests.servers.agents import FOREVER, Agent, stopped
from tracebed.benchmarks.affinity import strays, threads_of
from tracebed.benchmarks.drom import Administrator
from tracebed.benchmarks.node_table import NodeTable
from tracebed.benchmarks.program import Program
from tracebed.converters.workload import Workload
from tracebed.ground.cpus import format_cpus
from tracebed.orchestrator.replay.programs import AllowedCommand, AllowedCommands
from tracebed.orchestrator.replay.session import replay
from tracebed.orchestrator.testbeds.agent.spool import table_path
from tracebed.orchestrator.testbeds.local import AGENT
from tracebed.orchestrator.testbeds.nodes import Inventory, Node

pytestmark = pytest.mark.usefixtures("no_process_is_left")
SHORT_PARTS = FOREVER._replace(iterations=10**9)  # malleability points every few milliseconds
LONG_PARTS = FOREVER._replace(iterations=1)  # no malleability point


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    with Agent(tmp_path) as found:
        found.greet()
        yield found


def table_of(agent: Agent) -> Path:
    assert agent.sockets
    [path] = Path("/dev/shm").glob(f"{table_path(Path(agent.sockets)).name}*")
    return path


def held(agent: Agent) -> list[str]:
    """Return the CPUs that the processes of the node hold, in the order of their launches."""
    return [format_cpus(share.held) for share in Administrator(NodeTable(table_of(agent))).shares().values()]


def launch(agent: Agent, job: str, cpus: str, cores: int, work: Any = SHORT_PARTS) -> None:
    agent.launch(job, work, cpus=cpus, cores=cores)


def resize(agent: Agent, job: str, cpus: str, request: int) -> None:
    agent.tell({"type": "resize", "job": job, "cpus": cpus, "request": request})


def heard(agent: Agent, kind: str, **fields: Any) -> dict[str, Any]:
    """Return the first event with these fields, out of those that were heard already, or else the next one."""
    for message in agent.heard:
        if message["type"] == kind and fields.items() <= message.items():
            return message
    while not fields.items() <= (message := agent.hear(kind)).items():
        pass
    return message


def resized(agent: Agent, job: str, cpus: str, **fields: Any) -> dict[str, Any]:
    return heard(agent, "resized", job=job, cpus=cpus, **fields)


def test_a_guest_is_launched_at_once_and_starts_when_it_holds_its_cpus(agent: Agent) -> None:
    """Nothing but the launch of the guest is sent: its CPUs are taken from the owner, and return at its end."""
    launch(agent, "owner", "0-3", 4)
    agent.hear("started")
    launch(agent, "guest", "2-3", 2)
    gave = resized(agent, "owner", "0-1")
    began = heard(agent, "started", job="guest")
    assert (began["job"], gave["request"], gave["asked"]) == ("guest", None, None)
    assert gave["seen"] <= gave["decided"] <= gave["applied"]
    assert gave["decided"] <= began["time"]
    assert held(agent) == ["0-1", "2-3"]
    agent.tell({"type": "kill", "job": "guest", "reason": "enough"})
    assert heard(agent, "ended", job="guest")["state"] == "killed"
    assert resized(agent, "owner", "0-3")["request"] is None


def test_a_guest_waits_for_an_owner_that_does_not_reach_a_malleability_point(agent: Agent) -> None:
    launch(agent, "owner", "0-3", 4, LONG_PARTS)
    agent.hear("started")
    launch(agent, "guest", "2-3", 2)
    resize(agent, "owner", "0-1", 1)
    assert until(lambda: len(held(agent)) == 2)
    assert held(agent) == ["0-3", ""]
    agent.tell({"type": "kill", "job": "owner", "reason": "enough"})
    ended = heard(agent, "ended", job="owner")
    assert ended["time"] <= heard(agent, "started", job="guest")["time"]
    assert held(agent) == ["2-3"]


def test_the_last_of_several_masks_counts(agent: Agent) -> None:
    """The times of an answer are in order: the mask was set, then seen, then decided, then applied."""
    launch(agent, "a", "0-3", 4)
    agent.hear("started")
    for request, cpus in enumerate(("0", "1", "0-1", "2"), 1):
        resize(agent, "a", cpus, request)
    answer = resized(agent, "a", "2", request=4)
    assert answer["asked"] <= answer["decided"] <= answer["applied"]
    assert answer["seen"] <= answer["decided"]
    resize(agent, "a", "2", 4)  # repeated: ignored
    resize(agent, "a", "2", 5)  # already applied
    assert resized(agent, "a", "2", request=5)["asked"] is not None
    assert [message["request"] for message in agent.heard if message.get("cpus") == "2"] == [4, 5]


def test_a_rank_without_cpus_waits_until_it_holds_one(agent: Agent) -> None:
    launch(agent, "owner", "0-3", 4)
    agent.hear("started")
    launch(agent, "guest", "0-3", 4)
    assert resized(agent, "owner", "")
    assert until(lambda: [share for share in held(agent) if share] == ["0-3"])  # the guest takes what was given
    resize(agent, "owner", "0", 1)
    assert resized(agent, "owner", "0")["request"] == 1


def test_the_cpus_of_a_rank_that_dies_return_to_their_owner(agent: Agent) -> None:
    """Also if the rank was stopped while another rank waits for its CPUs."""
    launch(agent, "owner", "0-3", 4)
    agent.hear("started")
    launch(agent, "guest", "1-3", 3)
    assert heard(agent, "started", job="guest")
    owner, guest = agent.children()
    guest.send_signal(signal.SIGSTOP)
    resize(agent, "owner", "0-2", 1)
    guest.kill()
    assert heard(agent, "ended", job="guest")
    assert resized(agent, "owner", "0-2")["request"] == 1
    assert owner.is_running()


@pytest.mark.parametrize("harm", ["removed", "damaged", "truncated"])
def test_a_lost_table_is_replaced_and_harms_no_job(agent: Agent, harm: str) -> None:
    for job, cpus in (("a", "0-1"), ("b", "2-3")):
        launch(agent, job, cpus, 2)
        agent.hear("started")
    lost = table_of(agent)
    if harm == "removed":
        lost.unlink()
    elif harm == "truncated":
        os.truncate(lost, 0)
    else:
        with lost.open("r+b") as file:
            file.seek(24)
            size = lost.stat().st_size - 24
            file.write(b"\xff" * size)
    resize(agent, "a", "0", 1)
    assert "table of CPUs" in agent.hear("warning")["what"]
    assert resized(agent, "a", "0")["request"] == 1
    resize(agent, "b", "1-3", 2)
    assert resized(agent, "b", "1-3")["request"] == 2
    assert held(agent) == ["0", "1-3"]
    assert table_of(agent) != lost
    launch(agent, "c", "1", 1)
    assert heard(agent, "started", job="c")
    assert all(rank.is_running() for rank in agent.children())


def test_the_tables_of_an_agent_are_removed_with_it(agent: Agent) -> None:
    path = table_of(agent)
    assert path.stat().st_mode & 0o777 == 0o600 and path.stat().st_uid == os.geteuid()
    agent.tell({"type": "bye"})
    assert until(lambda: not psutil.pid_exists(agent.process.pid) or agent.process.poll() is not None)
    assert not path.exists()


# -- processes that do not keep to the CPUs of their job: they are put back, and the run says so -----------------------

CPUS = tuple(sorted(os.sched_getaffinity(0)))[:2]
NEEDS_TWO_CPUS = pytest.mark.skipif(len(CPUS) < 2, reason="needs two CPUs")
STRAYING = """
import os, time
os.sched_setaffinity(0, {mask})
while os.sched_getaffinity(0) == {mask}: time.sleep(0.01)
print(sorted(os.sched_getaffinity(0)), flush=True)
"""


OFTEN = """
from tracebed.orchestrator.testbeds.agent import masks
from tracebed.orchestrator.testbeds.agent.__main__ import main
masks.CHECK_S = 0.3
main([])
"""
"""An agent that checks the CPUs of threads more often."""


NODE = {"name": "n1", "cores": 2, "cpus": ",".join(map(str, CPUS)), "emulated": False}


@pytest.fixture
def bound(tmp_path: Path) -> Iterator[Agent]:
    with Agent(tmp_path, node=NODE) as bound:
        bound.greet()
        yield bound


@pytest.fixture
def checking(tmp_path: Path) -> Iterator[Agent]:
    with Agent(tmp_path, [*AGENT[:2], "-c", OFTEN], node=NODE) as bound:
        bound.greet()
        yield bound


@NEEDS_TWO_CPUS
def test_a_thread_outside_its_mask_is_put_back_and_reported(checking: Agent) -> None:
    low, high = CPUS
    checking.start("1", Program("pils", 0, 10**12, 10**6, rate=1e6), cpus=str(low), cores=1, duty=0.01)
    (rank,) = checking.children()
    assert not strays(rank.pid, [low])
    checker = psutil.Process(checking.process.pid)
    checker.suspend()  # it would report each of the threads alone
    assert stopped(checker)
    for thread in threads_of(rank.pid):
        os.sched_setaffinity(thread, CPUS)
    checker.resume()
    found = checking.hear("stray")
    assert {name: found[name] for name in ("job", "rank", "cpus", "put_back")} == {
        **{"job": "1", "rank": "n1"},
        **{"cpus": str(low), "put_back": True},
    }
    assert found["threads"] >= 2 and str(high) in found["used"]
    assert not strays(rank.pid, [low])
    checking.tell({"type": "resize", "job": "1", "cpus": str(high), "request": 1})
    checking.hear("resized")
    for thread in threads_of(rank.pid):
        os.sched_setaffinity(thread, [low])
    assert until(lambda: not strays(rank.pid, [high]))


@NEEDS_TWO_CPUS
@pytest.mark.slow
def test_ranks_that_follow_their_masks_are_not_reported(bound: Agent) -> None:
    bound.start("1", Program("pils", 0, 10**12, 10**6, rate=1e6), duty=0.01)
    for request in range(60):
        cpus = (CPUS[:1], CPUS[1:], CPUS)[request % 3]
        bound.tell({"type": "resize", "job": "1", "cpus": ",".join(map(str, cpus)), "request": request})
        bound.hear("resized")
    bound.tell({"type": "sample", "calibrate": False})
    bound.hear("heartbeat")
    assert "stray" not in [message["type"] for message in bound.heard]


@NEEDS_TWO_CPUS
@pytest.mark.slow
def test_the_run_names_the_jobs_that_left_their_cpus(tmp_path: Path) -> None:
    code = STRAYING.format(mask={CPUS[1]})
    command = AllowedCommand(arguments=[sys.executable, "-c", code])
    allowed = AllowedCommands("commands.yaml", "0" * 64, {"strays": command})
    table = {"job_id": "a", "submit_time": 0.0, "run_time": 1.0, "nodes": 1, "kind": "rigid", "application": "command"}
    table |= {"application_parameters": "name=strays"}
    workload = Workload(pd.DataFrame({name: [value] for name, value in table.items()}))
    inventory = Inventory("one", "agents", (Node("n1", 1, 1, (CPUS[0],), False, 1.0),))
    run = replay(workload, inventory, "fcfs", tmp_path / "run", **replaying(commands=allowed))
    what = f"job a on n1: a process changed its own CPU mask ({CPUS[1]} instead of {CPUS[0]})"
    assert what in run.info.warnings
    assert list(run.jobs["state"]) == ["completed"]
