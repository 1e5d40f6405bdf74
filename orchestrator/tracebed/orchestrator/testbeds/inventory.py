"""The inventory: a YAML file that describes the nodes of a testbed.

    name: local              # default: the name of the file
    grain_s: 0.05            # target duration of an iteration of a job, wall seconds
    heartbeat_s: 1.0         # time between two heartbeats of an agent, wall seconds
    nodes:
      - {name: "n[1-*]", cpus: auto, cores: 2}                        # as many nodes as this machine has CPUs for
      - {name: big, cpus: 0-7}                                        # given CPUs
      - {name: dual, sockets: [8-11, 12-15], duty: 1}                 # by socket; jobs compute all the time
      - {name: "e[01-64]", cores: 48, sockets: 2, emulated: true}     # jobs sleep instead of computing

An inventory is read independently of this machine (except for `auto`), so a simulation can use the inventory of
another machine. `Inventory.check_here` checks whether this process may use its CPUs.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from tracebed.cpus import LARGEST_NODE, parse_cpus
from tracebed.errors import InputError
from tracebed.orchestrator.testbeds.nodes import AGENTS, SHIPPED, Inventory, Node, shipped
from tracebed.orchestrator.testbeds.registry import TESTBEDS
from tracebed.ranges import NameRange, parse_names
from tracebed.registry import unknown
from tracebed.yaml_file import YamlFile, shown

FIELDS = "fields: name, testbed, grain_s, heartbeat_s, nodes"
CPU_TOPOLOGY = Path("/sys/devices/system/cpu")
LARGEST = 1_000_000
"""Largest accepted number of nodes. The largest machines have about 200,000 nodes."""


class _Group(BaseModel):
    """An item of the list `nodes` in the file: one node, or several nodes that differ only in their names."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: str
    cores: Annotated[int, Field(ge=1, le=LARGEST_NODE)] | None = None
    cpus: int | str | None = None  # YAML reads `cpus: 3` as a number
    sockets: Annotated[int, Field(ge=1)] | Annotated[list[int | str], Field(min_length=1)] | None = None
    emulated: bool = False
    duty: Annotated[float, Field(gt=0, le=1)] | None = None

    @model_validator(mode="after")
    def _consistent(self) -> _Group:
        by_socket = isinstance(self.sockets, list)
        if self.emulated and (self.cpus is not None or by_socket):
            raise ValueError("an emulated node has cores, not CPUs")
        if self.emulated and self.duty is not None:
            raise ValueError("an emulated node has no duty: its jobs do not compute")
        if self.emulated and self.cores is None:
            raise ValueError("an emulated node needs `cores`")
        if not self.emulated and (self.cpus is not None) == by_socket:
            raise ValueError("a node needs either `cpus`, or `sockets` as CPU lists, or `emulated: true`")
        if self.cpus == "auto" and self.sockets is not None:
            raise ValueError("`sockets` cannot be set with `cpus: auto`, which finds the sockets")
        if self.open_ended and self.cpus != "auto":
            raise ValueError("a range up to * requires `cpus: auto`")
        return self

    @property
    def names(self) -> NameRange:
        return parse_names(self.name, most=LARGEST)

    @property
    def open_ended(self) -> bool:
        return self.name.endswith("-*]")

    def nodes(self) -> list[Node]:
        """Return the nodes of this group. Raises ValueError or InputError if its fields are inconsistent."""
        if self.cpus == "auto":
            size = self.cores or 1
            found = split_cpus(size)
            names = list(islice(self.names, len(found) + (not self.open_ended)))
            if not 0 < len(names) <= len(found):
                raise ValueError(f"the CPUs of this machine suffice for only {len(found)} nodes of {size} cores")
            return [
                Node(name, size, count, mask, duty=self.duty) for name, (mask, count) in zip(names, found, strict=False)
            ]
        cpus, sockets = None, self.sockets
        if isinstance(sockets, list):
            lists = [parse_cpus(str(item)) for item in sockets]
            if len({len(item) for item in lists}) > 1:
                raise ValueError("the sockets of a node must have equally many CPUs")
            cpus, sockets = tuple(cpu for item in lists for cpu in item), len(lists)
        elif self.cpus is not None:
            cpus = parse_cpus(str(self.cpus))
        cores = self.cores if cpus is None else len(cpus)
        if not cores or (self.cores is not None and cores != self.cores):
            raise ValueError(f"`cores` is {self.cores}, but the node has {cores} CPUs")
        if cores % (sockets or 1):
            raise ValueError(f"{cores} cores cannot be split into {sockets} equal sockets")
        return [Node(name, cores, sockets or 1, cpus, self.emulated, self.duty) for name in self.names]


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    name: str | None = None
    testbed: str = AGENTS
    grain_s: Annotated[float, Field(gt=0, le=60)] = 0.05
    heartbeat_s: Annotated[float, Field(gt=0, le=3600)] = 1.0
    nodes: Annotated[list[_Group], Field(min_length=1)]

    @field_validator("testbed")
    @classmethod
    def _installed(cls, name: str) -> str:
        if name not in TESTBEDS.names():
            raise ValueError(f"testbed {name!r} is not installed (installed: {', '.join(TESTBEDS.names())})")
        return name


def load_inventory(source: Path | str) -> Inventory:
    """Read an inventory.

    Args:
        source: a file, or the name of an inventory that tracebed provides (`local`, `emulated-4`).

    Raises:
        InputError: the file or name does not exist, or the content is invalid (then the message has the line).
    """
    path = Path(source)
    if not path.is_file() and path.name == str(source) and path.suffix not in (".yaml", ".yml"):
        if path.name not in shipped():
            raise unknown("inventory", path.name, [*shipped(), "or a file"])
        path = SHIPPED / f"{path.name}.yaml"
    examples = f"give a file, or one of {', '.join(shipped())}"
    return inventory_of(YamlFile.read(path, "inventory", hint=FIELDS, unreadable=examples), path.stem)


def inventory_of(yaml: YamlFile, name: str) -> Inventory:
    """Return the inventory in `yaml`, a file or a part of one.

    Args:
        yaml: the content.
        name: name of the inventory, if the content does not set it.

    Raises:
        InputError: the content is invalid; the message has the line.
    """
    file = yaml.checked(_File)
    nodes: list[Node] = []
    names: set[str] = set()
    owners: dict[int, str] = {}
    for index, group in enumerate(file.nodes):
        try:
            found = group.nodes()
        except (ValueError, InputError) as error:
            raise yaml.error(f"node {shown(group.name)}: {error}", "nodes", index) from error
        for node in found:
            if node.name in names:
                raise yaml.error(f"two nodes have the name {node.name!r}", "nodes", index)
            for cpu in node.cpus or ():
                if cpu in owners:
                    raise yaml.error(f"nodes {owners[cpu]!r} and {node.name!r} share CPU {cpu}", "nodes", index)
                owners[cpu] = node.name
            names.add(node.name)
        nodes += found
        if len(nodes) > LARGEST:
            raise yaml.error(f"the inventory has more than {LARGEST:,} nodes", "nodes", index)
    return Inventory(file.name or name, file.testbed, tuple(nodes), file.grain_s, file.heartbeat_s, yaml.where)


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
