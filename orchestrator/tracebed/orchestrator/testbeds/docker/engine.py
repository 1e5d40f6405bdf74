"""Connections to container engines, Docker and Podman with its Docker-compatible socket, and commands in containers.

Commands run by `docker exec`, whose connection carries the input, the output and the standard error.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import tarfile
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast
from urllib.parse import SplitResult, urlsplit

from tracebed.ground import system
from tracebed.ground.errors import InputError, TestbedError
from tracebed.orchestrator.testbeds.pump import Pump, SocketConnection
from tracebed.orchestrator.testbeds.replay_folder import append_to

if TYPE_CHECKING:
    from docker import DockerClient

TIMEOUT_S = 60.0  # longest time without an answer of an engine to a request, s
TUNNEL_S = 30.0  # time in which an SSH connection to the host of an engine must be ready, s
CONNECTIONS = 32  # number of idle connections to an engine that are kept
# Version of Docker's API for the request of the engine's own version, supported by Docker 20.10 and Podman 4.
OLDEST_API = "1.41"
REMOTE_SOCKET = "/var/run/docker.sock"
# Files of a folder with TLS certificates, named as in Docker's `DOCKER_CERT_PATH`.
TLS_FILES = ("ca.pem", "cert.pem", "key.pem")
START = "start Docker (systemctl start docker), or set the address of an engine: `daemon:` or DOCKER_HOST"
_CHANGE = "in containers.conf, restart the service of Podman, and remove the containers: tracebed nodes down"
# Pattern in the message of an engine about its installation -> the mend. Seen with Podman 4.3.1 and 5.4.2.
OBSTACLES = {
    "cgroups in hybrid mode": f'install runc, set `runtime = "runc"` in [engine] {_CHANGE}',
    "container-init binary not found|catatonit": "install the package catatonit, which reaps processes in containers",
    "(?i)rlimit": 'set `default_ulimits = ["nofile=F:F", "nproc=P:P"]` in [containers] '
    f"{_CHANGE}. F and P are at most the hard limits in /proc/PID/limits of the running service",
}
MARK = "TRACEBED_CHANNEL"  # environment variable by which the processes of a channel are found in their container
# Program that kills the processes of a channel, also in other process groups. The program itself is not marked.
KILL = f"""
import os, signal, sys
mark = ("{MARK}=" + sys.argv[1]).encode()
found = True
while found:  # a process that is forked meanwhile is found by the next pass
    found = False
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        try:
            with open(f"/proc/{{pid}}/environ", "rb") as file:
                if mark in file.read().split(b"\\0"):
                    os.kill(int(pid), signal.SIGKILL)
                    found = True
        except OSError:
            pass
"""
PACK = """
import sys, tarfile
with tarfile.open(fileobj=sys.stdout.buffer, mode="w|") as archive:
    archive.add(sys.argv[1], arcname="")
"""
PYTHON = "python3"
HEADER = 8  # size of the header of a frame in the stream of an exec: stream, three zeros, length, bytes
STDOUT, STDERR = 1, 2


def check_address(address: str, tls: Path | None) -> str:
    """Return `address` if it is one of an engine; a TCP address has TLS certificates. Else raise ValueError.

    An address is `unix:///SOCKET`, `ssh://[USER@]HOST[:PORT]` or `tcp://HOST:PORT`.
    """
    try:
        url = urlsplit(address)
        port = url.port
    except ValueError as error:
        raise ValueError(f"daemon {address!r} is not an address: {error}") from error
    if url.query or url.fragment or url.password is not None:
        raise ValueError(f"daemon {address!r} has parts other than user, host, port and path")
    if tls is not None and url.scheme != "tcp":
        raise ValueError("`tls` is for a daemon with the address tcp://HOST:PORT")
    if url.scheme == "unix" and url.path.startswith("/") and not url.netloc:
        return address
    # A name that begins with a hyphen would be an option of the program ssh.
    valid = all(re.fullmatch(r"[\w][\w.:-]*", name) for name in (url.hostname or "", url.username or "x"))
    if url.scheme == "ssh" and valid and not re.search(r"[:\s]", url.path):
        return address
    if url.scheme == "tcp" and valid and port and not url.path and url.username is None:
        if tls is None:
            raise ValueError("a daemon at a TCP address needs `tls`: without TLS, every process could control it")
        return address
    raise ValueError(f"daemon {address!r} is not unix:///SOCKET, ssh://[USER@]HOST[:PORT][/SOCKET] or tcp://HOST:PORT")


class Engine:
    """A connection to a container engine. `where` is the place that error messages name.

    Without an address (see `check_address`), it is `DOCKER_HOST` of the environment, or the first socket of Docker or
    Podman on this machine. `tls` is the folder with the certificates for a TCP address.
    """

    def __init__(self, address: str | None, tls: Path | None, where: str) -> None:
        self.address, self.tls, self.where = address, tls, where
        self._tunnel: Tunnel | None = None
        self._client: DockerClient | None = None
        self._lock = threading.Lock()

    @property
    def client(self) -> DockerClient:
        """The client of the docker SDK. It connects at the first use, also after `close`."""
        with self._lock:
            if self._client is None:
                self._client = self._connect()
            return self._client

    def _connect(self) -> DockerClient:
        import docker
        from docker.tls import TLSConfig

        address, tls = (self.address, self.tls) if self.address else default_address()
        try:
            check_address(address, tls)
        except ValueError as error:
            raise InputError(str(error), where="DOCKER_HOST") from error
        files = [str((tls / name).expanduser().absolute()) for name in TLS_FILES] if tls else []
        with self.errors(f"no container engine answers at {address}", hint=START):
            if address.startswith("ssh:"):
                self._tunnel = Tunnel(urlsplit(address))
                address = f"unix://{self._tunnel.socket}"
            if address.startswith("unix:"):
                with socket.socket(socket.AF_UNIX) as probe:  # the SDK leaves a socket open that it cannot connect
                    probe.connect(urlsplit(address).path)
            config = TLSConfig(ca_cert=files[0], client_cert=(files[1], files[2]), verify=True) if files else False

            def client(version: str) -> DockerClient:
                made = docker.DockerClient(
                    address, version=version, timeout=int(TIMEOUT_S), tls=config, max_pool_size=CONNECTIONS
                )
                made.api.trust_env = False  # certificates and proxies of the environment are for web sites
                return made

            with contextlib.closing(client(OLDEST_API)) as first:
                version = str(first.version(api_version=False)["ApiVersion"])
            return client(version)

    @cached_property
    def here(self) -> bool:
        """Whether the containers run on this machine."""
        with self.errors("the facts of the container engine cannot be read"):
            return bool(self.client.info()["Name"] == os.uname().nodename)

    @cached_property
    def is_podman(self) -> bool:
        """Whether the engine is Podman."""
        with self.errors("the version of the container engine cannot be read"):
            version = self.client.version()
        return any(component["Name"].startswith("Podman") for component in version.get("Components", ()))

    def close(self) -> None:
        """Close the connection. It may be called repeatedly."""
        with self._lock:
            if self._client is not None:
                self._client.close()
                self._client = None
            if self._tunnel is not None:
                self._tunnel.close()
                self._tunnel = None

    @contextlib.contextmanager
    def errors(self, what: str, *, where: str | None = None, hint: str | None = None) -> Iterator[None]:
        """Convert the errors of the docker SDK into TestbedError with `what`, and the reason in one line.

        A message about the installation of the engine (`OBSTACLES`) has its mend in place of `hint`.
        """
        import docker.errors

        try:
            yield
        except (docker.errors.DockerException, OSError) as error:  # the errors of requests are OSErrors
            why = reason(error)
            mend = next((mend for pattern, mend in OBSTACLES.items() if re.search(pattern, why)), None)
            raise TestbedError(
                f"{what}: {why}",
                where=where or self.where,
                hint=mend or hint,
                transient=mend is None and _is_transient(error),
            ) from error


def default_address() -> tuple[str, Path | None]:
    """Return the address of the engine that the command `docker` would use, or else of Podman, and its certificates."""
    if address := os.environ.get("DOCKER_HOST"):
        folder = os.environ.get("DOCKER_CERT_PATH") if address.startswith("tcp:") else None
        return address, Path(folder) if folder else None
    own = os.environ.get("XDG_RUNTIME_DIR", f"/run/user/{os.getuid()}")
    standard = "/var/run/docker.sock"
    sockets = (standard, f"{own}/docker.sock", f"{own}/podman/podman.sock", "/run/podman/podman.sock")
    usable = (path for path in sockets if os.access(path, os.R_OK | os.W_OK))
    return f"unix://{next(usable, standard)}", None


def reason(error: Exception) -> str:
    """Return the reason of an error of the docker SDK in one line, without the wrappers of its libraries."""
    import docker.errors

    if isinstance(error, docker.errors.APIError) and error.explanation:
        return " ".join(str(error.explanation).split())
    if isinstance(error, docker.errors.BuildError):  # Podman names the cause only in the output of the step
        output = [str(entry["stream"]) for entry in error.build_log if "error" in str(entry.get("stream", ""))]
        return " ".join(" ".join([str(error.msg), *output[-1:]]).split())
    inner: BaseException | None = error
    while inner is not None:
        if isinstance(inner, OSError) and inner.strerror:
            return inner.strerror
        wrapped = [part for part in inner.args if isinstance(part, BaseException)]
        inner = wrapped[0] if wrapped else (inner.__cause__ or inner.__context__)
    return " ".join(str(error).split())


def _is_transient(error: Exception) -> bool:
    """Return whether a repeated request may succeed: not if the engine refused the request as invalid."""
    import docker.errors

    return not (isinstance(error, docker.errors.APIError) and error.is_client_error() and error.status_code != 409)


class Tunnel:
    """A socket on this machine that is connected to the socket of an engine on another host, by one SSH connection.

    The program `ssh` makes the connection, so its configuration applies: keys, known hosts, jumps. The remote command
    is `cat`, which ends with its input, so neither end outlives this process.
    """

    def __init__(self, url: SplitResult) -> None:
        """Open the connection. Raises OSError with the last message of ssh if that fails."""
        self._folder = Path(tempfile.mkdtemp(prefix="tracebed-"))
        self.socket = self._folder / "engine.sock"
        command = ["ssh", "-T", "-o", "BatchMode=yes", "-o", "ExitOnForwardFailure=yes", "-o", "ServerAliveInterval=15"]
        command += ["-o", f"ConnectTimeout={TUNNEL_S:.0f}", "-L", f"{self.socket}:{url.path or REMOTE_SOCKET}"]
        command += ["-l", url.username] if url.username else []
        command += ["-p", str(url.port)] if url.port else []
        log = self._folder / "ssh.log"
        try:
            with log.open("wb") as errors:
                self._process = subprocess.Popen(
                    [*command, "--", url.hostname or "", "cat"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    bufsize=0,
                    start_new_session=True,  # so that Ctrl-C at a terminal reaches only this process
                )
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise
        try:
            if not _echo(self._process):
                lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
                raise ConnectionError(lines[-1] if lines else "ssh ended without a message")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the connection. It may be called repeatedly."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        for end in (None, self._process.terminate, self._process.kill):
            if end is not None:
                end()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(2.0)
                break
        shutil.rmtree(self._folder, ignore_errors=True)


def _echo(process: subprocess.Popen[bytes]) -> bool:
    """Send a line to `cat`, and return whether the line has returned within `TUNNEL_S`."""
    import select

    assert process.stdin is not None and process.stdout is not None
    until = system.monotonic() + TUNNEL_S
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(b"\n")
    ready, _, _ = select.select([process.stdout], [], [], max(0.0, until - system.monotonic()))
    return bool(ready and process.stdout.read(1))


class ExecChannel:
    """A command in a container (by ID), as a channel of a provider. `on_end` is called once, at `kill`.

    The standard error is appended to the file `log`.
    """

    def __init__(
        self,
        engine: Engine,
        container: str,
        command: Sequence[str],
        environment: dict[str, str],
        pump: Pump,
        log: Path,
        on_end: Callable[[], None],
    ) -> None:
        self._engine, self._container, self._on_end = engine, container, on_end
        self._mark = system.token_hex(8)
        self._status: int | None = None
        self._ended = False
        api = engine.client.api
        with engine.errors("its agent cannot be started"):
            made = api.exec_create(container, list(command), stdin=True, environment={**environment, MARK: self._mark})
            self._id = str(made["Id"])
            stream = api.exec_start(self._id, socket=True)
        self._frames = Frames(log)
        self._socket = pump.carry(ExecConnection(stream), self._frames.output)
        self.reader = self.writer = self._socket.fileno()

    def poll(self) -> int | None:
        """Return the exit status, negative for a signal. None: the command is running, or its status is unknown."""
        if self._status is None and not self._ended:
            with contextlib.suppress(TestbedError), self._engine.errors("the command cannot be inspected"):
                facts = self._engine.client.api.exec_inspect(self._id)
                if not facts["Running"] and facts["ExitCode"] is not None:
                    status = int(facts["ExitCode"])
                    self._status = 128 - status if 128 < status < 128 + signal.NSIG else status
        return self._status

    def exit_reason(self) -> str:
        """Return how the command ended, the state of its container, and the last line of its standard error."""
        status = self.poll()
        how = "closed its output" if status is None else f"ended with status {status}"
        if status is not None and status < 0:
            how = f"was killed by {signal.Signals(-status).name}"
        if container := self._container_state():
            how += f" ({container})"
        return f"{how}: {self._frames.last_line}" if self._frames.last_line else how

    def _container_state(self) -> str:
        """Return why the container does not run; empty: it runs, or the engine does not answer."""
        if self._ended:
            return ""
        try:
            with self._engine.errors("the container cannot be inspected"):
                state = self._engine.client.api.inspect_container(self._container)["State"]
        except TestbedError as error:
            return "" if error.transient else "its container was removed"
        if state.get("OOMKilled"):
            return "its container ran out of memory"
        if state.get("Paused"):
            return "its container is paused"
        return "" if state["Running"] else f"its container has stopped with status {state['ExitCode']}"

    def close(self) -> None:
        """Close the input of the command."""
        if not self._ended:
            with contextlib.suppress(OSError):  # the connection has ended
                self._socket.shutdown(socket.SHUT_WR)

    def kill(self) -> None:
        """Kill the processes of the command in the container, if the engine allows it; release the connection."""
        if self._ended:
            return
        if self.poll() is None:
            with contextlib.suppress(TestbedError):  # the container is paused, stopped or removed
                run_in_container(self._engine, self._container, [PYTHON, "-I", "-S", "-c", KILL, self._mark])
        self._ended = True
        self._socket.close()
        self._on_end()


class Frames:
    """The stream of an exec, in which output and standard error alternate in frames.

    The standard error is appended to the file `log`; without one, only its last line is kept.
    """

    def __init__(self, log: Path | None = None) -> None:
        self._log = log
        self._buffer = bytearray()
        self.last_line = ""  # the last line of the standard error

    def output(self, data: bytes) -> bytes:
        """Return the output in the next bytes, and log the standard error. Invalid bytes are an OSError."""
        self._buffer += data
        output, errors = bytearray(), bytearray()
        while len(self._buffer) >= HEADER:
            kind, end = self._buffer[0], HEADER + int.from_bytes(self._buffer[4:HEADER], "big")
            if kind > STDERR:
                raise ConnectionError(f"stream {kind} of a command in a container is unknown")
            if len(self._buffer) < end:
                break
            (errors if kind == STDERR else output).extend(self._buffer[HEADER:end])
            del self._buffer[:end]
        if errors:
            if self._log is not None:
                with append_to(self._log) as log:
                    log.write(errors)
            lines = errors.decode(errors="replace").strip().splitlines()
            self.last_line = lines[-1] if lines else self.last_line
        return bytes(output)


class ExecConnection(SocketConnection):
    """The connection of an exec, taken from the HTTP connection of the docker SDK."""

    def __init__(self, stream: Any) -> None:
        self._response = stream._response  # its end would close the socket
        super().__init__(getattr(stream, "_sock", stream))
        self._early = b""
        with contextlib.suppress(ssl.SSLWantReadError):
            self._early = bytes(self._response.raw._fp.fp.peek())

    def receive(self) -> bytes:
        """Return the bytes that have arrived, first those that the SDK read with the end of the HTTP headers."""
        data, self._early = self._early, b""
        return data or super().receive()

    def finish(self) -> None:
        """Signal the end of the bytes to the engine. With TLS, this is the message `close_notify`."""
        if isinstance(self.socket, ssl.SSLSocket):
            self.socket.unwrap()  # the pump ignores the error that the other end is still open
        else:
            super().finish()

    def close(self) -> None:
        """Release the connection."""
        super().close()
        self._response.close()


def run_in_container(
    engine: Engine, container: str, command: Sequence[str], output: Callable[[IO[bytes]], None] | None = None
) -> None:
    """Run a command in a container until it ends. `output` reads its output to its end; None: the output is ignored."""
    api = engine.client.api
    refused: TestbedError | None = None
    with engine.errors(f"{command[0]} cannot be run in the container"):
        exec_id = api.exec_create(container, list(command))["Id"]
        with contextlib.closing(_Output(api.exec_start(exec_id, socket=True))) as stream:
            if output is not None:
                try:
                    output(cast(IO[bytes], stream))
                except TestbedError as error:  # the failure of the command may be its cause
                    refused = error
            while stream.read(tarfile.RECORDSIZE):
                pass
        status = api.exec_inspect(exec_id)["ExitCode"]
    if status:
        what = f"{command[0]} ended with status {status} in the container"
        last = stream.frames.last_line
        raise TestbedError(f"{what}: {last}" if last else what, where=engine.where)
    if refused is not None:
        raise refused


class _Output:
    """The output of a command as a file to read."""

    def __init__(self, stream: Any) -> None:
        self._connection = ExecConnection(stream)
        self._connection.socket.settimeout(TIMEOUT_S)
        self._buffer = bytearray()
        self.frames = Frames()

    def read(self, size: int) -> bytes:
        """Return the next `size` bytes, or fewer at the end. Raises OSError if the connection fails."""
        while len(self._buffer) < size and (data := self._connection.receive()):
            self._buffer += self.frames.output(data)
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        return data

    def close(self) -> None:
        """Release the connection."""
        self._connection.close()
