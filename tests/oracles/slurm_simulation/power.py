"""Slurm's power saving: the thread of slurmctld that switches idle nodes off, and nodes on for a job.

Source: slurm.conf(5), the guide "Power Saving" of Slurm, and experiments on Slurm 22.05.8
(docs/explanation/power-saving-of-slurm.md).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from tracebed.orchestrator.scheduling.node_masks import mask_of, nodes_of
from tracebed.orchestrator.scheduling.state import next_multiple
from tracebed.slurm.simulation.inputs import CHECK_S, LAST_WEIGHT, POWER_LOOP_S, PowerSaving, Switched

if TYPE_CHECKING:
    from tests.oracles.slurm_simulation.simulator import Simulation

LOOK, BOOTED, BEGIN = 10, 11, 12
"""Kinds of events. `LOOK`: the thread looks. `BOOTED`: a node has. `BEGIN`: a job begins whose nodes have booted."""
ON, FALLING, OFF, RISING = range(4)
"""States of a node. A falling node is being switched off: no job is allocated it. A rising one boots."""
MINUTE_S = 60
FORGOTTEN_S = 3600
"""After so long, no switched node counts towards a rate any more, s."""


class Power:
    """The nodes' power, and the thread that switches it. `due`: when the thread looks next."""

    def __init__(self, simulation: Simulation, saving: PowerSaving) -> None:
        """Start with the nodes that are off, and all others idle since now."""
        self._of, self._simulation = saving, simulation
        count = len(saving.suspend_s)
        self._own_weight = [*simulation._free.weights]
        simulation._free.weights = [*self._own_weight]
        self._weight = simulation._free.weights
        simulation._free.order = self._own_weight if saving.linear else ()
        self._state = [ON] * count
        for node in range(count):
            if saving.off[node]:
                self._off(node)
        first = simulation._second(max(simulation._in.begin_s, simulation._in.submit[0]))
        self._since = [first] * count  # second since when each node is idle, or is being switched off
        self._jobs: list[int] = []  # that wait for their nodes, in the order of their starts
        self._ready_at: dict[int, float] = {}
        self.due = math.inf
        self._last = -math.inf
        self._looked = self._touched = first  # seconds of the last look, and of the last change of a node
        self._recent = [0.0, 0.0]  # nodes that were switched off and on, less as time passes
        self.switched: list[Switched] = []

    def _off(self, node: int) -> None:
        self._state[node] = OFF
        self._weight[node] = LAST_WEIGHT

    # -- what the simulation tells ------------------------------------------------------------------------------------

    def started(self, job: int, nodes: list[int]) -> bool:
        """Note the start of a job. Return whether it must wait until its nodes have booted."""
        waits = any(self._state[node] != ON for node in nodes)
        if waits:
            self._jobs.append(job)
        self.touch()
        return waits

    def ended(self, job: int, nodes: list[int]) -> None:
        """Note the end of a job, and since when its nodes are idle."""
        if job in self._jobs:
            self._jobs.remove(job)
        self._ready_at.pop(job, None)
        for node in nodes:
            if self._idle(node) and self._state[node] in (ON, RISING):
                self._since[node] = self._second
        self.touch()

    def is_ready(self, job: int) -> bool:
        """Return whether the job whose nodes have booted begins now."""
        if self._ready_at.get(job) != self._simulation.now:
            return False
        del self._ready_at[job]
        self._jobs.remove(job)
        return True

    def booted(self, node: int) -> None:
        """Let a node register."""
        self._state[node] = ON
        self._since[node] = self._second
        self.touch()
        self._check()

    # -- the thread ---------------------------------------------------------------------------------------------------

    @property
    def _second(self) -> int:
        return self._simulation._second(self._simulation.now)

    def _idle(self, node: int) -> bool:
        return not any(node in each.parts for each in self._simulation._running)

    def touch(self) -> None:
        """Note that a node has changed, so that the thread looks soon."""
        self._touched = self._second
        self.plan()

    def plan(self) -> None:
        """Note when the thread looks next, if there is something to do then."""
        saving, simulation = self._of, self._simulation
        pending = any(
            state == FALLING
            or (state == ON and saving.suspend_s[node] >= 0 and not saving.spared >> node & 1 and self._idle(node))
            for node, state in enumerate(self._state)
        ) or any(self._state[node] == OFF for job in self._jobs for node in simulation._parts[job])
        if not pending:
            self.due = math.inf
            return
        wait = saving.least_interval_s
        if self._touched < self._looked:
            wait = max(wait, saving.interval_s)
        soonest = max(simulation.now, self._looked + wait - simulation._policy.epoch_s)
        at = next_multiple(POWER_LOOP_S, soonest, origin=saving.phase_s)
        while at <= self._last:
            at += POWER_LOOP_S
        if at != self.due:
            self.due = at
            simulation._at(at, LOOK, 0)

    def look(self) -> bool:
        """Switch nodes off and on. Return whether nodes that are off now may be allocated again."""
        saving, simulation, second = self._of, self._simulation, self._second
        self._forget(second - self._looked)
        off, on = (math.floor(each + 0.5) for each in self._recent)
        self._last, self._looked = simulation.now, second
        spared = saving.spared
        for mask, count in saving.kept:
            idle = [node for node in nodes_of(mask) if self._state[node] == ON and self._idle(node)]
            spared |= mask if count >= mask.bit_count() else mask_of(idle[:count])
        waking, again = set[int](), False
        for job in self._jobs:
            for node in sorted(simulation._parts[job]):
                if self._state[node] == OFF and (saving.resume_rate == 0 or on < saving.resume_rate):
                    waking.add(node)
                    on += 1
                    self._recent[1] += 1.0
        for node in range(len(self._state)):
            if node in waking:
                self._state[node] = RISING
                self._weight[node] = self._own_weight[node]
                self.switched.append(Switched(node, simulation.now, True))
                simulation._at(simulation.now + saving.boot_s[node], BOOTED, node)
            elif (
                self._state[node] == ON
                and saving.suspend_s[node] >= 0
                and (saving.suspend_rate == 0 or off < saving.suspend_rate)
                and self._since[node] < second - saving.suspend_s[node]
                and not spared >> node & 1
                and self._idle(node)
            ):
                self._state[node] = FALLING
                self._since[node] = second
                simulation._up &= ~(1 << node)
                self.switched.append(Switched(node, simulation.now, False))
                off += 1
                self._recent[0] += 1.0
            elif self._state[node] == FALLING and self._since[node] + saving.suspend_timeout_s[node] < second:
                self._off(node)
                simulation._up |= 1 << node
                again = True
        self.plan()
        return again

    def _forget(self, elapsed: int) -> None:
        """Let the counts of switched nodes decay, at each look, also those that changed nothing."""
        if elapsed >= FORGOTTEN_S:
            self._recent = [0.0, 0.0]
            return
        step = max(self._of.interval_s, self._of.least_interval_s, 1)
        while elapsed > 0:
            part = max(0.0, (MINUTE_S - min(elapsed, step)) / MINUTE_S)
            self._recent = [each * part for each in self._recent]
            elapsed -= step

    def _check(self) -> None:
        """Find out when the jobs begin all of whose nodes have booted: slurmctld looks for them every `CHECK_S`."""
        simulation = self._simulation
        for job in self._jobs:
            if job in self._ready_at or any(self._state[node] != ON for node in simulation._parts[job]):
                continue
            at = next_multiple(CHECK_S, simulation.now, origin=simulation._in.check_s)
            self._ready_at[job] = at
            simulation._at(at, BEGIN, job)
