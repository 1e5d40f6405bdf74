"""The container of a node: its settings in the inventory, its labels and its restrictions."""

from __future__ import annotations

import hashlib
import json
import os
import re
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import Field, model_validator

from tracebed.ground.cpus import format_cpus
from tracebed.orchestrator.testbeds.agent.claims import SPACE
from tracebed.orchestrator.testbeds.docker.engine import check_address
from tracebed.orchestrator.testbeds.docker.image import BASE
from tracebed.orchestrator.testbeds.nodes import Group, Node
from tracebed.orchestrator.testbeds.settings import ProviderSettings

TESTBED_LABEL, NODE_LABEL = "tracebed.testbed", "tracebed.node"
"""Labels with the set of containers that a group has, and with the name of the node."""
CPUS_LABEL, CLAIMS_LABEL = "tracebed.ground.cpus", "tracebed.claims"
"""Labels with the CPUs of a computing node, and with the set of claims (see `claims.SPACE`)."""
CONFIG_LABEL = "tracebed.config"
"""Label with a digest of the image and the options of the container."""

SPOOL = "/var/tmp"
"""Folder with mode 1777 in the images. The memory mounted there takes over this mode at each start."""
USER = 10001
"""User and group of the agents, as in the Dockerfile."""
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


def testbed_label(group: Group) -> str:
    """Return the value of `TESTBED_LABEL` for a group. It is constant for a user of this machine."""
    assert isinstance(group.settings, DockerSettings)
    if group.settings.existing is not None:
        return group.settings.existing
    place = f"{os.uname().nodename}:{os.getuid()}:{group.mark}"
    return hashlib.sha256(place.encode()).hexdigest()[:12]


def name(testbed: str, node: Node) -> str:
    """Return the name of the container of a node, which is unique on its engine."""
    valid = re.fullmatch(r"\w[\w.-]*", node.name, re.ASCII)
    return f"tracebed-{testbed}-{node.name if valid else _digest(node.name)}"


def options(settings: DockerSettings, node: Node, testbed: str, image: str) -> dict[str, Any]:
    """Return the arguments of `docker.containers.create` for the container of a node, without its network.

    The container has no capabilities, cannot gain privileges, and can only write to folders in memory.
    """
    memory = None if node.memory_mib is None else f"{node.memory_mib}m"
    made: dict[str, Any] = {
        "image": image,
        "command": ["sleep", "infinity"],
        "init": True,  # reaps the processes of agents that were killed
        "name": name(testbed, node),
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
