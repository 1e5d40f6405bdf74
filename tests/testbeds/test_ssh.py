"""The provider `ssh`, with real SSH servers on the loopback and in network namespaces."""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import paramiko
import psutil
import pytest

from tests.patience import GUARD_S, until
from tests.servers.ports import free_ports
from tests.servers.sshd import Sshd, call, deaf, make_key
from tracebed.ground.errors import InputError, TestbedError
from tracebed.orchestrator.testbeds import on_node, ssh
from tracebed.orchestrator.testbeds.installation import Installation, WheelCache, next_stamp
from tracebed.orchestrator.testbeds.nodes import Group, Node
from tracebed.orchestrator.testbeds.replay_folder import groups_made
from tracebed.orchestrator.testbeds.ssh import SshProvider, SshSettings, checked_host, ssh_config
from tracebed.testing import check_provider

PYTHONS = Path("~/.pyenv/versions").expanduser()


class Place:
    """A server, and the files with which a provider reaches it under the alias `web`."""

    wheels = WheelCache()
    """The wheel, which is made once for all tests."""

    def __init__(self, folder: Path, server: Sshd) -> None:
        self.folder, self.server = folder, server
        self.known = folder / "known_hosts"
        self.config = folder / "ssh_config"
        self.reachable()
        self.replay = folder / "replay"
        self.replay.mkdir()
        self.said: list[str] = []
        self.providers: list[SshProvider] = []

    def reachable(self) -> None:
        """Write an SSH configuration and a file of known hosts that are right."""
        self.known.write_text(self.server.known())
        self.config.write_text(self.server.config("web", self.known))

    def provider(self, nodes: int = 1, alias: str = "web", **settings: Any) -> SshProvider:
        """Return a provider of nodes on the server."""
        found = [Node(f"n{number}", 2, emulated=True, provider="ssh", address=alias) for number in range(nodes)]
        group = Group("g", "ssh", SshSettings(**{"config": str(self.config), **settings}), tuple(found), "mark")
        return self.reached(group)

    def reached(self, group: Group) -> SshProvider:
        """Return the provider of a group, which is closed at the end of the test."""
        provider = SshProvider(group, self.replay, self.said.append)
        provider._wheels = self.wheels
        self.providers.append(provider)
        return provider

    def up(self, nodes: int = 1, **settings: Any) -> bool:
        """Make the nodes ready. Return whether anything was made."""
        provider = self.provider(nodes, **settings)
        provider.up()
        return provider.made

    @property
    def connections(self) -> int:
        """The number of open connections of this process to the server.

        A process of the server outlives its connection by a while, so these are not counted.
        """
        mine = psutil.Process().net_connections("tcp")
        ports = [each.raddr.port for each in mine if each.raddr and each.status == psutil.CONN_ESTABLISHED]
        return ports.count(self.server.port)

    def signal_sessions(self, number: int) -> None:
        """Send a signal to the processes of the server that serve connections."""
        assert self.server.process is not None
        for child in psutil.Process(self.server.process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                child.send_signal(number)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    with Sshd(tmp_path_factory.mktemp("ssh") / "server") as running:
        yield running


@pytest.fixture
def place(server: Sshd, tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path, server)
    yield place
    for provider in place.providers:
        provider.close()
    if any(server.home.iterdir()):
        place.reachable()
        place.provider().down()
    assert list(server.home.iterdir()) == []


def lines(channel: Any, most_s: float = GUARD_S) -> Iterator[bytes]:
    """Yield the lines that arrive from a command."""
    os.set_blocking(channel.reader, False)
    rest, until = b"", time.monotonic() + most_s
    while time.monotonic() < until:
        try:
            data = os.read(channel.reader, 65536)
        except BlockingIOError:
            time.sleep(0.01)
            continue
        if not data:
            return
        *complete, rest = (rest + data).split(b"\n")
        yield from complete
    raise AssertionError("the command is silent")


# Host keys and credentials.


def test_an_unknown_host_key_is_refused_with_the_remedy(place: Place) -> None:
    place.known.write_text("")
    with pytest.raises(TestbedError) as caught:
        place.provider().up()
    assert f"host web: its host key is not in {place.known}" in str(caught.value)
    assert f"ssh-keyscan -p {place.server.port} 127.0.0.1 >> {place.known}" in str(caught.value)
    fingerprint = call("ssh-keygen", "-lf", place.server.host_key).split()[1]
    assert fingerprint in str(caught.value)
    assert not caught.value.transient
    assert place.known.read_text() == ""  # never added
    place.known.write_text(call("ssh-keyscan", "-p", str(place.server.port), "127.0.0.1"))
    assert place.up()


def test_a_changed_host_key_is_refused(place: Place, tmp_path: Path) -> None:
    other = make_key(tmp_path / "other").with_suffix(".pub").read_text().split()
    place.known.write_text(f"{place.server.name} {other[0]} {other[1]}\n")
    with pytest.raises(TestbedError, match="differs from the known one: another machine may have taken its place"):
        place.provider().up()


def test_a_host_key_alias_names_the_key(place: Place) -> None:
    place.known.write_text(place.server.known().replace(place.server.name, "rack-7"))
    place.config.write_text(place.server.config("web", place.known, "HostKeyAlias rack-7"))
    assert place.up()


def test_the_group_may_name_the_file_of_host_keys(place: Place, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.write_text("")
    with pytest.raises(TestbedError, match="is not in"):
        place.provider(known_hosts=str(empty)).up()


def test_a_wrong_key_is_refused(place: Place, tmp_path: Path) -> None:
    wrong = make_key(tmp_path / "wrong")
    place.config.write_text(place.server.config("web", place.known).replace(str(place.server.key), str(wrong)))
    with pytest.raises(TestbedError, match=r"host web: the SSH server refuses the keys of user .*ssh-add") as caught:
        place.provider().up()
    assert not caught.value.transient


def test_the_group_may_name_a_key(place: Place) -> None:
    place.config.write_text(place.server.config("web", place.known).replace("IdentityFile", "# IdentityFile"))
    with pytest.raises(TestbedError, match="refuses the keys"):
        place.provider().up()
    assert place.up(identity_file=str(place.server.key))


# Hosts that do not answer.


def test_a_missing_key_is_an_error_with_the_remedy(place: Place, tmp_path: Path) -> None:
    absent = tmp_path / "absent"
    what = rf"host web: {absent} cannot be read: No such file or directory \(set `identity_file` or IdentityFile"
    with pytest.raises(TestbedError, match=what):
        place.up(identity_file=str(absent))


def test_a_closed_port_is_an_error_that_may_pass(place: Place) -> None:
    with pytest.raises(TestbedError, match=r"host web: port [0-9]+ cannot be reached: Connection refused") as caught:
        place.provider(port=free_ports(1)[0]).up()
    assert caught.value.transient


def test_a_host_that_never_answers_is_given_up_after_connect_s(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssh, "ATTEMPTS", 1)
    with deaf() as port, pytest.raises(TestbedError) as caught:
        place.provider(port=port, connect_s=1.0).up()
    assert caught.value.transient
    assert str(caught.value) == f"host web: no SSH server answers on port {port} within 1 s"


def test_a_host_whose_banner_is_late_does_not_answer_either(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine the wait for the banner may end before the wait for the connection."""

    def late(transport: paramiko.Transport) -> None:
        try:
            raise TimeoutError
        except TimeoutError as error:
            raise paramiko.SSHException(f"Error reading SSH protocol banner{error}")  # noqa: B904  as paramiko does

    monkeypatch.setattr(ssh, "ATTEMPTS", 1)
    monkeypatch.setattr(paramiko.Transport, "_check_banner", late)
    with deaf() as port, pytest.raises(TestbedError, match=f"no SSH server answers on port {port} within 9 s"):
        place.provider(port=port, connect_s=9.0).up()


def test_an_unknown_name_is_an_error(place: Place) -> None:
    with pytest.raises(TestbedError, match=r"the address of 'no-such-host.invalid' is unknown"):
        place.provider(alias="no-such-host.invalid").up()


def test_a_command_that_does_not_end_is_given_up_after_command_s(place: Place) -> None:
    provider = place.provider(command_s=1.0)
    with pytest.raises(TestbedError, match="sleep has not ended within 1 s"):
        provider._hosts["web"].command(["sleep", "60"])


# The SSH configuration.


def test_stamps_grow_when_the_clock_is_set_back(monkeypatch: pytest.MonkeyPatch) -> None:
    first = next_stamp()
    monkeypatch.setattr(time, "time", lambda: 0.0)
    assert first < next_stamp() < next_stamp()


@pytest.mark.slow
def test_a_command_that_keeps_sending_to_a_file_is_not_given_up(place: Place, tmp_path: Path) -> None:
    provider = place.provider(command_s=2.5)
    host = provider._hosts["web"]
    slow = ["sh", "-c", "for i in 1 2 3 4 5 6 7 8; do echo $i; sleep 0.5; done"]
    with open(tmp_path / "output", "w+b") as output:
        assert host.command(slow, output=output) == b""
        output.seek(0)
        assert output.read().split() == [b"%d" % number for number in range(1, 9)]
    with open(tmp_path / "output", "w+b") as output, pytest.raises(TestbedError, match="has not ended within"):
        host.command(["sh", "-c", "echo 1; sleep 60"], output=output)


@pytest.mark.parametrize("entry", ["ProxyCommand touch {}", "Match exec 'touch {}'\n    User x"])
def test_an_ssh_configuration_from_a_stranger_runs_no_command(place: Place, tmp_path: Path, entry: str) -> None:
    trap = tmp_path / "trap"
    place.config.write_text(place.server.config("web", place.known, entry.format(trap)))
    with pytest.raises(InputError, match=r"ssh_config:\d+: the SSH configuration runs a command on this machine"):
        place.provider()
    assert not trap.exists()


def test_a_trusted_ssh_configuration_may_run_a_proxy_command(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    proxy = place.folder / "proxy.py"
    proxy.write_text(PROXY)
    command = f"ProxyCommand {sys.executable} {proxy} %h %p"
    place.config.write_text(place.server.config("web", place.known, command))
    monkeypatch.setattr("tracebed.orchestrator.testbeds.ssh_config.TRUSTED", (str(place.folder),))
    assert place.up()
    assert "connected" in (place.folder / "proxy.log").read_text()


PROXY = """
import pathlib, selectors, socket, sys, os
there = socket.create_connection((sys.argv[1], int(sys.argv[2])))
pathlib.Path(__file__).with_suffix(".log").write_text("connected")
watch = selectors.DefaultSelector()
watch.register(0, selectors.EVENT_READ, (0, there.fileno()))
watch.register(there, selectors.EVENT_READ, (there.fileno(), 1))
while True:
    for key, _ in watch.select():
        data = os.read(key.data[0], 65536)
        if not data:
            sys.exit()
        os.write(key.data[1], data)
"""


@pytest.mark.parametrize(
    "line",
    ['Match=exec "touch {}"', 'match = "exec" "touch {}"', 'Match host a !exec "touch {}"', "ProxyCommand=touch {}"],
)
def test_no_spelling_of_a_command_in_a_configuration_is_overlooked(tmp_path: Path, line: str) -> None:
    file, trap = tmp_path / "config", tmp_path / "trap"
    file.write_text(f"Host a\n  HostName 127.0.0.1\n{line.format(trap)}\n")
    with pytest.raises(InputError, match=r"config:3: the SSH configuration runs a command on this machine"):
        ssh_config(file).base_ssh_config.lookup("a")
    assert not trap.exists()


def test_a_linked_configuration_in_a_trusted_folder_is_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Debian 13 links a file of systemd with a ProxyCommand into /etc/ssh/ssh_config.d."""
    system, elsewhere = tmp_path / "etc", tmp_path / "systemd"
    for folder in (system / "ssh_config.d", elsewhere):
        folder.mkdir(parents=True)
    (elsewhere / "proxy.conf").write_text("Host unix/*\n  ProxyCommand proxy %h %p\n")
    (elsewhere / "plain.conf").write_text("Host a\n  ProxyCommand other %h\n")
    (system / "ssh_config.d" / "20-proxy.conf").symlink_to(elsewhere / "proxy.conf")
    own = system / "ssh_config"
    own.write_text(
        f"Include {system}/ssh_config.d/*.conf\nInclude {elsewhere}/plain.conf\nHost a\n  HostName 127.0.0.1\n"
    )
    with pytest.raises(InputError, match=r"20-proxy.conf:2: the SSH configuration runs a command on this machine"):
        ssh_config(own)
    monkeypatch.setattr("tracebed.orchestrator.testbeds.ssh_config.TRUSTED", (str(system),))
    assert ssh_config(own).base_ssh_config.lookup("unix/x")["proxycommand"] == "proxy unix/x 22"
    assert ssh_config(own).base_ssh_config.lookup("a")["proxycommand"] == "other 127.0.0.1"
    (tmp_path / "strange").symlink_to(own)
    assert ssh_config(tmp_path / "strange").base_ssh_config.lookup("a")["hostname"] == "127.0.0.1"
    with pytest.raises(InputError, match=r"plain.conf:2: the SSH configuration runs"):
        ssh_config(elsewhere / "plain.conf")


def test_a_missing_ssh_configuration_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot read the SSH configuration"):
        ssh_config(tmp_path / "absent")


@pytest.mark.parametrize("name", ["-oProxyCommand=x", "a b", "a;b", "user@host", "$(x)", "", "a:22"])
def test_an_invalid_name_of_a_host_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="is invalid"):
        checked_host(name)


@pytest.mark.parametrize("name", ["n1", "a.example.org", "10.0.0.1", "fe80::1"])
def test_names_and_addresses_of_hosts_are_accepted(name: str) -> None:
    assert checked_host(name) == name


# Provisioning.


def test_up_installs_once_and_down_removes_everything(place: Place) -> None:
    assert place.up(nodes=3)
    assert place.said == ["host web: tracebed is installed"]
    folder = place.server.home / ".cache" / "tracebed" / "mark"
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    assert folder.stat().st_mode & 0o777 == 0o700
    assert not place.up(nodes=3)
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
    place.provider().down()
    place.provider().down()
    assert list(place.server.home.iterdir()) == []


def test_what_is_made_is_noted_before_it_is_made(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A controller that is killed during `up` has noted what the resumed replay must remove."""
    noted: list[set[str]] = []
    work = Installation._on_node

    def on_node(installation: Installation, verb: str, *arguments: str, data: bytes = b"") -> bytes:
        if verb == "install":
            noted.append(groups_made(place.replay))
        return work(installation, verb, *arguments, data=data)

    monkeypatch.setattr(Installation, "_on_node", on_node)
    assert place.up()
    assert noted == [{"g"}]
    assert not place.up()


def test_down_keeps_the_folders_of_others(place: Place) -> None:
    kept = place.server.home / ".cache" / "other"
    kept.mkdir(parents=True)
    assert place.up()
    place.provider().down()
    assert kept.exists()
    assert not (kept.parent / "tracebed").exists()
    kept.rmdir()
    kept.parent.rmdir()


def test_down_leaves_a_parent_folder_that_others_use_now(place: Place, tmp_path: Path) -> None:
    parent = tmp_path / "made"
    place.provider(folder=str(parent / "a")).up()
    place.provider(folder=str(parent / "b")).up()
    place.provider(folder=str(parent / "a")).down()
    (parent / "thesis.tex").touch()
    assert sorted(path.name for path in parent.iterdir()) == [".tracebed-parent", "b", "thesis.tex"]
    place.provider(folder=str(parent / "b")).down()
    assert [path.name for path in parent.iterdir()] == ["thesis.tex"]


def test_a_folder_that_another_host_makes_meanwhile_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other host marks the folder between the two looks of this one. Then the folder counted as a stranger's."""
    listed = Path.iterdir

    def mark_and_list(path: Path) -> Iterator[Path]:
        (path / on_node.MADE).touch()
        return listed(path)

    folder, wheel = tmp_path / "shared", b"not a wheel"
    folder.mkdir()
    monkeypatch.setattr(Path, "iterdir", mark_and_list)
    monkeypatch.setattr("os.umask", lambda mask: mask)  # that of the tests
    with pytest.raises(zipfile.BadZipFile):  # after the folder was accepted
        on_node.install(folder, hashlib.sha256(wheel).hexdigest()[:12], wheel)


def test_a_folder_with_other_files_is_not_used(place: Place, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.tex").touch()
    with pytest.raises(TestbedError, match=r"host web: .*mine has files that tracebed did not create"):
        place.provider(folder=str(mine)).up()
    with pytest.raises(TestbedError, match="files that tracebed did not create"):
        place.provider(folder=str(mine)).down()
    assert [path.name for path in mine.iterdir()] == ["thesis.tex"]


def test_another_wheel_is_installed_beside_the_first(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    first = place.provider()
    first.up()
    monkeypatch.setattr("tracebed.orchestrator.testbeds.wheelhouse.EPOCH", (1990, 1, 1, 0, 0, 0))
    second = place.provider()
    second._wheels = WheelCache()
    second.up()
    assert second.made
    assert first._installations["web"]._facts["environment"] != second._installations["web"]._facts["environment"]


def test_many_hosts_may_share_the_folder(place: Place) -> None:
    """A home on a network file system: several hosts unpack the same wheel at once."""
    aliases = [f"web{number}" for number in range(6)]
    place.config.write_text(place.server.config(" ".join(aliases), place.known))
    nodes = tuple(Node(alias, 1, emulated=True, provider="ssh") for alias in aliases)
    group = Group("g", "ssh", SshSettings(config=str(place.config)), nodes, "mark")
    place.reached(group).up()
    folder = place.server.home / ".cache" / "tracebed" / "mark"
    assert sorted(path.name.partition("-")[0] for path in folder.iterdir()) == [".tracebed", "env"]


def test_a_damaged_wheel_is_not_installed(place: Place) -> None:
    provider = place.provider()
    installation = provider._installations["web"]
    with pytest.raises(TestbedError, match="the wheel was damaged in transfer"):
        installation._on_node("install", "0" * 16, data=b"not the wheel")


def test_a_missing_python_is_an_error_with_the_remedy(place: Place) -> None:
    with pytest.raises(TestbedError, match=r"host web: .*python3\.99.*\(install Python 3\.11 or newer there, or set"):
        place.provider(python="/opt/python3.99/bin/python").up()


@pytest.mark.parametrize("version", ["3.6", "3.9"])
def test_an_old_python_is_refused(place: Place, version: str) -> None:
    old = next(PYTHONS.glob(f"{version}.*/bin/python3"), None)
    if old is None:
        pytest.skip(f"no Python {version} in {PYTHONS}")
    with pytest.raises(TestbedError, match=f"host web: Python {version} is too old; tracebed needs 3.11 or newer"):
        place.provider(python=str(old)).up()


def test_an_old_kernel_and_a_full_disk_are_refused(place: Place) -> None:
    installation = place.provider()._installations["web"]
    good = {"system": "linux", "kernel": "4.18.0-553.el8", "writable": True, "free_mib": 1000, "folder": "/x"}
    installation._check(good)
    with pytest.raises(TestbedError, match=r"host web: its system is linux 3.10.0-1160, not Linux 4.18 or newer"):
        installation._check({**good, "kernel": "3.10.0-1160"})
    with pytest.raises(TestbedError, match="its system is darwin"):
        installation._check({**good, "system": "darwin", "kernel": "23.1.0"})
    with pytest.raises(TestbedError, match="has 3 MiB of free space"):
        installation._check({**good, "free_mib": 3})


# Fan-out.


def test_48_connections_at_once_to_a_default_sshd(place: Place) -> None:
    """With one connection a node, all nodes are reached, although the server drops connections (MaxStartups)."""
    provider = place.provider(nodes=48, sessions=1)
    provider.up()
    channels: list[Any] = []
    errors: list[TestbedError] = []

    def run(node: Node) -> None:
        try:
            channels.append(provider._hosts["web"].start(["cat"]))
        except TestbedError as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(node,)) for node in provider.group.nodes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(channels) == 48
    assert until(lambda: place.connections == 48)  # threads close first attempts that failed under load


def test_nodes_of_a_host_share_connections(place: Place) -> None:
    provider = place.provider(nodes=48)
    provider.up()
    channels = [provider._hosts["web"].start(["cat"]) for _ in range(48)]
    assert len(channels) == 48
    assert until(lambda: place.connections == 6)


def test_a_server_with_few_sessions_gets_more_connections(tmp_path: Path) -> None:
    with Sshd(tmp_path / "server", settings={"MaxSessions": "2"}) as server:
        place = Place(tmp_path, server)
        provider = place.provider()
        host = provider._hosts["web"]
        assert len([host.start(["cat"]) for _ in range(5)]) == 5
        assert host.command(["echo", "hello"]) == b"hello\n"
        assert until(lambda: place.connections == 3)
        provider.close()


def test_a_server_that_does_not_start_a_command_is_given_up_after_connect_s(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection stays open, and paramiko has no limit for the answer."""
    start = paramiko.Channel.exec_command

    def stopped(channel: paramiko.Channel, command: str) -> None:
        place.signal_sessions(signal.SIGSTOP)
        start(channel, command)

    host = place.provider()._hosts["web"]
    assert host.command(["echo", "hello"]) == b"hello\n"
    impatient = host.access.settings.model_copy(update={"connect_s": 1.0})
    monkeypatch.setattr(host, "access", replace(host.access, settings=impatient))
    monkeypatch.setattr(paramiko.Channel, "exec_command", stopped)
    try:
        with pytest.raises(TestbedError, match="host web: the connection was lost: Channel closed"):
            host.command(["echo", "hello"])
    finally:
        place.signal_sessions(signal.SIGCONT)


def test_a_released_place_is_used_again(place: Place) -> None:
    provider = place.provider(sessions=2)
    host = provider._hosts["web"]
    for _ in range(10):
        channel, release = host.start(["true"])
        channel.close()
        release()
        release()
    assert until(lambda: place.connections == 1)


@pytest.mark.slow
def test_the_provider_passes_the_checks(place: Place) -> None:
    check_provider(SshProvider, place.provider(3).group)
