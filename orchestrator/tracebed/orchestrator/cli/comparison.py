"""The verdict of a comparison on the console."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tracebed.orchestrator.cli.console import print_table
from tracebed.orchestrator.cli.messages import say

if TYPE_CHECKING:
    from tracebed.validation.verdict import Comparison, MetricComparison


def show(comparison: Comparison) -> None:
    """Print which side is what, the verdict of each metric, and the overall verdict."""
    from tracebed.validation.report.words import execution

    for name, run in (("real", comparison.real), ("predicted", comparison.predicted)):
        click.echo(f"{name + ':':<11}{run.info.source}, {run.info.policy}; {execution(run.info)}")
    columns = (
        "metric",
        "real",
        "predicted",
        "difference",
        "error",
        "margin",
        "stability",
        "verdict",
        "reason",
    )
    spare = ("stability", "reason", "difference")  # the headline has the reasons; the margin always stays
    print_table(columns, [_row(item) for item in comparison.metrics], spare=spare)
    for warning in comparison.warnings:
        say(f"tracebed: warning: {warning}")
    click.echo("* advisory: has no part in the verdict")
    if not all(item.evidence for item in comparison.metrics):
        click.echo("** advisory, and no evidence: the run times of the real run were imposed")
    click.echo(f"{comparison.verdict}: {comparison.headline}")


def _row(item: MetricComparison) -> tuple[str, ...]:
    from tracebed.display import cell
    from tracebed.validation.report.words import percent

    return (
        item.metric.title + ("" if item.margin.gate else "*") + ("" if item.evidence else "*"),
        cell(item.real),
        cell(item.predicted),
        cell(item.difference),
        percent(item.relative_error),
        f"±{cell(item.tolerance)}",
        f"±{cell(item.stability.half_width)}" if item.stability else "-",
        item.verdict.value,
        ", ".join(item.reasons),
    )
