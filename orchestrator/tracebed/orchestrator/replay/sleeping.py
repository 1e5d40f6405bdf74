"""The nodes of a replay that sleep.

A node that is switched off has no agent, and a node that is switched on has a fresh one. A shutdown ends when the agent
has ended, a boot when the agent is up, and neither before its duration in trace time is over. A job on nodes that are
not on is launched when all of them are.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from tracebed.machine.power import PowerState
from tracebed.orchestrator.replay.executor import Ranks, Rounds
from tracebed.orchestrator.scheduling.cluster import Cluster
from tracebed.orchestrator.scheduling.record import ScheduleRecord
from tracebed.orchestrator.simulation.sleeping import Sleeping
from tracebed.orchestrator.testbeds.base import Event, Testbed


class Sleepers:
    """The power of the nodes of a replay: their states, and the changes under way.

    Attributes:
        state: the state of each node.
        not_on: the nodes that are not on, on which no rank is launched.
    """

    def __init__(
        self, testbed: Testbed, ranks: Ranks, record: ScheduleRecord, rounds: Rounds, sleeping: Sleeping | None
    ) -> None:
        """Begin with nodes that are on. Without `sleeping`, they stay on."""
        self.testbed, self.ranks, self.record, self.rounds, self.sleeping = testbed, ranks, record, rounds, sleeping
        self.state = [PowerState.ON] * len(testbed.nodes)
        self._idle_since: dict[int, float] = {}
        self.not_on: set[int] = ranks.not_on
        self._until: dict[int, float] = {}  # node that changes -> the change is not over before, trace s
        self._done: set[int] = set()  # of these, the nodes whose agent has ended, or is up
        self._needed: set[int] = set()  # nodes that are being switched off, and that a job needs
        self._orders: list[int] = []  # nodes for whose agents the testbed has not been told to end or to start

    @property
    def due(self) -> float:
        """The time at which the next change is over, trace s; infinity: it depends on an agent."""
        over = min((self._until[node] for node in self._done), default=math.inf)
        return min(over, self._off_at)

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

    def switch_off(self, nodes: Iterable[int]) -> None:
        """Begin the shutdown of nodes that are on, and have no job."""
        for node in nodes:
            self._enter(node, PowerState.SHUTDOWN)
            self._change(node, self.sleeping.shutdown_s[node])

    def need(self, nodes: Iterable[int]) -> None:
        """Begin the boot of the `nodes` that are off. Those that are being switched off boot afterwards."""
        for node in nodes:
            if self.state[node] is PowerState.OFF:
                self._boot(node)
            elif self.state[node] is PowerState.SHUTDOWN:
                self._needed.add(node)

    def complete(self, now: float) -> list[int]:
        """End the changes that are over, launch the jobs that waited for them, and return the nodes that are on."""
        on = []
        for node in sorted(node for node in self._done if self._until[node] <= now):
            self._done.remove(node)
            del self._until[node]
            if self.state[node] is PowerState.BOOT:
                self._enter(node, PowerState.ON)
                on.append(node)
                continue
            self._enter(node, PowerState.OFF)
            if node in self._needed:
                self._needed.remove(node)
                self._boot(node)
        if on:
            for job in [job for job, active in self.ranks.running.items() if not {*on}.isdisjoint(active.to_launch)]:
                self.ranks.launch(job)
        return on

    def send(self) -> None:
        """Pass the orders of this round to the testbed."""
        for node in self.take_orders():
            (self.testbed.wake if self.state[node] is PowerState.BOOT else self.testbed.sleep)(node)

    def take_orders(self) -> list[int]:
        """Return the nodes with an order that was not passed to the testbed, and forget the orders."""
        orders, self._orders = self._orders, []
        return orders

    _off_at = math.inf

    def decide(self, cluster: Cluster, now: float) -> None:
        if self.sleeping is None:
            return
        idle = [node for node in cluster.idle if self.state[node] is PowerState.ON]
        self._idle_since = {node: self._idle_since.get(node, now) for node in idle}
        rule = self.sleeping.rule
        due = sorted(node for node in idle if self._idle_since[node] + rule.idle_s <= now)
        most = max(0, len(idle) - rule.keep)
        off = due[len(due) - min(most, len(due)) :]
        self.switch_off(off)
        for node in off:
            del self._idle_since[node]
        later = sorted(since + rule.idle_s for since in self._idle_since.values() if since + rule.idle_s > now)
        self._off_at = later[0] if len(self._idle_since) > rule.keep and later else math.inf

    # -- resumption ------------------------------------------------------------------------------------------------

    @property
    def asleep(self) -> list[str]:
        """The names of the nodes that have no agent."""
        off = [
            node
            for node, state in enumerate(self.state)
            if state is PowerState.OFF or (state is PowerState.SHUTDOWN and node in self._done)
        ]
        return self.ranks.names(off)

    def awaits_agent(self, node: int) -> bool:
        """Return whether `node` boots, and its agent is not up yet."""
        return self.state[node] is PowerState.BOOT and node not in self._done

    def order_again(self) -> None:
        """Repeat the orders of shutdowns whose agents may run: the killed replayer may not have passed them on."""
        for node in sorted(self._until.keys() - self._done):
            if self.state[node] is PowerState.SHUTDOWN:
                self.testbed.sleep(node)

    # --------------------------------------------------------------------------------------------------------------

    def _boot(self, node: int) -> None:
        self._enter(node, PowerState.BOOT)
        self._change(node, self.sleeping.boot_s[node])

    def _change(self, node: int, seconds: float) -> None:
        """Begin a change of the state of `node`, which takes at least `seconds` of trace time."""
        self._until[node] = self.rounds.now + seconds
        self._orders.append(node)

    def _enter(self, node: int, state: PowerState) -> None:
        self.state[node] = state
        (self.not_on.discard if state is PowerState.ON else self.not_on.add)(node)
        self.record.power.add(node, self.rounds.now, state)
        self.rounds.note_node("power", node, state=str(state))
