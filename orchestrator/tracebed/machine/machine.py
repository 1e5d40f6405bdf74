"""The machine of a run: its nodes by class, and its partitions.

A machine is made by a reader (`tracebed.machine.sources`) from a file of its source: an inventory, a slurm.conf, the
platform of a simulator, the system of a workload, or YAML with the fields of `Machine` as keys. What only one source
and its executor know is in a class of its own, derived from `Machine`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import cached_property
from itertools import groupby
from typing import Any, ClassVar, Self

from tracebed.converters.workload import System
from tracebed.ground import bounds
from tracebed.ground.errors import InputError
from tracebed.ground.ranges import parse_names
from tracebed.ground.topology import Grid
from tracebed.machine.nodes import MOST_NODES, NodeFacts, nodes_of
from tracebed.machine.power import NodePower, Sleep, Tariff

HINT = "keys: classes, partitions, grid, sleep, tariff"


@dataclass(frozen=True, kw_only=True)
class NodeClass:
    """Nodes that are alike. They have either names or a number, and then names are made.

    Attributes:
        names: their names, also as ranges (`n[001-128]`).
        count: their number; 0: they have names.
        cores: number of cores of each node.
        sockets: number of equal sockets.
        threads: CPUs of each core.
        memory_mib: memory, MiB; None: unknown.
        gres: generic resource -> count: `{"gpu": 4}`.
        features: features that a job may demand.
        weight: nodes of smaller weight are allocated first.
        power: the power of each node by state; None: unknown.
    """

    __pydantic_config__: ClassVar[Mapping[str, Any]] = {"extra": "forbid"}

    names: tuple[str, ...] = ()
    count: int = 0
    cores: int = 1
    sockets: int = 1
    threads: int = 1
    memory_mib: int | None = None
    gres: dict[str, int] = field(default_factory=dict)
    features: tuple[str, ...] = ()
    weight: int = 1
    power: NodePower | None = None

    def __post_init__(self) -> None:
        """Raise InputError if a number is out of its range, or both or neither of names and count are given."""
        if bool(self.names) == bool(self.count):
            raise InputError("a class of nodes has either names or a count", hint="give one of them")
        sizes = {"count": self.count or 1, "cores": self.cores, "sockets": self.sockets, "threads": self.threads}
        for name, value in sizes.items():
            bounds.check(name, value, 1, bounds.MAX_MACHINE)
        for name, value in {"memory_mib": self.memory_mib or 0, "weight": self.weight, **self.gres}.items():
            bounds.check(name, value, 0, 2**53)

    @property
    def size(self) -> int:
        """Number of nodes."""
        return self.count or len(expanded(self.names))


@dataclass(frozen=True, kw_only=True)
class Partition:
    """Nodes for the jobs that name the partition.

    Attributes:
        name: the name.
        nodes: its nodes, also as ranges; empty: all nodes.
        default: whether jobs without a partition belong to it.
        tier: jobs of a higher tier are considered first.
        limit_s: largest time limit of a job, s; 0: any.
        most_nodes: largest number of nodes of a job; 0: any.
        shared: whether jobs share nodes; else each job holds whole nodes.
    """

    __pydantic_config__: ClassVar[Mapping[str, Any]] = {"extra": "forbid"}

    name: str
    nodes: tuple[str, ...] = ()
    default: bool = False
    tier: int = 1
    limit_s: float = 0.0
    most_nodes: int = 0
    shared: bool = False

    def __post_init__(self) -> None:
        """Raise InputError if a number is out of its range."""
        for name, most in (("tier", 65_533), ("limit_s", bounds.MAX_SECONDS), ("most_nodes", bounds.MAX_MACHINE)):
            bounds.check(name, getattr(self, name), 0, most)

    @property
    def names(self) -> list[str]:
        """The names of its nodes, without ranges; empty: all nodes."""
        return expanded(self.nodes)

    def to_json(self) -> dict[str, Any]:
        """Return the partition as JSON values, without fields that have their default."""
        return _given(self)


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A machine.

    Attributes:
        classes: its nodes by class, in the order of the nodes.
        partitions: its partitions; empty: each job may have any node.
        grid: grid of the network between the nodes (`8x16`); empty: unknown.
        sleep: when nodes are switched off; None: never.
        tariff: the price of energy; None: unknown.
        executor: name of the executor of runs on such a machine; empty: the one of the policy.
    """

    __pydantic_config__: ClassVar[Mapping[str, Any]] = {"extra": "forbid"}
    executor: ClassVar[str] = ""

    classes: tuple[NodeClass, ...]
    partitions: tuple[Partition, ...] = ()
    grid: str = ""
    sleep: Sleep | None = None
    tariff: Tariff | None = None

    def __post_init__(self) -> None:
        """Raise InputError if there are no nodes, two have one name, or the grid or a partition has other nodes."""
        if not self.classes:
            raise InputError("the machine has no nodes", hint="give a class of nodes")
        if self.grid:
            Grid.parse(self.grid, len(self.nodes))
        if self.partitions:
            known = {node.name for node in self.nodes}
            if len({partition.name for partition in self.partitions}) < len(self.partitions):
                raise InputError("two partitions have the same name", hint="give each a name of its own")
            for partition in self.partitions:
                if absent := {*partition.names} - known:
                    what = f"partition {partition.name} has node {min(absent)!r}, which is in no class"
                    raise InputError(what, hint="correct the nodes of the partition")

    @cached_property
    def nodes(self) -> tuple[NodeFacts, ...]:
        """The nodes. Nodes without names have numbers, `n01` to `n64`."""
        width = len(str(sum(kind.count for kind in self.classes)))
        nodes: list[NodeFacts] = []
        numbered = 0
        for kind in self.classes:
            made = [f"n{number:0{width}d}" for number in range(numbered + 1, numbered + kind.count + 1)]
            nodes += NodeFacts.alike(expanded(kind.names) or made, kind.cores, kind.sockets)
            numbered += kind.count
        if numbered < len(nodes) and len({node.name for node in nodes}) < len(nodes):
            raise InputError("two nodes of the machine have the same name", hint="give each a name of its own")
        return tuple(nodes)

    @property
    def plain(self) -> bool:
        """Whether each job may have any of the nodes, and holds whole nodes."""
        kinds = self.classes
        told = any(kind.gres or kind.features or kind.memory_mib or kind.weight != kinds[0].weight for kind in kinds)
        return not self.partitions and not told

    @property
    def told_by_nodes(self) -> bool:
        """Whether a list of its nodes says all of it, so that runs do not record the machine."""
        return self.plain and not (self.sleep or self.tariff or any(kind.power for kind in self.classes))

    def check_size(self, nodes: int) -> None:
        """Raise InputError if a number of nodes that is given, too, differs from that of the machine."""
        if nodes != len(self.nodes):
            what = f"the machine has {len(self.nodes):,} nodes, but {nodes:,} are given"
            raise InputError(what, hint="leave the nodes out: those of the machine are used")

    @classmethod
    def of_nodes(cls, nodes: Iterable[NodeFacts], **own: Any) -> Self:
        """Return the machine of some nodes. `own`: the other fields of the class."""
        nodes = tuple(nodes)
        classes = tuple(
            NodeClass(names=tuple(node.name for node in alike), cores=cores, sockets=sockets)
            for (cores, sockets), alike in groupby(nodes, lambda node: node[1:])
        )
        machine = cls(classes=classes, **own)
        vars(machine)["nodes"] = nodes  # the property need not make them again
        return machine

    @classmethod
    def of_system(cls, system: System) -> Machine:
        """Return the machine of the system of a workload. Raise InputError if its number of nodes is unknown."""
        nodes = nodes_of(system)
        machine = Machine(classes=(NodeClass(count=len(nodes), cores=nodes[0].cores),), grid=system.grid)
        vars(machine)["nodes"] = tuple(nodes)
        return machine

    def to_json(self) -> dict[str, Any]:
        """Return the machine as JSON values, without fields that have their default."""
        return {
            "classes": [_given(kind) for kind in self.classes],
            **({"partitions": [partition.to_json() for partition in self.partitions]} if self.partitions else {}),
            **({"grid": self.grid} if self.grid else {}),
            **({"sleep": _given(self.sleep)} if self.sleep else {}),
            **({"tariff": _given(self.tariff)} if self.tariff else {}),
        }

    @classmethod
    def from_json(cls, raw: Any, where: str = "machine") -> Machine:
        """Return the machine in the JSON values of `to_json`, or in a file of YAML with these keys.

        Raises:
            InputError: a value is missing or invalid; the message has the key, and the line of a file.
        """
        from pydantic import RootModel  # slow to import

        from tracebed.ground.yaml_file import YamlFile

        file = raw if isinstance(raw, YamlFile) else YamlFile(where, "", raw, None, HINT)
        try:
            machine = file.checked(RootModel[Machine]).root
            machine.nodes  # noqa: B018  # checks the names
            return machine
        except InputError as error:
            raise InputError(error.what, where=error.where or file.where, hint=error.hint) from error

    @cached_property
    def digest(self) -> str:
        """Hash of the machine."""
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()

    @cached_property
    def pooled_digest(self) -> str:
        """Hash of the nodes and the partitions, on which the pools depend, however a source groups and lists them."""
        kinds = [_given(replace(kind, names=(), count=1)) for kind in self.classes for _ in range(kind.size)]
        names = {node.name: kind for node, kind in zip(self.nodes, kinds, strict=True)}
        partitions = [
            partition.to_json() | {"nodes": sorted(partition.names if {*partition.names} != {*names} else ())}
            for partition in self.partitions
        ]
        return hashlib.sha256(json.dumps([names, partitions], sort_keys=True).encode()).hexdigest()


def expanded(names: Iterable[str]) -> list[str]:
    """Return names of nodes, with those of ranges. Raise InputError if a range is invalid or has no end."""
    expanded_names: list[str] = []
    for text in names:
        if "[" not in text:
            expanded_names.append(text)
            continue
        parsed = parse_names(text, most=MOST_NODES)
        if parsed.last is None:
            raise InputError(f"name range {text!r} has no end", hint="write its last number")
        expanded_names += parsed
    return expanded_names


def _given(part: NodeClass | Partition | NodePower | Sleep | Tariff) -> dict[str, Any]:
    """Return the fields of a part of a machine that differ from their defaults, as JSON values."""
    given = {}
    for each in fields(part):
        value = getattr(part, each.name)
        usual = each.default if each.default_factory is MISSING else each.default_factory()
        if value != usual:
            value = _given(value) if isinstance(value, NodePower) else value
            given[each.name] = list(value) if isinstance(value, tuple) else value
    return given
