"""A replay in which the batch system starts all jobs, and a layer beside it resizes the running malleable ones.

The layer makes a pass at each multiple of its interval, if something has changed since the last one. A job that shrinks
leaves its nodes at its next malleability point. A job that expands has an expander: a second job, which waits in the
queue of the batch system until the batch system gives it nodes. So the batch system decides when, where, and how many.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from tracebed.ground.errors import TestbedError
from tracebed.orchestrator.replay.batch.base import (
    JobRequest,
    LayeredSystem,
    LayerFacts,
    LayerJob,
    LayerPass,
    Phase,
    Refused,
)
from tracebed.orchestrator.replay.batch.loop import Polled
from tracebed.orchestrator.replay.batch.plan import SubmissionPlan
from tracebed.orchestrator.replay.batch.records import JobRecords
from tracebed.orchestrator.replay.batch.resizes import SECOND, ResizeCommand, second_name
from tracebed.orchestrator.replay.batch.resizing import ResizingReplayer
from tracebed.orchestrator.replay.journal import Journal
from tracebed.orchestrator.scheduling.jobs import Jobs
from tracebed.orchestrator.scheduling.names import EXPANDER_S, ODD_SIZE

MOST_REFUSALS = 3  # refused expansions of a job after which it asks for no more nodes
RUNNING = "RUNNING"  # the only state in which a job is resized: it is not stopped, and it does not start or end


@dataclass(frozen=True)
class Layer:
    """The layer of a replay."""

    policy: str
    interval_s: float  # between two passes, trace s
    facts: LayerFacts


@dataclass
class Expander:
    """A second job that waits for nodes for a job. Times are of the replay's clock, s."""

    request: int  # number of the request that the nodes will belong to
    asked: float
    decision_s: float
    granted: tuple[str, tuple[str, ...]] | None = None  # the ID of the second job, and its nodes
    withdrawn: bool = False


@dataclass
class Counts:
    """What became of the expanders of a replay, and of its limits."""

    expanders: int = 0
    merged: int = 0
    withdrawn: int = 0
    refused: int = 0
    limits_refused: int = 0
    passes_failed: int = 0
    why_failed: str = ""  # message of the last pass that failed
    excluded: dict[str, str] = field(default_factory=dict)  # ID of a job -> why the layer does not resize it


class LayerReplayer(ResizingReplayer):
    """A replay on a batch system that decides, beside which a layer resizes jobs."""

    system: LayeredSystem

    def __init__(
        self,
        jobs: Jobs,
        layer: Layer,
        nodes: Sequence[str],
        plan: SubmissionPlan,
        batch_system: LayeredSystem,
        records: JobRecords,
        journal: Journal,
        **arguments: Any,
    ) -> None:
        """Prepare a replay. `nodes` are the names of the nodes, in the order of the batch system."""
        super().__init__(jobs, plan, batch_system, records, journal, **arguments)
        self.layer, self.counts = layer, Counts()
        self._place = {name: number for number, name in enumerate(nodes)}
        self._expanders: dict[int, Expander] = {}  # job -> its expander
        self._refusals: Counter[int] = Counter()
        self._limits: dict[int, float] = {}  # job -> its time limit after a resize, wall s
        self._largest: dict[int, int] = {}  # job -> the largest number of nodes that it has had
        self._launched: set[int] = set()  # malleable jobs that have begun to work
        self._is_changed = False  # whether something has changed since the last pass
        self._passing = False  # whether a pass is being decided
        self._passed = -1  # number of the last pass: the time since the first submission, in intervals

    def run(self, on_progress: Callable[[int], None] | None = None) -> None:
        """Replay until all jobs have ended. Raises TestbedError as `BatchReplayer.run`."""
        for watched, malleable in zip(self.jobs, self.resized.malleable, strict=True):
            watched.rate = 1.0 if malleable else None
        super().run(on_progress)

    def resume(self, submitted: Collection[int], submitting: Iterable[int], in_flight_s: float) -> None:
        """Continue after a killed replayer. Its expanders are withdrawn, because no process waits for them."""
        super().resume(submitted, submitting, in_flight_s)
        self._is_changed = True

    # -- jobs ------------------------------------------------------------------------------------------------------

    def _request(self, job: int) -> JobRequest:
        # A job that is started again would begin with the size of before. Its first size is written by itself.
        return replace(super()._request(job), requeued=not self.resized.malleable[job])

    def _submitted(self, job: int) -> None:
        self._is_changed = True

    def _changed(self, job: int) -> None:
        self._is_changed = True
        watched = self.jobs[job]
        if watched.ended:
            self._withdraw(job)
        super()._changed(job)

    def _sorted(self, nodes: Iterable[str]) -> tuple[str, ...]:
        return tuple(sorted(nodes, key=lambda name: self._place.get(name, len(self._place))))

    def _observed(self, polled: Polled) -> None:
        if self._returned:
            self._adopt_running(polled)
        for job in list(self._pending):
            self._settle_resize(job, polled)
        self._cancel_orphans(polled)
        for job, watched in enumerate(self.jobs):
            if watched.pending and self.resized.malleable[job] and job not in self._launched and self._runs(job):
                self._look_for_launch(job)

    def _runs(self, job: int) -> bool:
        seen = self.jobs[job].seen
        return seen is not None and seen.phase is Phase.RUNNING and seen.word == RUNNING

    def _look_for_launch(self, job: int) -> None:
        id, jobs = str(self.jobs[job].id), self.resized
        applied = self.records.applied(self.name(job), id)
        if applied is not None:
            self._launched.add(job)
            if not jobs.low[job] <= self.plan.nodes[job] <= jobs.high[job]:
                self.counts.excluded[id] = ODD_SIZE
            self._requests[job] = max(self._requests[job], applied.request)
            self._largest[job] = max(self._largest.get(job, 0), len(self._nodes(job)))
            self._is_changed = True

    def _nodes(self, job: int) -> tuple[str, ...]:
        """Return the nodes of a running job. The first one runs its script."""
        watched = self.jobs[job]
        nodes = watched.execution[1]
        first = (watched.first_nodes or nodes)[:1]
        return (*first, *(name for name in nodes if name not in first))

    def _adopt_running(self, polled: Polled) -> None:
        """Continue the running jobs of a killed replayer on the nodes that the batch system gives them."""
        self._returned = False
        names = [match for each in polled.found.values() if (match := SECOND.fullmatch(each.name))]
        last = {self._numbers.get(each["name"], -1): int(each["request"]) for each in names}
        for job, watched in enumerate(self.jobs):
            if not (watched.pending and self.resized.malleable[job]):
                continue
            request, told = self.records.requested_size(self.name(job))
            self._requests[job] = max(request, last.get(job, 0))  # no expander has the name of one that is withdrawn
            self._largest[job] = max(len(nodes) for nodes in (watched.execution[1], *watched.earlier_nodes))
            nodes = self._nodes(job)
            if self._runs(job) and told and {*told} != {*nodes}:
                now = self.clock.now()
                self._begin_resize(job, told, nodes, now, 0.0).resize.merged = now

    # -- passes ----------------------------------------------------------------------------------------------------

    def _number(self) -> int:
        """Return the number of the interval that has begun."""
        return math.floor((self.trace(self.clock.now()) - self.plan.submit[0]) / self.layer.interval_s + 1e-9)

    def _next_decision(self) -> float:
        due = math.inf
        if self._is_changed and not (self._passing or self._returned) and self.interrupted is None:
            due = self.wall(self.plan.submit[0] + (self._passed + 1) * self.layer.interval_s)
        return min(super()._next_decision(), due)

    def _decide(self) -> None:
        if self.interrupted is not None:
            for job in list(self._expanders):
                self._withdraw(job)
            return
        if self._returned:
            return
        for job in list(self._pending):
            self._advance(job)
        number = self._number()
        if not self._is_changed:
            self._passed = max(self._passed, number)  # a change is seen at the next multiple
        elif number > self._passed and not self._passing:
            self._passed = number
            self._begin_pass()

    def _begin_pass(self) -> None:
        """Decide a pass in the background."""
        self._is_changed = False
        jobs = [job for job in self._launched if self._is_resizable(job)]
        jobs.sort(key=lambda job: (self.jobs[job].execution[0] or 0.0, job))
        of_layer = [self._of_layer(job) for job in jobs]
        if not of_layer:
            return
        released = {
            (str(self.jobs[job].id), name)
            for job, pending in self._pending.items()
            for name in {*pending.resize.before} - {*pending.resize.after}
        }
        self._passing, began, found = True, self.clock.now(), list[LayerPass]()

        def decide() -> None:
            found.append(self.system.layer_pass(self.layer.policy, of_layer, released))

        def finish(error: TestbedError | None) -> None:
            self._passing = False
            if error is not None:
                self._is_changed = True
                self.counts.passes_failed, self.counts.why_failed = self.counts.passes_failed + 1, str(error)
                self._note("not_done", None, reason=str(error))
            elif self.interrupted is None:
                self._carry_out(found[0], self.clock.now() - began)

        self._in_background(decide, finish, "pass of the layer")

    def _is_resizable(self, job: int) -> bool:
        watched, id = self.jobs[job], str(self.jobs[job].id)
        busy = job in self._pending or self._is_granted(job) or self.counts.excluded.get(id) == ODD_SIZE
        return watched.pending and self._runs(job) and not busy

    def _is_granted(self, job: int) -> bool:
        return job in self._expanders and self._expanders[job].granted is not None

    def _of_layer(self, job: int) -> LayerJob:
        """Return a job as the layer sees it."""
        jobs, nodes = self.resized, self._nodes(job)
        most = jobs.high[job] if self._refusals[job] < MOST_REFUSALS else 0
        sizes = min(jobs.low[job], len(nodes)), jobs.pref[job], max(most, len(nodes))
        waits = job in self._expanders
        return LayerJob(str(self.jobs[job].id), nodes, *sizes, self._largest.get(job, len(nodes)), waits)

    def _carry_out(self, decisions: LayerPass, decision_s: float) -> None:
        """Carry out the decisions of a pass."""
        of_id = {str(watched.id): job for job, watched in enumerate(self.jobs) if watched.id is not None}
        self.counts.excluded.update(decisions.excluded)
        for id, limit_s in decisions.limits_s.items():
            self._limits.setdefault(of_id[id], limit_s)
        self._note("pass", None, shrinks=decisions.shrinks, expansions=decisions.expansions, decision_s=decision_s)
        for id, left in decisions.shrinks.items():
            job = of_id[id]
            before = self._nodes(job)
            after = tuple(name for name in before if name not in left)
            if self._is_resizable(job) and after != before:
                self._withdraw(job)
                self._begin_resize(job, before, after, self.clock.now(), decision_s)
                self._advance(job)
        for id, most in decisions.expansions.items():
            job = of_id[id]
            if self._is_resizable(job) and job not in self._expanders:
                self._ask(job, most, decision_s)

    # -- expanders -------------------------------------------------------------------------------------------------

    def _ask(self, job: int, most: int, decision_s: float) -> None:
        """Submit the expander of a job, in the background: the call lasts until the nodes are granted."""
        id, now = str(self.jobs[job].id), self.clock.now()
        self._requests[job] += 1
        expander = self._expanders[job] = Expander(self._requests[job], now, decision_s)
        self.counts.expanders += 1
        self._note("asked", job, request=expander.request, most=most)

        def ask() -> None:
            name = second_name(self.name(job), expander.request)
            expander.granted = self.system.ask(id, name, most, EXPANDER_S)

        self._in_background(ask, partial(self._take_answer, job, expander), f"expander of job {job}")

    def _take_answer(self, job: int, expander: Expander, error: TestbedError | None) -> None:
        """Let a job expand to the nodes of its expander, or forget an expander that got none."""
        if self._expanders.get(job) is expander:
            del self._expanders[job]
        self._is_changed = True
        if expander.withdrawn:
            return
        if expander.granted is None:
            late = error is not None and self.clock.now() >= expander.asked + EXPANDER_S - 1.0
            self.counts.withdrawn += late
            if not late:
                self.counts.refused += 1
                self._refusals[job] += isinstance(error, Refused)
                self._note("not_done", job, reason=str(error))
            return
        second, nodes = expander.granted
        if not self.jobs[job].pending or job in self._pending or self.interrupted is not None:
            self.counts.withdrawn += 1
            self._unwanted[second] = self.clock.now()
            return
        before = self._nodes(job)
        after = (*before, *(name for name in nodes if name not in before))
        pending = self._begin_resize(job, before, after, expander.asked, expander.decision_s, expander.request)
        pending.resize.called, pending.resize.granted = expander.asked, self.clock.now()
        pending.second = second
        self._advance(job)

    def _withdraw(self, job: int) -> None:
        """Withdraw the expander of a job. Its second job is found by its name."""
        if (expander := self._expanders.pop(job, None)) is not None:
            expander.withdrawn = True
            self.counts.withdrawn += 1
            self._look_soon()

    def _is_wanted(self, job: int, request: int) -> bool:
        expander = self._expanders.get(job)
        return super()._is_wanted(job, request) or (expander is not None and expander.request == request)

    # -- resizes ---------------------------------------------------------------------------------------------------

    def _merged(self, job: int, pending: ResizeCommand) -> None:
        resize, ended = pending.resize, self.jobs[job].ended
        self._is_changed = True
        if not ended and self._pending.get(job) is pending:
            self._largest[job] = max(self._largest.get(job, 0), len(resize.after))
            self.counts.merged += resize.expands
            self._set_limit(job, resize.rates)
        super()._merged(job, pending)

    def _concluded_resize(self, job: int) -> None:
        self._is_changed = True
        if self.jobs[job].resizes[-1].state == "refused":
            self._refusals[job] += 1

    def _set_limit(self, job: int, rates: tuple[float, float]) -> None:
        """Let the rest of the time limit of a job follow its rate."""
        start, limit_s = self.jobs[job].execution[0], self._limits.get(job)
        if not self.layer.facts.sets_limits or start is None or limit_s is None:
            return
        elapsed_s = self.clock.now() - start
        self._limits[job] = limit_s = elapsed_s + max(0.0, limit_s - elapsed_s) * rates[0] / rates[1]
        id = str(self.jobs[job].id)

        def finish(error: TestbedError | None) -> None:
            if error is not None:
                self.counts.limits_refused += 1
                self._note("not_done", job, reason=str(error))

        self._note("limit", job, limit_s=limit_s)
        self._in_background(lambda: self.system.set_limit(id, limit_s), finish, f"time limit of job {job}")

    # -- the end ---------------------------------------------------------------------------------------------------

    def measured(self) -> dict[str, int]:
        """Return the numbers of expanders by what became of them, of refused time limits, and of failed passes."""
        return {name: value for name, value in vars(self.counts).items() if name not in ("excluded", "why_failed")}

    def unresized(self) -> list[str]:
        """Return why jobs were not resized, with their numbers, and why passes failed."""
        counts = Counter(self.counts.excluded.values())
        lines = [f"{count:,} malleable jobs {why}" for why, count in counts.most_common()]
        if failed := self.counts.passes_failed:
            lines.append(f"passes of the layer that failed: {failed:,}, for example: {self.counts.why_failed}")
        return lines
