"""Preparation and removal of nodes without a replay."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from tracebed.orchestrator.testbeds.group_lock import GroupLock
from tracebed.orchestrator.testbeds.inventory import inventory as inventory_of
from tracebed.orchestrator.testbeds.launcher import Launcher, carry_out
from tracebed.orchestrator.testbeds.nodes import Group, Inventory
from tracebed.orchestrator.testbeds.provider import PROVIDERS, Provider


@contextmanager
def _providers(
    inventory: Inventory, on_step: Callable[[str], None] = lambda step: None
) -> Iterator[list[tuple[dict[str, Any], Provider, GroupLock]]]:
    """Yield the provider of each group, with a description of the group, whose `steps` the provider adds to."""
    with tempfile.TemporaryDirectory(prefix="tracebed-nodes-") as folder, ExitStack() as stack:
        found = []
        for group in inventory.groups:
            names = [node.name for node in group.nodes]
            facts: dict[str, Any] = {"group": group.name, "provider": group.provider, "nodes": names, "steps": []}

            def note(step: str, group: Group = group, steps: list[str] = facts["steps"]) -> None:
                steps.append(step)
                on_step(f"{group.name}: {step}")

            provider, use = PROVIDERS.load(group.provider)(group, Path(folder), note), GroupLock(group)
            stack.callback(use.release)
            stack.callback(provider.close)
            found.append((facts, provider, use))
        yield found


def bring_up(
    nodes: Inventory | Path | str, *, on_step: Callable[[str], None] = lambda step: None
) -> list[dict[str, Any]]:
    """Prepare the nodes of an inventory for replays, and leave them up: containers, installations, allocations.

    After an interrupt, no provider waits any longer for nodes, as for an allocation.

    Args:
        nodes: an inventory, its name, or its file.
        on_step: called with each step, from any thread.

    Returns:
        For each group: `group`, `provider`, `nodes` (names), `made` (False: the nodes were ready before), and `steps`.

    Raises:
        InputError: the inventory is invalid.
        TestbedError: the nodes of a group cannot be prepared. What was made remains, and `take_down` removes it.

    Example:
        >>> import tracebed.api as tb
        >>> [group["made"] for group in tb.nodes_up("emulated-4")]
        [False]
    """
    inventory = inventory_of(nodes, facts_follow=True)
    inventory.check_here()
    with _providers(inventory, on_step) as found, ExitStack() as stack:
        for _, provider, use in found:
            if not provider.shared:
                use.lock_shared()
        launchers = [Launcher(provider, lambda call: None) for _, provider, _ in found]
        for launcher in launchers:
            stack.callback(launcher.close)
        carry_out([launcher.make_ready for launcher in launchers], len(found))
        return [facts | {"made": provider.made} for facts, provider, _ in found]


def take_down(
    nodes: Inventory | Path | str, *, on_step: Callable[[str], None] = lambda step: None
) -> list[dict[str, Any]]:
    """Remove exactly what `bring_up` or a killed replay made for an inventory.

    Args:
        nodes: an inventory, its name, or its file.
        on_step: called with each step, from any thread.

    Returns:
        For each group: `group`, `provider`, `nodes`, and `steps` (what was removed).

    Raises:
        InputError: the inventory is invalid.
        TestbedError: something cannot be removed, or another process uses the nodes of a group. The other groups
            are still taken down.

    Example:
        >>> import tracebed.api as tb
        >>> [group["steps"] for group in tb.nodes_down("emulated-4")]
        [[]]
    """
    inventory = inventory_of(nodes, facts_follow=True)
    with _providers(inventory, on_step) as found:
        carry_out([partial(_take_down, provider, use) for _, provider, use in found], len(found))
        return [facts for facts, _, _ in found]


def _take_down(provider: Provider, use: GroupLock) -> None:
    if not provider.shared and not use.lock_exclusive():
        raise use.in_use("is not taken down")
    provider.down()
