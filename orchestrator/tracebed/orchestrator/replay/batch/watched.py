"""The submission, observations and end of each job of a replay on a batch system."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from tracebed.ground.states import JobState
from tracebed.orchestrator.replay.batch.base import LIVE, JobObservation, Phase
from tracebed.orchestrator.replay.batch.records import OwnRecord
from tracebed.orchestrator.replay.batch.resizes import BatchResize, planned_end
from tracebed.orchestrator.replay.batch.wall import WallClock

CONFIRMATIONS = 2
"""Successive observations that confirm an unusual state. A single observation may be an error of the batch system."""
MISSING_POLLS = 60
"""Number of successive observations without a job after which the job counts as ended, if it left no record of its end.
An answer of the batch system may be incomplete."""
UNKNOWN_POLLS = 600
"""Number of successive observations of an unknown state after which a job counts as ended."""
ENDING_POLLS = 10
"""Number of successive observations of an ending job without nodes after which it counts as ended, if it recorded its
end. Slurm 22.05 may never complete a job that ended while it was expanded."""
NO_TRACE = "the batch system no longer lists the job, and the job left no record of its end"

TERMINATED = "the job was terminated before its planned end"


@dataclass
class WatchedJob:
    """A job of the replay. Times are of the replay's clock, s since 1970."""

    id: str | None = None  # ID in the batch system; None: not submitted, or refused
    due: float | None = None  # trace time at which the submission was due, if it was not as planned
    called: float | None = None  # time of the call that submitted the job
    latency_s: float = 0.0  # duration of that call
    seen: JobObservation | None = None  # last observation
    # Start and last nodes of the last execution that was observed. A later observation may be older: it lacks them.
    execution: tuple[float | None, tuple[str, ...]] = (None, ())
    # Last unusual observation: phase (None: the job was missing) and word.
    unconfirmed: tuple[Phase | None, str] | None = None
    confirmations: int = 0  # number of successive observations equal to `unconfirmed`
    # The last observation and the record read with it, if they tell an end that is not confirmed yet.
    unconfirmed_end: tuple[JobObservation | None, OwnRecord | None] = (None, None)
    ended: bool = False
    state: JobState = JobState.UNKNOWN
    reason: str = ""
    own: OwnRecord | None = None  # record of the job itself, once it has ended
    first_nodes: tuple[str, ...] = ()  # nodes on which this execution started; empty if its nodes never changed
    # Times at which a change of the nodes of the running job was observed, and the new nodes.
    node_changes: list[tuple[float, tuple[str, ...]]] = field(default_factory=list)
    resizes: list[BatchResize] = field(default_factory=list)  # resizes that a policy of tracebed decided
    # Nodes after the resize that a killed replayer had begun. It did not see what became of it.
    resizing_to: tuple[str, ...] = ()
    patience: int = 1  # factor of `MISSING_POLLS` and `UNKNOWN_POLLS`, if observations are more frequent than usual
    # First rate of a malleable job, in work seconds a second. None: the job works for its run time.
    rate: float | None = None

    @property
    def pending(self) -> bool:
        """Whether the job is submitted and has not ended."""
        return self.id is not None and not self.ended

    @property
    def earlier_nodes(self) -> list[tuple[str, ...]]:
        """The nodes that the job held before the last change of them."""
        return [self.first_nodes, *(nodes for _, nodes in self.node_changes)][:-1]

    def planned_s(self, work_s: float) -> float:
        """Return the planned run time of an ended job with a work, wall s."""
        own = self.own
        if self.rate is None or own is None:
            return work_s
        launched = own.start if own.launched is None else own.launched
        return planned_end(work_s, launched, self.rate, self.resizes) - own.start

    def refuse(self, reason: str) -> None:
        """Record that the batch system refused the job."""
        self.ended, self.state, self.reason = True, JobState.REJECTED, reason

    def cancel(self, reason: str) -> None:
        """Record that the job was cancelled before its start."""
        self.ended, self.state, self.reason = True, JobState.CANCELLED, reason

    def without_steps(
        self, clock: WallClock, observed: JobObservation | None, own: OwnRecord | None, now: float
    ) -> tuple[JobObservation | None, OwnRecord | None]:
        """Return the observation and the record of `observe`, with times of `clock` instead of wall times."""

        def at(wall: float | None, near: float | None) -> float | None:
            return None if wall is None else clock.at(wall, now if near is None else near)

        if not clock.steps:
            return observed, own
        start = self.execution[0]
        if observed is not None:
            same = at(observed.start, start)  # unless the batch system has started the job again
            known = same is not None and start is not None and math.isclose(same, start, rel_tol=0.0, abs_tol=1e-3)
            start = same if known else at(observed.start, now)
            observed = replace(observed, start=start, end=at(observed.end, now))
        if own is not None:
            end = observed.end if observed is not None else None
            # A script begins some time after the start of its job, which is rounded down.
            started = clock.at(own.start, now if start is None else start, now)
            own = replace(own, start=started, end=at(own.end, end), launched=at(own.launched, started))
        return observed, own

    def observe(self, observed: JobObservation | None, own: OwnRecord | None, now: float) -> bool:
        """Process an observation of a submitted job at `now`, and its own record. Return whether something changed.

        A final state with the job's own record of its end is accepted at once. A final state without a record, and a
        record of the end of a job that is missing or in an unknown state, must be observed `CONFIRMATIONS` times in a
        row. Without a record, a missing job and an unknown state do not end a job until they have been observed
        `MISSING_POLLS` and `UNKNOWN_POLLS` times.
        """
        has_end = own is not None and own.end is not None
        if observed is not None and self.seen is not None and not observed.cores:
            observed = replace(observed, cores=self.seen.cores)
        self.unconfirmed_end = (None, None)
        if observed is not None and observed.phase in LIVE:
            if not observed.is_left or self.seen is None:
                self.unconfirmed, self.confirmations = None, 0
                return self._update(observed, now)
            observed = replace(observed, start=self.seen.start, nodes=self.seen.nodes)
            self.confirmations = self.confirmations + 1 if self.unconfirmed == (observed.phase, observed.word) else 1
            self.unconfirmed = (observed.phase, observed.word)
            if own is not None and has_end and self.confirmations >= self.patience * ENDING_POLLS:
                return self._end(observed, own, JobState.COMPLETED if own.completed else JobState.FAILED)
            return self._update(observed, now)
        if observed is not None and observed.phase is Phase.ENDED and has_end:
            return self._end(observed, own, observed.state)
        unconfirmed = (observed.phase, observed.word) if observed is not None else (None, "")
        self.confirmations = self.confirmations + 1 if unconfirmed == self.unconfirmed else 1
        self.unconfirmed = unconfirmed
        self.unconfirmed_end = (observed, own)
        if self.confirmations >= CONFIRMATIONS and self.end_unconfirmed():
            return True
        if self.confirmations >= self.patience * (UNKNOWN_POLLS if observed is not None else MISSING_POLLS):
            self.reason = f"unknown state {observed.word}" if observed is not None else NO_TRACE
            return self._end(observed, own, JobState.UNKNOWN)
        return False

    def end_unconfirmed(self) -> bool:
        """End the job if its last observation, or the record read with it, tells an end. Return whether it does."""
        observed, own = self.unconfirmed_end
        if observed is not None and observed.phase is Phase.ENDED:
            return self._end(observed, own, observed.state)
        if own is not None and own.end is not None:
            self.reason = "" if own.completed else TERMINATED
            return self._end(observed, own, JobState.COMPLETED if own.completed else JobState.FAILED)
        return False

    def _update(self, observed: JobObservation, now: float) -> bool:
        before, self.seen = self.seen, observed
        start, nodes = self.execution
        if observed.start is not None and observed.start != start:  # another execution, perhaps on other nodes
            start, nodes = observed.start, observed.nodes
            self.first_nodes, self.node_changes = (), []
        elif observed.phase is Phase.ENDING and nodes:  # Slurm lists those that are still being cleaned up
            self.seen = replace(observed, nodes=nodes)
        elif nodes and observed.nodes and observed.nodes != nodes:
            self.first_nodes = self.first_nodes or nodes
            self.node_changes.append((now, observed.nodes))
        holds = observed.nodes and observed.phase is not Phase.ENDING
        self.execution = start, observed.nodes if holds else nodes
        if before is None:
            return True
        return (before.word, before.nodes, before.start) != (observed.word, self.seen.nodes, observed.start)

    def withdraw(self) -> None:
        """Forget the nodes of a start that did not happen, or that the batch system has forgotten."""
        self.first_nodes, self.node_changes, self.resizes = (), [], []

    def resized(self, nodes: tuple[str, ...], at: float) -> None:
        """Record that the batch system has changed the nodes of the running job."""
        assert self.seen is not None
        self.first_nodes = self.first_nodes or self.execution[1]
        self.node_changes.append((at, nodes))
        self.seen = replace(self.seen, nodes=nodes)
        self.execution = self.execution[0], nodes

    def _end(self, observed: JobObservation | None, own: OwnRecord | None, state: JobState) -> bool:
        if observed is not None and observed.phase is Phase.ENDED:
            start, nodes = self.execution
            # A resize after the last observation, for example while no replay ran, took effect at an unknown time, and
            # the job never worked on the nodes that it added.
            same = nodes and observed.nodes and observed.start == start
            self.seen = replace(observed, nodes=nodes) if same else observed
        elif self.seen is not None and own is not None and own.restarts:
            self.seen = replace(self.seen, start=None)  # it may be that of an earlier start
        self.ended, self.state, self.own = True, state, own
        if not self.reason and observed is not None and state not in (JobState.COMPLETED, JobState.UNKNOWN):
            self.reason = observed.word if not observed.reason else f"{observed.word}: {observed.reason}"
        return True

    def facts(self) -> dict[str, Any]:
        """Return the last observation and the record of the job as JSON values, for the journal."""
        seen = vars(self.seen) if self.seen is not None else {}
        own = vars(self.own) if self.own is not None else {}
        nodes: dict[str, Any] = {"first_nodes": self.first_nodes, "stairs": self.node_changes}
        if self.seen is None or self.execution != (self.seen.start, self.seen.nodes):
            nodes["execution"] = self.execution
        if self.rate is not None:
            nodes |= {"rate": self.rate, "resizes": [vars(resize) for resize in self.resizes]}
        return {"state": str(self.state), "reason": self.reason, "seen": seen, "own": own, **nodes}


def never_starts(jobs: Iterable[WatchedJob], *, limited: bool = False) -> bool:
    """Return whether all jobs that have not ended can never start. With `limited`, no other job can end limits."""
    seen = [job.seen for job in jobs if job.pending]
    return bool(seen) and all(each is not None and (each.hopeless or (limited and each.limited)) for each in seen)
