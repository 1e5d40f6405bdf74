"""Recorded decisions of a real Slurm, with the state in which each was made."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pandas as pd

from tracebed.converters.workload import Provenance, System, Workload
from tracebed.orchestrator.scheduling.cluster import Cluster
from tracebed.orchestrator.scheduling.jobs import Jobs
from tracebed.orchestrator.scheduling.limits import OverLimit
from tracebed.orchestrator.scheduling.node_masks import best_fit, mask_of
from tracebed.orchestrator.scheduling.policies.slurm import FEW, Slurm
from tracebed.orchestrator.scheduling.policies.slurm_backfill import Pending, Planned, Running, backfill
from tracebed.orchestrator.scheduling.scheduler import Scheduler
from tracebed.orchestrator.scheduling.state import Decision, Start, State

FOLDER = Path(__file__).parents[1] / "slurm_recordings"
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


Starts = dict[int, tuple[int, ...]]
"""Job -> its nodes."""


class Decided(NamedTuple):
    """The starts of a recorded pass, and those that a policy decides in the same state."""

    at: float
    kind: str
    """`main`, or `backfill`."""
    waiting: list[int]
    clear: bool
    """Whether the state is known: see `Recording.clear`."""
    recorded: Starts
    policy: Starts


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
    parameters: dict[str, Any]
    started: list[int] = field(default_factory=list)
    """Unix time at which each job started, as Slurm notes it; empty: that of the log counts."""

    @classmethod
    def load(cls, name: str, folder: Path = FOLDER) -> Recording:
        """Read a recording of a folder."""
        file = folder / f"{name}.json"
        text = file.read_bytes() if file.exists() else gzip.decompress(Path(f"{file}.gz").read_bytes())
        found = json.loads(text)
        pairs = (text.split("=") for text in found["parameters"].split(","))
        parameters: dict[str, Any] = {key: int(value) for key, value in pairs}
        parameters["release"] = float(found["slurm"].split()[-1][:5])  # slurm-wlm 22.05.8
        return cls(name, found["zero"], found["jobs"], found["events"], parameters, found.get("started", []))

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
                    begun = self.started[one.job - 1] if self.started else second
                    running[one.job] = Running(begun + self.limit(one.job), one.job, one.nodes)
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

    def policy(self, **parameters: Any) -> Slurm:
        """Return the policy `slurm` with the recorded configuration, and other `parameters`."""
        known = {each.name for each in fields(Slurm)}
        own = {name: value for name, value in self.parameters.items() if name in known}
        return Slurm(**{"epoch_s": self.zero, **own, **parameters})

    def decided(self, policy: Slurm) -> list[Decided]:
        """Return the decisions of `policy` in the recorded state before each pass, whatever it decided before."""
        found: list[Decided] = []
        recorded: list[Start] = []
        scheduler = _forced(self.workload, recorded)
        for number, (at, kind, *data) in enumerate(self.events):
            if kind == "submit":
                scheduler.submit(data[0] - 1, at)
            elif kind == "end":
                scheduler.end(data[0] - 1, at)
            elif kind in ("main", "backfill"):
                planned = data[0] if data and kind == "backfill" else []
                starts: Starts = {job: tuple(nodes) for job, start, _, nodes in planned if start is None}
                if kind == "main":
                    starts = self._starts_of_main(number)
                waiting = [job + 1 for job in scheduler.state.queue.jobs()]
                clear = self.clear(Pass(at, 0, 0, [], [], []))
                full = data == ["full"]
                found.append(
                    Decided(at, kind, waiting, clear, starts, _decided(policy, scheduler.state, at, kind, full))
                )
                recorded += [Start(job - 1, len(nodes), on=nodes) for job, nodes in starts.items()]
                scheduler.decide(at)
        return found

    def _starts_of_main(self, number: int) -> Starts:
        """Return the starts of the pass of the main loop that is event `number`."""
        starts: Starts = {}
        for _, kind, *data in self.events[number + 1 :]:
            if kind in ("main", "backfill"):
                break
            if kind == "start":
                starts[data[0]] = tuple(data[1])
        return starts

    def quiet(self, here: Pass, following: float) -> tuple[bool, bool]:
        """Return whether the model takes a pass as quiet, without an event until the next one, and whether Slurm did.

        An event in the second of the pass counts, because Slurm compares whole seconds.
        """
        noticed: list[int] = []
        plan = self.modeled(here, noticed)
        waited = following - here.at > self.parameters.get("bf_interval", 30) + 0.5
        until = following - 1.0 if waited else following
        events = (at for at, kind, *_ in self.events if kind in ("submit", "end", "start"))
        told = any(math.floor(self.zero + at) >= here.second and at <= until for at in events)
        started = any(each.start <= here.second for each in plan)
        return not (told or started or here.idle or noticed) and len(here.queue) <= FEW, waited

    def modeled(self, here: Pass, noticed: list[int] | None = None) -> list[Planned]:
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
            rules=self.policy().rules,
            window=DAY_S,
            table=500,
            reservations=self.parameters.get("bf_job_part_count_reserve", 0),
            noticed=noticed,
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


def _decided(policy: Slurm, state: State, at: float, kind: str, full: bool) -> Starts:
    """Return the starts that `policy` decides in a pass of a kind at `at`. The state remains as it is."""
    found: Starts = {}
    idle, due = state.idle, "sched" if kind == "main" else "bf"
    state.now, state.freed = at, False
    state.arrived.clear()
    state.notes = {f"{due}_due": at, "full_last": -math.inf if full else at}
    for decision in policy.decide(state):
        if isinstance(decision, Start):
            found[decision.job + 1] = tuple(sorted(decision.on))
            state.idle -= decision.nodes
    state.idle = idle
    return found


@dataclass(frozen=True)
class _Forced:
    """A policy that decides the starts of a list, which it empties."""

    starts: list[Start]
    malleable: ClassVar[bool] = False

    def decide(self, state: State) -> Iterator[Decision]:
        """Decide the starts."""
        yield from self.starts
        self.starts.clear()


class _Ignored:
    """An executor of starts whose jobs end by the recorded events."""

    def start(self, job: int, nodes: list[int]) -> None:
        """Do nothing."""


def _forced(workload: Workload, starts: list[Start]) -> Scheduler:
    """Return a scheduler of a recorded workload that decides `starts` when it is called."""
    jobs = Jobs.of(workload, cores_per_node=1, over_limit=OverLimit.NOW)
    return Scheduler(jobs, Cluster([1] * NODES), _Forced(starts), _Ignored())  # type: ignore[arg-type]
