"""Preparation and removal of nodes without a replay."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from tracebed.orchestrator.testbeds.group_lock import GroupLock
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


def bring_up(inventory: Inventory, on_step: Callable[[str], None] = lambda step: None) -> list[dict[str, Any]]:
    """Prepare the nodes of all groups concurrently, and leave them up. `on_step` is called from any thread.

    Each group has a `group`, a `provider`, its `nodes` (names), `made` (whether something was made; otherwise the nodes
    were ready before), and `steps` (what the provider reported). After an interrupt, no provider waits any longer for
    nodes, as for an allocation. If the nodes of a group cannot be prepared (TestbedError), what was made remains, and
    `take_down` removes it.
    """
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


def take_down(inventory: Inventory, on_step: Callable[[str], None] = lambda step: None) -> list[dict[str, Any]]:
    """Remove everything that `bring_up` or a killed replay made for all groups. `on_step` is called from any thread.

    Each group has a `group`, a `provider`, its `nodes` (names), and `steps` (what was removed). If something cannot be
    removed, or another process uses the nodes of a group (TestbedError), the other groups are still taken down.
    """
    with _providers(inventory, on_step) as found:
        carry_out([partial(_take_down, provider, use) for _, provider, use in found], len(found))
        return [facts for facts, _, _ in found]


def _take_down(provider: Provider, use: GroupLock) -> None:
    if not provider.shared and not use.lock_exclusive():
        raise use.in_use("is not taken down")
    provider.down()
