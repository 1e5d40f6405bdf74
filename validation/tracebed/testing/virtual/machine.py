"""A virtual node: the agents on it, with the shipped code, what they need of their machine, and the processes of jobs.

A process of a job is a model of what ranks do and report (`benchmarks.rank`, `leader`). A rank starts, joins its
leader, computes in iterations, and applies changes of members and of CPUs between two iterations. The work of a job is
divided as by its program. A rank that holds no CPU, or that its agent has stopped, stops its job. A rank that was
stopped from outside is late, and catches up: its deadlines stay where they were.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tracebed.benchmarks.lines import decode, encode
from tracebed.benchmarks.program import Launch
from tracebed.benchmarks.rank import HeldCpus
from tracebed.ground.cpus import format_cpus
from tracebed.orchestrator.testbeds.agent.agent import Agent
from tracebed.orchestrator.testbeds.agent.attaching import NAME
from tracebed.orchestrator.testbeds.agent.machine import Change, Machine
from tracebed.orchestrator.testbeds.agent.messages import Outbox
from tracebed.orchestrator.testbeds.agent.processes import RankProcess
from tracebed.testing.virtual.kernel import Descriptor, Process, VirtualSelector, VirtualWorld

if TYPE_CHECKING:
    import selectors

TURN_S = 5e-5  # time from the arrival of a message until the agent processes it, s
STOPPED, CONTINUED = 0x137F, 0xFFFF  # statuses of `os.wait` for a process that SIGSTOP stopped, or that continued

ROUNDING = 1e-9  # a share of the work that differs by less is equal


class VirtualNode:
    """A node. `latency_s` is that of its network; `launch_s` is the median time until a process of a job is ready."""

    def __init__(self, world: VirtualWorld, name: str, cores: int, latency_s: float, launch_s: float) -> None:
        self.world, self.name, self.cores, self.latency_s = world, name, cores, latency_s
        self.times = Times(launch_s=launch_s)  # the times of processes of jobs
        # offset_s: monotonic time of the node minus virtual time at time 0, s
        # rate: seconds of its clock per virtual second
        self.offset_s, self.rate = world.draw.uniform(0.0, 1e6), 1.0 + world.draw.uniform(-20e-6, 20e-6)
        self.up = True  # whether the node can be reached and can start agents
        self.agents: list[VirtualAgent] = []
        self.boot = f"{name}-1"
        self.started = 0

    def start_agent(self, end: Descriptor) -> VirtualAgent:
        """Start an agent whose standard input and output are `end`."""
        self.started += 1
        agent = VirtualAgent(self, end)
        self.agents.append(agent)
        return agent

    def crash(self, *, silent: bool) -> None:
        """Lose the power; `silent`: connections stay open at their other ends, which hear nothing any more."""
        self.up = False
        self.boot = f"{self.name}-{int(self.boot.rpartition('-')[2]) + 1}"
        for agent in list(self.agents):
            agent.kill(silent=silent)

    def partition(self) -> None:
        """Cut the node off from the network. Its processes continue, and connections stay open."""
        self.up = False
        for pipe in self._pipes():
            pipe.hold()

    def heal(self) -> None:
        """Bring the node, or its network, back."""
        self.up = True
        for pipe in self._pipes():
            if pipe.held:
                pipe.release()

    def _pipes(self) -> list[Any]:
        ends = [end for agent in self.agents for end in agent.connections]
        return [pipe for end in ends for pipe in (end.incoming, end.outgoing) if pipe is not None]

    def __repr__(self) -> str:
        return f"VirtualNode({self.name})"


class VirtualAgent(Machine):
    """An agent of a node: the shipped state machine, and the machine on which it believes to run."""

    def __init__(self, node: VirtualNode, end: Descriptor) -> None:
        self.node, self.world = node, node.world
        self.process: Process = self.world.new_process(node.offset_s, node.rate)
        end.owner = self.process
        self.connections = [end]  # its ends of the connections to controllers
        self.ranks: dict[int, VirtualRank] = {}  # its ranks that have not been reaped, by PID
        self.silent_until = 0.0  # virtual time until which the agent does nothing
        self._changes: dict[int, list[int]] = {}
        self._listener: _Listener | None = None
        self._due: float | None = None
        self._turning = False
        self._path = self.world.folder / f"agent-{node.name}-{node.started}"
        self.status = 0  # its exit status, once it has ended
        with self.world.running(self.process):
            self.agent = Agent(end.fd, end.fd, self)
        assert isinstance(self.agent.selector, VirtualSelector)
        self._selector = self.agent.selector
        self._selector.on_ready = self._wake
        self._wake()

    @property
    def alive(self) -> bool:
        """Whether the agent runs."""
        return self.process.alive

    def attach(self, end: Descriptor) -> None:
        """Connect another controller to the socket of the agent."""
        end.owner = self.process
        self.connections.append(end)
        assert self._listener is not None
        self._listener.waiting.append(end.fd)
        self._listener.file.count += 1
        self._listener.file.changed()

    def listens_at(self, path: str) -> bool:
        """Return whether the agent listens at the socket `path`."""
        return self.alive and self._listener is not None and str(self._path / NAME) == path

    # -- turns -----------------------------------------------------------------------------------------------------

    def _wake(self) -> None:
        if not self._turning:
            self._turning = True
            self.world.after(TURN_S * (0.5 + self.world.draw.random()), self._turn)

    def _turn(self) -> None:
        self._turning = False
        if not self.alive:
            return
        if self.world.now < self.silent_until:
            self._turning = True
            self.world.after(self.silent_until - self.world.now, self._turn)
            return
        agent = self.agent
        with self.world.running(self.process):
            agent.turn(self._selector.select())
            if agent.ended:
                self._end()
                return
            due = agent.due()
        if self._selector.any_ready():
            self._wake()
        if due is not None and due != self._due:
            self._due = due
            delay = max(0.0, self.process.at(due) - self.world.now)
            self.world.after(delay, lambda: self._due_now(due))

    def _due_now(self, due: float) -> None:
        if self._due == due:
            self._due = None
            self._wake()

    def _end(self) -> None:
        """End the process of the agent, which has ended its ranks."""
        self.agent.clean_up()
        self._vanish(silent=False)

    def kill(self, *, silent: bool = False) -> None:
        """Kill the agent, and with it its ranks."""
        self.status = -9
        self._vanish(silent=silent)

    def _vanish(self, *, silent: bool) -> None:
        if not self.alive:
            return
        self.process.alive = False
        self.node.agents.remove(self)
        for rank in list(self.ranks.values()):
            rank.die(9)
        self._selector.close()
        for end in self.connections:
            if end.fd not in self.world.files:
                continue
            if silent:
                del self.world.files[end.fd]
            else:
                self.world.close(end.fd)
        if self.agent.node is not None:
            self.agent.node.jobs.masks.administrator.table.close()

    # -- the machine -----------------------------------------------------------------------------------------------

    def private_folder(self) -> Path:
        """Return the path of the private folder, which does not exist."""
        return self._path

    def table_path(self, folder: Path) -> Path:
        """Return the path of the table of CPUs."""
        return folder.with_suffix(".cpus")

    def remove_private_folder(self, folder: Path) -> None:
        """Remove the table of CPUs."""
        for table in folder.parent.glob(f"{folder.name}.cpus*"):
            table.unlink()

    def remove_leftovers(self, folder: Path) -> None:
        """Do nothing: other agents leave no files."""

    def listen(self, folder: Path) -> Any:
        """Listen for other controllers."""
        self._listener = _Listener(self.world.new_descriptor(self.process))
        return self._listener

    def fork(self, launch: Launch, pinned: tuple[int, ...] | None, prepare: Callable[[int], None]) -> RankProcess:
        """Start a modelled rank."""
        rank = VirtualRank(self, launch)
        self.ranks[rank.process.pid] = rank
        prepare(rank.process.pid)
        rank.begin()
        return rank.handle

    def changed(self, pid: int, status: int) -> None:
        """Note that a rank has ended, stopped or continued."""
        self._changes.setdefault(pid, []).append(status)
        if self.alive:
            self._wake()

    def any_changed(self) -> bool:
        """Return whether a rank has changed."""
        return bool(self._changes)

    def change_of(self, pid: int) -> Change | None:
        """Return the next change of a rank."""
        if pid not in self._changes:
            return None
        status = self._changes[pid].pop(0)
        if not self._changes[pid]:
            del self._changes[pid]
        rank = self.ranks[pid]
        if not os.WIFSTOPPED(status) and not os.WIFCONTINUED(status):
            del self.ranks[pid]
        return Change(status, rank.cpu_s)

    def make_spool(self, spool: Path) -> None:
        """Do nothing: jobs write no files."""

    def touch(self, spool: Path) -> None:
        """Do nothing."""

    def sampler(self, cpus: Sequence[int], *, host: bool) -> Any:
        """Return the counters of the node."""
        return _Samples(self)

    def facts(self) -> dict[str, Any]:
        """Return the facts of the node."""
        return {
            "name": self.node.name,
            "machine": "virtual",
            "kernel": "virtual",
            "cpu": "virtual",
            "cores": self.node.cores,
            "cpus": self.node.cores,
            "memory_mib": 1024 * self.node.cores,
            "boot_id": self.node.boot,
        }

    def connection_test(self, selector: selectors.BaseSelector, outbox: Outbox) -> Any:
        """Return a test that finds that all nodes can connect."""
        return _Reach(outbox)


class _Samples:
    """The counters of a virtual node."""

    def __init__(self, agent: VirtualAgent) -> None:
        self._agent = agent

    def sample(self, ranks: Iterable[int] = (), commands: Iterable[int] = ()) -> dict[str, Any]:
        return {"cpu_s": round(0.01 + sum(rank.cpu_s for rank in self._agent.ranks.values()), 6)}


class _Reach:
    """The answers of a node whose network works."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox

    def test(self, message: dict[str, Any]) -> None:
        if "address" in message:
            self._outbox.send_unnumbered("reached", reason=None)
        elif "bind" in message:
            self._outbox.send_unnumbered("reachable", address=[message["bind"], 4000])


class _Listener:
    """The socket on which controllers attach."""

    def __init__(self, file: Descriptor) -> None:
        self.file = file
        self.waiting: list[int] = []

    def fileno(self) -> int:
        return self.file.fd

    def accept(self) -> int:
        self.file.count -= 1
        return self.waiting.pop(0)


class Times(NamedTuple):
    """The times of processes, s: medians that `tests/performance/scale/rank_times.py` measures on emulated nodes."""

    launch_s: float = 0.012  # from the fork of a rank until it listens or joins
    join_s: float = 0.012  # connection of a follower to its leader
    exit_s: float = 0.002  # from the last message of a rank until its process has ended
    resize_s: float = 0.0009  # application of a change of members
    grain_s: float = 0.05  # an iteration


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

    def __init__(self, agent: VirtualAgent, launch: Launch) -> None:
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
