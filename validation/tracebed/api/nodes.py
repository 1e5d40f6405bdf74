"""The nodes of an inventory without a replay."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

from tracebed.ground.outputs import INVENTORY
from tracebed.orchestrator.testbeds.checking import health as judging
from tracebed.orchestrator.testbeds.checking.health import NodeHealth
from tracebed.orchestrator.testbeds.checking.survey import survey
from tracebed.orchestrator.testbeds.inventory import as_yaml
from tracebed.orchestrator.testbeds.inventory import inventory as inventory_of
from tracebed.orchestrator.testbeds.nodes import Inventory


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
    reports = survey(nodes, measure=True, seconds=seconds, on_step=on_step)
    return judging.judge(reports, limits)


def without_nodes(nodes: Inventory | Path | str, names: Collection[str]) -> Inventory:
    """Return an inventory without some of its nodes.

    Args:
        nodes: an inventory, its name, or its file.
        names: names of the nodes that are left out.

    Raises:
        InputError: the inventory is invalid.

    Example:
        >>> import tracebed.api as tb
        >>> len(tb.without_nodes("emulated-4", {"n1"}).nodes)
        3
    """
    own = inventory_of(nodes, facts_follow=True)
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
        >>> import tracebed.api as tb
        >>> tb.write_inventory(tb.without_nodes("emulated-4", {"n1"}), "three.yaml")
        >>> len(tb.inventory("three.yaml").nodes)
        3
    """
    with INVENTORY.file(Path(path), replace=replace) as file:
        file.write(f"# Written by `tracebed nodes`\n{as_yaml(inventory)}".encode())
