"""The nodes of a testbed, as an inventory describes them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from tracebed.cpus import format_cpus
from tracebed.errors import InputError

SHIPPED = next(
    folder
    for folder in (Path(__file__).with_name("inventories"), Path(__file__).parents[4] / "inventory")  # wheel, checkout
    if folder.is_dir()
)
"""The folder of the inventories that are part of tracebed."""


@dataclass(frozen=True)
class Node:
    """A node of `cores` cores in equal `sockets`; `cpus` are a real node's CPUs by socket, one a core."""

    name: str
    cores: int
    sockets: int = 1
    cpus: tuple[int, ...] | None = None
    emulated: bool = False


@dataclass(frozen=True)
class Inventory:
    """The nodes of a testbed, and the parameters of its agents."""

    name: str
    testbed: str
    """A name of the registry of testbeds."""
    nodes: tuple[Node, ...]
    grain_s: float = 0.05
    """Target length of an iteration of a job, wall seconds."""
    heartbeat_s: float = 1.0
    """Time between two heartbeats of an agent, wall seconds."""
    where: str | None = None
    """The file it was read from."""

    @property
    def execution(self) -> str:
        """What a run on it is: `computed`, `emulated`, or `computed+emulated` where nodes are mixed."""
        kinds = {"emulated" if node.emulated else "computed" for node in self.nodes}
        return "+".join(sorted(kinds))

    def check_here(self) -> None:
        """Raise InputError unless this process may use every CPU of the inventory on this machine."""
        here = os.sched_getaffinity(0)
        for node in self.nodes:
            absent = set(node.cpus or ()) - here
            if absent:
                raise InputError(
                    f"node {node.name!r} has CPUs {format_cpus(absent)}, of which this process may use none",
                    where=self.where,
                    hint="name other CPUs, or `cpus: auto`, or `emulated: true`",
                )


def shipped() -> list[str]:
    """Return the names of the inventories that are part of tracebed."""
    return sorted(path.stem for path in SHIPPED.glob("*.yaml"))
