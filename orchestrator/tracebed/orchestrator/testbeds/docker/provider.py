"""The provider `docker`: each node is a container, on a network without a route to the outside.

Containers and networks have labels, by which `down` finds them, including those of a killed controller. Agents run
by `docker exec`, whose connection carries their input and output. The image of the containers is built once for each
content, without network.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import socket
import tarfile
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import BaseModel, Field, model_validator

from tracebed.ground import system
from tracebed.ground.cpus import format_cpus, parse_cpus
from tracebed.ground.display import counted
from tracebed.ground.errors import TestbedError
from tracebed.orchestrator.testbeds.agent.claims import SPACE, claim_cpus
from tracebed.orchestrator.testbeds.docker.engine import (
    PACK,
    PYTHON,
    Engine,
    ExecChannel,
    check_address,
    run_in_container,
)
from tracebed.orchestrator.testbeds.nodes import Group, Node
from tracebed.orchestrator.testbeds.provider import AGENT_MODULE, NotReadyError
from tracebed.orchestrator.testbeds.pump import Pump
from tracebed.orchestrator.testbeds.replay_folder import agent_log, name_on_nodes, note_making, unpack
from tracebed.orchestrator.testbeds.settings import ProviderSettings
from tracebed.orchestrator.testbeds.wheelhouse import wheel

if TYPE_CHECKING:
    from docker.models.images import Image
    from docker.models.networks import Network

Facts = dict[str, Any]  # a container as in the list of an engine: `Id`, `State`, `Labels`, `NetworkSettings`, `Created`
REMOVAL_S = 30.0  # time in which an engine must remove containers after the request, s
LIVE = {"running", "paused", "restarting"}  # states of containers that have processes

# Hint of an error that an image of the user may explain.
IMAGE_HINT = "`image` is an image of the engine (`docker pull`) with tracebed; or set `base`, and one is built"
UNLIMITED = (
    "the engine ignores the limits of its containers: memory, CPUs and processes (rootless Podman applies them on "
    "cgroup v2 only: start Linux with systemd.unified_cgroup_hierarchy=1, or use Podman as root)"
)
DOCKERFILE = Path(__file__).with_name("Dockerfile")
BASE = "python:3-slim"  # the public base image of containers, unless the inventory sets another one
IMAGE_NAME = "tracebed-node"
MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}  # architecture as Podman names it -> as Python names it
# Labels with the set of containers that a group has, and with the name of the node.
TESTBED_LABEL, NODE_LABEL = "tracebed.testbed", "tracebed.node"
# Labels with the CPUs of a computing node, and with the set of claims (see `claims.SPACE`).
CPUS_LABEL, CLAIMS_LABEL = "tracebed.ground.cpus", "tracebed.claims"
CONFIG_LABEL = "tracebed.config"  # label with a digest of the image and the options of the container

SPOOL = "/var/tmp"  # Folder with mode 1777 in the images. The memory mounted there takes over this mode at each start.
USER = 10001  # user and group of the agents, as in the Dockerfile
MEMORY = "rw,nosuid,nodev,noexec,mode=1777"


class DockerSettings(ProviderSettings):
    """The keys of a group of containers."""

    splits_this_machine: ClassVar[bool] = True
    """Nodes of a group are parts of one machine, which `cpus: auto` assumes to be this machine."""

    daemon: str | None = None
    """Address of the container engine. None: as for the command `docker`."""
    tls: str | None = None
    """Folder with `ca.pem`, `cert.pem` and `key.pem`, for a daemon at a TCP address."""
    base: str = BASE
    """Image with Python 3.11 or newer, as `python3`, from which the image of the nodes is built."""
    image: str | None = None
    """Image in which tracebed is installed. None: the image is built from `base`."""
    existing: str | None = None
    """The label `tracebed.testbed` of existing containers. tracebed neither creates nor removes them."""
    pids: Annotated[int, Field(ge=16, le=2**22)] = 4096
    """Largest number of processes and threads of a node."""
    spool_mib: Annotated[int, Field(ge=1)] = 256
    """Size of the folder for files of agents and jobs, which is in memory, MiB."""
    shm_mib: Annotated[int, Field(ge=1)] = 64
    """Size of /dev/shm and of /tmp, which are in memory, MiB each."""

    @model_validator(mode="after")
    def _consistent(self) -> DockerSettings:
        if self.daemon is not None:
            check_address(self.daemon, None if self.tls is None else Path(self.tls))
        elif self.tls is not None:
            raise ValueError("`tls` needs `daemon: tcp://HOST:PORT`")
        made = {"image", "base", "pids", "spool_mib", "shm_mib"} & self.model_fields_set
        if self.existing is not None and made:
            raise ValueError(f"`existing` containers cannot have the settings {', '.join(sorted(made))}")
        if self.image is not None and "base" in made:
            raise ValueError("`image` and `base` exclude each other: the image is either given or built from `base`")
        return self


class DockerProvider:
    """Nodes that are containers of one engine."""

    name: ClassVar[str] = "docker"
    Settings: ClassVar[type[BaseModel]] = DockerSettings
    shared = False
    fan_out = 8

    def __init__(self, group: Group, folder: Path, on_step: Callable[[str], None]) -> None:
        assert isinstance(group.settings, DockerSettings)
        self.group, self.folder, self.on_step = group, folder, on_step
        self.settings = group.settings
        self.made = False
        self.testbed = group_label(group)
        tls = None if self.settings.tls is None else Path(self.settings.tls)
        self.engine = Engine(self.settings.daemon, tls, f"nodes {group.name}")
        # Whether the nodes have a network that other groups cannot reach.
        self.isolated = self.settings.existing is None
        self._pump: Pump | None = None
        self._lock = threading.Lock()
        self._containers: dict[str, Facts] = {}  # node -> its container

    # The nodes.

    def up(self) -> None:
        """Create and start the containers that do not run, in parallel, unless another testbed uses the same CPUs."""
        with ThreadPoolExecutor(self.fan_out) as pool:
            existing = self._find()
            if self.settings.existing is not None:
                self._check_existing(existing)
                return
            image = self.settings.image or node_image(self.engine, self.settings.base, self.on_step)
            expected = {node: container_options(self.settings, node, self.testbed, image) for node in self.group.nodes}
            for node, options in expected.items():
                self._check_unchanged(node, existing.get(node.name), options)
            todo = [node for node in self.group.nodes if existing.get(node.name, {}).get("State") != "running"]
            if todo:
                self.on_step(f"starting {counted(len(todo), 'container')}")
            if any(node.name not in existing for node in self.group.nodes):
                note_making(self)
            network = self._network()
            errors: list[TestbedError] = []

            def each(step: Callable[[Node], None], nodes: Iterable[Node]) -> list[Node]:
                """Carry out a step for all nodes concurrently, and return the nodes without a failure."""

                def attempt(node: Node) -> bool:
                    try:
                        step(node)
                    except TestbedError as error:
                        errors.append(error)
                        return False
                    return True

                nodes = list(nodes)
                return [node for node, done in zip(nodes, pool.map(attempt, nodes), strict=True) if done]

            made = each(lambda node: self._make(node, expected[node], network, existing.get(node.name)), todo)
            others = self._other_computing()
            each(self._start, each(lambda node: self._refuse_shared_cpus(node, others), made))
            self._containers = existing = self._find()
            running = (node for node in self.group.nodes if existing.get(node.name, {}).get("State") == "running")
            each(self._check_one, islice(running, 1))  # the image and the engine are those of all nodes
        if errors:
            raise errors[0]

    def down(self) -> None:
        """Remove the containers and the network of the group. Images are kept."""
        if self.settings.existing is None:
            with ThreadPoolExecutor(self.fan_out) as pool:
                self._remove(pool)

    def run(self, node: Node, arguments: Sequence[str]) -> ExecChannel:
        """Run the agent in the container of the node. The CPUs of a computing node are claimed until `kill`."""
        container = self._container(node)
        claims: list[socket.socket] = []

        def release() -> None:
            for claim in claims:
                claim.close()

        environment = {SPACE: os.environ[SPACE]} if SPACE in os.environ else {}
        command = [PYTHON, "-P", "-m", AGENT_MODULE, *arguments]
        log = agent_log(self.folder, node)
        try:
            if node.cpus is not None and self.engine.here:
                claims += claim_cpus(node.cpus)
            return ExecChannel(self.engine, container, command, environment, self._carrier(), log, release)
        except TestbedError as error:
            release()
            where = f"node {node.name}"
            raise TestbedError(error.what, where=where, hint=error.hint, transient=error.transient) from error
        except BaseException:
            release()
            raise

    def spool(self, node: Node) -> str:
        """Return the folder for the files of jobs and agents of this replay in the container."""
        return f"{SPOOL}/{name_on_nodes(self.folder)}"

    def fetch(self, node: Node, target: Path) -> None:
        """Copy the files of jobs from the container to the folder `target`."""
        command = [PYTHON, "-I", "-c", PACK, self.spool(node)]
        run_in_container(self.engine, self._container(node), command, lambda stream: unpack(stream, node.name, target))

    def bind(self, node: Node) -> str | None:
        """Return the address of the container in its network, which has no route to the outside."""
        if node.name not in self._containers:
            self._container(node)
        networks = self._containers[node.name]["NetworkSettings"]["Networks"]
        addresses = [str(network["IPAddress"]) for network in networks.values() if network["IPAddress"]]
        return addresses[0] if len(addresses) == 1 else None

    def close(self) -> None:
        """Close the connections to the engine. The next call opens them again."""
        with self._lock:
            if self._pump is not None:
                self._pump.close()
                self._pump = None
        self.engine.close()

    def _carrier(self) -> Pump:
        with self._lock:
            self._pump = self._pump or Pump()
            return self._pump

    # Containers.

    def _find(self) -> dict[str, Facts]:
        """Return node -> its container, running or not."""
        with self.engine.errors("the containers cannot be listed"):
            existing = self.engine.client.api.containers(all=True, filters={"label": f"{TESTBED_LABEL}={self.testbed}"})
        return {facts["Labels"][NODE_LABEL]: facts for facts in existing if NODE_LABEL in facts["Labels"]}

    def _container(self, node: Node) -> str:
        """Return the ID of the running container of the node."""
        where = f"node {node.name}"
        if node.name not in self._containers:
            self._containers |= self._find()
        if node.name not in self._containers:
            raise NotReadyError("has no container", node, hint="start it: tracebed nodes up")
        container = str(self._containers[node.name]["Id"])
        try:
            with self.engine.errors("its container cannot be inspected", where=where):
                facts = self.engine.client.api.inspect_container(container)
        except TestbedError:
            del self._containers[node.name]  # another one may have replaced it
            raise
        self._containers[node.name] = facts
        state = facts["State"]
        if state["Status"] == "created":
            raise NotReadyError("is not up", node, hint="start it: tracebed nodes up")
        if state["Paused"] or not state["Running"]:
            how = "is paused" if state["Paused"] else f"has ended with status {state['ExitCode']}"
            hint = None if self.settings.image is None or state["Paused"] else IMAGE_HINT
            raise TestbedError(f"its container {how}", where=where, hint=hint, transient=True)
        return container

    def _check_existing(self, existing: dict[str, Facts]) -> None:
        for node in self.group.nodes:
            if existing.get(node.name, {}).get("State") != "running":
                raise TestbedError(
                    f"no container with the labels {TESTBED_LABEL}={self.testbed} and {NODE_LABEL}={node.name} runs",
                    where=f"node {node.name}",
                    hint="start the containers, for example with `docker compose up -d`",
                )
        self._containers = existing

    def _check_unchanged(self, node: Node, existing: Facts | None, options: dict[str, Any]) -> None:
        """Raise TestbedError if the options of a running container differ from the options of a new container."""
        if (
            existing
            and existing["State"] in LIVE
            and existing["Labels"].get(CONFIG_LABEL) != options["labels"][CONFIG_LABEL]
        ):
            raise TestbedError(
                "its container runs with other settings, or another version of tracebed",
                where=f"node {node.name}",
                hint="remove the containers first: tracebed nodes down",
            )

    def _make(self, node: Node, options: dict[str, Any], network: str, existing: Facts | None) -> None:
        """Create the container of a node. A stopped container with the same options is kept."""
        hint = None if existing is not None or self.settings.image is None else IMAGE_HINT
        with self.engine.errors("its container cannot be created", where=f"node {node.name}", hint=hint):
            if existing is not None:
                if existing["Labels"].get(CONFIG_LABEL) == options["labels"][CONFIG_LABEL]:
                    return
                self.engine.client.api.remove_container(existing["Id"], v=True, force=True)
            self.engine.client.containers.create(**options, network=network)

    def _start(self, node: Node) -> None:
        with self.engine.errors("its container does not start", where=f"node {node.name}"):
            self.engine.client.api.start(container_name(self.testbed, node))

    def _check_one(self, node: Node) -> None:
        """Warn if a running container has no limits, and raise TestbedError if the user's image has no tracebed."""
        container = str(self._containers[node.name]["Id"])
        with self.engine.errors("its container cannot be inspected", where=f"node {node.name}"):
            limits = self.engine.client.api.inspect_container(container)["HostConfig"]
        if limits["PidsLimit"] != self.settings.pids:
            warnings.warn(f"{self.engine.where}: {UNLIMITED}", stacklevel=2)
        if self.settings.image is None:
            return
        try:
            run_in_container(self.engine, container, [PYTHON, "-P", "-c", f"import {AGENT_MODULE}"])
        except TestbedError as error:
            what = f"the image {self.settings.image} cannot run an agent: {error.what}"
            raise TestbedError(what, where=f"node {node.name}", hint=IMAGE_HINT, transient=error.transient) from error

    def _network(self) -> str:
        """Return the name of the network of the group. Create the network if it is missing.

        The network is internal, which means that the engine forwards nothing between it and other networks. Docker also
        leaves the bridge without an address of the host, so containers cannot connect to the host either.
        """
        name, labels = f"tracebed-{self.testbed}", {TESTBED_LABEL: self.testbed}
        with self.engine.errors("the network of the containers cannot be created"):
            if not self._networks():
                self.engine.client.networks.create(
                    name,
                    driver="bridge",
                    options={} if self.engine.is_podman else {"com.docker.network.bridge.inhibit_ipv4": "true"},
                    internal=True,
                    check_duplicate=True,
                    labels=labels,
                )
        return name

    def _networks(self) -> list[Network]:
        return self.engine.client.networks.list(filters={"label": f"{TESTBED_LABEL}={self.testbed}"})

    def _other_computing(self) -> list[Facts]:
        """Return the containers of other testbeds that compute, or will compute before this group.

        Claims of agents do not work across containers, because their networks are separate. Containers are created
        before this check and started after it, so at least one of two concurrent testbeds finds the other. The testbed
        whose first container is younger is refused.
        """
        if all(node.cpus is None for node in self.group.nodes):
            return []
        filters = {"label": [CPUS_LABEL, f"{CLAIMS_LABEL}={os.environ.get(SPACE, '')}"]}
        with self.engine.errors("the containers cannot be listed"):
            existing = self.engine.client.api.containers(all=True, filters=filters)
        first: dict[str, tuple[int, str]] = {}
        for facts in existing:
            testbed, key = facts["Labels"][TESTBED_LABEL], (facts["Created"], facts["Id"])
            first[testbed] = min(first.get(testbed, key), key)
        younger = {name for name, key in first.items() if key >= first.get(self.testbed, key)}
        return [
            facts
            for facts in existing
            if facts["Labels"][TESTBED_LABEL] != self.testbed
            and (
                facts["State"] in LIVE
                or (facts["State"] == "created" and facts["Labels"][TESTBED_LABEL] not in younger)
            )
        ]

    def _refuse_shared_cpus(self, node: Node, others: Sequence[Facts]) -> None:
        """Remove the container of a node and raise TestbedError if one of `others` has one of its CPUs."""
        for facts in others:
            if shared := set(node.cpus or ()) & set(parse_cpus(facts["Labels"][CPUS_LABEL])):
                with self.engine.errors("its container cannot be removed", where=f"node {node.name}"):
                    self.engine.client.api.remove_container(container_name(self.testbed, node), v=True, force=True)
                raise TestbedError(
                    f"the container {facts['Names'][0].lstrip('/')} computes on the CPUs {format_cpus(shared)}",
                    where=f"node {node.name}",
                    hint="remove it (tracebed nodes down, with its inventory), or use other CPUs",
                )

    def _remove(self, pool: ThreadPoolExecutor) -> None:
        """Remove the containers and the networks of the group.

        A busy engine may still be removing a container, or its network endpoint, that it reports as removed.
        """
        if existing := self._find():
            self.on_step(f"removing {counted(len(existing), 'container')}")
        until = system.monotonic() + REMOVAL_S
        while True:
            try:
                self._remove_once(pool)
                break
            except TestbedError:
                if system.monotonic() >= until:
                    raise
                system.sleep(0.2)
        self._containers = {}

    def _remove_once(self, pool: ThreadPoolExecutor) -> None:
        import docker.errors

        def remove(container: str) -> None:
            with contextlib.suppress(docker.errors.NotFound):
                self.engine.client.api.remove_container(container, v=True, force=True)

        with self.engine.errors("the containers cannot be removed"):
            list(pool.map(remove, [facts["Id"] for facts in self._find().values()]))
            for network in self._networks():
                network.remove()


def node_image(engine: Engine, base: str, on_step: Callable[[str], None]) -> str:
    """Return the ID of the image of the nodes; build it from `base` (Python 3.11 or newer) if it is missing."""
    import docker.errors

    with engine.errors("the facts of the container engine cannot be read"):
        machine = engine.client.info()["Architecture"]
    with tempfile.TemporaryDirectory(prefix="tracebed-") as folder:
        archive = wheel(Path(folder), f"linux-{MACHINES.get(machine, machine)}")
        files = {"Dockerfile": DOCKERFILE.read_bytes(), archive.name: archive.read_bytes()}
    base_id = _base(engine, base, on_step).id or ""
    digest = hashlib.sha256(base_id.encode())
    for name, content in files.items():
        digest.update(f"{name}:{len(content)}:".encode() + content)
    tag = f"{IMAGE_NAME}:{digest.hexdigest()[:16]}"
    with engine.errors(f"the image {tag} cannot be read"):
        try:
            return _named(engine.client.images.get(tag))
        except docker.errors.ImageNotFound:
            pass
    on_step(f"building the image {tag} from {base}")
    hint = f"the base {base} needs Python 3.11 or newer, as python3"
    with engine.errors(f"the image {tag} cannot be built", hint=hint):
        image, _ = engine.client.images.build(
            fileobj=_context(files),
            custom_context=True,
            tag=tag,
            buildargs={"BASE": base_id},
            network_mode="none",
            rm=True,
            forcerm=True,
        )
    with engine.errors(f"the image {tag} cannot be tagged"):
        return _named(image)


def _named(image: Image) -> str:
    """Tag an image of nodes with the name that existing containers use, and return its ID."""
    if f"{IMAGE_NAME}:latest" not in image.tags:
        image.tag(IMAGE_NAME, "latest")
    return str(image.id)


def _base(engine: Engine, base: str, on_step: Callable[[str], None]) -> Image:
    """Return the base image. Pull it unless the engine has it."""
    import docker.errors

    with engine.errors(
        f"the image {base} is not on the engine and cannot be pulled",
        hint="set `base:` to an image with Python 3.11 or newer that the engine has (docker images)",
    ):
        try:
            return engine.client.images.get(base)
        except docker.errors.ImageNotFound:
            on_step(f"pulling the image {base}")
            return engine.client.images.pull(base, tag=None if ":" in base.rpartition("/")[2] else "latest")


def _context(files: dict[str, bytes]) -> io.BytesIO:
    """Return a build context with `files` as a tar archive. Equal files give equal bytes."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), 0o644
            archive.addfile(member, io.BytesIO(content))
    data.seek(0)
    return data


def group_label(group: Group) -> str:
    """Return the value of `TESTBED_LABEL` for a group. It is constant for a user of this machine."""
    assert isinstance(group.settings, DockerSettings)
    if group.settings.existing is not None:
        return group.settings.existing
    place = f"{os.uname().nodename}:{os.getuid()}:{group.mark}"
    return hashlib.sha256(place.encode()).hexdigest()[:12]


def container_name(testbed: str, node: Node) -> str:
    """Return the name of the container of a node, which is unique on its engine."""
    valid = re.fullmatch(r"\w[\w.-]*", node.name, re.ASCII)
    return f"tracebed-{testbed}-{node.name if valid else _digest(node.name)}"


def container_options(settings: DockerSettings, node: Node, testbed: str, image: str) -> dict[str, Any]:
    """Return the arguments of `docker.containers.create` for the container of a node, without its network.

    The container has no capabilities, cannot gain privileges, and can only write to folders in memory.
    """
    memory = None if node.memory_mib is None else f"{node.memory_mib}m"
    made: dict[str, Any] = {
        "image": image,
        "command": ["sleep", "infinity"],
        "init": True,  # reaps the processes of agents that were killed
        "name": container_name(testbed, node),
        "hostname": node.name if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9-]{0,62}", node.name) else None,
        "user": f"{USER}:{USER}",
        "read_only": True,
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges"],
        "pids_limit": settings.pids,
        "tmpfs": {
            SPOOL: f"{MEMORY},size={settings.spool_mib}m",
            "/tmp": f"{MEMORY},size={settings.shm_mib}m",
        },
        "shm_size": f"{settings.shm_mib}m",
        "cpuset_cpus": None if node.cpus is None else format_cpus(node.cpus),
        "mem_limit": memory,
        "memswap_limit": memory,  # no swap
        "detach": True,
    }
    labels = {TESTBED_LABEL: testbed, NODE_LABEL: node.name, CLAIMS_LABEL: os.environ.get(SPACE, "")}
    if node.cpus is not None:
        labels[CPUS_LABEL] = format_cpus(node.cpus)
    labels[CONFIG_LABEL] = _digest(json.dumps({**made, "labels": labels}, sort_keys=True))
    return {**made, "labels": labels}


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
