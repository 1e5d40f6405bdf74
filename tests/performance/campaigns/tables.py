"""The tables of the documentation, from the output folders of pace.yaml and injection.yaml, in Markdown.

python tables.py pace FOLDER
python tables.py injection FOLDER
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from tracebed.validation.experiments.views.statistics import Statistics, summarize

METRICS = {"makespan_s": "makespan", "mean_wait_s": "wait", "mean_response_s": "response"}
KINDS = {
    "full": "duty 1",
    "most": "duty 0.8",
    "half": "duty 0.5",
    "third": "duty 0.3",
    "slow": "duty 0.3, long jobs",
    "emulated": "emulated",
}
NEIGHBORS = {"quiet": "none", "one": "one busy loop", "two": "two busy loops"}
MARGIN = 0.05
"""Margin of the mean response in a verdict."""


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def percent(value: float, form: str = ".2%") -> str:
    return "-" if value != value else f"{value:{form}}".replace("%", " %")


def testbed(cell: str) -> str:
    """Return the testbed of a cell, which is named WORKLOAD-POLICY-TESTBED. The only workload is `jobs`."""
    return cell.removeprefix("jobs-pref-")


def pace(summary: Statistics) -> str:
    """Return a row per cell: health, coefficient of variation, and error of the prediction."""
    rows = []
    for item in summary.figures:
        if item.selection != "all":
            continue
        kind, clock, neighbor = testbed(item.cell).split("-")
        states = summary.states.get(item.cell, {})
        health = ", ".join(f"{count} {state}" for state, count in states.items() if count)
        variation = [percent(item.metrics[name].cv) for name in METRICS]
        errors = [percent(item.metrics[name].errors["tracebed"], "+.2%") for name in METRICS]
        rows.append([KINDS[kind], clock, NEIGHBORS[neighbor], str(item.n), health, *variation, *errors])
    metrics = list(METRICS.values())
    head = ["nodes", "clock", "neighbors", "n", "health"]
    return table([*head, *(f"CV {name}" for name in metrics), *(f"error {name}" for name in metrics)], rows)


def moved(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs with their kind, disturbance, and relative distance of the response from the quiet median.

    An interrupted run has no response: it counts as moved by more than any margin.
    """
    parts = runs["cell"].map(testbed).str.split("-", n=1, expand=True)
    runs = runs.assign(kind=parts[0], disturbance=parts[1])
    quiet = runs[runs["disturbance"] == "quiet"].groupby("kind")["mean_response_s"].median()
    distance = (runs["mean_response_s"] / runs["kind"].map(quiet) - 1).abs()
    return runs.assign(moved=distance.where(runs["state"] == "completed", float("inf")))


def share(selected: pd.Series) -> str:
    """Return `3 of 4 (75 %)`."""
    return f"{int(selected.sum())} of {len(selected)} ({percent(selected.mean(), '.0%')})" if len(selected) else "-"


def injection(summary: Statistics) -> str:
    """Return two tables: the disturbances one by one, and the rates."""
    runs = moved(summary.runs)
    runs = runs.assign(found=runs["health"].isin(["degraded", "unhealthy"]), refused=runs["health"] == "unhealthy")
    rows = []
    for (kind, disturbance), part in runs.groupby(["kind", "disturbance"], sort=False):
        values = part["moved"].replace(float("inf"), float("nan"))
        own = [percent(values.median(), ".1%"), percent(values.max(), ".1%")]
        rows.append([KINDS[kind], disturbance, str(len(part)), *own, share(part["found"]), share(part["refused"])])
    rows.sort(key=lambda row: (list(KINDS.values()).index(row[0]), row[1] != "quiet", row[1]))
    head = ["nodes", "disturbance", "runs", "response moved, median", "largest", "degraded or unhealthy", "unhealthy"]
    single = table(head, rows)
    rows = []
    for kind, name in KINDS.items():
        own = runs[runs["kind"] == kind]
        groups = {
            "quiet": own[own["disturbance"] == "quiet"],
            f"disturbed, response moved by more than {MARGIN:.0%}": own[
                (own["disturbance"] != "quiet") & (own["moved"] > MARGIN)
            ],
            "disturbed, moved less": own[(own["disturbance"] != "quiet") & (own["moved"] <= MARGIN)],
        }
        rows += [
            [name, group.replace("%", " %"), str(len(part)), share(part["found"]), share(part["refused"])]
            for group, part in groups.items()
            if len(part)
        ]
    rates = table(["nodes", "runs", "n", "degraded or unhealthy", "unhealthy"], rows)
    return f"{single}\n\n{rates}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Print the tables of the documentation in Markdown.")
    parser.add_argument("experiment", choices=["pace", "injection"])
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    summary = summarize(arguments.folder)
    sys.stdout.write({"pace": pace, "injection": injection}[arguments.experiment](summary) + "\n")
    if summary.failed or summary.missing:
        sys.stderr.write(f"{len(summary.failed)} repetitions failed, {summary.missing} are missing\n")


if __name__ == "__main__":
    main()
