"""Speed of a testbed of 20 SSH hosts, network namespaces of this machine: start, launches, round trips."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.performance.test_bench_testbed import Bench, kill, launch
from tests.servers.sshd import Network
from tracebed.orchestrator.testbeds.nodes import Group, Inventory, Node
from tracebed.orchestrator.testbeds.ssh import SshProvider, SshSettings

HOSTS = 20


class Remote(Bench):
    """Emulated nodes on SSH hosts."""

    def __init__(self, spool: Path, group: Group) -> None:
        inventory = Inventory("bench", "agents", group.nodes, heartbeat_s=3600.0, groups=(group,), network="tcp")
        super(Bench, self).__init__(inventory, spool)
        self.queue: list[dict[str, Any]] = []


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    folder = tmp_path_factory.mktemp("ssh")
    with Network(folder / "net", HOSTS) as network:
        known, config = folder / "known_hosts", folder / "ssh_config"
        known.write_text("".join(host.known() for host in network.hosts.values()))
        config.write_text("".join(host.config(name, known) for name, host in network.hosts.items()))
        nodes = tuple(Node(name, 1, emulated=True, provider="ssh") for name in network.hosts)
        yield Group("hosts", "ssh", SshSettings(config=str(config), listen=True), nodes, "hosts")


def test_first_start_of_20_agents_with_the_installation(benchmark: Any, group: Group, tmp_path: Path) -> None:
    testbeds: list[Remote] = []

    def start() -> None:
        testbeds.append(Remote(tmp_path / str(len(testbeds)), group))
        testbeds[-1].start()

    def stop() -> None:
        while testbeds:
            testbeds.pop().stop()

    benchmark.pedantic(start, teardown=stop, rounds=3)


@pytest.fixture(scope="module")
def installed(group: Group, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    provider = SshProvider(group, tmp_path_factory.mktemp("replay"), lambda step: None)
    provider.up()
    yield group
    provider.down()


def test_start_of_20_agents(benchmark: Any, installed: Group, tmp_path: Path) -> None:
    test_first_start_of_20_agents_with_the_installation(benchmark, installed, tmp_path)


@pytest.fixture(scope="module")
def testbed(installed: Group, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Remote]:
    with Remote(tmp_path_factory.mktemp("spool"), installed) as found:
        yield found


@pytest.mark.parametrize("nodes", [1, 4])
def test_from_launch_to_started(benchmark: Any, testbed: Remote, nodes: int) -> None:
    jobs = iter(range(10**6))
    running: list[str] = []

    def clear() -> None:
        if running:
            kill(testbed, running.pop(), nodes)
        running.append(f"{nodes} {next(jobs)}")

    benchmark.pedantic(lambda: launch(testbed, running[0], nodes), setup=clear, rounds=100)
    clear()


def test_round_trip_of_a_line_with_an_agent(benchmark: Any, testbed: Remote) -> None:
    def ask() -> None:
        testbed.send(0, {"type": "nothing"})
        testbed.hear("error")

    benchmark(ask)
