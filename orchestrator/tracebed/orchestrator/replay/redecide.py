"""The decisions of a policy for the events of a replay that has ended.

A policy is deterministic. If it receives the events of a journal again, at the same times, it makes the decisions that
the journal contains. A difference is a defect: of the policy, of the replayer, or of the journal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby

from tracebed.ground.cpus import parse_cpus
from tracebed.machine.nodes import NodeFacts
from tracebed.machine.pools import Pools
from tracebed.machine.power import PowerState
from tracebed.orchestrator.replay.journal import Entry
from tracebed.orchestrator.scheduling.cluster import Cluster
from tracebed.orchestrator.scheduling.decision_log import KINDS, DecisionLog, LoggedDecision
from tracebed.orchestrator.scheduling.jobs import Jobs
from tracebed.orchestrator.scheduling.pools import AnyScheduler, scheduler_on
from tracebed.orchestrator.scheduling.sleeping import Sleeping, WatchedCluster, switch_off
from tracebed.orchestrator.scheduling.state import Policy
from tracebed.orchestrator.scheduling.windows import Watched, WatchedWindows, switch, watched_cluster
from tracebed.orchestrator.setup import Scheduling

ORDER = (
    ("down", "up"),
    ("power",),
    ("end", "requeue"),
    ("effect",),
    ("request",),
    ("window",),
    ("submit",),
    ("eligible",),
)
"""Kinds of events in the order in which the replayer passes the events of a round to the scheduler."""


def logged_decisions(entries: Iterable[Entry]) -> list[LoggedDecision]:
    """Return the calls of the policy and the decisions in the entries of a journal."""
    found = []
    for entry in entries:
        if entry.kind in KINDS:
            parts = sorted((node, parse_cpus(text)) for node, text in entry.data.get("cores", {}).items())
            cores = tuple((node, range(part[0], part[-1] + 1)) for node, part in parts)
            nodes, reason = tuple(entry.data.get("nodes", ())), entry.data.get("reason", "")
            found.append(LoggedDecision(entry.time, entry.kind, entry.job or "", nodes, cores, reason))
    return found


def redecide(
    entries: Iterable[Entry],
    jobs: Jobs,
    nodes: Sequence[NodeFacts],
    policy: Policy,
    scheduling: Scheduling,
    pools: Pools | None = None,
    sleeping: Sleeping | None = None,
) -> Iterator[LoggedDecision]:
    """Pass the events of a journal to the scheduler again; yield the calls of the policy and the decisions.

    The times of the calls follow from the times of the entries, from the scheduling interval and from the `Wake`
    decisions of the policy. `pools`: those of the replay; None: all nodes serve all jobs. `sleeping`: when nodes are
    switched off; None: never. The iterator is lazy: it reads an event only after all earlier decisions. After the first
    decision that differs from the journal, the events no longer apply, and the iterator may raise LookupError or
    ValueError.
    """
    cores, sockets = [node.cores for node in nodes], [node.sockets for node in nodes]
    cluster = watched_cluster(cores, sockets, scheduling.placed, jobs, sleeping)
    interval_s, priority = scheduling.interval_s, scheduling.priority
    executor = _DecisionRecorder(DecisionLog(jobs, cluster, [node.name for node in nodes]))
    scheduler = scheduler_on(pools, jobs, cluster, policy, executor, interval_s=interval_s, priority=priority)
    number = {name: job for job, name in enumerate(jobs.ids)}
    place = {node.name: at for at, node in enumerate(nodes)}
    handlers: dict[str, Callable[[int, float], object]] = {
        "down": scheduler.node_lost,
        "up": scheduler.node_back,
        "end": scheduler.end,
        "requeue": scheduler.requeue,
        "effect": scheduler.resized,
        "submit": scheduler.submit,
        "hold": scheduler.hold,
        "eligible": scheduler.submit,
    }
    call = math.inf
    for _, entries_of_round in groupby(entries, lambda entry: entry.round):
        together = list(entries_of_round)
        executor.now = now = together[0].time
        held = {entry.job for entry in together if entry.kind == "hold"}
        changed = False
        for kinds in ORDER:
            if "window" in kinds:  # nodes may leave also in rounds in which no window begins or ends
                if isinstance(cluster, WatchedWindows):
                    changed |= switch(cluster, scheduler, now)
                continue
            for entry in together:
                if entry.kind not in kinds:
                    continue
                if entry.kind == "power":
                    changed |= _follow_power(scheduler, cluster, place[entry.node or ""], entry)
                    continue
                changed = True
                kind = "hold" if entry.kind == "submit" and entry.job in held else entry.kind
                if kind == "request":
                    scheduler.request(number[entry.job or ""], entry.data["nodes"], now)
                else:
                    handlers[kind](place[entry.node] if entry.node else number[entry.job or ""], now)
        if changed:
            scheduler.serve()
            call = min(call, scheduler.due(now))
        while call <= now:
            executor.log.call(now)
            call = scheduler.decide(now)
        if isinstance(cluster, WatchedCluster):
            switch_off(cluster, scheduler, now)
        yield from executor.log.decisions
        executor.log.decisions.clear()


def _follow_power(scheduler: AnyScheduler, cluster: Cluster, node: int, entry: Entry) -> bool:
    """Pass the end of a shutdown or of a boot to the scheduler. Return whether `node` is idle. Other changes follow."""
    assert isinstance(cluster, Watched)
    state = PowerState(entry.data["state"])
    return state in (PowerState.OFF, PowerState.ON) and cluster.enter(node, state, scheduler, entry.time)


class _DecisionRecorder:
    """An executor that only records decisions. A resize takes effect at its entry in the journal."""

    def __init__(self, log: DecisionLog) -> None:
        self.log = log
        self.now = 0.0

    def start(self, job: int, nodes: list[int]) -> None:
        self.log.start(self.now, job, nodes)

    def resize(self, job: int, before: int, nodes: list[int]) -> bool:
        self.log.resize(self.now, job, nodes)
        return False

    def deny(self, job: int, requested: int) -> None:
        self.log.deny(self.now, job, requested)

    def change_cores(self, job: int) -> None:
        self.log.change_cores(self.now, job)

    def reject(self, job: int, reason: str) -> None:
        self.log.refuse(self.now, "reject", job, reason)

    def cancel(self, job: int, reason: str) -> None:
        self.log.refuse(self.now, "cancel", job, reason)
