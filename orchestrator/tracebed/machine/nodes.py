"""The nodes of a machine, and their form in `run.json`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from itertools import repeat
from reprlib import repr as shown
from typing import Any, NamedTuple, Self

from tracebed.converters.workload import MAX_SIZE, System
from tracebed.ground.errors import InputError

DIGITS = re.compile("[0-9]{1,18}")
MANY = 100
"""Smallest number of consecutive nodes that are written as a range."""
MOST_NODES = 10_000_000
"""Largest number of nodes of a range. A larger one in a damaged file would fill the memory."""


class NodeFacts(NamedTuple):
    """A node: its name, cores and sockets."""

    name: str
    cores: int
    sockets: int = 1

    @classmethod
    def alike(cls, names: Iterable[str], cores: int, sockets: int = 1) -> list[Self]:
        """Return nodes that differ in their names only, a million in 0.2 s."""
        return [*map(cls._make, zip(names, repeat(cores), repeat(sockets), strict=False))]

    @classmethod
    def from_json(cls, raw: Any) -> list[NodeFacts]:
        """Return the node, or the range of nodes, in `raw`. Raises ValueError if `raw` is neither."""
        known: dict[str, Any] = {"sockets": 1} | (raw if isinstance(raw, dict) else {})
        sizes = [known.get("cores"), known["sockets"]]
        if isinstance(known.get("name"), str) and all(type(size) is int and 1 <= size <= MAX_SIZE for size in sizes):
            if known.keys() == {*cls._fields} and known["name"]:
                return [cls(known["name"], *sizes)]
            ends = [str(known.get(end)) for end in ("first", "last")]
            if known.keys() == {*cls._fields, "first", "last"} and all(map(DIGITS.fullmatch, ends)):
                (first, last), digits = map(int, ends), len(ends[0])
                if first <= last < first + MOST_NODES:
                    names = [f"{known['name']}{number:0{digits}d}" for number in range(first, last + 1)]
                    return cls.alike(names, *sizes)
        raise ValueError(f"{shown(raw)} is not a node: it needs a name, and cores and sockets from 1 to {MAX_SIZE:,}")


def ranges(nodes: list[NodeFacts]) -> list[dict[str, Any]]:
    """Return the nodes for `run.json`: nodes that are alike and have consecutive numbers as a range, if they are many.

    The digits of a number are kept: `n001` to `n900` is the name `n` with `first` 001 and `last` 900.
    """
    found: list[dict[str, Any]] = []
    at = 0
    while at < len(nodes):
        name, cores, sockets = nodes[at]
        prefix = name.rstrip("0123456789")
        end, digits = at + 1, name[len(prefix) :]
        if DIGITS.fullmatch(digits):
            width, number = len(digits), int(digits)
            while end < len(nodes) and nodes[end] == (f"{prefix}{number + end - at:0{width}d}", cores, sockets):
                end += 1
        if MANY <= end - at <= MOST_NODES:
            last = nodes[end - 1].name[len(prefix) :]
            found.append({"name": prefix, "first": digits, "last": last, "cores": cores, "sockets": sockets})
        else:
            found += [node._asdict() for node in nodes[at:end]]
        at = end
    return found


def nodes_of(system: System) -> list[NodeFacts]:
    """Return the identical nodes of the system of a workload.

    Raises:
        InputError: the size of the system is unknown.
    """
    if not system.nodes:
        raise InputError(
            "the number of nodes of the workload's system is unknown",
            hint="set it: convert --system NODESxCORES, or simulate --nodes or --inventory",
        )
    return list(_numbered(system.nodes, system.cores_per_node or 1))


@lru_cache(maxsize=1)  # a study simulates one machine many times
def _numbered(count: int, cores: int) -> tuple[NodeFacts, ...]:
    width = len(str(count))
    return tuple(NodeFacts.alike((f"n{number:0{width}d}" for number in range(1, count + 1)), cores))
