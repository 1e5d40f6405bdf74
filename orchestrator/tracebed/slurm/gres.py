"""Texts of generic resources and licences: their names, types and numbers, and which of them a simulation counts."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

from tracebed.converters.formats.tools.gres import NO_CONSUME, gres_items
from tracebed.ground.errors import InputError


def gres_of(text: str) -> dict[str, int]:
    """Return the generic resources of a text such as `gpu:tesla:2,nvme`: of each name, and of each type of it."""
    found: dict[str, int] = {}
    for name, kind, count in gres_items(text):
        for each in (name, f"{name}:{kind}") if kind else (name,):
            found[each] = found.get(each, 0) + count
    return found


def kept_gres(text: str) -> tuple[str, ...]:
    """Return the generic resources of a NodeName line that jobs do not consume, such as `bw` of `bw:no_consume:4G`."""
    items = (item for item in text.split(",") if NO_CONSUME in item.lower().split(":"))
    return tuple(dict.fromkeys(each for item in items for each in gres_of(item)))


def counted_gres(nodes: Sequence[Mapping[str, int]]) -> tuple[str, ...]:
    """Return the generic resources of nodes that are counted; a type, such as `gpu:a100`, only if others have no type
    or another one.
    """
    every = sorted({name for node in nodes for name in node})
    return tuple(
        name
        for name in every
        if any(node.get(name, 0) != node.get(_plain(name), 0) for node in nodes) or ":" not in name
    )


def demanded_gres(text: str, nodes: Sequence[Mapping[str, int]], counted: Collection[str]) -> dict[str, int]:
    """Return the generic resources of a text of `--gres`: those that are `counted`, and others that no node has.

    A type is left out if the nodes have no types of the resource: they may be in the gres.conf only.
    """
    every = {name for node in nodes for name in node}
    typed = {_plain(name) for name in every if ":" in name}
    return {
        name: count
        for name, count in gres_of(text).items()
        if count and (name in counted or name not in every) and (":" not in name or _plain(name) in typed)
    }


def _plain(name: str) -> str:
    return name.partition(":")[0]


def licenses_of(text: str, where: str) -> dict[str, int]:
    """Return the licences of a text such as `matlab:2,abaqus`: name -> count."""
    found: dict[str, int] = {}
    for item in filter(None, (part.strip() for part in re.split("[,;]", text))):
        own = re.fullmatch(r"([^:*|]+)(?:[:*](\d{1,9}))?", item)
        if own is None:
            raise InputError(f"licences {text[:60]!r} are invalid", where=where, hint="write them as matlab:2,abaqus:1")
        found[own[1]] = found.get(own[1], 0) + int(own[2] or 1)
    return found
