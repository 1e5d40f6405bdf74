"""The decisions of a replay, and those of the same policy when it is fed the events of the replay's journal."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from tracebed.converters.workload import Workload
from tracebed.cpus import format_cpus
from tracebed.orchestrator.replay import journal
from tracebed.orchestrator.replay.loop import Options
from tracebed.orchestrator.scheduling.cluster import Cluster
from tracebed.orchestrator.scheduling.jobs import Jobs
from tracebed.orchestrator.scheduling.scheduler import Scheduler
from tracebed.orchestrator.scheduling.state import Decision, Policy, State
from tracebed.orchestrator.testbeds.nodes import Inventory, Node


def emulated(count: int, cores: int = 2) -> Inventory:
    nodes = tuple(Node(f"n{number}", cores, 1, None, True) for number in range(1, count + 1))
    return Inventory("test", "local", nodes, grain_s=0.02)


def workload(jobs: int = 12, *, nodes: int = 4, malleable: float = 0.7, seed: int = 1) -> Workload:
    """Return an hour of jobs at a load at which malleable jobs shrink and expand."""
    rng = np.random.default_rng(seed)
    size = rng.integers(1, nodes + 1, jobs)
    run_time = rng.uniform(20, 300, jobs)
    kind = np.where(rng.random(jobs) < malleable, "malleable", "rigid")
    return Workload(
        pd.DataFrame(
            {
                "job_id": [f"job {number}" for number in range(jobs)],
                "submit_time": np.sort(rng.uniform(1000, 1600, jobs)),
                "run_time": run_time,
                "time_limit": run_time * 1.5,
                "nodes": size,
                "cores_per_node": 2,
                "kind": kind,
                "nodes_min": np.where(kind == "malleable", 1, size),
                "nodes_max": np.where(kind == "malleable", nodes, size),
                "speedup": "amdahl",
                "speedup_parameters": "0.95",
            }
        )
    )


class Decided(NamedTuple):
    """A call of the policy, or a decision that the scheduler carried out."""

    time: float
    kind: str
    job: str
    what: dict[str, Any]
    """Names of nodes, which cores of those that it shares, the reason."""


CARRIED_OUT = ("call", "start", "resize", "cores", "reject", "cancel")
TOLD = ("nodes", "cores", "reason")


def decided(path: Path) -> list[Decided]:
    """Return the calls and the decisions in a journal."""
    _, entries = journal.read(path)
    return [
        Decided(entry.time, entry.kind, entry.job or "", {key: entry.data[key] for key in TOLD if key in entry.data})
        for entry in entries
        if entry.kind in CARRIED_OUT
    ]


class Told:
    """An executor that records its orders, with node names as in a journal."""

    def __init__(self, jobs: Jobs, inventory: Inventory, cluster: Cluster) -> None:
        self.ids = jobs.ids
        self.names = [node.name for node in inventory.nodes]
        self.cluster = cluster
        self.now = 0.0
        self.decisions: list[Decided] = []

    def note(self, kind: str, job: int | None = None, **what: Any) -> None:
        self.decisions.append(Decided(self.now, kind, "" if job is None else self.ids[job], what))

    def parts(self, job: int) -> dict[str, dict[str, str]]:
        parts = {}
        for node, loan in self.cluster.loans.items():
            own = self.cluster.cores[node] - loan.cores
            if loan.owner == job:
                parts[self.names[node]] = format_cpus(range(own))
            if loan.guest == job:
                parts[self.names[node]] = format_cpus(range(own, self.cluster.cores[node]))
        return {"cores": parts} if parts else {}

    def start(self, job: int, nodes: list[int]) -> None:
        self.note("start", job, nodes=[self.names[node] for node in nodes], **self.parts(job))

    def resize(self, job: int, before: int, nodes: list[int]) -> bool:
        self.note("resize", job, nodes=[self.names[node] for node in nodes])
        return False

    def change_cores(self, job: int) -> None:
        self.note("cores", job, **self.parts(job))

    def reject(self, job: int, reason: str) -> None:
        self.note("reject", job, reason=reason)

    def cancel(self, job: int, reason: str) -> None:
        self.note("cancel", job, reason=reason)


def decided_again(
    path: Path, jobs: Jobs, inventory: Inventory, policy: Policy, options: Options | None = None
) -> list[Decided]:
    """Feed the events of a journal, with their times, to the policy; return its calls and decisions.

    The times of the calls follow from the events, from `interval_s` and from the policy's own wakes. From the journal
    only the times of its entries are used.
    """
    options = options or Options()
    cluster = Cluster([node.cores for node in inventory.nodes], [node.sockets for node in inventory.nodes])
    told = Told(jobs, inventory, cluster)
    scheduler = Scheduler(jobs, cluster, policy, told, interval_s=options.interval_s, priority=options.priority)
    number = {name: job for job, name in enumerate(jobs.ids)}
    events: dict[str, Callable[[int, float], None]] = {
        "end": scheduler.end,
        "effect": scheduler.resized,
        "submit": scheduler.submit,
    }
    call = math.inf
    _, entries = journal.read(path)
    for _, together in groupby(entries, lambda entry: entry.round):
        happened = list(together)
        told.now = now = happened[0].time
        told_of = [(event, entry) for kind, event in events.items() for entry in happened if entry.kind == kind]
        for event, entry in told_of:
            event(number[entry.job or ""], now)
        if told_of:
            scheduler.serve()
            call = min(call, scheduler.due(now))
        if call <= now:
            told.note("call")
            call = scheduler.decide(now)
    return told.decisions


def noting(policy: Policy, said: list[tuple[float, Decision]]) -> Policy:
    """Return `policy`, changed to append to `said` everything that it yields, including plans and wakes, with times."""
    decide = policy.decide

    def note(state: State) -> Iterator[Decision]:
        for decision in decide(state):
            said.append((state.now, decision))
            yield decision

    object.__setattr__(policy, "decide", note)  # the policy is frozen
    return policy
