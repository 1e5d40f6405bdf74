"""The nodes of a replay that sleep.

The cluster decides which nodes are switched off, and which boot. A node that is switched off has no agent, and a node
that is switched on has a fresh one. A shutdown is over when the agent has ended, a boot when the agent is up, and
neither before its duration in trace time. A job on nodes that boot is launched when all of them are on.
"""

from __future__ import annotations

import math

from tracebed.machine.power import PowerState
from tracebed.orchestrator.replay.executor import Ranks, Rounds
from tracebed.orchestrator.scheduling.pools import AnyScheduler
from tracebed.orchestrator.scheduling.record import ScheduleRecord
from tracebed.orchestrator.scheduling.sleeping import Sleeping, WatchedCluster, switch_off
from tracebed.orchestrator.scheduling.windows import MOST_WINDOWS, Watched, WatchedWindows, switch
from tracebed.orchestrator.testbeds.base import Event, Testbed


class Sleepers:
    """The power of the nodes of a replay: their states, and the changes under way.

    Attributes:
        state: the state of each node.
    """

    def __init__(
        self,
        testbed: Testbed,
        ranks: Ranks,
        record: ScheduleRecord,
        rounds: Rounds,
        scheduler: AnyScheduler,
        cluster: Watched,
        sleeping: Sleeping,
    ) -> None:
        """Begin with nodes that are on."""
        self.testbed, self.ranks, self.record, self.rounds = testbed, ranks, record, rounds
        self.scheduler, self.cluster = scheduler, cluster
        self.state = [PowerState.ON] * len(cluster)
        self._least_s = {PowerState.SHUTDOWN: sleeping.shutdown_s.tolist(), PowerState.BOOT: sleeping.boot_s.tolist()}
        self._until: dict[int, float] = {}  # node that changes -> the change is not over before, trace s
        self._done: set[int] = set()  # of these, the nodes whose agent has ended, or is up
        self._orders: list[int] = []  # nodes for whose agents the testbed has not been told to end or to start
        self._windows = 0  # number of windows that had begun when a job ran, or was to be submitted

    @property
    def due(self) -> float:
        """The time at which a change is over, or a node may be switched off, trace s; infinity: an event is first."""
        return min(self.cluster.next, *(self._until[node] for node in self._done), math.inf)

    @property
    def changing(self) -> bool:
        """Whether numbers hold nodes that are not lost, until these are off, or on. Then jobs that wait may have them.

        After several windows without another event, they never get what they need.
        """
        if self.cluster.windows - self._windows >= MOST_WINDOWS:
            return False
        return any(node not in self.cluster.lost for node in self.cluster.stopping)

    def note_progress(self) -> None:
        """Note that a job runs, or is to be submitted."""
        self._windows = self.cluster.windows

    def handle(self, event: Event) -> bool:
        """Note what an event means for a node that changes. Return whether it means nothing else.

        Nothing was lost with an agent that is to end, and its errors no longer matter.
        """
        kind, node = event.message["type"], event.node
        state = self.state[node]
        if (kind, state) in (("asleep", PowerState.SHUTDOWN), ("back", PowerState.BOOT)):
            self._done.add(node)
        elif (kind, state) == ("lost", PowerState.BOOT):
            self._done.discard(node)
        return state in (PowerState.SHUTDOWN, PowerState.OFF)

    def complete(self, now: float) -> bool:
        """End the changes that are over, and launch the jobs that waited for boots. Return whether nodes are idle."""
        over = sorted(node for node in self._done if self._until[node] <= now)
        changed = False
        for node in over:
            self._done.remove(node)
            del self._until[node]
            state = PowerState.OFF if self.state[node] is PowerState.SHUTDOWN else PowerState.ON
            self._enter(node, state)
            changed |= self.cluster.enter(node, state, self.scheduler, now)
        if on := {node for node in over if self.state[node] is PowerState.ON}:
            for job in [job for job, active in self.ranks.running.items() if not on.isdisjoint(active.to_launch)]:
                self.ranks.launch(job)
        return changed

    def follow_windows(self, now: float) -> bool:
        """Begin and end windows, if these are the rule. Return whether jobs may have more or fewer nodes."""
        cluster = self.cluster
        if not isinstance(cluster, WatchedWindows):
            return False
        before = cluster.windows, cluster.is_open
        changed = switch(cluster, self.scheduler, now)
        if before != (after := (cluster.windows, cluster.is_open)):
            self.rounds.note("window", number=after[0], is_open=after[1])
        return changed

    def switch_off(self, now: float) -> None:
        """Switch off the nodes that have been idle for long enough, and begin all shutdowns and boots."""
        if isinstance(self.cluster, WatchedCluster):
            switch_off(self.cluster, self.scheduler, now)
        for node, state in self.cluster.take_orders():
            self._enter(node, state)
            self._until[node] = now + self._least_s[state][node]
            self._orders.append(node)

    def send(self) -> None:
        """Pass the orders of this round to the testbed."""
        for node in self.take_orders():
            (self.testbed.wake if self.state[node] is PowerState.BOOT else self.testbed.sleep)(node)

    def take_orders(self) -> list[int]:
        """Return the nodes with an order that was not passed to the testbed, and forget the orders."""
        orders, self._orders = self._orders, []
        return orders

    def _enter(self, node: int, state: PowerState) -> None:
        self.state[node] = state
        (self.ranks.not_on.discard if state is PowerState.ON else self.ranks.not_on.add)(node)
        self.record.power.add(node, self.rounds.now, state)
        self.rounds.note_node("power", node, state=str(state))

    # -- resumption ------------------------------------------------------------------------------------------------

    @property
    def asleep(self) -> list[str]:
        """The names of the nodes that have no agent."""
        ended = {node for node in self._done if self.state[node] is PowerState.SHUTDOWN}
        off = {node for node, state in enumerate(self.state) if state is PowerState.OFF}
        return self.ranks.names(sorted(off | ended))

    def awaits_agent(self, node: int) -> bool:
        """Return whether `node` boots, and its agent is not up yet."""
        return self.state[node] is PowerState.BOOT and node not in self._done

    def order_again(self) -> None:
        """Repeat the orders of shutdowns whose agents may run: the killed replayer may not have passed them on."""
        for node in sorted(self._until.keys() - self._done):
            if self.state[node] is PowerState.SHUTDOWN:
                self.testbed.sleep(node)
