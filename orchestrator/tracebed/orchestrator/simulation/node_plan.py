"""A plan of nodes that are free, switched off and booted, for the executor `batsched`.

A set of nodes is an integer with a bit for each node.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

HORIZON = 1e19
"""End of all plans, s: the delay of a load that no node that is on can take."""


def nodes_in(mask: int) -> Iterator[int]:
    """Yield the nodes of a set, in ascending order."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def lowest(mask: int, count: int) -> int:
    """Return the `count` lowest nodes of a set, or all."""
    chosen = 0
    while count > 0 and mask:
        low = mask & -mask
        chosen, mask, count = chosen | low, mask ^ low, count - 1
    return chosen


class Plan:
    """Which nodes are free when, as far as known now: a row for each instant at which that changes.

    Attributes:
        wakes: node that is off -> when it can begin to boot. Such a node is not free until it has booted.
        jobs: job in the plan -> begin, end, and its nodes.
    """

    def __init__(self, now: float, free_from: Sequence[float], wakes: dict[int, float]) -> None:
        """Plan that node i is free from `free_from[i]` on, s."""
        self.begin = sorted({now, *(time for time in free_from if now < time < HORIZON)})
        self.free = [sum(1 << node for node, time in enumerate(free_from) if time <= at) for at in self.begin]
        self.wakes, self.jobs = wakes, dict[int, tuple[float, float, int]]()
        self._off: dict[int, float] = {}  # node -> its shutdown in this plan
        for time in wakes.values():
            self._split(time)

    def copy(self) -> Plan:
        """Return a copy, whose jobs may be changed."""
        made = object.__new__(Plan)
        made.begin, made.free, made.jobs = [*self.begin], [*self.free], {**self.jobs}
        made.wakes, made._off = self.wakes, self._off
        return made

    def end(self, row: int) -> float:
        """Return the end of a row."""
        return self.begin[row + 1] if row + 1 < len(self.begin) else HORIZON

    def fit(self, count: int, duration: float) -> tuple[float, int] | None:
        """Return the first begin at which `count` nodes are free for `duration`, and the lowest such nodes."""
        for row, begin in enumerate(self.begin):
            mask, last = self.free[row], row
            while mask.bit_count() >= count:
                if self.end(last) >= begin + duration:
                    return begin, lowest(mask, count)
                last += 1
                mask &= self.free[last]
        return None

    def add(self, job: int, count: int, duration: float) -> tuple[float, int] | None:
        """Add a job where it fits first, and return its begin and its nodes; None: it fits nowhere."""
        if found := self.fit(count, duration):
            begin, mask = found
            self._change(mask, begin, begin + duration, free=False)
            self.jobs[job] = begin, begin + duration, mask
        return found

    def remove(self, job: int) -> None:
        """Remove a job, if the plan has it."""
        if job in self.jobs:
            begin, end, mask = self.jobs.pop(job)
            self._change(mask, begin, end, free=True)

    def during(self, begin: float, end: float) -> int:
        """Return the nodes that are free from `begin` to `end`."""
        mask = -1
        for at, free in zip(self.begin, self.free, strict=True):
            if begin <= at < end:
                mask &= free
        return mask

    def switch_off(self, nodes: int) -> int:
        """Switch nodes off after their last job; return those that are switched off now."""
        now = 0
        for node in nodes_in(nodes & self.free[-1]):
            busy = [row for row, free in enumerate(self.free) if not free >> node & 1]
            self._off[node] = when = self.end(busy[-1]) if busy else self.begin[0]
            self._change(1 << node, when, HORIZON, free=False)
            now |= (when == self.begin[0]) << node
        return now

    def cancel_off(self, nodes: int) -> None:
        """Let nodes stay on that `switch_off` switched off."""
        for node in nodes_in(nodes):
            if node in self._off:
                self._change(1 << node, self._off.pop(node), HORIZON, free=True)

    def boot(self, nodes: int, boot_s: float) -> int:
        """Boot nodes as soon as possible; return those whose boot begins now."""
        now = 0
        for node in nodes_in(nodes):
            when = self.wakes.pop(node)
            self._change(1 << node, when + boot_s, HORIZON, free=True)
            now |= (when == self.begin[0]) << node
        return now

    def first_wakes(self, count: int, among: int) -> int:
        """Return the first `count` nodes that can begin to boot, lowest numbers first."""
        order = sorted((when, node) for node, when in self.wakes.items() if among >> node & 1)
        return sum(1 << node for _, node in order[:count])

    def delay(self, load: float, now: float) -> float:
        """Return the time in which a load, node s, is done from now on, if it is cut to fit what is free, s."""
        row, at = max((row for row, begin in enumerate(self.begin) if begin <= now), default=0), now
        while load > 0 and row < len(self.begin):
            count, end = self.free[row].bit_count(), self.end(row)
            area = count * max(0.0, end - max(now, self.begin[row]))
            if area <= load:
                load, at, row = load - area, end, row + 1
            else:
                load, at = 0.0, at + load / count
        return (HORIZON if load > 0 else at) - now

    def _split(self, time: float) -> None:
        """Begin a row at an instant, if none does and the plan has not ended."""
        row = next((row for row, begin in enumerate(self.begin) if begin >= time), len(self.begin))
        if time < HORIZON and (row == len(self.begin) or self.begin[row] != time):
            self.begin.insert(row, time)
            self.free.insert(row, self.free[row - 1])

    def _change(self, mask: int, begin: float, end: float, *, free: bool) -> None:
        self._split(begin)
        self._split(end)
        for row, at in enumerate(self.begin):
            if begin <= at < end:
                self.free[row] = self.free[row] | mask if free else self.free[row] & ~mask
