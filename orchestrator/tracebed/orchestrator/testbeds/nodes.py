"""The nodes of a testbed."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tracebed.cpus import format_cpus
from tracebed.errors import InputError

if TYPE_CHECKING:
    from tracebed.orchestrator.run import NodeFacts

SHIPPED = next(
    folder
    for folder in (Path(__file__).with_name("inventories"), Path(__file__).parents[4] / "inventory")  # wheel, checkout
    if folder.is_dir()
)
"""The folder of the inventories that tracebed provides."""

DEFAULT_DUTY = 0.3
"""Duty of nodes without a duty in the inventory or in a calibration. It suits a machine that other processes share:
beside a busy process on its CPU, a rank has half of the CPU, of which pauses and drift may cost another quarter, and
still ends each part at its deadline (docs/explanation/pace.md). Dedicated nodes set 1."""


@dataclass(frozen=True)
class Node:
    """A node of `cores` cores in `sockets` equal sockets. `cpus` has the CPU of each core, ordered by socket."""

    name: str
    cores: int
    sockets: int = 1
    cpus: tuple[int, ...] | None = None
    emulated: bool = False
    duty: float | None = None
    """The share of the planned time in which ranks compute, above 0 to 1; None: not set, or emulated."""

    def duty_or(self, proposed: float | None) -> float:
        """Return the duty of the node: 0 if emulated, else its own, else the `proposed` one, else `DEFAULT_DUTY`."""
        if self.emulated:
            return 0.0
        return next(duty for duty in (self.duty, proposed, DEFAULT_DUTY) if duty is not None)


@dataclass(frozen=True)
class Inventory:
    """The nodes of a testbed, and the parameters of its agents."""

    name: str
    testbed: str
    """The name of a registered testbed."""
    nodes: tuple[Node, ...]
    grain_s: float = 0.05
    """Target duration of an iteration of a job, wall seconds."""
    heartbeat_s: float = 1.0
    """Time between two heartbeats of an agent, wall seconds."""
    where: str | None = None
    """The file of the inventory."""

    @property
    def execution(self) -> str:
        """The kind of its nodes: `computed`, `emulated`, or `computed+emulated` if there are both kinds."""
        kinds = {"emulated" if node.emulated else "computed" for node in self.nodes}
        return "+".join(sorted(kinds))

    @property
    def facts(self) -> list[NodeFacts]:
        """The nodes as in the run of a replay."""
        from tracebed.orchestrator.run import NodeFacts  # imports pandas, which the completion of names does without

        return [NodeFacts(node.name, node.cores, node.sockets) for node in self.nodes]

    def duty(self, proposed: float | None = None) -> float | list[float]:
        """Return the duty of the nodes (see `Node.duty_or`), or that of each node if they differ."""
        duties = [node.duty_or(proposed) for node in self.nodes]
        return duties[0] if len(set(duties)) == 1 else duties

    def check_here(self) -> None:
        """Raise InputError unless this process may use all CPUs of the inventory on this machine."""
        here = os.sched_getaffinity(0)
        for node in self.nodes:
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
