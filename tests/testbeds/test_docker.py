"""Nodes that are containers: real containers of a real engine, with a base image made by debootstrap."""

from __future__ import annotations

import http.client
import io
import json
import os
import socket
import tarfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import docker
import pytest
from pydantic import ValidationError

from tests.servers import dockerd
from tracebed.ground.errors import InputError, TestbedError
from tracebed.orchestrator.testbeds.docker import engine
from tracebed.orchestrator.testbeds.docker.engine import ExecConnection, Frames
from tracebed.orchestrator.testbeds.docker.provider import (
    CONFIG_LABEL,
    NODE_LABEL,
    TESTBED_LABEL,
    DockerProvider,
    DockerSettings,
    container_options,
)
from tracebed.orchestrator.testbeds.inventory import load_inventory
from tracebed.orchestrator.testbeds.nodes import Group, Inventory, Node
from tracebed.orchestrator.testbeds.replay_folder import MADE, groups_made, unpack
from tracebed.orchestrator.testbeds.testbed import AgentTestbed

# Without an engine.


@pytest.mark.parametrize(
    ("address", "tls"),
    [
        ("unix:///run/docker.sock", None),
        ("ssh://host", None),
        ("ssh://user@host.example:2222/run/podman/podman.sock", None),
        ("tcp://host:2376", Path("certificates")),
    ],
)
def test_addresses_of_engines(address: str, tls: Path | None) -> None:
    assert engine.check_address(address, tls) == address


@pytest.mark.parametrize(
    ("address", "tls", "what"),
    [
        ("tcp://host:2375", None, "needs `tls`"),
        ("tcp://host", Path("certificates"), "is not unix"),
        ("unix://relative.sock", None, "is not unix"),
        ("unix:///run/docker.sock", Path("certificates"), "is for a daemon"),
        ("http://host", None, "is not unix"),
        ("ssh://-oProxyCommand=touch", None, "is not unix"),
        ("ssh://-oProxyCommand=touch@host", None, "is not unix"),
        ("ssh://user:secret@host", None, "parts other than"),
        ("ssh://host/run/a:b", None, "is not unix"),
        ("ssh://host:port", None, "is not an address"),
        ("host", None, "is not unix"),
    ],
)
def test_other_addresses_are_refused(address: str, tls: Path | None, what: str) -> None:
    with pytest.raises(ValueError, match=what):
        engine.check_address(address, tls)


@pytest.mark.parametrize(
    ("keys", "what"),
    [
        ({"daemon": "tcp://host:2375"}, "needs `tls`"),
        ({"tls": "certificates"}, "`tls` needs `daemon"),
        ({"image": "x", "base": "y"}, "`image` and `base` exclude each other"),
        ({"existing": "x", "pids": 100}, "cannot have the settings pids"),
        ({"privileged": True}, "Extra inputs"),
    ],
)
def test_settings_that_contradict_each_other(keys: dict[str, Any], what: str) -> None:
    with pytest.raises(ValidationError, match=what):
        DockerSettings(**keys)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two nodes need two CPUs; this machine has one")
def test_containers_of_a_group_are_parts_of_one_machine(tmp_path: Path) -> None:
    file = tmp_path / "nodes.yaml"
    text = "groups: {{boxes: {{provider: docker, nodes: [{{name: 'n[1-2]', {keys}}}]}}}}\n"
    file.write_text(text.format(keys="cpus: auto"))
    cpus = [node.cpus for node in load_inventory(file).nodes]
    assert len(set(cpus)) == 2
    file.write_text(text.format(keys="cpus: 0"))
    with pytest.raises(InputError, match="nodes 'n1' and 'n2' share CPU 0"):
        load_inventory(file)


def test_the_environment_names_the_engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", "tcp://host:2376")
    monkeypatch.setenv("DOCKER_CERT_PATH", "certificates")
    assert engine.default_address() == ("tcp://host:2376", Path("certificates"))
    monkeypatch.setenv("DOCKER_HOST", "unix:///run/other.sock")
    assert engine.default_address() == ("unix:///run/other.sock", None)
    monkeypatch.setenv("DOCKER_HOST", "tcp://host:2375")
    monkeypatch.delenv("DOCKER_CERT_PATH")
    with pytest.raises(InputError, match="DOCKER_HOST: a daemon at a TCP address needs `tls`"):
        _ = engine.Engine(None, None, "nodes x").client


def test_an_absent_engine_is_an_error_with_the_way_to_start_it(tmp_path: Path) -> None:
    absent = engine.Engine(f"unix://{tmp_path}/docker.sock", None, "nodes x")
    with pytest.raises(TestbedError, match=r"nodes x: no container engine answers at .*No such file.*start Docker"):
        _ = absent.client


def test_ranks_of_two_groups_of_containers_cannot_connect_by_tcp(tmp_path: Path) -> None:
    groups = tuple(
        Group(
            name, "docker", DockerSettings(daemon="unix:///nowhere"), (Node(name, 1, emulated=True, provider="docker"),)
        )
        for name in ("a", "b")
    )
    nodes = tuple(node for group in groups for node in group.nodes)
    both = Inventory("i", "agents", nodes, groups=groups, network="tcp")
    with pytest.raises(TestbedError, match="group a: `network: tcp` connects no other groups"):
        AgentTestbed(both, tmp_path / "spool").start()


def test_a_container_cannot_gain_anything() -> None:
    made = container_options(DockerSettings(), Node("n 1", 2, cpus=(2, 3), memory_mib=300), "t", "image")
    assert made["cap_drop"] == ["ALL"] and made["security_opt"] == ["no-new-privileges"] and made["read_only"]
    assert not made.keys() & {"privileged", "ports", "volumes", "devices", "cap_add", "pid_mode", "ipc_mode"}
    assert made["user"] == "10001:10001" and made["pids_limit"] == 4096
    assert made["cpuset_cpus"] == "2-3" and made["mem_limit"] == made["memswap_limit"] == "300m"
    assert " " not in made["name"] and made["hostname"] is None


def test_each_change_of_a_container_changes_its_mark() -> None:
    node = Node("n1", 1, cpus=(0,))
    settings = (DockerSettings(), DockerSettings(pids=100), DockerSettings(spool_mib=9))
    made = [container_options(one, node, "t", "image") for one in settings]
    made += [container_options(DockerSettings(), replace(node, memory_mib=100), "t", "image")]
    made += [container_options(DockerSettings(), node, "t", "other image")]
    assert len({options["labels"][CONFIG_LABEL] for options in made}) == len(made)
    assert made[0] == container_options(DockerSettings(), node, "t", "image")


def frame(stream: int, content: bytes) -> bytes:
    return bytes([stream, 0, 0, 0]) + len(content).to_bytes(4, "big") + content


@pytest.mark.parametrize("size", [1, 7, 8, 9, 1000])
def test_output_and_standard_error_are_taken_apart(size: int, tmp_path: Path) -> None:
    stream = frame(1, b"one\n") + frame(2, b"first\nsecond\n") + frame(1, b"") + frame(1, b"two\n") + frame(2, b"\n")
    frames = Frames(tmp_path / "log")
    pieces = [stream[start : start + size] for start in range(0, len(stream), size)]
    assert b"".join(map(frames.output, pieces)) == b"one\ntwo\n"
    assert (tmp_path / "log").read_bytes() == b"first\nsecond\n\n"
    assert (tmp_path / "log").stat().st_mode & 0o777 == 0o600
    assert frames.last_line == "second"


def test_a_stream_of_a_terminal_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConnectionError, match="stream 123"):
        Frames(tmp_path / "log").output(b'{"type": "hello"}\n')


def test_output_that_arrives_with_the_headers_of_the_engine_is_not_lost() -> None:
    here, there = socket.socketpair()
    with here, there:
        there.sendall(b"HTTP/1.1 101 UPGRADED\r\nUpgrade: tcp\r\n\r\n" + frame(1, b"early"))
        response = http.client.HTTPResponse(here)
        response.begin()
        stream = response.fp.raw  # as the SDK of Docker takes it
        stream._response = SimpleNamespace(raw=SimpleNamespace(_fp=response), close=response.close)
        with closing(ExecConnection(stream)) as connection:
            assert connection.receive() == frame(1, b"early")
            with pytest.raises(BlockingIOError):
                connection.receive()
            there.sendall(frame(1, b"late"))
            assert connection.receive() == frame(1, b"late")


def test_an_archive_from_a_node_replaces_no_other_files(tmp_path: Path) -> None:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        for name in (
            "job-1/n1.out",
            "/job-2/n1.out",
            "job-3/../journal.jsonl",
            "journal.jsonl",
            "job-4/..",
            "job-1/n2.out",
            "job-5/a/b",
        ):
            member = tarfile.TarInfo(name)
            member.size = 2
            archive.addfile(member, io.BytesIO(b"ok"))
        link = tarfile.TarInfo("job-6/link")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    data.seek(0)
    target = tmp_path / "target"
    unpack(data, "n1", target)
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if not path.is_dir()] == [
        "target/job-1/n1.out"
    ]
    assert (target / "job-1").stat().st_mode & 0o777 == 0o700


# With an engine.

Make = Callable[..., DockerProvider]


@pytest.fixture
def make(container_engine: str, tmp_path: Path) -> Iterator[Make]:
    """Return a function that makes a provider. What its `up` makes is removed after the test."""
    made = []

    def provider(nodes: Sequence[Node], mark: str = "", **settings: Any) -> DockerProvider:
        keys = {"daemon": container_engine, **settings}
        if not keys.keys() & {"existing", "image", "base"}:
            keys["base"] = dockerd.BASE
        place = Group("test", "docker", DockerSettings(**keys), tuple(nodes), f"{tmp_path}{mark}")
        made.append(DockerProvider(place, tmp_path, lambda step: None))
        return made[-1]

    yield provider
    for one in made:
        one.down()
        one.close()


@pytest.fixture
def client(container_engine: str) -> Iterator[docker.DockerClient]:
    with closing(docker.DockerClient(container_engine)) as client:
        yield client


EMULATED = (Node("n1", 4, emulated=True), Node("n2", 4, emulated=True))


def of(client: docker.DockerClient, provider: DockerProvider) -> dict[str, Any]:
    """Return node -> container of the provider, from the engine."""
    found = client.containers.list(all=True, filters={"label": f"{TESTBED_LABEL}={provider.testbed}"})
    return {container.labels[NODE_LABEL]: container for container in found}


def inside(container: Any, program: str) -> Any:
    """Run a program in a container, and return the JSON that it prints."""
    done = container.exec_run(["python3", "-c", program])
    assert done.exit_code == 0, done.output.decode()
    return json.loads(done.output)


@pytest.mark.slow
def test_up_and_down(make: Make, client: docker.DockerClient) -> None:
    provider = make(EMULATED)
    provider.up()
    assert provider.made
    first = {name: container.id for name, container in of(client, provider).items()}
    assert first.keys() == {"n1", "n2"}
    addresses = {provider.bind(node) for node in EMULATED}
    assert len(addresses) == 2 and None not in addresses
    other = make(EMULATED)  # another process with the same inventory
    other.up()
    assert not other.made
    assert {name: container.id for name, container in of(client, provider).items()} == first
    of(client, provider)["n1"].kill()
    other.up()
    assert not other.made
    assert {name: container.status for name, container in of(client, provider).items()} == dict.fromkeys(
        ["n1", "n2"], "running"
    )
    third = make(EMULATED)  # the controller was killed: another process removes everything
    third.down()
    assert of(client, provider) == {}
    assert client.networks.list(filters={"label": f"{TESTBED_LABEL}={provider.testbed}"}) == []
    third.down()


@pytest.mark.slow
def test_nodes_of_an_image_without_tracebed_are_not_ready(make: Make) -> None:
    """Also the second time, when the containers run already."""
    provider = make(EMULATED, image=dockerd.BASE)
    for _ in range(2):
        with pytest.raises(TestbedError, match=f"the image {dockerd.BASE} cannot run an agent: .*tracebed") as refused:
            provider.up()
        assert refused.value.where == "node n1" and "with tracebed" in str(refused.value)


@pytest.mark.slow
def test_what_is_made_is_noted_before_it_is_made(
    make: Make, client: docker.DockerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A controller that is killed during `up` has noted what the resumed replay must remove."""
    provider = make(EMULATED)
    provider.up()
    of(client, provider)["n1"].remove(force=True)
    (provider.folder / MADE).unlink()
    again = make(EMULATED)
    noted: list[set[str]] = []
    work = again._make

    def make_one(*given: Any) -> None:
        noted.append(groups_made(again.folder))
        work(*given)

    monkeypatch.setattr(again, "_make", make_one)
    again.up()
    assert again.made
    assert noted == [{again.group.name}]


@pytest.mark.slow
def test_other_containers_are_left_alone(make: Make, client: docker.DockerClient) -> None:
    ours, theirs = make(EMULATED), make(EMULATED, mark="another inventory")
    ours.up()
    theirs.up()
    ours.down()
    assert of(client, ours) == {}
    assert of(client, theirs).keys() == {"n1", "n2"}


@pytest.mark.slow
def test_changed_settings_are_refused_while_containers_run(make: Make, client: docker.DockerClient) -> None:
    make(EMULATED).up()
    changed = make(EMULATED, pids=100)
    with pytest.raises(TestbedError, match=r"node n1: its container runs with other settings.*tracebed nodes down"):
        changed.up()
    of(client, changed)["n1"].stop(timeout=0)
    of(client, changed)["n2"].stop(timeout=0)
    changed.up()
    assert {container.attrs["HostConfig"]["PidsLimit"] for container in of(client, changed).values()} == {100}


@pytest.mark.slow
def test_an_image_is_built_once(make: Make, client: docker.DockerClient) -> None:
    steps: list[str] = []
    for _ in range(2):
        provider = make(EMULATED[:1])
        provider.on_step = steps.append
        provider.up()
        provider.down()
    assert sum("building" in step for step in steps) <= 1
    images = client.images.list(filters={"label": "tracebed.image=node"})
    assert images


@pytest.mark.slow
def test_an_unknown_base_is_an_error_with_the_way_on(make: Make) -> None:
    with pytest.raises(TestbedError, match=r"image absent:1 is not on the engine and cannot be pulled.*`base:`"):
        make(EMULATED, base="absent:1").up()


@pytest.mark.slow
def test_a_node_that_cannot_be_made_leaves_the_others_in_place(make: Make, client: docker.DockerClient) -> None:
    provider = make((EMULATED[0], Node("n9", 1, cpus=(99_999,))))
    with pytest.raises(TestbedError, match=r"node n9: its container cannot be created: .*99999"):
        provider.up()
    assert provider.made and of(client, provider)["n1"].status == "running"
    provider.down()
    assert of(client, provider) == {}


SECURITY = """
import json, os, socket
status = dict(line.split(":\\t", 1) for line in open("/proc/self/status").read().splitlines() if ":\\t" in line)
def writable(path):
    try:
        open(path, "w").close()
    except OSError as error:
        return error.strerror
    return True
def connects(*address):
    try:
        socket.create_connection(address, 1).close()
    except OSError:
        return False
    return True
mounts = [line.split() for line in open("/proc/mounts")]
print(json.dumps({
    "uid": os.getresuid(), "gid": os.getresgid(),
    "capabilities": [status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")],
    "no_new_privileges": status["NoNewPrivs"], "seccomp": status["Seccomp"],
    "files": {path: writable(path) for path in "/x /etc/x /opt/tracebed/x /var/tmp/x /tmp/x /dev/shm/x".split()},
    "disks": sorted(mount[1] for mount in mounts if "rw" in mount[3].split(",") and mount[0].startswith("/dev/")),
    "cpus": sorted(os.sched_getaffinity(0)),
    "outside": connects("192.0.2.1", 53) or connects("1.1.1.1", 53),
    "host": connects(os.environ.get("GATEWAY", "127.0.0.2"), int(os.environ.get("PORT", 9))),
    "processes": [pid for pid in os.listdir("/proc") if pid.isdecimal()],
}))
"""


@pytest.mark.slow
def test_security_as_seen_from_inside(make: Make, client: docker.DockerClient) -> None:
    import socket

    cpu = min(os.sched_getaffinity(0))
    provider = make((Node("n1", 1, cpus=(cpu,), memory_mib=128), EMULATED[1]))
    provider.up()
    container = of(client, provider)["n1"]
    (network,) = container.attrs["NetworkSettings"]["Networks"].values()
    with closing(socket.create_server(("", 0))) as server:  # a server of the host, on all of its addresses
        gateway = network["Gateway"] or network["IPAddress"].rpartition(".")[0] + ".1"
        environment = {"GATEWAY": gateway, "PORT": str(server.getsockname()[1])}
        done = container.exec_run(["python3", "-c", SECURITY], environment=environment)
    assert done.exit_code == 0, done.output.decode()
    seen = json.loads(done.output)
    assert seen["uid"] == seen["gid"] == [10001] * 3
    assert set(seen["capabilities"]) == {"0" * 16}
    assert seen["no_new_privileges"] == "1" and seen["seccomp"] == "2"
    read_only = "Read-only file system"
    assert seen["files"] == {
        **dict.fromkeys(["/x", "/etc/x", "/opt/tracebed/x"], read_only),
        **dict.fromkeys(["/var/tmp/x", "/tmp/x", "/dev/shm/x"], True),
    }
    assert seen["disks"] == []
    assert seen["cpus"] == [cpu]
    assert not seen["outside"] and not seen["host"]
    assert len(seen["processes"]) == 3  # init, sleep and this one: no process of the host or of another container
    assert container.attrs["HostConfig"]["Memory"] == 128 * 2**20
    assert not any(container.attrs["NetworkSettings"]["Ports"].values())


@pytest.mark.slow
def test_files_of_jobs_are_copied_here(make: Make, client: docker.DockerClient, tmp_path: Path) -> None:
    provider = make(EMULATED[:1])
    provider.up()
    container = of(client, provider)["n1"]
    container.restart(timeout=0)  # which must leave the spool writable
    spool = provider.spool(EMULATED[0])
    program = f"import os; os.makedirs('{spool}/job-1'); print(open('{spool}/job-1/n1.out', 'w').write('x' * 100_000))"
    assert inside(container, program) == 100_000
    provider.fetch(EMULATED[0], tmp_path / "target")
    assert (tmp_path / "target/job-1/n1.out").read_text() == "x" * 100_000
    container.stop(timeout=0)
    with pytest.raises(TestbedError, match=r"node n1: its container has ended with status 1\d\d"):
        provider.fetch(EMULATED[0], tmp_path / "target")


@pytest.mark.slow
def test_containers_of_two_testbeds_do_not_compute_on_the_same_cpu(make: Make, client: docker.DockerClient) -> None:
    cpu = min(os.sched_getaffinity(0))
    first, second = (make((Node("n1", 1, cpus=(cpu,)),), mark=mark) for mark in ("first", "second"))
    first.up()
    with pytest.raises(TestbedError, match=rf"the container tracebed-\w+-n1 computes on the CPUs {cpu}"):
        second.up()
    assert of(client, second) == {}
    first.down()
    second.up()


@pytest.mark.slow
def test_existing_containers_are_found_and_kept(make: Make, client: docker.DockerClient, tmp_path: Path) -> None:
    maker = make(EMULATED)
    maker.up()
    provider = make(EMULATED, existing=maker.testbed)
    provider.up()
    assert not provider.made
    provider.down()
    assert of(client, maker).keys() == {"n1", "n2"}
    of(client, maker)["n2"].stop(timeout=0)
    labels = f"tracebed.testbed={maker.testbed} and tracebed.node=n2"
    with pytest.raises(TestbedError, match=f"node n2: no container with the labels {labels} runs"):
        provider.up()
