"""The provider `ssh`: nodes on hosts that are reached by SSH. Agents are commands of SSH sessions.

Host keys are always checked, including those of jump hosts. Credentials come from the SSH configuration, from the
agent, and from the keys of the user. Every command is a list of arguments, which is quoted for the shell of the host.
"""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import re
import shlex
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Annotated

import fabric
import paramiko
from paramiko.ssh_exception import (
    AuthenticationException,
    BadHostKeyException,
    ChannelException,
    NoValidConnectionsError,
)
from pydantic import Field, field_validator

from tracebed.ground import system
from tracebed.ground.errors import InputError, TestbedError
from tracebed.orchestrator.testbeds.installation import Installation, WheelCache, next_stamp
from tracebed.orchestrator.testbeds.launcher import carry_out, concurrently, joined
from tracebed.orchestrator.testbeds.nodes import Group, Node
from tracebed.orchestrator.testbeds.pump import ChannelConnection, Pump
from tracebed.orchestrator.testbeds.replay_folder import agent_log, append_to, name_on_nodes, note_making
from tracebed.orchestrator.testbeds.settings import ProviderSettings
from tracebed.orchestrator.testbeds.ssh_config import USER_FILE, trusted_lines

END_S = 1.0  # time in which a command that has closed its output ends, s
FAN_OUT = 8  # Number of connections that are opened at once. The default of sshd accepts 10 (MaxStartups 10:30:100).

Seconds = Annotated[float, Field(gt=0, le=3600)]
ATTEMPTS = 7  # number of attempts to connect to a host that drops connections, as a busy sshd does (MaxStartups)
PAUSE_S = 0.2  # Mean of the random pause after the first dropped connection, s. It doubles with each attempt.
SYSTEM_HOSTS = Path("/etc/ssh/ssh_known_hosts")
USER_HOSTS = Path("~/.ssh/known_hosts")
ADDRESS_HINT = "set `address` of the node, or HostName in the SSH configuration"
KEY_HINT = "set `identity_file` or IdentityFile to the file of a private key"
# The SSH configurations of the user and of the system.
OWN_FILES = (USER_FILE.expanduser(), Path("/etc/ssh/ssh_config"))


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
    """An agent on a host. `log` is the file here for the standard error of the command.

    `end` kills the command on the host, if the host can be reached. `release` releases the place of the channel on its
    connection.
    """

    def __init__(
        self,
        channel: paramiko.Channel,
        pump: Pump,
        log: Path,
        end: Callable[[], None],
        release: Callable[[], None],
    ) -> None:
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
        """Read the SSH configuration, without connecting."""
        settings = group.settings
        assert isinstance(settings, SshSettings)
        self.group, self.folder, self.on_step, self.settings = group, folder, on_step, settings
        config = ssh_config(None if settings.config is None else _path(settings.config))
        self._access = Access(settings, config, threading.Semaphore(self.fan_out))
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
        """Install tracebed on all hosts where it is not installed."""
        carry_out([partial(self._up, installation) for installation in self._installations.values()], self.fan_out)

    def _up(self, installation: Installation) -> None:
        if installation.up(self._wheels, partial(note_making, self)):
            self.on_step(f"{installation.where}: tracebed is installed")

    def down(self) -> None:
        """End all agents on the hosts, remove what `up` made there, and close the connections."""
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
        """Run the agent of a node as the command of an SSH session."""
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


def _path(name: str) -> Path:
    return Path(name).expanduser()


def checked_host(name: str) -> str:
    """Return the name of a host, an alias of the SSH configuration, or an address. Other names are an InputError."""
    if re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", name):
        return name
    try:
        return str(ipaddress.ip_address(name))
    except ValueError as error:
        hint = "give a host name, an alias of the SSH configuration, or an address"
        raise InputError(f"host {name!r} is invalid", hint=hint) from error


logging.getLogger("paramiko").addHandler(logging.NullHandler())  # its errors are reported as TestbedError


@dataclass(frozen=True)
class Access:
    """The access to the hosts of a group."""

    settings: SshSettings
    config: fabric.Config
    gate: threading.Semaphore = field(compare=False)  # limits the number of connections that are opened at once


def ssh_config(path: Path | None) -> fabric.Config:
    """Read an SSH configuration; None: that of the user and of the system. One that runs commands must be trusted.

    A file is trusted if it, or the file that includes it, is in a trusted folder.
    """
    files = [path] if path is not None else [file for file in OWN_FILES if file.exists()]
    text = ""
    for file in files:
        text += "".join(f"{line.text}\n" for line in trusted_lines(file))
        text += "Host *\n"
    try:
        return fabric.Config(ssh_config=paramiko.SSHConfig.from_text(text), lazy=True)
    except (paramiko.ConfigParseError, ValueError) as error:
        raise InputError(f"the SSH configuration is invalid: {error}", where=str(path or OWN_FILES[0])) from error


class _Dropped(TestbedError):
    """The server has closed a connection before authentication, as it does if too many are opened at once."""


class _CheckHostKey(paramiko.MissingHostKeyPolicy):
    """A policy that accepts a key known under the alias of the host (HostKeyAlias), and rejects other unknown keys."""

    def __init__(self, where: str, alias: str | None, files: Sequence[Path]) -> None:
        self.where, self.alias, self.files = where, alias, files

    def missing_host_key(self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> None:
        known = client.get_host_keys()
        if self.alias and known.check(self.alias, key):
            return
        name = self.alias or hostname
        if known.lookup(name) is not None:
            raise changed_key(self.where, name, key, self.files)
        raise TestbedError(
            f"its host key is not in {' or '.join(map(str, self.files))}",
            where=self.where,
            hint=f"{_keyscan(hostname)} >> {self.files[0]}, after a check that the fingerprint is {key.fingerprint}",
        )


def changed_key(where: str, name: str, key: paramiko.PKey, files: Sequence[Path]) -> TestbedError:
    """Return the error for a host with a key that differs from the known key."""
    return TestbedError(
        f"its host key {key.fingerprint} differs from the known one: another machine may have taken its place",
        where=where,
        hint=f"only if the host was installed again: ssh-keygen -R {shlex.quote(name)} -f {files[0]}; "
        f"{_keyscan(name)} >> {files[0]}",
    )


def _keyscan(name: str) -> str:
    """Return the command that prints the host keys of a host, which has a name as in known_hosts."""
    with_port = re.fullmatch(r"\[(.*)\]:(\d+)", name)
    return f"ssh-keyscan -p {with_port[2]} {with_port[1]}" if with_port else f"ssh-keyscan {name}"


class CheckedConnection(fabric.Connection):  # type: ignore[misc]
    """A connection of fabric that checks all host keys, also of jump hosts, and reports errors as TestbedError."""

    def __init__(
        self, host: str, access: Access, *, gateway: CheckedConnection | None = None, jump: bool = False
    ) -> None:
        """Prepare a connection. The user and port of `access` do not apply to a jump host."""
        self._set(access=access)
        settings = access.settings
        keys: dict[str, list[str]] = {}
        if not jump and settings.identity_file is not None:
            keys["key_filename"] = [str(_path(settings.identity_file))]
        super().__init__(
            host,
            user=None if jump else settings.user,
            port=None if jump else settings.port,
            config=access.config.clone(),
            gateway=gateway,
            connect_timeout=max(1, round(settings.connect_s)),
            connect_kwargs={
                **keys,
                "banner_timeout": settings.connect_s,
                "auth_timeout": settings.connect_s,
                "channel_timeout": settings.connect_s,
            },
        )
        self.connect_kwargs["look_for_keys"] = "key_filename" not in self.connect_kwargs
        files = [_path(settings.known_hosts)] if settings.known_hosts else self._known_hosts()
        for file in files:
            with contextlib.suppress(FileNotFoundError):
                self.client.get_host_keys().load(str(file))
        policy = _CheckHostKey(f"host {host}", self.ssh_config.get("hostkeyalias"), files)
        self.client.set_missing_host_key_policy(policy)
        self._set(files=files)

    def _known_hosts(self) -> list[Path]:
        """Return the files of host keys by the SSH configuration, and the file of the system."""
        named = self.ssh_config.get("userknownhostsfile", str(USER_HOSTS))
        return [*(Path(name).expanduser() for name in named.split()), SYSTEM_HOSTS]

    def get_gateway(self) -> CheckedConnection | str | None:
        """Return the jump host before this host, or the proxy command, by the SSH configuration."""
        jumps = self.ssh_config.get("proxyjump", "none")
        if jumps != "none":
            gateway = None
            for jump in jumps.split(","):  # visited in this order; fabric visits them in the opposite order
                host = jump.strip().removeprefix("ssh://")
                gateway = CheckedConnection(host, self.access, gateway=gateway, jump=True)
            return gateway
        command: str = self.ssh_config.get("proxycommand", "none")
        return None if command == "none" else command

    def open(self) -> None:
        """Connect. A host that is another one, or that refuses the user, is a TestbedError."""
        try:
            super().open()
        except TestbedError:  # of the check of the host key, or of a jump host
            self.shut()
            raise
        except (paramiko.SSHException, EOFError, OSError) as error:
            self.shut()
            raise self._explained(error) from error
        _watch(self.transport, self.access.settings.silence_s)

    def _explained(self, error: Exception) -> TestbedError:
        """Return the error for a failed connection."""
        where = f"host {self.original_host}"
        within = f"on port {self.port} within {self.access.settings.connect_s:g} s"
        no_keys = type(error) is paramiko.SSHException and "No authentication methods" in str(error)
        match error:
            case BadHostKeyException():
                name = error.hostname if self.port == 22 else f"[{error.hostname}]:{self.port}"
                return changed_key(where, name, error.key, self.files)
            case _ if no_keys or isinstance(error, AuthenticationException):  # also for a key with a passphrase
                hint = "add the key to ssh-agent (ssh-add), or name it in the SSH configuration (IdentityFile)"
                return TestbedError(f"the SSH server refuses the keys of user {self.user}", where=where, hint=hint)
            case TimeoutError():
                return TestbedError(f"does not answer {within}", where=where)
            case paramiko.SSHException() if "No existing" in str(error) or isinstance(error.__context__, TimeoutError):
                return TestbedError(f"no SSH server answers {within}", where=where, transient=True)
            case NoValidConnectionsError():
                reasons = {str(getattr(reason, "strerror", reason)) for reason in error.errors.values()}
                what = f"port {self.port} cannot be reached: {', '.join(sorted(reasons))}"
                return TestbedError(what, where=where, hint="is the SSH server running?", transient=True)
            case socket.gaierror():
                what = f"the address of {self.host!r} is unknown: {error.strerror}"
                return TestbedError(what, where=where, hint=ADDRESS_HINT)
            case OSError(filename=str(file)):
                return TestbedError(f"{file} cannot be read: {error.strerror}", where=where, hint=KEY_HINT)
            case ChannelException():
                return TestbedError(f"the jump host cannot reach it: {error.text}", where=where, transient=True)
            case paramiko.SSHException() | EOFError() | ConnectionError():
                how = str(error) or "end of file"
                return _Dropped(f"the SSH server has closed the connection: {how}", where=where, transient=True)
        return TestbedError(f"cannot be reached: {error}", where=where, transient=True)

    def shut(self) -> None:
        """Close the connection, those to its jump hosts, and its proxy command."""
        transport = self.client.get_transport()
        self.client.close()
        if transport is not None and isinstance(transport.sock, paramiko.ProxyCommand):
            transport.join()  # the transport only sends SIGTERM
            transport.sock.process.communicate()
        if isinstance(self.gateway, CheckedConnection):
            self.gateway.shut()


def _watch(transport: paramiko.Transport, silence_s: float) -> None:
    """Make the connection end if the host does not acknowledge data for `silence_s`."""
    if isinstance(transport.sock, socket.socket):
        transport.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, max(1, round(1000 * silence_s)))
        transport.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    transport.set_keepalive(max(1, round(silence_s / 3)))


class _Link:
    """A connection to a host, and the number of agents on it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.connection: CheckedConnection | None = None
        self.agents = 0
        self.full = False  # whether the server has refused one more session on this connection

    @property
    def usable(self) -> bool:
        """Whether the connection is open, or not opened yet."""
        return self.connection is None or bool(self.connection.is_connected)


class Host:
    """A host that is reached by SSH. Connections are opened when they are needed."""

    def __init__(self, alias: str, access: Access) -> None:
        self.alias, self.access = alias, access
        self._links: list[_Link] = []
        self._lock = threading.Lock()
        self._commanding = threading.Lock()

    def start(self, arguments: Sequence[str]) -> tuple[paramiko.Channel, Callable[[], None]]:
        """Start a long-running command. Return its channel, and a function that releases its place."""
        return self._start(arguments, self.access.settings.sessions)

    def _start(self, arguments: Sequence[str], most: int) -> tuple[paramiko.Channel, Callable[[], None]]:
        """Start a command on a connection that has at most `most` commands then."""
        while True:
            link, alone = self._reserve(most)
            try:
                return self._execute(link, arguments), self._releaser(link)
            except ChannelException as error:  # the server allows fewer sessions on a connection (MaxSessions)
                self._releaser(link)()
                link.full = True
                if alone:
                    what = f"the SSH server opens no session: {error.text}"
                    raise TestbedError(what, where=f"host {self.alias}", transient=True) from error
            except BaseException:
                self._releaser(link)()
                raise

    def _releaser(self, link: _Link) -> Callable[[], None]:
        """Return a function that releases a place on a connection, once."""
        places = [link]

        def release() -> None:
            with self._lock:
                while places:
                    places.pop().agents -= 1

        return release

    def command(self, arguments: Sequence[str], data: bytes = b"", output: IO[bytes] | None = None) -> bytes:
        """Run a command with the standard input `data`, and return its output, or write it to the file `output`.

        The time limit then applies to each pause between bytes. The TestbedError of a failed command has the last line
        of its standard error.
        """
        with self._commanding:  # so that one session for commands is enough
            channel, release = self._start(arguments, self.access.settings.sessions + 1)
            try:
                return self._converse(channel, data, output, arguments[0])
            finally:
                channel.close()
                release()

    def _converse(self, channel: paramiko.Channel, data: bytes, file: IO[bytes] | None, name: str) -> bytes:
        """Exchange the standard streams of a command until its end."""
        output, errors = bytearray(), bytearray()
        channel.settimeout(0.0)
        rest = data
        taken = system.monotonic()
        until = taken + self.access.settings.command_s
        while True:
            with contextlib.suppress(OSError):  # the channel takes no more now, or the command has ended
                while rest:
                    rest = rest[channel.send(rest[:32768]) :]
                    taken = system.monotonic()
                if not channel.eof_sent:
                    channel.shutdown_write()
            ended = channel.exit_status_ready()
            while channel.recv_ready():
                received = channel.recv(65536)
                if file is None:
                    output += received
                else:
                    file.write(received)
                    until = system.monotonic() + self.access.settings.command_s
            while channel.recv_stderr_ready():
                errors += channel.recv_stderr(65536)
            if ended and (channel.eof_received or channel.closed):
                break
            now = system.monotonic()
            if now > until or (rest and now > taken + self.access.settings.silence_s):
                what = f"{name} has not ended within {self.access.settings.command_s:g} s"
                if rest:
                    what = f"{name} has taken no data for {self.access.settings.silence_s:g} s"
                raise TestbedError(what, where=f"host {self.alias}", transient=True)
            channel.status_event.wait(0.01)
        status = channel.recv_exit_status()
        if status:
            last = errors.decode(errors="replace").strip().rpartition("\n")[2]
            transport = channel.get_transport()
            lost = status < 0 and not (transport and transport.is_active())
            how = "the connection was lost" if lost else f"{name} was killed" if status < 0 else f"{name} failed"
            raise TestbedError(last or how, where=f"host {self.alias}", transient=lost)
        return bytes(output)

    def close(self) -> None:
        """Close all connections."""
        with self._lock:
            links, self._links = self._links, []
        for link in links:
            with link.lock:
                if link.connection is not None:
                    link.connection.shut()

    def _reserve(self, most: int) -> tuple[_Link, bool]:
        """Return a connection with a place for one more command, and whether the command is alone there."""
        with self._lock:
            self._links = [link for link in self._links if link.agents or link.usable]
            found = next((link for link in self._links if link.agents < most and link.usable and not link.full), None)
            if found is None:
                found = _Link()
                self._links.append(found)
            found.agents += 1
            return found, found.agents == 1

    def _execute(self, link: _Link, arguments: Sequence[str]) -> paramiko.Channel:
        with link.lock:
            if link.connection is None:
                link.connection = self._connect()
            transport = link.connection.transport
        try:
            channel: paramiko.Channel = transport.open_session(timeout=self.access.settings.connect_s)
            timer = threading.Timer(self.access.settings.connect_s, channel.close)  # paramiko waits without a limit
            timer.start()
            try:
                channel.exec_command(f"exec {shlex.join(arguments)}")
            finally:
                timer.cancel()
        except ChannelException:
            raise
        except (paramiko.SSHException, EOFError, OSError) as error:
            what = f"the connection was lost: {str(error) or 'end of file'}"
            raise TestbedError(what, where=f"host {self.alias}", transient=True) from error
        return channel

    def _connect(self) -> CheckedConnection:
        """Connect. Try again after random pauses if the server closes the connection."""
        for pause_s in _pauses():
            connection = CheckedConnection(self.alias, self.access)
            try:
                with self.access.gate:
                    connection.open()
                return connection
            except _Dropped:
                connection.shut()
                if pause_s is None:
                    raise
            except BaseException:
                connection.shut()
                raise
            system.sleep(pause_s)
        raise AssertionError


def _pauses() -> Iterator[float | None]:
    """Yield the pause after each attempt to connect, s; None: the last attempt."""
    for attempt in range(ATTEMPTS - 1):
        yield system.current().uniform(0.5, 1.5) * PAUSE_S * 2**attempt
    yield None
