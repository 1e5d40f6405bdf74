"""The nodes of an inventory without a replay."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any

from tracebed.ground.outputs import INVENTORY
from tracebed.orchestrator.testbeds.checking import health as judging
from tracebed.orchestrator.testbeds.checking.health import NodeHealth
from tracebed.orchestrator.testbeds.checking.preparation import bring_up, take_down
from tracebed.orchestrator.testbeds.checking.survey import NodeReport, described, survey
from tracebed.orchestrator.testbeds.inventory import as_yaml, load_inventory
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
    return bring_up(_inventory(nodes), on_step=on_step)


def nodes_down(
    nodes: Inventory | Path | str, *, on_step: Callable[[str], None] = lambda step: None
) -> list[dict[str, Any]]:
    """Remove exactly what `nodes_up` or a killed replay made for an inventory.

    Args:
        nodes: an inventory, its name, or its file.
        on_step: called with each step, from any thread.

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
    return take_down(_inventory(nodes), on_step)


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
    return survey(_inventory(nodes), on_step=on_step)


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
    reports = survey(_inventory(nodes), measure=True, seconds=seconds, on_step=on_step)
    return judging.judge(reports, limits)


def with_facts(nodes: Inventory | Path | str, reports: Iterable[NodeReport]) -> Inventory:
    """Return an inventory with the CPUs that agents found on nodes whose number of cores is unknown.

    Args:
        nodes: an inventory, its name, or its file.
        reports: the facts of its nodes, as from `nodes_facts`.

    Raises:
        InputError: the inventory is invalid.
        TestbedError: the agent of such a node did not start.

    Example:
        >>> with_facts("emulated-4", []).name
        'emulated-4'
    """
    return described(_inventory(nodes), reports)


def without_nodes(nodes: Inventory | Path | str, names: Collection[str]) -> Inventory:
    """Return an inventory without some of its nodes.

    Args:
        nodes: an inventory, its name, or its file.
        names: names of the nodes that are left out.

    Raises:
        InputError: the inventory is invalid.

    Example:
        >>> len(without_nodes("emulated-4", {"n1"}).nodes)
        3
    """
    own = _inventory(nodes)
    return own.with_nodes({node.name: node for node in own.nodes if node.name not in names})


def write_inventory(inventory: Inventory, path: Path | str, *, replace: bool = False) -> None:
    """Write an inventory as YAML.

    Args:
        inventory: the inventory.
        path: the file.
        replace: whether an earlier inventory in `path` is replaced.

    Raises:
        InputError: the file cannot be written.

    Example:
        >>> write_inventory(without_nodes("emulated-4", {"n1"}), "three.yaml")
        >>> len(_inventory("three.yaml").nodes)
        3
    """
    with INVENTORY.file(Path(path), replace=replace) as file:
        file.write(f"# Written by `tracebed nodes`\n{as_yaml(inventory)}".encode())
