"""The provider `virtual`: nodes in a virtual world. An inventory with it is replayed in virtual time."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import Field

from tracebed.ground import system
from tracebed.ground.errors import InputError, TestbedError
from tracebed.orchestrator.testbeds import local
from tracebed.orchestrator.testbeds.agent.attaching import ABSENT
from tracebed.orchestrator.testbeds.nodes import Group, Inventory, Node
from tracebed.orchestrator.testbeds.settings import ProviderSettings
from tracebed.testing.virtual.faults import LASTING, arm, drawn_outages, has_target
from tracebed.testing.virtual.kernel import Descriptor, VirtualWorld, remove_leftovers
from tracebed.testing.virtual.machine import Times, VirtualAgent, VirtualNode

RUN_S = 0.15  # time until an agent has been started, or the connection has been refused, s
END_S = 0.05  # time until the exit status of an agent is known, or an agent is killed, s


class VirtualSettings(ProviderSettings):
    """The keys of a group of virtual nodes."""

    seed: Annotated[int, Field(ge=0)] = 1
    """Seed of the times and of the faults. The same seed gives the same replay."""
    latency_s: Annotated[float, Field(ge=0, le=60)] = 2e-4
    """Mean latency of the network between the controller and the nodes, s."""
    launch_s: Annotated[float, Field(ge=0, le=3600)] = Times().launch_s
    """Median time until a process of a job is ready, s."""
    mtbf_h: Annotated[float, Field(ge=0.1, le=1e9)] | None = None
    """Mean time between two faults of a node, hours of trace time; by default there are no faults. Faults are drawn
    for the shortest length of the replay, and last from a minute to half a day of trace time."""
    virtual: ClassVar[bool] = True


def _note_fault(here: VirtualWorld, speed: float, what: str, *facts: Any) -> None:
    """Add a fault that strikes to the incidents of the world."""
    if what == "fault" and has_target(here.nodes[facts[0].node], facts[0]):
        fault = facts[0]
        lasts = f" for {speed * fault.seconds:,.0f} s" if fault.kind in LASTING else ""
        here.incidents.append((here.controller.clock(here.now), f"{fault.kind} on {fault.node}{lasts}"))


class VirtualChannel:
    """A command on a virtual node: an agent, or one that attaches to an agent."""

    def __init__(self, node: VirtualNode, end: Descriptor, agent: VirtualAgent | None, *, attached: str | None) -> None:
        self._node, self._end, self._agent, self._attached = node, end, agent, attached
        self.reader = self.writer = end.fd
        self._closed = False

    def poll(self) -> int | None:
        """Return the exit status; None: the command runs, or its status is unknown."""
        if self._agent is None:
            return 1
        if self._attached is not None:
            return 0 if self._end.incoming is None or self._end.incoming.ended else None
        return None if self._agent.alive or not self._node.up else self._agent.status

    @property
    def _runs(self) -> bool:
        """Whether the command is an agent that runs on a node that can be reached."""
        return self._attached is None and self._agent is not None and self._agent.alive and self._node.up

    def exit_reason(self) -> str:
        """Return how the command ended."""
        system.sleep(local.END_S if self._runs else END_S)
        if self._agent is None:
            return f"ended with status 1: {ABSENT} {self._attached}"
        status = self.poll()
        if status is None:
            return "closed its output"
        return f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"

    def close(self) -> None:
        """Close the input of the command."""
        outgoing = self._end.outgoing
        if not self._closed and outgoing is not None and not outgoing.broken:
            self._closed = True
            outgoing.put(None)

    def kill(self) -> None:
        """Kill the command if the node can be reached, and release the descriptor."""
        if self._agent is not None and self._runs:
            system.sleep(END_S)
            if self._node.up:
                self._agent.kill()
        system.current().close(self._end.fd)


class VirtualProvider(local.UnpreparedNodes):
    """Virtual nodes. Jobs on them write no files."""

    name = "virtual"
    Settings = VirtualSettings
    shared = False

    def __init__(self, group: Group, folder: Path, on_step: Callable[[str], None]) -> None:
        """Find the nodes, all emulated, in the virtual world, or make them."""
        here = system.current()
        if not isinstance(here, VirtualWorld):
            hint = "replay on them: `tracebed replay --inventory`"
            raise InputError("virtual nodes exist only in a replay", where=f"group {group.name}", hint=hint)
        self.world, self.folder = here, folder
        settings = group.settings
        assert isinstance(settings, VirtualSettings)
        for node in group.nodes:
            if not node.emulated:
                hint = "set `emulated: true`: nothing is computed on it"
                raise InputError("a virtual node has no CPUs", where=f"node {node.name}", hint=hint)
            if node.name not in here.nodes:
                here.nodes[node.name] = VirtualNode(here, node.name, node.cores, settings.latency_s, settings.launch_s)

    @staticmethod
    def make_world(inventory: Inventory, speed: float, lasts_s: float) -> VirtualWorld:
        """Return the present virtual world, or one for a replay on `inventory` with the faults of its nodes."""
        here = system.current()
        if isinstance(here, VirtualWorld):
            return here
        remove_leftovers()
        made: VirtualWorld | None = None
        for group in inventory.groups:
            settings = group.settings
            assert isinstance(settings, VirtualSettings)
            made = made or VirtualWorld(settings.seed)
            if settings.mtbf_h is not None:
                names = [node.name for node in group.nodes]
                seed = f"{settings.seed} {group.name}"
                arm(made, drawn_outages(seed, names, 3600 * settings.mtbf_h, speed * lasts_s, speed))
        assert made is not None
        made.observers.append(partial(_note_fault, made, speed))
        return made

    def run(self, node: Node, arguments: Sequence[str]) -> VirtualChannel:
        """Start an agent, or attach to one."""
        system.sleep(RUN_S * self.world.draw.lognormvariate(0.0, 0.5))
        host = self.world.nodes[node.name]
        if not host.up:
            raise TestbedError("the node cannot be reached", where=f"node {node.name}", transient=True)
        here = self.world
        end, other = here.connection(here.controller, None, host.latency_s)
        if not arguments:
            return VirtualChannel(host, end, host.start_agent(other), attached=None)
        path = arguments[1]
        agent = next((agent for agent in host.agents if agent.listens_at(path)), None)
        if agent is None:
            here.close(other.fd)
        else:
            agent.attach(other)
        return VirtualChannel(host, end, agent, attached=path)
