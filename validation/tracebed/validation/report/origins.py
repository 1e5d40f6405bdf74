"""Report sections about the origin of the differences: classes of jobs, and the jobs at which the runs first part."""

from __future__ import annotations

from typing import Any

from markupsafe import Markup

from tracebed.validation.report.sections import Section
from tracebed.validation.report.templates import fill
from tracebed.validation.report.time_axis import TimeAxis
from tracebed.validation.report.words import real_side
from tracebed.validation.verdict import Comparison
from tracebed.validation.verdict.breakdown import QUANTITIES, breakdown
from tracebed.validation.verdict.divergence import divergences

TITLES = {
    "size": "requested nodes",
    "run time": "run time",
    "kind": "kind",
    "user": "user",
    "behaviour": "behavior",
    "hour": "hour of submission",
}
"""Classification of `breakdown` -> title."""
FOLDED = 12
"""Number of classes above which a classification is folded."""
REACH = 60.0
"""Length of the bar of the largest share of a classification, in a graphic of 120 x 14 units."""


def _breakdown(comparison: Comparison) -> Markup | None:
    """Return the tables of the differences by classes of jobs, or None without matched jobs."""
    if not len(comparison.jobs):
        return None
    table = breakdown(comparison.jobs, comparison.real)
    groups = []
    for by, title in TITLES.items():
        found = table[table["by"] == by]
        rows = _rows(found.to_dict("records"))
        if len(rows) > 1:
            groups.append((title, rows))
    if not groups:
        return None
    sizes = table[table["by"] == "size"]
    totals = [sizes.loc[sizes["quantity"] == quantity, "contribution"].sum() for quantity in QUANTITIES]
    return fill("breakdown", groups=groups, totals=totals, folded=FOLDED)


def _rows(records: list[dict[Any, Any]]) -> list[dict[str, Any]]:
    """Return a row per class with its differences by quantity, and the bar of its contribution to the wait."""
    waits = [record for record in records if record["quantity"] == "wait"]
    longest = max((abs(record["contribution"]) for record in waits), default=0.0)
    off = {(record["class"], record["quantity"]): record["difference"] for record in records}
    return [
        {
            "class": record["class"],
            "wait": record,
            "bar": round(REACH * record["contribution"] / longest, 1) if longest else 0.0,
            "differences": [off[record["class"], quantity] for quantity in QUANTITIES],
        }
        for record in waits
    ]


def _divergences(comparison: Comparison) -> Markup | None:
    """Return the table of the jobs with the first differences, or None if there are no decisions."""
    found = divergences(comparison.real, comparison.predicted)
    if not found.decisions:
        return None
    time = TimeAxis.of(comparison.real, comparison.predicted)
    rows = found.table.to_dict("records")
    return fill("divergences", found=found, rows=rows, time=time, real_side=real_side(comparison.real.info))


BREAKDOWN = Section("Differences by classes of jobs", 850, _breakdown)
DIVERGENCES = Section("First divergences", 870, _divergences)
