"""How fast the testbed is: round trips, launches, resizes, and the start of 64 agents."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tracebed.benchmarks.kernels import calibrate, compute
from tracebed.benchmarks.program import Program
from tracebed.orchestrator.testbeds.inventory import Inventory, Node, load_inventory
from tracebed.orchestrator.testbeds.local import LocalTestbed

ROOT = Path(__file__).resolve().parents[2]
ENDLESS = Program("pils", 0, 10**12, 10**9, emulated_rate=1e6)
"""Malleability points every quarter or full millisecond, on four nodes or one."""


@pytest.fixture
def testbed(tmp_path: Path) -> Iterator[LocalTestbed]:
    nodes = tuple(Node(f"n{i}", 1, 1, None, True) for i in range(4))
    with LocalTestbed(Inventory("bench", "local", nodes, heartbeat_s=3600.0), tmp_path) as found:
        yield found


def hear(testbed: LocalTestbed, *kinds: str) -> dict[str, Any]:
    """Wait for events of all these kinds, and return the last of them."""
    missing, until = list(kinds), time.monotonic() + 60
    last: dict[str, Any] = {}
    while missing:
        for event in testbed.receive(until):
            if event.message["type"] in missing:
                missing.remove(event.message["type"])
                last = event.message
        assert not missing or time.monotonic() < until, f"no {missing}"
    return last


def launch(testbed: LocalTestbed, job: str, nodes: int) -> dict[str, Any]:
    """Launch a job, wait until it has started, and return the message that launches one more rank of it."""
    names = [node.name for node in testbed.nodes]
    message = {
        "type": "launch",
        "job": job,
        "members": names[:nodes],
        "family": "AF_UNIX",
        "authkey": "00",
        "cpus": None,
        "cores": 1,
        "program": ENDLESS._asdict(),
        "leader": False,
    }
    testbed.send(0, message | {"rank": names[0], "leader": True, "address": None})
    message["address"] = hear(testbed, "listening")["address"]
    for node in range(1, nodes):
        testbed.send(node, message | {"rank": names[node]})
    hear(testbed, "started")
    return message


def kill(testbed: LocalTestbed, job: str, nodes: int) -> None:
    for node in range(nodes):
        testbed.send(node, {"type": "kill", "job": job, "reason": "measured"})
    hear(testbed, *["ended"] * nodes)


def test_round_trip_of_a_line_with_an_agent(benchmark: Any, testbed: LocalTestbed) -> None:
    def ask() -> None:
        testbed.send(0, {"type": "nothing"})
        hear(testbed, "error")

    benchmark(ask)


@pytest.mark.parametrize("nodes", [1, 4])
def test_from_launch_to_started(benchmark: Any, testbed: LocalTestbed, nodes: int) -> None:
    jobs = iter(range(10**6))
    running: list[str] = []

    def clear() -> None:
        if running:
            kill(testbed, running.pop(), nodes)
        running.append(str(next(jobs)))

    benchmark.pedantic(lambda: launch(testbed, running[0], nodes), setup=clear, rounds=100)


def test_from_asking_to_resized_without_a_launch(benchmark: Any, testbed: LocalTestbed) -> None:
    """Change the members to those that they are: the way there and back, and a malleability point."""
    launch(testbed, "j", 4)
    names = [node.name for node in testbed.nodes]

    def ask() -> None:
        testbed.send(0, {"type": "resize", "job": "j", "request": 1, "members": names})
        hear(testbed, "resized")

    benchmark(ask)


def test_shrink_and_grow_by_one_node(benchmark: Any, testbed: LocalTestbed) -> None:
    """From 1 node to 2 with a new rank, and back until the node is free."""
    message = launch(testbed, "j", 1)
    names = [node.name for node in testbed.nodes[:2]]

    def there_and_back() -> None:
        testbed.send(1, message | {"rank": names[1]})
        testbed.send(0, {"type": "resize", "job": "j", "request": 1, "members": names})
        hear(testbed, "resized")
        testbed.send(0, {"type": "resize", "job": "j", "request": 2, "members": names[:1]})
        hear(testbed, "resized", "ended")

    benchmark.pedantic(there_and_back, rounds=50, warmup_rounds=2)


def test_start_and_stop_of_64_agents(benchmark: Any, tmp_path: Path) -> None:
    inventory = load_inventory(ROOT / "inventory" / "emulated-64x48.yaml")

    def start_and_stop() -> None:
        with LocalTestbed(inventory, tmp_path):
            pass

    benchmark.pedantic(start_and_stop, rounds=2)


def test_units_of_the_kernel(benchmark: Any) -> None:
    """The time of 1000 units; `calibrate` measures the same by CPU time."""
    benchmark.extra_info["units_per_core_second"] = calibrate()
    benchmark(compute, 1000)
