"""Recorded decisions of a real Slurm, with the state in which each was made."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from tracebed.converters.workload import Provenance, System, Workload
from tracebed.orchestrator.scheduling.policies.slurm_backfill import Pending, Planned, Running, backfill
from tracebed.orchestrator.scheduling.policies.slurm_nodes import best_fit, mask_of

FOLDER = Path(__file__).parent / "slurm_recordings"
NODES = 8
DAY_S = 86400
CLOCK_S = 0.005
"""Slurm reads a clock that may be this much late; whole seconds are ambiguous after the tick of a second."""


@dataclass
class Pass:
    """A backfill pass or a start of the main loop, and the state before it."""

    at: float
    second: int
    idle: int
    queue: list[int]
    running: list[Running]
    planned: list[Planned]
    started: list[int] = field(default_factory=list)
    chosen: int = 0
    """Nodes of a start of the main loop."""


class Agreement(NamedTuple):
    """Numbers of decisions, and of those of the model that are equal."""

    passes: int
    """Backfill passes with a plan."""
    clear: int
    """Those whose state is known: see `Recording.clear`."""
    equal: int
    """Those of them with the same jobs, instants and nodes."""
    starts: int
    """Starts by the main loop."""
    same: int
    """Those with the same job and nodes."""


@dataclass
class Recording:
    """A recorded run. Jobs are numbered from 1, as in Slurm; instants are seconds after `zero`, a Unix time."""

    name: str
    zero: float
    jobs: list[list[float]]
    """Submit time, run time, nodes and limit (minutes) of each job."""
    events: list[list[Any]]
    parameters: dict[str, int]

    @classmethod
    def load(cls, name: str, folder: Path = FOLDER) -> Recording:
        """Read a recording of a folder."""
        file = folder / f"{name}.json"
        text = file.read_bytes() if file.exists() else gzip.decompress(Path(f"{file}.gz").read_bytes())
        found = json.loads(text)
        pairs = (text.split("=") for text in found["parameters"].split(","))
        return cls(name, found["zero"], found["jobs"], found["events"], {key: int(value) for key, value in pairs})

    def nodes(self, job: int) -> int:
        """Return the nodes of a job."""
        return int(self.jobs[job - 1][2])

    def limit(self, job: int) -> int:
        """Return the time limit of a job, s."""
        return int(self.jobs[job - 1][3]) * 60

    def times(self, kind: str) -> dict[int, float]:
        """Return the submit, start or end time of each job, s."""
        if kind != "start":
            return {event[2]: event[0] for event in self.events if event[1] == kind}
        starts = {event[2]: event[0] for event in self.events if event[1] == "start"}
        return starts | {job: at for at, job in self._backfilled()}

    def _backfilled(self) -> Iterator[tuple[float, int]]:
        for at, kind, *data in self.events:
            if kind == "backfill" and data:
                yield from ((at, planned[0]) for planned in data[0] if planned[1] is None)

    def passes(self) -> Iterator[Pass]:
        """Yield the backfill passes with a queue, and the starts of the main loop as passes without a plan."""
        idle, queue, running = (1 << NODES) - 1, [], {}
        plan: list[list[Any]] = []
        for at, kind, *data in self.events:
            second = math.floor(self.zero + at)
            if kind == "submit":
                queue.append(data[0])
            elif kind == "end":
                idle |= running.pop(data[0]).nodes
            elif kind in ("start", "backfill"):
                plan = ([[data[0], None, None, data[1]]] if kind == "start" else data[0]) if data else plan
                known = [*queue], [*running.values()]
                planned = [
                    Planned(job, second if start is None else start, end or 0, mask_of(nodes))
                    for job, start, end, nodes in plan
                ]
                here = Pass(at, second, idle, *known, [] if kind == "start" else planned)
                here.chosen = planned[0].nodes if kind == "start" else 0
                for one in planned:
                    if one.start > second and kind == "backfill":
                        continue
                    queue.remove(one.job)
                    idle &= ~one.nodes
                    running[one.job] = Running(second + self.limit(one.job), one.job, one.nodes)
                    here.started.append(one.job)
                if kind == "start" or here.queue:
                    yield here

    def clear(self, here: Pass) -> bool:
        """Return whether the second of a pass is unambiguous, and no job has just ended (its nodes are completing)."""
        ends = self.times("end").values()
        return (self.zero + here.at) % 1.0 > CLOCK_S and not any(0 <= here.at - end < 0.05 for end in ends)

    def agreement(self) -> Agreement:
        """Return how often the model decides as Slurm did in the same state."""
        passes = clear = equal = starts = same = 0
        for here in self.passes():
            if here.planned:
                passes += 1
                clear += self.clear(here)
                equal += self.clear(here) and self.modeled(here) == here.planned
            elif here.chosen:
                starts += 1
                head = here.queue[0]
                same += here.started == [head] and here.chosen == best_fit(here.idle, self.nodes(head))
        return Agreement(passes, clear, equal, starts, same)

    def modeled(self, here: Pass) -> list[Planned]:
        """Return what the model plans in the state of a pass; a start has no end."""
        age = self.parameters.get("bf_min_age_reserve", 0)
        submitted = self.times("submit")
        tested = here.queue[: self.parameters.get("bf_max_job_test", 500)]
        pending = [Pending(job, self.nodes(job), self.limit(job), here.at - submitted[job] >= age) for job in tested]
        planned = backfill(
            here.second,
            here.idle,
            here.running,
            pending,
            resolution=self.parameters.get("bf_resolution", 60),
            window=DAY_S,
            table=500,
            reservations=self.parameters.get("bf_job_part_count_reserve", 0),
        )
        plan = [each._replace(end=0) if each.start <= here.second else each for each in planned]
        if most := self.parameters.get("bf_max_job_start"):
            starts = [place for place, each in enumerate(plan, 1) if each.start <= here.second]
            plan = plan[: starts[most - 1]] if len(starts) >= most else plan
        return plan

    @property
    def workload(self) -> Workload:
        """The submission list. The run time of a job is the time for which it held its nodes."""
        jobs = np.array(self.jobs, dtype=float)
        starts, ends = self.times("start"), self.times("end")
        table = pd.DataFrame(
            {
                "job_id": [str(job) for job in range(1, len(jobs) + 1)],
                "submit_time": [self.times("submit")[job] for job in range(1, len(jobs) + 1)],
                "run_time": [ends[job] - starts[job] for job in range(1, len(jobs) + 1)],
                "nodes": jobs[:, 2].astype(int),
                "cores_per_node": 1,
                "time_limit": jobs[:, 3] * 60.0,
            }
        )
        return Workload(table, Provenance(system=System(NODES, 1)))
