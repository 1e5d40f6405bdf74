"""The keys of an inventory, and its JSON schema."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from tracebed.ground.cpus import LARGEST_NODE, parse_cpus
from tracebed.ground.errors import InputError
from tracebed.ground.ranges import NameRange, parse_names
from tracebed.orchestrator.testbeds.nodes import AGENTS, Node
from tracebed.orchestrator.testbeds.provider import PROVIDERS

CPU_TOPOLOGY = Path("/sys/devices/system/cpu")
LARGEST = 1_000_000
"""Largest accepted number of nodes. The largest machines have about 200,000 nodes."""
LONGEST_ADDRESS = 255
"""Longest accepted address of a node: the longest host name."""
LAST = "give the last number of the range"
Variables = dict[str, str | int | float | bool]
"""Variable -> value. `{name}` in a string of the inventory stands for the value of the variable `name`."""


class _Keys(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, use_attribute_docstrings=True)


class NodeKeys(_Keys):
    """The keys that nodes have, or that their group or `defaults` sets for them."""

    cores: Annotated[int, Field(ge=1, le=LARGEST_NODE)] | None = None
    """Cores of an emulated node, of a node made by `cpus: auto`, or of a node on another machine."""
    cpus: int | str | None = None  # YAML reads `cpus: 3` as a number
    """CPUs of the node (`0-3,7`), or `auto`: the CPUs that this process may use are split into nodes."""
    sockets: Annotated[int, Field(ge=1)] | Annotated[list[int | str], Field(min_length=1)] | None = None
    """Number of sockets, or the CPUs of each socket in place of `cpus`."""
    emulated: bool = False
    """Whether jobs sleep for the time that their work would take, instead of computing."""
    duty: Annotated[float, Field(gt=0, le=1)] | None = None
    """Share of the planned time in which ranks compute."""
    memory_mib: Annotated[int, Field(ge=1)] | None = None
    """Memory of the node, MiB. A provider that can limit the memory of a node limits it to this size."""
    address: Annotated[str, Field(min_length=1, max_length=LONGEST_ADDRESS)] | None = None
    """Host name, alias of the SSH config, or address of the node. `{node}` stands for the name of the node."""


class NodeItem(NodeKeys):
    """A node, or several nodes that differ only in their names."""

    name: str
    """Name of the node, or a range such as `node[01-16]`."""
    vars: Variables = {}
    """Variables of these nodes."""

    @property
    def names(self) -> NameRange:
        """The names of the nodes."""
        return parse_names(self.name, most=LARGEST)

    @property
    def open_ended(self) -> bool:
        """Whether the range of names has no end."""
        return self.name.endswith("-*]")

    @model_validator(mode="after")
    def _consistent(self) -> NodeItem:
        by_socket = isinstance(self.sockets, list)
        if self.emulated and (self.cpus is not None or by_socket):
            raise InputError("an emulated node has cores, not CPUs", hint="remove the CPUs, or `emulated: true`")
        if self.emulated and self.duty is not None:
            what = "an emulated node has no duty: its jobs do not compute"
            raise InputError(what, hint="remove `duty`, or `emulated: true`")
        if self.emulated and self.cores is None:
            raise InputError("an emulated node needs `cores`", hint="set it, as in `cores: 4`")
        if self.cpus is not None and by_socket:
            what = "a node needs either `cpus`, or `sockets` as CPU lists, not both"
            raise InputError(what, hint="remove one of them")
        if self.cpus == "auto" and self.sockets is not None:
            what = "`sockets` cannot be set with `cpus: auto`, which finds the sockets"
            raise InputError(what, hint="remove `sockets`")
        if self.open_ended and self.cpus != "auto":
            raise InputError("a range up to * requires `cpus: auto`", hint=LAST)
        return self

    def nodes(self, provider: str, *, splits_this_machine: bool) -> Iterator[Node]:
        """Yield the nodes.

        Args:
            provider: the provider of the nodes.
            splits_this_machine: whether `cpus: auto` splits the CPUs of this machine into nodes.

        Raises:
            InputError: the keys are inconsistent, or a CPU list or a name is invalid.
        """
        cpus: tuple[int, ...] | None = None
        sockets, lists = self.sockets, None
        if self.cpus == "auto" and splits_this_machine:
            yield from self._split(provider)
            return
        if self.cpus == "auto" and self.open_ended:
            raise InputError(f"a range up to * is not possible with provider {provider}", hint=LAST)
        if isinstance(sockets, list):
            lists = [parse_cpus(str(item)) for item in sockets]
            if len({len(item) for item in lists}) > 1:
                what = "the sockets of a node must have equally many CPUs"
                raise InputError(what, hint="move CPUs between the lists, or leave some out")
            cpus, sockets = tuple(cpu for item in lists for cpu in item), len(lists)
        elif self.cpus not in (None, "auto"):
            cpus = parse_cpus(str(self.cpus))
        elif not self.emulated and provider == "local":
            what = "a node needs either `cpus`, or `sockets` as CPU lists, or `emulated: true`"
            raise InputError(what, hint="set one of them")
        elif not self.emulated and self.cores is not None:
            cpus = tuple(range(self.cores))
        cores = len(cpus) if cpus is not None else self.cores or 0
        if (cpus is not None and not cores) or (self.cores is not None and cores != self.cores):
            what = f"`cores` is {self.cores}, but the node has {cores} CPUs"
            raise InputError(what, hint="remove `cores`, or list as many CPUs")
        if cores % (sockets or 1):
            what = f"{cores} cores cannot be split into {sockets} equal sockets"
            raise InputError(what, hint="set a number of sockets that divides the number of cores")
        for name in self.names:
            address = self.address and self.address.replace("{node}", name)
            yield Node(name, cores, sockets or 1, cpus, self.emulated, self.duty, self.memory_mib, provider, address)

    def _split(self, provider: str) -> Iterator[Node]:
        """Yield as many nodes of `cores` cores as this machine has CPUs for, or as there are names."""
        size = self.cores or 1
        found = split_cpus(size)
        names = list(islice(self.names, len(found) + (not self.open_ended)))
        if not 0 < len(names) <= len(found):
            what = f"the CPUs of this machine suffice for only {len(found)} nodes of {size} cores"
            raise InputError(what, hint="use fewer or smaller nodes, or emulated ones")
        for name, (mask, sockets) in zip(names, found, strict=False):
            yield Node(name, size, sockets, mask, False, self.duty, self.memory_mib, provider)


class GroupKeys(NodeKeys):
    """A group of nodes, with defaults of their keys. The other keys of a group are the settings of its provider."""

    provider: str = "local"
    """The provider that prepares the nodes: local, docker, ssh, slurm, or one of another package."""
    vars: Variables = {}
    """Variables of this group."""
    nodes: str | Annotated[list[Any], Field(min_length=1)]
    """A name, a range of names such as `node[01-16]`, or a list of names, ranges and nodes."""


class FileKeys(_Keys):
    """The keys of an inventory."""

    name: str | None = None
    """Name of the testbed. Default: the name of the file."""
    testbed: str = AGENTS
    """The testbed: agents on the nodes, or a testbed of another package."""
    grain_s: Annotated[float, Field(gt=0, le=60)] = 0.05
    """Target duration of an iteration of a job, wall seconds. Malleability points have the same distance."""
    heartbeat_s: Annotated[float, Field(gt=0, le=3600)] = 1.0
    """Time between two heartbeats of an agent, wall seconds."""
    linger_s: Annotated[float, Field(ge=0, le=86400)] = 30.0
    """Time for which an agent keeps its jobs after it has lost the controller, wall seconds."""
    network: Literal["auto", "tcp", "agents"] = "auto"
    """Connections between the ranks of a job: over TCP, or through the agents without any port."""
    grid: str = ""
    """The grid of the network between the nodes: 8x16, 4x4x8, torus:8x16. Nodes are numbered in the order of the file,
    with the last coordinate running fastest."""
    vars: Variables = {}
    """Variables of all groups."""
    defaults: dict[str, Any] = {}
    """Defaults for the keys of all groups."""
    nodes: Annotated[list[Any], Field(min_length=1)] | None = None
    """The nodes of an inventory without groups."""
    groups: Annotated[dict[str, Any], Field(min_length=1)] | None = None
    """The groups by name."""

    @model_validator(mode="after")
    def _one_form(self) -> FileKeys:
        if (self.nodes is None) == (self.groups is None):
            hint = "list the nodes under `nodes:`, or groups of nodes under `groups:`"
            raise InputError("an inventory needs either `nodes` or `groups`", hint=hint)
        return self


def settings_of(provider: str) -> type[BaseModel]:
    """Return the model of the settings of a provider. Raises InputError if the provider is unknown."""
    return PROVIDERS.load(provider).Settings


def split_cpus(cores: int) -> list[tuple[tuple[int, ...], int]]:
    """Split the CPUs that this process may use into as many nodes of `cores` cores as possible.

    Returns:
        For each node, its CPUs and its number of sockets. A node is in one socket if sockets are large enough.
    """
    by_socket: dict[int, list[int]] = {}
    for cpu in sorted(os.sched_getaffinity(0)):
        by_socket.setdefault(_socket(cpu), []).append(cpu)
    groups: Sequence[list[int]] = [by_socket[key] for key in sorted(by_socket)]
    if cores > max(map(len, groups)):
        groups = [[cpu for group in groups for cpu in group]]
    nodes = []
    for group in groups:
        for first in range(0, len(group) - cores + 1, cores):
            cpus = tuple(group[first : first + cores])
            sizes = set(Counter(map(_socket, cpus)).values())
            nodes.append((cpus, cores // sizes.pop() if len(sizes) == 1 else 1))
    return nodes


def _socket(cpu: int) -> int:
    """Return the socket of `cpu`, or 0 if it is unknown."""
    try:
        return int((CPU_TOPOLOGY / f"cpu{cpu}" / "topology" / "physical_package_id").read_text())
    except (OSError, ValueError):
        return 0
