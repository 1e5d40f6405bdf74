"""The state of a replay: queue, nodes, lateness, health, faults and the time left."""

from __future__ import annotations

import abc
import contextlib
import enum
import math
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import numpy as np

from tracebed.converters.workload import FloatArray, IntArray
from tracebed.ground.errors import InputError
from tracebed.ground.states import JobState
from tracebed.orchestrator.replay.ending import lateness
from tracebed.orchestrator.replay.journal import Entry
from tracebed.orchestrator.replay.thresholds import HealthThresholds
from tracebed.orchestrator.run import RunInfo
from tracebed.orchestrator.runs.steps import arrivals, held_cores, utilization

FAULTS = {
    "down": "node lost",
    "up": "node back",
    "requeue": "job requeued",
    "error": "error",
    "stray": "process on other CPUs",
    "halted": "process stopped",
    "warning": "warning",
    "step": "step of the clock",
    "pause": "replay resumed",
}
"""Kind of fault -> its name in a view."""
LAST = 50
"""Number of faults that a view keeps."""
LEAST_UTILIZATION = 0.3
"""Least utilization that the estimate of the time left assumes, because the first minutes are not representative."""


class Status(enum.StrEnum):
    """Status of a replay."""

    RUNNING = "running"
    ENDED = "ended"
    INTERRUPTED = "interrupted"  # a signal or a failure has ended the replay
    STOPPED = "stopped"  # the replay was killed or has failed, and has not saved a run


class Fault(NamedTuple):
    """A fault in the journal."""

    time: float  # trace s
    text: str


class HeldNodes(NamedTuple):
    """A period in which a job holds a range of nodes. Times are trace s."""

    job: int
    first: int
    size: int
    start: float
    end: float
    part: range | None = None  # the cores that the job holds on each of the nodes; None: all


class JobColumns(Protocol):
    """The columns of the jobs of a replay, each of length `len(jobs)`. Times are trace s."""

    @property
    def ids(self) -> list[str]:
        """IDs of the jobs."""

    @property
    def submit(self) -> list[float]:
        """Planned submit times."""

    @property
    def run_time(self) -> list[float]:
        """Planned run times on `nodes`."""

    @property
    def nodes(self) -> list[int]:
        """Requested nodes."""

    def __len__(self) -> int:
        """Return the number of jobs."""


class View(abc.ABC):
    """The state of a replay at the last entry of its journal.

    Args:
        info: the facts of the run.
        jobs: the workload.

    Attributes:
        info: the facts of the run.
        jobs: the workload.
        now: time of the last entry, trace s; NaN before the first entry.
        faults: the latest faults, the newest last.
        fault_counts: kind of fault -> number of faults so far.
        core_changes: cause -> number of changes of the cores of a job on a node so far.
        status: whether the replay is running.
        reason: reason of an interruption; empty if the replay was not interrupted.
    """

    def __init__(self, facts: Mapping[str, Any], info: RunInfo, jobs: JobColumns) -> None:
        self.info, self.jobs = info, jobs
        self._thresholds = HealthThresholds.parse(*facts["thresholds"])
        self.now = math.nan
        self.faults: deque[Fault] = deque(maxlen=LAST)
        self.fault_counts: Counter[str] = Counter()
        self.core_changes: Counter[str] = Counter()
        self.status, self.reason = Status.RUNNING, ""
        self._seconds = np.array(jobs.run_time) * np.array(jobs.nodes)  # node-seconds of each job

    def apply(self, entries: Iterable[Entry]) -> None:
        """Process entries of the journal. Raises InputError if the journal is damaged."""
        with damage():
            for entry in entries:
                self.now = entry.time
                self._apply(entry)

    def finish(self, end: Mapping[str, Any] | None) -> None:
        """Process the end of the replay, the fact `end` of the journal; None: the replay was killed or has failed."""
        with damage():
            if end is not None:
                self.now, self.reason = float(end["time"]), str(end["interrupted"] or "")
                self._cut_short(self.now, end["interrupted"])
                self.status = Status.INTERRUPTED if JobState.INTERRUPTED in self.states else Status.ENDED
            else:
                self.status = Status.ENDED if self.finished == len(self.jobs) else Status.STOPPED

    # -- what a kind of journal provides -----------------------------------------------------------------------------

    @abc.abstractmethod
    def _apply(self, entry: Entry) -> None:
        """Process an entry of the journal."""

    @abc.abstractmethod
    def _cut_short(self, now: float, interrupted: str | None) -> None:
        """Interrupt the jobs that have not ended."""

    @property
    @abc.abstractmethod
    def states(self) -> Sequence[JobState | None]:
        """The final state of each job; None: the job has not ended."""

    @property
    @abc.abstractmethod
    def submitted(self) -> Sequence[float]:
        """The submit time of each job, trace s; NaN: not submitted."""

    @property
    @abc.abstractmethod
    def running(self) -> Mapping[int, int]:
        """Running job -> its number of nodes, in the order of the starts."""

    @property
    @abc.abstractmethod
    def resizes(self) -> int:
        """The number of resizes that took effect."""

    @property
    @abc.abstractmethod
    def nodes_out(self) -> Sequence[int] | None:
        """The nodes that were lost and have not returned; None: unknown."""

    @property
    @abc.abstractmethod
    def nodes_busy(self) -> int:
        """The number of nodes that jobs hold."""

    @property
    def nodes_asleep(self) -> int | None:
        """The number of nodes that are off, being switched off or booting, without a job; None: nodes stay on."""
        return None

    @abc.abstractmethod
    def start_of(self, job: int) -> float:
        """Return the start of a running job, trace s."""

    @abc.abstractmethod
    def holdings(self, since: float) -> Iterator[HeldNodes]:
        """Yield the periods after `since` in which jobs hold nodes. A period that has not ended ends now."""

    @abc.abstractmethod
    def health(self) -> dict[str, Any]:
        """Return the health of the replay so far, as in `run.json`."""

    # -- jobs --------------------------------------------------------------------------------------------------------

    def waiting(self) -> list[int]:
        """Return the jobs in the queue, in the order of submission."""
        running = self.running
        return [
            job
            for job, (state, submit) in enumerate(zip(self.states, self.submitted, strict=True))
            if state is None and job not in running and not math.isnan(submit)
        ]

    def counts(self) -> dict[str, int]:
        """Return the number of jobs by state: `planned`, `waiting`, `running`, and the final states that occur."""
        final = Counter(str(state) for state in self.states if state is not None)
        waiting, running = len(self.waiting()), len(self.running)
        planned = len(self.jobs) - waiting - running - final.total()
        return {"planned": planned, "waiting": waiting, "running": running, **final}

    @property
    def finished(self) -> int:
        """The number of jobs that have a final state."""
        return sum(state is not None for state in self.states)

    # -- nodes -------------------------------------------------------------------------------------------------------

    def node_counts(self) -> dict[str, int]:
        """Return the number of nodes by state: `busy`, `out`, `asleep`, `idle`; without states that are unknown."""
        busy, out, asleep = self.nodes_busy, self.nodes_out, self.nodes_asleep
        if out is None:
            return {"busy": busy}
        idle = len(self.info.nodes) - busy - len(out) - (asleep or 0)
        return {"busy": busy, "out": len(out), **({} if asleep is None else {"asleep": asleep}), "idle": idle}

    def occupation(self, since: float, columns: int) -> IntArray:
        """Return which jobs held the nodes in a window from `since` to now, in `columns` equal periods.

        Shape (2, nodes, columns): the job with the first core and the job with the last core of the node at the middle
        of the period, -1 for no job. The two differ on a shared node.
        """
        grid = np.full((2, len(self.info.nodes), columns), -1, dtype=np.int64)
        step = (self.now - since) / columns if self.now > since else 1.0
        for job, first, size, start, end, part in self.holdings(since):
            begin = max(0, math.ceil((start - since) / step - 0.5))
            stop = min(columns, math.ceil((end - since) / step - 0.5))
            layers = slice(None) if part is None else 1 if part.start else 0
            if stop > begin:
                grid[layers, first : first + size, begin:stop] = job
        return grid

    def utilization(self) -> float:
        """Return the metric `utilization` of the run so far; NaN: its window is empty.

        While submissions are due, the window ends now. It ends with the last submission, as that of the metric.
        """
        submit = np.array(self.submitted)
        if np.isnan(submit).all():
            return math.nan
        zero, running = np.nanmin(submit), self.status is Status.RUNNING
        cores = np.array([node.cores for node in self.info.nodes])
        held = np.array(
            [
                (start, end, len(part) if part is not None else cores[first : first + size].sum(), job)
                for job, first, size, start, end, part in self.holdings(zero)
            ]
        ).reshape(-1, 4)
        starts, ends, width, job = held.T
        finished = [state not in (None, JobState.INTERRUPTED) for state in self.states]
        last_end = self.now if running else max(ends[np.array(finished)[job.astype(int)]], default=math.nan)
        if running and (np.isnan(submit) & [state is None for state in self.states]).any():
            submit = np.append(submit, self.now)
        window = arrivals(submit - zero, last_end - zero)
        return utilization(held_cores(starts - zero, ends - zero, width), window, int(cores.sum()))

    def handovers(self) -> dict[str, Any]:
        """Return the longest overlap and gap of two masks on a CPU so far, as in `run.json`; empty: no hand-overs."""
        return {}

    # -- time --------------------------------------------------------------------------------------------------------

    def lateness(self) -> dict[str, float]:
        """Return the lateness of the submissions so far: count, and median, 99th percentile and maximum, wall ms."""
        late = self.late_s() / self.info.speed
        return lateness(late[~np.isnan(late)].tolist())

    def late_s(self) -> FloatArray:
        """Return the time by which each job was submitted too late, trace s; NaN: not submitted."""
        late: FloatArray = np.array(self.submitted) - np.array(self.jobs.submit)
        return late

    def left_s(self) -> float:
        """Return an estimate of the time left, wall s.

        The estimate is the larger of the time to the last submission, the longest remaining run time of a running job,
        and the time for the remaining work at the utilization so far.
        """
        if math.isnan(self.now) or self.finished == len(self.jobs):
            return 0.0
        run_time = self.jobs.run_time
        started = {job: max(0.0, run_time[job] - (self.now - self.start_of(job))) for job in self.running}
        open_ = np.array([state is None for state in self.states])
        work = float(np.nansum(self._seconds[open_]))
        work -= sum((run_time[job] - rest) * self.jobs.nodes[job] for job, rest in started.items())
        so_far = self.utilization()
        pace = len(self.info.nodes) * (max(so_far, LEAST_UTILIZATION) if so_far == so_far else 1.0)
        left = max(self.jobs.submit[-1] - self.now, max(started.values(), default=0.0), work / pace, 0.0)
        return left / self.info.speed

    # -- health and faults -------------------------------------------------------------------------------------------

    def _info(self) -> RunInfo:
        """Return the facts of the run so far."""
        if JobState.INTERRUPTED not in self.states:
            return replace(self.info)
        return replace(self.info, state="interrupted", interruptions=[self.reason])

    def _count_fault(self, kind: str, time: float, *, node: str | None, job: str | None, reason: object) -> None:
        """Count a fault. A fault that repeats the last one replaces it in the list."""
        place = ", ".join(filter(None, (node or "", f"job {job}" if job else "")))
        text = ": ".join(filter(None, (FAULTS[kind], ", ".join(filter(None, (place, str(reason or "")))))))
        if self.faults and self.faults[-1].text == text:
            self.faults.pop()
        self.fault_counts[kind] += 1
        self.faults.append(Fault(time, text))


@contextlib.contextmanager
def damage() -> Iterator[None]:
    """Convert the errors of a damaged journal to an InputError."""
    try:
        yield
    except (LookupError, ValueError, TypeError, AttributeError, ArithmeticError) as error:
        what = f"the journal is damaged: {type(error).__name__}: {error}"
        raise InputError(what, hint="the replay cannot be watched") from error
