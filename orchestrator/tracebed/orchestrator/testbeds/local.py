"""The testbed on this machine: one agent per node, each a child process connected by pipes."""

from __future__ import annotations

import contextlib
import os
import selectors
import shutil
import signal
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tracebed.benchmarks.lines import Lines, decode, wait
from tracebed.cpus import format_cpus
from tracebed.errors import TestbedError
from tracebed.orchestrator.testbeds.agent import PROTOCOL
from tracebed.orchestrator.testbeds.agent.processes import GRACE_S
from tracebed.orchestrator.testbeds.base import EMULATED_RATE, Event
from tracebed.orchestrator.testbeds.nodes import Inventory, Node

START_S = 60.0
"""Time in which agents must reply to the first message, s, plus 0.2 s per agent."""
UNSENT_LIMIT = 8 * 2**20
"""Maximum size of the buffer for an agent that does not read, bytes."""

AGENT = [sys.executable, "-P", "-m", "tracebed.orchestrator.testbeds.agent"]


class _Agent:
    """An agent process, and the connection to it."""

    def __init__(self, index: int, node: Node, log: Path, selector: selectors.BaseSelector) -> None:
        self.index, self.node, self.log = index, node, log
        self.hello: dict[str, Any] = {}
        """The reply of the agent to the first message; empty until then."""
        self.lost = False
        with open(log, "ab", opener=partial(os.open, mode=0o600)) as errors:
            self.process = subprocess.Popen(
                AGENT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                bufsize=0,
                start_new_session=True,  # so that Ctrl-C at a terminal reaches only the replayer
            )
        assert self.process.stdin is not None and self.process.stdout is not None
        self.stdin, self.stdout = self.process.stdin, self.process.stdout
        self.lines = Lines(selector, self.stdout.fileno(), self.stdin.fileno(), self)

    def close(self) -> None:
        self.lines.forget()
        self.stdin.close()
        self.stdout.close()

    def last_words(self) -> str:
        """Return the way the agent ended, and the last line of its log."""
        status = self.process.poll()
        how = "closed its output" if status is None else f"ended with status {status}"
        if status is not None and status < 0:
            how = f"was killed by {signal.Signals(-status).name}"
        last = self.last_line()
        return f"{how}: {last}" if last else how

    def last_line(self) -> str:
        """Return the last line of the log of the agent."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return lines[-1] if lines else ""

    def log_hint(self) -> str:
        """Return the last line of the log as a hint for a failed start, since the log itself may be removed."""
        return f"its log ends with: {self.last_line()}" if self.last_line() else "its log is empty"


class LocalTestbed:
    """Nodes that are sets of this machine's CPUs, or emulated.

    Args:
        inventory: the nodes.
        spool: folder for the files of jobs and agents, which is created: `job-ID/NODE.out`,
            `job-ID/NODE.heartbeat.jsonl`, `agents/NODE.log`.
    """

    family = "AF_UNIX"

    def __init__(self, inventory: Inventory, spool: Path) -> None:
        """Prepare the testbed without starting agents."""
        self.inventory = inventory
        self.nodes = inventory.nodes
        self.spool = Path(spool).absolute()
        self.units_per_core_second = EMULATED_RATE
        self.hosts: list[dict[str, Any]] = []
        self._agents: list[_Agent] = []
        self._selector = selectors.DefaultSelector()
        self._events: list[Event] = []

    def start(self) -> None:
        """Start all agents concurrently, and calibrate those of computing nodes.

        Raises:
            InputError: the inventory has CPUs that this process may not use.
            TestbedError: an agent does not start; the message has the reason.
        """
        self.inventory.check_here()
        logs = self.spool / "agents"
        try:
            self.spool.mkdir(mode=0o700, parents=True, exist_ok=True)
            logs.mkdir(mode=0o700, exist_ok=True)
            for index, node in enumerate(self.nodes):
                agent = _Agent(index, node, logs / f"{node.name}.log", self._selector)
                self._agents.append(agent)
                agent.lines.send(self._hello(node))
            self._await_hello()
        except OSError as error:
            self.stop()
            raise TestbedError(
                f"cannot start agents: {error.strerror}",
                where=error.filename,
                hint="raise the limits on processes and open files (ulimit -a), or use fewer nodes",
                transient=True,
            ) from error
        except BaseException:
            self.stop()
            raise
        self._take_stock()

    def _hello(self, node: Node) -> dict[str, Any]:
        return {
            "type": "hello",
            "protocol": PROTOCOL,
            "node": {
                "name": node.name,
                "cores": node.cores,
                "cpus": None if node.cpus is None else format_cpus(node.cpus),
                "emulated": node.emulated,
            },
            "heartbeat_s": self.inventory.heartbeat_s,
            "spool": str(self.spool),
            "calibrate": not node.emulated,
            "host": node is self.nodes[0],  # all nodes are on this machine, whose facts are needed once
        }

    def _await_hello(self) -> None:
        patience = START_S + len(self._agents) / 5
        until = time.monotonic() + patience
        while silent := [agent for agent in self._agents if not agent.hello]:
            events = self.receive(until)
            for event in events:
                agent, message = self._agents[event.node], event.message
                if message["type"] == "hello":
                    agent.hello = message
                elif message["type"] in ("error", "lost"):
                    raise TestbedError(
                        message.get("what") or f"its agent {message['reason']}",
                        where=f"node {agent.node.name}",
                        hint=message.get("hint") or agent.log_hint(),
                    )
            if not events and time.monotonic() >= until:
                raise TestbedError(
                    f"its agent did not start within {patience:g} s",
                    where=f"node {silent[0].node.name}",
                    hint=silent[0].log_hint(),
                    transient=True,
                )

    def _take_stock(self) -> None:
        """Collect rates and host facts from the replies of the agents."""
        rates = {agent.node.name: agent.hello["units_per_core_second"] for agent in self._agents}
        rates = {name: rate for name, rate in rates.items() if rate is not None}
        if rates:
            self.units_per_core_second = statistics.median(rates.values())
        facts: dict[str, Any] = {}
        for agent in self._agents:
            facts |= agent.hello["host"]
        version = self._agents[0].hello["version"]
        self.hosts = [{**facts, "tracebed": version, "units_per_core_second": rates}]
        if facts.get("kernel_of_jobs") == "numpy":
            warnings.warn("jobs compute with the slower NumPy kernel (no C compiler at installation)", stacklevel=3)

    def send(self, node: int, message: Mapping[str, Any]) -> None:
        """Send a message to the agent of a node. If the pipe is full, the rest is sent later.

        Raises:
            TestbedError: more than `UNSENT_LIMIT` bytes are waiting to be sent.
        """
        agent = self._agents[node]
        agent.lines.send(message)
        if len(agent.lines.unsent) > UNSENT_LIMIT:
            raise TestbedError("its agent has stopped reading messages", where=f"node {agent.node.name}")

    def receive(self, until: float | None) -> list[Event]:
        """Return the events that have arrived, in order of arrival.

        Args:
            until: `time.monotonic()` until which to wait for the first event; None: no timeout.
        """
        while True:
            for key, mask in wait(self._selector, until):
                agent: _Agent = key.data
                if mask & selectors.EVENT_WRITE:
                    agent.lines.flush()
                if mask & selectors.EVENT_READ:
                    self._hear(agent)
            if self._events or (until is not None and time.monotonic() >= until):
                events, self._events = self._events, []
                return events

    def _hear(self, agent: _Agent) -> None:
        now = time.monotonic()
        for line in agent.lines.receive():
            try:
                message = decode(line)
            except ValueError:
                message = {"type": "error", "what": f"its agent wrote an invalid message: {line[:200]!r}"}
            self._events.append(Event(agent.index, message, now))
        if agent.lines.closed and not agent.lost:
            agent.lost = True
            with contextlib.suppress(subprocess.TimeoutExpired):
                agent.process.wait(1.0)  # an agent that has closed its output is about to end
            self._events.append(Event(agent.index, {"type": "lost", "reason": agent.last_words()}, now))

    def stop(self) -> None:
        """Close the inputs of the agents, which makes them end their jobs and exit. Kill agents that do not exit."""
        for agent in self._agents:
            agent.close()
        for ask in (None, subprocess.Popen.terminate, subprocess.Popen.kill):
            deadline = time.monotonic() + 2 * GRACE_S
            for agent in self._agents:
                if ask is not None and agent.process.poll() is None:
                    ask(agent.process)
            for agent in self._agents:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    agent.process.wait(max(0.0, deadline - time.monotonic()))
        for agent in self._agents:
            if agent.hello:  # an agent that was killed leaves its sockets
                shutil.rmtree(agent.hello["sockets"], ignore_errors=True)
        self._agents.clear()
        self._events.clear()

    def __enter__(self) -> Self:
        """Start the testbed."""
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the testbed."""
        self.stop()
