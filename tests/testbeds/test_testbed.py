"""The testbed of agents: nodes of several providers, clocks, lost agents, agents that are taken over."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.oracles.redecided import workload
from tests.patience import GUARD_S, patience
from tests.runs import replaying
from tests.servers import namespaces
from tests.servers.agents import gone, hear, hear_all, hear_ends, launch_message
from tests.servers.namespaces import OFFSET_S, needs_namespaces
from tracebed.benchmarks.lines import Lines
from tracebed.benchmarks.program import Program
from tracebed.converters.workload import Workload
from tracebed.ground import system
from tracebed.ground.errors import TestbedError, TracebedError
from tracebed.orchestrator.replay import journal
from tracebed.orchestrator.replay.monitor import growth
from tracebed.orchestrator.replay.session import replay
from tracebed.orchestrator.run import JOURNAL, Run
from tracebed.orchestrator.testbeds import link as link_module
from tracebed.orchestrator.testbeds.checking.health import _between
from tracebed.orchestrator.testbeds.checking.survey import NodeReport, survey
from tracebed.orchestrator.testbeds.launcher import Launcher, concurrently
from tracebed.orchestrator.testbeds.link import Link
from tracebed.orchestrator.testbeds.links import ATTACHES, Links, read_event
from tracebed.orchestrator.testbeds.local import AGENT, LocalChannel, LocalProvider
from tracebed.orchestrator.testbeds.nodes import AGENTS, Inventory, Node
from tracebed.orchestrator.testbeds.testbed import AgentTestbed
from tracebed.testing import check_provider

pytestmark = pytest.mark.usefixtures("no_process_is_left")


@pytest.fixture
def provider() -> Iterator[None]:
    with namespaces.installed():
        yield


def inventory(here: int = 0, there: int = 0, **parameters: Any) -> Inventory:
    """Return `here` emulated nodes on this machine, and `there` ones in namespaces."""
    local = [Node(f"n{number}", 2, emulated=True) for number in range(here)]
    far = [Node(f"far{number}", 2, emulated=True, provider="namespace") for number in range(there)]
    return Inventory("test", AGENTS, (*local, *far), grain_s=0.02, **{"heartbeat_s": 0.2, **parameters})


def launch(testbed: AgentTestbed, node: int, job: str, units: int, **changes: Any) -> None:
    message = launch_message(testbed.nodes[node].name, job, Program("pils", 0, units, 10, rate=1e6), cores=2)
    testbed.send(node, message | {"family": testbed.family} | changes)


def works(testbed: AgentTestbed, node: int, job: str) -> None:
    """Check that a job completes on the node."""
    begun = time.monotonic()
    launch(testbed, node, job, 1000)
    ended = hear(testbed, "ended", node)
    assert (ended.message["job"], ended.message["state"]) == (job, "completed"), ended.message
    assert begun - testbed._links[node].clock.error_s < ended.message["time"] <= ended.time <= time.monotonic()


def test_an_event_arrives_when_it_has_been_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An event that was sent while the controller was about to read had happened after its arrival."""
    receive, ready = Lines.receive, list[float]()

    def read_late(lines: Lines) -> list[bytes]:
        ready.append(time.monotonic())
        return receive(lines)

    monkeypatch.setattr(Lines, "receive", read_late)
    with AgentTestbed(inventory(here=1), tmp_path / "spool") as testbed:
        launch(testbed, 0, "a", 1000)
        assert hear(testbed, "ended").time > ready[-1]


@needs_namespaces
@pytest.mark.slow
def test_nodes_with_other_clocks_and_networks_pass_the_checks(provider: None) -> None:
    check_provider(namespaces.NamespaceProvider)


class Awkward(LocalProvider):
    """A provider whose channels raise errors that the testbed does not know."""

    def run(self, node: Node, arguments: Any) -> LocalChannel:
        channel = super().run(node, arguments)
        channel.exit_reason = lambda: {}["status"]  # type: ignore[assignment]
        return channel


def test_an_error_of_a_provider_does_not_leave_the_node_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "PAUSE_S", 0.05)
    monkeypatch.setattr("tracebed.orchestrator.testbeds.local.LocalProvider", Awkward)
    with AgentTestbed(inventory(here=1), tmp_path / "spool") as testbed:
        psutil.Process(testbed.agents["n0"]["pid"]).kill()
        assert hear(testbed, "lost").message["reason"] == "cannot be ended: 'status'"
        hear(testbed, "back")
        works(testbed, 0, "a")


def test_calls_at_once_have_no_errors_but_their_own() -> None:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(1000):
            assert concurrently([lambda: time.sleep(0)] * 16, 8) == []
    finally:
        sys.setswitchinterval(before)


LIAR = """
import json, sys
hello = json.loads(sys.stdin.readline())
facts = {"version": "1", "pid": 1, "sockets": "/nowhere", "attach": None, "adopted": [], "host": {}}
print(json.dumps({"type": "hello", "time": 0.0, "units_per_core_second": None, **facts}), flush=True)
for line in sys.stdin:
    if '"sample"' in line:
        sys.stdout.write(sys.argv[1])
        sys.stdout.flush()
"""
"""An agent that answers the request for a sample with its argument."""


def lie(monkeypatch: pytest.MonkeyPatch, *command: str) -> None:
    """Let the agents of this machine be the program `LIAR`, or another one."""

    class Lying(LocalProvider):
        def run(self, node: Node, arguments: Any) -> LocalChannel:
            return LocalChannel([sys.executable, "-c", *command], self.folder / "log")

    monkeypatch.setattr("tracebed.orchestrator.testbeds.local.LocalProvider", Lying)


@pytest.mark.parametrize(
    "line",
    [
        "no message",
        '{"type": ["heartbeat"], "time": 0}',
        '{"type": "heartbeat", "time": 0, "sample": null}',
        '{"type": "heartbeat", "time": 0, "sample": {}, "ping": {"sent": 0}}',
        '{"type": "heartbeat", "sample": {}}',
        '{"type": "heartbeat", "time": 0, "sample": {"cpu_s": "1"}}',
        '{"type": "heartbeat", "time": 0, "sample": {"host": {"busy_s": [1]}}}',
        '{"type": "heartbeat", "time": 0, "sample": {"host": 1}}',
        '{"type": "heartbeat", "time": 0, "sample": {"busy_s": 1, "steal_s": 1}}',
        '{"type": "heartbeat", "time": 0, "sample": {"cpu_s": 1, "busy_s": 1}}',
        '{"type": "heartbeat", "time": 0, "sample": {"cpu_s": 1, "host": {"busy_s": 1}}}',
        '{"type": "heartbeat", "time": 0, "sample": {"cpu_s": 1, "host": {"cpus": 0}}}',
        '{"type": "heartbeat", "time": 0, "late_s": null, "sample": {"cpu_s": 1}}',
        '{"type": "work", "time": 0, "job": "a", "rank": "n0", "samples": [7]}',
        '{"type": "ended", "time": 0, "job": ["a"], "rank": "n0", "leader": true, "state": "killed", "reason": ""}',
        '{"type": "ended", "time": 0, "job": "a", "rank": "n0"}',
        '{"type": "lost", "time": 0}',
        '{"type": "back", "time": 0}',
        '{"type": "error", "time": 0}',
        '{"type": "facts", "time": 0, "facts": {"cpus": "0"}}',
    ],
)
def test_an_invalid_event_is_an_error_of_its_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    lie(monkeypatch, LIAR, f"{line}\n")
    with AgentTestbed(inventory(here=1), tmp_path / "spool") as testbed:
        testbed.send(0, {"type": "sample", "calibrate": False})
        found = hear(testbed, "error").message
        assert found == {"type": "error", "what": f"its agent wrote an invalid message: {line.encode()!r}"}


@pytest.mark.parametrize(
    "host",
    [
        "[]",
        '{"name": ["n0"]}',
        '{"boot_id": 1}',
        '{"cpus": "4"}',
        '{"clocks": 1}',
        '{"nodes": "n0"}',
        '{"units_per_core_second": 5}',
    ],
)
def test_an_invalid_hello_is_an_error_of_its_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    """The facts of the host are merged with those that the testbed adds."""
    lie(monkeypatch, LIAR.replace("{}}", f"{host}}}"))
    with pytest.raises(TestbedError, match=r"node n0: its agent wrote an invalid message: b'\{"):
        AgentTestbed(inventory(here=1), tmp_path / "spool").start()


HELLO = {
    **{"type": "hello", "time": 0.0, "version": "1", "pid": 1, "sockets": "/s", "attach": None, "adopted": ["a"]},
    "host": {"name": "h", "cpus": 2, "memory_mib": 5.0, "boot_id": None},
    "units_per_core_second": 1.0,
}
BEAT = {
    **{"type": "heartbeat", "time": 0.0, "jobs": ["a"], "late_s": 0.1, "ping": {"sent": 1.0, "received": 2.0}},
    "sample": {"cpu_s": 1.0, "busy_s": 2.0, "steal_s": 0.0, "host": {"cpus": 2, "busy_s": None, "cpu": 0.5}},
}
ANY = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.floats(allow_nan=False) | st.sampled_from(["", "h", "nodes"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["cpus", "nodes", "name"]), inner),
    max_leaves=4,
)


@given(st.data())
def test_any_change_of_an_event_is_refused_or_can_be_used(data: st.DataObject) -> None:
    """An agent that was modified by the user of its node must not end the controller by a wrong field."""
    event = json.loads(json.dumps(data.draw(st.sampled_from([HELLO, BEAT]))))
    places = [
        event,
        *(value for value in event.values() if isinstance(value, dict)),
        event.get("sample", {}).get("host"),
    ]
    place = data.draw(st.sampled_from([place for place in places if place]))
    place[data.draw(st.sampled_from([*place, "nodes", "clocks"]))] = data.draw(ANY)
    event["type"] = "hello" if "version" in event else "heartbeat"
    read = read_event(json.dumps(event).encode())
    if read["type"] == "error":
        return
    node = Node("n0", 1, emulated=True)
    testbed = AgentTestbed(Inventory("test", AGENTS, (node,)), Path("/nowhere"))
    provider = LocalProvider(testbed.inventory.groups[0], Path("/nowhere"), print)
    link = Link(0, node, Launcher(provider, lambda call: None), first=True)
    testbed._links._links.append(link)
    if read["type"] == "hello":
        link.handle_hello(read)
        assert [host["tracebed"] for host in testbed.hosts] == [read["version"]]
        assert link.facts()["pid"] == read["pid"]
        return
    link.echo(read, 3.0)
    growth(read["sample"] | {"time": 0.0}, read["sample"] | {"time": 1.0}, "host", "cpus")
    report = NodeReport(Node("n0", 1, cpus=(0,)), "g", samples=[(0.0, read["sample"]), (1.0, read["sample"])])
    assert set(_between(report, 1)) <= {"outside_load", "steal"}


def test_a_provider_that_refuses_its_group_leaves_nothing_of_another(tmp_path: Path) -> None:
    nodes = Node("n0", 1, emulated=True), Node("n1", 1, emulated=True, provider="absent")
    with pytest.raises(TracebedError, match="absent"):
        AgentTestbed(Inventory("test", AGENTS, nodes), tmp_path / "spool").start()


class Partial(LocalProvider):
    """Nodes on this machine, of which one cannot be made ready, so that `up` fails."""

    attempts = 0

    def up(self) -> None:
        type(self).attempts += 1
        raise TestbedError("cannot be reached", where="node n9")


def test_nodes_that_are_ready_do_not_wait_for_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracebed.orchestrator.testbeds.local.LocalProvider", Partial)
    with AgentTestbed(inventory(here=3), tmp_path / "spool", drain=True) as testbed:
        assert testbed.agents.keys() == {"n0", "n1", "n2"}
    assert Partial.attempts == 1


class Waiting(LocalProvider):
    """Nodes on this machine that wait for a process in `up`."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.process = subprocess.Popen(["sleep", "3600"])

    def up(self) -> None:
        os.kill(os.getpid(), signal.SIGUSR1)  # as Ctrl-C while the testbed waits
        if self.process.wait():
            raise TestbedError("was interrupted")

    def interrupt(self) -> None:
        self.process.kill()


def test_a_start_that_waits_can_be_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tracebed.orchestrator.testbeds.local.LocalProvider", Waiting)
    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            AgentTestbed(inventory(here=1), tmp_path / "spool").start()
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.slow
def test_the_local_provider_passes_the_checks() -> None:
    check_provider(LocalProvider)


class Careless(LocalProvider):
    """A provider that does not end its agents."""

    def run(self, node: Node, arguments: Any) -> LocalChannel:
        channel = super().run(node, arguments)
        channel.close = lambda: None  # type: ignore[method-assign]
        return channel


class Elsewhere(LocalProvider):
    """A provider whose files do not arrive."""

    shared = False

    def spool(self, node: Node) -> str:
        return tempfile.mkdtemp(dir=self.folder)


class Forgetful(LocalProvider):
    """A provider that makes everything again."""

    def up(self) -> None:
        self.made = True


class Open(LocalProvider):
    """A provider whose ranks would listen everywhere."""

    def bind(self, node: Node) -> str | None:
        return "0.0.0.0"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("broken", "rule"),
    [
        (Careless, "`close` closes the input of the agent"),
        (Elsewhere, "`fetch` copies the files of jobs"),
        (Forgetful, "`up` leaves nodes that are ready as they are"),
        (Open, "`bind` returns None or an IPv4 address of the node, but returned '0.0.0.0'"),
    ],
)
def test_a_provider_that_breaks_a_rule_fails_the_checks(broken: type[LocalProvider], rule: str) -> None:
    with pytest.raises(AssertionError, match=re.escape(rule)):
        check_provider(broken, patience_s=patience(3.0))


def test_agents_report_the_identity_of_their_kernel(tmp_path: Path) -> None:
    """Nodes of one machine are found by it: containers have host names of their own."""
    with AgentTestbed(inventory(here=1), tmp_path / "spool") as testbed:
        [link] = testbed._links
        assert link.hello["host"]["boot_id"] == system.current().boot_id() is not None
        [host] = testbed.hosts
        assert "boot_id" not in host


@needs_namespaces
def test_times_of_other_clocks_are_times_of_this_machine(provider: None, tmp_path: Path) -> None:
    with AgentTestbed(inventory(there=2), tmp_path / "spool") as testbed:
        assert testbed.family == "AF_INET"
        [host] = testbed.hosts  # all namespaces are on this machine
        assert host["name"] == os.uname().nodename and "boot_id" not in host
        for number in (1, 2):
            clock = host["clocks"][f"far{number - 1}"]
            assert abs(clock["offset_s"] - OFFSET_S * number) <= 0.01 + clock["round_trip_s"]
        for node in (0, 1):
            works(testbed, node, f"job {node}")
        beats = {0: [], 1: []}  # type: dict[int, list[Event]]
        while min(map(len, beats.values())) < 3:
            beat = hear(testbed, "heartbeat")
            beats[beat.node].append(beat)
        events = beats[0] + beats[1]
        assert all(abs(event.time - event.message["time"]) < OFFSET_S / 2 for event in events)
        assert len({event.node for event in events if "host" in event.message["sample"]}) == 1  # of one machine
    # The files of the nodes were copied here.
    assert (tmp_path / "spool" / "job-job%200" / "far0.out").exists()
    assert not (tmp_path / "spool" / "made").exists()


@needs_namespaces
def test_what_was_made_before_is_not_taken_down(provider: None, tmp_path: Path) -> None:
    nodes = inventory(there=1)
    before = namespaces.NamespaceProvider(nodes.groups[0], tmp_path, print)
    before.up()
    try:
        with AgentTestbed(nodes, tmp_path / "spool"):
            pass
        assert Path("/run/netns", before.tag).exists()
    finally:
        before.down()


def release_locks(killed: AgentTestbed) -> None:
    """Release the locks of the nodes, as the kernel does for a killed process."""
    for use in killed._locks.values():
        use.release()


@contextlib.contextmanager
def taken_over(killed: AgentTestbed) -> Iterator[AgentTestbed]:
    """Yield a testbed that has taken over the agents of a killed one."""
    facts = json.loads(json.dumps(killed.agents))
    release_locks(killed)
    resumed = AgentTestbed(killed.inventory, killed.spool)
    try:
        resumed.start(facts)  # the agents leave their first testbed
        yield resumed
    finally:
        resumed.stop()
        for link in killed._links:
            link.disconnect()()


def let_continue(resumed: AgentTestbed) -> None:
    """Continue the ranks that agents hold for a testbed, which has taken them over."""
    for number, node in enumerate(resumed.nodes):
        if node.name in resumed.held:
            resumed.send(number, {"type": "continue", "left_out_s": 0.0})


class Unreliable(LocalProvider):
    """Nodes whose agents can be taken over only at the last attempt."""

    attempts = 0

    def run(self, node: Node, arguments: Any) -> LocalChannel:
        if arguments and Unreliable.attempts < ATTACHES - 1:
            Unreliable.attempts += 1
            return LocalChannel(["sh", "-c", "echo no slot >&2; exit 1"], self.folder / "attach.log")
        return super().run(node, arguments)


def test_an_agent_is_taken_over_though_the_first_commands_to_attach_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step of Slurm that failed once cost a running job: its agent was given up at once."""
    monkeypatch.setattr("tracebed.orchestrator.testbeds.local.LocalProvider", Unreliable)
    killed = AgentTestbed(inventory(here=1, linger_s=GUARD_S), tmp_path / "spool")
    killed.start()
    launch(killed, 0, "j", 10**12)
    hear(killed, "started")
    with taken_over(killed) as resumed:
        assert (Unreliable.attempts, resumed.adopted) == (ATTACHES - 1, {"n0": ["j"]})


@needs_namespaces
def test_a_relayed_job_on_far_nodes_survives_the_loss_of_its_testbed(provider: None, tmp_path: Path) -> None:
    """Clocks of far nodes are measured first. The bytes that their agents repeat meanwhile were discarded."""
    nodes = inventory(there=2, network="agents")
    testbeds = [AgentTestbed(nodes, tmp_path / "spool")]
    testbeds[0].start()
    program = Program("pils", 0, 400_000, 100, rate=1e6)
    try:
        launch(testbeds[0], 0, "j", 0, members=["far0", "far1"], program=program._asdict())
        address = hear(testbeds[0], "listening").message["address"]
        launch(testbeds[0], 1, "j", 0, leader=False, address=address, program=program._asdict())
        hear(testbeds[0], "started")
        for _ in range(3):  # a testbed that receives nothing relays nothing, and the job waits for its bytes
            facts = json.loads(json.dumps(testbeds[-1].agents))
            release_locks(testbeds[-1])
            testbeds.append(AgentTestbed(nodes, tmp_path / "spool"))
            testbeds[-1].start(facts)
            assert testbeds[-1].adopted == {"far0": ["j"], "far1": ["j"]}
            let_continue(testbeds[-1])
            testbeds[-1].receive(time.monotonic())
        ended = hear_ends(testbeds[-1], 2)
        assert {event["state"] for event in ended} == {"completed"}, ended
        assert sum(event["units_done"] for event in ended) == 400_000
    finally:
        testbeds[-1].stop()
        for link in [link for testbed in testbeds[:-1] for link in testbed._links]:
            link.disconnect()()


@pytest.fixture
def blocked(provider: None, tmp_path: Path) -> Iterator[Inventory]:
    """Return nodes that are up and cannot reach each other: the network discards what one of them receives."""
    nodes = inventory(there=3)
    made = namespaces.NamespaceProvider(nodes.groups[0], tmp_path, print)
    made.up()
    namespaces.ip("-n", made.tag, "link", "set", "port2", "down")
    try:
        yield nodes
    finally:
        made.down()


@needs_namespaces
def test_ranks_connect_through_the_agents_if_the_network_is_blocked(blocked: Inventory, tmp_path: Path) -> None:
    """With containers, stale rules of a firewall made each job of several nodes fail after ten seconds."""
    killed = AgentTestbed(blocked, tmp_path / "spool")
    with pytest.warns(UserWarning, match=r"go through the agents: far\d: no connection to 10\.77\.0\.\d port \d+: .+"):
        killed.start()
    assert killed.family == "agents"
    namespaces.ip("-n", namespaces.tag(), "link", "set", "port2", "up")
    with taken_over(killed) as resumed:
        assert resumed.family == "agents"  # that of the ranks that are running
        assert set(resumed.adopted) == {"far0", "far1", "far2"}


@needs_namespaces
def test_a_replay_completes_if_the_network_is_blocked(blocked: Inventory, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="go through the agents"):
        run = replay(workload(4, nodes=3), blocked, "pref", tmp_path / "run", **replaying(speed=400))
    assert set(run.jobs["state"]) == {"completed"}, run.jobs["reason"].tolist()
    assert run.jobs["nodes"].max() > 1


@needs_namespaces
def test_a_blocked_network_is_an_error_if_tcp_is_required(blocked: Inventory, tmp_path: Path) -> None:
    testbed = AgentTestbed(dataclasses.replace(blocked, network="tcp"), tmp_path / "spool")
    with pytest.raises(TestbedError, match=r"cannot reach each other by TCP: far\d: no connection to"):
        testbed.start()


@needs_namespaces
def test_a_resumed_testbed_takes_down_what_its_predecessor_made(provider: None, tmp_path: Path) -> None:
    killed = AgentTestbed(inventory(there=1), tmp_path / "spool")
    killed.start()
    with taken_over(killed) as resumed:
        assert resumed.adopted == {"far0": []}
        works(resumed, 0, "a")
    assert not namespaces.existing()


class Far(LocalProvider):
    """Nodes on this machine that are treated like nodes on others. Node n0 is the last to be taken over."""

    shared = False
    others = threading.Event()

    def run(self, node: Node, arguments: Any) -> LocalChannel:
        if node.name == "n0" and arguments:
            self.others.wait(GUARD_S)
        return super().run(node, arguments)


def test_bytes_that_a_killed_testbed_did_not_forward_arrive_after_its_resumption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tracebed.orchestrator.testbeds.local.LocalProvider", Far)
    nodes = inventory(here=2, network="agents", linger_s=GUARD_S)
    killed = AgentTestbed(nodes, tmp_path / "spool")
    killed.start()
    resumed = AgentTestbed(nodes, tmp_path / "spool")
    try:
        job = {"members": ["n0", "n1"]}
        launch(killed, 0, "j", 1000, **job)
        hear(killed, "listening", 0)
        lost: list[Any] = []
        send = killed._links.send

        def lose(node: int, message: Any) -> None:
            lost.append(message) if message["type"] == "relay" else send(node, message)

        monkeypatch.setattr(killed._links, "send", lose)
        launch(killed, 1, "j", 1000, **job, leader=False, address="n0")
        while not lost:
            killed.receive(time.monotonic() + GUARD_S)
        relay = Links._relay

        def note(links: Links, message: Any) -> None:
            relay(links, message)
            Far.others.set()

        monkeypatch.setattr(Links, "_relay", note)
        resumed.start(killed.agents)
        assert resumed.adopted == {"n0": ["j"], "n1": ["j"]}
        let_continue(resumed)
        assert [end["state"] for end in hear_ends(resumed, 2)] == ["completed", "completed"]
    finally:
        resumed.stop()
        killed.stop()


@pytest.mark.parametrize("where", ["here", pytest.param("there", marks=needs_namespaces)])
@pytest.mark.parametrize("fault", ["killed", "ended", "stopped"])
def test_a_lost_agent_is_replaced(
    provider: None, tmp_path: Path, where: str, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_module, "PAUSE_S", 0.05)
    nodes = inventory(here=2) if where == "here" else inventory(there=2)
    with AgentTestbed(nodes, tmp_path / "spool") as testbed:
        name = testbed.nodes[0].name
        launch(testbed, 0, "j", 10**12)
        hear(testbed, "started", 0)
        agent = psutil.Process(testbed.agents[name]["pid"])
        [rank] = agent.children()
        folder = Path(testbed._links[0].hello["sockets"])
        if fault == "killed":
            agent.kill()
        else:
            agent.suspend()
            testbed.drop(0, "is silent")
        lost = hear(testbed, "lost", 0)
        assert lost.message["reason"].startswith(("was killed by SIGKILL", "ended with status", "is silent"))
        testbed.send(0, {"type": "kill", "job": "j", "reason": "discarded"})
        launch(testbed, 1, "meanwhile", 1000)
        heard = hear_all(testbed, ("ended", 1), ("back", 0))
        assert heard["ended", 1].message["state"] == "completed"
        assert testbed.agents[name]["pid"] != agent.pid
        works(testbed, 0, "j")
        assert gone(rank)  # the earlier one of this name
        assert where == "there" or not folder.exists()


class Failing(LocalProvider):
    """Nodes on this machine, of which those in `broken` have an agent that does not start."""

    broken: frozenset[str] = frozenset()

    def run(self, node: Node, arguments: Any) -> LocalChannel:
        if node.name in self.broken:
            return LocalChannel([sys.executable, "-c", "raise SystemExit('no disk')"], self.folder / "log")
        return super().run(node, arguments)


def test_a_node_whose_agent_does_not_start_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "PAUSE_S", 0.05)
    monkeypatch.setattr("tracebed.orchestrator.testbeds.local.LocalProvider", Failing)
    monkeypatch.setattr(Failing, "broken", frozenset({"n1"}))
    with pytest.raises(TestbedError, match="node n1: its agent ended with status 1: no disk"):
        AgentTestbed(inventory(here=3), tmp_path / "a").start()
    with AgentTestbed(inventory(here=3), tmp_path / "b", drain=True) as testbed:
        assert testbed.out == {"n1": "node n1: its agent ended with status 1: no disk"}
        assert testbed.agents.keys() == {"n0", "n2"}
        works(testbed, 0, "a")
        monkeypatch.setattr(Failing, "broken", frozenset())
        hear(testbed, "back", 1)  # it is tried again
        assert testbed.out == {}
        works(testbed, 1, "b")
    monkeypatch.setattr(Failing, "broken", frozenset({"n0", "n1"}))
    with pytest.raises(TestbedError, match="no disk"):
        AgentTestbed(inventory(here=2), tmp_path / "c", drain=True).start()


@pytest.mark.parametrize("where", ["here", pytest.param("there", marks=needs_namespaces)])
def test_a_node_that_sleeps_has_no_agent_until_it_wakes(provider: None, tmp_path: Path, where: str) -> None:
    with AgentTestbed(inventory(here=2) if where == "here" else inventory(there=2), tmp_path / "spool") as testbed:
        name = testbed.nodes[0].name
        works(testbed, 0, "a")  # an agent with a job would wait for another controller
        agent, folder = psutil.Process(testbed.agents[name]["pid"]), Path(testbed._links[0].hello["sockets"])
        testbed.sleep(0)
        hear(testbed, "asleep", 0)
        assert gone(agent) and not folder.exists()
        assert testbed.agents.keys() == {testbed.nodes[1].name}
        launch(testbed, 0, "discarded", 1000)
        works(testbed, 1, "b")
        testbed.wake(0)
        hear(testbed, "back", 0)
        assert testbed.agents[name]["pid"] != agent.pid
        works(testbed, 0, "c")
        testbed.sleep(0)  # the testbed ends meanwhile


def test_an_agent_that_does_not_react_is_killed_when_its_node_sleeps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_module, "BYE_S", 0.05)
    with AgentTestbed(inventory(here=1), tmp_path / "spool") as testbed:
        agent = psutil.Process(testbed.agents["n0"]["pid"])
        agent.suspend()
        testbed.sleep(0)
        testbed.wake(0)  # the agent before has to end first
        heard = hear_all(testbed, ("asleep", 0), ("back", 0))
        assert heard["asleep", 0].time < heard["back", 0].time
        assert gone(agent)
        works(testbed, 0, "a")


def test_a_node_that_is_lost_and_sleeps_is_asleep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "PAUSE_S", 0.05)
    with AgentTestbed(inventory(here=2), tmp_path / "spool") as testbed:
        psutil.Process(testbed.agents["n0"]["pid"]).kill()
        hear(testbed, "lost", 0)
        testbed.sleep(0)
        assert hear_all(testbed, ("asleep", 0)).keys() == {("asleep", 0)}
        works(testbed, 1, "a")
        assert not testbed._links[0].due and not testbed._links[0].up
        testbed.wake(0)
        hear(testbed, "back", 0)
        works(testbed, 0, "b")


def test_a_node_whose_agent_does_not_start_when_it_wakes_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_module, "PAUSE_S", 0.05)
    monkeypatch.setattr("tracebed.orchestrator.testbeds.local.LocalProvider", Failing)
    testbed = AgentTestbed(inventory(here=3), tmp_path / "spool")
    testbed.start(asleep=["n1"])
    try:
        assert testbed.agents.keys() == {"n0", "n2"} and testbed.out == {}
        monkeypatch.setattr(Failing, "broken", frozenset({"n1"}))
        testbed.wake(1)
        reason = hear(testbed, "lost", 1).message["reason"]
        assert reason == "did not start: node n1: its agent ended with status 1: no disk"
        monkeypatch.setattr(Failing, "broken", frozenset())
        hear(testbed, "back", 1)  # it is tried again
        works(testbed, 1, "a")
    finally:
        testbed.stop()


class Unreachable(LocalProvider):
    """Nodes on this machine that listen on the loopback; those in `away` cannot be reached."""

    away: frozenset[str] = frozenset()

    def _reach(self, node: Node) -> None:
        if node.name in self.away:
            raise TestbedError("does not answer", where=f"host {node.name}")

    def run(self, node: Node, arguments: Any) -> LocalChannel:
        self._reach(node)
        return super().run(node, arguments)

    def bind(self, node: Node) -> str | None:
        self._reach(node)
        return super().bind(node)


def test_with_tcp_a_node_that_cannot_be_reached_is_left_out_and_listens_once_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_module, "PAUSE_S", 0.05)
    monkeypatch.setattr("tracebed.orchestrator.testbeds.local.LocalProvider", Unreachable)
    monkeypatch.setattr(Unreachable, "away", frozenset({"n1"}))
    nodes = dataclasses.replace(inventory(here=3), network="tcp")
    reports = {report.node.name: report.error for report in survey(nodes)}
    assert reports == {"n0": None, "n1": "host n1: does not answer", "n2": None}
    with AgentTestbed(nodes, tmp_path / "b", drain=True) as testbed:
        assert testbed.family == "AF_INET"
        assert testbed.out == {"n1": "host n1: does not answer"}
        monkeypatch.setattr(Unreachable, "away", frozenset())
        hear(testbed, "back", 1)
        works(testbed, 1, "a")
    monkeypatch.setattr(Unreachable, "away", frozenset({"n0", "n1", "n2"}))
    reports = {report.node.name: report.error for report in survey(nodes)}
    assert reports == {name: f"host {name}: does not answer" for name in ("n0", "n1", "n2")}


class Refusing(LocalProvider):
    """Nodes on this machine whose connections are refused at first."""

    refusals = 0

    def run(self, node: Node, arguments: Any) -> LocalChannel:
        if type(self).refusals:
            type(self).refusals -= 1
            raise TestbedError("too many connections", where=f"node {node.name}", transient=True)
        return super().run(node, arguments)


def test_transient_failures_are_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracebed.orchestrator.testbeds.launcher.RETRY_S", 0.01)
    monkeypatch.setattr("tracebed.orchestrator.testbeds.local.LocalProvider", Refusing)
    monkeypatch.setattr(Refusing, "refusals", 3)
    with AgentTestbed(inventory(here=2), tmp_path / "a") as testbed:
        works(testbed, 1, "a")
    monkeypatch.setattr(Refusing, "refusals", 10**6)
    with pytest.raises(TestbedError, match="too many connections"):
        AgentTestbed(inventory(here=2), tmp_path / "b").start()


@pytest.mark.parametrize("recorded", [False, True])
def test_agents_keep_the_events_that_are_not_recorded(tmp_path: Path, recorded: bool) -> None:
    first = AgentTestbed(inventory(here=1, heartbeat_s=0.1, linger_s=60.0), tmp_path / "spool")
    second = AgentTestbed(inventory(here=1, linger_s=60.0), tmp_path / "spool")
    try:
        first.start()
        agents = first.agents
        launch(first, 0, "j", 1000)
        kinds: list[str] = []
        until = time.monotonic() + GUARD_S
        while "ended" not in kinds or kinds[-3:] != ["heartbeat"] * 3:  # pings have told the agent what is recorded
            kinds += [event.message["type"] for event in first.receive(until, recorded=recorded)]
            assert time.monotonic() < until
        second.start({"n0": {**agents["n0"], "seen": 0}})
        second.send(0, {"type": "sample", "calibrate": False})
        again: list[str] = []
        while "heartbeat" not in again:
            again += [event.message["type"] for event in second.receive(until)]
        assert ("ended" in again) != recorded
    finally:
        second.stop()
        first.stop()


def test_a_stopped_agent_that_was_taken_over_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracebed.orchestrator.testbeds.testbed.END_S", 0.1)
    first = AgentTestbed(inventory(here=1), tmp_path / "spool")
    first.start()
    second = AgentTestbed(inventory(here=1), tmp_path / "spool")
    second.start(first.agents)
    agent = psutil.Process(second.agents["n0"]["pid"])
    folder = Path(second._links[0].hello["sockets"])
    agent.suspend()
    second.stop()
    first.stop()
    assert not agent.is_running() and not folder.exists()


def test_several_channels_to_a_provider_are_opened_at_once(tmp_path: Path) -> None:
    assert AGENT[0] == sys.executable
    with AgentTestbed(inventory(here=12), tmp_path / "spool") as testbed:
        assert len(testbed.agents) == 12
        [host] = testbed.hosts
        assert "clocks" not in host and "nodes" not in host


@needs_namespaces
@pytest.mark.parametrize(
    ("here", "there", "network", "family", "address"),
    [
        (2, 2, "auto", "agents", str),  # providers differ: no port is opened
        (0, 4, "auto", "AF_INET", list),
        (0, 4, "agents", "agents", str),
    ],
)
def test_a_replay_on_nodes_of_several_providers(
    provider: None, tmp_path: Path, here: int, there: int, network: str, family: str, address: type
) -> None:
    nodes = inventory(here, there, network=network)
    steps: list[str] = []
    run = replay(workload(12), nodes, "pref", tmp_path / "run", **replaying(speed=1000.0), on_step=steps.append)
    assert steps == ["the namespaces are made"]
    assert set(run.jobs["state"]) == {"completed"}
    assert run.info.parameters["testbed"] == ("local+namespace" if here else "namespace")
    _, entries = journal.read(tmp_path / "run" / JOURNAL)
    assert {type(entry.data["address"]) for entry in entries if entry.kind == "listening"} == {address}
    times = [entry.data["time"] for entry in entries if entry.kind in ("started", "ended")]
    assert max(times) - min(times) < OFFSET_S / 2
    assert run.reconfigurations is not None and len(run.reconfigurations)


def on_two_nodes(*run_times: float) -> Workload:
    """Return jobs on two nodes that are submitted at once."""
    table = {"submit_time": 0.0, "run_time": run_times, "time_limit": 1e6, "nodes": 2}
    return Workload(pd.DataFrame({"job_id": [f"job {number}" for number in range(len(run_times))], **table}))


def states(run: Run) -> dict[str, str]:
    return dict(zip(run.jobs["job_id"], run.jobs["state"], strict=True))


@needs_namespaces
@pytest.mark.slow
def test_a_job_whose_network_is_cut_fails(provider: None, tmp_path: Path) -> None:
    switch = namespaces.tag()
    disks = Path(tempfile.gettempdir()) / f"{switch}-disks"
    network: list[str] = []

    def cut(ended: int) -> None:
        working = len(list(disks.glob("*/spool/job-*/*.heartbeat.jsonl"))) == 2
        if (network, working) == ([], True) or (network, ended) == (["down"], 1):
            network.append("up" if network else "down")
            namespaces.ip("-n", switch, "link", "set", "port2", network[-1])

    nodes = inventory(there=2)
    run = replay(on_two_nodes(1e5, 100.0), nodes, "fcfs", tmp_path / "run", **replaying(100.0), on_progress=cut)
    assert network == ["down", "up"]
    assert states(run) == {"job 0": "failed", "job 1": "completed"}
    assert "far1" in run.jobs["reason"][0]
