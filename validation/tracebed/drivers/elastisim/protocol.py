"""The protocol between ElastiSim and its scheduler: JSON over a ZeroMQ PAIR socket, to which ElastiSim binds.

ElastiSim sends a message at each submission, end and scheduling point, and continues when it has received the reply.
The reply lists jobs with the nodes that they get, or with a kill flag. Source: the documentation of ElastiSim
(elastisim.github.io), and the messages of commit 26c03fb.
"""

from __future__ import annotations

import enum
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from tracebed.ground.errors import InputError

INVOKED = 0xFFEC4400
"""Code of a message that expects a reply."""
SCHEDULED = 0xFFEC4401
"""Code of a reply."""
FINISHED = 0xFFEC44FF
"""Code of the last message, after the last job."""
WAIT_MS = 100
"""Longest time for which a receiver blocks before it checks the process, ms."""
LAST_MS = 2000
"""Longest time for which the receiver waits for messages of a process that has ended, ms."""


class MessageReason(enum.IntEnum):
    """Reason of a message."""

    PERIODIC = 0
    """A multiple of the scheduling interval."""
    SUBMITTED = 1
    COMPLETED = 2
    KILLED = 3
    """ElastiSim killed the job at its walltime."""
    SCHEDULING_POINT = 4
    """The job is between two iterations, and can be reconfigured."""
    EVOLVING_REQUEST = 5
    RECONFIGURED = 6


class Invocation(NamedTuple):
    """A message of ElastiSim."""

    occasion: MessageReason
    time: float
    """Simulated time, s."""
    job: int
    """Number of the job in ElastiSim; -1 if periodic."""


@dataclass
class Reply:
    """The reply to a message."""

    kills: list[int] = field(default_factory=list)
    """Numbers of the jobs to kill."""
    nodes: dict[int, list[int]] = field(default_factory=dict)
    """Number of a job that starts or is reconfigured -> all its nodes, numbered from 0."""

    def encoded(self) -> bytes:
        """Return the reply as JSON. Kills come first, so that the nodes are free for the jobs that start."""

        def entry(job: int, nodes: list[int], kill: bool) -> dict[str, Any]:
            return {
                "id": job,
                "assigned_node_ids": nodes,
                "assigned_num_gpus_per_node": 0,
                "kill_flag": kill,
                "modified_runtime_args": False,
            }

        jobs = [entry(job, [], True) for job in self.kills]
        jobs += [entry(job, nodes, False) for job, nodes in self.nodes.items() if job not in self.kills]
        return json.dumps({"code": SCHEDULED, "jobs": jobs}).encode()


def decoded(message: bytes) -> Invocation | None:
    """Return a message of ElastiSim; None: the simulation is finished.

    Raises:
        InputError: the message is not one of the protocol.
    """
    try:
        content = json.loads(message)
        if content["code"] == FINISHED:
            return None
        if content["code"] == INVOKED:
            occasion = MessageReason(content["invocation_type"])
            return Invocation(occasion, float(content["time"]), int(content.get("job_id", -1)))
    except (ValueError, KeyError, TypeError):
        pass
    text = message[:80].decode(errors="replace")
    raise InputError(f"ElastiSim sent an unknown message: {text}", hint="use ElastiSim of commit 26c03fb")


class Connection:
    """The connection to ElastiSim, which may start later.

    Args:
        deadline: time at which `receive` gives up, `time.monotonic()`.
        alive: whether the process of ElastiSim still runs.
    """

    def __init__(self, socket_file: Path, deadline: float, alive: Callable[[], bool]) -> None:
        """Connect to the socket.

        Raises:
            InputError: pyzmq is not installed, or the path of the file is too long for a socket.
        """
        try:
            import zmq
        except ImportError as error:
            what = "pyzmq, which connects tracebed with ElastiSim, is not installed"
            raise InputError(what, hint="pip install pyzmq") from error
        self.address = f"ipc://{socket_file}"
        if len(os.fsencode(socket_file)) > zmq.IPC_PATH_MAX_LEN:
            raise InputError(
                "the path of the temporary folder is too long for a socket", hint="set TMPDIR to a shorter one"
            )
        self._deadline, self._alive = deadline, alive
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PAIR)
        self._socket.setsockopt(zmq.RECONNECT_IVL, 5)  # ms; ElastiSim binds later than this process connects
        self._socket.connect(self.address)
        self.last = time.monotonic()
        """Time of the last message, `time.monotonic()`."""

    def receive(self) -> Invocation | None:
        """Return the next message; None: the simulation is finished.

        Raises:
            NoMessageError: the process has ended without the last message, or the deadline has passed.
            InputError: the message is not one of the protocol.
        """
        alive = True
        while not self._socket.poll(WAIT_MS if alive else LAST_MS):
            if not alive:
                raise NoMessageError(timeout=False)
            alive = self._alive()  # a last message may still be on its way when the process has ended: poll once more
            if time.monotonic() > self._deadline:
                raise NoMessageError(timeout=True)
        if time.monotonic() > self._deadline:
            raise NoMessageError(timeout=True)
        self.last = time.monotonic()
        return decoded(self._socket.recv())

    def send(self, orders: Reply) -> None:
        """Reply to the last message."""
        self._socket.send(orders.encoded())

    def close(self) -> None:
        """Close the connection; messages that are not sent are dropped."""
        self._socket.close(linger=0)
        self._context.term()


class NoMessageError(Exception):
    """ElastiSim sent no further message."""

    def __init__(self, *, timeout: bool) -> None:
        super().__init__(timeout)
        self.timeout = timeout
        """Whether the deadline has passed; else the process has ended."""
