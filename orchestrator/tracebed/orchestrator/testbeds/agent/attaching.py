"""The socket through which another controller can take over an agent, and the command that joins this socket."""

from __future__ import annotations

import os
import select
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # not imported, so that `join` starts fast
    from pathlib import Path

CHUNK = 65536
NAME = "agent.sock"  # name of the socket in the private folder of the agent
ABSENT = "no agent listens at"  # beginning of the message of `join` if the agent has ended


class Listener:
    """A non-blocking socket that listens in the private folder of the agent."""

    def __init__(self, folder: Path) -> None:
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(str(folder / NAME))
        self._server.listen()
        self._server.setblocking(False)

    def fileno(self) -> int:
        """Return the descriptor, which is readable when a controller connects."""
        return self._server.fileno()

    def accept(self) -> int:
        """Return the descriptor of the next connection."""
        return self._server.accept()[0].detach()


def join(path: str) -> int | str:
    """Join standard input and output to the socket at `path` until the agent closes it. Return an exit status."""
    peer = socket.socket(socket.AF_UNIX)
    try:
        peer.connect(path)
    except (OSError, ValueError) as error:
        return f"{ABSENT} {path}: {error}"
    poll = select.poll()
    poll.register(0, select.POLLIN)
    poll.register(peer, select.POLLIN)
    try:
        while True:
            for descriptor, _ in poll.poll():
                if descriptor == 0:
                    if data := os.read(0, CHUNK):
                        peer.sendall(data)
                    else:
                        poll.unregister(0)
                        peer.shutdown(socket.SHUT_WR)
                elif data := peer.recv(CHUNK):
                    _write(data)
                else:
                    return 0
    except OSError as error:  # the agent was killed, or the output was closed
        return f"the connection to the agent ended: {error}"


def _write(data: bytes) -> None:
    """Write all of `data` to standard output."""
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(1, view) :]
        except BlockingIOError:  # another process has made the output non-blocking
            select.select((), (1,), ())
