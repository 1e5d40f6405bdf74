"""Faults of virtual nodes: what can go wrong, each as a function that makes it happen."""

from __future__ import annotations

import math
import random
import signal
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import NamedTuple

from tracebed.testing.virtual.kernel import VirtualWorld
from tracebed.testing.virtual.machine import VirtualAgent, VirtualNode, VirtualRank


class Fault(NamedTuple):
    """A fault."""

    kind: str  # one of `OUTAGES`, or another kind, in tests
    at: float  # virtual time of a fault on a node, s; call of the controller of its faults
    node: str = ""  # name of the node; empty for a fault of the controller
    seconds: float = 0.0  # its duration, or the size of a step of a clock, s
    draw: float = 0.0  # a number from 0 to 1 from which the fault derives its details
    # The journal entry upon which it strikes, in place of `at`: its kind, and its job or node (`launched j2`). Such
    # faults strike in their order, each upon the first entry after the fault before it.
    after: str = ""


OUTAGES_S = (60.0, 43_200.0)  # shortest and longest time of a drawn outage, trace s


def agent_of(node: VirtualNode) -> VirtualAgent | None:
    """Return the agent that was started last on a node."""
    return node.agents[-1] if node.agents else None


def rank_of(node: VirtualNode, fault: Fault) -> VirtualRank | None:
    """Return the drawn rank that runs on a node."""
    ranks = [rank for agent in node.agents for rank in agent.ranks.values() if not rank.over]
    return ranks[int(fault.draw * len(ranks)) % len(ranks)] if ranks else None


def kill_agent(node: VirtualNode, fault: Fault) -> None:
    """Kill the agent of a node, with its ranks."""
    if agent := agent_of(node):
        agent.kill()


def crash(node: VirtualNode, fault: Fault) -> None:
    """Let a node lose power, and return after a time."""
    node.crash(silent=fault.draw < 0.7)
    node.world.after(fault.seconds, node.heal)


def crash_again(node: VirtualNode, fault: Fault) -> None:
    """Let a node lose power, return, and lose power again at once."""
    crash(node, fault)
    node.world.after(fault.seconds + 1.0 + 3 * fault.draw, lambda: crash(node, fault))


def partition(node: VirtualNode, fault: Fault) -> None:
    """Cut a node off from the network for a time."""
    node.partition()
    node.world.after(fault.seconds, node.heal)


def hang(node: VirtualNode, fault: Fault) -> None:
    """Let the agent of a node do nothing for a time, while its ranks continue."""
    if agent := agent_of(node):
        agent.silent_until = node.world.now + fault.seconds


def slow_network(node: VirtualNode, fault: Fault) -> None:
    """Let messages to and from a node take long for a time."""
    agent = agent_of(node)
    pipes = [pipe for end in (agent.connections if agent else ()) for pipe in (end.incoming, end.outgoing) if pipe]
    before = [pipe.latency_s for pipe in pipes]
    for pipe in pipes:
        pipe.latency_s = 0.05 + fault.draw

    def restore() -> None:
        for pipe, latency_s in zip(pipes, before, strict=True):
            pipe.latency_s = latency_s

    node.world.after(fault.seconds, restore)


def cut_connection(node: VirtualNode, fault: Fault) -> None:
    """Cut the connection of an agent at any byte. The agent continues without its controller."""
    agent = agent_of(node)
    if agent is None:
        return
    end = agent.connections[-1]
    for pipe in (end.incoming, end.outgoing):
        if pipe is not None:
            pipe.cut(keep=int(fault.draw * 400))


def kill_rank(node: VirtualNode, fault: Fault) -> None:
    """Kill a rank, as the kernel does when memory is short."""
    if rank := rank_of(node, fault):
        rank.signal(signal.SIGKILL)


def stop_rank(node: VirtualNode, fault: Fault) -> None:
    """Stop a rank from outside, and continue it after a time."""
    rank = rank_of(node, fault)
    if rank is None:
        return
    rank.signal(signal.SIGSTOP)
    node.world.after(fault.seconds, partial(rank.signal, signal.SIGCONT))


LASTING = ("crash", "crash_again", "partition", "hang", "slow_network", "stop_rank")  # the faults that last for a time
OUTAGES: dict[str, Callable[[VirtualNode, Fault], None]] = {
    "crash": crash,
    "crash_again": crash_again,
    "partition": partition,
    "hang": hang,
    "slow_network": slow_network,
    "stop_rank": stop_rank,
    "kill_agent": kill_agent,
    "cut_connection": cut_connection,
    "kill_rank": kill_rank,
}
"""The faults of nodes in a rehearsal, by name: what happens to real nodes."""


def arm(
    world: VirtualWorld, faults: Iterable[Fault], effects: Mapping[str, Callable[[VirtualNode, Fault], None]] = OUTAGES
) -> None:
    """Schedule faults of nodes. `effects` has the function of each kind of fault."""
    for fault in faults:
        world.after(fault.at, partial(strike, world, fault, effects[fault.kind]))


def strike(world: VirtualWorld, fault: Fault, effect: Callable[[VirtualNode, Fault], None]) -> None:
    """Let a fault of a node happen now."""
    node = world.nodes.get(fault.node)
    if node is not None:
        world.observe("fault", fault)
        effect(node, fault)


def drawn_outages(seed: str, names: Iterable[str], mtbf_s: float, lasts_s: float, speed: float) -> tuple[Fault, ...]:
    """Draw faults for `lasts_s` trace seconds: on each node after exponential times of mean `mtbf_s`, trace s."""
    draw = random.Random(seed)
    faults = []
    for name in names:
        at = draw.expovariate(1 / mtbf_s)
        while at < lasts_s:
            seconds = math.exp(draw.uniform(*map(math.log, OUTAGES_S)))
            faults.append(Fault(draw.choice(tuple(OUTAGES)), at / speed, name, seconds / speed, draw.random()))
            at += draw.expovariate(1 / mtbf_s)
    return tuple(faults)


def has_target(node: VirtualNode, fault: Fault) -> bool:
    """Return whether a fault finds what it changes: an agent, or a rank."""
    return rank_of(node, fault) is not None if fault.kind.endswith("_rank") else agent_of(node) is not None
