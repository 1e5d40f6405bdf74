"""Inventories as YAML text, with the facts found on the nodes."""

from __future__ import annotations

from typing import Any

import yaml

from tracebed.ground.cpus import format_cpus
from tracebed.orchestrator.testbeds.nodes import AGENTS, Inventory, Node


def as_yaml(inventory: Inventory) -> str:
    """Return an inventory as YAML, which `load_inventory` reads as the same nodes, groups and settings."""
    content: dict[str, Any] = {"name": inventory.name}
    defaults = Inventory("", AGENTS, ())
    for key in ("testbed", "grain_s", "heartbeat_s", "linger_s", "network"):
        if getattr(inventory, key) != getattr(defaults, key):
            content[key] = getattr(inventory, key)
    content["groups"] = {
        group.name: {
            "provider": group.provider,
            **group.settings.model_dump(mode="json", exclude_unset=True),
            "nodes": [_item(node) for node in group.nodes],
        }
        for group in inventory.groups
    }
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True, default_flow_style=None, width=110)


def _item(node: Node) -> dict[str, Any]:
    """Return the keys of a node."""
    item: dict[str, Any] = {"name": node.name}
    if node.emulated:
        item |= {"cores": node.cores, "sockets": node.sockets, "emulated": True}
    elif node.cpus is not None and node.sockets == 1:
        item["cpus"] = format_cpus(node.cpus)
    elif node.cpus is not None:
        size = node.cores // node.sockets
        item["sockets"] = [format_cpus(node.cpus[first : first + size]) for first in range(0, node.cores, size)]
    for key in ("duty", "memory_mib", "address"):
        if getattr(node, key) is not None:
            item[key] = getattr(node, key)
    return item
