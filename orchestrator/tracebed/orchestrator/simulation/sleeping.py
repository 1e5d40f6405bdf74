"""Nodes that sleep, in a simulation: when nodes are switched off, and what a job that gets such nodes waits for."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np

from tracebed.converters.workload import FloatArray
from tracebed.ground.errors import InputError
from tracebed.machine.machine import Machine
from tracebed.machine.power import PowerState, Sleep
from tracebed.orchestrator.scheduling.cluster import Cluster
from tracebed.orchestrator.scheduling.names import FIRST
from tracebed.orchestrator.scheduling.record import PowerChanges
from tracebed.orchestrator.scheduling.state import Policy, shares


@dataclass(frozen=True)
class Sleeping:
    """When nodes are switched off, and how long that takes."""

    rule: Sleep
    boot_s: FloatArray
    """Duration of the boot of each node, s, shape (nodes,)."""
    shutdown_s: FloatArray
    """Duration of the shutdown of each node, s, shape (nodes,)."""

    @classmethod
    def of(cls, machine: Machine) -> Sleeping | None:
        """Return the sleep of a machine; None: no node is switched off.

        Raises:
            InputError: the power of a class of nodes is unknown.
        """
        if machine.sleep is None:
            return None
        powers = []
        for number, kind in enumerate(machine.classes, 1):
            if kind.power is None:
                what = f"class {number} of the machine has no `power`, and its nodes sleep"
                raise InputError(what, hint="give the class `power`, with boot_s and shutdown_s")
            powers.append(kind.power)
        counts = [kind.size for kind in machine.classes]
        boot_s, shutdown_s = (
            np.repeat([getattr(power, name) for power in powers], counts) for name in ("boot_s", "shutdown_s")
        )
        return cls(machine.sleep, boot_s.astype(np.float64), shutdown_s.astype(np.float64))

    def check(self, machine: Machine, policy: Policy, *, outages: bool) -> None:
        """Raise InputError if nodes of a simulation cannot sleep."""
        if shares(policy):
            what = f"nodes do not sleep under {type(policy).__name__}, which lets jobs share nodes"
            raise InputError(what, hint="leave out `sleep`, or use a policy of whole nodes")
        if not machine.plain:
            what = "nodes do not sleep on a machine with partitions, memory, gres, features or weights"
            raise InputError(what, hint="leave out `sleep`, or these keys")
        if outages:
            raise InputError("nodes that have outages do not sleep", hint="leave out `sleep`, or the outages")


class SleepingCluster(Cluster):
    """A cluster whose nodes are switched off after some idle time, and boot for a job.

    Nodes that are off are idle. Nodes that are being switched off are not: a number beyond those of the jobs holds
    them until they are off. A job gets idle nodes that are on, then those that boot, then those that are off, lowest
    numbers first, if neither a policy nor a placement chooses them.

    Attributes:
        next: the next instant at which nodes are off, or may be switched off, s; infinite: there is none.
    """

    def __init__(
        self,
        cores: Sequence[int],
        sockets: Sequence[int] | None,
        placement: str = FIRST,
        *,
        sleeping: Sleeping,
        power: PowerChanges,
        jobs: int,
    ) -> None:
        """Start with nodes that are on, and idle since time 0. Changes are added to `power`. `jobs`: their number."""
        super().__init__(cores, sockets, placement)
        self._rule = sleeping.rule
        self._boot_s, self._shutdown_s = sleeping.boot_s.tolist(), sleeping.shutdown_s.tolist()
        self._power, self._jobs = power, jobs
        self._on_from = [0.0] * len(cores)  # infinite: the node is off, or is being switched off
        self._off: set[int] = set()  # the idle nodes that are off
        self._waking: set[int] = set()  # idle nodes that were booting when their job gave them back
        self._idle_since = [0.0] * len(cores)  # NaN: the node is not idle, or not on
        # (since, -node) of each idle node, longest idle first, then highest number; an entry may be outdated
        self._resting = [(0.0, -node) for node in reversed(range(len(cores)))]
        self._stops: list[tuple[float, int]] = []  # when nodes are off, and the number that holds them
        self.next = self._due = self._rule.idle_s

    def on_from(self, nodes: Sequence[int], now: float) -> float:
        """Return the instant from which on all `nodes` are on, s; not before `now`. They are not off."""
        return max([now, *(self._on_from[node] for node in nodes)])

    def take(self, job: int, count: int, now: float, on: Sequence[int] = ()) -> list[int]:
        """Allocate idle nodes as a cluster does, first those that are on, and boot those that are off."""
        self._waking = {node for node in self._waking if self._on_from[node] > now}
        if on or self._choose or count > len(self.idle) or not (self._off or self._waking):
            nodes = super().take(job, count, now, on)
        else:
            nodes, resting = [], self._off | self._waking
            awake = [node for node in self.idle if node not in resting]
            for alike in (awake, sorted(self._waking), sorted(self._off)):
                if part := alike[: count - len(nodes)]:
                    nodes += super().take(job, len(part), now, part)
        for node in nodes:
            self._idle_since[node] = math.nan
            self._waking.discard(node)
            if node in self._off:
                self._off.remove(node)
                self._on_from[node] = now + self._boot_s[node]
                self._power.add(node, now, PowerState.BOOT)
                self._power.add(node, self._on_from[node], PowerState.ON)
        return nodes

    def _return_nodes(self, job: int, since: float, nodes: list[int], now: float) -> None:
        super()._return_nodes(job, since, nodes, now)
        for node in nodes:
            self._idle_since[node] = idle_since = max(now, self._on_from[node])
            heappush(self._resting, (idle_since, -node))
            if idle_since > now:
                self._waking.add(node)

    def switch_off(self, now: float, needed: int) -> Iterator[tuple[int, int, float]]:
        """Switch off the nodes that have been idle for long enough, the longest first, then the highest numbers.

        `keep` nodes stay on beside the `needed` ones, which are set aside for jobs or which the first waiting job
        needs. Yield for all nodes that take the same time: the number that holds them, how many they are, and when they
        are off, s.
        """
        chosen: dict[float, list[int]] = {}  # until when -> nodes
        count, awake, self._due = 0, len(self.idle) - len(self._off), math.inf
        while self._resting:
            since, node = self._resting[0][0], -self._resting[0][1]
            if self._idle_since[node] == since:
                if since + self._rule.idle_s > now:
                    self._due = since + self._rule.idle_s
                    break
                if awake - count <= self._rule.keep + needed:
                    break  # until a job releases nodes
                count += 1
                until = now + self._shutdown_s[node]
                chosen.setdefault(until, []).append(node)
                self._power.add(node, now, PowerState.SHUTDOWN)
                self._power.add(node, until, PowerState.OFF)
                self._on_from[node], self._idle_since[node] = math.inf, math.nan
                self._waking.discard(node)
            heappop(self._resting)
        for until, nodes in chosen.items():
            if until == now:
                self._off.update(nodes)
                continue
            number = self._jobs + min(nodes)
            self._held[number] = [(now, sorted(nodes))]
            heappush(self._stops, (until, number))
            stopping = set(nodes)
            self.idle = [node for node in self.idle if node not in stopping]
            yield number, len(nodes), until
        self._set_next()

    def stopped(self, now: float) -> Iterator[int]:
        """Yield the numbers that have held nodes which are off now. These nodes are idle."""
        while self._stops and self._stops[0][0] <= now:
            _, number = heappop(self._stops)
            ((_, nodes),) = self._held.pop(number)
            self._off.update(nodes)
            self.idle = sorted(self.idle + nodes)
            yield number
        self._set_next()

    def _set_next(self) -> None:
        self.next = min(self._due, self._stops[0][0] if self._stops else math.inf)
