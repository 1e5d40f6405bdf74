"""Replays in containers, and containers that are killed, stopped and paused meanwhile."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import docker
import pytest
import yaml
from click.testing import CliRunner

from tests.executables import write_program
from tests.oracles.redecided import workload
from tests.oracles.survival import Case
from tests.patience import GUARD_S
from tests.runs import replaying
from tests.servers import dockerd
from tests.servers.agents import hear
from tests.servers.ports import free_ports
from tests.servers.sshd import Sshd
from tracebed.cli import demo as demo_module
from tracebed.cli import tracebed
from tracebed.converters.formats.writing import write_workload
from tracebed.ground.errors import TestbedError
from tracebed.orchestrator.replay.session import replay
from tracebed.orchestrator.testbeds.docker.provider import (
    NODE_LABEL,
    TESTBED_LABEL,
    DockerProvider,
    DockerSettings,
    container_options,
    group_label,
)
from tracebed.orchestrator.testbeds.inventory import load_inventory
from tracebed.orchestrator.testbeds.nodes import Group, Inventory, Node
from tracebed.orchestrator.testbeds.testbed import AgentTestbed

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_process_is_left")]

ROOT = Path(__file__).resolve().parents[2]


class Boxes:
    """An inventory of containers, and the containers as the engine shows them."""

    def __init__(self, address: str, folder: Path) -> None:
        self.address, self.folder = address, folder
        self.client = docker.DockerClient(address, timeout=int(GUARD_S))  # a busy engine may be slow
        self.groups: dict[str, Group] = {}

    def inventory(self, nodes: Sequence[str], *, name: str = "boxes", **parameters: Any) -> Inventory:
        """Return an inventory of emulated nodes with two cores."""
        found = tuple(Node(node, 2, emulated=True, provider="docker") for node in nodes)
        settings = DockerSettings(daemon=self.address, base=dockerd.BASE)
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
    run = replay(workload(), inventory, "pref", tmp_path / "run", **replaying(speed=100))
    assert set(run.jobs["state"]) == {"completed"}, run.jobs["reason"].tolist()
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
    run = replay(workload(4, nodes=2), inventory, "easy", tmp_path / "run", **replaying(speed=400))
    assert set(run.jobs["state"]) == {"completed"}
    assert {name: container.id for name, container in boxes.containers().items()} == before
    for container in boxes.containers().values():
        assert len(container.top()["Processes"]) == 2  # init and sleep: no agent is left


def test_groups_on_separate_networks_use_the_channels_of_their_agents(boxes: Boxes, tmp_path: Path) -> None:
    boxes.inventory(["n1", "n2"], name="first")
    inventory = boxes.inventory(["n3", "n4"], name="second")
    with AgentTestbed(inventory, tmp_path / "spool") as testbed:
        assert testbed.family == "agents"
    run = replay(workload(6), inventory, "pref", tmp_path / "run", **replaying(speed=200))
    assert set(run.jobs["state"]) == {"completed"}


COMPOSE = yaml.safe_load((ROOT / "docs/testbeds/compose.yaml").read_text(encoding="utf-8"))


def test_containers_of_compose_are_those_of_tracebed() -> None:
    """The documented file for `docker compose` has the same options as the containers that the provider makes."""
    assert COMPOSE["networks"] == {
        "nodes": {"internal": True, "driver_opts": {"com.docker.network.bridge.inhibit_ipv4": "true"}}
    }
    for name, service in COMPOSE["services"].items():
        made = container_options(DockerSettings(), Node(name, 2, emulated=True), "compose", "tracebed-node")
        ours = {key: value for key, value in made.items() if value is not None and key not in ("name", "detach")}
        ours["tmpfs"] = [f"{path}:{flags}" for path, flags in ours["tmpfs"].items()]
        ours["labels"] = {key: ours["labels"][key] for key in (TESTBED_LABEL, NODE_LABEL)}
        assert {key: value for key, value in service.items() if key != "networks"} == ours
        assert service["networks"] == ["nodes"]


@pytest.mark.skipif(shutil.which("docker-compose") is None, reason="no docker-compose: apt-get install docker-compose")
def test_a_replay_in_containers_of_compose(boxes: Boxes, tmp_path: Path) -> None:
    """Containers that the documented file makes run a replay, and stay."""
    boxes.inventory(["n1"])
    with closing(boxes.provider()) as provider:
        provider.up()  # which builds the image `tracebed-node`
        provider.down()
    label = f"compose-{tmp_path.parent.name}-{os.getpid()}"
    file = (ROOT / "docs/testbeds/compose.yaml").read_text(encoding="utf-8")
    (tmp_path / "compose.yaml").write_text(file.replace(f"{TESTBED_LABEL}: compose", f"{TESTBED_LABEL}: {label}"))
    compose, keys = ["docker-compose", "-p", label], {**os.environ, "DOCKER_HOST": boxes.address}
    try:
        subprocess.run([*compose, "up", "-d"], cwd=tmp_path, env=keys, check=True)
        settings = DockerSettings(daemon=boxes.address, existing=label)
        nodes = tuple(Node(name, 2, emulated=True, provider="docker") for name in COMPOSE["services"])
        groups = (Group("compose", "docker", settings, nodes, "mark"),)
        inventory = Inventory("compose", "agents", nodes, grain_s=0.02, groups=groups)
        run = replay(workload(6, nodes=2), inventory, "pref", tmp_path / "run", **replaying(speed=200))
        assert set(run.jobs["state"]) == {"completed"}
        left = boxes.client.containers.list(filters={"label": f"{TESTBED_LABEL}={label}"})
        assert {container.labels[NODE_LABEL] for container in left} == set(COMPOSE["services"])
    finally:
        subprocess.run([*compose, "down"], cwd=tmp_path, env=keys, check=True)


def test_the_demo_in_containers(container_engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_module, "SPEED", 60000)
    monkeypatch.setenv("DOCKER_HOST", container_engine)
    command = ["demo", "--on", "docker", "--base", dockerd.BASE, "-o", str(tmp_path / "demo")]
    result = CliRunner().invoke(tracebed, command)
    assert result.exit_code == 0, result.output
    assert (tmp_path / "demo/verdict/tracebed.html").is_file()
    with closing(docker.DockerClient(container_engine)) as client:
        names = [container.name for container in client.containers.list(all=True)]
    group = load_inventory(tmp_path / "demo/inventory.yaml").groups[0]
    assert not [name for name in names if group_label(group) in name]
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/absent.sock")
    result = CliRunner().invoke(tracebed, [*command, "--replace"])
    assert isinstance(result.exception, TestbedError) and "start Docker" in str(result.exception)
    assert (tmp_path / "demo/verdict/tracebed.html").is_file()


def test_a_container_is_killed_and_started_again(boxes: Boxes, tmp_path: Path) -> None:
    with AgentTestbed(boxes.inventory(["n1", "n2"], heartbeat_s=0.5), tmp_path / "spool") as testbed:
        container = boxes.containers()["n2"]
        container.kill()
        lost = hear(testbed, "lost", 1)
        assert "its container has stopped with status 137" in lost.message["reason"]
        hear(testbed, "heartbeat", 0)
        container.start()
        hear(testbed, "back", 1)
        hear(testbed, "heartbeat", 1)


def test_a_container_is_removed(boxes: Boxes, tmp_path: Path) -> None:
    with AgentTestbed(boxes.inventory(["n1", "n2"], heartbeat_s=0.5), tmp_path / "spool") as testbed:
        boxes.containers()["n2"].remove(force=True)
        assert "its container was removed" in hear(testbed, "lost", 1).message["reason"]
        with closing(boxes.provider()) as provider:  # `tracebed nodes up` in another terminal
            provider.up()
        hear(testbed, "back", 1)


def test_a_paused_container_is_given_up_and_comes_back(boxes: Boxes, tmp_path: Path) -> None:
    with AgentTestbed(boxes.inventory(["n1", "n2"], heartbeat_s=0.5, linger_s=1.0), tmp_path / "spool") as testbed:
        container = boxes.containers()["n2"]
        container.pause()
        testbed.drop(1, "has been silent")  # as a replay does after the timeout of heartbeats
        assert hear(testbed, "lost", 1).message["reason"] == "has been silent"
        hear(testbed, "heartbeat", 0)
        container.unpause()
        hear(testbed, "back", 1)
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
    assert set(boxes.containers()) == {"n1", "n2"}  # files of jobs could not be copied
    with closing(boxes.provider()) as provider:
        provider.down()
    assert boxes.containers() == {}


def test_nothing_is_left_of_a_killed_replay(boxes: Boxes, tmp_path: Path) -> None:
    file, work = tmp_path / "nodes.yaml", tmp_path / "w.parquet"
    keys = f"provider: docker, daemon: '{boxes.address}', base: '{dockerd.BASE}'"
    file.write_text(f"groups: {{boxes: {{{keys}, nodes: [{{name: 'n[1-2]', cores: 2, emulated: true}}]}}}}\n")
    write_workload(workload(6, nodes=2), work)
    label = f"{TESTBED_LABEL}={group_label(load_inventory(file).groups[0])}"
    command = [sys.executable, "-c", "from tracebed.cli import main; main()", "replay", str(work)]
    command += ["--policy", "pref"]
    command += ["--inventory", str(file), "--speed", "1", "-o", str(tmp_path / "run")]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    until = time.monotonic() + GUARD_S
    ranks = 0
    while not ranks:
        assert time.monotonic() < until and process.poll() is None, (tmp_path / "log").read_text()
        time.sleep(0.2)
        for container in boxes.client.containers.list(filters={"label": label}):
            ranks += len(container.top()["Processes"]) > 3  # init, sleep, the agent, and a rank
    process.kill()
    process.wait()
    result = CliRunner().invoke(tracebed, ["nodes", "down", str(file)])
    assert result.exit_code == 0, result.output
    assert "removing 2 containers" in result.output
    assert boxes.client.containers.list(all=True, filters={"label": label}) == []
    assert boxes.client.networks.list(filters={"label": label}) == []


DYING = """
import os, signal
from tracebed.orchestrator.testbeds.docker.provider import DockerProvider
step = DockerProvider.{step}
def die(self, *arguments):
    step(self, *arguments)
    os.kill(os.getpid(), signal.SIGKILL)
DockerProvider.{step} = die
"""


@pytest.mark.parametrize(("step", "made"), [("_network", 0), ("_make", 1), ("_start", 2)])
def test_nothing_is_left_of_a_replay_that_is_killed_while_it_makes_nodes(
    boxes: Boxes, tmp_path: Path, step: str, made: int
) -> None:
    """Either `tracebed nodes down` or the end of the resumed replay removes what was made."""
    keys = f"provider: docker, daemon: '{boxes.address}', base: '{dockerd.BASE}'"
    inventory = f"groups: {{boxes: {{{keys}, nodes: [{{name: 'n[1-2]', cores: 2, emulated: true}}]}}}}\n"
    case = Case(tmp_path, workload(3, nodes=2), inventory, "--policy", "easy", "--speed", "400", "--no-live")
    file = tmp_path / "i.yaml"
    label = f"{TESTBED_LABEL}={group_label(load_inventory(file).groups[0])}"
    down = ["nodes", "down", str(file)]
    try:
        for end in ("down", "resume"):
            process = case.start(hook=DYING.format(step=step))
            assert process.wait(GUARD_S) == -signal.SIGKILL, case.errors
            assert len(boxes.client.networks.list(filters={"label": label})) == 1
            assert len(boxes.client.containers.list(all=True, filters={"label": label})) >= made
            if end == "resume":
                run = case.finish(case.start("--resume"))
                assert set(run.jobs["state"]) == {"completed"}
            else:
                result = CliRunner().invoke(tracebed, down)
                assert result.exit_code == 0, result.output
                for folder in case.working:
                    shutil.rmtree(folder)
            assert boxes.client.containers.list(all=True, filters={"label": label}) == []
            assert boxes.client.networks.list(filters={"label": label}) == []
            assert case.working == []
    finally:
        case.end()
        CliRunner().invoke(tracebed, down)


def greet(inventory: Inventory, spool: Path) -> None:
    """Start agents, hear from each of them, and stop them."""
    with AgentTestbed(inventory, spool) as testbed:
        for node in range(len(testbed.nodes)):
            hear(testbed, "heartbeat", node)


def test_an_engine_on_another_host_by_ssh(boxes: Boxes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One SSH connection carries everything, and ends with the testbed. An unknown host is refused."""
    known, config, programs = tmp_path / "known_hosts", tmp_path / "ssh_config", tmp_path / "programs"
    write_program(programs / "ssh", f'#!/bin/sh\nexec {shutil.which("ssh")} -F {config} "$@"\n')
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    socket_there = boxes.address.removeprefix("unix://")
    with Sshd(tmp_path / "server") as server:
        config.write_text(server.config("engine-host", known, "StrictHostKeyChecking yes"))
        boxes.address = f"ssh://engine-host{socket_there}"
        inventory = boxes.inventory(["n1", "n2"], heartbeat_s=0.5)
        with pytest.raises(TestbedError, match=r"no container engine answers at ssh://engine-host.*: Host key"):
            greet(inventory, tmp_path / "refused")
        known.write_text(server.known())
        greet(inventory, tmp_path / "spool")
        assert boxes.containers() == {}
        boxes.address = f"ssh://engine-host{tmp_path}/absent.sock"
        with pytest.raises(TestbedError, match="no container engine answers"):
            greet(boxes.inventory(["n1"]), tmp_path / "absent")
        boxes.groups.clear()


@pytest.fixture
def certificates(tmp_path: Path) -> Path:
    """Return a folder with an authority, and a certificate of it for both ends."""
    folder = tmp_path / "certificates"
    folder.mkdir()
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    (folder / "extensions").write_text("subjectAltName=IP:127.0.0.1\n")
    for command in (
        ["req", "-x509", *key, "-days", "2", "-keyout", "ca-key.pem", "-out", "ca.pem", "-subj", "/CN=authority"],
        ["req", "-new", *key, "-keyout", "key.pem", "-out", "request.pem", "-subj", "/CN=localhost"],
        [
            *["x509", "-req", "-in", "request.pem", "-days", "2", "-out", "cert.pem", "-extfile", "extensions"],
            *["-CA", "ca.pem", "-CAkey", "ca-key.pem", "-CAcreateserial"],
        ],
    ):
        subprocess.run(["openssl", *command], cwd=folder, check=True, capture_output=True)
    return folder


def test_an_engine_at_a_tcp_address_with_tls(certificates: Path, tmp_path: Path) -> None:
    if reason := dockerd.reason_to_skip():
        pytest.skip(reason)
    port = free_ports(1)[0]
    names = {"--tlscacert": "ca.pem", "--tlscert": "cert.pem", "--tlskey": "key.pem"}
    more = [word for name, file in names.items() for word in (name, str(certificates / file))]
    with dockerd.engine("--tlsverify", *more, "-H", f"tcp://127.0.0.1:{port}", alone=False) as address:
        settings = DockerSettings(daemon=f"tcp://127.0.0.1:{port}", tls=str(certificates), base=dockerd.BASE)
        nodes = tuple(Node(name, 2, emulated=True, provider="docker") for name in ("n1", "n2"))
        groups = (Group("tls", "docker", settings, nodes, str(tmp_path)),)
        greet(Inventory("tls", "agents", nodes, groups=groups, heartbeat_s=0.5), tmp_path / "spool")
        provider = DockerProvider(groups[0], tmp_path, lambda step: None)
        with closing(provider), closing(docker.DockerClient(address)) as client:
            provider.up()
            channel = provider.run(nodes[0], [])
            channel.close()  # the end of the input reaches the agent, which was not greeted and ends
            until = time.monotonic() + GUARD_S
            while channel.poll() is None:
                assert time.monotonic() < until
                time.sleep(0.05)
            channel.kill()
            assert channel.poll() == 0
            provider.down()
            assert client.containers.list(all=True) == []
