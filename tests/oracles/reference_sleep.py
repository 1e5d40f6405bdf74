"""Nodes that sleep after an idle time, slow and simple: the reference scheduler of rigid jobs, on such nodes.

It was written from docs/reference/machines.md. A shutdown is a job of the reference: it holds its nodes for a known
time. Every instant looks at every node.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.oracles.reference_scheduler import RefJob, RefResult, _Reference

POLICIES = ("fcfs", "firstfit", "easy", "conservative")


@dataclass
class Node:
    """A node: since when it is idle (None: it is not), and when it is on (None: it is off)."""

    idle_since: float | None = 0.0
    on_from: float | None = 0.0


def reference_sleep(
    jobs: list[RefJob],
    nodes: int,
    policy: str,
    *,
    idle_s: float,
    keep: int,
    boot_s: list[float],
    shutdown_s: list[float],
    interval_s: float = 0.0,
    over_limit: str = "extend",
    priority: str = "fcfs",
    **parameters: Any,
) -> tuple[dict[int, RefResult], list[tuple[float, int, str]]]:
    """Return the outcome of each job by id, and the changes of power: time, node and state, by time and node."""
    reference = _Sleeping(jobs, nodes, policy, 0.0, over_limit, priority, **parameters)
    reference.idle_s, reference.keep, reference.boot_s, reference.shutdown_s = idle_s, keep, boot_s, shutdown_s
    reference.interval_s = interval_s
    reference.go()
    ends = [result.end for id, result in reference.results.items() if id >= 0 and result.end is not None]
    last = max(ends, default=0.0)
    rows = [row for row in reference.rows if row[0] <= last]
    return reference.results, sorted(rows, key=lambda row: row[:2])


class _Sleeping(_Reference):
    idle_s: float
    keep: int
    boot_s: list[float]
    shutdown_s: list[float]

    def __init__(self, *arguments: Any, **parameters: Any) -> None:
        super().__init__(*arguments, **parameters)
        self.node = [Node() for _ in range(self.nodes)]
        self.held_by: dict[int, list[int]] = {}  # job, or shutdown (numbers below 0) -> its nodes
        self.rows: list[tuple[float, int, str]] = []
        self.begun = self.later_ends = False
        self.policy_call, self.call = self.call, self.call_on_new_plans

    def call_on_new_plans(self) -> None:
        """Call the policy. All plans are made again if a job that has started ends later than was planned."""
        if self.later_ends:
            self.reservations.clear()
            self.ended_since_call, self.later_ends = True, False
        self.policy_call()

    def arrivals(self) -> list[float]:
        """Switch nodes off, after the call of the last instant; return the instants of this, and of submissions."""
        if self.begun:
            self.switch_off()
        jobs_left = self.to_come or self.queue or any(run.job.id >= 0 for run in self.running)
        due = [node.idle_since + self.idle_s for node in self.node if node.idle_since is not None]
        if not jobs_left or (self.begun and due and min(due) <= self.now):
            due = []  # those that stay on for a job, and the later ones, are looked at again at the next event
        self.begun = True
        return super().arrivals() + [run.end for run in self.running] + due

    def switch_off(self) -> None:
        """Switch off nodes that have been idle for long enough: the longest first, then the highest numbers.

        As many as the first waiting job needs stay on.
        """
        self.queue.sort(key=self.queue_key)
        needed = self.queue[0].nodes if self.queue else 0
        chosen: dict[float, list[int]] = {}
        while True:
            awake = [n for n, node in enumerate(self.node) if node.idle_since is not None]
            due = [n for n in awake if self.node[n].idle_since + self.idle_s <= self.now]  # type: ignore[operator]
            if not due or len(awake) <= self.keep + needed:
                break
            number = min(due, key=lambda n: (self.node[n].idle_since, -n))
            until = self.now + self.shutdown_s[number]
            self.rows += [(self.now, number, "shutdown"), (until, number, "off")]
            self.node[number] = Node(None, None)
            if until > self.now:
                chosen.setdefault(until, []).append(number)
        for until, numbers in chosen.items():
            shutdown = RefJob(-1 - len(self.results), self.now, until - self.now, None, len(numbers))
            self.held_by[shutdown.id] = numbers
            super().start(shutdown, len(numbers), -1)
            self.running[-1].end = self.running[-1].expected_end = until
            self.reservations.clear()
            self.ended_since_call = True

    def start(self, job: RefJob, n: int, call: int) -> None:
        """Start a job on nodes that are on, then on those that are off; it begins when all are on."""
        held = {number for numbers in self.held_by.values() for number in numbers}
        idle = [number for number in range(self.nodes) if number not in held]
        numbers = sorted(idle, key=lambda number: (self.node[number].on_from is None, number))[:n]
        self.held_by[job.id] = numbers
        begin = self.now
        for number in numbers:
            node = self.node[number]
            node.idle_since = None
            if node.on_from is None:
                node.on_from = self.now + self.boot_s[number]
                self.rows += [(self.now, number, "boot"), (node.on_from, number, "on")]
            begin = max(begin, node.on_from)
        super().start(job, n, call)
        if begin > self.now:
            now, self.now = self.now, begin
            self.set_ends(self.running[-1])
            self.now, self.later_ends = now, True

    def released(self, run: Any) -> None:
        """Release the nodes of a job, or of a shutdown."""
        super().released(run)
        for number in self.held_by.pop(run.job.id):
            if run.job.id >= 0:
                self.node[number].idle_since = self.now
