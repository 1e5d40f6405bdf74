"""Real SSH servers for tests: on the loopback, or one in each of several network namespaces that a bridge joins.

with Sshd(folder) as server: ...                    # 127.0.0.1, a free port
with Network(folder, 3) as network: ...             # root: hosts h1 to h3, each with an address and a server
"""

from __future__ import annotations

import contextlib
import getpass
import os
import shlex
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Self

import pytest

from tests.patience import GUARD_S
from tests.servers.ports import free_ports

SEARCHED = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


def need(*programs: str, root: bool = False) -> None:
    """Skip the test if a program is missing, or if this user is not root."""
    packages = {"sshd": "openssh-server", "ssh-keygen": "openssh-client", "ip": "iproute2"}
    missing = sorted({packages[name] for name in programs if shutil.which(name, path=SEARCHED) is None})
    if missing:
        pytest.skip(f"not installed: apt-get install {' '.join(missing)}")
    if root and os.geteuid() != 0:
        pytest.skip("network namespaces need root")


def call(*command: str | Path) -> str:
    """Run a program and return its output."""
    done = subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PATH": SEARCHED},
    )
    assert done.returncode == 0, f"{command}: {done.stderr}"
    return done.stdout


def make_key(path: Path) -> Path:
    """Make a private key without passphrase, and its public key beside it."""
    call("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "test", "-f", path)
    return path


class Sshd:
    """An SSH server of this user, with a host key of its own, which accepts one key.

    Args:
        folder: folder for its files, which is created.
        address: address to listen on.
        port: port to listen on; None: a free one.
        namespace: name of the network namespace of the server; None: that of this process.
        mounts: arguments of `mount`, which the server and its sessions see alone; needs root.
        settings: lines of its configuration, by keyword.
    """

    def __init__(
        self,
        folder: Path,
        address: str = "127.0.0.1",
        port: int | None = None,
        namespace: str | None = None,
        mounts: Sequence[Sequence[str | Path]] = (),
        settings: Mapping[str, str] | None = None,
    ) -> None:
        need("sshd", "ssh-keygen")
        folder.mkdir(parents=True)
        self.folder, self.address, self.namespace, self.mounts = folder, address, namespace, mounts
        self.port = port or free_ports(1, address)[0]
        self.home = folder / "home"
        self.home.mkdir()
        self.key = make_key(folder / "user_key")
        self.host_key = make_key(folder / "host_key")
        self.settings = dict(settings or {})
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def name(self) -> str:
        """The name of the host in a file of known hosts."""
        return self.address if self.port == 22 else f"[{self.address}]:{self.port}"

    def known(self) -> str:
        """Return the line of the host for a file of known hosts."""
        kind, key, *_ = self.host_key.with_suffix(".pub").read_text().split()
        return f"{self.name} {kind} {key}\n"

    def config(self, alias: str, known_hosts: Path, *lines: str) -> str:
        """Return the entry of the host for an SSH configuration."""
        return (
            "\n    ".join(
                [
                    f"Host {alias}",
                    f"HostName {self.address}",
                    f"Port {self.port}",
                    f"User {getpass.getuser()}",
                    f"IdentityFile {self.key}",
                    f"UserKnownHostsFile {known_hosts}",
                    *lines,
                ]
            )
            + "\n"
        )

    def start(self) -> None:
        """Start the server, and wait until it listens. A connection for this test would be a session of its own."""
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # sshd needs it for the separation of privileges
        config = {
            "ListenAddress": self.address,
            "Port": str(self.port),
            "HostKey": str(self.host_key),
            "AuthorizedKeysFile": str(self.key.with_suffix(".pub")),
            "PidFile": "none",
            "StrictModes": "no",
            "UsePAM": "no",
            "PermitRootLogin": "yes",
            "PasswordAuthentication": "no",
            "SetEnv": f"HOME={self.home}",
            **self.settings,
        }
        file = self.folder / "sshd_config"
        file.write_text("".join(f"{key} {value}\n" for key, value in config.items()))
        program = shutil.which("sshd", path=SEARCHED)
        assert program is not None
        prefix = ["ip", "netns", "exec", self.namespace] if self.namespace else []
        if self.mounts:
            mount = "".join(f"{shlex.join(['mount', *map(str, each)])} && " for each in self.mounts)
            prefix += ["unshare", "--mount", "--propagation", "private", "sh", "-c", f'{mount}exec "$@"', "sh"]
        log = self.folder / "sshd.log"
        log.unlink(missing_ok=True)
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                [*prefix, program, "-D", "-e", "-f", str(file)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, "PATH": SEARCHED},
                start_new_session=True,
            )
        until = time.monotonic() + GUARD_S
        while time.monotonic() < until:
            assert self.process.poll() is None, log.read_text()
            if b"Server listening on" in log.read_bytes():
                return
            time.sleep(0.05)
        raise AssertionError(f"sshd does not listen: {log.read_text()}")

    def stop(self) -> None:
        """End the server. Its sessions stay."""
        if self.process is not None:
            self.process.terminate()
            self.process.wait()
            self.process = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class Network:
    """Hosts in network namespaces, joined by a bridge with this host, and a server in each. The tests must be root.

    Attributes:
        hidden: folder of this host that the hosts do not see: their file system is another one.
        hosts: the server of each host, by name: `h1`, `h2`, ...
        gateway: the address of this host in the network.
    """

    def __init__(self, folder: Path, count: int, settings: Mapping[str, str] | None = None) -> None:
        need("sshd", "ssh-keygen", "ip", root=True)
        self.folder, self.count, self.settings = folder, count, settings
        self.hidden = folder / "hidden"
        self.hosts: dict[str, Sshd] = {}
        self.link = ""
        self.gateway = ""

    def namespace(self, name: str) -> str:
        """Return the name of the network namespace of a host, or of the bridge."""
        return f"{self.link}-{name}"

    def cut(self, name: str) -> None:
        """Cut the link of a host."""
        call("ip", "-n", self.namespace("net"), "link", "set", name, "down")

    def restore(self, name: str) -> None:
        """Restore the link of a host."""
        call("ip", "-n", self.namespace("net"), "link", "set", name, "up")

    def __enter__(self) -> Self:
        self.hidden.mkdir(parents=True)
        try:
            subnet = self._make_bridge()
            for number in range(1, self.count + 1):
                name, address = f"h{number}", f"{subnet}.{number}"
                call("ip", "netns", "add", self.namespace(name))
                self._plug(name, self.namespace(name), "eth0", address)
                call("ip", "-n", self.namespace(name), "link", "set", "lo", "up")
                hide = [("-t", "tmpfs", "tmpfs", self.hidden)]
                self.hosts[name] = Sshd(self.folder / name, address, 22, self.namespace(name), hide, self.settings)
                self.hosts[name].start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _make_bridge(self) -> str:
        """Make a bridge with a free subnet of 198.18.0.0/15, which is for tests of networks, and return the subnet.

        The bridge is in a namespace of its own, because Docker filters what passes bridges of the host.
        """
        for number in range(256):
            self.link, subnet = f"tb{number}", f"198.18.{number}"
            with contextlib.suppress(AssertionError):  # another test uses this number
                call("ip", "netns", "add", self.namespace("net"))
                break
        else:
            raise AssertionError("no network can be made")
        call("ip", "-n", self.namespace("net"), "link", "add", "bridge", "type", "bridge")
        call("ip", "-n", self.namespace("net"), "link", "set", "bridge", "up")
        self.gateway = f"{subnet}.254"
        self._plug("here", str(os.getpid()), self.link, self.gateway)
        return subnet

    def _plug(self, port: str, namespace: str, link: str, address: str) -> None:
        """Connect a namespace, given by name or as the process in it, to a port of the bridge."""
        net = self.namespace("net")
        call("ip", "-n", net, "link", "add", port, "type", "veth", "peer", "name", link, "netns", namespace)
        call("ip", "-n", net, "link", "set", port, "master", "bridge", "up")
        inside = [] if namespace.isdigit() else ["-n", namespace]
        call("ip", *inside, "address", "add", f"{address}/24", "dev", link)
        call("ip", *inside, "link", "set", link, "up")

    def __exit__(self, *_: object) -> None:
        for name, server in self.hosts.items():
            server.stop()
            for pid in call("ip", "netns", "pids", self.namespace(name)).split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
        made = {line.split()[0] for line in call("ip", "netns", "list").splitlines()}
        for name in ("net", *(f"h{number}" for number in range(1, self.count + 1))):
            if self.namespace(name) in made:
                call("ip", "netns", "delete", self.namespace(name))


@contextlib.contextmanager
def deaf(address: str = "127.0.0.1") -> Iterator[int]:
    """Yield a port that accepts connections and never answers."""
    with socket.socket() as server:
        server.bind((address, 0))
        server.listen()
        yield int(server.getsockname()[1])
