"""What do the links to many agents cost the controller? Real links, over a socket each to a process that plays agents.

The agents of that process answer `hello` and `ping`, and send heartbeats, evenly spread over the heartbeat period, and
messages `work`. The script prints the CPU time of the links for each message, their memory, and the descriptors.

    python links.py --agents 9000 --heartbeat 10 --seconds 30
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import selectors
import socket
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import click

from tracebed.orchestrator.testbeds.launcher import Launcher
from tracebed.orchestrator.testbeds.links import Links
from tracebed.orchestrator.testbeds.nodes import Inventory, Node

HELLO: dict[str, Any] = {
    "type": "hello",
    "version": "1",
    "pid": 1,
    "sockets": "/nowhere",
    "attach": None,
    "adopted": [],
    "units_per_core_second": None,
}


class Peer:
    """An agent that is played."""

    def __init__(self, connection: socket.socket, number: int) -> None:
        self.connection, self.name = connection, f"n{number}"
        self.ping: dict[str, float] | None = None

    def send(self, message: dict[str, Any]) -> None:
        self.connection.sendall(json.dumps({"time": time.monotonic(), **message}).encode() + b"\n")

    def beat(self) -> None:
        ping, self.ping = self.ping, None
        self.send(
            {"type": "heartbeat", "jobs": [], "late_s": 0.0, "sample": {"cpu_s": 1.0}}
            | ({"ping": ping} if ping else {})
        )

    def receive(self) -> None:
        for line in self.connection.recv(65536).splitlines():
            message = json.loads(line)
            if message["type"] == "hello":
                host = {"name": self.name, "boot_id": self.name}
                self.send(HELLO | {"host": host})
            elif message["type"] == "ping":
                self.ping = {"sent": message["time"], "received": time.monotonic()}
            elif message["type"] == "sample":
                self.beat()


def play(listener: socket.socket, count: int, heartbeat_s: float) -> None:
    """Play `count` agents until the controller ends."""
    with selectors.DefaultSelector() as selector:
        peers = []
        for number in range(count):
            peers.append(Peer(listener.accept()[0], number))
            selector.register(peers[-1].connection, selectors.EVENT_READ, peers[-1])
        begun, sent = time.monotonic(), 0
        while True:
            for key, _ in selector.select(0.001):
                key.data.receive()
            while sent < (time.monotonic() - begun) * count / heartbeat_s:
                peer = peers[sent % count]
                peer.beat()
                samples = [[time.monotonic(), 123456, 0.012345, 0.987654, 0.000123]]
                peer.send({"type": "work", "job": "1", "rank": peer.name, "samples": samples})
                sent += 1


class PlayedChannel:
    """The connection to an agent that is played."""

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(path)
        self.reader = self.writer = self._socket.fileno()

    def poll(self) -> int | None:
        return None

    def exit_reason(self) -> str:
        return "ended"

    def close(self) -> None:
        self._socket.close()

    kill = close


class PlayedProvider:
    """A provider of agents that are played."""

    name: ClassVar[str] = "played"
    shared, made, fan_out = False, False, 1

    def __init__(self, path: str) -> None:
        self.path = path

    def run(self, node: Node, arguments: Sequence[str]) -> PlayedChannel:
        return PlayedChannel(self.path)

    def spool(self, node: Node) -> str:
        return "/nowhere"


def memory_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, default=1000)
    parser.add_argument("--heartbeat", type=float, default=10.0)
    parser.add_argument("--seconds", type=float, default=20.0)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listener:
        path = str(Path(folder) / "socket")
        listener.bind(path)
        listener.listen(4096)
        if (child := os.fork()) == 0:
            try:
                play(listener, chosen.agents, chosen.heartbeat)
            finally:
                os._exit(0)
        nodes = tuple(Node(f"n{number}", 8, 1, None, True) for number in range(chosen.agents))
        links = Links(Inventory("played", "agents", nodes, heartbeat_s=chosen.heartbeat))
        launcher = Launcher(PlayedProvider(path), links.post)  # type: ignore[arg-type]
        before, begun, cpu_s = memory_mib(), time.monotonic(), time.process_time()
        links.connect({node.name: launcher for node in nodes}, {})
        links.await_all(drain=False)
        click.echo(f"start {time.monotonic() - begun:.2f} s, CPU {time.process_time() - cpu_s:.2f} s")
        links.events.clear()
        kinds: Counter[str] = Counter()
        turns, begun, cpu_s = 0, time.monotonic(), time.process_time()
        while (left_s := begun + chosen.seconds - time.monotonic()) > 0:
            links.turn(time.monotonic() + left_s)
            kinds.update(event.message["type"] for event in links.events)
            links.events.clear()
            turns += 1
        used_s, count = time.process_time() - cpu_s, kinds.total()
        click.echo(f"{dict(kinds)}, as many pings as heartbeats, {turns} turns")
        click.echo(f"CPU {used_s:.2f} s, {1e6 * used_s / count:.1f} us an event, {used_s / chosen.seconds:.3f} cores")
        click.echo(f"memory {1024 * (memory_mib() - before) / chosen.agents:.1f} KiB an agent")
        click.echo(f"{len([*Path('/proc/self/fd').iterdir()])} descriptors, {threading.active_count()} threads")
        os.kill(child, 9)
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()
