"""Replays in containers, and containers that are killed, stopped and paused meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import docker
import pytest

import dockerd
from redecided import workload
from tracebed.orchestrator.replay.loop import Options
from tracebed.orchestrator.replay.session import replay
from tracebed.orchestrator.testbeds.base import Event
from tracebed.orchestrator.testbeds.docker.containers import NODE_LABEL, TESTBED_LABEL, Settings
from tracebed.orchestrator.testbeds.docker.provider import DockerProvider
from tracebed.orchestrator.testbeds.nodes import Group, Inventory, Node
from tracebed.orchestrator.testbeds.testbed import AgentTestbed

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_process_is_left")]

GUARD_S = 120.0


class Boxes:
    """An inventory of containers, and the containers as the engine shows them."""

    def __init__(self, address: str, folder: Path) -> None:
        self.address, self.folder = address, folder
        self.client = docker.DockerClient(address)
        self.groups: dict[str, Group] = {}

    def inventory(self, nodes: Sequence[str], *, name: str = "boxes", **parameters: Any) -> Inventory:
        """Return an inventory of emulated nodes with two cores."""
        found = tuple(Node(node, 2, emulated=True, provider="docker") for node in nodes)
        settings = Settings(daemon=self.address, base=dockerd.BASE)
        self.groups[name] = Group(name, "docker", settings, found, f"{self.folder}-{name}")
        groups = tuple(self.groups.values())
        all_nodes = tuple(node for group in groups for node in group.nodes)
        return Inventory(name, "agents", all_nodes, grain_s=0.02, groups=groups, **parameters)

    def provider(self, name: str = "boxes") -> DockerProvider:
        """Return a provider of a group, as another process would have it."""
        return DockerProvider(self.groups[name], self.folder, lambda step: None)

    def containers(self) -> dict[str, Any]:
        """Return node -> container of all groups."""
        found = {}
        for name in self.groups:
            label = f"{TESTBED_LABEL}={self.provider(name).testbed}"
            for container in self.client.containers.list(all=True, filters={"label": label}):
                found[container.labels[NODE_LABEL]] = container
        return found


@pytest.fixture
def boxes(container_engine: str, tmp_path: Path) -> Iterator[Boxes]:
    boxes = Boxes(container_engine, tmp_path)
    with closing(boxes.client):
        yield boxes
        for name in boxes.groups:
            with closing(boxes.provider(name)) as provider:
                provider.down()


@pytest.mark.parametrize(("network", "family"), [("auto", "AF_INET"), ("agents", "agents")])
def test_malleable_jobs_over_containers(boxes: Boxes, tmp_path: Path, network: str, family: str) -> None:
    inventory = boxes.inventory(["n1", "n2", "n3", "n4"], network=network)
    run = replay(workload(), inventory, "pref", tmp_path / "run", options=Options(speed=100))
    assert set(run.jobs["state"]) == {"completed"}
    done = run.reconfigurations[run.reconfigurations["state"] == "applied"]
    assert set(done["kind"]) == {"expand", "shrink"}
    assert (done["asked"] <= done["decided"]).all() and (done["decided"] <= done["applied"]).all()
    assert run.info.parameters["testbed"] == "docker"
    assert boxes.containers() == {}  # the replay takes down what it has brought up


def test_a_replay_leaves_containers_that_were_up_before(boxes: Boxes, tmp_path: Path) -> None:
    inventory = boxes.inventory(["n1", "n2"])
    with closing(boxes.provider()) as provider:
        provider.up()
    before = {name: container.id for name, container in boxes.containers().items()}
    run = replay(workload(4, nodes=2), inventory, "easy", tmp_path / "run", options=Options(speed=400))
    assert set(run.jobs["state"]) == {"completed"}
    assert {name: container.id for name, container in boxes.containers().items()} == before
    for container in boxes.containers().values():
        assert len(container.top()["Processes"]) == 2  # init and sleep: no agent is left


def test_groups_on_separate_networks_use_the_channels_of_their_agents(boxes: Boxes, tmp_path: Path) -> None:
    boxes.inventory(["n1", "n2"], name="first")
    inventory = boxes.inventory(["n3", "n4"], name="second")
    with AgentTestbed(inventory, tmp_path / "spool") as testbed:
        assert testbed.family == "agents"
    run = replay(workload(6), inventory, "pref", tmp_path / "run", options=Options(speed=200))
    assert set(run.jobs["state"]) == {"completed"}


def await_event(testbed: AgentTestbed, node: int, kind: str, meanwhile: Callable[[], None] = lambda: None) -> Event:
    """Return the next event of a kind from a node."""
    until = time.monotonic() + GUARD_S
    while time.monotonic() < until:
        for event in testbed.receive(time.monotonic() + 0.5):
            if event.node == node and event.message["type"] == kind:
                return event
        meanwhile()
    raise AssertionError(f"no event {kind!r} of node {node}")


def test_a_container_is_killed_and_started_again(boxes: Boxes, tmp_path: Path) -> None:
    with AgentTestbed(boxes.inventory(["n1", "n2"], heartbeat_s=0.5), tmp_path / "spool") as testbed:
        container = boxes.containers()["n2"]
        container.kill()
        lost = await_event(testbed, 1, "lost")
        assert "its container has stopped with status 137" in lost.message["reason"]
        await_event(testbed, 0, "heartbeat")
        container.start()
        await_event(testbed, 1, "back")
        await_event(testbed, 1, "heartbeat")


def test_a_container_is_removed(boxes: Boxes, tmp_path: Path) -> None:
    with AgentTestbed(boxes.inventory(["n1", "n2"], heartbeat_s=0.5), tmp_path / "spool") as testbed:
        boxes.containers()["n2"].remove(force=True)
        assert "its container was removed" in await_event(testbed, 1, "lost").message["reason"]
        with closing(boxes.provider()) as provider:  # `tracebed nodes up` in another terminal
            provider.up()
        await_event(testbed, 1, "back")


def test_a_paused_container_is_given_up_and_comes_back(boxes: Boxes, tmp_path: Path) -> None:
    with AgentTestbed(boxes.inventory(["n1", "n2"], heartbeat_s=0.5, linger_s=1.0), tmp_path / "spool") as testbed:
        container = boxes.containers()["n2"]
        container.pause()
        testbed.drop(1, "has been silent")  # as a replay does after the timeout of heartbeats
        assert await_event(testbed, 1, "lost").message["reason"] == "has been silent"
        await_event(testbed, 0, "heartbeat")
        container.unpause()
        await_event(testbed, 1, "back")
        until = time.monotonic() + GUARD_S
        while len(container.top()["Processes"]) > 3:  # init, sleep and the new agent: the old one ends
            assert time.monotonic() < until
            testbed.receive(time.monotonic() + 0.2)


@pytest.mark.filterwarnings("ignore:node n. its container")
def test_agents_end_with_a_killed_container(boxes: Boxes, tmp_path: Path) -> None:
    """The end of a testbed does not wait for nodes that cannot answer."""
    with AgentTestbed(boxes.inventory(["n1", "n2"]), tmp_path / "spool") as testbed:
        boxes.containers()["n1"].pause()
        boxes.containers()["n2"].kill()
        began = time.monotonic()
    assert testbed.family == "AF_INET"
    assert time.monotonic() - began < GUARD_S
    assert boxes.containers() == {}
