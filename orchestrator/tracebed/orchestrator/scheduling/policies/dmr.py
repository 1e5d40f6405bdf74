"""DMR's throughput-aware policy: jobs start large, and shrink as soon as this allows another job to start.

Source: the paper on the malleable HPG-aligner and the DMR API, "Experimental results". The decision on one job is made
by `tracebed.benchmarks.dmr`, as in checks by applications.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

from tracebed.benchmarks import dmr
from tracebed.orchestrator.scheduling.jobs import Jobs
from tracebed.orchestrator.scheduling.policies.easy import backfill
from tracebed.orchestrator.scheduling.state import Decision, ParameterTable, Resize, Start, State


@dataclass(frozen=True)
class Dmr(ParameterTable):
    """Malleable jobs start on all idle nodes, up to their maximum, and shrink to allow waiting jobs to start.

    Args:
        floor: the smallest size to which a running job shrinks: its preferred size (`pref`), or its minimum if the
            preferred size does not suffice (`min`).
        sizes: the sizes on which jobs start and to which they expand: `any`, or the maximum and its half, its quarter
            and so on down to the minimum (`halved`).
    """

    malleable: ClassVar[bool] = True

    floor: Literal["pref", "min"] = "pref"
    sizes: Literal["any", "halved"] = "any"

    def view(self, jobs: Jobs) -> Jobs:
        """Return the jobs with their maximum size as the preferred size."""
        return jobs.with_columns(pref=jobs.column("high"))

    def decide(self, state: State) -> Iterator[Decision]:
        """Yield starts, then shrinks with the start that each allows, then expansions if no waiting job fits."""
        changed: set[int] = set()
        for start in backfill(state):
            changed.add(start.job)
            yield Start(start.job, self._size(state.jobs, start.job, start.nodes))
        if len(state.queue):
            for decision in self._shrink(state, changed):
                changed.add(decision.job)
                yield decision
        if state.idle and state.queue.first_fit(-1, state.idle, 0.0, state.idle) is None:
            yield from self._expand(state, changed)

    def _shrink(self, state: State, changed: set[int]) -> Iterator[Start | Resize]:
        """Yield shrinks of running jobs, in order of start, to the floor, and the allowed starts."""
        jobs = state.jobs
        waiting = state.queue.jobs()
        needs = [jobs.low[job] for job in waiting]
        idle = state.idle
        for job in state.free_to_resize(changed):
            preferred, least = jobs.workload_pref[job], jobs.low[job]
            targets = (preferred,) if self.floor == "pref" else (preferred, least)
            shrink = dmr.shrunk(state.size[job], targets, idle, needs)
            if shrink is None:
                continue
            size, index = shrink
            room = idle + state.size[job] - size
            del needs[index]
            helped = waiting.pop(index)
            nodes = self._size(jobs, helped, room)
            yield Resize(job, size)
            yield Start(helped, nodes)
            idle = room - nodes

    def _expand(self, state: State, changed: set[int]) -> Iterator[Resize]:
        """Yield expansions of running jobs towards their maximum, in order of start, while nodes are idle."""
        for job in state.free_to_resize(changed):
            most, now = state.jobs.high[job], state.size[job]
            size = dmr.expanded(now, most, state.idle)
            if self.sizes == "halved":
                size = dmr.halved(most, now, size)
            if size > now:
                yield Resize(job, size)

    def _size(self, jobs: Jobs, job: int, room: int) -> int:
        """Return the number of nodes on which `job` starts if it can have `room` nodes."""
        high = jobs.high[job]
        return dmr.halved(high, jobs.low[job], room) if self.sizes == "halved" else min(high, room)
