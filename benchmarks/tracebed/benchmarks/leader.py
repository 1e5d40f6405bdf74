"""The main loop of all benchmarks: serial part, parallel part, malleability point.

A job has one rank process per node; a rank has the name of its node. The leader accepts the other ranks (followers),
starts each part, and distributes the work; the leader is never released. In each iteration, the leader does the serial
part on one core, then all cores of all ranks do the parallel part. At the malleability point, ranks join and leave and
masks change, and the state of the job moves. Ranks do not restart for a resize. The leader checks that no work is lost
or done twice.

Messages from follower to leader: join, filled, draw, done, page, stored, adopted, worker, merged, results
Messages from leader to follower: fill, go, grant, fetch, page, common, give, worker, leave, end

The messages fill, filled, fetch, page and stored belong to the state (`state.py`). The messages common, adopted, give,
worker, merged and results belong to applications with own data (`application_data.py`).
"""

from __future__ import annotations

import selectors
import socket
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing import AuthenticationError
from multiprocessing.connection import answer_challenge, deliver_challenge
from typing import Any

from tracebed.benchmarks.application_data import Merging
from tracebed.benchmarks.connections import Data, Peer, handshake, tune
from tracebed.benchmarks.follower import Follower
from tracebed.benchmarks.kernels import MODULUS, Kernel
from tracebed.benchmarks.lines import decode
from tracebed.benchmarks.program import Launch, split
from tracebed.benchmarks.rank import BenchmarkRank, Control
from tracebed.benchmarks.redistribution import Block, Move, blocks, moves, rearranged
from tracebed.benchmarks.state import Moving

BACKLOG = 4096
"""Largest number of followers that wait to be accepted. It is the largest number that Linux permits by default."""


def run(launch: Launch, control: Control, kernel: Kernel) -> int:
    """Run one rank until its job ends or releases it, and return the exit status of the process."""
    return (Leader if launch.leader else Follower)(launch, control, kernel).run()


class Leader(BenchmarkRank):
    """The rank that controls the job."""

    def __init__(self, launch: Launch, control: Control, kernel: Kernel) -> None:
        super().__init__(launch, control, kernel)
        self.members = list(launch.members)
        self.links: dict[str, Peer] = {}
        self.cores: dict[str, int] = {}
        self.joined: dict[str, dict[str, Any]] = {}  # the message `join` of each follower
        # The members that hold the state, in the order of their blocks; None: the members have not all joined yet.
        self.holders: list[str] | None = None
        # Number of members that write their first block or receive common data, `then` is called at 0.
        self.preparing = 0
        self.then: Callable[[], None] = self._start
        self.merging: Merging | None = None
        self.moved = 0  # number of bytes that move in the current change of members
        self.moving: Moving | None = None
        self.begun: float | None = None
        self.job_units = 0
        self.checksum = 0
        self.in_serial = False
        self.in_overhead = False
        self.awaited: set[str] = set()  # members that are still working on the parallel part
        # Longest planned time of a rank for the current parallel part, with its mask change if there was one, s.
        self.longest = 0.0
        self.serial = range(self.program.serial_units)
        self.parallel = range(self.program.serial_units, self.program.serial_units + self.program.parallel_units)
        self.pool = range(0)  # units of the parallel part that no rank has drawn
        self.chunk = 0
        # The pending member change. It is applied at the first malleability point after all new members joined.
        self.pending: dict[str, Any] | None = None
        self.progress_due = 0.0

    def begin(self) -> None:
        """Listen for followers, and start the job once all its ranks have joined."""
        self.server = socket.socket(getattr(socket, self.launch.family))
        self.server.bind(self.launch.address)
        self.server.listen(BACKLOG)
        self.selector.register(self.server, selectors.EVENT_READ, self._accept)
        self.send_event("listening", address=self.server.getsockname())
        self.beat("listening", changed=True)
        self._start_if_complete()

    # Ranks join.

    def _accept(self) -> None:
        end = self.server.accept()[0]
        tune(end)
        threading.Thread(target=self._authenticate, args=(end,), daemon=True).start()

    def _authenticate(self, end: socket.socket) -> None:
        """Accept the rank if it has the key. This runs in a thread, so a silent peer does not delay the job."""
        try:
            with handshake(end) as link:
                deliver_challenge(link, self.launch.authkey)
                answer_challenge(link, self.launch.authkey)
                message = decode(link.recv_bytes())
            self.mailbox.post(partial(self._join, message["rank"], message["cores"], message, end))
        except (AuthenticationError, EOFError, OSError, ValueError, KeyError) as error:
            end.close()
            what = f"rejected a connection that failed authentication: {str(error) or type(error).__name__}"
            self.mailbox.post(partial(self.send_event, "error", what=what))

    def _join(self, rank: str, cores: int, message: dict[str, Any], end: socket.socket) -> None:
        if rank in self.links or rank == self.name:
            end.close()
            self.send_event("error", what=f"rejected a second rank {rank!r}")
            return
        on_message, lost = partial(self._from_follower, rank), partial(self.fail, f"lost rank {rank!r}")
        self.cores[rank], self.joined[rank] = cores, message
        self.links[rank] = Peer(self.selector, end, on_message, lost)
        self._start_if_complete()

    def _all_joined(self, members: Sequence[str]) -> bool:
        return all(member in self.links or member == self.name for member in members)

    def _start_if_complete(self) -> None:
        if self.holders is None and self._all_joined(self.members):
            self.holders = self._holding(self.members)
            self._prepare(self.members, self._start, fill=True)

    def _start(self) -> None:
        self.begun = self.clock.now()
        if self.data:
            self.data.open(self.launch.folder / self.name)
        self.send_event("started", begun=self.clock.stamp(self.begun))
        self._iterate()

    def _from_follower(self, rank: str, message: dict[str, Any], data: Data) -> None:
        match message["type"]:
            case "draw":
                self._send(rank, type="grant", **self._grant(message["cores"]))
            case "done":
                self.cores[rank] = message["cores"]
                self._rank_done(rank, message["units"], message["checksum"], message["seconds"])
            case "filled" | "adopted":
                self.preparing -= 1
                self._prepared()
            case "page" if self.moving:
                self.moving.fetched(message["page"], data)
            case "stored" if self.moving:
                self.moving.stored(message["page"])
            case "worker" if self.merging:
                self.merging.given(rank, data)
            case "merged" if self.merging:
                self.merging.merged()
            case "results" if self.data:
                self.data.write(data)

    def _send(self, rank: str, **message: Any) -> None:
        self._send_data(rank, message)

    def _send_data(self, rank: str, message: dict[str, Any], data: Data = b"") -> None:
        self.links[rank].send(message, data)

    # The state.

    def _holding(self, members: Sequence[str]) -> list[str]:
        """Return the members that hold the state of the job: all computing ranks. Emulated ranks hold nothing."""
        duty = self.launch.duty
        return [rank for rank in members if (duty > 0 if rank == self.name else self.joined[rank]["holds"])]

    def _prepare(self, members: Sequence[str], then: Callable[[], None], *, fill: bool) -> None:
        """Send the common data to `members`, then call `then`. With `fill`, the holders write their blocks."""
        assert self.holders is not None
        own = Block(0, 0)
        self.preparing, self.then = 1, then  # 1: this rank
        if fill and self.state.total:
            for rank, block in zip(self.holders, blocks(self.state.total, len(self.holders)), strict=True):
                if rank == self.name:
                    own = block
                else:
                    self.preparing += 1
                    self._send(rank, type="fill", first=block.first, end=block.end)
        if self.data:
            common = self.data.common()
            for rank in self._holding([member for member in members if member != self.name]):
                self.preparing += 1
                self.moved += len(common)
                self._send_data(rank, {"type": "common"}, common)
        self.state.fill(own)
        self.preparing -= 1
        self._prepared()

    def _prepared(self) -> None:
        if not self.preparing:
            self.then()

    def _merge(self, then: Callable[[], None]) -> None:
        """Merge the worker data of all members into the data of this rank, then call `then`."""
        if not self.data or not self.holders:
            then()
            return
        order = [self.name, *(rank for rank in self.holders if rank != self.name)]
        self.merging = Merging(order, self.data, self._send_data, then)
        self.merging.begin()

    # An iteration: the overhead of the number of nodes and the serial part on one core, then the parallel part.

    @property
    def behind(self) -> float:
        """The delay of the job behind its plan, s."""
        assert self.begun is not None
        return self.clock.now() - self.begun - self.planned_s

    def _iterate(self) -> None:
        total = self.program.overhead.get(str(len(self.members)), 0)
        units = split(range(total), self.program.iterations, self.iteration)
        self.in_overhead = len(units) > 0
        if self.in_overhead:
            work_ends = self.parallel.stop
            self.start_part([range(work_ends, work_ends + len(units))], self.behind)
        else:
            self._serial()

    def _serial(self) -> None:
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
        """Start the serial part after the overhead, then the parallel part, and then the malleability point."""
        if self.in_overhead:
            self.in_overhead = False
            self.units_done -= units  # they are not work
            self.workers.take_checksum()
            self.planned_s += seconds
            self._serial()
        elif self.in_serial:
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
        if self.data:
            self.data.write(self.data.results())
        program, done, total = self.program, self.iteration, self.program.iterations
        expected = program.serial_units * done // total + program.parallel_units * done // total
        if self.job_units != expected:
            self.fail(f"{self.job_units} units were done, expected {expected}")
            return
        now = time.monotonic()
        if now >= self.progress_due:
            self.progress_due = now + self.launch.work_s / 2
            self.send_event("progress", iteration=done, iterations=total, work_done=self.job_units)
        self.beat("running")
        if done == total:
            self.residual_s = self.behind
            self._merge(self._complete)
            return
        if str(done) in program.requests:
            self.send_event("asks", nodes=program.requests[str(done)])
        self.when_holding(self._apply_members)

    def _complete(self) -> None:
        """End the job."""
        if self.data:
            self.data.finish(self.checksum)
        for rank in self.links:
            self._send(rank, type="end")
        self.finish()

    def _continue(self) -> None:
        """Begin the next iteration. Meanwhile, this rank may have lost its CPUs."""
        self.when_holding(self._next_iteration)

    def _next_iteration(self) -> None:
        self.planned_s += self.reconfigured()
        self._iterate()

    # Ranks leave.

    def resize(self, message: dict[str, Any]) -> None:
        """Store a change of members, to be applied at a malleability point. One change may be pending."""
        if self.pending is not None:
            self.refuse(message, f"resize {self.pending['request']} is still pending")
        elif self.name not in message["members"]:
            self.refuse(message, f"the leader {self.name!r} cannot be released")
        else:
            self.pending = message | {"received": self.clock.running()}

    def _apply_members(self) -> None:
        """Apply the pending change of members if all new members have joined, else leave it pending. Then continue."""
        if self.pending is None:
            self._continue()
            return
        begun, request = self.clock.now(), self.pending
        if "decided" not in request:
            request["decided"] = self.clock.stamp(begun)
            request["decision_s"] = self.clock.running() - request["received"]
        if not self._all_joined(request["members"]):
            self._continue()
            return
        request |= {"begun": begun, "moving": self.clock.running()}
        self.moved = 0
        if set(self.members) <= set(request["members"]):
            self._move()
        else:
            self._merge(self._move)

    def _move(self) -> None:
        """Move the state to the new members, then send them the common data of the application."""
        assert self.pending is not None
        request, old = self.pending, self.holders
        new, plan = self._holding(request["members"]), list[Move]()
        if old and new:
            new = rearranged(self.state.total, old, new)
            plan = moves(self.state.total, old, new)
        self.holders, request["held"] = new, bool(old and new)
        self.moved += self.state.bytes_of(plan) + (self.merging.moved if self.merging else 0)
        joining = [rank for rank in request["members"] if rank not in self.members]
        then = partial(self._prepare, joining, self._resized, fill=not old)
        self.moving = Moving(plan, self.name, self.state, self._send_data, then)
        self.moving.begin()

    def _resized(self) -> None:
        """Continue with the members of the pending change, which hold all data now."""
        assert self.pending is not None
        request, self.pending = self.pending, None
        self.moving = self.merging = None
        redistribution_s, members = self.clock.running() - request["moving"], request["members"]
        spawned = [self.joined[rank]["spawn_s"] for rank in set(members) - set(self.members)]
        for rank in set(self.members) - set(members):
            self._send(rank, type="leave")
            self.links.pop(rank).close()
        self.members = members
        now = self.clock.now()
        self.reconfiguring_s += now - request["begun"]
        self.send_event(
            "resized",
            request=request["request"],
            members=members,
            decided=request["decided"],
            applied=self.clock.stamp(now),
            iteration=self.iteration,
            planned_s=self.planned_s + self.reconfiguring_s if self.PLANNED else None,
            stages={
                "decision_s": request["decision_s"],
                "spawn_s": None if None in spawned else max(spawned, default=0.0),
                "redistribution_s": redistribution_s,
                "moved_mib": self.moved / 2**20 if request["held"] else None,
            },
        )
        self.beat("running", changed=True)
        self._continue()
