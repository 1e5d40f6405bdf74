"""Report sections with tables: verdict by metric, all metrics, and differences job by job."""

from __future__ import annotations

import math
from typing import Any

from markupsafe import Markup

from tracebed.validation.metrics import all_metrics
from tracebed.validation.report.sections import Section
from tracebed.validation.report.templates import fill
from tracebed.validation.statistics import BATCHES, LEVEL
from tracebed.validation.verdict import REASONS, Comparison

WORST = 10
"""Number of jobs in the table of the largest differences."""


def _verdicts(comparison: Comparison) -> Markup:
    """Return the table of metrics with margin, verdict and reasons."""
    rows = [_placed(item.to_json()) for item in comparison.metrics]
    level = f"{100 * LEVEL:g} %"
    return fill("verdicts", c=comparison, rows=rows, reasons=REASONS, level=level, batches=BATCHES)


def _placed(item: dict[str, Any]) -> dict[str, Any]:
    """Return the row of a metric with the x coordinates of its marker and whisker in a graphic of 120 x 14 units."""
    z, margin, stability = item["z"], item["margin"], item["within_run_stability"]

    def place(value: float) -> float:
        return round(60 + 18 * min(max(value, -3.1), 3.1), 1)

    drawn = not math.isnan(z)
    return item | {
        "x": place(z) if drawn else None,
        "beyond": drawn and abs(z) > 3.1,
        "whisker": [place(end / margin) for end in stability] if drawn and stability else None,
        "inside": drawn and abs(z) <= 1,
    }


def _all_metrics(comparison: Comparison) -> Markup:
    """Return the table of all metrics that are defined for at least one run."""
    ours, theirs = comparison.real_metrics, comparison.predicted_metrics
    rows = [(metric.label, metric.unit, ours[name], theirs[name]) for name, metric in all_metrics().items()]
    rows += [
        (f"jobs {state}", "", ours["jobs_by_state"].get(state, 0), theirs["jobs_by_state"].get(state, 0))
        for state in ours["jobs_by_state"] | theirs["jobs_by_state"]
    ]
    rows += [
        (f"{label}, mean without the first and last 5 % of arrivals", "s", ours["trimmed"][key], theirs["trimmed"][key])
        for key, label in (("mean_wait_s", "wait"), ("mean_response_s", "response"))
    ]
    return fill("metrics", c=comparison, rows=[row for row in rows if not (_missing(row[2]) and _missing(row[3]))])


def _missing(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _job_by_job(comparison: Comparison) -> Markup:
    """Return the statistics of the differences job by job, and the jobs with the largest differences."""
    jobs = comparison.jobs
    off = (jobs["wait_predicted"] - jobs["wait_real"]).abs()
    worst = jobs.loc[off[off > 0].sort_values(ascending=False, kind="stable").index[:WORST]]
    differences = [(name, found) for name, found in comparison.differences.items() if found]
    return fill("jobs", differences=differences, worst=worst.to_dict("records"))


VERDICTS = Section("Verdict by metric", 300, _verdicts)
ALL_METRICS = Section("All metrics", 1000, _all_metrics, half=True)
JOB_BY_JOB = Section("Job by job", 1100, _job_by_job, half=True)
