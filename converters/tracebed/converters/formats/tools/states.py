"""How jobs end, in the words of batch systems, mapped to ours."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from tracebed.converters.formats.tools.columns import relabel
from tracebed.errors import tolerate

SLURM = {
    "COMPLETED": "completed",
    "FAILED": "failed",
    "TIMEOUT": "killed",
    "DEADLINE": "killed",
    "OUT_OF_MEMORY": "failed",
    "NODE_FAIL": "failed",
    "BOOT_FAIL": "failed",
    "CANCELLED": "cancelled",
    "REVOKED": "cancelled",
    "PREEMPTED": "preempted",
    "REQUEUED": "requeued",
    "RESIZING": "resizing",
    "SUSPENDED": "suspended",
    "RUNNING": "running",
    "COMPLETING": "running",
    "PENDING": "pending",
}
"""State of a job in Slurm's accounting -> status of a workload."""


def slurm_states(labels: pd.Categorical) -> pd.Categorical:
    """Return Slurm's states (`CANCELLED by 1234` too) as statuses; an unknown one is `unknown`, and counted."""
    return statuses(labels, SLURM)


def statuses(labels: pd.Categorical, known: Mapping[str, str]) -> pd.Categorical:
    """Return labels as statuses; the first word decides, in capitals; what is not `known` is `unknown`, counted."""
    names = [str(name).strip() for name in labels.categories]
    ours = [known.get(name.split()[0].rstrip("+").upper(), "unknown") if name else "" for name in names]
    strange = [index for index, name in enumerate(ours) if name == "unknown"]
    if strange:
        shown = ", ".join(names[index][:40] for index in strange[:5])
        tolerate({f"jobs in a state that is not known: {shown}": int(np.isin(labels.codes, strange).sum())})
    return relabel(labels.codes, ours)


OVER_LIMIT = {True: (-11, -12), False: (-28, -29)}
"""Exit status of a job killed at its limit of wall or CPU time: of Torque, of PBS Pro (their `JOB_EXEC_...`)."""


def pbs_exit(code: int, *, torque: bool, deleted: bool, over: bool) -> str:
    """Return the status of a PBS job that ran.

    Args:
        code: its `Exit_status`: of the script; 128 or 256 and the number of a signal; below 0, PBS ended it.
        torque: whose codes they are, Torque's or PBS Pro's.
        deleted: whether somebody asked for its end.
        over: whether it ran as long as its limit.
    """
    if code == 0:
        return "completed"
    if code in OVER_LIMIT[torque]:
        return "killed"
    if code > 128:
        return "cancelled" if deleted else "killed" if over else "failed"
    return "failed"
