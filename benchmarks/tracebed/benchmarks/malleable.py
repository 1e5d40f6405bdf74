"""The main loop of all benchmarks: serial part, parallel part, malleability point.

A job has one rank process per node; a rank has the name of its node. The leader accepts the other ranks (followers),
starts each part, and distributes the work; the leader is never released. In each iteration, the leader does the serial
part on one core, then all cores of all ranks do the parallel part. At the malleability point, ranks join and leave and
masks change. Ranks do not restart for a resize. The leader checks that no work is lost or done twice.

Messages from follower to leader: join, draw, done. Messages from leader to follower: go, grant, leave, end. On each
connection, both ranks first prove that they have the key of the job.
"""

from __future__ import annotations

import selectors
import socket
import threading
import time
from collections.abc import Sequence
from functools import partial
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from typing import Any

from tracebed.benchmarks.kernels import Kernel
from tracebed.benchmarks.lines import decode, encode
from tracebed.benchmarks.program import Launch, split
from tracebed.benchmarks.rank import BenchmarkRank, Control
from tracebed.benchmarks.workers import MODULUS

BACKLOG = 4096
"""Largest number of followers that wait to be accepted. It is the largest number that Linux permits by default."""
CUT_S = 10
"""Time after which a connection between ranks on different machines is lost if the network does not carry it, s."""
PROGRESS_S = 0.5
"""Shortest time between two progress messages, s."""


def run(launch: Launch, control: Control, kernel: Kernel) -> int:
    """Run one rank until its job ends or releases it, and return the exit status of the process."""
    return (Leader if launch.leader else Follower)(launch, control, kernel).run()


def _linked(peer: socket.socket) -> Connection:
    """Return a connection over the socket `peer`."""
    _tune(peer)
    return Connection(peer.detach())


def _tune(peer: socket.socket) -> None:
    """Let a TCP socket send short messages without delay, and fail if the network is cut for `CUT_S`."""
    if peer.family == socket.AF_INET:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        tcp = {
            socket.TCP_NODELAY: 1,
            socket.TCP_KEEPIDLE: CUT_S // 2,
            socket.TCP_KEEPINTVL: 1,
            socket.TCP_KEEPCNT: CUT_S // 2,
            socket.TCP_USER_TIMEOUT: 1000 * CUT_S,
        }
        for option, value in tcp.items():
            peer.setsockopt(socket.IPPROTO_TCP, option, value)


class Follower(BenchmarkRank):
    """A rank that follows the messages of the leader."""

    def begin(self) -> None:
        """Join the leader."""
        try:
            server = socket.socket(getattr(socket, self.launch.family))
            _tune(server)
            server.connect(self.launch.address)
            self.link = _linked(server)
            answer_challenge(self.link, self.launch.authkey)
            deliver_challenge(self.link, self.launch.authkey)
        except (AuthenticationError, EOFError, OSError) as error:
            self.fail(f"cannot join the leader at {self.launch.address}: {str(error) or type(error).__name__}")
            return
        self.selector.register(self.link, selectors.EVENT_READ, self._from_leader)
        self._send(type="join", rank=self.name, cores=len(self.workers.cpus))
        self.beat("joined", changed=True)

    def draw(self, cores: int) -> None:
        """Request chunks from the leader, one for each of `cores`."""
        self._send(type="draw", cores=cores)

    def part_ended(self, units: int, seconds: float) -> None:
        """Report the completed units, and the number of cores for the next part."""
        self.sample_work()
        self.apply_mask()
        self._send(
            type="done",
            units=units,
            checksum=self.workers.take_checksum(),
            seconds=seconds + self.reconfigured(),
            cores=len(self.workers.cpus),
        )
        self.beat("running")

    def _send(self, **message: Any) -> None:
        try:
            self.link.send_bytes(encode(message))
        except OSError:
            self.fail("lost the connection to the leader")

    def _from_leader(self) -> None:
        try:
            message = decode(self.link.recv_bytes())
        except (EOFError, OSError):
            self.fail("lost the connection to the leader")
            return
        match message["type"]:
            case "go":
                self.iteration = message["iteration"]
                units = message["units"]
                self.start_part(self.shares(None if units is None else range(*units)), message["behind"])
            case "grant":
                self.granted(message["shares"], message["last"])
            case "leave":
                self.finish("released")
            case "end":
                self.finish()


class Leader(BenchmarkRank):
    """The rank that controls the job."""

    def __init__(self, launch: Launch, control: Control, kernel: Kernel) -> None:
        """Start with the members of `launch`."""
        super().__init__(launch, control, kernel)
        self.members = list(launch.members)
        self.links: dict[str, Connection] = {}
        self.cores: dict[str, int] = {}
        self.begun: float | None = None
        self.job_units = 0
        self.checksum = 0
        self.in_serial = False
        self.awaited: set[str] = set()
        """Members that are still working on the parallel part."""
        self.longest = 0.0
        """Longest planned time of a rank for the current parallel part, with its mask change if there was one, s."""
        self.serial = range(self.program.serial_units)
        self.parallel = range(self.program.serial_units, self.program.serial_units + self.program.parallel_units)
        self.pool = range(0)
        """Units of the parallel part that no rank has drawn."""
        self.chunk = 0
        self.pending: dict[str, Any] | None = None
        """The pending member change. It is applied at the first malleability point after all new members joined."""
        self.progress_due = 0.0

    def begin(self) -> None:
        """Listen for followers, and start the job once all its ranks have joined."""
        self.server = socket.socket(getattr(socket, self.launch.family))
        self.server.bind(self.launch.address)
        self.server.listen(BACKLOG)
        self.selector.register(self.server, selectors.EVENT_READ, self._accept)
        self.tell("listening", address=self.server.getsockname())
        self.beat("listening", changed=True)
        self._start_if_complete()

    # Ranks join.

    def _accept(self) -> None:
        link = _linked(self.server.accept()[0])
        threading.Thread(target=self._authenticate, args=(link,), daemon=True).start()

    def _authenticate(self, link: Connection) -> None:
        """Accept the rank if it has the key. This runs in a thread, so a silent peer does not delay the job."""
        try:
            deliver_challenge(link, self.launch.authkey)
            answer_challenge(link, self.launch.authkey)
            message = decode(link.recv_bytes())
            self.mailbox.post(partial(self._join, message["rank"], message["cores"], link))
        except (AuthenticationError, EOFError, OSError, ValueError, KeyError) as error:
            link.close()
            what = f"rejected a connection that failed authentication: {str(error) or type(error).__name__}"
            self.mailbox.post(partial(self.tell, "error", what=what))

    def _join(self, rank: str, cores: int, link: Connection) -> None:
        if rank in self.links or rank == self.name:
            link.close()
            self.tell("error", what=f"rejected a second rank {rank!r}")
            return
        self.links[rank] = link
        self.cores[rank] = cores
        self.selector.register(link, selectors.EVENT_READ, partial(self._from_follower, rank))
        self._start_if_complete()

    def _all_here(self, members: Sequence[str]) -> bool:
        return all(member in self.links or member == self.name for member in members)

    def _start_if_complete(self) -> None:
        if self.begun is None and self._all_here(self.members):
            self.begun = self.clock.now()
            self.tell("started")
            self._iterate()

    def _from_follower(self, rank: str) -> None:
        link = self.links.get(rank)
        if link is None:  # the rank was released while its message was in transit
            return
        try:
            message = decode(link.recv_bytes())
        except (EOFError, OSError):
            self.fail(f"lost rank {rank!r}")
            return
        if message["type"] == "draw":
            self._send(rank, type="grant", **self._grant(message["cores"]))
        else:
            self.cores[rank] = message["cores"]
            self._rank_done(rank, message["units"], message["checksum"], message["seconds"])

    def _send(self, rank: str, **message: Any) -> None:
        try:
            self.links[rank].send_bytes(encode(message))
        except OSError:
            self.fail(f"lost rank {rank!r}")

    # An iteration.

    @property
    def behind(self) -> float:
        """The delay of the job behind its plan, s."""
        assert self.begun is not None
        return self.clock.now() - self.begun - self.planned_s

    def _iterate(self) -> None:
        units = split(self.serial, self.program.iterations, self.iteration)
        self.in_serial = len(units) > 0
        if self.in_serial:
            self.start_part([units], self.behind)
        else:
            self._parallel()

    def _parallel(self) -> None:
        units = split(self.parallel, self.program.iterations, self.iteration)
        static = self.program.balance == "static"
        self.cores[self.name] = len(self.workers.cpus)
        cores = sum(self.cores[member] for member in self.members)
        self.pool = range(0) if static else units
        self.chunk = max(1, -(-len(units) // (cores * self.program.chunks)))
        self.awaited, self.longest = set(self.members), 0.0
        own: range | None = None
        for index, member in enumerate(self.members):
            share = split(units, len(self.members), index) if static else None
            if member == self.name:
                own = share
            else:
                units_of = None if share is None else (share.start, share.stop)
                self._send(member, type="go", iteration=self.iteration, units=units_of, behind=self.behind)
        self.start_part(self.shares(own), self.behind)

    def _grant(self, cores: int) -> dict[str, Any]:
        shares: list[tuple[int, int]] = []
        while self.pool and len(shares) < cores:
            share, self.pool = self.pool[: self.chunk], self.pool[self.chunk :]
            shares.append((share.start, share.stop))
        return {"shares": shares, "last": not self.pool}

    def draw(self, cores: int) -> None:
        """Take chunks from the pool, one for each of `cores`."""
        self.granted(**self._grant(cores))

    def part_ended(self, units: int, seconds: float) -> None:
        """Start the parallel part after the serial part, and the malleability point after the parallel part."""
        if self.in_serial:
            self.in_serial = False
            self._count(units, self.workers.take_checksum())
            self.planned_s += seconds
            self._parallel()
        else:
            self.sample_work()
            self._rank_done(self.name, units, self.workers.take_checksum(), seconds)

    def _count(self, units: int, checksum: int | None) -> None:
        """Add units that a rank did, and their checksum."""
        self.job_units += units
        if checksum is None or self.checksum is None:  # a rank is emulated
            self.checksum = None
        else:
            self.checksum = (self.checksum + checksum) % MODULUS

    def _rank_done(self, rank: str, units: int, checksum: int | None, seconds: float) -> None:
        self.awaited.remove(rank)
        self._count(units, checksum)
        self.longest = max(self.longest, seconds)
        if not self.awaited:
            self.planned_s += self.longest
            self._malleability_point()

    def _malleability_point(self) -> None:
        self.iteration += 1
        program, done, total = self.program, self.iteration, self.program.iterations
        expected = program.serial_units * done // total + program.parallel_units * done // total
        if self.job_units != expected:
            self.fail(f"{self.job_units} units were done, expected {expected}")
            return
        now = time.monotonic()
        if now >= self.progress_due:
            self.progress_due = now + PROGRESS_S
            self.tell("progress", iteration=done, iterations=total, work_done=self.job_units)
        self.beat("running")
        if done == total:
            self.residual_s = self.behind
            for rank in self.links:
                self._send(rank, type="end")
            self.finish()
            return
        self.apply_mask()
        self._apply_members()
        self.planned_s += self.reconfigured()
        self._iterate()

    # Ranks leave.

    def resize(self, message: dict[str, Any]) -> None:
        """Store a change of members, to be applied at a malleability point, or of the mask.

        One change of members may be pending.
        """
        if "members" not in message:
            super().resize(message)
        elif self.pending is not None:
            self.refuse(message, f"resize {self.pending['request']} is still pending")
        elif self.name not in message["members"]:
            self.refuse(message, f"the leader {self.name!r} cannot be released")
        else:
            self.pending = message

    def _apply_members(self) -> None:
        """Apply the pending change of members if all new members have joined; else leave it pending."""
        if self.pending is None:
            return
        begun = self.clock.now()
        decided = self.pending.setdefault("decided", self.clock.stamp(begun))
        members = self.pending["members"]
        if not self._all_here(members):
            return
        for rank in set(self.members) - set(members):
            self._send(rank, type="leave")
            self.selector.unregister(self.links[rank])
            self.links.pop(rank).close()
        self.members = members
        now = self.clock.now()
        self.reconfiguring_s += now - begun
        self.tell(
            "resized",
            request=self.pending["request"],
            members=members,
            decided=decided,
            applied=self.clock.stamp(now),
            iteration=self.iteration,
        )
        self.pending = None
        self.beat("running", changed=True)
