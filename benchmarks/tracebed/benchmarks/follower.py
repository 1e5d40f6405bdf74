"""A follower: a rank of a malleable job that follows the messages of the leader (`leader.py`)."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from functools import partial
from multiprocessing import AuthenticationError
from multiprocessing.connection import answer_challenge, deliver_challenge
from typing import Any

from tracebed.benchmarks import application_data, state
from tracebed.benchmarks.connections import Data, Peer, handshake, tune
from tracebed.benchmarks.lines import encode
from tracebed.benchmarks.rank import BenchmarkRank


class Follower(BenchmarkRank):
    """A rank that follows the messages of the leader."""

    def begin(self) -> None:
        """Join the leader."""
        try:
            server = socket.socket(getattr(socket, self.launch.family))
            tune(server)
            server.connect(self.launch.address)
            with handshake(server) as link:
                answer_challenge(link, self.launch.authkey)
                deliver_challenge(link, self.launch.authkey)
                link.send_bytes(encode(self._join()))
        except (AuthenticationError, EOFError, OSError) as error:
            self.fail(f"cannot join the leader at {self.launch.address}: {str(error) or type(error).__name__}")
            return
        self.link = Peer(self.selector, server, self._from_leader, self._lost_leader)
        self.beat("joined", changed=True)

    def _join(self) -> dict[str, Any]:
        """Return the first message of this rank."""
        return {
            "type": "join",
            "rank": self.name,
            "cores": len(self.workers.cpus),
            "holds": self.launch.duty > 0,
            "spawn_s": None if self.launch.received is None else time.monotonic() - self.launch.received,
        }

    def draw(self, cores: int) -> None:
        """Request chunks from the leader, one for each of `cores`."""
        self._send(type="draw", cores=cores)

    def part_ended(self, units: int, seconds: float) -> None:
        """Report the completed units, and the number of cores for the next part."""
        self.sample_work()
        self.when_holding(partial(self._report, units, seconds))

    def _report(self, units: int, seconds: float) -> None:
        if self.data and (results := self.data.results()):
            self.link.send({"type": "results"}, results)
        self._send(
            type="done",
            units=units,
            checksum=self.workers.take_checksum(),
            seconds=seconds + self.reconfigured(),
            cores=len(self.workers.cpus),
        )
        self.beat("running")

    def _send(self, **message: Any) -> None:
        self.link.send(message)

    def leave(self) -> None:
        """End this rank: the leader has released it."""
        self.left = time.monotonic()
        self.finish("released")

    def _lost_leader(self) -> None:
        self.fail("lost the connection to the leader")

    def _from_leader(self, message: dict[str, Any], data: Data) -> None:
        if state.answer(self.state, message, data, self.link.send):
            return
        if self.data and application_data.answer(self.data, message, data, self.link.send):
            return
        match message["type"]:
            case "go":
                self.when_holding(partial(self._go, **message))
            case "grant":
                self.granted(message["shares"], message["last"])
            case "leave":
                self.leave()
            case "end":
                self.finish()

    def _go(self, iteration: int, units: Sequence[int] | None, behind: float, **_: Any) -> None:
        self.iteration = iteration
        self.start_part(self.shares(None if units is None else range(*units)), behind)
