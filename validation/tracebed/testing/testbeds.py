"""The check of testbeds."""

from __future__ import annotations

import contextlib
import os
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

from tracebed.orchestrator.testbeds.base import Event, Factory, Testbed
from tracebed.orchestrator.testbeds.nodes import AGENTS, Inventory, Node

FLOOD = 2000  # number of messages that are sent before a reply is received
MARK = "TRACEBED_CHECK"  # environment variable that marks the processes of the checked testbed


def check_testbed(factory: Factory, inventory: Inventory | None = None, *, patience_s: float = 60.0) -> None:
    """Check that the testbeds of `factory` satisfy the contract of `Testbed`.

    The check starts agents, runs a job on all nodes, kills another job, floods an agent with messages, and stops the
    testbed while a job is running. It takes a few seconds. Processes on other machines are not checked.

    Args:
        factory: a function of an inventory and a folder that returns a testbed (an entry point of `tracebed.testbeds`).
        inventory: nodes that the testbed can reach; None: three emulated nodes.
        patience_s: maximum time to wait for a reply, wall seconds.

    Raises:
        AssertionError: a rule is violated; the message has the rule.

    Examples:
        >>> from tracebed.orchestrator.testbeds.testbed import AgentTestbed
        >>> from tracebed.testing import check_testbed
        >>> check_testbed(AgentTestbed)
    """
    if inventory is None:
        nodes = tuple(Node(f"n{number}", 2, emulated=True) for number in (1, 2, 3))
        inventory = Inventory("check", AGENTS, nodes, grain_s=0.02)
    with tempfile.TemporaryDirectory() as spool, marked() as processes:
        testbed = factory(inventory, Path(spool) / "spool")
        _demand(not processes(), "a testbed starts no process before `start`")
        testbed.stop()
        testbed = factory(inventory, Path(spool) / "spool")
        try:
            testbed.start()
            check = _TestbedCheck(testbed, inventory, patience_s)
            check.facts()
            check.waiting()
            check.errors()
            check.job()
            check.kill()
            check.flood()
            check.sleep()
            check.leave_running()
        finally:
            testbed.stop()
        testbed.stop()
        until = time.monotonic() + patience_s
        while processes() and time.monotonic() < until:
            time.sleep(0.05)
        _demand(not processes(), f"`stop` ends all processes, but {processes()} are still running")


class _TestbedCheck:
    """The rules for a running testbed, one method per rule."""

    def __init__(self, testbed: Testbed, inventory: Inventory, patience_s: float) -> None:
        self.testbed, self.inventory, self.patience_s = testbed, inventory, patience_s
        self.names = [node.name for node in testbed.nodes]
        self.heard: list[Event] = []

    def facts(self) -> None:
        _demand(tuple(self.testbed.nodes) == self.inventory.nodes, "`nodes` are those of the inventory, in order")
        _demand(self.testbed.family in ("AF_UNIX", "AF_INET", "agents"), "`family` is AF_UNIX, AF_INET or agents")
        _demand(self.testbed.units_per_core_second > 0, "`units_per_core_second` is positive")
        _demand(bool(self.testbed.hosts), "`hosts` has the facts of at least one machine")

    def waiting(self) -> None:
        for delay in (-1.0, 0.0, 0.01):
            until = time.monotonic() + delay
            if not self._receive(until):
                _demand(time.monotonic() >= until, "`receive` returns without events only at its timeout")
        _demand(time.monotonic() - until < self.patience_s, "`receive` returns at its timeout")

    def errors(self) -> None:
        """Check that a node replies with an error to a message that cannot be processed."""
        for node in range(len(self.names)):
            self.testbed.send(node, {"type": "kill", "job": f"unknown {node}", "reason": "check"})
        for node in range(len(self.names)):
            [event] = self._await("error", f"unknown {node}")
            _demand(event.node == node, "an event has the index of its node")
            _demand(event.time <= time.monotonic(), "an event has the time of its arrival")

    def job(self) -> None:
        """Check that the ranks of a job on all nodes connect to each other, and that each reports its end."""
        self._start("a job", iterations=5)
        for event in self._await("ended", "a job", len(self.names)):
            _demand(event.message["state"] == "completed", f"the ranks of a job complete, but found {event.message}")

    def kill(self) -> None:
        self._start("killed", iterations=10**6)
        for node in range(len(self.names)):
            self.testbed.send(node, {"type": "kill", "job": "killed", "reason": "check"})
        states = {event.message["state"] for event in self._await("ended", "killed", len(self.names))}
        _demand(states <= {"killed", "failed"}, "`kill` ends the ranks of a job")

    def flood(self) -> None:
        """Check that sending does not block while the replies of the agent are not received."""
        begun = time.monotonic()
        for _ in range(FLOOD):
            self.testbed.send(0, {"type": "kill", "job": "flood", "reason": "x" * 1000})
        _demand(time.monotonic() - begun < self.patience_s / 2, "`send` does not block")
        self._await("error", "flood", FLOOD)

    def sleep(self) -> None:
        """Check that a node sleeps and wakes up, if the testbed has nodes that sleep."""
        if not hasattr(self.testbed, "sleep"):
            return
        self.testbed.sleep(0)
        self._await("asleep")
        asleep = self.names[0] not in self.testbed.agents
        self.testbed.wake(0)
        self._await("back")
        _demand(asleep and self.names[0] in self.testbed.agents, "a node has no agent while it sleeps, and one after")
        self.job()

    def leave_running(self) -> None:
        self._start("left", iterations=10**6)

    def _start(self, job: str, iterations: int) -> None:
        address = None
        for node in range(len(self.names)):
            units = int(self.testbed.units_per_core_second * 0.01 * iterations)
            rate, own = self.testbed.units_per_core_second, self.testbed.nodes[node]
            message = launch_message(own, job, self.names, units, iterations, rate)
            self.testbed.send(node, message | {"address": address, "family": self.testbed.family})
            if node == 0:
                [listening] = self._await("listening", job)
                address = listening.message["address"]
        self._await("started", job)

    def _receive(self, until: float) -> list[Event]:
        events = self.testbed.receive(until)
        self.heard += events
        for event in events:
            _demand(event.message["type"] != "lost", f"no agent is lost, but found {event.message}")
        return events

    def _await(self, kind: str, job: str | None = None, count: int = 1) -> list[Event]:
        """Wait for `count` events of a kind and a job, or of a node without a job, and return them."""
        until = time.monotonic() + self.patience_s
        while True:
            found = [e for e in self.heard if (e.message["type"], e.message.get("job")) == (kind, job)]
            if len(found) >= count:
                self.heard = [event for event in self.heard if event not in found]
                return found
            of = "a node" if job is None else repr(job)
            waited = f"{count} `{kind}` events of {of} arrive within {self.patience_s:g} s, but {len(found)} arrived"
            _demand(time.monotonic() < until, waited)
            self._receive(until)


def launch_message(
    node: Node, job: str, members: list[str], units: int, iterations: int, rate: float
) -> dict[str, Any]:
    """Return the message that launches the rank of a job on one core of a node. The first of `members` leads."""
    program = {"application": "pils", "serial_units": 0, "parallel_units": units, "iterations": iterations}
    return {
        "type": "launch",
        "job": job,
        "rank": node.name,
        "leader": node.name == members[0],
        "members": members,
        "address": None,
        "family": "AF_UNIX",
        "authkey": "00" * 16,
        "cpus": None,
        "cores": 1,
        "program": program | {"rate": rate},
        "duty": node.duty_or(None),
    }


@contextlib.contextmanager
def marked() -> Iterator[Callable[[], list[int]]]:
    """Mark all processes started in the block. Yield a function that returns the IDs of the running ones."""
    before, mark = os.environ.get(MARK), secrets.token_hex(8)
    os.environ[MARK] = mark

    def alive() -> list[int]:
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get(MARK) == mark and process.pid != os.getpid():
                    found.append(process.pid)
        return found

    try:
        yield alive
    finally:
        if before is None:
            del os.environ[MARK]
        else:
            os.environ[MARK] = before


def _demand(good: bool, rule: str) -> None:
    if not good:
        raise AssertionError(f"testbed: {rule}")
