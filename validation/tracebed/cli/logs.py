"""Workloads on the command line: the options of the commands that read logs, and the summary of a written workload."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any, Literal

import click

import tracebed.api as tb
from tracebed.cli.console import duration_text, print_json, print_table
from tracebed.cli.messages import progress
from tracebed.cli.options import SIZE, extension, keywords, option
from tracebed.ground.errors import InputError

PLAIN = "amte, batsim, csv, elastisim, parquet, shockwave and swf"
"""Formats whose readers keep names: help must not import the readers, and a test compares them."""

TABLES = "acme, alibaba-2020, alibaba-2023, helios, philly"
"""Shipped recipes of columns: help must not read the files, and a test compares them."""


@dataclass(frozen=True)
class Reading:
    """How a log is read."""

    format: str | None = option(
        "--from",
        **extension("tracebed.formats") | {"metavar": "FORMAT"},
        help="Format of the input, if its content does not tell: {names}.",
    )
    columns: str | None = option(
        metavar="NAME|FILE",
        help=f"Recipe of the columns of a table of jobs, in place of a format: {TABLES}, or a YAML file.",
    )
    by: Literal["node", "core"] | None = option(
        help="Processors of an SWF or of sacct become cores of whole nodes (default), or nodes of one core."
    )
    time_zone: str | None = option(
        metavar="ZONE", help="Time zone of a log that does not name it, such as America/Denver."
    )
    machine: str | None = option(
        metavar="NAME",
        help="Machine whose jobs are read from a log of several: 'Perlmutter CPU', or a cluster of sacct.",
    )
    keep: tuple[Literal["extra", "names"], ...] = option(
        help="extra: keep the other columns of a log, too, as extra_...; names: keep names of users and projects, "
        f"which otherwise become pseudonyms, except in {PLAIN}. May be repeated."
    )

    @property
    def keywords(self) -> dict[str, Any]:
        """The given options, as `tracebed.api.read` takes them."""
        found = keywords(self)
        return {f"keep_{what}": True for what in found.pop("keep", ())} | found


system_option = click.option(
    "--system",
    metavar="NODESxCORES",
    help="Machine of the workload, if its file does not name it: 64x48, or 64 for the nodes alone.",
)


def system_of(text: str | None) -> tb.System | None:
    """Return the machine that `--system` names."""
    if text is None:
        return None
    nodes, times, cores = text.partition("x")
    try:
        return tb.System(SIZE(nodes), SIZE(cores) if times else None)
    except click.BadParameter as error:
        what = error.message.rstrip(".")
        raise InputError(f"--system {text!r} is not a machine: {what}", hint="write 1024x8, or 1024") from None


def write_and_summarize(
    workload: tb.Workload,
    output: Path,
    as_json: bool,
    *,
    before: tb.Workload | None = None,
    quietly: bool = False,
    writing: Mapping[str, Any] | None = None,
    replace: bool = False,
) -> None:
    """Write a workload (`writing`: format and options of its writer), and print a summary.

    `before`, the workload before the step, is shown beside it; `quietly` leaves out the counts of the last steps.
    """
    with progress(f"writing {output.name}"):
        tb.write(workload, output, replace=replace, **(writing or {}))
    step = asdict(workload.provenance.steps[-1]) if workload.provenance.steps else None
    if as_json:
        facts = {"output": str(output), **tb.workload_summary(workload), "sha256": workload.sha256, "step": step}
        print_json("tracebed-workload/1", {**facts, "before": tb.workload_summary(before)} if before else facts)
        return
    after = _texts(tb.workload_summary(workload))
    if before is not None:
        was = _texts(tb.workload_summary(before))
        print_table(["", "before", "after"], [(name, was[name], after[name]) for name in after])
    else:
        click.echo(f"{output}: " + ", ".join(f"{name} {value}" for name, value in after.items()))
    for done in () if quietly else _last_steps(workload):
        click.echo(f"{done.name}: " + ", ".join(f"{what} {n:,}" for what, n in done.counts.items()))


def _last_steps(workload: tb.Workload) -> list[tb.Step]:
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
