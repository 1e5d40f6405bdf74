"""Faults of a virtual world: what can go wrong, each as a function that makes it happen.

A fault on a node happens at an instant of virtual time. A fault of the controller happens at one of its calls of
`tracebed.world`, counted from the start of the replay: it can thus be killed between any two writes.
"""

from __future__ import annotations

import contextlib
import math
import os
import random
import signal
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from tracebed.benchmarks.lines import encode
from tracebed.orchestrator.testbeds.nodes import Inventory
from tracebed.testing.virtual.descriptors import Pipe, Process
from tracebed.testing.virtual.kernel import VirtualWorld
from tracebed.testing.virtual.machine import VirtualAgent, VirtualNode
from tracebed.testing.virtual.ranks import VirtualRank


class Fault(NamedTuple):
    """A fault.

    Attributes:
        kind: one of `NODE_FAULTS` or `CONTROLLER_FAULTS`.
        at: virtual time of a fault on a node, s; call of the controller of its faults.
        node: name of the node; empty for a fault of the controller.
        seconds: its duration, or the size of a step of a clock, s.
        draw: a number from 0 to 1 from which the fault derives its details.
        after: the journal entry upon which it strikes, in place of `at`: its kind, and its job or node (`launched j2`).
            Such faults strike in their order, each upon the first entry after the fault before it.
    """

    kind: str
    at: float
    node: str = ""
    seconds: float = 0.0
    draw: float = 0.0
    after: str = ""


OUTAGES_S = (60.0, 43_200.0)
"""Shortest and longest time of a drawn outage, trace s."""


def _agent(node: VirtualNode) -> VirtualAgent | None:
    return node.agents[-1] if node.agents else None


def _rank(node: VirtualNode, fault: Fault) -> VirtualRank | None:
    """Return the drawn rank that runs on a node."""
    ranks = [rank for agent in node.agents for rank in agent.ranks.values() if not rank.over]
    return ranks[int(fault.draw * len(ranks)) % len(ranks)] if ranks else None


def _processes(node: VirtualNode) -> Iterator[Process]:
    """Yield the processes that use the clock of a node."""
    for agent in node.agents:
        yield agent.process
        yield from (rank.process for rank in agent.ranks.values())


def _to_controller(node: VirtualNode) -> Pipe | None:
    """Return the pipe from the agent of a node to its controller."""
    agent = _agent(node)
    return agent.connections[-1].outgoing if agent else None


def kill_agent(node: VirtualNode, fault: Fault) -> None:
    """Kill the agent of a node, with its ranks."""
    if agent := _agent(node):
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
    if agent := _agent(node):
        agent.silent_until = node.world.now + fault.seconds


def slow_network(node: VirtualNode, fault: Fault) -> None:
    """Let messages to and from a node take long for a time."""
    agent = _agent(node)
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
    agent = _agent(node)
    if agent is None:
        return
    end = agent.connections[-1]
    for pipe in (end.incoming, end.outgoing):
        if pipe is not None:
            pipe.cut(keep=int(fault.draw * 400))


def garble(node: VirtualNode, fault: Fault) -> None:
    """Change a byte of what an agent has sent, or send bytes that are no message."""
    pipe = _to_controller(node)
    if pipe is None or pipe.broken:
        return
    for index, piece in enumerate(pipe.transit):
        if piece:
            at = int(fault.draw * len(piece)) % len(piece)
            pipe.transit[index] = piece[:at] + bytes([piece[at] ^ 1]) + piece[at + 1 :]
            return
    pipe.put(b'{"type": "ended", "job"\n')


def send_twice(node: VirtualNode, fault: Fault) -> None:
    """Send the last events of an agent once more."""
    agent = _agent(node)
    if agent is None or agent.agent.outbox.lines is None:
        return
    pipe = _to_controller(node)
    for event in list(agent.agent.outbox._kept)[-3:]:
        if pipe is not None and not pipe.broken:
            pipe.put(encode(event))


def kill_rank(node: VirtualNode, fault: Fault) -> None:
    """Kill a rank, as the kernel does when memory is short."""
    if rank := _rank(node, fault):
        rank.signal(signal.SIGKILL)


def stop_rank(node: VirtualNode, fault: Fault) -> None:
    """Stop a rank from outside, and continue it after a time."""
    rank = _rank(node, fault)
    if rank is None:
        return
    rank.signal(signal.SIGSTOP)
    node.world.after(fault.seconds, partial(rank.signal, signal.SIGCONT))


def stubborn_rank(node: VirtualNode, fault: Fault) -> None:
    """Let a rank ignore SIGTERM, or wait for a disk and ignore SIGKILL as well for a time."""
    rank = _rank(node, fault)
    if rank is None:
        return
    if fault.draw < 0.5:
        rank.stubborn = {signal.SIGTERM}
        return
    rank.stubborn = {signal.SIGTERM, signal.SIGKILL}

    def obey() -> None:
        rank.stubborn = set()
        if rank.handle.killed is not None and not rank.over:
            rank.signal(signal.SIGKILL)

    node.world.after(fault.seconds, obey)


def dead_start(node: VirtualNode, fault: Fault) -> None:
    """Let the ranks that are launched on a node in the next time never become ready."""
    before = node.times
    node.times = before._replace(launch_s=1e5)
    node.world.after(min(fault.seconds, 2.0), lambda: setattr(node, "times", before))


def lying_rank(node: VirtualNode, fault: Fault) -> None:
    """Let a rank report what is not true: that it ended twice, an unknown request, a progress beyond its end."""
    rank = _rank(node, fault)
    if rank is None:
        return
    which = int(fault.draw * 4)
    if which == 0:
        rank.send("resized", request=77, members=[rank.name], decided=rank.clock(), applied=rank.clock(), iteration=1)
    elif which == 1:
        rank.send("progress", iteration=10**6, iterations=1, work_done=10**12)
    elif which == 2 and rank.computes:  # a job that says so, and never works, would run for ever
        rank.send("started", begun=rank.clock())
    elif which == 3:
        for _ in range(2):
            rank.send("finished", state="failed", reason="lied", units_done=-1)
        rank.later(0.01, lambda: rank.die(1 << 8))


def step_clock(node: VirtualNode, fault: Fault) -> None:
    """Let the monotonic clock of a node jump forward, as after a suspension, with everything that uses it."""
    seconds = fault.seconds * (fault.draw - 0.2)
    node.offset_s += seconds
    for process in _processes(node):
        process.offset_s += seconds


def drift(node: VirtualNode, fault: Fault) -> None:
    """Let the clock of a node run faster or slower."""
    rate = 1.0 + (fault.draw - 0.5) * 2e-4
    now = node.world.now
    for process in _processes(node):
        process.offset_s += (process.rate - rate) * now
        process.rate = rate
    node.offset_s += (node.rate - rate) * now
    node.rate = rate


NODE_FAULTS: dict[str, Callable[[VirtualNode, Fault], None]] = {
    function.__name__: function
    for function in (
        kill_agent,
        crash,
        crash_again,
        partition,
        hang,
        slow_network,
        cut_connection,
        garble,
        send_twice,
        kill_rank,
        stop_rank,
        stubborn_rank,
        dead_start,
        lying_rank,
        step_clock,
        drift,
    )
}
"""The faults of nodes, their agents, their ranks, and the network, by name."""
LASTING = ("crash", "crash_again", "partition", "hang", "slow_network", "stop_rank")
"""The faults of nodes in a rehearsal that last for a time."""
OUTAGES = (*LASTING, "kill_agent", "cut_connection", "kill_rank")
"""The faults of nodes in a rehearsal: what happens to real nodes. The others of `NODE_FAULTS` only test tracebed."""
CONTROLLER_FAULTS = ("kill", "power_failure", "flipped_byte", "terminate", "disk_full")
"""The faults of the controller: it is killed; its machine loses power, with the writes that were not synchronized; it
is killed and a byte of its journal changes; it receives SIGTERM; its disk is full for a time."""
LINGER_S = Inventory.linger_s
"""Time for which agents wait for another controller, s."""


def is_harmless(fault: Fault) -> bool:
    """Return whether every job must complete in spite of the fault."""
    if fault.kind == "kill":
        return fault.seconds < LINGER_S - 5
    return fault.kind in HARMLESS


HARMLESS = ("slow_network", "send_twice", "drift")
"""Faults of nodes after which every job must complete all the same."""


def arm(world: VirtualWorld, faults: tuple[Fault, ...]) -> None:
    """Schedule the faults of nodes that strike at a time."""
    for fault in faults:
        if fault.kind in NODE_FAULTS and not fault.after:
            world.after(fault.at, partial(strike, world, fault))


def strike(world: VirtualWorld, fault: Fault) -> None:
    """Let a fault of a node happen now."""
    node = world.nodes.get(fault.node)
    if node is not None:
        world.observe("fault", fault)
        NODE_FAULTS[fault.kind](node, fault)


def drawn_outages(seed: str, names: Iterable[str], mtbf_s: float, lasts_s: float, speed: float) -> tuple[Fault, ...]:
    """Draw the faults of a rehearsal: on each node after times with an exponential distribution.

    Args:
        seed: the seed.
        names: the names of the nodes.
        mtbf_s: mean time between two faults of a node, trace s.
        lasts_s: time from the start in which faults are drawn, trace s.
        speed: trace seconds per virtual second.
    """
    draw = random.Random(seed)
    found = []
    for name in names:
        at = draw.expovariate(1 / mtbf_s)
        while at < lasts_s:
            seconds = math.exp(draw.uniform(*map(math.log, OUTAGES_S)))
            found.append(Fault(draw.choice(OUTAGES), at / speed, name, seconds / speed, draw.random()))
            at += draw.expovariate(1 / mtbf_s)
    return tuple(found)


def has_target(node: VirtualNode, fault: Fault) -> bool:
    """Return whether a fault finds what it changes: an agent, or a rank."""
    return _rank(node, fault) is not None if fault.kind.endswith("_rank") else _agent(node) is not None


def flip(path: Path, draw: float) -> None:
    """Change a bit of a file."""
    data = bytearray(path.read_bytes())
    if data:
        data[int(draw * len(data)) % len(data)] ^= 1 << int(draw * 8000) % 8
        path.write_bytes(data)


def tear(path: Path, keep: float) -> None:
    """Cut a file off at any byte, as after a power failure."""
    with contextlib.suppress(FileNotFoundError):
        os.truncate(path, int(keep * path.stat().st_size))
