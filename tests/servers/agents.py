"""Agents as processes and in testbeds, and the messages of a controller to them."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self
from weakref import WeakKeyDictionary

import psutil

from tests.patience import GUARD_S, until
from tracebed.benchmarks.program import Program
from tracebed.orchestrator.testbeds.agent.spool import remove_tables
from tracebed.orchestrator.testbeds.base import Event, Testbed
from tracebed.orchestrator.testbeds.local import AGENT

FOREVER = Program("pils", 0, 10**12, 10**6, rate=1e6)
"""11 days of work."""


def agents_of(process: psutil.Process) -> list[psutil.Process]:
    """Return the agents that a process has started and that still run."""
    found = []
    for child in process.children():
        with contextlib.suppress(psutil.Error):  # another child of the process, which has just ended
            found += [child] if "tracebed.orchestrator.testbeds.agent" in " ".join(child.cmdline()) else []
    return found


def dead(process: psutil.Process) -> bool:
    """Return whether a process has ended. Its parent, now init, may reap it late, and at any moment."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def gone(process: psutil.Process) -> bool:
    """Wait for the end of a process."""
    return until(lambda: dead(process))


def stopped(process: psutil.Process) -> bool:
    """Wait until a process is stopped."""
    return until(lambda: process.status() == psutil.STATUS_STOPPED)


def wait(ready: Callable[[], Any], what: str) -> None:
    """Wait until `ready` holds. `what` is for the message if it does not hold in time."""
    assert until(ready, pause_s=0.05), f"no {what} after {GUARD_S:g} s"


def launch_message(node: str, job: str, work: Program = FOREVER, *, cores: int) -> dict[str, Any]:
    """Return the message that launches a job of one rank."""
    return {
        "type": "launch",
        "job": job,
        "rank": node,
        "leader": True,
        "members": [node],
        "address": None,
        "family": "AF_UNIX",
        "authkey": "0123",
        "cpus": None,
        "cores": cores,
        "program": work._asdict(),
        "duty": 0,
    }


def hear(testbed: Testbed, kind: str, node: int | None = None, guard_s: float = GUARD_S) -> Event:
    """Return the next event of a kind, and of a node if it is given. Events before that one are not heard again."""
    for event in _events(testbed, time.monotonic() + guard_s):
        if event.message["type"] == kind and node in (None, event.node):
            return event
    raise AssertionError(f"no event {kind!r} within {guard_s:g} s")


def hear_all(testbed: Testbed, *wanted: tuple[str, int]) -> dict[tuple[str, int], Event]:
    """Return the next event of each kind and node, which may arrive in any order."""
    heard: dict[tuple[str, int], Event] = {}
    for event in _events(testbed, time.monotonic() + GUARD_S):
        heard.setdefault((event.message["type"], event.node), event)
        if heard.keys() >= set(wanted):
            return heard
    raise AssertionError(f"not all of {wanted} within {GUARD_S:g} s")


_unheard: WeakKeyDictionary[Testbed, list[Event]] = WeakKeyDictionary()
"""Testbed -> events that arrived together with the one that a test has heard last."""


def _events(testbed: Testbed, end: float) -> Iterator[Event]:
    """Yield the next events until a time."""
    events = _unheard.setdefault(testbed, [])
    while time.monotonic() < end:
        while events:
            yield events.pop(0)
        events += testbed.receive(end)


def hear_ends(testbed: Testbed, count: int) -> list[dict[str, Any]]:
    """Return the next `count` events `ended`."""
    return [hear(testbed, "ended").message for _ in range(count)]


def start_a_job(testbed: Testbed, *names: str) -> None:
    """Start an endless job on each of the nodes: an agent that never had a job ends with its controller."""
    for index, name in enumerate(names):
        testbed.send(index, launch_message(name, f"on {name}", cores=1) | {"family": testbed.family})
        hear(testbed, "started")


class Controller:
    """A controller: a command on the node of an agent, with pipes to it."""

    def __init__(self, hello: dict[str, Any], command: Sequence[str] = AGENT) -> None:
        self.hello = hello
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True)
        self.heard: list[dict[str, Any]] = []

    def tell(self, message: dict[str, Any] | bytes) -> None:
        assert self.process.stdin is not None
        line = message if isinstance(message, bytes) else json.dumps(message).encode() + b"\n"
        self.process.stdin.write(line)
        self.process.stdin.flush()

    def hear(self, kind: str) -> dict[str, Any]:
        """Return the next event of this kind."""
        while True:
            line = self.next_line()
            assert line, f"the agent ended before {kind}: {self.process.communicate()}, {self.process.returncode}"
            self.heard.append(json.loads(line))
            if self.heard[-1]["type"] == kind:
                return self.heard[-1]

    def next_line(self, guard_s: float = GUARD_S) -> bytes:
        """Return the next line, or b"" at the end. An agent that says nothing for `guard_s` seconds is killed."""
        assert self.process.stdout is not None
        guard = threading.Timer(guard_s, self.process.kill)
        guard.start()
        try:
            return self.process.stdout.readline()
        finally:
            guard.cancel()

    def greet(self, **changes: Any) -> dict[str, Any]:
        """Send `hello`, and return the answer."""
        self.tell(self.hello | changes)
        return self.hear("hello")

    def launch(self, job: str, work: Program = FOREVER, **changes: Any) -> None:
        name = self.hello["node"]["name"]
        self.tell(launch_message(name, job, work, cores=self.hello["node"]["cores"]) | changes)

    def start(self, job: str, work: Program = FOREVER, **changes: Any) -> dict[str, Any]:
        """Launch a job, and return the event `started`."""
        self.launch(job, work, **changes)
        return self.hear("started")

    def attach(self, path: str) -> Controller:
        """Return another controller, at the socket of the agent."""
        return Controller(self.hello, [*AGENT, "--attach", path])

    def hang_up(self) -> None:
        """Lose the connection, with everything that has not been read."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdout.close()
        self.process.stdin.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.end()

    def end(self) -> None:
        """Wait for the end of the process, and close the pipes."""
        try:
            self.process.wait(GUARD_S)
        finally:
            for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
                assert pipe is not None
                with contextlib.suppress(BrokenPipeError):  # unsent input
                    pipe.close()


class Agent(Controller):
    """An agent process, by default of one emulated node n1, with the controller that started it."""

    def __init__(self, folder: Path, command: Sequence[str] = AGENT, **hello: Any) -> None:
        self.spool = folder
        first = {
            "type": "hello",
            "protocol": 2,
            "node": {"name": "n1", "cores": 4, "cpus": None, "emulated": True},
            "heartbeat_s": 3600.0,
            "spool": str(folder),
            "calibrate": False,
        }
        super().__init__(first | hello, command)
        self.sockets: str | None = None

    def greet(self, **changes: Any) -> dict[str, Any]:
        answer = super().greet(**changes)
        self.sockets = answer["sockets"]
        return answer

    def children(self) -> list[psutil.Process]:
        """Return the ranks, the oldest first. Numbers of processes begin again at some time."""
        return sorted(psutil.Process(self.process.pid).children(), key=psutil.Process.create_time)

    def __exit__(self, *error: object) -> None:
        self.process.terminate()
        self.end()
        if self.sockets:
            remove_tables(Path(self.sockets))
            shutil.rmtree(self.sockets, ignore_errors=True)  # remains if the test killed the agent
