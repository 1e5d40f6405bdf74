"""The view of a replay on a batch system."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tracebed.converters.workload import FloatArray
from tracebed.ground.states import JobState
from tracebed.orchestrator.replay.batch.base import Phase
from tracebed.orchestrator.replay.batch.ending import (
    Lifetime,
    add_nodes,
    allocations_of,
    health,
    late_s,
    lifetime,
    outcome,
    resizes_of,
    run_times,
)
from tracebed.orchestrator.replay.batch.recovery import BatchReconstruction
from tracebed.orchestrator.replay.batch.watched import WatchedJob
from tracebed.orchestrator.replay.journal import Entry
from tracebed.orchestrator.watching.view import HeldNodes, View, damage

HOLDING = (Phase.RUNNING, Phase.ENDING)  # phases in which a job holds nodes


class BatchView(View):
    """The state of a replay on a batch system, as last observed. The states of the nodes are unknown."""

    def __init__(self, facts: Mapping[str, Any]) -> None:
        with damage():
            self._reconstruction = BatchReconstruction(facts)
            super().__init__(facts, self._reconstruction.info, self._reconstruction.plan)
            self._resolution_s = float(facts["resolution_s"])
        self._numbers = {node.name: number for number, node in enumerate(self.info.nodes)}
        self._states: list[JobState | None] = [None] * len(self.jobs)
        self._submitted = [math.nan] * len(self.jobs)
        self._running: dict[int, int] = {}
        self._held: list[HeldNodes] = []  # of jobs that have ended
        self._resizes: dict[int, int] = {}

    def _apply(self, entry: Entry) -> None:
        self._reconstruction.apply(entry)
        if entry.job is not None:
            self._update(self._reconstruction.numbers[entry.job])
        if entry.kind == "failed" or (entry.kind == "polled" and entry.data["error"]):
            reason = entry.data.get("reason") or entry.data.get("error")
            self._count_fault("error", entry.time, node=None, job=entry.job, reason=reason)
        elif entry.kind == "step":
            self._count_fault("step", entry.time, node=None, job=None, reason=f"{entry.data['seconds']:.3g} s")
        elif entry.kind == "pause":
            self._count_fault("pause", entry.time, node=None, job=None, reason="")
        elif entry.kind == "interrupt":
            self.reason = str(entry.data["reason"])
            self._states = [self._state(job) for job in self._reconstruction.jobs]

    def _update(self, number: int) -> None:
        """Update the state of a job after an entry."""
        job = self._reconstruction.jobs[number]
        if job.called is not None:
            self._submitted[number] = self._reconstruction.trace(job.called)
        self._states[number] = self._state(job)
        resizes = resizes_of("", job, self._reconstruction.trace)
        self._resizes[number] = sum(resize["state"] == "applied" for resize in resizes)
        if job.ended:
            self._running.pop(number, None)
            self._held += self._holdings(number)
        elif job.seen is not None and job.seen.phase in HOLDING:
            self._running[number] = len(job.seen.nodes)
            add_nodes(job.seen.nodes, self._numbers, self.info.nodes)
        elif self._running.pop(number, None) is not None:
            reason = job.seen.reason if job.seen is not None else ""
            self._count_fault("requeue", self.now, node=None, job=self.jobs.ids[number], reason=reason)

    def _state(self, job: WatchedJob) -> JobState | None:
        return outcome(job, self._reconstruction.interrupted)[0] if job.ended else None

    def _cut_short(self, now: float, interrupted: str | None) -> None:
        self._held += [holding for job in self._running for holding in self._holdings(job)]
        self._running.clear()
        self._states = [outcome(job, interrupted)[0] for job in self._reconstruction.jobs]

    @property
    def states(self) -> Sequence[JobState | None]:
        """The final state of each job; None: the job has not ended."""
        return self._states

    @property
    def submitted(self) -> Sequence[float]:
        """The submit time of each job, trace s; NaN: not submitted."""
        return self._submitted

    @property
    def running(self) -> Mapping[int, int]:
        """Running job -> its number of nodes, in the order in which the starts were observed."""
        return self._running

    @property
    def resizes(self) -> int:
        """The number of resizes that took effect."""
        return sum(self._resizes.values())

    def late_s(self) -> FloatArray:
        """Return the time by which each job was submitted too late, trace s; NaN: not submitted."""
        return late_s(self._reconstruction.plan, self._reconstruction.jobs, self._submitted)

    def start_of(self, job: int) -> float:
        """Return the start of a running job, trace s. It is at most now, and uncertain by the resolution."""
        return min(self._lifetime(job).start, self.now)

    @property
    def nodes_out(self) -> None:
        """None: the states of the nodes are unknown."""
        return None

    @property
    def nodes_busy(self) -> int:
        """The number of nodes that jobs hold."""
        seen = (self._reconstruction.jobs[job].seen for job in self._running)
        return len({node for found in seen if found is not None for node in found.nodes})

    def holdings(self, since: float) -> Iterator[HeldNodes]:
        """Yield the periods after `since` in which jobs hold nodes. A period that has not ended ends now."""
        for job in self._running:
            yield from self._holdings(job)
        yield from (holding for holding in self._held if holding.end >= since)

    def health(self) -> dict[str, Any]:
        """Return the health of the replay so far, as in `run.json`."""
        rebuilt, steps = self._reconstruction, [step.size for step in self._reconstruction.steps]
        lifetimes = [self._lifetime(job) for job in range(len(self._states))]
        found = run_times(rebuilt.plan.run_time, self._states, lifetimes, self.info.speed, self._resolution_s)
        return health(
            self._info(), rebuilt.plan, rebuilt.jobs, self._submitted, self._states, found, steps, self._thresholds
        )

    def _lifetime(self, job: int) -> Lifetime:
        rebuilt = self._reconstruction
        return lifetime(
            rebuilt.jobs[job],
            self._resolution_s,
            trace=rebuilt.trace,
            end=rebuilt.wall(self.now),
        )

    def _holdings(self, number: int) -> Iterator[HeldNodes]:
        """Yield the periods in which a job holds nodes. Consecutive nodes with the same times are one range."""
        job, times, last = self._reconstruction.jobs[number], self._lifetime(number), None
        for _, node, start, end, _ in allocations_of(
            "", job, times, self._reconstruction.trace, self._numbers, self.info.nodes
        ):
            if last is not None and (last.first + last.size, last.start, last.end) == (node, start, end):
                last = last._replace(size=last.size + 1)
                continue
            if last is not None:
                yield last
            last = HeldNodes(number, node, 1, start, end)
        if last is not None:
            yield last
