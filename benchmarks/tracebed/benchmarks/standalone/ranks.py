"""Ranks of a program: processes of this node, with a barrier and a reduction."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from typing import Any, Protocol

from tracebed.ground.errors import TestbedError, TracebedError

LOOK_S = 0.001
"""Time between two calls of a rank that waits for others, s."""


class Reduce(Protocol):
    """A function that returns the sum of the values of all ranks. Each rank waits for all others."""

    def __call__(self, value: int, idle: Callable[[], object] | None = None) -> int:
        """Return the sum. `idle` is called again and again while this rank waits."""


Rank = Callable[[int, Reduce], Any]
"""The program of a rank: a function of the number of the rank. Its result can be pickled."""


def run_ranks(count: int, rank: Rank) -> list[Any]:
    """Run `count` ranks, and return their results. Rank 0 is this process; the others are forked.

    Raises:
        TestbedError: a rank has failed, or was killed. The other ranks are ended.
    """
    context = multiprocessing.get_context("fork")
    links: list[Connection] = []
    processes: list[ForkProcess] = []

    def reduce(value: int, idle: Callable[[], object] | None = None) -> int:
        total: int = value + sum(_received(number, link, idle) for number, link in enumerate(links, 1))
        for number, link in enumerate(links, 1):
            _sent(number, link, total)
        return total

    try:
        for number in range(1, count):
            ours, theirs = context.Pipe()
            links.append(ours)
            process = context.Process(target=_forked, name=f"rank {number}", args=(number, rank, links, theirs))
            process.start()
            processes.append(process)
            theirs.close()
        results = [rank(0, reduce)]
        results += [_received(number, link) for number, link in enumerate(links, 1)]
    except BaseException:
        for process in processes:
            process.terminate()
        raise
    finally:
        for link in links:
            link.close()
        for process in processes:
            process.join()
    return results


def _forked(number: int, rank: Rank, links: list[Connection], root: Connection) -> None:
    """Run a rank in a forked process. Its result, or its error, is sent to rank 0."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # rank 0 ends the others
    for link in links:
        link.close()  # so that rank 0 is missed as soon as it ends

    def reduce(value: int, idle: Callable[[], object] | None = None) -> int:
        root.send(value)
        _await(root, idle)
        return int(root.recv())

    try:
        result = rank(number, reduce)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        os._exit(1)  # rank 0 has ended
    except (TracebedError, OSError) as error:
        result = TestbedError(f"rank {number}: {error}")
    root.send(result)


def _await(link: Connection, idle: Callable[[], object] | None) -> None:
    """Wait for a message, or for the end of the other rank."""
    while idle is not None and not link.poll(LOOK_S):
        idle()


def _received(number: int, link: Connection, idle: Callable[[], object] | None = None) -> Any:
    try:
        _await(link, idle)
        value = link.recv()
    except (EOFError, OSError) as error:
        raise TestbedError(f"rank {number} has ended early") from error
    if isinstance(value, TestbedError):
        raise value
    return value


def _sent(number: int, link: Connection, value: int) -> None:
    try:
        link.send(value)
    except OSError as error:
        raise TestbedError(f"rank {number} has ended early") from error
