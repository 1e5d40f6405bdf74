"""A replay's decisions, and those that its journal's events lead the same policy to once more."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tracebed.converters.workload import Workload
from tracebed.orchestrator import journal
from tracebed.orchestrator.scheduling.cluster import Cluster
from tracebed.orchestrator.scheduling.jobs import Jobs
from tracebed.orchestrator.scheduling.priorities import FCFS
from tracebed.orchestrator.scheduling.scheduler import Scheduler
from tracebed.orchestrator.scheduling.state import Policy
from tracebed.orchestrator.testbeds.inventory import Inventory, Node


def emulated(count: int, cores: int = 2) -> Inventory:
    nodes = tuple(Node(f"n{number}", cores, 1, None, True) for number in range(1, count + 1))
    return Inventory("test", "local", nodes, grain_s=0.02)


def workload(jobs: int = 12, *, nodes: int = 4, malleable: float = 0.7, seed: int = 1) -> Workload:
    """A loaded hour in which jobs have reason to shrink and to expand."""
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


def decided(path: Path) -> list[tuple[str, str, Any]]:
    """Return the decisions in a journal."""
    _, entries = journal.read(path)
    return [
        (entry.kind, entry.job or "", entry.data.get("nodes"))
        for entry in entries
        if entry.kind in ("start", "resize", "reject")
    ]


class Told:
    """An executor that notes what it is told, with names of nodes as a journal has them."""

    def __init__(self, jobs: Jobs, names: list[str]) -> None:
        self.jobs, self.names = jobs, names
        self.decisions: list[tuple[str, str, Any]] = []

    def start(self, job: int, nodes: list[int]) -> None:
        self.decisions.append(("start", self.jobs.ids[job], [self.names[node] for node in nodes]))

    def resize(self, job: int, before: int, nodes: list[int]) -> bool:
        self.decisions.append(("resize", self.jobs.ids[job], [self.names[node] for node in nodes]))
        return False

    def reject(self, job: int, reason: str) -> None:
        self.decisions.append(("reject", self.jobs.ids[job], None))

    def change_cores(self, job: int) -> None:
        raise AssertionError("nobody shares a node here")

    def cancel(self, job: int, reason: str) -> None:
        pass  # it is no decision of when or where


def decided_again(
    path: Path, jobs: Jobs, names: list[str], policy: Policy, *, priority: str = FCFS
) -> list[tuple[str, str, Any]]:
    """Feed the events of a journal, with their instants, to the policy, and return its decisions."""
    told = Told(jobs, names)
    scheduler = Scheduler(jobs, Cluster([2] * len(names)), policy, told, priority=priority)
    number = {name: job for job, name in enumerate(jobs.ids)}
    _, entries = journal.read(path)
    events: dict[str, Callable[[int, float], None]] = {
        "end": scheduler.end,
        "effect": scheduler.resized,
        "submit": scheduler.submit,
    }
    rounds: dict[int, list[journal.Entry]] = {}
    for entry in entries:
        rounds.setdefault(entry.round, []).append(entry)
    for _, happened in sorted(rounds.items()):
        for kind, event in events.items():
            for entry in happened:
                if entry.kind == kind:
                    event(number[entry.job or ""], entry.time)
        scheduler.serve()
        if any(entry.kind == "call" for entry in happened):
            scheduler.decide(happened[0].time)
    return told.decisions
