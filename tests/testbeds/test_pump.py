"""The pump: bytes between connections of a library and sockets that can be selected."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from tests.patience import GUARD_S, until
from tracebed.orchestrator.testbeds import pump as module
from tracebed.orchestrator.testbeds.pump import ChannelConnection, Pump, SocketConnection

PATTERN = bytes(range(256)) * 40_000  # 10 MB, more than every buffer between the ends


@pytest.fixture
def pump() -> Iterator[Pump]:
    pump = Pump()
    yield pump
    pump.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "pump"]


def carried(pump: Pump) -> tuple[socket.socket, socket.socket]:
    """Return the end of the user, and the far end of a connection that the pump carries."""
    near, far = socket.socketpair()
    ours = pump.carry(SocketConnection(near))
    ours.settimeout(GUARD_S)
    far.settimeout(GUARD_S)
    return ours, far


def received(sock: socket.socket) -> bytes:
    chunks = []
    while chunk := sock.recv(65536):
        chunks.append(chunk)
    return b"".join(chunks)


def test_bytes_and_ends_pass_in_both_directions(pump: Pump) -> None:
    ours, far = carried(pump)
    with ours, far:
        ours.sendall(b"question")
        assert far.recv(100) == b"question"
        ours.shutdown(socket.SHUT_WR)
        assert far.recv(100) == b""
        far.sendall(b"answer")  # half open
        assert ours.recv(100) == b"answer"
        far.close()
        assert ours.recv(100) == b""


@pytest.mark.parametrize("outward", [True, False])
def test_a_slow_reader_loses_no_bytes_and_does_not_stop_other_connections(pump: Pump, outward: bool) -> None:
    ours, far = carried(pump)
    source, sink = (ours, far) if outward else (far, ours)
    other, other_far = carried(pump)
    with ours, far, other, other_far:
        sender = threading.Thread(target=lambda: (source.sendall(PATTERN), source.shutdown(socket.SHUT_WR)))
        sender.start()
        for _ in range(20):  # the first connection is full, and is not read
            other.sendall(b"x")
            assert other_far.recv(1) == b"x"
        assert received(sink) == PATTERN
        sender.join()


def test_a_full_pump_sleeps(pump: Pump) -> None:
    ours, far = carried(pump)
    with ours, far:
        far.setblocking(False)

        def sleeps() -> bool:
            """Return whether the pump takes no more, and has nothing to do."""
            with contextlib.suppress(BlockingIOError):
                return not far.send(PATTERN)
            return not any(pump._selector.select(0) for _ in range(100))

        assert until(sleeps)
        assert [link.retry_at for link in pump._links] == [None]


def test_the_output_is_taken_out_of_frames(pump: Pump) -> None:
    near, far = socket.socketpair()
    kept = bytearray()

    def decode(data: bytes) -> bytes:
        kept.extend(data)
        return data.upper()

    with pump.carry(SocketConnection(near), decode) as ours, far:
        ours.settimeout(GUARD_S)
        far.sendall(b"abc")
        far.close()
        assert received(ours) == b"ABC" and kept == b"abc"


def test_an_error_of_the_library_ends_only_its_connection(pump: Pump) -> None:
    near, far = socket.socketpair()

    def broken(data: bytes) -> bytes:
        raise KeyError("frame")

    connection = SocketConnection(near)
    ours, other_far = carried(pump)
    with pump.carry(connection, broken) as bad, far, ours, other_far:
        bad.settimeout(GUARD_S)
        far.sendall(b"abc")
        assert bad.recv(10) == b""
        assert isinstance(connection.error, KeyError)
        ours.sendall(b"still here")
        assert other_far.recv(100) == b"still here"


class Channel:
    """A channel as of paramiko: one descriptor for output and standard error, and a window that is closed at first."""

    def __init__(self) -> None:
        self.output, self.errors, self.taken = b"", b"", b""
        self.window, self.offers = 0, list[float]()
        self.event = os.eventfd(0, os.EFD_NONBLOCK)
        self.ended = threading.Event()

    def settimeout(self, seconds: float) -> None:
        assert seconds == 0.0

    def fileno(self) -> int:
        return self.event

    def arrive(self, output: bytes = b"", errors: bytes = b"") -> None:
        self.output, self.errors = self.output + output, self.errors + errors
        os.eventfd_write(self.event, 1)

    def recv_stderr_ready(self) -> bool:
        return bool(self.errors)

    def recv_stderr(self, count: int) -> bytes:
        data, self.errors = self.errors, b""
        return data

    def recv(self, count: int) -> bytes:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.event)
        if not self.output:
            raise TimeoutError
        data, self.output = self.output, b""
        return data

    def send(self, data: bytes) -> int:
        self.offers.append(time.monotonic())
        if not self.window:
            raise TimeoutError
        self.taken += data
        return len(data)

    def shutdown_write(self) -> None:
        self.ended.set()

    def close(self) -> None:
        os.close(self.event)


def test_a_channel_whose_window_is_closed_is_offered_the_bytes_again(pump: Pump) -> None:
    channel, errors = Channel(), bytearray()
    with pump.carry(ChannelConnection(channel, errors.extend)) as ours:
        ours.settimeout(GUARD_S)
        channel.arrive(errors=b"warning")
        channel.arrive(output=b"hello")
        assert ours.recv(100) == b"hello" and errors == b"warning"
        ours.sendall(b"later")
        ours.shutdown(socket.SHUT_WR)

        def longest() -> float:
            offers = channel.offers.copy()
            return max((later - earlier for earlier, later in itertools.pairwise(offers)), default=0.0)

        assert until(lambda: longest() >= module.LONGEST_RETRY_S / 2)  # the pauses grow
        assert not channel.ended.is_set()
        channel.window = 100
        assert channel.ended.wait(GUARD_S)
        assert channel.taken == b"later"


def test_closing_the_pump_closes_its_connections() -> None:
    pump = Pump()
    ours, far = carried(pump)
    with ours, far:
        pump.close()
        pump.close()
        assert ours.recv(1) == b"" and far.recv(1) == b""
        with pytest.raises(RuntimeError, match="closed"):
            pump.carry(SocketConnection(far))
    Pump().close()  # without a connection
