"""The probes of a calibration, small workloads and a policy that resizes a job, and the overheads in their replays."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pandas as pd

from tracebed.converters import scaling
from tracebed.converters.malleability import to_malleable
from tracebed.converters.models.cirne import CirneParameters, cirne
from tracebed.converters.provenance import Provenance, System
from tracebed.converters.workload import Workload
from tracebed.orchestrator.calibrating.estimates import FloatArray
from tracebed.orchestrator.replay.journal import Entry
from tracebed.orchestrator.run import Run
from tracebed.orchestrator.scheduling.jobs import Jobs
from tracebed.orchestrator.scheduling.state import Decision, Resize, Start, State, Wake
from tracebed.orchestrator.testbeds.nodes import Inventory

RIGID_S = 0.1  # run time of the rigid jobs of the ladder, wall s
RIGID_JOBS = 5  # number of rigid jobs of each size
# Run time of the malleable job of the ladder on all nodes, wall s. With its resizes it takes up to twice as long.
MALLEABLE_S = 5.0
MIX_JOBS = 60
LONGEST_S = 2.0  # longest run time in the mix, wall s
MIX_LOAD = 0.9
WORK_S = 1.0  # run time of the jobs of the speedup probe on one core, wall s
# Golden ratio minus 1. Its multiples modulo 1 are evenly spread, so pauses do not synchronize with iterations.
STEPS = 0.6180339887498949
# Resizes of jobs with fewer iterations are left out: such jobs end before a slow resize, which would bias the mean.
ITERATIONS = 10


@dataclass(frozen=True)
class Ladder:
    """A policy that runs one job at a time. It doubles a malleable job up to its maximum, then shrinks the job.

    Nodes that are lost leave out steps of the ladder, and a job that needs them waits.
    """

    pause_s: float = 1.0  # longest pause between two resizes, trace s

    malleable: ClassVar[bool] = True

    def decide(self, state: State) -> Iterator[Decision]:
        """Yield the start of the next job, the next resize of the running job, or the time of the next resize."""
        head = state.queue.head
        if not state.size and head is not None and state.jobs.pref[head] <= state.idle:
            yield Start(head, state.jobs.pref[head])
        for job in state.resizable:
            if job in state.resizing:
                continue
            nodes = state.size[job]
            most = min(state.jobs.high[job], nodes + state.idle)
            if state.woken and most > state.jobs.low[job]:
                yield Resize(job, _next_size(nodes, state.jobs.low[job], most))
            else:
                yield Wake(state.now + self.pause_s * (state.now * STEPS % 1.0))


def _next_size(nodes: int, low: int, high: int) -> int:
    """Return the next size of the ladder: twice `nodes`, at most `high`; after `high` follows `low`."""
    return low if nodes == high else min(2 * nodes, high)


def sizes(nodes: int) -> list[int]:
    """Return the numbers of nodes that are measured: powers of two, and all nodes."""
    return sorted({*(2**power for power in range(nodes.bit_length())), nodes})


def ladder(inventory: Inventory, speed: float, seconds: float = 1.0) -> Workload:
    """Return the sequential probe: rigid jobs of every size, then a malleable job. `seconds` scales all run times."""
    total, cores = len(inventory.nodes), min(node.cores for node in inventory.nodes)
    rigid = [(RIGID_S, nodes, nodes, "rigid") for nodes in sizes(total) for _ in range(RIGID_JOBS)]
    rows = rigid + ([(MALLEABLE_S, total, 1, "malleable")] if total > 1 else [])
    table = pd.DataFrame(rows, columns=["run_time", "nodes", "nodes_min", "kind"])
    table["run_time"] *= speed * seconds
    table["job_id"] = [f"ladder-{number}" for number in range(len(rows))]
    table["submit_time"] = 0.0
    table["cores_per_node"] = cores
    table["speedup"], table["speedup_parameters"] = "amdahl", "0.5"  # an iteration takes at most twice the grain
    return Workload(table, Provenance(System(total, cores, inventory.name)))


def mix(inventory: Inventory, speed: float, seconds: float = 1.0) -> Workload:
    """Return the busy probe: jobs drawn from Cirne and Berman's model, half of them malleable."""
    total, cores = len(inventory.nodes), min(node.cores for node in inventory.nodes)
    drawn = cirne(
        MIX_JOBS, nodes=max(total, 4), cores_per_node=cores, seed=1, parameters=CirneParameters(cancelled=0.0)
    )
    scaled = scaling.scale(drawn, total, cores, longest=LONGEST_S * speed * seconds)
    return scaling.to_load(to_malleable(scaled, 0.5, seed=1), MIX_LOAD)


def speedup_probe(inventory: Inventory, speed: float, seconds: float = 1.0) -> Workload:
    """Return jobs with the same work on 1, 2, 4, ... cores of a node, then on all cores of 1, 2, 4, ... nodes."""
    total, cores = len(inventory.nodes), min(node.cores for node in inventory.nodes)
    shapes = [(1, used) for used in sizes(cores)] + [(nodes, cores) for nodes in sizes(total)[1:]]
    table = pd.DataFrame(shapes, columns=["nodes", "cores_per_node"])
    table["job_id"] = [f"speedup-{nodes}-{used}" for nodes, used in shapes]
    table["submit_time"] = 0.0
    table["run_time"] = [WORK_S * speed * seconds / (nodes * used) for nodes, used in shapes]
    return Workload(table, Provenance(System(total, cores, inventory.name)))


@dataclass(frozen=True)
class OverheadSamples:
    """Samples from the replays of one repetition. A row is a job or a resize."""

    launch: FloatArray  # shape (jobs, 2): number of ranks, and time from the allocation of the nodes to the first work
    # Shape (jobs, 2): number of ranks, and time from the planned end of the work until the nodes are idle.
    end: FloatArray
    # Shape (resizes, 5): new ranks; asked to decided; decided to applied; applied to ended; iteration.
    expand: FloatArray
    shrink: FloatArray  # shape (resizes, 5): like `expand`, with the number of released ranks

    @classmethod
    def joined(cls, parts: list[OverheadSamples]) -> OverheadSamples:
        """Return the rows of all `parts`."""
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in cls.__dataclass_fields__))

    @property
    def ready(self) -> FloatArray:
        """Shape (expansions, 3): new ranks; time from the decision until the end of an iteration; duration of this one.

        An expansion is applied at the end of the first iteration after all new ranks have joined, after the pause of a
        reconfiguration. So they joined within this iteration.
        """
        pause = self.shrink[:, 2].mean() if len(self.shrink) else 0.0
        ended = self.expand[:, 1] + self.expand[:, 2] - pause
        return np.column_stack([self.expand[:, 0], ended, self.expand[:, 4]])


def samples_of(run: Run, workload: Workload, entries: list[Entry], grain_s: float) -> OverheadSamples:
    """Return the samples of a replay, from its journal. The target duration of an iteration is `grain_s`, wall s."""
    speed, jobs = run.info.speed, run.jobs.set_index("job_id")
    jobs = jobs[jobs["state"] == "completed"]
    planned, late = _leaders(entries)
    starts = run.allocations.merge(jobs[["start"]].reset_index(), on="job_id", suffixes=("", "_job"))
    first = starts[starts["start"] == starts["start_job"]].groupby("job_id")["count"].sum()
    asked = run.resizes.groupby("job_id")["nodes_from"].first()  # a job may expand at its start
    first = asked.reindex(first.index).fillna(first)
    changes = run.resizes[run.resizes["state"] == "applied"]
    last = changes.groupby("job_id")["nodes_to"].last().reindex(first.index).fillna(first)
    launch = (jobs["launched"] - jobs["start"]) / speed
    work = pd.Series(planned) + pd.Series(late) * (max(run.info.duties) == 1.0)
    end = (jobs["end"] - jobs["launched"]) / speed - work.reindex(jobs.index)
    resizes = _resizes(changes, jobs, workload, speed, grain_s)
    return OverheadSamples(
        _rows(first, launch),
        _rows(last, end),
        resizes[resizes[:, 0] > 0],
        np.abs(resizes[resizes[:, 0] < 0]),
    )


def _rows(ranks: pd.Series[float], seconds: pd.Series[float]) -> FloatArray:
    table = pd.DataFrame({"ranks": ranks, "seconds": seconds}).dropna()
    return table.to_numpy(dtype=np.float64)


def _leaders(entries: list[Entry]) -> tuple[dict[str, float], dict[str, float]]:
    """Return job -> planned duration of its work, and job -> delay behind the plan at its end, wall s."""
    planned, late = {}, {}
    for entry in entries:
        if entry.kind == "ended" and entry.data["leader"] and entry.data.get("planned_s") is not None:
            assert entry.job is not None
            planned[entry.job] = float(entry.data["planned_s"])
            # At duty 1 on a slow core: not an overhead of the end.
            late[entry.job] = float(entry.data.get("residual_s") or 0.0)
    return planned, late


def _resizes(changes: pd.DataFrame, done: pd.DataFrame, workload: Workload, speed: float, grain_s: float) -> FloatArray:
    """Return the resizes of completed jobs with enough iterations, decided while the jobs worked.

    Shape (resizes, 5): added nodes (negative for a shrink), the three stages, and the duration of an iteration, wall s.
    """
    jobs = Jobs.of(workload)
    number = {name: job for job, name in enumerate(jobs.ids)}
    launched = dict(zip(done.index.tolist(), done["launched"].tolist(), strict=True))
    instants = changes[["asked", "decided", "applied", "ended"]].to_numpy(dtype=np.float64) / speed
    sizes = changes[["nodes_from", "nodes_to"]].to_numpy(dtype=np.int64).tolist()
    rows = []
    for name, (before, after), times in zip(changes["job_id"].tolist(), sizes, instants, strict=True):
        job = number[name]
        seconds = jobs.run_time[job] / speed
        iterations = max(1, round(seconds / grain_s))
        if iterations < ITERATIONS or times[0] * speed < launched.get(name, np.inf):
            continue
        rows.append([after - before, *np.diff(times), seconds / iterations / jobs.rate(job, before)])
    return np.array(rows, dtype=np.float64).reshape(-1, 5)
