"""Job states of batch systems, mapped to `JobState`."""

from __future__ import annotations

import enum
from collections.abc import Mapping

import numpy as np
import pandas as pd

from tracebed.converters.formats.tools.columns import relabel
from tracebed.ground.errors import tolerate
from tracebed.ground.states import JobState


class RecordState(enum.StrEnum):
    """A state in a log that is not a final job state."""

    PENDING = "pending"
    """The job was pending when the log was written."""
    RUNNING = "running"
    """The job was running when the log was written."""
    SUSPENDED = "suspended"
    """The job was suspended when the log was written."""
    RESIZING = "resizing"
    """The job continued with another allocation, in another record."""
    PREEMPTED = "preempted"
    """The job was preempted by another job."""
    REQUEUED = "requeued"
    """The job was requeued and may have another record."""
    PARTIAL = "partial"
    """The job continued in another line (SWF: status 2)."""
    PARTIAL_COMPLETED = "partial-completed"
    """The last line of a completed job (SWF: status 3)."""
    PARTIAL_FAILED = "partial-failed"
    """The last line of a failed job (SWF: status 4)."""


UNFINISHED = (RecordState.PENDING, RecordState.RUNNING, RecordState.SUSPENDED)
SWF: dict[int, str] = {
    -1: "",
    0: JobState.FAILED,
    1: JobState.COMPLETED,
    2: RecordState.PARTIAL,
    3: RecordState.PARTIAL_COMPLETED,
    4: RecordState.PARTIAL_FAILED,
    5: JobState.CANCELLED,
}
"""Job status in SWF and in the formats derived from it -> status of a workload."""
SWF_TEXTS = {str(code): word for code, word in SWF.items() if word}
SLURM: dict[str, str] = {
    "COMPLETED": JobState.COMPLETED,
    "FAILED": JobState.FAILED,
    "TIMEOUT": JobState.KILLED,
    "DEADLINE": JobState.KILLED,
    "OUT_OF_MEMORY": JobState.FAILED,
    "NODE_FAIL": JobState.FAILED,
    "BOOT_FAIL": JobState.FAILED,
    "CANCELLED": JobState.CANCELLED,
    "REVOKED": JobState.CANCELLED,
    "PREEMPTED": RecordState.PREEMPTED,
    "REQUEUED": RecordState.REQUEUED,
    "RESIZING": RecordState.RESIZING,
    "SUSPENDED": RecordState.SUSPENDED,
    "RUNNING": RecordState.RUNNING,
    "COMPLETING": RecordState.RUNNING,
    "PENDING": RecordState.PENDING,
}
"""Job state in Slurm accounting -> status of a workload."""


def slurm_states(labels: pd.Categorical) -> pd.Categorical:
    """Return Slurm states (also `CANCELLED by 1234`) as statuses; other labels become `unknown` and are counted."""
    return statuses(labels, SLURM)


def statuses(labels: pd.Categorical, known: Mapping[str, str]) -> pd.Categorical:
    """Return labels as statuses, by their first word in upper case; other labels become `unknown` and are counted."""
    names = [str(name).strip() for name in labels.categories]
    ours = [str(known.get(name.split()[0].rstrip("+").upper(), JobState.UNKNOWN)) if name else "" for name in names]
    strange = [index for index, name in enumerate(ours) if name == JobState.UNKNOWN]
    if strange:
        shown = ", ".join(names[index][:40] for index in strange[:5])
        tolerate({f"jobs in an unknown state: {shown}": int(np.isin(labels.codes, strange).sum())})
    return relabel(labels.codes, ours)


OVER_LIMIT = {True: (-11, -12), False: (-28, -29)}
"""Whether Torque -> exit statuses of a job killed at its limit of wall or CPU time (`JOB_EXEC_...` in the sources).

True is Torque, False is PBS Pro.
"""


def pbs_exit(code: int, *, torque: bool, deleted: bool, over: bool) -> JobState:
    """Return the status of a PBS job that ran. `over`: it ran at least as long as its limit.

    `Exit_status` is the exit code of the script, 128 or 256 plus a signal number, or below 0 if PBS ended the job.
    """
    if code == 0:
        return JobState.COMPLETED
    if code in OVER_LIMIT[torque]:
        return JobState.KILLED
    if code > 128:
        return JobState.CANCELLED if deleted else JobState.KILLED if over else JobState.FAILED
    return JobState.FAILED
