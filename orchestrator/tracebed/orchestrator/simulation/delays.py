"""The delays of the steps of each job in one simulation: the overheads, or draws from their measured distribution.

A member of an ensemble (docs/explanation/ensembles.md) multiplies each delay by a factor that is drawn from the factors
of a calibration. The factors of launches and ends belong to a job, those of a resize to its row in the record. They are
drawn before the simulation, so that they depend neither on the order of events nor on the engine.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from tracebed.converters.workload import FloatArray
from tracebed.ground.states import JobState
from tracebed.orchestrator.scheduling.cluster import Cluster
from tracebed.orchestrator.scheduling.jobs import Jobs, program_of
from tracebed.orchestrator.scheduling.record import ScheduleRecord
from tracebed.orchestrator.simulation.overheads import Overheads

KINDS = ("expand", "shrink")


@dataclass(frozen=True)
class Pauses:
    """The resizes of the jobs of a simulation, trace seconds; NaN: the application of the job was not measured.

    Attributes:
        fixed: pause of each job in an expansion and in a shrink by one node, shape (jobs, 2).
        rank: additional pause for each further node, shape (jobs, 2).
        released: time from the end of the pause in a shrink until the nodes are idle, shape (jobs,).
    """

    fixed: FloatArray
    rank: FloatArray
    released: FloatArray

    @classmethod
    def of(cls, calibration: Mapping[str, Any], jobs: Jobs, speed: float) -> Self | None:
        """Return the resizes of `jobs`; None if no application of theirs was measured.

        Args:
            calibration: the facts of a calibration (`Calibration.facts`).
            speed: trace seconds per wall second.
        """
        measured: Mapping[str, Mapping[str, float]] = calibration.get("applications", {})
        if not measured or not jobs.application:
            return None
        costs = [measured.get(program_of(*job), {}) for job in zip(jobs.application, jobs.parameters, strict=True)]
        if not any(costs):
            return None

        def column(name: str, missing: float) -> FloatArray:
            return np.array([cost.get(name, missing) for cost in costs]) * speed

        fixed, rank, mib = (
            np.column_stack([column(f"{kind}_{what}", missing) for kind in KINDS])
            for what, missing in (("pause_s", math.nan), ("pause_rank_s", 0.0), ("pause_mib_s", 0.0))
        )
        state = np.asarray(jobs.column("state_mib"), dtype=np.float64)
        return cls(fixed + mib * state[:, None], rank, column("shrink_release_s", 0.0))

    def pause(self, job: int, added: int) -> float:
        """Return the pause of `job` in a resize by `added` nodes (negative: a shrink), s."""
        shrinks = int(added < 0)
        return float(self.fixed[job, shrinks] + self.rank[job, shrinks] * (abs(added) - 1))

    def release(self, job: int, added: int) -> float:
        """Return the time from the malleability point of a shrink by -`added` nodes until they are idle, s."""
        return self.pause(job, added) + float(self.released[job])


LAUNCH, END, EXPAND, RECONFIGURATION, RELEASE = STEPS = ("launch", "end", "expand", "reconfiguration", "release")
"""Steps of jobs whose delays vary."""
OF_RESIZES = (EXPAND, RECONFIGURATION, RELEASE)
ROWS = 4096
"""Number of resizes after which their factors repeat."""
Drawn = Mapping[str, FloatArray]
"""Step -> the factor of each job, or of each resize up to `ROWS`."""


def draw(factors: Mapping[Any, Sequence[float]], jobs: int, seed: int) -> Drawn:
    """Return the factors of a member: shape (jobs,) for launches and ends, (ROWS,) for resizes.

    Args:
        factors: step -> factors of equal probability, with mean 1. The factors of a missing step are 1.
        jobs: number of jobs.
        seed: seed of the member.
    """
    drawn = {}
    for number, step in enumerate(STEPS):
        values = np.asarray(factors.get(step) or (1.0,), dtype=np.float64)
        size = ROWS if step in OF_RESIZES else jobs
        drawn[step] = values[np.random.default_rng((seed, number)).integers(0, len(values), size)]
    return drawn


@dataclass(frozen=True)
class Delays:
    """The delays of one simulation.

    Args:
        overheads: the constants, trace s.
        drawn: the factors; None: all are 1.
        pauses: the resizes of jobs whose application was measured, trace s; None: all jobs have the constants.
    """

    overheads: Overheads
    drawn: Drawn | None = None
    pauses: Pauses | None = None

    @property
    def none(self) -> bool:
        """Whether all delays are 0."""
        grain_s = self.overheads.grain_s
        return self.drawn is None and self.pauses is None and self.overheads == Overheads(grain_s=grain_s)

    def launch(self, job: int, ranks: int) -> float:
        """Return the launch time of `job` with `ranks` ranks, s."""
        constant = self.overheads.launch(ranks)
        return constant if self.drawn is None else self._times(constant, LAUNCH, job)

    def end(self, job: int, ranks: int) -> float:
        """Return the end time of `job` with `ranks` ranks, s."""
        constant = self.overheads.end(ranks)
        return constant if self.drawn is None else self._times(constant, END, job)

    def expand(self, row: int, ranks: int) -> float:
        """Return the time until `ranks` new ranks have joined in the resize of this row, s; 0 for no ranks."""
        return self._times(self.overheads.expand(ranks), EXPAND, row % ROWS)

    def reconfiguration(self, row: int, job: int, added: int) -> float:
        """Return the pause of `job` in the resize of this row by `added` nodes (negative: a shrink), s."""
        own = self.pauses.pause(job, added) if self.pauses else math.nan
        return self._times(self.overheads.reconfiguration_s if math.isnan(own) else own, RECONFIGURATION, row % ROWS)

    def release(self, row: int, job: int, added: int) -> float:
        """Return the time until the nodes that `job` leaves in the shrink of this row are idle, s."""
        own = self.pauses.release(job, added) if self.pauses else math.nan
        return self._times(self.overheads.release_s if math.isnan(own) else own, RELEASE, row % ROWS)

    def _times(self, constant: float, step: str, index: int) -> float:
        return constant if self.drawn is None else constant * float(self.drawn[step][index])


def count_dispatched(record: ScheduleRecord, cluster: Cluster, delays: Delays) -> None:
    """Change the times of a simulation to the times that a batch system counts.

    In a simulation, a job holds its nodes from its start decision until the nodes are idle again. In a batch system,
    the overheads of a launch precede the job, and the overheads of an end follow it. As in a real batch system, they
    are part neither of the run time of the job nor of its allocation, and a job has the nodes of an expansion once the
    batch system has given them to it, not from the decision on. Delays that depend on the number of ranks are
    those of the requested size. A policy may decide a resize before the job starts, or before it knows that the job has
    ended: such instants become the start and the end, and nodes are held for no time.
    """
    nodes, count = record.jobs.nodes, range(len(record.jobs))
    since = np.array(record.start, dtype=np.float64)
    ended = {JobState.COMPLETED, JobState.KILLED}  # a job that was cut short has ended at the recorded instant
    for job in count:
        if record.state[job] in ended:
            record.end[job] -= delays.end(job, nodes[job])
        record.start[job] = min(record.start[job] + delays.launch(job, nodes[job]), record.end[job])
    ledger = cluster.ledger
    held = np.asarray(ledger.jobs)
    start, end = (np.asarray(times, dtype=np.float64)[held] for times in (record.start, record.end))
    lost = (np.asarray(record.restarts) > 0)[held] & ~(np.asarray(ledger.ends) > since[held])  # of an earlier run
    ends, began = np.where(lost, ledger.ends, np.fmin(ledger.ends, end)), np.asarray(ledger.starts)
    began = np.where(began > start, began + delays.expand(0, 1), began)
    starts = np.where(lost, ledger.starts, np.fmin(np.fmax(began, start), ends))
    ledger.ordered, ledger.starts = False, array("d", starts.tobytes())
    ledger.ends = array("d", ends.tobytes())
    resizes = record.resizes
    resized = np.asarray(resizes.job)
    first, last = (np.asarray(times, dtype=np.float64)[resized] for times in (record.start, record.end))
    lost = (np.asarray(record.restarts) > 0)[resized] & ~(np.asarray(resizes.asked) >= since[resized])
    for name in ("asked", "decided", "applied", "ended"):  # NaN: the job ended before
        times = np.asarray(getattr(resizes, name))
        times = np.where(lost, times, np.clip(times, first, last))
        setattr(resizes, name, array("d", times.tobytes()))
