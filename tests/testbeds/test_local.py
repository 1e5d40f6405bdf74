"""The local testbed: agents that start, are lost, hang, and end."""

from __future__ import annotations

import os
import statistics
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.servers.agents import hear, launch_message
from tracebed.benchmarks.program import Program
from tracebed.ground.errors import InputError, TestbedError
from tracebed.ground.system import World
from tracebed.orchestrator.testbeds import base, link, links, local
from tracebed.orchestrator.testbeds import testbed as module
from tracebed.orchestrator.testbeds.link import Link
from tracebed.orchestrator.testbeds.nodes import Inventory, Node
from tracebed.orchestrator.testbeds.testbed import AgentTestbed

CPUS = sorted(os.sched_getaffinity(0))

pytestmark = pytest.mark.usefixtures("no_process_is_left")


def inventory(*nodes: Node, emulated: int = 0, heartbeat_s: float = 1.0) -> Inventory:
    more = tuple(Node(f"n{i}", 4, 1, None, True) for i in range(emulated))
    return Inventory("test", "agents", nodes + more, heartbeat_s=heartbeat_s)


def launch(testbed: base.Testbed, node: int, job: str, units: int) -> None:
    message = launch_message(testbed.nodes[node].name, job, Program("pils", 0, units, 10, rate=1e6), cores=4)
    testbed.send(node, message | {"duty": testbed.nodes[node].duty_or(1)})


def test_emulated_nodes_start_run_and_stop(tmp_path: Path) -> None:
    testbed: base.Testbed = AgentTestbed(inventory(emulated=8), tmp_path)
    with testbed:
        assert [node.name for node in testbed.nodes] == [f"n{i}" for i in range(8)]
        assert testbed.units_per_core_second == base.EMULATED_RATE
        [host] = testbed.hosts
        assert host["name"] == os.uname().nodename and host["units_per_core_second"] == {}
        begun = time.monotonic()
        for node in range(8):
            launch(testbed, node, str(node), 1000)
        ended = [hear(testbed, "ended") for _ in range(8)]
        assert {(event.node, event.message["job"]) for event in ended} == {(i, str(i)) for i in range(8)}
        assert {event.message["state"] for event in ended} == {"completed"}
        for event in ended:
            assert begun < event.message["time"] <= event.time < time.monotonic()
    testbed.stop()  # a second stop has no effect
    assert {path.name for path in tmp_path.iterdir()} == {"agents", *(f"job-{i}" for i in range(8))}


def test_a_testbed_can_be_started_again(tmp_path: Path) -> None:
    testbed = AgentTestbed(inventory(emulated=1), tmp_path)
    for job in "ab":
        with testbed:
            launch(testbed, 0, job, 10)
            assert hear(testbed, "ended").message["state"] == "completed"


def test_the_rate_is_the_median_of_the_computing_nodes(tmp_path: Path) -> None:
    nodes = (*(Node(f"c{cpu}", 1, 1, (cpu,)) for cpu in CPUS[:2]), Node("e", 8, 1, None, True))
    with AgentTestbed(inventory(*nodes), tmp_path) as testbed:
        rates = testbed.hosts[0]["units_per_core_second"]
        assert rates.keys() == {f"c{cpu}" for cpu in CPUS[:2]}
        assert testbed.units_per_core_second == statistics.median(rates.values()) > 1000


def test_the_slow_kernel_gives_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACEBED_KERNEL", "numpy")
    nodes = (Node("c", 1, 1, (CPUS[0],)),)
    with (
        pytest.warns(UserWarning, match="slower NumPy kernel"),
        AgentTestbed(inventory(*nodes), tmp_path),
    ):
        pass


def test_cpus_that_do_not_exist_are_refused(tmp_path: Path) -> None:
    testbed = AgentTestbed(inventory(Node("far", 1, 1, (4000,))), tmp_path)
    with pytest.raises(InputError, match="'far' has CPUs that this process may not use: 4000"):
        testbed.start()


def test_receive_waits_until_its_deadline(tmp_path: Path) -> None:
    with AgentTestbed(inventory(emulated=1, heartbeat_s=3600.0), tmp_path) as testbed:
        for delay in (-1.0, 0.0, 0.0004, 0.003, 0.0205):
            until = time.monotonic() + delay
            assert testbed.receive(until) == []
            assert time.monotonic() >= until


def test_an_agent_that_does_not_read_does_not_block_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "UNSENT_LIMIT", 300_000)
    with AgentTestbed(inventory(emulated=1, heartbeat_s=3600.0), tmp_path) as testbed:
        lines, process = testbed._links[0].lines, psutil.Process(testbed.agents["n0"]["pid"])
        assert lines is not None
        process.suspend()
        message = {"type": "kill", "job": "x" * 1000, "reason": "none"}
        count = 200
        for _ in range(count):
            testbed.send(0, message)
        assert len(lines.unsent) > 100_000  # the pipe is full
        process.resume()
        for _ in range(count):
            hear(testbed, "error")
        assert not lines.unsent
        process.suspend()
        for _ in range(1000):
            testbed.send(0, message)
        lost = hear(testbed, "lost")
        assert lost.node == 0 and lost.message["reason"] == "has stopped reading messages"


def test_a_suspended_agent_is_killed_after_a_timeout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "END_S", 0.05)
    with AgentTestbed(inventory(emulated=2), tmp_path) as testbed:
        launch(testbed, 0, "j", 10**12)
        hear(testbed, "started")
        psutil.Process(testbed.agents["n0"]["pid"]).suspend()


def test_an_agent_that_cannot_start_names_its_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "AGENT", [sys.executable, "-c", "raise SystemExit('no such luck')"])
    with pytest.raises(TestbedError, match=r"node n\d: its agent ended with status 1: no such luck"):
        AgentTestbed(inventory(emulated=2), tmp_path).start()
    monkeypatch.setattr(local, "AGENT", ["/no/such/program"])
    with pytest.raises(TestbedError, match="cannot start agents"):
        AgentTestbed(inventory(emulated=2), tmp_path).start()


def test_an_agent_of_another_protocol_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "PROTOCOL", 3)
    with pytest.raises(TestbedError, match="protocol is 3, but this agent supports 2"):
        AgentTestbed(inventory(emulated=1), tmp_path).start()


def test_a_killed_process_that_does_not_end_is_not_waited_for_forever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that waits for a disk ends only when the disk answers."""
    monkeypatch.setattr(local, "KILL_S", 0.1)
    channel = local.LocalChannel(["sleep", "600"], tmp_path / "log")
    with monkeypatch.context() as patch:
        patch.setattr(os, "killpg", lambda group, number: None)
        channel.kill()
    assert channel.poll() is None
    channel.process.kill()
    channel.process.wait()


def test_a_silent_agent_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "AGENT", [sys.executable, "-c", "import sys; sys.stdin.read()"])
    monkeypatch.setattr(links, "START_S", 0.05)
    with pytest.raises(TestbedError, match=r"node n0: its agent did not start within 0\.25 s") as caught:
        AgentTestbed(inventory(emulated=1), tmp_path).start()
    assert caught.value.transient


def test_a_turn_does_not_look_at_every_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With thousands of nodes, most of the time of the start was spent on links on which nothing had happened."""
    looks: list[int] = []
    due = Link.due.fget
    assert due is not None

    def counted(link: Link) -> float | None:
        looks.append(link.index)
        return due(link)  # type: ignore[no-any-return]

    monkeypatch.setattr(Link, "due", property(counted))
    nodes = 12
    with AgentTestbed(inventory(emulated=nodes, heartbeat_s=3600.0), tmp_path):  # heartbeats are events too
        assert len(looks) < nodes**2  # about 6 for each node; a scan in each turn is about 3 for each pair of nodes


def test_the_start_waits_for_agents_also_when_others_have_sent_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Heartbeats of the first agents kept a CPU busy until the last agent was up."""
    with AgentTestbed(inventory(emulated=1), tmp_path) as testbed:
        waits: list[float] = []
        monkeypatch.setattr(World, "wait", lambda here, selector, until: waits.append(until) or {})
        testbed._links.events.append(base.Event(0, {"type": "heartbeat"}, time.monotonic()))
        testbed._links.turn(None)
        assert waits[0] > 0.0
        assert [event.message["type"] for event in testbed.receive(None)] == ["heartbeat"]
        assert waits[1] == 0.0
        monkeypatch.undo()


def test_pings_are_spread_over_the_heartbeat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Link, "ping", lambda link: pings.append(link.index))
    pings: list[int] = []
    with AgentTestbed(inventory(emulated=10, heartbeat_s=3600.0), tmp_path) as testbed:
        links = testbed._links
        pings.clear()
        start = links._ping_at
        for share in range(10):
            links._ping(start + share * 360.0)
            assert len(pings) == share + 1
        assert sorted(pings) == list(range(10))
        pings.clear()
        links._ping(start + 10 * 3600.0)  # after a decision of ten heartbeats, each node is pinged once
        assert sorted(pings) == list(range(10))
        assert links._ping_at > start + 10 * 3600.0
