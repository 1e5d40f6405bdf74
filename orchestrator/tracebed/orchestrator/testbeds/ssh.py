"""The provider `ssh`: nodes on hosts that are reached by SSH. Agents are commands of SSH sessions."""

from __future__ import annotations

import contextlib
import ipaddress
import re
import socket
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import paramiko
from pydantic import Field, field_validator

from tracebed.ground.errors import InputError, TestbedError
from tracebed.orchestrator.testbeds.installation import Installation, WheelCache, next_stamp
from tracebed.orchestrator.testbeds.launcher import concurrently, joined
from tracebed.orchestrator.testbeds.nodes import Group, Node
from tracebed.orchestrator.testbeds.pump import ChannelConnection, Pump
from tracebed.orchestrator.testbeds.replay_folder import agent_log, append_to, name_on_nodes, note_making
from tracebed.orchestrator.testbeds.settings import ProviderSettings
from tracebed.orchestrator.testbeds.ssh_host import Access, Host, ssh_config

END_S = 1.0
"""Time in which a command that has closed its output ends, s."""
FAN_OUT = 8
"""Number of connections that are opened at once. The default of sshd accepts 10 (MaxStartups 10:30:100)."""

Seconds = Annotated[float, Field(gt=0, le=3600)]


class SshSettings(ProviderSettings):
    """The keys of a group of provider `ssh`."""

    user: str | None = None
    """Login on the hosts. Default: as in the SSH configuration."""
    port: Annotated[int, Field(ge=1, le=65535)] | None = None
    """Port of the SSH servers. Default: as in the SSH configuration."""
    config: str | None = None
    """SSH configuration, instead of the configurations of the user and of the system."""
    identity_file: str | None = None
    """File of a private key, in addition to the keys of the SSH configuration and of the SSH agent."""
    known_hosts: str | None = None
    """File of host keys, instead of the files of the user and of the system."""
    python: str = "python3"
    """Python 3.11 or newer on the hosts: a name or a path."""
    folder: str | None = None
    """Folder on the hosts for the installation and the files of jobs. Default: a folder in `~/.cache/tracebed`."""
    listen: bool = False
    """Whether ranks may listen on the address at which SSH reaches the host."""
    sessions: Annotated[int, Field(ge=1, le=100)] = 8
    """Largest number of agents on a connection. One more session is for commands. sshd accepts 10 (MaxSessions)."""
    connect_s: Seconds = 10.0
    """Time in which each phase of a connection must succeed, s."""
    command_s: Seconds = 60.0
    """Time in which a command on a host must end, s. It does not apply to agents."""
    silence_s: Seconds = 15.0
    """Time after which a host that does not acknowledge data is lost, s."""

    @field_validator("user", "python", "folder", "config", "identity_file", "known_hosts")
    @classmethod
    def _plain(cls, text: str | None) -> str | None:
        if text is not None and (not text or text.startswith("-") or not text.isprintable()):
            raise ValueError(f"{text!r} is invalid")
        return text


class SshChannel:
    """An agent on a host.

    Args:
        channel: the SSH channel of the command.
        pump: carries the bytes of the channel.
        log: file here for the standard error of the command.
        end: kills the command on the host, if the host can be reached.
        release: releases the place of the channel on its connection.
    """

    def __init__(
        self,
        channel: paramiko.Channel,
        pump: Pump,
        log: Path,
        end: Callable[[], None],
        release: Callable[[], None],
    ) -> None:
        """Take over the channel."""
        self._channel, self._log, self._end, self._release = channel, log, end, release
        self._errors = b""
        self._socket = pump.carry(ChannelConnection(channel, self._on_error))
        self.reader = self.writer = self._socket.fileno()

    def _on_error(self, data: bytes) -> None:
        self._errors = (self._errors + data)[-4096:]
        with append_to(self._log) as log:
            log.write(data)

    def poll(self) -> int | None:
        """Return the exit status. It is unknown if the command was killed, or if the connection was lost."""
        status = self._channel.recv_exit_status() if self._channel.exit_status_ready() else -1
        return status if status >= 0 else None

    def exit_reason(self) -> str:
        """Return how the command ended, and the last line of its standard error."""
        self._channel.status_event.wait(END_S)
        status, transport = self.poll(), self._channel.get_transport()
        if status is not None:
            how = f"ended with status {status}"
        elif not transport.is_active():
            how = "the SSH connection was lost"
        else:
            how = "was killed" if self._channel.closed else "closed its output"
        *_, last = ["", *self._errors.decode(errors="replace").strip().splitlines()]
        return f"{how}: {last}" if last else how

    def close(self) -> None:
        """Close the input of the command."""
        with contextlib.suppress(OSError):  # the channel was released
            self._socket.shutdown(socket.SHUT_WR)

    def kill(self) -> None:
        """Kill the command and its children on the host if it can be reached, and release the channel."""
        if self._socket.fileno() < 0:
            return
        if self.poll() is None:
            self._end()
        self._socket.close()
        self._channel.close()
        self._release()


class SshProvider:
    """Nodes on hosts that are reached by SSH. Several nodes may be on one host."""

    name = "ssh"
    Settings = SshSettings
    shared = False
    fan_out = FAN_OUT

    def __init__(self, group: Group, folder: Path, on_step: Callable[[str], None]) -> None:
        """Read the SSH configuration, without connecting.

        Raises:
            InputError: the SSH configuration or the name of a host is invalid.
        """
        settings = group.settings
        assert isinstance(settings, SshSettings)
        self.group, self.folder, self.on_step, self.settings = group, folder, on_step, settings
        self._access = Access(
            config=ssh_config(_path(settings.config)),
            user=settings.user,
            port=settings.port,
            identity_file=_path(settings.identity_file),
            known_hosts=_path(settings.known_hosts),
            connect_s=settings.connect_s,
            command_s=settings.command_s,
            silence_s=settings.silence_s,
            sessions=settings.sessions,
            gate=threading.Semaphore(self.fan_out),
        )
        self._aliases = {node.name: checked_host(node.address or node.name) for node in group.nodes}
        self._hosts = {alias: Host(alias, self._access) for alias in self._aliases.values()}
        there = settings.folder or f".cache/tracebed/{re.sub(r'[^A-Za-z0-9_.-]', '-', group.mark or group.name)}"
        self._installations = {
            alias: Installation(f"host {alias}", there, settings.python, name_on_nodes(folder), host.command)
            for alias, host in self._hosts.items()
        }
        self._wheels = WheelCache()
        self._pump = Pump()
        self._left: set[str] = set()  # nodes with commands that could not be killed
        self.made = False

    def up(self) -> None:
        """Install tracebed on all hosts where it is not installed.

        Raises:
            TestbedError: a host cannot be reached, or lacks something.
        """
        errors = concurrently(
            [partial(self._up, installation) for installation in self._installations.values()], self.fan_out
        )
        if errors:
            raise joined(errors)

    def _up(self, installation: Installation) -> None:
        if installation.up(self._wheels, partial(note_making, self)):
            self.on_step(f"{installation.where}: tracebed is installed")

    def down(self) -> None:
        """End all agents on the hosts, remove what `up` made there, and close the connections.

        Raises:
            TestbedError: a host cannot be reached.
        """
        failed: dict[Installation, TestbedError] = {}

        def attempt(do: Callable[[Installation], None], installation: Installation) -> None:
            try:
                do(installation)
            except TestbedError as error:
                failed[installation] = error

        for do in (Installation.end, self._remove):  # agents end everywhere first, because hosts may share the folder
            left = [installation for installation in self._installations.values() if installation not in failed]
            concurrently([partial(attempt, do, installation) for installation in left], self.fan_out)
        self.close()
        if failed:
            raise joined(failed.values())

    def _remove(self, installation: Installation) -> None:
        if removed := installation.remove():
            self.on_step(f"{installation.where}: {removed} is removed")

    def close(self) -> None:
        """Close the connections. Running agents lose their controller."""
        self._pump.close()
        for host in self._hosts.values():
            host.close()

    def run(self, node: Node, arguments: Sequence[str]) -> SshChannel:
        """Run the agent of a node as the command of an SSH session.

        Raises:
            TestbedError: the host cannot be reached, or tracebed cannot be installed there.
        """
        host, installation = self._hosts[self._aliases[node.name]], self._installation(node)
        stamp = next_stamp()
        if node.name in self._left and not arguments:  # otherwise, the remaining agent is taken over
            installation.end(node.name, stamp)
            self._left.discard(node.name)
        channel, release = host.start(installation.agent(node.name, stamp, arguments))
        end = partial(self._end, installation, node.name, stamp)
        return SshChannel(channel, self._pump, agent_log(self.folder, node), end, release)

    def _end(self, installation: Installation, node: str, stamp: str) -> None:
        """Kill the commands of a node that were started until `stamp`, or before its next agent starts."""
        try:
            installation.end(node, stamp)
        except TestbedError:  # without messages, the agent also ends by itself
            self._left.add(node)

    def spool(self, node: Node) -> str:
        """Return the folder for files of jobs on the host of a node."""
        return self._installation(node).spool

    def fetch(self, node: Node, target: Path) -> None:
        """Copy the files of the jobs of a node to the folder `target`."""
        self._installation(node).fetch(node.name, target)

    def bind(self, node: Node) -> str | None:
        """Return the address at which SSH reached the host, if ranks may listen there."""
        return self._installation(node).address if self.settings.listen else None

    def _installation(self, node: Node) -> Installation:
        """Return the folder on the host of a node, with tracebed installed."""
        installation = self._installations[self._aliases[node.name]]
        self._up(installation)
        return installation


def _path(name: str | None) -> Path | None:
    return None if name is None else Path(name).expanduser()


def checked_host(name: str) -> str:
    """Return the name of a host, an alias of the SSH configuration, or an address.

    Raises:
        InputError: the name is invalid.
    """
    if re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", name):
        return name
    try:
        return str(ipaddress.ip_address(name))
    except ValueError as error:
        hint = "give a host name, an alias of the SSH configuration, or an address"
        raise InputError(f"host {name!r} is invalid", hint=hint) from error
