"""The agent: its connection to a controller, and the treatment of its ranks when the connection is lost."""

from __future__ import annotations

import gc
import importlib
import selectors
from collections.abc import Callable
from typing import Any

from tracebed.benchmarks.lines import Lines, decode
from tracebed.ground import system
from tracebed.ground.errors import InputError, TestbedError, TracebedError
from tracebed.ground.version import version
from tracebed.orchestrator.testbeds.agent import PROTOCOL
from tracebed.orchestrator.testbeds.agent.attaching import NAME
from tracebed.orchestrator.testbeds.agent.machine import Machine
from tracebed.orchestrator.testbeds.agent.messages import LINE_LIMIT, LONGEST_S, MessageFields, Outbox, clipped
from tracebed.orchestrator.testbeds.agent.node import NEVER, AgentNode, read_node

HELLO_S = 300.0
"""Time in which the first message must arrive, s: a controller whose machine loses power closes no connection."""


class Agent:
    """The agent of a node, which processes the requests of a controller in order."""

    def __init__(self, reader: int, writer: int, machine: Machine | None = None) -> None:
        """Read requests from the descriptor `reader`, and write events to `writer`."""
        self.machine = machine or Machine()
        self.selector = system.current().selector(files=True)
        # The connection to the controller, and connections without a `hello` so far.
        self.connections: set[Lines] = set()
        self.lines = self._connect(reader, writer)  # the connection to the controller
        self.outbox = Outbox(self.lines)
        self.node: AgentNode | None = None  # the node; None: no `hello` has arrived yet
        # Type of message -> the function that processes it, once there is a node.
        self._handlers: dict[str, Callable[[dict[str, Any]], None]] = {}
        self.sockets = self.machine.private_folder()
        self.cleans_up = False  # whether this agent removes the files that killed agents left on this machine
        self.listening = False
        self.silence_s, self.linger_s = HELLO_S, 0.0
        self.linger_until = NEVER
        self.last_received = system.monotonic()  # time at which the controller last sent anything
        self.ending = self.leaving = False  # whether the agent is to end, and whether it has begun to end its ranks

    def run(self) -> None:
        """Process requests until a `bye` message, SIGTERM, or the loss of the controller; then end all ranks."""
        self.machine.wake_by_signals(self.selector, self.terminate)
        importlib.import_module("hmac")  # ranks need it to join; forked ranks inherit the import
        gc.freeze()
        gc.enable()
        try:
            while not self.ended:
                self.turn(system.current().wait(self.selector, self.due()))
        finally:
            self.clean_up()

    def clean_up(self) -> None:
        """Remove the private folder, and the files that killed agents left on this machine."""
        self.machine.remove_private_folder(self.sockets)
        self._remove_leftovers()

    def _remove_leftovers(self) -> None:
        if self.cleans_up:
            self.machine.remove_leftovers(self.sockets)

    @property
    def ended(self) -> bool:
        """Whether all ranks have ended at the end of the agent."""
        return self.leaving and not (self.node and self.node.jobs.ranks)

    def due(self) -> float | None:
        """Return the time of the next turn at the latest, `system.monotonic()`; None: at the next message."""
        connected = self.outbox.lines is not None
        due = self.last_received + self.silence_s if connected else self.linger_until
        if self.node:
            due = min(due, self.node.heartbeat_due, *self.node.jobs.due())
        return due if due < NEVER else None

    def turn(self, ready: system.Ready) -> None:
        """Process the descriptors that are ready, and everything that is due."""
        for key, _ in ready:
            key.data()
        now = system.monotonic()
        connected = self.outbox.lines is not None
        if connected and (self.lines.closed or self.lines.broken or now >= self.last_received + self.silence_s):
            self._lose_controller()
        elif now >= self.linger_until:
            self.ending, self.linger_until = True, NEVER
        if self.node:
            self.node.tick()
        if self.ending and not self.leaving:
            self._leave()

    def _leave(self) -> None:
        """End all ranks. The node is lost with all its jobs; the end of a rank would report only one job."""
        self.leaving = True
        self.outbox.close()
        if self.node:
            self.node.jobs.end("the agent ends")
        self.lines.flush()

    def terminate(self) -> None:
        """End the agent at the next turn."""
        self.ending = True

    # Connections.

    def _connect(self, reader: int, writer: int) -> Lines:
        lines: Lines = Lines(self.selector, reader, writer, lambda: self._listen(lines), LINE_LIMIT)
        self.connections.add(lines)
        return lines

    def _listen(self, lines: Lines) -> None:
        """Process the messages that have arrived on a connection."""
        lines.flush()
        if lines is self.lines:
            self.last_received = system.monotonic()
        for line in lines.receive():
            self._handle_line(line, lines)
        if lines.closed and lines is not self.lines:
            self._close(lines)

    def _close(self, lines: Lines) -> None:
        if lines in self.connections:
            self.connections.remove(lines)
            lines.forget()
            for descriptor in {lines.reader, lines.writer}:
                system.current().close(descriptor)

    def _lose_controller(self) -> None:
        """Stop the ranks and wait for another controller, or end. Without a launch so far, the agent ends."""
        if self.node and self.node.jobs.launches and self.linger_s and not self.ending:
            self.outbox.lines = None
            self._close(self.lines)
            self.linger_until = system.monotonic() + self.linger_s
            self.node.heartbeat_due = NEVER
            self.node.jobs.stop()
        else:
            self.ending = True
            self.silence_s = NEVER

    def _accept_controllers(self) -> None:
        """Accept other controllers on the socket of this agent. They may replace the current controller."""
        listener = self.machine.listen(self.sockets)

        def accept() -> None:
            descriptor = listener.accept()
            self._connect(descriptor, descriptor)

        self.selector.register(listener, selectors.EVENT_READ, accept)
        self.listening = True

    # Requests.

    def _handle_line(self, line: bytes, lines: Lines) -> None:
        """Process one request. Report an invalid request as an error event."""
        context: dict[str, Any] = {}
        try:
            if len(line) > LINE_LIMIT:
                raise InputError(f"a line has more than {LINE_LIMIT} bytes")
            message = decode(line)
            context = {key: message[key] for key in ("job", "request") if type(message.get(key)) in (str, int)}
            self._handler(message.get("type"), lines)(message)
        except KeyError as error:
            self._refuse(lines, f"message lacks {error}: {_quoted(line)}", **context)
        except TestbedError as error:  # a defect of the node, not of the message
            self._refuse(lines, error.what, hint=error.hint, **context)
        except (ValueError, TypeError, ArithmeticError, OSError, ImportError, TracebedError) as error:
            self._refuse(lines, f"{error}: {_quoted(line)}", **context)

    def _handler(self, kind: Any, lines: Lines) -> Callable[[dict[str, Any]], None]:
        """Return the function that processes messages of a type."""
        if kind == "hello":
            return lambda message: self._hello(MessageFields(message), lines)
        if kind == "bye":
            return self._bye
        if self.node is None or lines is not self.lines:
            raise InputError(f"{kind!r} arrived before hello")
        if not isinstance(kind, str) or kind not in self._handlers:
            raise InputError(f"unknown message type {kind!r}")
        return self._handlers[kind]

    def _handlers_of(self, node: AgentNode) -> dict[str, Callable[[dict[str, Any]], None]]:
        return {
            "ping": self._ping,
            "facts": node.facts,
            "launch": node.jobs.launch,
            "resize": node.jobs.resize,
            "kill": node.jobs.kill,
            "continue": node.jobs.continue_ranks,
            "relay": node.jobs.relays.receive,
            "sample": node.sample,
            "measure": node.measure,
            "reach": node.connection_test.test,
        }

    def _refuse(self, lines: Lines, what: str, **fields: Any) -> None:
        if lines is self.lines:
            self.outbox.send("error", what=what, **fields)
        else:
            lines.send({"type": "error", "time": system.monotonic(), "what": what, **fields})

    def _hello(self, fields: MessageFields, lines: Lines) -> None:
        """Set up the node, or accept another controller for it."""
        if fields.value("protocol") != PROTOCOL:
            raise InputError(
                f"protocol is {clipped(repr(fields.value('protocol')))}, but this agent supports {PROTOCOL}"
            )
        if self.node is not None and lines is self.lines:
            raise InputError("hello arrived twice")
        if self.ending:
            raise InputError("the agent ends")
        heartbeat_s = fields.number("heartbeat_s", 0.001, LONGEST_S)
        silence_s = fields.number("silence_s", 0.001, LONGEST_S) if "silence_s" in fields else NEVER
        linger_s = fields.number("linger_s", 0.0, LONGEST_S) if "linger_s" in fields else 0.0
        seen = fields.whole("seen", 0) if "seen" in fields else 0
        hold = fields.flag("hold") if "hold" in fields else False
        if self.node is None:
            self.node = AgentNode(fields, self.selector, self.outbox, self.sockets, self.machine)
            self._handlers = self._handlers_of(self.node)
            self.cleans_up = "host" not in fields or fields.flag("host")  # one agent of each machine
            self._remove_leftovers()
        elif read_node(fields) != self.node.description:
            raise InputError("node or spool is not that of the first hello")
        if lines is not self.lines:
            self._close(self.lines)
            self.lines = self.outbox.lines = lines
        self.last_received, self.linger_until = system.monotonic(), NEVER
        self.silence_s, self.linger_s = silence_s, linger_s
        self.outbox.keeping = linger_s > 0
        if linger_s and not self.listening:
            self._accept_controllers()
        self.outbox.confirm(seen)
        jobs = self.node.jobs
        if hold and jobs.launches:
            jobs.stop()
        paused_s, left_out_s = jobs.stopped_s, jobs.pauses.total
        if not hold:
            jobs.resume()
        self.outbox.send_unnumbered(
            "hello",
            protocol=PROTOCOL,
            version=version(),
            pid=system.current().pid(),
            sockets=str(self.sockets),
            attach=str(self.sockets / NAME) if self.listening else None,
            adopted=list(jobs.ranks),
            paused_s=paused_s,
            left_out_s=left_out_s,
            host=self.node.host,
            units_per_core_second=self.node.rate,
        )
        self.outbox.resend()
        jobs.relays.resend()
        self.node.set_heartbeat(heartbeat_s)

    def _ping(self, message: dict[str, Any]) -> None:
        fields = MessageFields(message)
        assert self.node is not None
        self.node.echo(fields)
        if "seen" in fields:
            self.outbox.confirm(fields.whole("seen", 0))

    def _bye(self, message: dict[str, Any]) -> None:
        self.ending = True


def _quoted(line: bytes) -> str:
    """Return the beginning of a line as quoted in messages. A line with a key is not quoted."""
    if b"authkey" in line:
        return "a message with a key"
    return clipped(repr(line[:1000].decode(errors="replace")))
