"""Leak: jobs flow over the free nodes of the grid, and nothing is reserved."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from tracebed.orchestrator.scheduling.policies.deadline import extensions, late, next_date, planned
from tracebed.orchestrator.scheduling.shapes import first, flow
from tracebed.orchestrator.scheduling.state import Decision, ParameterTable, Reject, Reserve, Resize, Start, State, Wake


@dataclass(frozen=True)
class Leak(ParameterTable):
    """A job starts at once on the nodes that it reaches, and takes free neighbors until it has all.

    Source: Linnert et al. 2024, section 4.

    A malleable job starts on its minimum or more. A job that does not reach its minimum is rejected. A job that runs at
    its deadline is cancelled. An evolving job that requests more nodes gets the nodes that it reaches. An evolving job
    that requests fewer nodes releases nodes. The placement of the run has no effect.

    Args:
        contiguous: whether a job takes neighbors of its nodes only; if not, it then goes on at the next free node.
        waits: whether a job that does not reach its minimum at its earliest start waits for it until its deadline.
        reserve: whether a job is accepted at its submission if a valid time interval with enough nodes, by their
            number, is found before its deadline, and else rejected (figure 10, "in case of advance reservation"). The
            job then starts at the start of its interval, on the nodes that it reaches.
    """

    malleable: ClassVar[bool] = True
    evolving: ClassVar[bool] = True

    contiguous: bool = True
    waits: bool = False
    reserve: bool = False

    def decide(self, state: State) -> Iterator[Decision]:
        """Yield cancellations, answers to requests, expansions, starts, rejections, and the time of the next call."""
        yield from late(state)
        yield from self._answer(state)
        if self.reserve:
            yield from self._reserve(state)
        if self.waits or self.reserve:  # a job starts as early as possible: before running jobs expand
            yield from self._start(state)
        if state.freed and state.idle:
            yield from self._expand(state)
        if not (self.waits or self.reserve):
            yield from self._start(state)
        dates = next_date(state, 0.0) if self.reserve else state.starts.following(state.now)
        if (at := min(dates, state.deadlines.following(state.now))) < math.inf:
            yield Wake(at)

    def _start(self, state: State) -> Iterator[Start | Reject]:
        """Yield the starts and rejections of the waiting jobs whose earliest or reserved start has come."""
        jobs, holds = state.jobs, state.reservations.holds
        due = state.queue.in_order(state.starts.passed(state.now))
        if self.reserve:
            due = [job for job in due if job in holds and holds[job].start <= state.now]
        for job in due:
            if nodes := self._flow(state, job, _most(state, job), (), jobs.low[job]):
                yield Start(job, len(nodes), on=nodes)
            elif jobs.deadline_of(job) < math.inf and not (self.waits or self.reserve):
                needed = f"fewer than {jobs.low[job]} {'connected ' if self.contiguous else ''}nodes are free"
                yield Reject(job, f"{needed if state.idle else 'no node is free'} at its earliest start")

    def _reserve(self, state: State) -> Iterator[Reserve | Reject]:
        """Yield reservations of waiting jobs, by number, or rejections; a job that runs on keeps its reservation."""
        for decision in extensions(state, 0.0):
            if type(decision) is Reserve:  # a job is not cancelled at the end of its reservation
                yield decision
        shape = partial(first, state.cluster.grid)
        for job in [job for job in state.queue.jobs() if job not in state.reservations.holds]:
            yield planned(state, job, shape, 0.0)

    def _answer(self, state: State) -> Iterator[Resize]:
        """Yield the resizes of the evolving jobs with requests, in the order of the requests."""
        for job, requested in [*state.requested.items()]:
            if job in state.resizing or job in state.cancelling:
                continue
            if requested < state.size[job]:
                yield Resize(job, requested)
            else:
                yield from self._take(state, job, requested)

    def _expand(self, state: State) -> Iterator[Resize]:
        """Yield expansions of the running malleable jobs, in order of start, to the free nodes that they reach."""
        for job in state.free_to_resize(state.cancelling):
            if not state.jobs.requests_of(job):
                yield from self._take(state, job, _most(state, job))

    def _take(self, state: State, job: int, requested: int) -> Iterator[Resize]:
        """Yield the expansion of the running `job` towards `requested` nodes, if it reaches a free node."""
        missing = requested - (size := state.size[job])
        if missing > 0 and (nodes := self._flow(state, job, missing, state.cluster.owned(job), 1)):
            yield Resize(job, size + len(nodes), nodes)

    def _flow(self, state: State, job: int, count: int, held: Sequence[int], least: int) -> tuple[int, ...]:
        cluster = state.cluster
        return tuple(flow(cluster.grid, cluster.idle, count, held, job, least=least, contiguous=self.contiguous))


def _most(state: State, job: int) -> int:
    """Return the number of nodes that `job` requests, within its bounds."""
    jobs = state.jobs
    return max(jobs.low[job], min(jobs.nodes[job], jobs.high[job]))
