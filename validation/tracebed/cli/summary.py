"""Summary of a written workload."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tracebed.cli.charts import duration_text
from tracebed.cli.console import print_json, print_table
from tracebed.cli.messages import progress

if TYPE_CHECKING:
    from tracebed.api.types import Step, Workload


def write_and_summarize(
    workload: Workload,
    output: Path,
    as_json: bool,
    *,
    before: Workload | None = None,
    quietly: bool = False,
    writing: Mapping[str, Any] | None = None,
    replace: bool = False,
) -> None:
    """Write the workload and print a summary.

    Args:
        workload: the workload.
        output: the file or folder to write.
        as_json: print JSON in place of text.
        before: the workload before the step, for a table of both.
        quietly: do not print the counts of the last steps.
        writing: the format to write, and options of its writer.
        replace: whether an earlier workload in `output` is replaced.
    """
    from dataclasses import asdict

    import tracebed.api as tb
    from tracebed.api.descriptions import summary

    with progress(f"writing {output.name}"):
        tb.write(workload, output, replace=replace, **(writing or {}))
    step = asdict(workload.provenance.steps[-1]) if workload.provenance.steps else None
    if as_json:
        facts = {"output": str(output), **summary(workload), "sha256": workload.sha256, "step": step}
        print_json("tracebed-workload/1", {**facts, "before": summary(before)} if before else facts)
        return
    after = _texts(summary(workload))
    if before is not None:
        was = _texts(summary(before))
        print_table(["", "before", "after"], [(name, was[name], after[name]) for name in after])
    else:
        click.echo(f"{output}: " + ", ".join(f"{name} {value}" for name, value in after.items()))
    for done in () if quietly else _last_steps(workload):
        click.echo(f"{done.name}: " + ", ".join(f"{what} {n:,}" for what, n in done.counts.items()))


def _last_steps(workload: Workload) -> list[Step]:
    """Return the last step, or all steps of a cleaning, if they changed anything."""
    steps = workload.provenance.steps
    cleaning = list(takewhile(lambda step: step.name.startswith("clean "), reversed(steps)))[::-1]
    return [step for step in cleaning or steps[-1:] if set(step.counts) - {"jobs before"}]


def _texts(facts: Mapping[str, Any]) -> dict[str, str]:
    """Return a summary as text."""
    load = facts["offered_load"]
    return {
        "jobs": f"{facts['jobs']:,}",
        "malleable": f"{facts['malleable_jobs']:,}",
        "nodes": or_unknown(facts["nodes"]),
        "cores per node": or_unknown(facts["cores_per_node"]),
        "submitted within": duration_text(facts["span_s"]),
        "median run time": duration_text(facts["median_run_time_s"]),
        "longest run time": duration_text(facts["longest_run_time_s"]),
        "offered load": "not known" if load is None else f"{load:.3g}",
    }


def or_unknown(value: int | None) -> str:
    """Return a count as text."""
    return "not known" if value is None else f"{value:,}"
