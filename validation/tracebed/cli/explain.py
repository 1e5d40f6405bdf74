"""`tracebed explain`: the share of each cause in the error of a prediction."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import click

import tracebed.api as tb
from tracebed.cli.console import load_workload, print_json, print_table
from tracebed.cli.messages import emit, progress, warn
from tracebed.cli.options import (
    OutputPath,
    gathered,
    json_option,
    keywords,
    option,
    shared,
    tau_option,
    workload_argument,
)
from tracebed.cli.reports import FIGURES, ReportFile, kind_of, save_figures

CLASSES = 10
"""Number of classes of jobs that are printed: those with the largest contributions."""


@dataclass(frozen=True)
class Explained:
    """The error that is explained."""

    real: tuple[Path, ...] = option(
        required=True,
        type=click.Path(path_type=Path),
        metavar="RUN",
        help="Folder of the replay of WORKLOAD; may be repeated for several repetitions.",
    )
    calibration: Path | None = option(
        help="Give the overheads of this file of `tracebed nodes calibrate` a share of their own."
    )
    policy: str | None = option(
        metavar="FILE.py:CLASS",
        help="Policy of the run, if it is in a file.  [default: the installed policy that the run names]",
    )
    runtime_model: Literal["ideal", "worst-case"] = option(
        default="ideal", help="Run-time model for jobs that hold fewer cores than requested."
    )
    tau: float = shared(tau_option)


@click.command()
@workload_argument
@gathered("explained", Explained)
@click.option(
    "--report",
    type=OutputPath(ReportFile("html", "picture")),
    metavar="FILE",
    help="Write the report of the comparison with the waterfall (.html), or the waterfall only (.png, .svg, .pdf) or "
    f"its data (.csv); {FIGURES}.",
)
@json_option
def explain(workload: Path, explained: Explained, report: Path | None, as_json: bool) -> None:
    """Explain why the prediction of WORKLOAD differs from its replay.

    The prediction is repeated with one cause after another taken from the real run: the submission lateness, the
    launch and resize delays, the work of the jobs, and the times at which the policy was called. The share of a cause
    is the part of the error that disappears when the cause is added. With all causes, each decision must be that of
    the real run; what remains is a defect of tracebed or of the policy.

    \b
    Example:
      tracebed explain w.parquet --real runs/real --report budget.html
    """
    jobs = load_workload(workload)
    with progress("repeating the prediction"):
        budget = tb.error_budget(jobs, **keywords(explained))
    comparison = budget.comparison()
    if as_json:
        document = budget.to_json() | _origins(comparison)
        print_json(document.pop("schema"), document)
    else:
        _show(budget, comparison)
    for note in budget.notes:
        emit(f"tracebed: note: {note}")
    if budget.decisions:
        warn(budget.headline)
    if report is not None and kind_of(report) == "figures":
        save_figures(budget, report)
    elif report is not None:
        with progress("drawing the report"):
            budget.save(report)
        emit(f"report: {report}")


def _origins(comparison: tb.Comparison) -> dict[str, Any]:
    """Return the breakdown of the differences and the first divergences as JSON values."""
    found = comparison.divergence()
    return {
        "breakdown": comparison.breakdown().to_dict("records"),
        "divergences": {
            "decisions": found.decisions,
            "jobs": found.jobs,
            "tolerance_s": found.tolerance_s,
            "first": found.table.to_dict("records"),
        },
    }


def _show(budget: tb.ErrorBudget, comparison: tb.Comparison) -> None:
    """Print the shares, the classes of jobs with the largest contributions, and the first divergences."""
    print_table(budget.columns, budget.rows(gated=True))
    click.echo(
        "The error is predicted - real, in percent of the real value. The shares of the causes and the remainder add "
        "up to it; shares of opposite sign offset each other:"
    )
    click.echo("; ".join(f"{name}: {label}" for name, label in budget.labels.items() if name != label) + ".")
    click.echo(budget.headline)
    found = comparison.divergence()
    if not found.jobs:
        return
    side = "with calibrated overheads" if "overheads" in budget.causes else "without overheads"
    of = " of the first real run" if len(budget.runs) > 1 else ""
    table = comparison.breakdown()
    waits = table[table["quantity"].eq("wait") & table.groupby("by")["class"].transform("nunique").gt(1)]
    largest = waits.loc[waits["contribution"].abs().sort_values(ascending=False, kind="stable").index]
    click.echo(f"\nMean wait (s) by class of jobs{of}, predicted {side}:")
    rows = [
        [f"{row['by']} {row['class']}", row["jobs"], row["real"], row["predicted"], tb.percent_text(row["share"])]
        for row in largest.head(CLASSES).to_dict("records")
    ]
    print_table(["class", "jobs", "real", "predicted", "share of the difference"], rows)
    click.echo(
        "The shares of the classes of one kind (size, run time, ...) add up to 100 %. A negative one is an error of "
        "opposite sign."
    )
    click.echo(
        f"\nFirst divergences{of}: {found.jobs:,} jobs; in all, {found.decisions:,} starts and resizes were decided."
    )
    columns = ("job_id", "time", "parting", "real", "predicted", "delay")
    print_table(
        ["job", "time (s)", "parting", "real", "predicted", "delay (s)"],
        [[row[column] for column in columns] for row in found.table.to_dict("records")],
        text=("real", "predicted"),
    )
