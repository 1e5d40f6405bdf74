"""Rates of jobs with deadlines: accepted, met, cancelled."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracebed.ground.states import JobState
from tracebed.validation.metrics.jobs import resolution
from tracebed.validation.metrics.measured import MeasuredRun, Undefined
from tracebed.validation.metrics.metric import Margin, Metric

if TYPE_CHECKING:
    import pandas as pd

NO_DEADLINE = "no submitted job has a deadline"
MARGIN = Margin(absolute=0.02)


def outcomes(run: MeasuredRun) -> pd.DataFrame:
    """Return `accepted` (not rejected), `met` and `cancelled` of each submitted job with a deadline, by job_id."""
    # The time from the submission to the deadline is that of the workload, so a late submission does not tighten it. A
    # job that was killed at its time limit was not cancelled, and did not meet its deadline.
    import pandas as pd

    jobs = run.run.table("jobs").take(run.rows).frame()
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
    if np.isnan(run.run.table("jobs")["deadline"]).all():
        raise Undefined(NO_DEADLINE)
    return outcomes(run)


RATES = {
    "acceptance_rate": ("accepted", None),
    "guarantee_rate": ("met", "accepted"),
    "cancel_rate": ("cancelled", None),
    "accepted_cancel_rate": ("cancelled", "accepted"),
    "in_time_rate": ("met", None),
}
"""Rate -> the outcome that it counts, and the outcome of the jobs among which it counts; None: of all submitted."""


def _rate(found: pd.DataFrame, name: str) -> float:
    counted, among = RATES[name]
    jobs = found if among is None else found[found[among]]
    return float(jobs[counted].mean()) if len(jobs) else float("nan")


def by_behaviour(run: MeasuredRun) -> dict[str, dict[str, float]]:
    """Return behavior -> number of submitted jobs with a deadline, and their rates; empty if no behavior is known."""
    if run.run.table("jobs").equal("behaviour", "").all():
        return {}
    import pandas as pd

    jobs = run.run.jobs
    by_job = outcomes(run)
    behaviour = pd.Series(jobs["behaviour"].array, pd.Index(jobs["job_id"])).loc[by_job.index]
    return {
        str(name): {"jobs": len(rows), **{rate: _rate(rows, rate) for rate in RATES}}
        for name, rows in by_job.groupby(behaviour)
        if name
    }


def _metric(name: str, label: str, docs: str, undefined: str = NO_DEADLINE) -> Metric:
    return Metric(
        name=name,
        label=label,
        definition=lambda run: _rate(_outcomes(run), name),
        undefined=undefined,
        margin=MARGIN,
        optional=True,
        docs=docs,
    )


NOT_ACCEPTED = "no accepted job has a deadline"
METRICS = (
    _metric(
        "acceptance_rate",
        "acceptance rate",
        "submitted jobs with a deadline that were not rejected / submitted jobs with a deadline",
    ),
    _metric(
        "guarantee_rate",
        "guarantee rate",
        "jobs that completed by their deadline / accepted jobs with a deadline",
        NOT_ACCEPTED,
    ),
    _metric(
        "cancel_rate",
        "cancel rate",
        "cancelled jobs with a deadline / submitted jobs with a deadline; a job killed at its time limit was not "
        "cancelled",
    ),
    _metric(
        "accepted_cancel_rate",
        "cancel rate of accepted jobs",
        "cancelled jobs with a deadline / accepted jobs with a deadline",
        NOT_ACCEPTED,
    ),
    _metric(
        "in_time_rate",
        "in-time rate",
        "jobs that completed by their deadline / submitted jobs with a deadline",
    ),
)
"""The metrics of deadlines."""
