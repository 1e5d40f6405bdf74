"""Nodes that sleep: when nodes are switched off, and what a job that gets such nodes waits for."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Any

import numpy as np

from tracebed.converters.workload import FloatArray
from tracebed.ground.errors import InputError
from tracebed.machine.calendar import UNDATED, Clock
from tracebed.machine.machine import Machine
from tracebed.machine.power import PowerState, Sleep
from tracebed.orchestrator.scheduling.cluster import Cluster
from tracebed.orchestrator.scheduling.names import FIRST
from tracebed.orchestrator.scheduling.record import PowerChanges
from tracebed.orchestrator.scheduling.state import Policy, shares

if TYPE_CHECKING:
    from tracebed.orchestrator.scheduling.pools import AnyScheduler


@dataclass(frozen=True)
class Sleeping:
    """When nodes are switched off, and how long that takes."""

    rule: Sleep
    boot_s: FloatArray
    """Duration of the boot of each node, s, shape (nodes,)."""
    shutdown_s: FloatArray
    """Duration of the shutdown of each node, s, shape (nodes,)."""
    clock: Clock = field(default_factory=Clock)
    """The clock of the workload, of the times of the day."""

    @classmethod
    def of(cls, machine: Machine, clock: Clock | None = None) -> Sleeping | None:
        """Return the sleep of a machine; None: no node is switched off. `clock`: that of the workload.

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
        return cls(machine.sleep, boot_s.astype(np.float64), shutdown_s.astype(np.float64), clock or Clock())

    @property
    def warnings(self) -> list[str]:
        """The warnings of a run whose nodes sleep."""
        undated = self.rule.rule == "windows" and self.clock.unix_start is None
        return [f"{UNDATED} in the window in which nodes are off"] if undated else []

    def check(self, policy: Policy) -> None:
        """Raise InputError if the nodes of a simulation or of a replay cannot sleep."""
        if self.rule.executor:
            what = f"the rule {self.rule.rule} is that of the executor {self.rule.executor}"
            raise InputError(what, hint="name no other executor, or use another rule")
        if shares(policy):
            what = f"nodes do not sleep under {type(policy).__name__}, which lets jobs share nodes"
            raise InputError(what, hint="leave out `sleep`, or use a policy of whole nodes")


class SwitchedCluster(Cluster):
    """A cluster whose nodes are switched off and on.

    A number beyond those of the jobs, by its first node, holds nodes that no job can have until a known instant. All of
    them belong to the same parts.

    Attributes:
        next: the next instant at which nodes change, or may change, s; infinite: there is none.
        windows: number of windows in which nodes are off that have begun.
    """

    next: float
    windows = 0

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
        """Start with nodes that are on. Changes are added to `power`. `jobs`: their number."""
        super().__init__(cores, sockets, placement)
        self._rule = sleeping.rule
        self._boot_s, self._shutdown_s = sleeping.boot_s.tolist(), sleeping.shutdown_s.tolist()
        self._power, self._jobs = power, jobs
        self._stops: list[tuple[float, int]] = []  # until when numbers hold nodes, and the numbers
        self._due = math.inf  # when nodes may change besides
        self._prepare(sleeping)

    def _prepare(self, sleeping: Sleeping) -> None:
        """Begin to follow the rule, when all nodes are on."""
        raise NotImplementedError

    def _set_aside_until(self, until: float, nodes: list[int], now: float) -> tuple[int, int, float]:
        """Let a number beyond those of the jobs hold idle nodes until `until`, s. Return it, how many, and `until`."""
        number = self._jobs + min(nodes)
        self._set_aside(number, nodes, now)
        heappush(self._stops, (until, number))
        return number, len(nodes), until

    def _set_aside(self, number: int, nodes: list[int], now: float) -> None:
        """Let `number` hold idle nodes."""
        self._held[number] = [(now, sorted(nodes))]
        self.set_idle(nodes, idle=False)

    @property
    def stopping(self) -> list[int]:
        """The first nodes that the numbers hold."""
        return [number - self._jobs for number in self._held if number >= self._jobs]

    def _parts_of(self, node: int) -> tuple[int, ...]:
        """Return the numbers of the parts with a node."""
        return tuple(at for at, part in enumerate(self.parts) if part.members[node])

    def stopped(self, now: float) -> Iterator[int]:
        """Yield the numbers that have held nodes until now. These nodes are idle."""
        while self._stops and self._stops[0][0] <= now:
            _, number = heappop(self._stops)
            ((_, nodes),) = self._held.pop(number)
            self._are_idle(nodes)
            self.set_idle(nodes, idle=True)
            yield number
        self._set_next()

    def fail(self, node: int, scheduler: AnyScheduler, now: float, *, down: bool) -> None:
        """Handle that an outage of `node` begins: it is down or drained now, and does not sleep. It returns on."""
        if self._leave_number(node, scheduler, now):
            self._power.interrupt(node, now)

    def _leave_number(self, node: int, scheduler: AnyScheduler, now: float) -> bool:
        """Let the number that holds `node` hold only the other nodes. Return whether there is one."""
        number = next((number for number in self.jobs_on(node) if number >= self._jobs), None)
        if number is None:
            return False
        stop = next(stop for stop in self._stops if stop[1] == number)
        self._stops.remove(stop)
        heapify(self._stops)
        scheduler.stopped(number, now)
        ((_, nodes),) = self._held.pop(number)
        if others := [other for other in nodes if other != node]:
            number, count, until = self._set_aside_until(stop[0], others, now)
            scheduler.stopping(number, count, until, now)
        return True

    def _are_idle(self, nodes: list[int]) -> None:
        """Note that no number holds `nodes` any more. Here: nothing."""

    def _set_next(self) -> None:
        self.next = min(self._due, self._stops[0][0] if self._stops else math.inf)


class SleepingCluster(SwitchedCluster):
    """A cluster whose nodes are switched off after some idle time, and boot for a job.

    Nodes that are off are idle. Nodes that are being switched off are not: a number beyond those of the jobs holds
    them until they are off. A job gets idle nodes that are on, then those that boot, then those that are off, lowest
    numbers first, if neither a policy nor a placement chooses them. Nodes of smaller weight come first of each kind.
    """

    def _prepare(self, sleeping: Sleeping) -> None:
        """Let all nodes be idle since time 0."""
        self._on_from = [0.0] * len(self)  # infinite: the node is off, or is being switched off
        self._off: set[int] = set()  # the idle nodes that are off
        self._waking: set[int] = set()  # idle nodes that were booting when their job gave them back
        self._idle_since = [0.0] * len(self)  # NaN: the node is not idle, or not on
        # (since, -node) of each idle node, longest idle first, then highest number; an entry may be outdated
        self._resting = [(0.0, -node) for node in reversed(range(len(self)))]
        self._returned: list[int] = []  # nodes that returned, and are idle from now on
        self.next = self._due = self._rule.rest_s

    def on_from(self, nodes: Sequence[int], now: float) -> float:
        """Return the instant from which on all `nodes` are on, s; not before `now`. They are not off."""
        return max([now, *(self._on_from[node] for node in nodes)])

    def take(self, job: int, count: int, now: float, on: Sequence[int] = ()) -> list[int]:
        """Allocate idle nodes as a cluster does, first those that are on, and boot those that are off."""
        self._waking -= {node for node in self._waking if not self._boots(node, now)}
        if on or self._choose or count > len(self.idle) or not (self._off or self._waking):
            nodes = super().take(job, count, now, on)
        else:
            nodes, resting = [], self._off | self._waking
            awake = [node for node in self.idle if node not in resting]
            others = ([node for node in self.idle if node in kind] for kind in (self._waking, self._off))
            for alike in (awake, *others):
                if chosen := self.first(alike, count - len(nodes)):
                    nodes += super().take(job, len(chosen), now, chosen)
        for node in nodes:
            self._idle_since[node] = math.nan
            self._waking.discard(node)
            if node in self._off:
                self._off.remove(node)
                self._on_from[node] = now + self._boot_s[node]
                self._boot(node, now)
        return nodes

    def _boots(self, node: int, now: float) -> bool:
        """Return whether a node that was booting is not on yet."""
        return self._on_from[node] > now

    def _boot(self, node: int, now: float) -> None:
        """Begin the boot of a node, which is on from `_on_from` on."""
        self._power.add(node, now, PowerState.BOOT)
        self._power.add(node, self._on_from[node], PowerState.ON)

    def _return_nodes(self, job: int, since: float, nodes: list[int], now: float) -> None:
        super()._return_nodes(job, since, nodes, now)
        for node in nodes:
            self._rest(node, now)

    def _rest(self, node: int, now: float) -> None:
        """Let a node that is idle now, unless it is lost, be switched off later."""
        if node in self.lost:
            return
        self._idle_since[node] = idle_since = max(now, self._on_from[node])
        heappush(self._resting, (idle_since, -node))
        if idle_since > now:
            self._waking.add(node)

    def fail(self, node: int, scheduler: AnyScheduler, now: float, *, down: bool) -> None:
        """Handle that an outage of `node` begins. The boot for a job goes on if the node is drained only."""
        boots = now < self._on_from[node] < math.inf and (down or node in self._waking)
        if self._leave_number(node, scheduler, now) or boots or node in self._off:
            self._off.discard(node)
            self._on_from[node] = now
            self._power.interrupt(node, now)

    def lose(self, node: int) -> None:
        """Mark `node` as lost as a cluster does."""
        super().lose(node)
        self._idle_since[node] = math.nan
        self._waking.discard(node)

    def restore(self, node: int) -> None:
        """Bring `node` back as a cluster does. It is idle from now on."""
        super().restore(node)
        self._returned.append(node)

    def is_due(self, now: float) -> bool:
        """Return whether a node has been idle for long enough; if not, set when the next one may have been."""
        if self._returned:
            available = {*self.available}
            for node in self._returned:
                if node in available and math.isnan(self._idle_since[node]):
                    self._rest(node, now)
            self._returned.clear()
        while self._resting and self._idle_since[-self._resting[0][1]] != self._resting[0][0]:
            heappop(self._resting)
        self._due = self._resting[0][0] + self._rule.rest_s if self._resting else math.inf
        self._set_next()
        return self._due <= now

    def switch_off(self, now: float, needed: Sequence[int]) -> Iterator[tuple[int, int, float]]:
        """Switch off the nodes that have been idle for long enough, the longest first, then the highest numbers.

        In each part, `keep` nodes stay on beside the `needed` ones, which are set aside for jobs or which the first
        waiting job needs. Yield for all nodes that take the same time: the number that holds them, how many they are,
        and when they are off, s.
        """
        chosen: dict[tuple[float, tuple[int, ...]], list[int]] = {}  # until when, and parts -> nodes
        for node in self._rested(now, needed):
            until = now + self._shutdown_s[node]
            chosen.setdefault((until, self._parts_of(node)), []).append(node)
            self._power.add(node, now, PowerState.SHUTDOWN)
            self._power.add(node, until, PowerState.OFF)
        for (until, _), nodes in chosen.items():
            if until == now:
                self._off.update(nodes)
            else:
                yield self._set_aside_until(until, nodes, now)
        self._set_next()

    def _rested(self, now: float, needed: Sequence[int]) -> list[int]:
        """Return the nodes that have been idle for long enough, and are no longer idle (`switch_off`)."""
        nodes: list[int] = []
        needed_on: list[tuple[float, int]] = []
        awake = [len({*part.available} - self._off) for part in self.parts] or [len(self.idle) - len(self._off)]
        # No number is needed if no node can serve a job: there is no pool, in which nodes would stay on.
        spare = [count - self._rule.keep - need for count, need in zip(awake, needed, strict=bool(needed))]
        while (self.parts or not spare or spare[0] > 0) and self.is_due(now):
            entry = heappop(self._resting)
            node = -entry[1]
            parts = self._parts_of(node) if self.parts else range(len(spare))
            if any(spare[part] <= 0 for part in parts):
                needed_on.append(entry)
                continue
            for part in parts:
                spare[part] -= 1
            nodes.append(node)
            self._on_from[node], self._idle_since[node] = math.inf, math.nan
            self._waking.discard(node)
        if self.is_due(now):
            self._due = math.inf  # until a job releases nodes
        for entry in needed_on:
            heappush(self._resting, entry)
        return nodes

    def _are_idle(self, nodes: list[int]) -> None:
        self._off.update(nodes)


class WatchedCluster(SleepingCluster):
    """A sleeping cluster whose executor reports when nodes are off, and on, as that of a replay does.

    The times of shutdowns and boots are the shortest possible ones. Nodes are not lost while they are off or being
    switched off: that is noticed at the boot.
    """

    def __init__(self, *arguments: Any, since: float, **settings: Any) -> None:
        """Start with nodes that are on, and idle `since` an instant, s. The rest is as for `SleepingCluster`."""
        super().__init__(*arguments, **settings)
        self._orders: list[tuple[int, PowerState]] = []
        self._booting: set[int] = set()
        self._awaited: dict[int, set[int]] = {}  # job -> the booting nodes for which its start waits
        self._idle_since = [since] * len(self)
        self._resting = [(since, -node) for node in reversed(range(len(self)))]
        self.next = self._due = since + self._rule.rest_s

    def take(self, job: int, count: int, now: float, on: Sequence[int] = ()) -> list[int]:
        """Allocate idle nodes. A job that starts waits for those that boot."""
        starts = job not in self._held
        nodes = super().take(job, count, now, on)
        if starts and (awaited := self._booting.intersection(nodes)):
            self._awaited[job] = awaited
        return nodes

    def release(self, job: int, now: float) -> list[int]:
        """Release all nodes of `job`, which may have waited for some of them."""
        self._awaited.pop(job, None)
        return super().release(job, now)

    def _boots(self, node: int, now: float) -> bool:
        return node in self._booting

    def _boot(self, node: int, now: float) -> None:
        self._booting.add(node)
        self._orders.append((node, PowerState.BOOT))

    def _rest(self, node: int, now: float) -> None:
        if node in self._booting and node not in self.lost:
            self._waking.add(node)
        else:
            super()._rest(node, now)

    def switch_off(self, now: float, needed: Sequence[int]) -> Iterator[tuple[int, int, float]]:
        """Switch nodes off as a sleeping cluster does, each with a number of its own."""
        for node in self._rested(now, needed):
            self._orders.append((node, PowerState.SHUTDOWN))
            self._set_aside(self._jobs + node, [node], now)
            yield self._jobs + node, 1, now + self._shutdown_s[node]
        self._set_next()

    def take_orders(self) -> list[tuple[int, PowerState]]:
        """Return the nodes whose shutdown or boot begins, with the state that begins, and forget them."""
        orders = [*self._orders]
        self._orders.clear()
        return orders

    def enter(self, node: int, state: PowerState, scheduler: AnyScheduler, now: float) -> bool:
        """Handle that `node` is off, and thus idle, or on. Return whether a number has held it until now.

        The jobs that waited for a node that is on, and wait for no other node, begin.
        """
        if state is PowerState.OFF:
            del self._held[self._jobs + node]
            self._off.add(node)
            self.set_idle([node], idle=True)
            scheduler.stopped(self._jobs + node, now)
            return True
        self._booting.remove(node)
        self._on_from[node] = now
        if node in self._waking:
            self._waking.remove(node)
            self._rest(node, now)
        for job, awaited in list(self._awaited.items()):
            awaited.discard(node)
            if not awaited:
                del self._awaited[job]
                scheduler.began(job, now)
        return False


def end_stops(cluster: SwitchedCluster, scheduler: AnyScheduler, now: float) -> bool:
    """Handle that numbers have held nodes until now, which are idle; return whether there are any."""
    numbers = [*cluster.stopped(now)]
    for number in numbers:
        scheduler.stopped(number, now)
    return bool(numbers)


def switch_off(cluster: SleepingCluster, scheduler: AnyScheduler, now: float) -> None:
    """Switch off the nodes that have been idle for long enough, but those that jobs need."""
    if cluster.is_due(now):
        for number, nodes, until in [*cluster.switch_off(now, scheduler.needed(now))]:
            scheduler.stopping(number, nodes, until, now)
