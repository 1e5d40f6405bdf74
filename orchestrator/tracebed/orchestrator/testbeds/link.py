"""The link of a testbed to the agent of one node: its channel, the state of the agent, and the clock of the node.

All clocks are monotonic clocks. An offset is measured by pings, as in NTP (RFC 5905): a ping is sent at t0 and arrives
at t1 of the node, its echo is sent at t2 of the node and arrives at t3. Then the round trip is (t3 - t0) - (t2 - t1),
the offset is ((t1 - t0) + (t2 - t3)) / 2, and the error of the offset is at most half of the round trip.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import shutil
import signal
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from tracebed.benchmarks.lines import Lines, encode
from tracebed.ground import system
from tracebed.ground.cpus import format_cpus
from tracebed.ground.errors import TestbedError
from tracebed.orchestrator.testbeds.agent import PROTOCOL
from tracebed.orchestrator.testbeds.agent.spool import remove_tables
from tracebed.orchestrator.testbeds.launcher import Launcher
from tracebed.orchestrator.testbeds.nodes import Inventory, Node
from tracebed.orchestrator.testbeds.provider import Channel, Provider

# Time without a message after which an agent on another machine treats its controller as lost, s, or ten heartbeats if
# they take longer. It is longer than any decision of a policy, during which no message is sent.
SILENCE_S = 60.0
BYE_S = 5.0  # time that an agent of an earlier connection has to end after `bye`, s
PAUSE_S = 1.0  # Pause before the first attempt to start a lost agent again, s. Pauses double.
LONGEST_PAUSE_S = 60.0  # longest of these pauses, s
# Largest assumed drift between two clocks, seconds per second. Crystals of computers are better than this.
DRIFT = 50e-6
# The fields of an event that have times of the node. The first field of each sample in `samples` is one too.
TIMES = ("time", "begun", "asked", "seen", "decided", "applied", "done")
NUMBER = (int, float)


class Link:
    """The link to the agent of a node. Times are those of `system.monotonic()`."""

    def __init__(self, index: int, node: Node, launcher: Launcher, *, first: bool) -> None:
        self.index, self.node, self.launcher = index, node, launcher
        self.first = first  # whether the agent describes its machine, as one agent of each machine does
        self.channel: Channel | None = None  # None: it is not open
        self.lines: Lines | None = None  # the messages over the channel
        self.hello: dict[str, Any] = {}  # the answer to `hello`; empty until then. It stays when the agent is lost
        self.up = False  # whether the agent can be used: it has answered, and its clock is known
        self.reported = False  # whether the loss or the omission of the node was reported to the caller
        self.asleep = False  # whether the node is to have no agent
        self.waking = False  # whether the agent of a node that slept is being started for the first time
        self.opening = False  # whether a channel is being opened
        self.ending = 0  # number of channels to this node that are being ended
        self.attached = False  # whether another testbed has started the agent
        self.ended = False  # whether the agent has ended at the request of this testbed
        self.adopt: Mapping[str, Any] | None = None  # the facts of an agent that may be running already
        self.attaches = 0  # failed attempts to take over this agent
        self.pings = 0  # echoes of pings that have arrived
        self.early_events: list[tuple[dict[str, Any], float]] = []  # before the agent was up, with times of arrival
        self.held: list[Mapping[str, Any]] = []  # to ranks of an agent that is being taken over; sent only once
        self.clock = NodeClock(same=self.provider.shared)
        self.failure: TestbedError | None = None  # why the last start of the agent failed
        self.pause_s = PAUSE_S
        self.retry_at: float | None = None  # next attempt to start the agent
        self.deadline: float | None = None  # of the start of the agent
        self.seen: int | None = None  # number of the last event that the caller has recorded
        self._latest = 0
        self.pinged: int | None = None

    @property
    def provider(self) -> Provider:
        """The provider of the node."""
        return self.launcher.provider

    @property
    def where(self) -> str:
        """The node, as in messages."""
        return f"node {self.node.name}"

    @property
    def machine(self) -> str:
        """The identity of the machine of the node."""
        host = self.hello.get("host", {})
        here = system.current().boot_id()
        if self.provider.shared or host.get("boot_id") == here is not None:
            return "here"
        return str(host.get("boot_id") or host.get("name") or self.node.name)

    @property
    def due(self) -> float | None:
        """The time at which to start the agent again, or to give up its start; None: neither."""
        return self.retry_at if self.channel is None else self.deadline

    @property
    def handshaking(self) -> bool:
        """Whether the agent has answered `hello`, and is not up yet."""
        return bool(self.hello) and not self.up

    def connect(self, channel: Channel, lines: Lines, inventory: Inventory) -> None:
        """Use a channel that was opened, and send `hello`."""
        self.channel, self.lines = channel, lines
        self.hello = {}
        self.clock = NodeClock(same=self.provider.shared)
        self.pings, self._latest = 0, 0
        self.early_events.clear()
        self.ended = False
        lines.send(self._hello(inventory))
        for message in self.held:
            lines.send(message)
        self.held.clear()

    def _hello(self, inventory: Inventory) -> dict[str, Any]:
        node, far = self.node, not self.provider.shared
        return {
            "type": "hello",
            "protocol": PROTOCOL,
            "node": {
                "name": node.name,
                "cores": node.cores,
                "cpus": None if node.cpus is None else format_cpus(node.cpus),
                "emulated": node.emulated,
            },
            "heartbeat_s": inventory.heartbeat_s,
            "spool": self.provider.spool(node),
            "calibrate": not node.emulated,
            "host": self.first,
            "silence_s": max(SILENCE_S, 10 * inventory.heartbeat_s) if far else None,  # here, no connection is cut
            "linger_s": inventory.linger_s,
            "seen": self.seen,
            "hold": self.attached,  # until all agents have been taken over
        }

    def handle_hello(self, hello: dict[str, Any]) -> None:
        """Process the answer to `hello`."""
        self.hello = hello
        self.clock.same = self.machine == "here"
        self.pinged = self.seen

    def repeats(self, message: Mapping[str, Any]) -> bool:
        """Return whether a message has arrived before over this channel: its number is not above the latest one."""
        number = message.get("n")
        if number is None:
            return False
        before, self._latest = self._latest, max(self._latest, number)
        return bool(number <= before)

    def begin(self) -> None:
        """Note that the agent is up."""
        self.up = True
        self.deadline = None
        self.pause_s = PAUSE_S

    def ping(self) -> None:
        """Send a ping if the clock must be measured or recorded events must be confirmed."""
        if self.lines is not None and (not self.provider.shared or self.seen != self.pinged):
            self.pinged = self.seen
            self.lines.send({"type": "ping", "time": system.monotonic(), "seen": self.seen})

    def ping_now(self) -> None:
        """Send a ping that is echoed at once."""
        self.ping()
        if self.lines is not None:
            self.lines.send({"type": "sample", "calibrate": False})

    def echo(self, message: Mapping[str, Any], arrived: float) -> float:
        """Process the echo of a ping, if the heartbeat has one. Return the step of the clock of the node, s."""
        if not (echo := message.get("ping")) or self.provider.shared:
            return 0.0
        self.pings += 1
        return self.clock.echo(echo["sent"], echo["received"], message["time"], arrived)

    def disconnect(self, *, bye: bool = False) -> Callable[[], None]:
        """Stop using the channel, and return a function that ends the agent. The function may block.

        With `bye`, the agent is asked to end, and is killed only if it does not.
        """
        leaves = False
        if self.lines is not None:
            if bye:
                self.lines.send({"type": "bye"})
                leaves = not self.lines.unsent  # otherwise the agent does not read
            self.lines.forget()
        channel, hello, attached, ended = self.channel, self.hello, self.attached, self.ended
        self.channel = self.lines = None
        self.up = False
        self.deadline = None

        def end() -> None:
            left = leaves and channel is not None and bool(await_ends([channel.reader], system.monotonic() + BYE_S))
            self._end(channel, hello, attached, ended or left)

        return end

    def _end(self, channel: Channel | None, hello: Mapping[str, Any], attached: bool, ended: bool) -> None:
        """End an agent that is no longer used, and remove its files."""
        if channel is None:
            return
        channel.kill()
        if ended or not hello:
            return
        if self.provider.shared:
            if attached:  # the channel was not the agent itself
                kill_agent(hello)
            remove_tables(Path(hello["sockets"]))  # an agent that was killed leaves its table and its folder
            shutil.rmtree(hello["sockets"], ignore_errors=True)
        elif hello.get("attach") and (attached or channel.poll() is None):
            self._send_bye(hello["attach"])

    def _send_bye(self, socket: str) -> None:
        """Send `bye` to an agent that waits for another controller, and wait for its end."""
        with contextlib.suppress(TestbedError):  # then the agent ends by itself, after its time
            channel = self.provider.run(self.node, ["--attach", socket])
            try:
                system.current().set_blocking(channel.writer, True)
                with contextlib.suppress(OSError):  # the command ends if no agent listens
                    system.current().write(channel.writer, encode({"type": "bye"}))
                channel.close()
                await_ends([channel.reader], system.monotonic() + BYE_S)
            finally:
                channel.kill()

    def postpone(self) -> None:
        """Set the time of the next attempt to start the agent."""
        self.retry_at = system.monotonic() + self.pause_s
        self.pause_s = min(LONGEST_PAUSE_S, 2 * self.pause_s)

    def facts(self) -> dict[str, Any]:
        """Return the facts by which another controller can take over the agent."""
        clock = {"offset_s": self.clock.offset_s, "boot": system.current().boot_id()}
        return {"pid": self.hello["pid"], "socket": self.hello.get("attach"), "machine": self.machine, **clock}


def kill_agent(hello: Mapping[str, Any]) -> None:
    """Kill an agent of this machine that another process has started, if it still has its private folder."""
    try:
        process = os.pidfd_open(hello["pid"])
    except OSError:  # it has ended
        return
    try:
        if Path(hello["sockets"]).exists():  # removed by an agent that ends, so the process is still this agent
            signal.pidfd_send_signal(process, signal.SIGKILL)
    except ProcessLookupError:
        return
    finally:
        os.close(process)


def await_ends(readers: Iterable[int], until: float) -> list[int]:
    """Read from `readers` until their ends, or until `system.monotonic()` is `until`. Return the ended readers."""
    here, ended = system.current(), list[int]()
    with here.selector() as selector:
        for reader in set(readers):
            selector.register(reader, selectors.EVENT_READ)
        while selector.get_map() and system.monotonic() < until:
            for key, _ in here.wait(selector, until):
                try:
                    if here.read(key.fd, 65536):
                        continue
                except BlockingIOError:
                    continue
                except OSError:  # the connection is lost
                    pass
                selector.unregister(key.fd)
                ended.append(key.fd)
    return ended


class NodeClock:
    """The offset of the clock of a node.

    A node with the `same` clock as this machine has the offset 0, unless a measurement excludes 0.
    """

    def __init__(self, *, same: bool = False) -> None:
        self.same = same
        self.offset_s = 0.0  # time of the node minus time of this machine, s
        self.round_trip_s: float | None = None  # of the ping that gave the offset, s; None: not measured yet
        self.error_s = 0.0  # largest error of the offset when it was measured, s
        self._measured = 0.0

    @property
    def known(self) -> bool:
        """Whether times of the node can be converted."""
        return self.same or self.round_trip_s is not None

    def echo(self, sent: float, received: float, answered: float, arrived: float) -> float:
        """Process the echo of a ping, and keep the sample with the smallest current error.

        The error of the kept sample grows by `DRIFT`. A sample that contradicts the kept one replaces it: the node was
        suspended, or restarted. The ping was `sent` and the echo `arrived` at times of this machine, it was `received`
        and `answered` at times of the node. Return the step of the clock of the node since the kept sample, s; 0: the
        sample does not contradict it.
        """
        round_trip = max(0.0, (arrived - sent) - (answered - received))
        offset = ((received - sent) + (answered - arrived)) / 2
        error = round_trip / 2
        kept = self.error_s + DRIFT * (arrived - self._measured)
        stepped = self.round_trip_s is not None and abs(offset - self.offset_s) > error + kept
        step = offset - self.offset_s if stepped else 0.0
        if self.round_trip_s is None or error <= kept or stepped:
            self.round_trip_s, self.error_s, self._measured = round_trip, error, arrived
            self.offset_s = 0.0 if self.same and abs(offset) <= error else offset
        return step

    def convert(self, message: dict[str, Any], arrived: float) -> dict[str, Any]:
        """Return an event of the node with times of this machine, none of which is after its arrival."""
        if not self.offset_s:
            return message

        def here(time: float) -> float:
            return min(time - self.offset_s, arrived)

        times = {name: here(message[name]) for name in TIMES if isinstance(message.get(name), NUMBER)}
        if samples := message.get("samples"):
            return message | times | {"samples": [[here(ended), *rest] for ended, *rest in samples]}
        return message | times

    def facts(self) -> Mapping[str, float | None]:
        """Return the offset and its round trip for `run.json`, s."""
        return {"offset_s": round(self.offset_s, 6), "round_trip_s": self.round_trip_s}
