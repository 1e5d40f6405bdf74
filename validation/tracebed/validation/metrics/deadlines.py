"""Rates of jobs with deadlines: accepted, met, cancelled."""

from __future__ import annotations

import numpy as np
import pandas as pd

from tracebed.states import JobState
from tracebed.validation.metrics.jobs import resolution
from tracebed.validation.metrics.measured import MeasuredRun, Undefined
from tracebed.validation.metrics.metric import Margin, Metric

NO_DEADLINE = "no submitted job has a deadline"
MARGIN = Margin(absolute=0.02)


def outcomes(run: MeasuredRun) -> pd.DataFrame:
    """Return the outcome of each submitted job with a deadline.

    The time from the submission to the deadline is that of the workload, so a late submission does not tighten it. A
    job that was killed at its time limit was not cancelled, and did not meet its deadline.

    Returns:
        A row per job with the index `job_id`: `accepted` (not rejected), `met` (completed by its deadline),
        `cancelled`; all Boolean.
    """
    jobs = run.run.jobs.loc[run.jobs.index]
    jobs = jobs[(jobs["deadline"].notna() & jobs["submit"].notna()).to_numpy()]
    allowed = (jobs["deadline"] - jobs["submit_planned"]).to_numpy(dtype=np.float64)
    response = (jobs["end"] - jobs["submit"]).to_numpy(dtype=np.float64)
    table = {
        "accepted": (jobs["state"] != JobState.REJECTED).to_numpy(),
        "met": (jobs["state"] == JobState.COMPLETED).to_numpy() & (response <= allowed + resolution(run.run)),
        "cancelled": (jobs["state"] == JobState.CANCELLED).to_numpy(),
    }
    return pd.DataFrame(table, index=pd.Index(jobs["job_id"], name="job_id"))


def _outcomes(run: MeasuredRun) -> pd.DataFrame:
    if not run.run.jobs["deadline"].notna().any():
        raise Undefined(NO_DEADLINE)
    return outcomes(run)


def _share(run: MeasuredRun, column: str) -> float:
    found = _outcomes(run)[column]
    return float(found.mean()) if len(found) else float("nan")


def _guaranteed(run: MeasuredRun) -> float:
    found = _outcomes(run)
    accepted = found["accepted"].to_numpy()
    return float(found["met"].to_numpy()[accepted].mean()) if accepted.any() else float("nan")


METRICS = (
    Metric(
        name="acceptance_rate",
        label="acceptance rate",
        definition=lambda run: _share(run, "accepted"),
        undefined=NO_DEADLINE,
        margin=MARGIN,
        optional=True,
        docs="submitted jobs with a deadline that were not rejected / submitted jobs with a deadline",
    ),
    Metric(
        name="guarantee_rate",
        label="guarantee rate",
        definition=_guaranteed,
        undefined="no accepted job has a deadline",
        margin=MARGIN,
        optional=True,
        docs="jobs that completed by their deadline / accepted jobs with a deadline",
    ),
    Metric(
        name="cancel_rate",
        label="cancel rate",
        definition=lambda run: _share(run, "cancelled"),
        undefined=NO_DEADLINE,
        margin=MARGIN,
        optional=True,
        docs="cancelled jobs with a deadline / submitted jobs with a deadline; a job killed at its time limit was not "
        "cancelled",
    ),
)
"""The metrics of deadlines."""
