"""Copies of one real run, which are not repetitions: equal logs, up to a shift of all times and to rounding."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np

from tracebed.converters.workload import FloatArray
from tracebed.ground.table import rows_of
from tracebed.orchestrator.run import Run

TIMES = ("submit", "start", "end")
COLUMNS = ["job_id", "state", *TIMES]
SHIFTED_S = 0.01
"""Largest spread of the differences of the times of two copies, trace s; also at most `SHIFTED_WALL_S`."""
SHIFTED_WALL_S = 0.001
"""The same, wall s. The launches of real repetitions vary by more than this."""
GRIDS_S = (3600.0, 60.0, 10.0, 1.0, 0.1, 0.01)
"""Units to which times are rounded, s, the largest first."""
FLOAT_S = 1e-6
"""Accepted error of a multiple of a unit, s."""
MANY = 10
"""Smallest number of times for which the differences may spread: few times are near each other by chance."""


def log_sha256(run: Run) -> str:
    """Return a hash of the times and states of the jobs, in any order of rows: equal on all machines."""
    rows = run.table("jobs").frame()[COLUMNS].sort_values("job_id")
    digest = hashlib.sha256()
    for column in ("job_id", "state"):
        digest.update("\n".join(map(str, rows[column])).encode())
    for column in TIMES:
        digest.update(rows[column].to_numpy(dtype="<f8").tobytes())
    return digest.hexdigest()


def copied(run: Run, earlier: Mapping[str, Run]) -> str:
    """Return the name of the first of `earlier` of which `run` is a copy; empty if there is none."""
    return next((name for name, other in earlier.items() if is_copy(run, other)), "")


def is_copy(run: Run, other: Run) -> bool:
    """Return whether two runs are copies: the same jobs, states and times, up to one shift and to rounding.

    The differences of the times of copies are equal. If one of the two logs was rounded, the differences spread by at
    most its unit. The times of two repetitions vary from job to job.
    """
    ours, others = run.table("jobs"), other.table("jobs")
    if len(ours) != len(others):
        return False
    row = rows_of(ours.raw("job_id"), others.raw("job_id"))
    states, their_states = ours["state"], others["state"]
    if (row < 0).any() or (states != their_states[row]).any():
        return False
    tables = [np.column_stack([each[name] for name in TIMES]) for each in (ours, others)]
    times, theirs = tables[0].ravel(), tables[1][row].ravel()
    known = ~np.isnan(times)
    if (known == np.isnan(theirs)).any():
        return False
    times, theirs = times[known], theirs[known]
    spread = float(np.ptp(times - theirs)) if len(times) else 0.0
    if len(times) < MANY:
        return spread <= FLOAT_S
    units = {_unit(times), _unit(theirs)}
    unit = max(units) if len(units) > 1 else 0.0  # a shift of two rounded logs keeps all differences equal
    shifted = min(SHIFTED_S, SHIFTED_WALL_S * min(run.info.speed, other.info.speed))
    return spread <= max(unit, shifted) + FLOAT_S


def _unit(times: FloatArray) -> float:
    """Return the largest unit of `GRIDS_S` of which all times are multiples; 0 without one."""
    for unit in GRIDS_S:
        if (np.abs(times - np.round(times / unit) * unit) <= FLOAT_S).all():
            return unit
    return 0.0
