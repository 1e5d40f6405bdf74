"""The nodes of a testbed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracebed.ground.cpus import format_cpus
from tracebed.ground.errors import InputError

if TYPE_CHECKING:
    from pydantic import BaseModel

    from tracebed.machine.machine import Partition
    from tracebed.machine.nodes import NodeFacts
    from tracebed.machine.power import NodePower, Sleep, Tariff

SHIPPED = next(
    folder
    for folder in (Path(__file__).with_name("inventories"), Path(__file__).parents[4] / "inventory")  # wheel, checkout
    if folder.is_dir()
)
"""The folder of the inventories that tracebed provides."""

AGENTS = "agents"
"""The testbed of tracebed: an agent on each node. Providers prepare the nodes."""

DEFAULT_DUTY = 0.3
"""Duty of nodes without a duty in the inventory or in a calibration. It is chosen for machines shared with other
processes: a rank that shares its CPU with a busy process gets half of the CPU, may lose another quarter of it to pauses
and drift, and still ends each part at its deadline (docs/explanation/pace.md). Dedicated nodes set 1."""


@dataclass(frozen=True)
class Node:
    """A node of `cores` cores in `sockets` equal sockets. `cpus` has the CPU of each core, ordered by socket."""

    name: str
    cores: int
    """Number of cores; 0: unknown until the facts of the node are known (`Inventory.unknown`)."""
    sockets: int = 1
    cpus: tuple[int, ...] | None = None
    """CPU of each core, as numbered on the machine of the node; None: emulated, or unknown."""
    emulated: bool = False
    duty: float | None = None
    """The share of the planned time in which ranks compute, above 0 to 1; None: not set, or emulated."""
    memory_mib: int | None = None
    """Memory of the node, MiB; None: not limited."""
    provider: str = "local"
    """Name of the provider of the node."""
    address: str | None = None
    """Host name, alias or address under which the provider reaches the node; None: the name of the node."""
    gres: dict[str, int] = field(default_factory=dict, hash=False)
    """Generic resource -> count, for the demands of jobs: names only, no provider makes them."""
    features: tuple[str, ...] = ()
    """Features that a job may demand."""
    power: NodePower | None = None
    """The power of the node by state; None: unknown."""

    def duty_or(self, proposed: float | None) -> float:
        """Return the duty: 0 if emulated, else `duty` if set, else `proposed` if given, else the default."""
        if self.emulated:
            return 0.0
        return next(duty for duty in (self.duty, proposed, DEFAULT_DUTY) if duty is not None)


@dataclass(frozen=True)
class Group:
    """Nodes with the same provider and the same settings of the provider."""

    name: str
    provider: str
    """The name of a registered provider."""
    settings: BaseModel
    """The keys that only this provider has: an instance of its `Settings`."""
    nodes: tuple[Node, ...]
    mark: str = ""
    """Text that identifies the group on this machine. Providers use it to mark what they make and to find it again."""


@dataclass(frozen=True)
class Inventory:
    """The nodes of a testbed, and the parameters of its agents."""

    name: str
    testbed: str
    """The name of a registered testbed."""
    nodes: tuple[Node, ...]
    """All nodes, in the order of the groups."""
    grain_s: float = 0.05
    """Target duration of an iteration of a job, wall seconds."""
    heartbeat_s: float = 1.0
    """Time between two heartbeats of an agent, wall seconds."""
    where: str | None = None
    """The file of the inventory."""
    groups: tuple[Group, ...] = ()
    """The nodes by group. Nodes without groups form a group, without settings, for each run of nodes of a provider."""
    linger_s: float = 30.0
    """Time for which an agent keeps its jobs after it has lost its controller, wall seconds."""
    network: str = "auto"
    """The connections between ranks: `auto`, `tcp` or `agents`."""
    grid: str = ""
    """The grid of the network between the nodes, as `Grid.parse` reads it; empty if it is unknown."""
    partitions: tuple[Partition, ...] = ()
    """The partitions; empty: each job may have any node."""
    sleep: Sleep | None = None
    """When nodes are switched off; None: never."""
    tariff: Tariff | None = None
    """The price of energy; None: unknown."""

    def __post_init__(self) -> None:
        if not self.groups and self.nodes:
            from tracebed.orchestrator.testbeds.settings import ProviderSettings  # imports pydantic, which is slow

            runs = [(provider, tuple(nodes)) for provider, nodes in groupby(self.nodes, lambda node: node.provider)]
            groups = [
                Group(provider, provider, ProviderSettings(), nodes, f"{self.name}-{provider}-{index}")
                for index, (provider, nodes) in enumerate(runs)
            ]
            object.__setattr__(self, "groups", tuple(groups))

    @property
    def kind(self) -> str:
        """The providers (`docker+ssh`), or the name of a testbed of another package, as recorded in runs."""
        return "+".join(sorted({group.provider for group in self.groups})) if self.testbed == AGENTS else self.testbed

    @property
    def unknown(self) -> list[str]:
        """The names of the nodes whose number of cores is unknown."""
        return [node.name for node in self.nodes if not node.cores]

    def with_nodes(self, nodes: Mapping[str, Node]) -> Inventory:
        """Return this inventory with only the given nodes, by name, in place of the nodes of the same name.

        A partition keeps these nodes. One that would have none is left out.
        """
        groups = []
        for group in self.groups:
            kept = tuple(nodes[node.name] for node in group.nodes if node.name in nodes)
            groups += [replace(group, nodes=kept)] if kept else []
        partitions = []
        for part in self.partitions:
            names = tuple(name for name in part.names if name in nodes)
            partitions += [replace(part, nodes=names)] if names or not part.nodes else []
        return replace(
            self,
            nodes=tuple(node for group in groups for node in group.nodes),
            groups=tuple(groups),
            partitions=tuple(partitions),
        )

    @property
    def execution(self) -> str:
        """The kind of its nodes: `computed`, `emulated`, `virtual`, or `computed+emulated` if there are both kinds."""
        virtual = any(getattr(group.settings, "virtual", False) for group in self.groups)
        kinds = {"virtual" if virtual else "emulated" if node.emulated else "computed" for node in self.nodes}
        return "+".join(sorted(kinds))

    def as_dict(self) -> dict[str, Any]:
        """Return the content on which runs depend, as JSON values. Keys of later versions are present only if set."""
        later = {"memory_mib", "address", "provider", "gres", "features", "power"}
        unset: tuple[Any, ...] = (None, "local", {}, ())
        nodes = [
            {key: value for key, value in asdict(node).items() if key not in later or value not in unset}
            for node in self.nodes
        ]
        settings = {group.name: group.settings.model_dump(mode="json", exclude_unset=True) for group in self.groups}
        return {
            "name": self.name,
            "testbed": self.kind,
            "nodes": nodes,
            "grain_s": self.grain_s,
            "heartbeat_s": self.heartbeat_s,
            **({"network": self.network} if self.network != "auto" else {}),
            **({"grid": self.grid} if self.grid else {}),
            **({"partitions": [part.to_json() for part in self.partitions]} if self.partitions else {}),
            **{key: asdict(of) for key, of in (("sleep", self.sleep), ("tariff", self.tariff)) if of},
            **({"settings": settings} if any(settings.values()) else {}),
        }

    @property
    def facts(self) -> list[NodeFacts]:
        """The nodes as in the run of a replay."""
        from tracebed.machine.nodes import (
            NodeFacts,  # imports pandas, which the completion of names does without
        )

        return [NodeFacts(node.name, node.cores, node.sockets) for node in self.nodes]

    def duty(self, proposed: float | None = None) -> float | list[float]:
        """Return the duty of the nodes (see `Node.duty_or`), or the duty of each node if they differ."""
        duties = [node.duty_or(proposed) for node in self.nodes]
        return duties[0] if len(set(duties)) == 1 else duties

    def check_real(self) -> None:
        """Raise InputError if the nodes are virtual: a replay on them is not a real run."""
        if self.execution == "virtual":
            what = f"the nodes of {self.name} are virtual, so a replay on them is not a real run"
            raise InputError(what, where=self.where, hint="name real or emulated nodes")

    def check_here(self) -> None:
        """Raise InputError unless this process may use all CPUs of the local nodes."""
        here = os.sched_getaffinity(0)
        for node in (node for node in self.nodes if node.provider == "local"):
            absent = set(node.cpus or ()) - here
            if absent:
                raise InputError(
                    f"node {node.name!r} has CPUs that this process may not use: {format_cpus(absent)}",
                    where=self.where,
                    hint="set other CPUs, `cpus: auto` or `emulated: true`",
                )


def shipped() -> list[str]:
    """Return the names of the inventories that tracebed provides."""
    return sorted(path.stem for path in SHIPPED.glob("*.yaml"))
