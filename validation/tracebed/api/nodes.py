"""The nodes of an inventory without a replay."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tracebed.orchestrator.testbeds.checking import health as judging
from tracebed.orchestrator.testbeds.checking.health import NodeHealth
from tracebed.orchestrator.testbeds.checking.making import bring_up, take_down
from tracebed.orchestrator.testbeds.checking.survey import NodeReport, survey
from tracebed.orchestrator.testbeds.inventory import load_inventory
from tracebed.orchestrator.testbeds.nodes import Inventory


def _inventory(nodes: Inventory | Path | str) -> Inventory:
    """Return an inventory, in which the number of cores of a node may be unknown."""
    return nodes if isinstance(nodes, Inventory) else load_inventory(nodes, facts_follow=True)


def nodes_up(
    nodes: Inventory | Path | str, *, on_step: Callable[[str], None] = lambda step: None
) -> list[dict[str, Any]]:
    """Prepare the nodes of an inventory for replays: containers, installations, allocations.

    Args:
        nodes: an inventory, its name, or its file.
        on_step: called with each step, from any thread.

    Returns:
        For each group: `group`, `provider`, `nodes` (names), `made` (False: the nodes were ready before), and `steps`.

    Raises:
        InputError: the inventory is invalid.
        TestbedError: the nodes of a group cannot be prepared.

    Example:
        >>> import tracebed.api as tb
        >>> [group["made"] for group in tb.nodes_up("emulated-4")]
        [False]
    """
    return bring_up(_inventory(nodes), say=on_step)


def nodes_down(nodes: Inventory | Path | str) -> list[dict[str, Any]]:
    """Remove exactly what `nodes_up` or a killed replay made for an inventory.

    Args:
        nodes: an inventory, its name, or its file.

    Returns:
        For each group: `group`, `provider`, `nodes`, and `steps` (what was removed).

    Raises:
        InputError: the inventory is invalid.
        TestbedError: something cannot be removed.

    Example:
        >>> import tracebed.api as tb
        >>> [group["steps"] for group in tb.nodes_down("emulated-4")]
        [[]]
    """
    return take_down(_inventory(nodes))


def nodes_facts(
    nodes: Inventory | Path | str, *, on_step: Callable[[str], None] = lambda step: None
) -> list[NodeReport]:
    """Return the facts of the nodes of an inventory, from an agent on each node.

    Args:
        nodes: an inventory, its name, or its file.
        on_step: called with each step of the providers.

    Raises:
        InputError: the inventory is invalid.

    Example:
        >>> import tracebed.api as tb
        >>> tb.nodes_facts("emulated-4")[0].facts["topology"]["cpus"] >= 1
        True
    """
    return survey(_inventory(nodes), say=on_step)


def nodes_check(
    nodes: Inventory | Path | str,
    *,
    health: Path | None = None,
    seconds: float = 2.0,
    on_step: Callable[[str], None] = lambda step: None,
) -> list[NodeHealth]:
    """Return the health of the nodes of an inventory, judged by thresholds.

    Args:
        nodes: an inventory, its name, or its file.
        health: file of thresholds; None: those of tracebed.
        seconds: time over which the load of other processes is measured, wall s; 0: not measured.
        on_step: called with each step of the providers.

    Raises:
        InputError: the inventory or the file of thresholds is invalid.

    Example:
        >>> import tracebed.api as tb
        >>> tb.nodes_check("emulated-4", seconds=0)[0].node
        'n1'
    """
    limits = judging.read_limits(health or judging.SHIPPED)
    reports = survey(_inventory(nodes), measure=True, seconds=seconds, say=on_step)
    return judging.judge(reports, limits)
