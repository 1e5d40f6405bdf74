"""The keys of an inventory, and its JSON schema."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from tracebed.ground.cpus import LARGEST_NODE, parse_cpus
from tracebed.ground.errors import InputError
from tracebed.ground.extension_errors import line_of
from tracebed.ground.ranges import NameRange, parse_names
from tracebed.ground.yaml_file import abbreviated
from tracebed.machine.machine import Partition
from tracebed.machine.power import NodePower, Sleep, Tariff
from tracebed.orchestrator.testbeds.nodes import AGENTS, Node
from tracebed.orchestrator.testbeds.provider import PROVIDERS
from tracebed.orchestrator.testbeds.variables import Place

CPU_TOPOLOGY = Path("/sys/devices/system/cpu")
LARGEST = 1_000_000  # Largest accepted number of nodes. The largest machines have about 200,000 nodes.
LONGEST_ADDRESS = 255  # longest accepted address of a node: the longest host name
LAST = "give the last number of the range"
# Variable -> value. `{name}` in a string of the inventory stands for the value of the variable `name`.
Variables = dict[str, str | int | float | bool]
ID = "tracebed-inventory-1.json"
# A string with a reference to a variable, which may have the place of any value.
REFERENCE = {"type": "string", "pattern": r"\{[A-Za-z_]\w*\}"}
NAME_PATTERN = r"^[\w.-]+$"


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
    gres: dict[str, Annotated[int, Field(ge=0)]] = {}
    """Generic resources of the node with their counts (`{gpu: 4}`), for jobs that demand them. They are names only."""
    features: list[Annotated[str, Field(min_length=1)]] = []
    """Features of the node that a job may demand."""
    power: NodePower | None = None
    """Power of the node by state, W, and the times of its changes (`{busy_w: 350, idle_w: 100, boot_s: 120}`)."""
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
        """Yield the nodes. `cpus: auto` may split the CPUs of this machine into nodes if `splits_this_machine`."""
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
            common = (self.emulated, self.duty, self.memory_mib, provider, address)
            yield Node(name, cores, sockets or 1, cpus, *common, **self._own)

    def _split(self, provider: str) -> Iterator[Node]:
        """Yield as many nodes of `cores` cores as this machine has CPUs for, or as there are names."""
        size = self.cores or 1
        found = split_cpus(size)
        names = list(islice(self.names, len(found) + (not self.open_ended)))
        if not 0 < len(names) <= len(found):
            what = f"the CPUs of this machine suffice for only {len(found)} nodes of {size} cores"
            raise InputError(what, hint="use fewer or smaller nodes, or emulated ones")
        for name, (mask, sockets) in zip(names, found, strict=False):
            yield Node(name, size, sockets, mask, False, self.duty, self.memory_mib, provider, **self._own)

    @property
    def _own(self) -> dict[str, Any]:
        """What jobs may demand of the nodes, and their power."""
        return {"gres": self.gres, "features": tuple(self.features), "power": self.power}


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
    partitions: list[Partition] = []
    """The partitions of the machine, with the keys `name`, `nodes`, `default`, `tier`, `limit_s`, `most_nodes`."""
    sleep: Sleep | None = None
    """When nodes are switched off. By default, they stay on."""
    tariff: Tariff | None = None
    """The price and the CO2 of energy."""
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
    """Return the model of the settings of a provider. Raises InputError if the provider is unknown, or has none."""
    loaded = PROVIDERS.load(provider)
    settings = getattr(loaded, "Settings", None)
    if not (isinstance(settings, type) and issubclass(settings, BaseModel)):
        hint = "give the class the keys of its groups, as `Settings`"
        raise InputError(f"provider {provider} has no model `Settings`", where=line_of(loaded), hint=hint)
    return settings


def split_cpus(cores: int) -> list[tuple[tuple[int, ...], int]]:
    """Split the CPUs that this process may use into nodes of `cores` cores: their CPUs, and their number of sockets."""
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


class DistinctNodes:
    """A check that node names are unique and no CPU belongs to two nodes."""

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._owners: dict[tuple[str, int], str] = {}

    @contextlib.contextmanager
    def at(self, place: Place, name: str) -> Iterator[None]:
        """Add the line of `place`, which defines the nodes `name`, to errors."""
        with place.of(f"node {abbreviated(name)}"):
            yield

    def of(self, nodes: Iterable[Node], settings: BaseModel) -> Iterator[Node]:
        """Yield the nodes, with distinct names and CPUs. Another SSH port in `settings` is another machine."""
        one_machine = getattr(settings, "splits_this_machine", False)
        for node in nodes:
            if node.name in self._names:
                raise InputError(f"two nodes have the name {node.name!r}", hint="rename one of them")
            self._names.add(node.name)
            if len(self._names) > LARGEST:
                raise InputError(f"the inventory has more than {LARGEST:,} nodes", hint="use fewer nodes")
            host = "" if one_machine else node.address or node.name
            machine = "" if node.provider == "local" else f"{node.provider} {settings!r} {host}"
            for cpu in node.cpus or ():
                owner = self._owners.setdefault((machine, cpu), node.name)
                if owner != node.name:
                    what = f"nodes {owner!r} and {node.name!r} share CPU {cpu}"
                    raise InputError(what, hint="list each CPU of a machine for one node only")
            yield node


def inventory_schema(providers: list[str] | None = None) -> dict[str, Any]:
    """Return the JSON schema of inventories.

    Args:
        providers: the providers whose settings the schema has; None: all that are installed.
    """
    names = PROVIDERS.names() if providers is None else providers
    defs: dict[str, Any] = {}
    settings = {name: _keys(settings_of(name), defs, f"{name}_") for name in names}
    of_group, of_node = _keys(GroupKeys, defs), _keys(NodeItem, defs)
    defs["node"] = {"description": NodeItem.__doc__, **_closed(of_node, ["name"])}
    listed = {"type": "array", "minItems": 1, "items": {"anyOf": [{"type": "string"}, {"$ref": "#/$defs/node"}]}}
    of_group["nodes"] = {
        "description": of_group["nodes"]["description"],
        "anyOf": [{"type": "string"}, listed],
    }
    of_group["provider"]["enum"] = names
    defs["group"] = {
        "description": "A group of nodes. Its keys are defaults of its nodes, or settings of its provider.",
        # A group without the key `provider` may have the provider of `defaults`.
        "anyOf": [_closed(of_group | {"provider": {"const": name}} | settings[name], ["nodes"]) for name in names],
    }
    every = {key: value for keys in settings.values() for key, value in keys.items()}
    file = _keys(FileKeys, defs, references=False)
    file["defaults"] = {
        "description": file["defaults"]["description"],
        **_closed({key: of_group[key] for key in (*NodeKeys.model_fields, "provider")} | every, []),
    }
    file["nodes"] = {"description": file["nodes"]["description"], **listed}
    file["groups"] = {
        "description": file["groups"]["description"],
        "type": "object",
        "minProperties": 1,
        "propertyNames": {"pattern": NAME_PATTERN},
        "additionalProperties": {"$ref": "#/$defs/group"},
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": ID,
        "title": "Inventory of tracebed",
        **_closed(file, []),
        "oneOf": [{"required": ["nodes"]}, {"required": ["groups"]}],
        "$defs": dict(sorted(defs.items())),
    }


def _keys(model: type[BaseModel], defs: dict[str, Any], prefix: str = "", *, references: bool = True) -> dict[str, Any]:
    """Return the schema of each key of a model, and add the definitions that they refer to.

    The names of the added definitions begin with `prefix`. With `references`, a value may be a reference to a variable.
    """
    found = model.model_json_schema(ref_template=f"#/$defs/{prefix}{{model}}")
    defs |= {prefix + name: value for name, value in found.get("$defs", {}).items()}
    keys: dict[str, Any] = {}
    for name, schema in found.get("properties", {}).items():
        schema.pop("title", None)
        if schema.get("default") is None:
            schema.pop("default", None)
        types = {schema.get("type"), *(of.get("type") for of in schema.get("anyOf", ()))}
        if references and name != "vars" and "string" not in types:
            description = {key: schema.pop(key) for key in ("description", "default") if key in schema}
            of = schema.pop("anyOf", None) or [schema]
            schema = {**description, "anyOf": [*of, REFERENCE]}
        keys[name] = schema
    return keys


def _closed(keys: dict[str, Any], required: list[str]) -> dict[str, Any]:
    """Return the schema of a mapping with these keys and no others."""
    return {
        "type": "object",
        "properties": keys,
        **({"required": required} if required else {}),
        "additionalProperties": False,
    }
