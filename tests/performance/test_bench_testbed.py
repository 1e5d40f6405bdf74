"""Speed of the testbed: round trips, launches, resizes, and the start of 64 and 200 agents."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.servers import dockerd
from tracebed.benchmarks.kernels import calibrate, compute
from tracebed.benchmarks.program import Program
from tracebed.orchestrator.testbeds.docker.provider import DockerSettings
from tracebed.orchestrator.testbeds.nodes import AGENTS, Group, Inventory, Node
from tracebed.orchestrator.testbeds.testbed import AgentTestbed

ENDLESS = Program("pils", 0, 10**12, 10**9, rate=1e6)
"""Malleability points every quarter or full millisecond, on four nodes or one."""


def containers(address: str, count: int, spool: Path, **parameters: Any) -> Inventory:
    """Return an inventory of emulated nodes that are containers."""
    nodes = tuple(Node(f"n{number}", 1, emulated=True, provider="docker") for number in range(count))
    settings = DockerSettings(daemon=address, base=dockerd.BASE)
    groups = (Group("bench", "docker", settings, nodes, str(spool)),)
    return Inventory("bench", AGENTS, nodes, groups=groups, **parameters)


class Bench(AgentTestbed):
    """Four emulated nodes, and their unprocessed events."""

    def __init__(self, spool: Path, inventory: Inventory | None = None) -> None:
        nodes = tuple(Node(f"n{i}", 1, 1, None, True) for i in range(4))
        super().__init__(inventory or Inventory("bench", AGENTS, nodes, heartbeat_s=3600.0), spool)
        self.queue: list[dict[str, Any]] = []

    def hear(self, *kinds: str) -> dict[str, Any]:
        """Wait for events of all these kinds, and return the last one."""
        missing, until = list(kinds), time.monotonic() + 60
        message: dict[str, Any] = {}
        while missing:
            if not self.queue:
                self.queue += [event.message for event in self.receive(until)]
                assert self.queue, f"no {missing}"
            message = self.queue.pop(0)
            if message["type"] in missing:
                missing.remove(message["type"])
        return message


@pytest.fixture
def testbed(tmp_path: Path) -> Iterator[Bench]:
    with Bench(tmp_path) as found:
        yield found


def launch(testbed: Bench, job: str, nodes: int) -> dict[str, Any]:
    """Launch a job, wait until it has started, and return the message that launches another rank of it."""
    names = [node.name for node in testbed.nodes]
    message = {
        "type": "launch",
        "job": job,
        "members": names[:nodes],
        "family": testbed.family,
        "authkey": "00",
        "cpus": None,
        "cores": 1,
        "program": ENDLESS._asdict(),
        "duty": 0,
        "leader": False,
    }
    testbed.send(0, message | {"rank": names[0], "leader": True, "address": None})
    message["address"] = testbed.hear("listening")["address"]
    for node in range(1, nodes):
        testbed.send(node, message | {"rank": names[node]})
    testbed.hear("started")
    return message


def kill(testbed: Bench, job: str, nodes: int) -> None:
    for node in range(nodes):
        testbed.send(node, {"type": "kill", "job": job, "reason": "measured"})
    testbed.hear(*["ended"] * nodes)


def test_round_trip_of_a_line_with_an_agent(benchmark: Any, testbed: Bench) -> None:
    def ask() -> None:
        testbed.send(0, {"type": "nothing"})
        testbed.hear("error")

    benchmark(ask)


@pytest.mark.parametrize("nodes", [1, 4])
def test_from_launch_to_started(benchmark: Any, testbed: Bench, nodes: int) -> None:
    launch_repeatedly(benchmark, testbed, nodes)


@pytest.mark.parametrize("network", ["tcp", "agents"])
@pytest.mark.parametrize("nodes", [1, 4])
def test_from_launch_to_started_in_containers(
    benchmark: Any, tmp_path: Path, container_engine: str, nodes: int, network: str
) -> None:
    inventory = containers(container_engine, 4, tmp_path, network=network, heartbeat_s=3600.0)
    with Bench(tmp_path, inventory) as testbed:
        launch_repeatedly(benchmark, testbed, nodes)


def launch_repeatedly(benchmark: Any, testbed: Bench, nodes: int) -> None:
    jobs = iter(range(10**6))
    running: list[str] = []

    def clear() -> None:
        if running:
            kill(testbed, running.pop(), nodes)
        running.append(str(next(jobs)))

    benchmark.pedantic(lambda: launch(testbed, running[0], nodes), setup=clear, rounds=100)


def test_resize_without_a_launch(benchmark: Any, testbed: Bench) -> None:
    """A resize to the same members: a round trip and a malleability point."""
    launch(testbed, "j", 4)
    names, requests = [node.name for node in testbed.nodes], count(1)  # a rank ignores a request that is repeated

    def ask() -> None:
        testbed.send(0, {"type": "resize", "job": "j", "request": next(requests), "members": names})
        testbed.hear("resized")

    benchmark(ask)


def test_shrink_and_grow_by_one_node(benchmark: Any, testbed: Bench) -> None:
    """An expansion from 1 node to 2 with a new rank, and a shrink until the node is idle."""
    message = launch(testbed, "j", 1)
    names = [node.name for node in testbed.nodes[:2]]

    def there_and_back() -> None:
        testbed.send(1, message | {"rank": names[1]})
        testbed.send(0, {"type": "resize", "job": "j", "request": 1, "members": names})
        testbed.hear("resized")
        testbed.send(0, {"type": "resize", "job": "j", "request": 2, "members": names[:1]})
        testbed.hear("resized", "ended")

    benchmark.pedantic(there_and_back, rounds=50, warmup_rounds=2)


@pytest.mark.parametrize("agents", [64, 200])
def test_start_and_stop_of_agents(benchmark: Any, tmp_path: Path, agents: int) -> None:
    nodes = tuple(Node(f"n{number}", 48, emulated=True) for number in range(agents))

    def start_and_stop() -> None:
        with AgentTestbed(Inventory("bench", AGENTS, nodes), tmp_path):
            pass

    benchmark.pedantic(start_and_stop, rounds=2)


def test_start_and_stop_of_containers(benchmark: Any, tmp_path: Path, container_engine: str) -> None:
    """100 containers, from none to a `hello` of each agent, and their removal. The image has been built before."""
    with AgentTestbed(containers(container_engine, 1, tmp_path / "first"), tmp_path):
        pass

    def start_and_stop() -> None:
        testbed = AgentTestbed(containers(container_engine, 100, tmp_path), tmp_path)
        began = time.monotonic()
        with testbed:
            benchmark.extra_info["up_s"] = time.monotonic() - began

    benchmark.pedantic(start_and_stop, rounds=1)


def test_units_of_the_kernel(benchmark: Any) -> None:
    """The wall time of 1000 units; `calibrate` measures their CPU time."""
    benchmark.extra_info["units_per_core_second"] = calibrate()
    benchmark(compute, 1000)
