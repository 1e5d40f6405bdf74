"""The machine of a testbed, and the source of machines `inventory`."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from tracebed.machine.machine import Machine, NodeClass
from tracebed.machine.sources import YAML, MachineSource
from tracebed.orchestrator.testbeds.nodes import SHIPPED, Inventory, shipped

MACHINES = SHIPPED / "machines"
"""The folder of the machines that tracebed provides for simulations: YAML with classes of nodes, for no testbed."""


@dataclass(frozen=True, kw_only=True, eq=False)
class InventoryMachine(Machine):
    """The machine of an inventory, on which a workload can be replayed, too.

    Its JSON values and its hash are those of its nodes and partitions: a prediction depends on nothing else.
    """

    inventory: Inventory

    @classmethod
    def of(cls, inventory: Inventory) -> InventoryMachine:
        """Return the machine of an inventory. Consecutive nodes that are alike are a class.

        If the nodes have equal memory, and neither partitions nor resources, the memory is a limit only: a replay
        refuses a job that needs more.
        """
        nodes = inventory.nodes
        demanded = inventory.partitions or any(node.gres or node.features for node in nodes)
        equal = not demanded and len({node.memory_mib for node in nodes}) == 1
        classes = tuple(
            NodeClass(
                names=tuple(node.name for node in alike),
                cores=cores,
                sockets=sockets,
                memory_mib=None if equal else memory_mib,
                gres=gres,
                features=features,
                power=power,
            )
            for (cores, sockets, memory_mib, gres, features, power), alike in groupby(
                nodes, lambda node: (node.cores, node.sockets, node.memory_mib, node.gres, node.features, node.power)
            )
        )
        machine = cls(
            classes=classes,
            partitions=inventory.partitions,
            grid=inventory.grid,
            sleep=inventory.sleep,
            tariff=inventory.tariff,
            inventory=inventory,
        )
        vars(machine)["nodes"] = tuple(inventory.facts)  # the property need not make them again
        return machine


def shipped_machines() -> list[str]:
    """Return the names of the machines that tracebed provides for simulations."""
    return sorted(path.stem for path in MACHINES.glob("*.yaml"))


def _is_inventory(path: Path) -> bool:
    """Return whether a path is a name of what tracebed ships, or a text file, the last possible kind."""
    if not path.is_file():
        return path.name == str(path) and path.name in (*shipped(), *shipped_machines())
    with path.open("rb") as file:
        return b"\0" not in file.read(2**16)


def _read(path: Path) -> Machine:
    from tracebed.orchestrator.testbeds.inventory import load_inventory  # imports pydantic, which is slow

    if not path.is_file() and path.name in shipped_machines():
        return YAML.read(MACHINES / f"{path.name}.yaml")
    return InventoryMachine.of(load_inventory(path))


SOURCE = MachineSource("an inventory (YAML, Ansible, SSH configuration)", _is_inventory, _read, last=True)
"""Inventories: the name of one that tracebed ships, or a file; and the names of the shipped machines."""
