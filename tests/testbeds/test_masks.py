"""The table of CPUs in an agent: guests wait for CPUs in the table, and a table that is lost harms no job."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.patience import until
from tests.servers.agents import FOREVER, Agent
from tracebed.benchmarks.drom import Administrator
from tracebed.benchmarks.node_table import NodeTable
from tracebed.ground.cpus import format_cpus
from tracebed.orchestrator.testbeds.agent.spool import table_path

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
