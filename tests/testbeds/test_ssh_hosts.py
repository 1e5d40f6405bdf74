"""Testbeds of SSH hosts: network namespaces with addresses of their own, whose file system is not that of this host."""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.oracles.redecided import workload
from tests.runs import replaying
from tests.servers.agents import hear, launch_message, wait
from tests.servers.sshd import Network, Sshd, call
from tracebed.benchmarks.program import Program
from tracebed.ground.errors import TestbedError
from tracebed.orchestrator.replay.session import replay
from tracebed.orchestrator.testbeds.nodes import Group, Inventory, Node
from tracebed.orchestrator.testbeds.provider import AGENT_MODULE
from tracebed.orchestrator.testbeds.ssh import SshProvider, SshSettings
from tracebed.orchestrator.testbeds.testbed import AgentTestbed
from tracebed.testing import check_provider, check_testbed

pytestmark = pytest.mark.slow

COUNT = 4
NOBODY = 65534


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    with Network(tmp_path_factory.mktemp("ssh") / "net", COUNT) as network:
        yield network


@pytest.fixture
def away(network: Network) -> Iterator[Path]:
    """Yield a folder that the hosts do not see. After the test, nothing of tracebed is on the hosts."""
    folder = network.hidden / str(time.monotonic_ns())
    folder.mkdir()
    yield folder
    for name in network.hosts:
        network.restore(name)
    left = [path for host in network.hosts.values() for path in host.home.iterdir()]
    SshProvider(group(network, folder), folder, print).down()  # so that a failed test leaves the hosts clean
    assert left == []
    wait(lambda: not agents(network), "end of the agents")


def agents(network: Network) -> list[str]:
    """Return the agents on the hosts, and their ranks, which have the same command line."""
    found = []
    for name in network.hosts:
        for pid in call("ip", "netns", "pids", network.namespace(name)).split():
            with contextlib.suppress(OSError):  # the process has ended
                command = Path("/proc", pid, "cmdline").read_bytes().decode().split("\0")
                found += [f"{name}: {command}"] if AGENT_MODULE in command else []
    return found


def group(network: Network, folder: Path, count: int = COUNT, **settings: Any) -> Group:
    """Return a group of one node on each host."""
    known, config = folder / "known_hosts", folder / "ssh_config"
    known.write_text("".join(host.known() for host in network.hosts.values()))
    config.write_text("".join(host.config(name, known) for name, host in network.hosts.items()))
    nodes = tuple(Node(f"n{n}", 2, emulated=True, provider="ssh", address=f"h{n}") for n in range(1, count + 1))
    return Group("hosts", "ssh", SshSettings(**{"config": str(config), **settings}), nodes, "hosts")


def inventory(group: Group, network: str = "auto", **parameters: Any) -> Inventory:
    return Inventory("test", "agents", group.nodes, grain_s=0.02, groups=(group,), network=network, **parameters)


def test_the_provider_satisfies_its_contract(network: Network, away: Path) -> None:
    check_provider(SshProvider, group(network, away, 2))


@pytest.mark.parametrize("network_of_ranks", ["tcp", "agents"])
def test_the_testbed_satisfies_its_contract(network: Network, away: Path, network_of_ranks: str) -> None:
    listen = network_of_ranks == "tcp"
    check_testbed(AgentTestbed, inventory(group(network, away, 3, listen=listen), network_of_ranks))


@pytest.mark.parametrize("network_of_ranks", ["tcp", "agents"])
def test_malleable_jobs_span_hosts(network: Network, away: Path, network_of_ranks: str) -> None:
    listen = network_of_ranks == "tcp"
    where = inventory(group(network, away, listen=listen), network_of_ranks)
    run = replay(workload(nodes=COUNT), where, "pref", away / "run", **replaying(speed=100))
    assert set(run.jobs["state"]) == {"completed"}
    assert set(run.reconfigurations["kind"]) == {"expand", "shrink"}
    assert run.info.parameters["testbed"] == "ssh"
    assert run.info.lateness_ms["count"] == len(run.jobs)


def test_ranks_listen_only_on_the_address_of_the_network(network: Network, away: Path) -> None:
    provider = SshProvider(group(network, away, 2, listen=True), away, print)
    assert [provider.bind(node) for node in provider.group.nodes] == [network.hosts[f"h{n}"].address for n in (1, 2)]
    provider.down()
    provider = SshProvider(group(network, away, 2), away, print)
    assert [provider.bind(node) for node in provider.group.nodes] == [None, None]
    provider.close()


def test_logs_of_jobs_are_copied_from_the_hosts(network: Network, away: Path) -> None:
    testbed = AgentTestbed(inventory(group(network, away, 2), "agents"), away / "spool")
    with testbed:
        assert testbed.family == "agents"
        launch = launch_message("n1", "a/b", Program("pils", 0, 1000, 2, rate=1e6), cores=1)
        testbed.send(0, launch | {"family": "agents"})
        assert hear(testbed, "ended").message["state"] == "completed"
    assert sorted(path.name for path in away.glob("spool/job-*/*")) == ["n1.heartbeat.jsonl", "n1.out"]


# Hosts that are lost.


def test_a_host_whose_link_is_cut_is_lost_and_comes_back(network: Network, away: Path) -> None:
    with AgentTestbed(inventory(group(network, away, 2, silence_s=2.0, connect_s=1.0)), away / "spool") as testbed:
        network.cut("h2")
        lost = hear(testbed, "lost")
        assert lost.node == 1
        assert lost.message["reason"] == "the SSH connection was lost"
        testbed.send(0, {"type": "sample", "calibrate": False})
        assert hear(testbed, "heartbeat").node == 0
        network.restore("h2")
        assert hear(testbed, "back").node == 1
        assert len(agents(network)) == 2  # the agent that was cut off has ended


def test_a_host_that_is_dead_at_the_start_is_left_out(network: Network, away: Path) -> None:
    network.cut("h2")
    where = inventory(group(network, away, 2, connect_s=1.0))
    testbed = AgentTestbed(where, away / "spool", drain=True)
    with testbed:
        assert list(testbed.out) == ["n2"]
        assert "host h2: does not answer on port 22 within 1 s" in testbed.out["n2"]
        network.restore("h2")
        assert hear(testbed, "back").node == 1
    network.cut("h2")
    with pytest.raises(TestbedError, match="host h2"), pytest.warns(UserWarning, match="host h2"):
        AgentTestbed(where, away / "spool-2").start()


def test_an_agent_that_is_killed_is_lost_and_starts_again(network: Network, away: Path) -> None:
    with AgentTestbed(inventory(group(network, away, 1)), away / "spool") as testbed:
        os.kill(testbed.agents["n1"]["pid"], signal.SIGKILL)
        assert hear(testbed, "lost").message["reason"].startswith("was killed")
        assert hear(testbed, "back").node == 0


def test_an_agent_that_stands_still_is_killed_through_another_channel(network: Network, away: Path) -> None:
    with AgentTestbed(inventory(group(network, away, 1)), away / "spool") as testbed:
        pid = testbed.agents["n1"]["pid"]
        os.kill(pid, signal.SIGSTOP)
        testbed.drop(0, "is silent")
        assert hear(testbed, "lost").message["reason"] == "is silent"
        assert hear(testbed, "back").node == 0
        assert not Path("/proc", str(pid)).exists()


CONTROLLER = """
import json, sys, time
from pathlib import Path
from tests.servers.agents import start_a_job
from tests.testbeds.test_ssh_hosts import *

with Path(sys.argv[1]).open() as file:
    facts = json.load(file)
settings = SshSettings(config=facts["config"])
nodes = tuple(Node(name, 2, emulated=True, provider="ssh", address=address) for name, address in facts["nodes"])
group = Group("hosts", "ssh", settings, nodes, "hosts")
testbed = AgentTestbed(inventory(group, linger_s=facts["linger_s"]), Path(facts["spool"]))
testbed.start()
start_a_job(testbed, "n1", "n2")
part = Path(facts["started"]).with_suffix(".part")
part.write_text(json.dumps(testbed.agents))
part.rename(facts["started"])
while True:
    testbed.receive(None)
"""


def killed_controller(network: Network, away: Path, linger_s: float) -> tuple[Group, dict[str, Any]]:
    """Start a testbed in another process, kill the process, and return its agents."""
    hosts = group(network, away, 2)
    config = hosts.settings.config  # type: ignore[attr-defined]
    facts = away / "facts.json"
    started = away / "started.json"
    nodes = [(node.name, node.address) for node in hosts.nodes]
    facts.write_text(
        json.dumps(
            {
                "config": config,
                "nodes": nodes,
                "linger_s": linger_s,
                "spool": str(away / "spool"),
                "started": str(started),
            }
        )
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    controller = subprocess.Popen([sys.executable, "-c", CONTROLLER, str(facts)], env=environment)
    try:
        wait(started.exists, "testbed")
        assert len(agents(network)) == 4  # an agent and a rank on each of the two hosts
    finally:
        controller.kill()
        controller.wait()
    return hosts, json.loads(started.read_text())


def test_agents_end_some_time_after_their_controller_was_killed(network: Network, away: Path) -> None:
    hosts, _ = killed_controller(network, away, linger_s=1.0)
    wait(lambda: not agents(network), "end of the agents")
    SshProvider(hosts, away, print).down()


def test_down_removes_what_a_killed_controller_has_left(network: Network, away: Path) -> None:
    hosts, _ = killed_controller(network, away, linger_s=600.0)
    assert len(agents(network)) == 4
    SshProvider(hosts, away, print).down()
    assert agents(network) == []


def test_another_controller_takes_over_the_agents(network: Network, away: Path) -> None:
    hosts, left = killed_controller(network, away, linger_s=600.0)
    testbed = AgentTestbed(inventory(hosts), away / "spool")
    testbed.start(adopt=left)
    try:
        assert {name: facts["pid"] for name, facts in testbed.agents.items()} == {
            name: facts["pid"] for name, facts in left.items()
        }
    finally:
        testbed.stop()
    SshProvider(hosts, away, print).down()


# Ways to a host.


def test_a_chain_of_jump_hosts(network: Network, away: Path) -> None:
    """The second jump host and the target are reached only through the hosts before them."""
    known, config = away / "known_hosts", away / "ssh_config"
    known.write_text("".join(host.known() for host in network.hosts.values()))
    h1, h2, h3 = (network.hosts[name] for name in ("h1", "h2", "h3"))
    config.write_text(h1.config("h1", known) + h2.config("h2", known) + h3.config("h3", known, "ProxyJump h1,h2"))
    for target in (h2, h3):
        call("ip", "-n", target.namespace or "", "route", "add", "blackhole", network.gateway)
    nodes = (Node("n3", 1, emulated=True, provider="ssh", address="h3"),)
    hosts = Group("hosts", "ssh", SshSettings(config=str(config), connect_s=5.0), nodes, "hosts")
    try:
        provider = SshProvider(hosts, away, print)
        provider.up()
        assert provider._installations["h3"]._facts["address"] == h3.address
        provider.down()
        known.write_text(h1.known() + h3.known())
        with pytest.raises(TestbedError, match="host h2: its host key is not in"):
            SshProvider(hosts, away, print).up()
    finally:
        for target in (h2, h3):
            call("ip", "-n", target.namespace or "", "route", "delete", "blackhole", network.gateway)


def test_an_ordinary_user(away: Path) -> None:
    """The user nobody of the system, to whom the server gives a shell and a home."""
    with tempfile.TemporaryDirectory() as work:
        os.chmod(work, 0o755)  # noqa: PTH101
        home = Path(work) / "home"
        home.mkdir()
        os.chown(home, NOBODY, NOBODY)
        accounts = Path(work) / "passwd"
        others = [line for line in Path("/etc/passwd").read_text().splitlines() if not line.startswith("nobody:")]
        accounts.write_text("\n".join([*others, f"nobody:x:{NOBODY}:{NOBODY}:nobody:{home}:/bin/sh\n"]))
        mounts = [("--bind", accounts, "/etc/passwd")]
        with Sshd(Path(work) / "server", mounts=mounts, settings={"SetEnv": f"HOME={home}"}) as server:
            known, config = away / "known_hosts", away / "ssh_config"
            known.write_text(server.known())
            config.write_text(server.config("web", known).replace(f"User {getpass.getuser()}", "User nobody"))
            nodes = (Node("n1", 2, emulated=True, provider="ssh", address="web"),)
            hosts = Group("hosts", "ssh", SshSettings(config=str(config)), nodes, "hosts")
            with AgentTestbed(inventory(hosts), away / "spool") as testbed:
                assert Path("/proc", str(testbed.agents["n1"]["pid"])).stat().st_uid == NOBODY
            assert list(home.iterdir()) == []
