"""Commands in containers: by `docker exec`, whose connection carries the input, the output and the standard error."""

from __future__ import annotations

import contextlib
import signal
import socket
import ssl
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any, cast

from tracebed.ground import system as world
from tracebed.ground.errors import TestbedError
from tracebed.orchestrator.testbeds.docker.engine import TIMEOUT_S, Engine
from tracebed.orchestrator.testbeds.pump import Pump, SocketConnection
from tracebed.orchestrator.testbeds.replay_folder import append_to

MARK = "TRACEBED_CHANNEL"
"""Environment variable by which the processes of a channel are found in their container."""
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
"""Program that kills the processes of a channel, also in other process groups. The program itself is not marked."""
PACK = """
import sys, tarfile
with tarfile.open(fileobj=sys.stdout.buffer, mode="w|") as archive:
    archive.add(sys.argv[1], arcname="")
"""
PYTHON = "python3"
HEADER = 8
"""Size of the header of a frame in the stream of an exec: stream, three zeros, length, bytes."""
STDOUT, STDERR = 1, 2


class ExecChannel:
    """A command in a container, as a channel of a provider.

    Args:
        container: ID of the container.
        command: the command and its arguments.
        environment: additional environment variables.
        pump: carries the bytes.
        log: file to which the standard error is appended.
        on_end: called once, at `kill`.

    Raises:
        TestbedError: the command cannot be started.
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
        self._mark = world.token_hex(8)
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
                run(self._engine, self._container, [PYTHON, "-I", "-S", "-c", KILL, self._mark])
        self._ended = True
        self._socket.close()
        self._on_end()


class Frames:
    """The stream of an exec, in which output and standard error alternate in frames.

    Args:
        log: file to which the standard error is appended. None: only its last line is kept.
    """

    def __init__(self, log: Path | None = None) -> None:
        self._log = log
        self._buffer = bytearray()
        self.last_line = ""
        """The last line of the standard error."""

    def output(self, data: bytes) -> bytes:
        """Return the output in the next bytes of the stream. Append the standard error in them to the log.

        Raises:
            OSError: the stream is invalid, or the log cannot be written.
        """
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


def run(
    engine: Engine, container: str, command: Sequence[str], output: Callable[[IO[bytes]], None] | None = None
) -> None:
    """Run a command in a container until it ends.

    Args:
        container: ID of the container.
        command: the command and its arguments.
        output: reads the output of the command to its end. None: the output is ignored.

    Raises:
        TestbedError: the command cannot be started, or fails (the message has its standard error), or `output` fails.
    """
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
