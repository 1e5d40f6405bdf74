"""The test whether ranks on different nodes can connect over TCP, before any job depends on it.

A firewall, or a rule that another program left on the machine of the nodes, may discard the packets between them. Each
job of several nodes would then fail.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from tracebed.ground import system as world
from tracebed.orchestrator.testbeds.base import Event
from tracebed.orchestrator.testbeds.links import Links

ANSWER_S = 60.0
"""Time in which the agents must answer, s. They answer within 5 s unless the machine is overloaded."""


def blocked(links: Links, addresses: Mapping[int, str]) -> str | None:
    """Return why a node cannot connect to the next node; None: all nodes can connect, or there is only one.

    Each node listens, and the node before it connects: the nodes form a ring, so each direction of each node is tested
    with two messages per node.

    Args:
        links: the links to the agents.
        addresses: node -> the address on which its ranks listen.
    """
    ring = [link.index for link in links if link.up and link.index in addresses]
    if len(ring) < 2:
        return None
    before = {target: source for source, target in pairwise([*ring, ring[0]])}
    awaited, others = dict.fromkeys(ring), []
    reason: str | None = None
    until = world.monotonic() + ANSWER_S
    for node in ring:
        links.send(node, {"type": "reach", "bind": addresses[node]})
    while awaited and reason is None and world.monotonic() < until:
        links.turn(until)
        events, links.events = links.events, []
        for event in events:
            kind, node = event.message["type"], event.node
            if kind == "reachable":
                links.send(before[node], {"type": "reach", "address": event.message["address"]})
            elif kind == "reached":
                awaited.pop(node, None)
                if event.message["reason"] is not None:
                    reason = f"{links[node].node.name}: {event.message['reason']}"
            elif kind == "error" and "job" not in event.message:
                reason = f"{links[node].node.name}: {event.message['what']}"
            else:
                others.append(event)
                _forget_lost(event, awaited, before)
    links.events = others + links.events
    for node in ring:
        links.send(node, {"type": "reach"})
    if reason is None and awaited:
        reason = f"{links[next(iter(awaited))].node.name}: no answer within {ANSWER_S:g} s"
    return reason


def _forget_lost(event: Event, awaited: dict[int, None], before: Mapping[int, int]) -> None:
    """Remove a lost node, and the node that was to connect to it, from the expected answers."""
    if event.message["type"] == "lost":
        awaited.pop(event.node, None)
        if event.node in before:
            awaited.pop(before[event.node], None)
