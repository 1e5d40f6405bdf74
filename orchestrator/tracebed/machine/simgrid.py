"""Platforms of SimGrid, as ElastiSim and Batsim read them: the nodes, and their power by state.

`wattage_per_state` (`watt_per_state` in older files) has the watts of an idle and of a busy host for each state of its
processor, as `idle:busy` or `idle:one core:busy`. Batsim's `sleep_pstates` names three of these states: the one in
which the host sleeps, and two whose only purpose are the times and the power of the changes, off and on. A change takes
the time of one flop at the speed of its state.
"""

from __future__ import annotations

import re
from itertools import groupby
from xml.etree import ElementTree

from tracebed.ground.errors import InputError
from tracebed.machine.machine import NodeClass
from tracebed.machine.power import NodePower

MASTER = "master_host"
"""Batsim's default name of the host of its scheduler, which is no node."""
FACTORS = {"": 1.0, **{letter: 1000.0 ** (place + 1) for place, letter in enumerate("kMGTPE")}}
ROUNDED = 6  # digits of the durations: speeds have a dozen
HINT = "correct the platform"


def classes_of(text: str, where: str) -> tuple[NodeClass, ...]:
    """Return the nodes of a platform: those of its clusters; without clusters, its hosts.

    Raises:
        InputError: the text is not XML, or has no nodes, or a figure of their power is invalid.
    """
    if "<!ENTITY" in text:
        raise InputError("defines entities", where=where, hint="write the platform without them")
    try:
        root = ElementTree.fromstring(text.lstrip())
    except ElementTree.ParseError as error:
        raise InputError(f"is not XML: {error}", where=where, hint=HINT) from None
    clusters = [each for each in root.iter("cluster") if not _is_master(each)]
    hosts = [each for each in root.iter("host") if not _is_master(each)]
    sizes = [_size(each.get("radical", "")) for each in clusters]
    if clusters and all(sizes):
        return tuple(
            NodeClass(count=size, power=_power(each, where)) for each, size in zip(clusters, sizes, strict=True)
        )
    if clusters or not hosts:
        what = "is not a platform with clusters or hosts of nodes"
        raise InputError(what, where=where, hint="give one with hosts, or whose <cluster> have a radical")
    alike = groupby(hosts, lambda each: _power(each, where))
    return tuple(NodeClass(names=tuple(each.get("id", "") for each in group), power=power) for power, group in alike)


def _is_master(element: ElementTree.Element) -> bool:
    return element.get("id") == MASTER or _property(element, "role") == "master"


def _property(element: ElementTree.Element, *names: str) -> str | None:
    """Return the first of some properties that an element has."""
    found = {each.get("id"): each.get("value") for each in element.iter("prop")}
    return next((found[name] for name in names if name in found), None)


def _size(radical: str) -> int:
    """Return the number of hosts of a cluster (`0-31,40`); 0: unknown."""
    parts = [re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", part.strip()) for part in radical.split(",")]
    return sum(max(0, int(part[2] or part[1]) - int(part[1]) + 1) for part in parts if part) if all(parts) else 0


def _power(element: ElementTree.Element, where: str) -> NodePower | None:
    """Return the power of a host, or of each host of a cluster; None: the platform does not say it."""
    text = _property(element, "wattage_per_state", "watt_per_state")
    if text is None:
        return None
    name = element.get("id", "")
    try:
        watts = [[float(number) for number in state.split(":")] for state in text.split(",")]
        idle, *_, busy = watts[int(element.get("pstate", "0"))]
        off = float(_property(element, "wattage_off", "watt_off") or 0.0)
        sleep = _property(element, "sleep_pstates")
        if not sleep:
            return NodePower(busy_w=busy, idle_w=idle, off_w=off)
        asleep, shutdown, boot = (int(number) for number in sleep.split(",")[0].split(":"))
        speeds = [_flops(speed) for speed in element.get("speed", "").split(",")]
        return NodePower(
            busy_w=busy,
            idle_w=idle,
            off_w=watts[asleep][0],
            shutdown_w=watts[shutdown][0],
            shutdown_s=round(1.0 / speeds[shutdown], ROUNDED),
            boot_w=watts[boot][0],
            boot_s=round(1.0 / speeds[boot], ROUNDED),
        )
    except (ValueError, IndexError, ZeroDivisionError) as error:
        what = f"the power of {name[:40]!r} is invalid: {error}"
        raise InputError(what, where=where, hint="check wattage_per_state, sleep_pstates and speed") from None
    except InputError as error:
        raise InputError(f"the power of {name[:40]!r}: {error.what}", where=where, hint=error.hint) from None


def _flops(text: str) -> float:
    """Return a speed (`100Mf`) in flop/s. Raise ValueError if it is invalid."""
    found = re.fullmatch(r"([-+.\deE]+?)([kMGTPE]?)f", text.strip())
    if found is None:
        raise ValueError(f"speed {text.strip()[:20]!r}")
    return float(found[1]) * FACTORS[found[2]]
