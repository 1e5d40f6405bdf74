"""The processes of jobs in a virtual world: a model of what ranks do and report (`benchmarks.rank`, `leader`).

A rank starts, joins its leader, computes in iterations, and applies changes of members and of CPUs between two
iterations. The work of a job is divided as by its program. A rank that holds no CPU, or that its agent has stopped,
stops its job. A rank that was stopped from outside is late, and catches up: its deadlines stay where they were.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from tracebed.benchmarks.lines import decode, encode
from tracebed.benchmarks.program import Launch
from tracebed.benchmarks.rank import HeldCpus
from tracebed.ground.cpus import format_cpus
from tracebed.orchestrator.testbeds.agent.processes import RankProcess
from tracebed.testing.virtual.kernel import Process, VirtualWorld

STOPPED, CONTINUED = 0x137F, 0xFFFF
"""The statuses with which `os.wait` reports a process that was stopped by SIGSTOP, or continued."""

ROUNDING = 1e-9  # a share of the work that differs by less is equal


class Times(NamedTuple):
    """The times of processes, s: medians that `tests/performance/scale/rank_times.py` measures on emulated nodes."""

    launch_s: float = 0.012  # from the fork of a rank until it listens or joins
    join_s: float = 0.012  # connection of a follower to its leader
    exit_s: float = 0.002  # from the last message of a rank until its process has ended
    resize_s: float = 0.0009  # application of a change of members
    grain_s: float = 0.05  # an iteration


class RankNode(Protocol):
    """A node, as ranks see it (`machine.VirtualNode`)."""

    name: str
    times: Times
    latency_s: float
    offset_s: float
    rate: float


class RankAgent(Protocol):
    """The agent of a rank (`machine.VirtualAgent`)."""

    world: VirtualWorld
    process: Process

    @property
    def node(self) -> RankNode:
        """Its node."""

    @property
    def alive(self) -> bool:
        """Whether it runs."""

    def changed(self, pid: int, status: int) -> None:
        """Note that a rank has ended, stopped or continued."""


class JobModel:
    """A job that runs: its ranks, and how far its work is."""

    def __init__(self, leader: VirtualRank) -> None:
        self.leader, self.world = leader, leader.world
        self.members = list(leader.launch.members)  # the names of the ranks that compute
        self.joined: dict[str, VirtualRank] = {}  # name -> rank, of all ranks that have joined
        # done: the share of the work that is done
        # work_s: time in which the job has computed, s
        self.done = self.work_s = 0.0
        self.started = self.ended = self._changing = False
        self.pending: dict[str, Any] | None = None
        self._since: float | None = None
        self._lasts = 0.0
        self._version = 0
        program = leader.launch.program
        self._asks = sorted((int(point) / program.iterations, nodes) for point, nodes in program.requests.items())
        """Share of the work and number of nodes of each request to come, of an evolving job."""

    # -- work ------------------------------------------------------------------------------------------------------

    def _duration(self) -> float:
        """Return the time of the whole work on the present members and CPUs, s."""
        program = self.leader.launch.program
        cores = sum(len(self.joined[name].cpus) for name in self.members)
        overhead = program.overhead.get(str(len(self.members)), 0)
        return (program.serial_units + overhead + program.parallel_units / max(1, cores)) / program.rate

    def _computes(self) -> bool:
        if not self.started or self.ended:
            return False
        ranks = map(self.joined.get, self.members)
        return all(rank is not None and rank.progresses for rank in ranks)

    def _stopped(self) -> bool:
        """Return whether a member is stopped, so that the present iteration does not end."""
        return any(self.joined[name].stopped for name in self.members if name in self.joined)

    def update(self) -> None:
        """Count the work so far, and schedule the end of the rest. Call it after each change."""
        now = self.world.now
        if self._since is not None:
            seconds, self._since = now - self._since, None
            self.work_s += seconds
            self.done = min(1.0, self.done + seconds / self._lasts) if self._lasts else 1.0
        while self._asks and self._asks[0][0] <= self.done + ROUNDING and not self._stopped():
            nodes = self._asks.pop(0)[1]
            self.leader.send("asks", nodes=nodes)
            self.world.observe("asks", self.leader, nodes)
        self._version += 1
        if self._computes():
            self._since, self._lasts, version = now, self._duration(), self._version
            if self._asks:
                self.world.after((self._asks[0][0] - self.done) * self._lasts, partial(self._reach, version))
            self.world.after((1 - self.done) * self._lasts, partial(self._complete, version))

    def _is_current(self, version: int) -> bool:
        """Return whether nothing has changed since an event was scheduled. A rank that continues calls `update`."""
        return version == self._version and not self.ended and not self._stopped()

    def _reach(self, version: int) -> None:
        """Count the work at a request."""
        if self._is_current(version):
            self.update()

    def _complete(self, version: int) -> None:
        if not self._is_current(version):
            return
        self.update()
        self.done, self.ended = 1.0, True
        for rank in [*self.joined.values()]:
            if rank is self.leader:
                rank.finish("completed", "", planned_s=self.work_s, residual_s=1e-4)
            else:
                rank.later(rank.agent.node.latency_s, partial(rank.finish, "completed", ""))

    # -- members ---------------------------------------------------------------------------------------------------

    def join(self, rank: VirtualRank) -> None:
        """Add a rank, and start the job or apply a change of members if it was the last one."""
        self.joined[rank.name] = rank
        if not self.started and all(name in self.joined for name in self.members):
            self.started = True
            self.leader.send("started", begun=self.leader.clock())
            self.update()
        self.leader.later(self.leader.grain(), self.apply)

    def resize(self, request: dict[str, Any]) -> None:
        """Accept a change of members, which the leader sees at the end of the present iteration."""
        self.pending = dict(request)
        self.leader.later(self.leader.grain(), self._decide)

    def _decide(self) -> None:
        if self.pending is not None:
            self.pending["decided"] = self.leader.clock()
            self.apply()

    def apply(self) -> None:
        """Begin the pending change of members, unless a new member has not joined, or a member is stopped."""
        if self._can_change() and not self._changing:
            self._changing = True
            self.leader.later(self.leader.times.resize_s, self._change)

    def _can_change(self) -> bool:
        request = self.pending
        if request is None or "decided" not in request or not self.started or self.ended or self.leader.finished:
            return False
        return not self._stopped() and all(name in self.joined for name in request["members"])

    def _change(self) -> None:
        """Apply the pending change of members."""
        self._changing, request = False, self.pending
        if request is None or not self._can_change():
            return
        self.update()
        self.pending = None
        left = [name for name in self.members if name not in request["members"]]
        self.members = list(request["members"])
        for name in left:
            rank = self.joined.pop(name, None)
            if rank is None:  # it has ended already
                continue
            rank.released = True
            rank.later(rank.agent.node.latency_s, rank.leave)
        self.update()
        told = {"request": request["request"], "members": self.members, "planned_s": self.work_s, "iteration": 1}
        self.leader.send("resized", **told, decided=request["decided"], applied=self.leader.clock(), stages={})

    def lost(self, rank: VirtualRank) -> None:
        """Process the end of a rank that was neither released nor has completed."""
        if self.ended:
            return
        if rank is self.leader:
            self.update()
            self.ended = True
            for other in self.joined.values():
                if other is not rank:
                    other.later(0.001, partial(other.finish, "failed", "lost the connection to the leader"))
        elif rank.name in self.joined:
            del self.joined[rank.name]
            self.update()
            self.leader.later(0.001, lambda: self.leader.finish("failed", f"lost rank {rank.name!r}"))


class Handle(RankProcess):
    """The agent's handle of a modelled rank."""

    def __init__(self, rank: VirtualRank, control: Any) -> None:
        super().__init__(rank.process.pid, rank.launch, control, Path("virtual"))
        self._rank = rank

    def signal(self, number: int) -> None:
        """Send a signal to the rank."""
        rank = self._rank
        held, stopped = rank.held, rank.stopped
        if number in (signal.SIGSTOP, signal.SIGCONT):
            rank.held = number == signal.SIGSTOP
        rank.signal(number)
        if rank.held != held and rank.stopped == stopped and rank.job is not None:
            rank.job.update()  # the rank was stopped, or continued, from outside already

    def units_done(self) -> int:
        """Return the units in the last message of the rank."""
        return int(self.finished.get("units_done", 0))


class VirtualRank:
    """A rank."""

    def __init__(self, agent: RankAgent, launch: Launch) -> None:
        self.agent, self.world, self.launch = agent, agent.world, launch
        self.name, self.times = launch.rank, agent.node.times
        self.process = self.world.new_process(agent.node.offset_s, agent.node.rate)
        self.world.starts[self.process.pid] = self.process.pid
        ours, self.control = self.world.connection(agent.process, self.process, 2e-5)
        self.handle = Handle(self, _Control(self, ours.fd))  # the handle of its agent
        self.cpus: tuple[int, ...] = ()
        # over: whether its process has ended
        # stopped: whether it is stopped by a signal
        # held: whether its agent has stopped it. Its clock leaves out this time.
        # released: whether its leader has released it
        self.over = self.stopped = self.held = self.released = self.finished = False
        self.stubborn: set[int] = set()  # signals that it ignores (a fault)
        self.cpu_s = 0.0  # its CPU time, s
        self.job: JobModel | None = None
        self._held: HeldCpus | None = None
        self._begun = False
        self._deferred: list[Callable[[], None]] = []
        self._terminated = False
        self._selector = self.world.selector()
        self._selector.register(self.control.fd, 1)
        self._selector.on_ready = self._hear
        self._hearing = False
        self.world.observe("fork", self)

    @property
    def computes(self) -> bool:
        """Whether the rank can compute."""
        return bool(self.cpus) and not self.stopped and not self.over and self.agent.alive

    @property
    def progresses(self) -> bool:
        """Whether the work of the rank proceeds as planned. A rank that was stopped from outside catches up."""
        return bool(self.cpus) and not self.held and not self.over and self.agent.alive

    def clock(self) -> float:
        """Return the time that the rank reports: the monotonic time of its node."""
        return self.process.clock(self.world.now)

    def grain(self) -> float:
        """Return the time until the end of the present iteration, s."""
        return self.world.draw.random() * self.times.grain_s

    def spread(self, seconds: float) -> float:
        """Return a time of about `seconds`: most are near, few are much longer."""
        return seconds * self.world.draw.lognormvariate(0.0, 0.5)

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        """Do something after a time, once the rank is not stopped, unless it has ended."""
        self.world.after(self.spread(seconds), partial(self._do, call))

    def _do(self, call: Callable[[], None]) -> None:
        if self.over:
            return
        if self.stopped:
            self._deferred.append(partial(self._do, call))
        else:
            call()

    def send(self, type: str, **fields: Any) -> None:
        """Send a message to the agent."""
        if self.control.outgoing is not None and not self.control.outgoing.broken:
            self.control.outgoing.put(encode({"type": type, "time": self.clock(), **fields}))

    # -- life ------------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start: the rank begins once it holds all its CPUs."""
        self.later(self.times.launch_s, self._register)

    def _register(self) -> None:
        with self.world.running(self.process):
            self._held = HeldCpus(self.launch.table, self.launch.cpus)
        self._look()

    def _look(self) -> None:
        """Follow the table of CPUs, at a malleability point."""
        held = self._held
        if held is None or self.finished:
            return
        before, decided = self.cpus, self.clock()
        with self.world.running(self.process):
            changed = held.poll(lambda cpus: None) if held.due else False
        if held.cpus != before:
            if self.job is not None and self._begun:
                self.job.update()
            self.cpus = held.cpus
            self.world.observe("cpus", self, self.cpus)
            if self.job is not None and self._begun:
                self.job.update()
        if changed and (self._begun or held.complete):
            cpus = format_cpus(self.cpus)
            self.send("resized", cpus=cpus, seen=decided, decided=decided, applied=self.clock(), iteration=1)
        if not self._begun and held.cpus and held.complete:
            self._begun = True
            self._join()

    def _join(self) -> None:
        jobs, key = self.world.jobs, self.launch.authkey.hex()
        if self.launch.leader:
            self.job = jobs[key] = JobModel(self)
            self.send("listening", address=["127.0.0.1", 1 + self.process.pid % 65000])
            self.job.join(self)
            return
        self.later(self.times.join_s, lambda: self._connect(jobs.get(key)))

    def _connect(self, job: JobModel | None) -> None:
        if job is None or job.leader.over or job.ended:
            self.finish("failed", "cannot join the leader: connection refused")
        else:
            self.job = job
            job.join(self)

    def leave(self) -> None:
        """End after the leader has released the rank."""
        self.finish("completed", "released", left=self.clock())

    def finish(self, state: str, reason: str, **fields: Any) -> None:
        """Report the end, and end."""
        if self.over or self.finished:
            return
        self.finished = True
        self.cpu_s += 0.001
        figures = {"units_done": 1, "late_s": 1e-4, "overruns": 0, "planned_s": None, "residual_s": None}
        self.send("work", samples=[[self.clock(), 1, 0.0, 0.0, 1e-4]])
        self.send("finished", state=state, reason=reason, checksum=None, **figures | {"left": None} | fields)
        if state == "failed" and self.job is not None:
            self.job.lost(self)
        self.world.observe("finish", self, state, fields.get("planned_s"))
        self.later(self.times.exit_s, lambda: self.die(0 if state == "completed" else 1 << 8))

    def die(self, status: int) -> None:
        """End the process with a status as `os.wait` returns it."""
        if self.over:
            return
        self.over = True
        self.world.starts.pop(self.process.pid, None)
        key = self.launch.authkey.hex()
        if self.launch.leader and self.world.jobs.get(key) is self.job:
            self.world.jobs.pop(key, None)
        self.cpus = ()
        if self.job is not None and not self.released and not self.finished:
            self.job.lost(self)
        elif self.job is not None:
            self.job.update()
        self._selector.close()
        self.world.close(self.control.fd)
        if self._held is not None:
            self._held.close()
        self.world.observe("end", self)
        self.agent.changed(self.process.pid, status)

    # -- messages and signals --------------------------------------------------------------------------------------

    def _hear(self) -> None:
        if not self._hearing:
            self._hearing = True
            self.later(2e-5, self._read)

    def _read(self) -> None:
        self._hearing = False
        pipe = self.control.incoming
        assert pipe is not None
        *lines, rest = bytes(pipe.data).split(b"\n")
        pipe.data[:] = rest
        for line in lines:
            self._heard(decode(line))
        if pipe.ended and not lines:
            self._selector.close()

    def _heard(self, message: Mapping[str, Any]) -> None:
        if "members" in message:
            job = self.job
            if job is not None and (job.pending or {}).get("request") != message["request"]:
                job.resize(dict(message))
        elif "table" in message and self._held is not None:
            self._held.replacement = Path(message["table"])
            self.later(self.grain(), self._look)
        else:
            self.later(self.grain() if self._begun else 1e-4, self._look)

    def signal(self, number: int) -> None:
        """Process a signal."""
        if self.over or number in self.stubborn:  # a process that has not been reaped takes signals
            return
        if number == signal.SIGKILL:
            self.world.after(1e-4, lambda: self.die(9))
        elif number == signal.SIGSTOP and not self.stopped:
            self._halt(True)
        elif number == signal.SIGCONT and self.stopped and self._terminated:
            self.die(15)  # the kernel delivers the signal before the process runs
        elif number == signal.SIGCONT and self.stopped:
            self._halt(False)
            deferred, self._deferred = self._deferred, []
            for call in deferred:
                self.world.after(1e-5, call)
        elif number == signal.SIGTERM and self.stopped:
            self._terminated = True
        elif number == signal.SIGTERM:
            self.world.after(self.spread(1e-3), lambda: self.die(15))

    def _halt(self, stopped: bool) -> None:
        self.stopped = stopped
        if self.job is not None:
            self.job.update()
            if not stopped:
                self.job.apply()
        self.agent.changed(self.process.pid, STOPPED if stopped else CONTINUED)


class _Control:
    """The agent's end of the connection to a rank."""

    def __init__(self, rank: VirtualRank, fd: int) -> None:
        self._rank, self._fd = rank, fd

    def fileno(self) -> int:
        return self._fd

    def close(self) -> None:
        self._rank.world.close(self._fd)
