"""Opening channels in the background: nodes are made ready again when an agent cannot be started."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from queue import Queue
from types import SimpleNamespace
from typing import Any

import pytest

from tests.patience import GUARD_S, until
from tracebed.ground.errors import TestbedError
from tracebed.orchestrator.testbeds import launcher
from tracebed.orchestrator.testbeds.launcher import Launcher
from tracebed.orchestrator.testbeds.nodes import Node
from tracebed.orchestrator.testbeds.provider import NotReadyError


class Boxes:
    """Nodes that `up` starts, and that can be stopped."""

    name = "boxes"
    fan_out = 4

    def __init__(self) -> None:
        self.running: set[str] = set()
        self.ups = 0
        self.lock = threading.Lock()

    def up(self) -> None:
        with self.lock:
            self.ups += 1
            self.running = {"n1", "n2", "n3"}

    def stop(self, *names: str) -> None:
        self.running -= set(names or self.running)

    def run(self, node: Node, arguments: Sequence[str]) -> Any:
        if node.name not in self.running:
            raise TestbedError("is stopped", where=f"node {node.name}", transient=True)
        return SimpleNamespace(node=node.name, kill=lambda: None)


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "RETRY_S", 0.001)


def opened(boxes: Boxes, *rounds: Callable[[], None]) -> list[list[Any]]:
    """Open a channel to each of three nodes in several rounds; before each round, call its function."""
    results: Queue[Callable[[], None]] = Queue()
    own = Launcher(boxes, results.put)  # type: ignore[arg-type]
    found = []
    try:
        own.make_ready()
        for before in rounds:
            before()
            arrived: list[Any] = []
            for name in ("n1", "n2", "n3"):
                own.open(Node(name, 1), [], arrived.append)
            for _ in range(3):
                results.get(timeout=GUARD_S)()
            found.append(arrived)
    finally:
        own.close()
    return found


def test_a_stopped_node_is_made_ready_again() -> None:
    boxes = Boxes()
    first, second, third = opened(boxes, lambda: None, lambda: boxes.stop("n2"), lambda: boxes.stop())
    for arrived in (first, second, third):
        assert {channel.node for channel in arrived} == {"n1", "n2", "n3"}
    assert 3 <= boxes.ups <= 6  # at the start, then once or a few times in each round in which nodes were stopped


def test_nodes_that_run_are_made_ready_once() -> None:
    boxes = Boxes()
    opened(boxes, lambda: None, lambda: None)
    assert boxes.ups == 1


def test_the_end_waits_for_a_channel_that_is_being_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process ended while a thread killed its channel, and Python complained about open files."""
    begun, killed = threading.Event(), []

    class Slow(Boxes):
        def run(self, node: Node, arguments: Sequence[str]) -> Any:
            begun.set()
            assert until(lambda: own._closed)
            return SimpleNamespace(kill=lambda: killed.append(until(lambda: False, 0.1)))

    monkeypatch.setattr(launcher, "LAST_S", GUARD_S)
    own = Launcher(Slow(), lambda call: None)
    own.open(Node("n1", 1), [], lambda channel: None)
    assert begun.wait(GUARD_S)
    own.close()
    assert len(killed) == 1


def test_a_node_that_was_not_made_is_named_with_the_failure_of_up() -> None:
    class Absent(Boxes):
        def up(self) -> None:
            raise TestbedError("the image is missing", where="group boxes", hint="pull it")

        def run(self, node: Node, arguments: Sequence[str]) -> Any:
            raise NotReadyError("has no container", node, hint="start it")

    results: Queue[Callable[[], None]] = Queue()
    own = Launcher(Absent(), results.put)  # type: ignore[arg-type]
    arrived: list[Any] = []
    try:
        with pytest.raises(TestbedError, match="the image is missing"):
            own.make_ready()
        own.open(Node("n1", 1), [], arrived.append)
        results.get(timeout=GUARD_S)()
    finally:
        own.close()
    assert str(arrived[0]) == "node n1: has no container: the image is missing (pull it)"
