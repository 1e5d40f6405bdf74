"""The layer that resizes running jobs beside Slurm's loops, in the simulation in Python."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tests.oracles.slurm_simulation.nodes import Nodes, Running
from tracebed.orchestrator.scheduling.names import EXPANDER_S
from tracebed.orchestrator.scheduling.node_masks import mask_of, nodes_of
from tracebed.orchestrator.scheduling.state import next_multiple
from tracebed.slurm.machine import MINUTE_S
from tracebed.slurm.resize_layer import Release, Resizable, expansions, heads, shrinks
from tracebed.slurm.simulation.inputs import LOST, PREEMPTED, Outcome, Resized, Resizing
from tracebed.slurm.simulation.prediction import whole_minutes
from tracebed.slurm.simulation.resources import Request

if TYPE_CHECKING:
    from tests.oracles.slurm_simulation.simulator import Simulation

LAYER, SHRUNK, JOINED = 7, 8, 9
"""Kinds of events: a pass of the layer, the release of the nodes of a job, the merge of an expander."""


class Layer:
    """The layer. A waiting expander is in `asking`; it is not in Slurm's queue here, since it is the last there."""

    def __init__(self, simulation: Simulation, resizing: Resizing) -> None:
        """Begin without running jobs."""
        self._sim, self._of = simulation, resizing
        self.asking: list[int] = []
        self.touched = False  # whether anything has changed since the last pass
        self._next = math.inf
        self._owner = {entry: job for job, entry in enumerate(resizing.expander) if entry >= 0}
        self._wanted: dict[int, int] = {}  # expander -> largest number of nodes
        self._asked: dict[int, float] = {}  # expander, also while it runs -> instant at which it was submitted
        self._shrinking: dict[int, tuple[float, list[int]]] = {}  # job -> decision, and the nodes that it leaves
        self._largest: dict[int, int] = {}  # running malleable job -> largest size that it has had
        self._done: dict[int, float] = {}  # running malleable job -> its work until `_since`, s at its requested size
        self._since: dict[int, float] = {}
        self._size: dict[int, int] = {}  # with which it works

    def is_expander(self, entry: int) -> bool:
        """Return whether an entry is an expander."""
        return entry in self._owner

    def outcome(self, of_all: Outcome) -> Outcome:
        """Return the outcome without the expanders."""
        jobs = slice(len(self._of.least) - self._of.expanders)
        cut = {name: values[jobs] for name, values in vars(of_all).items() if name not in ("stints", "resizes")}
        return replace(of_all, **cut)

    # -- what the simulation tells ------------------------------------------------------------------------------------

    def started(self, job: int) -> None:
        """Note that a job runs."""
        self.touched = True
        request = self._sim._in.requests[job]
        if self._of.least[job] and len(self._sim._parts[job]) == request.cores // request.per_node:
            self._largest[job] = self._size[job] = len(self._sim._parts[job])
            self._done[job], self._since[job] = 0.0, self._sim._out.launched[job]

    def ended(self, job: int) -> None:
        """Note that a job has ended: its expander goes, and a shrink that is in progress has no effect."""
        if self._largest.pop(job, 0):
            self._shrinking.pop(job, None)
            self.withdraw(self._of.expander[job])

    def plan(self) -> None:
        """Note the next pass, after the events of an instant."""
        if not self._largest:
            return
        now, of = self._sim.now, self._of
        at = (
            next_multiple(of.interval_s, math.nextafter(now, math.inf), origin=of.phase_s) if self.touched else math.inf
        )
        for entry in self.asking:
            since = max(self._asked[entry] + EXPANDER_S, math.nextafter(now, math.inf))
            at = min(at, next_multiple(of.interval_s, since, origin=of.phase_s))
        if at < self._next:
            self._next = at
            self._sim._at(at, LAYER, 0)

    def handle(self, kind: int, job: int) -> bool:
        """Handle an event of the layer. Return whether Slurm is told of it."""
        if kind == LAYER:
            if self._sim.now != self._next:
                return False
            self._next = math.inf
            return self._pass()
        self.touched = True
        return self._release(job) if kind == SHRUNK else self._join(job)

    # -- passes -------------------------------------------------------------------------------------------------------

    def _pass(self) -> bool:
        """Make a pass. Return whether an expander is submitted."""
        sim, of = self._sim, self._of
        now, second = sim.now, sim._second(sim.now)
        self.touched = any(self._since[job] >= now for job in self._largest)
        for entry in [entry for entry in self.asking if self._asked[entry] + EXPANDER_S <= now]:
            self.withdraw(entry)
        jobs = self._resizable(second)
        free = sim._free.copy()
        for job, (_, nodes) in self._shrinking.items():
            self._give_back(free, [(job, node) for node in nodes])
        for head, usable in heads(self._waiting(second)):
            request = sim._in.requests[head]
            if not free.has_room(request, usable):
                able = [each for each in jobs if sim._in.partition[each.job] == sim._in.partition[head]]
                able = [each for each in able if each.job not in self._shrinking and of.shrinks[each.job]]

                def suffices(releases: Sequence[Release], request: Request = request, usable: int = usable) -> bool:
                    expected = free.copy()
                    self._give_back(expected, releases)
                    return expected.has_room(request, usable)

                for job, nodes in shrinks(of.policy, able, usable, suffices).items():
                    self._shrink(job, nodes)
        growing = [each._replace(most=self._bound(each)) for each in jobs if self._may_ask(each, second)]
        asked = False
        for job, count in expansions(of.policy, growing, lambda job: self._idle(job, second)).items():
            entry = of.expander[job]
            if sim._counters.refused(entry) >= 0:
                continue
            sim._counters.count(entry, None, 1)
            self.asking.append(entry)
            self._wanted[entry], self._asked[entry] = count, now
            sim._limit[entry] = self._rest(job, second) // MINUTE_S * MINUTE_S
            sim.arrived.append(entry)
            asked = True
            self._try(entry, second)
        return asked

    def _try(self, entry: int, second: int) -> None:
        """Start a submitted expander at once, if no other job waits for nodes of its partition."""
        sim = self._sim
        before = [job for job in sim.queue if sim._ready[job]] + self.asking[:-1]
        nodes = [sim._nodes_of[sim._in.partition[job]] for job in (entry, *before)]
        if sim._counters.held(entry) < 0 and not any(nodes[0] & other for other in nodes[1:]):
            sim._expand(entry, sim._bookings.allowed(entry, second, sim._limit[entry]) & sim._up)

    def _resizable(self, second: int) -> list[Resizable]:
        """Return the jobs that may be resized now, in the order of their starts."""
        sim, of, out = self._sim, self._of, self._sim._out
        found = list[Resizable]()
        for job in sorted(self._largest, key=lambda job: (out.start[job], job)):
            if not self._since[job] < sim.now < out.end[job] or out.fate[job] in (PREEMPTED, LOST):
                continue
            if job in self._shrinking or self._joins(job) or self._rest(job, second) <= 0:
                continue
            found.append(Resizable(job, (*sorted(sim._parts[job]),), of.least[job], of.preferred[job], of.most[job]))
        return found

    def _joins(self, job: int) -> bool:
        """Return whether the expander of a job runs."""
        entry = self._of.expander[job]
        return entry in self._asked and entry not in self.asking

    def _rest(self, job: int, second: int) -> int:
        """Return the rest of the limit of a running job, s."""
        return next(each.end for each in self._sim._running if each.job == job) - second

    def _waiting(self, second: int) -> Iterator[tuple[int, int, int]]:
        """Yield the waiting jobs that no limit holds, with masks of their nodes and those of their partitions."""
        sim = self._sim
        for job in sim._in_order():
            if sim._withdrawn[job] or sim._group[job] >= 0 or sim._bookings.inside[job] >= 0:
                continue
            if sim._counters.held(job) >= 0 or sim._exceeds(job, None):
                continue
            if any(want > has for want, has in zip(sim._licenses.wanted[job], sim._left_licenses, strict=True)):
                continue
            allowed = sim._bookings.allowed(job, second, sim._in.limit[job]) & sim._up
            yield job, sim._in.requests[job].eligible & allowed, sim._nodes_of[sim._in.partition[job]]

    def _give_back(self, free: Nodes, releases: Sequence[Release]) -> None:
        for job, node in releases:
            free.release(self._sim._in.requests[job], {node: self._sim._parts[job][node]})

    def _bound(self, each: Resizable) -> int:
        """Return the largest size to which a job may expand."""
        return each.most if self._of.grows[each.job] else min(each.most, self._largest[each.job])

    def _may_ask(self, each: Resizable, second: int) -> bool:
        entry = self._of.expander[each.job]
        if entry < 0 or entry in self._asked or each.job in self._shrinking:
            return False
        return each.size < self._bound(each) and self._rest(each.job, second) >= MINUTE_S

    def _idle(self, job: int, second: int) -> int:
        """Return the mask of the nodes on which the expander of a job has room."""
        sim, entry = self._sim, self._of.expander[job]
        request = sim._in.requests[entry]
        allowed = sim._bookings.allowed(entry, second, self._rest(job, second) // MINUTE_S * MINUTE_S) & sim._up
        usable = request.eligible & allowed & ~mask_of(sim._parts[job].keys())
        return mask_of([node for node in nodes_of(usable) if sim._free.capacity(request, node)])

    # -- shrinks ------------------------------------------------------------------------------------------------------

    def _shrink(self, job: int, nodes: list[int]) -> None:
        """Let a job adapt to a smaller size. Its nodes are free later."""
        self.withdraw(self._of.expander[job])
        self._shrinking[job] = self._sim.now, nodes
        size = len(self._sim._parts[job]) - len(nodes)
        self._sim._limit[job] = self._limit(job, size)
        self._work_with(job, size)
        self._sim._at(self._sim.now + self._of.release_s, SHRUNK, job)

    def _release(self, job: int) -> bool:
        if job not in self._shrinking or self._shrinking[job][0] + self._of.release_s != self._sim.now:
            return False
        if self._sim._out.fate[job] in (PREEMPTED, LOST) or self._sim._out.end[job] <= self._sim.now:
            return False
        sim, (asked, nodes) = self._sim, self._shrinking.pop(job)
        parts = sim._parts[job]
        self._reshape(job, {node: cores for node, cores in parts.items() if node not in nodes})
        sim._out.resizes.append(
            Resized(job, asked, asked, asked + self._of.pause_s, sim.now, len(parts), len(sim._parts[job]))
        )
        sim.freed = True
        return True

    # -- expansions ---------------------------------------------------------------------------------------------------

    def choose(self, entry: int, usable: int) -> dict[int, int] | None:
        """Choose as many nodes as an expander asked for, or as there are. None: there are none.

        The nodes of small blocks of neighbors come first: each time, Slurm looks for one node that is needed.
        """
        sim, owner = self._sim, self._owner[entry]
        request = sim._in.requests[entry]
        room = {node: sim._free.capacity(request, node) for node in nodes_of(usable & request.eligible)}
        able = {node: cores for node, cores in room.items() if cores and node not in sim._parts[owner]}
        blocks = sorted(sim._free._groups(able), key=lambda block: (sim._free.weights[block[0]], len(block), block[0]))
        chosen = [node for block in blocks for node in block][: self._wanted[entry]]
        return {node: sim._free.held(request, node, room[node]) for node in chosen} or None

    def grant(self, entry: int, parts: dict[int, int]) -> None:
        """Start an expander."""
        sim, request = self._sim, self._sim._in.requests[entry]
        self.asking.remove(entry)
        sim._free.take(request, parts)
        sim._insert(Running(sim._second(sim.now) + sim._limit[entry], entry, request, parts, mask_of(parts.keys())))
        sim._parts[entry], sim._out.start[entry] = parts, sim.now
        sim._out.end[entry] = math.inf
        sim._amounts[entry] = sim._amounts_of(entry, parts)
        sim._counters.count(entry, sim._amounts[entry], 1)
        sim._last = sim.now
        sim._at(sim.now + self._of.merge_s + self._of.merge_rank_s * (len(parts) - 1), JOINED, entry)

    def _join(self, entry: int) -> bool:
        """Give the nodes of an expander to its job."""
        if entry not in self._asked or entry in self.asking:
            return False
        sim, job = self._sim, self._owner[entry]
        came = sim._out.start[entry] + self._of.merge_s + self._of.merge_rank_s * (len(sim._parts[entry]) - 1)
        if came != sim.now:
            return False
        if sim._out.end[job] <= sim.now:  # its work is done, and its nodes are not yet free
            self.withdraw(entry)
            return True
        before, more, asked = sim._parts[job], sim._parts[entry], self._asked[entry]
        self._leave(entry, merged=True)
        size = len(before) + len(more)
        sim._limit[job] = self._limit(job, size)
        self._reshape(job, {**before, **more})
        self._largest[job] = max(self._largest[job], size)
        self._work_with(job, size)
        applied = sim.now + self._of.pause_s
        sim._out.resizes.append(Resized(job, asked, sim.now, applied, applied, len(before), size))
        return False

    def withdraw(self, entry: int) -> None:
        """Remove an expander, whether it waits or runs."""
        if entry in self.asking:
            self.asking.remove(entry)
            del self._asked[entry]
            self._sim._counters.count(entry, None, -1)
        elif entry in self._asked:
            self._leave(entry, merged=False)
            self._sim.freed = True

    def _leave(self, entry: int, *, merged: bool) -> None:
        sim = self._sim
        sim._free.release(sim._in.requests[entry], sim._parts[entry])
        sim._running = [each for each in sim._running if each.job != entry]
        user, billing, start = sim._use(entry)
        sim._fairness.use(user, billing, start, sim._second(sim.now))
        sim._counters.count(entry, sim._amounts[entry], -1, jobs=not (merged and self._of.counted))
        sim._counters.count(entry, None, -1)
        sim._parts[entry] = {}
        del self._asked[entry]

    # -- the resized job ----------------------------------------------------------------------------------------------

    def _rate(self, job: int, size: int) -> float:
        return self._of.rates[job][size - self._of.least[job]]

    def _limit(self, job: int, size: int) -> int:
        """Return the time limit of a job after a resize: its rest grows as its rate falls, in whole minutes, s."""
        sim = self._sim
        second = sim._second(sim.now)
        ratio = self._rate(job, self._size[job]) / self._rate(job, size)
        rest = float(self._rest(job, second)) * ratio + self._of.pause_s
        return whole_minutes(float(second - sim._second(sim._out.start[job])) + rest)

    def _work_with(self, job: int, size: int) -> None:
        """Let a job work with another size after a pause."""
        sim, now = self._sim, self._sim.now
        done = now - self._since[job]
        if done > 0:
            self._done[job] += done * self._rate(job, self._size[job])
            self._since[job] = now
        self._since[job] += self._of.pause_s
        self._size[job] = size
        end = self._since[job] + max(0.0, sim._in.run_time[job] - self._done[job]) / self._rate(job, size)
        sim._ends(job, end, end - sim._out.launched[job], sim._limit[job])

    def _reshape(self, job: int, parts: dict[int, int]) -> None:
        """Let a running job hold other cores from now on."""
        sim, request = self._sim, self._sim._in.requests[job]
        user, billing, start = sim._use(job)
        sim._fairness.use(user, billing, start, sim._second(sim.now))
        sim._hold_until_now(job)
        sim._free.release(request, sim._parts[job])
        sim._counters.count(job, sim._amounts[job], -1)
        sim._running = [each for each in sim._running if each.job != job]
        sim._free.take(request, parts)
        sim._parts[job] = parts
        sim._amounts[job] = sim._amounts_of(job, parts)
        sim._counters.count(job, sim._amounts[job], 1)
        end = sim._second(sim._out.start[job]) + sim._limit[job]
        sim._insert(Running(end, job, request, parts, mask_of(parts.keys())))
