"""The machine of a testbed, and the source of machines `inventory`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tracebed.machine.machine import Machine
from tracebed.machine.sources import MachineSource
from tracebed.orchestrator.testbeds.nodes import Inventory, shipped


@dataclass(frozen=True, kw_only=True, eq=False)
class InventoryMachine(Machine):
    """The machine of an inventory, on which a workload can be replayed, too.

    Its JSON values and its hash are those of its nodes: a prediction depends on nothing else.
    """

    inventory: Inventory

    @classmethod
    def of(cls, inventory: Inventory) -> InventoryMachine:
        """Return the machine of an inventory."""
        return cls.of_nodes(inventory.facts, grid=inventory.grid, inventory=inventory)


def _is_inventory(path: Path) -> bool:
    """Return whether a path is the name of an inventory that tracebed ships, or a text file, the last possible kind."""
    if not path.is_file():
        return path.name == str(path) and path.name in shipped()
    with path.open("rb") as file:
        return b"\0" not in file.read(2**16)


def _read(path: Path) -> InventoryMachine:
    from tracebed.orchestrator.testbeds.inventory import load_inventory  # imports pydantic, which is slow

    return InventoryMachine.of(load_inventory(path))


SOURCE = MachineSource("an inventory (YAML, Ansible, SSH configuration)", _is_inventory, _read, last=True)
"""Inventories: the name of one that tracebed ships, or a file."""
