"""Nodes that are off in a window of each day: when they are switched off and on, and which jobs leave them."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from tracebed.machine.calendar import Clock
from tracebed.machine.power import PowerState, Sleep, seconds_of_day, share_of
from tracebed.orchestrator.scheduling.cluster import Cluster
from tracebed.orchestrator.scheduling.jobs import Jobs
from tracebed.orchestrator.scheduling.pools import AnyScheduler
from tracebed.orchestrator.scheduling.record import PowerChanges
from tracebed.orchestrator.scheduling.sleeping import Sleeping, SwitchedCluster, WatchedCluster, end_stops

MOST_WINDOWS = 3
"""Number of windows with nodes that are off, without another event, after which the waiting jobs never start."""


def windows_of(rule: Sleep, clock: Clock) -> Iterator[tuple[float, float]]:
    """Yield begin and end of each window that ends after time 0, trace s, without end."""
    start, end = seconds_of_day("start", rule.start), seconds_of_day("end", rule.end)
    day, last = clock.day(0.0) - 2, 0.0
    while True:
        day += 1
        # A change to summer time may let a window begin before the end of the last one, or let one last no time.
        begin, until = clock.instant(day, start), clock.instant(day + (end < start), end)
        if begin < until and until > last:
            yield (max(begin, last) if last else begin), until
            last = until


class WindowedCluster(SwitchedCluster):
    """A cluster whose first nodes are off in a window of each day.

    A number beyond those of the jobs holds the nodes from their shutdown to the end of their boot, which is known.
    Nodes that jobs hold in the window are lost, and switched off when the jobs have released them. If neither a policy
    nor a placement chooses the nodes, a job that is expected to end after the begin of the next window gets nodes that
    stay on first. A node that is lost in the window, though a job held it at its begin, is not busy any more.

    Attributes:
        begin: begin of the present or the next window, s. It may be before time 0.
        end: end of this window, s.
        is_open: whether this window has begun.
        first_on: number of nodes that are off in windows, those with numbers below it.
        busy: the nodes that were not switched off since jobs hold them, or have held them until now.
        resizing: the jobs that may leave nodes when their pending resizes have taken effect.
        shrinks: whether malleable jobs leave nodes that are to be off.
    """

    def _prepare(self, sleeping: Sleeping) -> None:
        """Wait for the first window."""
        self.first_on, self.shrinks = share_of(len(self), sleeping.rule.share), sleeping.rule.shrink
        self._windows = windows_of(sleeping.rule, sleeping.clock)
        self._coming: deque[tuple[float, float]] = deque()  # the next windows, if known
        self.busy: set[int] = set()
        self.resizing: list[int] = []
        self._released: set[int] = set()  # of the busy nodes, those that jobs have released
        self._asleep: list[tuple[int, float, float]] = []  # node, when it boots, and when it is on
        self._whole = self  # also in its parts
        self._await()

    def _await(self) -> None:
        """Wait for the next window."""
        self.is_open = False
        self.begin, self.end = self._coming.popleft() if self._coming else next(self._windows)
        self._due = max(0.0, self.begin) if self.first_on else math.inf
        self._set_next()

    def skip(self, now: float) -> None:
        """Skip the windows that have ended before `now` and did not begin: no event was handled in them."""
        while not self.is_open and self.end <= now:
            self._await()

    def open(self) -> None:
        """Begin the window."""
        self.is_open, self.windows, self._due = True, self.windows + 1, self.end
        self._set_next()

    def close(self) -> None:
        """End the window: let the nodes that are off boot."""
        self.busy.clear()
        self.resizing.clear()
        self._await()
        for node, boots, on in self._asleep:
            if boots < self.begin:
                self._power.add(node, boots, PowerState.BOOT)
                self._power.add(node, on, PowerState.ON)
        self._asleep = [change for change in self._asleep if not change[1] < self.begin]

    def _boot_time(self, off: float) -> float:
        """Return when a node boots that is off from `off` on, s: at the end of the window, or of the one at `off`."""
        boots = max(self.end, off)
        for begin, end in self._following():
            if boots < begin:
                break
            boots = max(boots, end)
        return boots

    def _following(self) -> Iterator[tuple[float, float]]:
        """Yield the windows after this one."""
        yield from [*self._coming]
        while True:
            self._coming.append(next(self._windows))
            yield self._coming[-1]

    def take(self, job: int, count: int, now: float, on: Sequence[int] = ()) -> list[int]:
        """Allocate idle nodes as a cluster does, first those that stay on if the job may run into the window."""
        first = bisect_left(self.idle, self.first_on)
        others = self.first(self.idle[first:], count)
        if on or self._choose or first == 0 or not others or self.expected_end[job] <= self._whole.begin:
            return super().take(job, count, now, on)
        nodes = super().take(job, len(others), now, others)  # the first node of the job is one of these
        return nodes + super().take(job, count - len(others), now) if len(others) < count else nodes

    def released(self) -> set[int]:
        """Return the busy nodes that are not busy any more."""
        released = self._released & self.busy
        self.busy -= released
        return released

    def switch_off(self, now: float) -> Iterator[tuple[int, int, float]]:
        """Switch off the idle nodes of the window.

        Yield for all nodes that are on again at one instant: the number that holds them, how many they are, and that
        instant, s.
        """
        idle = self.available
        if not idle or idle[0] >= self.first_on:
            return
        since = self.begin if self.begin < 0 and now == 0 else now  # nodes may be off at time 0
        chosen: dict[tuple[float, tuple[int, ...]], list[int]] = {}  # when on again, and parts -> nodes
        for node in idle[: bisect_left(idle, self.first_on)]:
            off = since + self._shutdown_s[node]
            self._power.add(node, max(0.0, since), PowerState.SHUTDOWN)
            self._power.add(node, max(0.0, off), PowerState.OFF)
            boots = self._boot_time(off)
            self._asleep.append((node, boots, boots + self._boot_s[node]))
            chosen.setdefault((boots + self._boot_s[node], self._parts_of(node)), []).append(node)
        for (until, _), nodes in chosen.items():
            yield self._set_aside_until(until, nodes, now)
        self._set_next()

    def fail(self, node: int, scheduler: AnyScheduler, now: float, *, down: bool) -> None:
        """Handle that an outage of `node` begins. It does not boot at the end of the window."""
        super().fail(node, scheduler, now, down=down)
        self._asleep = [change for change in self._asleep if change[0] != node]

    def lose(self, node: int) -> None:
        """Mark `node` as lost as a cluster does. If it is busy already, it must return itself."""
        self.busy.discard(node)
        super().lose(node)

    def restore(self, node: int) -> None:
        """Bring `node` back as a cluster does, without a search for the jobs that hold a busy node."""
        self.lost.discard(node)
        if node in self._released:
            self._released.remove(node)
            insort(self.idle, node)
        elif node not in self.busy:
            super().restore(node)

    def _return_nodes(self, job: int, since: float, nodes: list[int], now: float) -> None:
        super()._return_nodes(job, since, nodes, now)
        self._released.update(self.lost.intersection(nodes))


class WatchedWindows(WindowedCluster):
    """A windowed cluster whose executor reports when nodes are off, and on, as that of a replay does.

    A node boots at the end of the window, or when it is off after that. Nodes may be lost, but not while they are off
    or being switched off.
    """

    def __init__(self, *arguments: Any, since: float, **settings: Any) -> None:
        """Start with nodes that are on, whose first window begins `since` an instant, s, at the earliest."""
        super().__init__(*arguments, **settings)
        self._orders: list[tuple[int, PowerState]] = []
        self._off: set[int] = set()
        self.skip(since)
        if self.first_on:
            self.begin = self._due = max(self.begin, since)
            self._set_next()

    def switch_off(self, now: float) -> Iterator[tuple[int, int, float]]:
        """Switch off the idle nodes of the window as a windowed cluster does, each with a number of its own."""
        idle = self.available
        for node in idle[: bisect_left(idle, self.first_on)]:
            self._orders.append((node, PowerState.SHUTDOWN))
            self._set_aside(self._jobs + node, [node], now)
            yield self._jobs + node, 1, self._boot_time(now + self._shutdown_s[node]) + self._boot_s[node]

    def take_orders(self) -> list[tuple[int, PowerState]]:
        """Return the nodes whose shutdown or boot begins, with the state that begins, and forget them."""
        orders, self._orders = self._orders, []
        if not self.is_open:
            orders += [(node, PowerState.BOOT) for node in sorted(self._off)]
            self._off.clear()
        return orders

    def enter(self, node: int, state: PowerState, scheduler: AnyScheduler, now: float) -> bool:
        """Handle that `node` is off, or on, and thus idle. Return whether it is idle."""
        if state is PowerState.OFF:
            self._off.add(node)
            return False
        del self._held[self._jobs + node]
        self.set_idle([node], idle=True)
        scheduler.stopped(self._jobs + node, now)
        return True


Watched = WatchedCluster | WatchedWindows
"""A cluster of a replay whose nodes sleep."""


def watched_cluster(
    cores: Sequence[int], sockets: Sequence[int], placement: str, jobs: Jobs, sleeping: Sleeping | None
) -> Cluster:
    """Return the cluster of a replay, whose nodes are on at the first submission. Without `sleeping`, they stay on."""
    if sleeping is None:
        return Cluster(cores, sockets, placement)
    kind = WatchedCluster if sleeping.rule.rule == "idle" else WatchedWindows
    changes, since = PowerChanges(), jobs.submit[0]  # the replay records the changes
    return kind(cores, sockets, placement, sleeping=sleeping, power=changes, jobs=len(jobs), since=since)


def switch(cluster: WindowedCluster, scheduler: AnyScheduler, now: float) -> bool:
    """Switch nodes off and on as the window says; return whether jobs may have more or fewer nodes.

    The ends of jobs and the effects of their resizes at `now` have been handled. No decision of a policy releases a
    node that is lost, so that this is done once at each instant.
    """
    changed = end_stops(cluster, scheduler, now)
    if cluster.is_open and cluster.end <= now:
        scheduler.nodes_back([*cluster.busy], now)
        scheduler.nodes_changed(range(cluster.first_on))  # also in the pools without busy nodes
        cluster.close()
        changed = True
    cluster.skip(now)
    if begins := not cluster.is_open and cluster.begin <= now and cluster.first_on > 0:
        cluster.open()
    if not cluster.is_open:
        return changed
    if cluster.shrinks:
        jobs = scheduler.running if begins else cluster.resizing
        cluster.resizing = [job for job in jobs if not scheduler.leave(job, cluster.first_on, now)]
    if released := cluster.released():
        scheduler.nodes_back([*released], now)
    off = [*cluster.switch_off(now)]
    for number, nodes, until in off:
        scheduler.stopping(number, nodes, until, now, calls=True)
    if begins:
        held = (node for job in scheduler.running for node in cluster.owned(job))
        busy = {node for node in held if node < cluster.first_on} - cluster.lost
        scheduler.nodes_drained([*busy], now)
        scheduler.nodes_changed(range(cluster.first_on))
        cluster.busy.update(busy)  # now, since a busy node that is lost is not drained by the window
    return changed or begins or bool(off)
