"""The times that a batch system counts: from the first instruction of a job to its last."""

from __future__ import annotations

from array import array

import numpy as np

from tracebed.ground.states import JobState
from tracebed.orchestrator.scheduling.cluster import Cluster
from tracebed.orchestrator.scheduling.record import ScheduleRecord
from tracebed.orchestrator.simulation.delays import Delays


def count_dispatched(record: ScheduleRecord, cluster: Cluster, delays: Delays) -> None:
    """Change the times of a simulation to the times that a batch system counts.

    In a simulation, a job holds its nodes from its start decision until the nodes are idle again. In a batch system,
    the overheads of a launch precede the job, and the overheads of an end follow it. As in a real batch system, they
    are part neither of the run time of the job nor of its allocation, and a job has the nodes of an expansion once the
    batch system has given them to it, not from the decision on. Delays that depend on the number of ranks are
    those of the requested size. A policy may decide a resize before the job starts, or before it knows that the job has
    ended: such instants become the start and the end, and nodes are held for no time.

    Args:
        record: the times and states of the jobs.
        cluster: the nodes and their ledger.
    """
    nodes, count = record.jobs.nodes, range(len(record.jobs))
    ended = {JobState.COMPLETED, JobState.KILLED}  # a job that was cut short has ended at the recorded instant
    for job in count:
        if record.state[job] in ended:
            record.end[job] -= delays.end(job, nodes[job])
        record.start[job] = min(record.start[job] + delays.launch(job, nodes[job]), record.end[job])
    ledger = cluster.ledger
    held = np.asarray(ledger.jobs)
    start, end = (np.asarray(times, dtype=np.float64)[held] for times in (record.start, record.end))
    ends, began = np.fmin(ledger.ends, end), np.asarray(ledger.starts)
    began = np.where(began > start, began + delays.expand(0, 1), began)
    ledger.starts = array("d", np.fmin(np.fmax(began, start), ends).tobytes())
    ledger.ends = array("d", ends.tobytes())
    resizes = record.resizes
    resized = np.asarray(resizes.job)
    first, last = (np.asarray(times, dtype=np.float64)[resized] for times in (record.start, record.end))
    for name in ("asked", "decided", "applied", "ended"):  # NaN: the job ended before
        times = np.clip(np.asarray(getattr(resizes, name)), first, last)
        setattr(resizes, name, array("d", times.tobytes()))
