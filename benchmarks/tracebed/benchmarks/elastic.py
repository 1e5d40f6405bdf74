"""Ranks of a command whose number of nodes changes while it runs.

With `elastic`, a copy of the command starts on each node that the job gets, and is terminated on each node that the job
releases, as launchers such as torchrun and workers such as those of Dask expect it. With `dmr`, only the first node has
a copy: the command changes its own processes, and learns its size by the checks of DMR (`dmr_check_status`).
"""

from __future__ import annotations

import signal
import socket
import threading
import time
from functools import partial
from typing import Any

from tracebed.benchmarks.affinity import signal_descendants
from tracebed.benchmarks.dmr import Answer, SizeRange
from tracebed.benchmarks.dmr_manager import ResourceManager
from tracebed.benchmarks.supervised import CommandFollower, CommandLeader

TERMINATION_S = 5.0
"""Time that a copy on a released node has after SIGTERM, s. Then it is killed."""


class ElasticFollower(CommandFollower):
    """A rank whose copy of the command is terminated when its node is released."""

    def leave(self) -> None:
        """Terminate the copy. This rank ends with it."""
        self.left = time.monotonic()
        if not self.running:
            self.finish("released")
            return
        signal_descendants(self.watchdog.pid, signal.SIGTERM)
        late = threading.Timer(TERMINATION_S, self.mailbox.post, [partial(self.finish, "released")])
        late.daemon = True
        late.start()  # the end of the rank kills what is left of the copy

    def command_ended(self, status: int, reason: str) -> None:
        """Report the exit status, unless the copy was terminated."""
        if self.left is not None:
            self.finish("released")
        else:
            super().command_ended(status, reason)

    def _lost_leader(self) -> None:
        if self.left is None:
            super()._lost_leader()


class ElasticLeader(CommandLeader):
    """The rank on the first node, which the job never releases."""

    def resize(self, message: dict[str, Any]) -> None:
        """Change the members once all new ones have joined."""
        super(CommandLeader, self).resize(message)
        self._resize_if_ready()

    def _join(self, rank: str, cores: int, message: dict[str, Any], end: socket.socket) -> None:
        super()._join(rank, cores, message, end)
        self._resize_if_ready()

    def _iterate(self) -> None:
        super()._iterate()
        self._resize_if_ready()

    def _resize_if_ready(self) -> None:
        if self.pending is not None and self.running:
            self._apply_members()

    def _continue(self) -> None:
        """Do nothing: the copies of the command go on during a change."""

    def _resized(self) -> None:
        before = self.members
        super()._resized()
        self.awaited &= {*self.members}
        for member in self.members:
            if member not in before:
                self._start_copy(member)

    def _start_copy(self, member: str) -> None:
        self.awaited.add(member)
        self._send(member, type="go", iteration=0, units=(0, 0), behind=0.0)


class DmrLeader(ElasticLeader):
    """The rank whose command changes its own processes. The other ranks only hold their nodes."""

    size = 0
    """Number of nodes with which checks are answered."""

    def run(self) -> int:
        """Answer the checks of the command until the rank ends."""
        with ResourceManager(self._decide) as manager:
            self.given = {**self.given, **manager.variables}
            return super().run()

    def _iterate(self) -> None:
        self.size = len(self.members)
        self.awaited = {self.name}
        self.start_part(None, 0.0)
        self._resize_if_ready()

    def _start_copy(self, member: str) -> None:
        """Do nothing: the command starts its processes itself."""

    def _decide(self, pid: int, size: int, sizes: SizeRange) -> Answer:
        """Answer a check, in a thread. The check after a change has the new size, which completes the change."""
        self.mailbox.post(partial(self._checked, size))
        return Answer.between(size, self.size)

    def _move(self) -> None:
        """Leave the change to the command: its next checks are answered with the new number of nodes."""
        assert self.pending is not None
        self.holders, self.pending["held"] = self._holding(self.pending["members"]), False
        self.size = len(self.pending["members"])

    def _checked(self, size: int) -> None:
        if self.pending is not None and "held" in self.pending and size == self.size:
            self._resized()
