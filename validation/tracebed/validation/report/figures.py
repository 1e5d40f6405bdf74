"""Report section with the table of all metrics of both runs."""

from __future__ import annotations

import math
from typing import Any

from markupsafe import Markup

from tracebed.validation.metrics import all_metrics
from tracebed.validation.report.sections import Section
from tracebed.validation.report.templates import fill
from tracebed.validation.significance import with_interval
from tracebed.validation.verdict import Validation


def _all_metrics(validation: Validation) -> Markup | None:
    """Return the table of all metrics that are defined for at least one run, or None for several cases."""
    if len(validation.cases) > 1:
        return None
    comparison, perturbed = validation.pair, validation.perturbed_intervals or {}
    ours, theirs = comparison.real_metrics, comparison.predicted_metrics
    rows = [
        (metric.label, metric.unit, ours[name], with_interval(theirs[name], perturbed.get(name)))
        for name, metric in all_metrics().items()
    ]
    rows += [
        (f"jobs {state}", "", ours["jobs_by_state"].get(state, 0), theirs["jobs_by_state"].get(state, 0))
        for state in ours["jobs_by_state"] | theirs["jobs_by_state"]
    ]
    rows += [
        (f"{label}, mean without the first and last 5 % of arrivals", "s", ours["trimmed"][key], theirs["trimmed"][key])
        for key, label in (("mean_wait_s", "wait"), ("mean_response_s", "response"))
    ]
    known = [row for row in rows if not (_missing(row[2]) and _missing(row[3]))]
    return fill("metrics", c=comparison, rows=known, perturbed=bool(perturbed))


def _missing(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


ALL_METRICS = Section("All metrics of the pair", 1000, _all_metrics, scope="validation", folded=True)
