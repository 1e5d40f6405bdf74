"""The check of providers."""

from __future__ import annotations

import ipaddress
import json
import os
import select
import tempfile
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

from tracebed.benchmarks.lines import encode
from tracebed.orchestrator.testbeds.agent import PROTOCOL
from tracebed.orchestrator.testbeds.launcher import concurrently
from tracebed.orchestrator.testbeds.nodes import AGENTS, Group, Inventory, Node
from tracebed.orchestrator.testbeds.provider import PROVIDERS, Channel, Provider
from tracebed.orchestrator.testbeds.testbed import AgentTestbed
from tracebed.testing.testbeds import check_testbed, launch_message, marked

FLOOD = 500  # number of messages of 1,000 characters that are sent before a reply is received


def check_provider(provider: type[Provider], group: Group | None = None, *, patience_s: float = 60.0) -> None:
    """Check that a provider satisfies the contract of `Provider`.

    The check brings the nodes of a group up, runs agents and a job on them, and takes the nodes down. If the provider
    is installed as an entry point, it then checks a whole testbed of the group (see `check_testbed`).

    Args:
        provider: the provider.
        group: nodes that the provider can reach and that are not up; None: three emulated nodes without settings.
        patience_s: maximum time to wait for a reply of an agent, wall seconds.

    Raises:
        AssertionError: a rule is violated; the message has the rule.
        TestbedError: a node cannot be prepared, or cannot be reached.

    Examples:
        >>> from tracebed.orchestrator.testbeds.local import LocalProvider
        >>> from tracebed.testing import check_provider
        >>> check_provider(LocalProvider)
    """
    if group is None:
        nodes = tuple(Node(f"n{number}", 2, emulated=True, provider=provider.name) for number in (1, 2, 3))
        group = Group("check", provider.name, provider.Settings(), nodes, "check")
    _demand(provider.Settings.model_config.get("extra") == "forbid", "`Settings` forbids unknown keys")
    threads = set(threading.enumerate())
    with tempfile.TemporaryDirectory() as folder, marked() as processes:
        objects = [provider(group, Path(folder), lambda step: None) for _ in range(3)]
        first, second, third = objects
        _demand(not processes(), "a provider starts no process before `up`")
        check = _ProviderCheck(first, group, Path(folder), patience_s)
        try:
            first.up()
            second.up()
            _demand(not second.made, "`up` leaves nodes that are ready as they are")
            check.addresses()
            check.agents()
            check.failure()
            check.flood()
            check.files()
            check.kill()
        finally:
            check.end()
            first.down()
        first.down()
        third.up()
        _demand(third.made == first.made, "`down` removes what `up` made, so that another `up` makes it again")
        second.down()  # of another object
        for made in objects:
            made.close()
            made.close()
        until = time.monotonic() + patience_s
        while (processes() or set(threading.enumerate()) - threads) and time.monotonic() < until:
            time.sleep(0.05)
        _demand(not processes(), f"`down` ends all processes, but {processes()} are still running")
        left = [thread.name for thread in set(threading.enumerate()) - threads]
        _demand(not left, f"`close` ends the threads of the provider, but {left} are still running")
    if provider.name in PROVIDERS.names():
        check_testbed(AgentTestbed, Inventory("check", AGENTS, group.nodes, 0.02, groups=(group,)))


class _ProviderCheck:
    """The rules for nodes that are up, one method per rule."""

    def __init__(self, provider: Provider, group: Group, folder: Path, patience_s: float) -> None:
        self.provider, self.group, self.folder, self.patience_s = provider, group, folder, patience_s
        self.channels: list[Channel] = []

    def run(self, node: Node, *arguments: str) -> Channel:
        channel = self.provider.run(node, arguments)
        self.channels.append(channel)
        return channel

    def connected(self, node: Node) -> _AgentConnection:
        """Start an agent, and return the conversation with it after `hello`."""
        talk = _AgentConnection(self.run(node), self.patience_s)
        talk.send(
            type="hello",
            protocol=PROTOCOL,
            node={"name": node.name, "cores": node.cores, "cpus": None, "emulated": True},
            heartbeat_s=3600.0,
            spool=self.provider.spool(node),
            calibrate=False,
        )
        talk.receive("hello")
        return talk

    def addresses(self) -> None:
        for node in self.group.nodes:
            address = self.provider.bind(node)
            try:
                usable = address is None or not ipaddress.IPv4Address(address).is_unspecified
            except ValueError:
                usable = False
            _demand(usable, f"`bind` returns None or an IPv4 address of the node, but returned {address!r}")

    def agents(self) -> None:
        """Check that agents run on all nodes at once, and end with their input."""
        talks: list[_AgentConnection] = []

        def start(node: Node) -> None:
            talks.append(self.connected(node))

        errors = concurrently([partial(start, node) for node in self.group.nodes], self.provider.fan_out)
        _demand(not errors, f"`run` may be called from several threads, but raised {errors[:1]}")
        for talk in talks:
            _demand(talk.channel.poll() is None, "`poll` returns None while the command is running")
            talk.channel.close()
            talk.channel.close()
            talk.await_end("`close` closes the input of the agent, which then ends")
            _demand(talk.channel.poll() in (0, None), "`poll` returns the exit status 0, or None if it is unknown")
            _demand(bool(talk.channel.exit_reason()), "`exit_reason` states how the command ended")

    def failure(self) -> None:
        talk = _AgentConnection(self.run(self.group.nodes[0], "--nonsense"), self.patience_s)
        talk.await_end("the output ends with the command")
        _demand("usage: " in talk.channel.exit_reason(), "`exit_reason` contains the last line of the standard error")
        _demand(talk.channel.poll() in (1, None), "`poll` returns the exit status 1, or None if it is unknown")

    def flood(self) -> None:
        """Check that no bytes are lost while neither side reads."""
        talk = self.connected(self.group.nodes[0])
        for number in range(FLOOD):
            talk.send(type="kill", job=f"unknown {number}", reason="x" * 1000)
        jobs = [talk.receive("error")["job"] for _ in range(FLOOD)]
        _demand(jobs == [f"unknown {number}" for number in range(FLOOD)], "messages arrive complete and in order")
        talk.channel.kill()

    def files(self) -> None:
        """Check that the files of a job are fetched."""
        node = self.group.nodes[-1]
        talk = self.connected(node)
        talk.launch(node, "files", 10)
        _demand(talk.receive("ended")["state"] == "completed", "the spool of a node can be written")
        talk.channel.kill()
        if self.provider.shared:
            _demand(Path(self.provider.spool(node)) == self.folder, "shared nodes write to the folder of the replay")
        self.provider.fetch(node, self.folder)
        fetched = [str(path.relative_to(self.folder)) for path in self.folder.glob("job-files/*")]
        _demand(f"job-files/{node.name}.out" in fetched, f"`fetch` copies the files of jobs, but copied {fetched}")

    def kill(self) -> None:
        """Check that a killed agent and its ranks are gone, so that the same job can run again."""
        node = self.group.nodes[0]
        for _ in range(2):
            talk = self.connected(node)
            talk.launch(node, "killed", 10**9)
            talk.receive("started")
            talk.channel.kill()
            talk.channel.kill()
            talk.channel.close()

    def end(self) -> None:
        for channel in self.channels:
            channel.kill()


class _AgentConnection:
    """A conversation with an agent."""

    def __init__(self, channel: Channel, patience_s: float) -> None:
        self.channel, self.patience_s = channel, patience_s
        os.set_blocking(channel.reader, False)
        os.set_blocking(channel.writer, False)
        self.unsent, self.partial = b"", b""
        self.ended = False
        self.heard: list[dict[str, Any]] = []

    def send(self, **message: Any) -> None:
        self.unsent += encode(message)
        self._write()

    def _write(self) -> None:
        try:
            while self.unsent:
                self.unsent = self.unsent[os.write(self.channel.writer, self.unsent) :]
        except BlockingIOError:  # written later
            return

    def launch(self, node: Node, job: str, units: int) -> None:
        """Launch a job of one emulated rank."""
        self.send(**launch_message(node, job, [node.name], units, 2, 1e6) | {"duty": 0})

    def receive(self, kind: str) -> dict[str, Any]:
        """Return the next message of a kind."""
        until = time.monotonic() + self.patience_s
        while True:
            for index, message in enumerate(self.heard):
                if message["type"] == kind:
                    return self.heard.pop(index)
            _demand(time.monotonic() < until, f"`{kind}` arrives within {self.patience_s:g} s, but did not")
            _demand(not self.ended, f"`{kind}` arrives, but the channel ended: {self.channel.exit_reason()}")
            self._receive(until)

    def await_end(self, rule: str) -> None:
        until = time.monotonic() + self.patience_s
        while not self.ended:
            _demand(time.monotonic() < until, f"{rule}, but it did not within {self.patience_s:g} s")
            self._receive(until)

    def _receive(self, until: float) -> None:
        reader, writer = self.channel.reader, self.channel.writer
        poll = select.poll()
        poll.register(reader, select.POLLIN)
        if self.unsent:
            poll.register(writer, select.POLLOUT | (select.POLLIN if reader == writer else 0))
        poll.poll(max(0.0, 1000 * (until - time.monotonic())))
        self._write()
        try:
            data = os.read(reader, 65536)
        except BlockingIOError:
            return
        except OSError:  # the connection is lost
            data = b""
        self.ended = not data
        *lines, self.partial = (self.partial + data).split(b"\n")
        self.heard += [json.loads(line) for line in lines]


def _demand(good: bool, rule: str) -> None:
    if not good:
        raise AssertionError(f"provider: {rule}")
