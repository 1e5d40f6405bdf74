"""Times of the jobs of a file on the clock of a workload; missing times are derived from the others."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tracebed.converters.workload import FloatArray, Workload
from tracebed.ground.errors import InputError
from tracebed.orchestrator.runs.checks import ROUNDING_S
from tracebed.validation.simulators.observed import Observed
from tracebed.validation.simulators.pairing import Pairing


@dataclass(frozen=True)
class Times:
    """Times of each job of the workload, s since its time 0, shape (jobs,); NaN: never, or not in the file."""

    submit: FloatArray
    start: FloatArray
    end: FloatArray


def times_of(observed: Observed, workload: Workload, pairing: Pairing) -> Times:
    """Return the times of the jobs; what a file lacks is derived from the other times, and from the workload."""
    rows, absent = pairing.rows, pairing.rows < 0

    def column(name: str, offset: float = 0.0) -> FloatArray:
        values = relative(observed.floats(name), offset) if offset else observed.floats(name)
        return np.where(absent, np.nan, values[rows])

    submit, start, end = (column(name, pairing.offset_s) for name in ("submit", "start", "end"))
    wait, run, response = (column(name) for name in ("wait", "run", "response"))
    planned = np.where(absent, np.nan, workload.floats("submit_time"))
    submit = first_of(submit, start - wait, end - response, planned)
    if not observed.is_known("start"):  # otherwise a job without a start never started
        start = first_of(start, submit + wait, end - run)
    end = first_of(end, start + run, submit + response)
    return Times(submit, start, np.where(np.isfinite(start), end, np.nan))


def first_of(*candidates: FloatArray) -> FloatArray:
    """Return the first finite value of each element."""
    found = candidates[0]
    for other in candidates[1:]:
        found = np.where(np.isfinite(found), found, other)
    return found


def relative(times: FloatArray, offset: float) -> FloatArray:
    """Return times since `offset`, rounded to the precision that times since 1970 have as floating-point numbers."""
    return np.round(times - offset, 6) if abs(offset) > 1e6 else times - offset


def check_times(observed: Observed, pairing: Pairing, times: Times) -> None:
    """Check that jobs start after their submission and end after their start, and that some job ended."""
    tolerance = max(observed.resolution, ROUNDING_S)
    for early, what in (
        (times.start - times.submit, "starts {:,.6g} s before its submission"),
        (times.end - times.start, "ends {:,.6g} s before its start"),
    ):
        bad = early < -tolerance
        if bad.any():
            at = int(bad.argmax())
            more = f" ({int(bad.sum()):,} jobs do)" if bad.sum() > 1 else ""
            hint = "check the columns, their units and the time zone, or correct the line"
            raise observed.error(int(pairing.rows[at]), what.format(-early[at]) + more, hint)
    if not np.isfinite(times.end).any():
        hint = "a start (or wait) and an end (or run time) are needed: name their columns by --columns start=NAME,..."
        raise InputError("no job has a start and an end", where=observed.where, hint=hint)
