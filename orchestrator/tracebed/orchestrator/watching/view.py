"""The state of a replay, from the entries of its journal: queue, nodes, lateness, health, faults and the time left."""

from __future__ import annotations

import contextlib
import math
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from tracebed.converters.workload import FloatArray, IntArray
from tracebed.errors import InputError
from tracebed.orchestrator.replay.ending import lateness
from tracebed.orchestrator.replay.health import health
from tracebed.orchestrator.replay.journal import Entry
from tracebed.orchestrator.replay.recovery import SCHEMA, Retold
from tracebed.orchestrator.replay.thresholds import Thresholds
from tracebed.orchestrator.replay.witness import Witness
from tracebed.orchestrator.run import RunInfo
from tracebed.orchestrator.scheduling.jobs import Jobs
from tracebed.states import JobState

FAULTS = {
    "down": "node lost",
    "up": "node back",
    "requeue": "job requeued",
    "error": "error",
    "pause": "replay resumed",
}
"""Kind of journal entry -> its name in a view."""
LAST = 50
"""Number of faults that a view keeps."""
LEAST_UTILIZATION = 0.3
"""Least utilization that the estimate of the time left assumes, because the first minutes are not representative."""


class Fault(NamedTuple):
    """A fault in the journal."""

    time: float
    """Trace s."""
    text: str


class Holding(NamedTuple):
    """A period in which a job holds a range of nodes. Times are trace s."""

    job: int
    first: int
    size: int
    start: float
    end: float


class View:
    """The state of a replay at the last entry of its journal.

    Args:
        facts: the facts of the journal.

    Raises:
        InputError: the facts are not those of a replay.

    Attributes:
        info: the facts of the run.
        jobs: the workload.
        now: time of the last entry, trace s; NaN before the first entry.
        faults: the latest faults, the newest last.
        fault_counts: kind of fault -> number of faults so far.
        ended: whether the replay has ended; set by the reader of the journal.
    """

    def __init__(self, facts: Mapping[str, Any]) -> None:
        """Start before the first submission."""
        if facts.get("schema") != SCHEMA:
            hint = "if a batch system schedules the replay, its own commands show the jobs (squeue, oarstat)"
            raise InputError(f"is not a journal of the schema {SCHEMA}", hint=hint)
        with _damage():
            self.info = RunInfo.from_json(facts["info"])
            self.jobs = Jobs(**facts["jobs"], speedup=[None] * len(facts["jobs"]["ids"]))
            self._thresholds = Thresholds.parse(*facts["thresholds"])
        self.now = math.nan
        self.faults: deque[Fault] = deque(maxlen=LAST)
        self.fault_counts: Counter[str] = Counter()
        self.ended = False
        self._retold = Retold(self.jobs, self.info)
        self._witness = Witness(self.jobs, self.info.nodes, self.info.speed)
        self._seconds = np.array(self.jobs.run_time) * np.array(self.jobs.nodes)  # node-seconds of each job

    def take_in(self, entries: Iterable[Entry]) -> None:
        """Process entries of the journal. Raises InputError if the journal is damaged."""
        with _damage():
            for entry in entries:
                self.now = entry.time
                self._retold.take_in(entry)
                self._witness.take_in(entry)
                if entry.kind in FAULTS and not (entry.kind == "error" and entry.job):  # such a job had just ended
                    self.fault_counts[entry.kind] += 1
                    self.faults.append(Fault(entry.time, _told(entry)))

    # -- jobs ------------------------------------------------------------------------------------------------------

    @property
    def running(self) -> dict[int, int]:
        """Running job -> its number of nodes, in the order of the starts."""
        return self._retold.running

    def waiting(self) -> list[int]:
        """Return the jobs in the queue, in the order of submission."""
        record = self._retold.record
        return [
            job
            for job, state in enumerate(record.state)
            if state is JobState.UNKNOWN and job not in self.running and not math.isnan(record.submit[job])
        ]

    def counts(self) -> dict[str, int]:
        """Return the number of jobs by state: `planned`, `waiting`, `running`, and the final states that occur."""
        record = self._retold.record
        final = Counter(str(state) for state in record.state if state is not JobState.UNKNOWN)
        waiting, running = len(self.waiting()), len(self.running)
        planned = len(self.jobs) - waiting - running - final.total()
        return {"planned": planned, "waiting": waiting, "running": running, **final}

    @property
    def finished(self) -> int:
        """The number of jobs that have a final state."""
        return sum(state is not JobState.UNKNOWN for state in self._retold.record.state)

    @property
    def resizes(self) -> int:
        """The number of resizes that the policy has decided."""
        return len(self._retold.record.resizes)

    def start_of(self, job: int) -> float:
        """Return the start of a running job, trace s."""
        return self._retold.record.start[job]

    # -- nodes -----------------------------------------------------------------------------------------------------

    @property
    def nodes_out(self) -> list[int]:
        """The nodes that were lost and have not returned."""
        return sorted(self._retold.cluster.out)

    @property
    def nodes_busy(self) -> int:
        """The number of nodes that jobs hold."""
        cluster = self._retold.cluster
        return len({node for job in self.running for node in cluster.owned(job)})

    def holdings(self, since: float) -> Iterator[Holding]:
        """Yield the periods after `since` in which jobs hold nodes. A period that has not ended ends now."""
        cluster = self._retold.cluster
        for job in self.running:
            for held_since, nodes in cluster.periods(job):
                for node in nodes:
                    yield Holding(job, node, 1, held_since, self.now)
        ledger = cluster.ledger
        for row in range(len(ledger.jobs) - 1, -1, -1):
            if ledger.ends[row] < since:
                break
            yield Holding(
                ledger.jobs[row], ledger.firsts[row], ledger.counts[row], ledger.starts[row], ledger.ends[row]
            )

    def occupation(self, since: float, columns: int) -> IntArray:
        """Return which jobs held the nodes in a window that ends now.

        Args:
            since: start of the window, trace s.
            columns: number of equal periods of the window.

        Returns:
            For each node (row) and period (column), the job that held the node at its middle; -1: no job.
        """
        grid = np.full((len(self.info.nodes), columns), -1, dtype=np.int64)
        step = (self.now - since) / columns if self.now > since else 1.0
        for job, first, size, start, end in self.holdings(since):
            begin = max(0, math.ceil((start - since) / step - 0.5))
            stop = min(columns, math.ceil((end - since) / step - 0.5))
            if stop > begin:
                grid[first : first + size, begin:stop] = job
        return grid

    def utilization(self) -> float:
        """Return the share of the node-seconds since the first submission that jobs held; NaN: no time has passed."""
        begin = self.jobs.submit[0]
        span = self.now - begin
        if not span > 0:
            return math.nan
        held = sum((end - max(start, begin)) * size for _, _, size, start, end in self.holdings(begin) if end > begin)
        return held / (span * len(self.info.nodes))

    # -- time ------------------------------------------------------------------------------------------------------

    def lateness(self) -> dict[str, float]:
        """Return the lateness of the submissions so far: count, and median, 99th percentile and maximum, wall ms."""
        late = (self._submitted() - np.array(self.jobs.submit)) / self.info.speed
        return lateness(late[~np.isnan(late)].tolist())

    def left_s(self) -> float:
        """Return an estimate of the time left, wall s.

        The estimate is the larger of the time to the last submission, the longest remaining run time of a running job,
        and the time for the remaining work at the utilization so far.
        """
        if math.isnan(self.now) or self.finished == len(self.jobs):
            return 0.0
        record, run_time = self._retold.record, self.jobs.run_time
        started = {job: max(0.0, run_time[job] - (self.now - record.start[job])) for job in self.running}
        open_ = np.array([state is JobState.UNKNOWN for state in record.state])
        work = float(np.nansum(self._seconds[open_]))
        work -= sum((run_time[job] - rest) * self.jobs.nodes[job] for job, rest in started.items())
        so_far = self.utilization()
        pace = len(self.info.nodes) * (max(so_far, LEAST_UTILIZATION) if so_far == so_far else 1.0)
        left = max(self.jobs.submit[-1] - self.now, max(started.values(), default=0.0), work / pace, 0.0)
        return left / self.info.speed

    # -- health ----------------------------------------------------------------------------------------------------

    def health(self) -> dict[str, Any]:
        """Return the health of the replay so far, as in `run.json`."""
        return health(self._witness, replace(self.info), self._retold.record, self._thresholds)

    def _submitted(self) -> FloatArray:
        return np.array(self._retold.record.submit)


@contextlib.contextmanager
def _damage() -> Iterator[None]:
    """Convert the errors of a damaged journal to an InputError."""
    try:
        yield
    except (LookupError, ValueError, TypeError, AttributeError, ArithmeticError) as error:
        what = f"the journal is damaged: {type(error).__name__}: {error}"
        raise InputError(what, hint="the replay cannot be watched") from error


def _told(entry: Entry) -> str:
    """Return a fault as text."""
    data = entry.data
    place = ", ".join(filter(None, (entry.node or "", f"job {entry.job}" if entry.job else "")))
    reason = str(data.get("reason") or data.get("what") or "")
    return ": ".join(filter(None, (FAULTS[entry.kind], ", ".join(filter(None, (place, reason))))))
