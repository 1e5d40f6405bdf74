"""The faults of scenarios: those of a rehearsal, and others that only test tracebed.

A fault on a node happens at an instant of virtual time. A fault of the controller happens at one of its calls of
`tracebed.ground.system`, counted from the start of the replay: it can thus be killed between any two writes.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

from tracebed.benchmarks.lines import encode
from tracebed.orchestrator.testbeds.nodes import Inventory
from tracebed.testing.virtual.faults import (
    Fault,
    agent_of,
    crash,
    crash_again,
    cut_connection,
    hang,
    kill_agent,
    kill_rank,
    partition,
    rank_of,
    slow_network,
    stop_rank,
)
from tracebed.testing.virtual.kernel import Pipe, Process
from tracebed.testing.virtual.machine import VirtualNode

CONTROLLER_FAULTS = ("kill", "power_failure", "flipped_byte", "terminate", "disk_full")
"""The faults of the controller: it is killed; its machine loses power, with the writes that were not synchronized; it
is killed and a byte of its journal changes; it receives SIGTERM; its disk is full for a time."""
LINGER_S = Inventory.linger_s
"""Time for which agents wait for another controller, s."""
HARMLESS = ("slow_network", "send_twice", "drift")
"""Faults of nodes after which every job must complete all the same."""


def _processes(node: VirtualNode) -> Iterator[Process]:
    """Yield the processes that use the clock of a node."""
    for agent in node.agents:
        yield agent.process
        yield from (rank.process for rank in agent.ranks.values())


def _to_controller(node: VirtualNode) -> Pipe | None:
    """Return the pipe from the agent of a node to its controller."""
    agent = agent_of(node)
    return agent.connections[-1].outgoing if agent else None


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
    agent = agent_of(node)
    if agent is None or agent.agent.outbox.lines is None:
        return
    pipe = _to_controller(node)
    for event in list(agent.agent.outbox._kept)[-3:]:
        if pipe is not None and not pipe.broken:
            pipe.put(encode(event))


def stubborn_rank(node: VirtualNode, fault: Fault) -> None:
    """Let a rank ignore SIGTERM, or wait for a disk and ignore SIGKILL as well for a time."""
    rank = rank_of(node, fault)
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
    rank = rank_of(node, fault)
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
"""The faults of nodes, their agents, their ranks, and the network, by name. Seeds draw from them in this order."""


def is_harmless(fault: Fault) -> bool:
    """Return whether every job must complete in spite of the fault."""
    if fault.kind == "kill":
        return fault.seconds < LINGER_S - 5
    return fault.kind in HARMLESS


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
