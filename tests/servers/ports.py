"""Free ports of the loopback, which servers of tests that run concurrently do not take from each other."""

from __future__ import annotations

import fcntl
import itertools
import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

FIRST, LAST, BLOCK = 20_000, 32_000, 200
"""Ports below those that the kernel gives to connections, in blocks. Each process has one block."""
_mine: Iterator[int] | None = None


def free_ports(count: int, address: str = "127.0.0.1") -> list[int]:
    """Return different free ports. No other process gets them from this function while this process runs."""
    global _mine
    _mine = _mine or _claim()
    found: list[int] = []
    for port in itertools.islice(_mine, BLOCK):
        with socket.socket() as probe:
            try:
                probe.bind((address, port))
            except OSError:
                continue
        found.append(port)
        if len(found) == count:
            return found
    raise AssertionError(f"fewer than {count} of {BLOCK} ports are free")


def _claim() -> Iterator[int]:
    """Return the ports of a block, repeatedly. The kernel releases the lock of the block when this process ends."""
    for first in range(FIRST, LAST, BLOCK):
        path = Path(tempfile.gettempdir(), f"tracebed-ports-{os.geteuid()}-{first}.lock")
        lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            continue
        return itertools.cycle(range(first, first + BLOCK))
    raise AssertionError("all blocks of ports are in use")
