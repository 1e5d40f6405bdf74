"""A virtual node: the agents on it, with the shipped code, and what they need of their machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracebed.benchmarks.program import Launch
from tracebed.orchestrator.testbeds.agent.agent import Agent
from tracebed.orchestrator.testbeds.agent.attaching import NAME
from tracebed.orchestrator.testbeds.agent.machine import Change, Machine
from tracebed.orchestrator.testbeds.agent.messages import Outbox
from tracebed.orchestrator.testbeds.agent.processes import RankProcess
from tracebed.testing.virtual.kernel import Descriptor, Process, VirtualSelector, VirtualWorld
from tracebed.testing.virtual.ranks import Times, VirtualRank

if TYPE_CHECKING:
    import selectors

TURN_S = 5e-5  # time from the arrival of a message until the agent processes it, s


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
