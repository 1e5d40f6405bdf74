"""The times that a batch system counts: from the first instruction of a job to its last."""

from __future__ import annotations

from array import array

import numpy as np

from tracebed.orchestrator.scheduling.cluster import Cluster
from tracebed.orchestrator.scheduling.record import ScheduleRecord
from tracebed.orchestrator.simulation.delays import Delays
from tracebed.states import JobState


def count_dispatched(record: ScheduleRecord, cluster: Cluster, delays: Delays) -> None:
    """Change the times of a simulation to the times that a batch system counts. Each job must have one size.

    In a simulation, a job holds its nodes from its start decision until the nodes are idle again. In a batch system,
    the overheads of a launch precede the job, and the overheads of an end follow it. As in a real batch system, they
    are part neither of the run time of the job nor of its allocation.

    Args:
        record: the times and states of the jobs.
        cluster: the nodes and their ledger.
        delays: the delays of the simulation.
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
    ledger.starts = array("d", np.fmax(ledger.starts, start).tobytes())
    ledger.ends = array("d", np.fmin(ledger.ends, end).tobytes())
