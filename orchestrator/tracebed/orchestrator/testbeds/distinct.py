"""The check that the nodes of an inventory differ in their names, and share no CPU."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

from pydantic import BaseModel

from tracebed.ground.errors import InputError
from tracebed.ground.yaml_file import abbreviated
from tracebed.orchestrator.testbeds.inventory_keys import LARGEST
from tracebed.orchestrator.testbeds.nodes import Node
from tracebed.orchestrator.testbeds.variables import Place


class DistinctNodes:
    """A check that node names are unique and no CPU belongs to two nodes."""

    def __init__(self) -> None:
        """Start without nodes."""
        self._names: set[str] = set()
        self._owners: dict[tuple[str, int], str] = {}

    @contextlib.contextmanager
    def at(self, place: Place, name: str) -> Iterator[None]:
        """Add the line of `place`, which defines the nodes `name`, to errors."""
        with place.of(f"node {abbreviated(name)}"):
            yield

    def of(self, nodes: Iterable[Node], settings: BaseModel) -> Iterator[Node]:
        """Yield the nodes.

        Args:
            settings: the settings of their group. A host with another SSH port, for example, is another machine.

        Raises:
            InputError: a name or a CPU occurs twice, or there are too many nodes.
        """
        one_machine = getattr(settings, "splits_this_machine", False)
        for node in nodes:
            if node.name in self._names:
                raise InputError(f"two nodes have the name {node.name!r}", hint="rename one of them")
            self._names.add(node.name)
            if len(self._names) > LARGEST:
                raise InputError(f"the inventory has more than {LARGEST:,} nodes", hint="use fewer nodes")
            host = "" if one_machine else node.address or node.name
            machine = "" if node.provider == "local" else f"{node.provider} {settings!r} {host}"
            for cpu in node.cpus or ():
                owner = self._owners.setdefault((machine, cpu), node.name)
                if owner != node.name:
                    what = f"nodes {owner!r} and {node.name!r} share CPU {cpu}"
                    raise InputError(what, hint="list each CPU of a machine for one node only")
            yield node
